"""Spans of time and what is kept, as they are typed."""

from __future__ import annotations

UNITS_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def show_keeping(keep_ms: int, keep_parcels: int) -> str:
    """How long parcels stay, as `--keep` takes it."""
    return show_ms(keep_ms) if keep_ms else str(keep_parcels or "forever")


def show_ms(ms: int) -> str:
    unit = max((unit for unit, size in UNITS_MS.items() if ms % size == 0), key=UNITS_MS.__getitem__) if ms else "ms"
    return f"{ms // UNITS_MS[unit]}{unit}"
