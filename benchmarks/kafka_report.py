"""The results of `make bench-kafka` for people: tables for docs/benchmarks.md, and plots beside `kafka.json`."""

from __future__ import annotations

import sys
from math import log2
from pathlib import Path

import harness
from harness import Row

sys.path.append(str(Path(__file__).resolve().parent.parent))

from experiments import results

OPERATIONS = {"produce_dicts": "Producing dicts", "produce_columns": "Producing columns", "fetch": "Fetching"}
ARMS = ("plain", "sealing off", "everything on")


def tables(folder: Path = harness.RESULTS) -> str:
    """What is there, as Markdown."""
    found = load(folder)
    parts = [throughput(found), processor(found), others(found)]
    return "\n\n".join(part for part in parts if part)


def draw(folder: Path = harness.RESULTS) -> list[Path]:
    """A plot of each operation: records a second by parcel size, in the three arms; where they were written."""
    found = load(folder)
    written = []
    for operation, title in OPERATIONS.items():
        lines: dict[str, list[tuple[float, float]]] = {arm: [] for arm in ARMS}
        for size in _sizes(found):
            for arm, value in zip(ARMS, _arms(found, f"{operation}_{size}"), strict=True):
                if value is not None:
                    lines[arm].append((log2(size), 1e9 / value))
        lines = {arm: points for arm, points in lines.items() if points}
        if not lines:
            continue
        path = folder / f"kafka_{operation}.png"
        try:
            results.draw(results.Plot(title, "log₂ of records a parcel", "records/s", lines, logarithmic=True), path)
        except results.Unavailable as error:
            print(f"{error}\nhint: {error.hint}", file=sys.stderr)
            break
        print(path)
        written.append(path)
    return written


def load(folder: Path) -> dict[str, Row]:
    return {one["name"]: one for one in harness.read(folder, "kafka")}


def _sizes(found: dict[str, Row]) -> list[int]:
    """The records a parcel that were measured."""
    return sorted({int(end) for name in found if (end := name.rpartition("_")[2]).isdigit()})


def _arms(found: dict[str, Row], name: str) -> tuple[float | None, float | None, float | None]:
    """Plain, sealing off, everything on."""
    ours, unsealed = found.get(name), found.get(f"{name}_unsealed")
    return (
        None if ours is None else ours["peer"],
        None if unsealed is None else unsealed["ours"],
        None if ours is None else ours["ours"],
    )


def throughput(found: dict[str, Row]) -> str:
    """Records a second in each arm, and what became of the targets."""
    lines = [
        "| | plain | sealing off | everything on | | ratio | target | |",
        "|---|--:|--:|--:|---|--:|--:|---|",
    ]
    for name in [f"{operation}_{size}" for size in _sizes(found) for operation in OPERATIONS]:
        if name in found:
            rates = [_thousands(value) for value in _arms(found, name)]
            lines.append(f"| {name} | {' | '.join(rates)} | thousand/s | {_judged(found[name])} |")
        if f"{name}_fast" in found:
            plain, _, fast = _arms(found, f"{name}_fast")
            lines.append(
                f"| {name}_fast | {_thousands(plain)} | | {_thousands(fast)} | thousand/s |"
                f" {_judged(found[f'{name}_fast'])} |"
            )
    for name in ("spark_batch", "spark_stream"):
        if name in found:
            plain, _, ours = _arms(found, name)
            lines.append(
                f"| {name} | {_thousands(plain)} | | {_thousands(ours)} | thousand/s | {_judged(found[name])} |"
            )
    return "\n".join(lines) if len(lines) > 2 else ""


def processor(found: dict[str, Row]) -> str:
    """Nanoseconds a record, for everybody who works on it."""
    lines = [
        "| ns of processor a record | client: plain | sealing off | everything on | broker: plain | everything on"
        " | notary |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in [f"{operation}_{size}" for size in _sizes(found) for operation in OPERATIONS]:
        client, broker, notary = found.get(f"{name}_cpu"), found.get(f"{name}_broker"), found.get(f"{name}_notary")
        if client and broker and notary:
            unsealed = found[f"{name}_cpu_unsealed"]["ours"]
            values = (client["peer"], unsealed, client["ours"], broker["peer"], broker["ours"], notary["ours"])
            lines.append(f"| {name} | {' | '.join(f'{value:,.0f}' for value in values)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def others(found: dict[str, Row]) -> str:
    """Latencies and bytes."""
    lines = ["| | plain | sealing off | everything on | |", "|---|--:|--:|--:|---|"]
    for name, one in found.items():
        if name.startswith(("latency_", "disk_")) and not name.endswith(("_unsealed", "_notary")):
            values = ("" if value is None else f"{value:,.1f}" for value in _arms(found, name))
            kept = found.get(f"{name}_notary")
            unit = one["unit"] if kept is None else f"{one['unit']}, and {kept['ours']:.1f} at the notary"
            lines.append(f"| {name} | {' | '.join(values)} | {unit} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _thousands(ns: float | None) -> str:
    return "" if ns is None else f"{1e6 / ns:,.0f}"


def _judged(one: Row) -> str:
    target = "" if one["target"] is None else f"{one['target']:g}"
    return f"{one['ratio']:.2f} | {target} | {harness.judged(one)}"
