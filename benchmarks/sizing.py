"""The tables of docs/sizing.md: what a fleet needs, worked out from measured rows of the spine.

The fleet has 10,000 vehicles with a record a second each. Everything here is extrapolation: rates and sizes that were
measured on one machine, times what the fleet sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log

from harness import Row, number

RECORDS_S = 10_000
DAY_S = 86_400
COMMIT_S = 0.1  # the default of `commit_ms`: the entries of so long share a transaction
SIZES = (8, 64, 512, 4096)  # records a parcel
LEDGER_SIZES = (1, 16, 128, 512)  # entries a transaction of which the bytes were measured
SUMMARY_SIZE = 64
PARCEL_S = 10  # of the ledger's day: a parcel of each vehicle every so often

Rows = Mapping[str, Row]


def gib_a_day(bytes_s: float) -> float:
    return bytes_s * DAY_S / (1 << 30)


def parcels_s(size: int) -> float:
    return RECORDS_S / size


def log_gib(spine: Rows, size: int) -> float:
    """One copy of the log, a day."""
    return gib_a_day(RECORDS_S * spine[f"bytes_{size}"]["ours"])


def ledger_gib(spine: Rows, size: int) -> float:
    """An entry for each publish request, a day; by the measured transaction that is nearest to what a commit finds."""
    entries = parcels_s(size) * COMMIT_S
    nearest = min(LEDGER_SIZES, key=lambda measured: abs(log(measured / entries)))
    return gib_a_day(parcels_s(size) * spine[f"ledger_bytes_{nearest}"]["ours"])


def core_share(spine: Rows, kind: str, size: int) -> float:
    """Per cent of a core for all parcels."""
    return 100 * parcels_s(size) / spine[f"{kind}_{size}"]["ours"]


def fleet(spine: Rows) -> str:
    lines = [
        "| records a parcel | parcels/s | bytes/record | log, GiB/day | guards, % of a core"
        " | one reader of everything, % of a core | the same if each parcel comes alone, at most | ledger, GiB/day |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for size in SIZES:
        guards, reader = core_share(spine, "guard", size), core_share(spine, "subscriber", size)
        record = spine[f"bytes_{size}"]["ours"]
        values = (record, log_gib(spine, size), guards, reader, guards + reader, ledger_gib(spine, size))
        lines.append(f"| {size} | {parcels_s(size):,.0f} | {' | '.join(map(number, values))} |")
    return "\n".join(lines)


def node(spine: Rows) -> str:
    """Records a second, from nanoseconds a record."""
    acts = ("publish", "fetch")
    lines = [f"| records a parcel | {' | '.join(f'{act}, records/s' for act in acts)} |", "|--:|--:|--:|"]
    for size in SIZES:
        rates = (f"{1e9 / spine[f'node_{act}_{size}']['ours']:,.0f}" for act in acts)
        lines.append(f"| {size} | {' | '.join(rates)} |")
    return "\n".join(lines)


def ledger_days(spine: Rows) -> str:
    """By the rows that the suite extrapolated."""
    kinds = {
        "each": ('`operations = "each"`, or aggregates at `commit_ms = 100`', PARCEL_S),
        "minutes": ("aggregates at `commit_ms = 60000`", 60),
    }
    lines = [f"| a parcel every {PARCEL_S} seconds and vehicle | entries/day | GiB/day |", "|---|--:|--:|"]
    for kind, (text, entry_s) in kinds.items():
        grown = spine[f"ledger_day_{kind}"]["ours"]
        lines.append(f"| {text} | {RECORDS_S * DAY_S // entry_s:,} | {number(grown)} |")
    return "\n".join(lines)


def summary(spine: Rows) -> str:
    size = SUMMARY_SIZE
    cores = ceil(10 * (core_share(spine, "guard", size) + core_share(spine, "subscriber", size)) / 100) / 10
    return "\n".join(
        [
            f"| {size} records a parcel | cores | memory | disk a day |",
            "|---|--:|--:|--:|",
            f"| node, log carrier | 1 (plan) | 1 GiB (plan) | {number(log_gib(spine, size))} GiB log |",
            f"| its ledger | part of the node's | in the node's | {number(ledger_gib(spine, size))} GiB |",
            f"| a subscriber of everything | {cores:.1f} | 0.5 GiB (plan) | – |",
            "| authority | no request a parcel; not measured | not measured | – |",
        ]
    )
