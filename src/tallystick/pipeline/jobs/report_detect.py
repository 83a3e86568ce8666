"""The report's section on intrusions: what the watches over CAN buses found, and which vehicles nobody watched."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tallystick.page.html import Html, card, section, table, tag
from tallystick.page.svg import amount, bars, many, stamp
from tallystick.pipeline.jobs.report_data import Intrusions

_SHOWN_MAX = 50  # the strongest; the table has all
_NAMES = ["Vehicle", "Identifier", "Signal", "Check", "Seen", "Expected", "From", "To", "Hits", "Strength"]


def intrusion_section(found: Intrusions) -> Html:
    still = f", {found.open} of them going on" if found.open else ""
    vehicles = Counter(row["vin"] for row in found.alerts)
    lead = f"{many(len(found.alerts), 'alert')} on {many(len(vehicles), 'vehicle')}{still},"
    lead += f" in {amount(found.frames)} frames."
    if found.unscored or found.late:
        lead += f" Not scored: {amount(found.unscored)} frames of vehicles without a profile that is believed"
        lead += f"{found.named('unscored')}, {amount(found.late)} that came late{found.named('late')}."
    if not found.alerts:
        return section(lead, [])
    checks = Counter(row["check"] for row in found.alerts)
    strongest = sorted(found.alerts, key=lambda row: -row["strength"])[:_SHOWN_MAX]
    return section(
        lead,
        [
            card("Alerts by check", bars([(name, float(count)) for name, count in checks.most_common()])),
            card("Alerts by vehicle", bars([(name, float(count)) for name, count in vehicles.most_common(12)])),
            card("The strongest", table(_NAMES, [_row(row) for row in strongest], numbers=(8, 9)), wide=True),
        ],
    )


def _row(row: dict[str, Any]) -> list[Any]:
    low, high = (_number(row[name]) for name in ("low", "high"))
    times = [stamp(row[name].timestamp(), seconds=True) for name in ("ts_first", "ts_last")]
    named = [row["vin"], tag("code", f"{row['can_id']:x}"), row["signal"], row["check"]]
    return [*named, _number(row["seen"]), f"{low} to {high}", *times, amount(row["frames"]), f"{row['strength']:.1f}"]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.6g}"
