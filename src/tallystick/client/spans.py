"""Spans of time and what is kept, as they are typed."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

UNITS_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def show_keeping(keep_ms: int, keep_parcels: int) -> str:
    """How long parcels stay, as `--keep` takes it."""
    return show_ms(keep_ms) if keep_ms else str(keep_parcels or "forever")


def show_ms(ms: int) -> str:
    unit = max((unit for unit, size in UNITS_MS.items() if ms % size == 0), key=UNITS_MS.__getitem__) if ms else "ms"
    return f"{ms // UNITS_MS[unit]}{unit}"


def read_ms(text: str) -> int | None:
    """The milliseconds of a time such as 500ms, 20s, 5min, 12h or 30d, or None where it is none."""
    found = re.fullmatch(r"([0-9]{1,9})(ms|s|min|h|d)", text)
    return int(found[1]) * UNITS_MS[found[2]] if found else None


def read_time(text: str, now_ms: int) -> datetime | None:
    """The time that `text` names, or None where it names none: -1h (so long ago), or 2026-11-15T08:00, in UTC unless it
    says otherwise. What is printed as a time is taken as well."""
    ago_ms = read_ms(text[1:]) if text.startswith("-") else None
    try:
        if ago_ms is not None:
            return datetime.fromtimestamp(now_ms / 1000, UTC) - timedelta(milliseconds=ago_ms)
        time = datetime.fromisoformat(text.removesuffix(" UTC"))
    except (ValueError, OverflowError):
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
