"""The tables of docs/detection.md, from the rows of `detect.py`."""

from __future__ import annotations

from collections.abc import Mapping

import harness
from harness import Row

Rows = Mapping[str, Row]


def groups(found: Rows) -> str:
    """What the checks find, a line a group."""
    lines = [
        "| attacks | found | F1 per frame (band; target) | F1 per second (band; target) | s until found, longest |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in [one.removesuffix("_found") for one in found if one.endswith("_found")]:
        told = found[f"{name}_found"]
        cells = [
            f"{told['ours']:.0f} {told['unit']}",
            *(_cell(found.get(f"{name}_{key}")) for key in ("frame", "second")),
        ]
        delay = found.get(f"{name}_delay")
        until = "" if delay is None else f"{delay['spread'][0]:.2f}, {delay['ours']:.2f}{_aim(delay)}"
        lines.append(f"| {name.replace('_', ', ')} | {' | '.join([*cells, until])} |")
    return "\n".join(lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['ours']:.3f} ({row['spread'][0]:.3f} to {row['spread'][1]:.3f}){_aim(row)}"


def _aim(row: Row) -> str:
    return "" if row["target"] is None else f"; {row['target']:g}: {harness.judged(row)}"


def detectors(found: Rows) -> str:
    """F1 per frame of every detector, a column a group; and its false alarms an hour."""
    names = [one.removesuffix("_frame") for one in found if one.endswith("_frame")]
    lines = [f"| | {' | '.join(one.replace('_', ', ') for one in names)} | false alarms an hour |"]
    lines.append("|---|" + "--:|" * (len(names) + 1))
    for detector in [one.removeprefix("alarms ") for one in found if one.startswith("alarms ")]:
        rows = [found.get(f"{one}_frame" + ("" if detector == "checks" else f" {detector}")) for one in names]
        cells = ["" if row is None else f"{row['ours']:.3f}" for row in rows]
        lines.append(f"| {detector} | {' | '.join(cells)} | {harness.number(found[f'alarms {detector}']['ours'])} |")
    return "\n".join(lines)
