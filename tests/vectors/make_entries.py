"""Writes a file beside itself: `PYTHONPATH=tests:tests/ledger python tests/vectors/make_entries.py entries.json`.

entries_2.json has those whose contract has a newer version, on the same state with this release's contracts in force;
retention_entries.json what came with retention, on a state of its own (`retention_entry_cases.py`),
overlay_entries.json what came with overlays (`overlay_entry_cases.py`), and firmware_entries.json what came with
updates (`firmware_entry_cases.py`).

Entries of every kind of docs/formats/ledger.md (`entry_cases.py`), each in a transaction on one given state: good ones
with the keys they write and their result, bad ones with the reason they must be refused for. The files were made once
and are kept: signatures of roots draw their own randomness, so a second run writes other bytes. Run it only to add
vectors, and say so in the commit.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

from entry_cases import HASH, LATER, NAME, NOTES, Case, Cases, standing
from firmware_entry_cases import FirmwareCases, standing_fleet
from ledger_world import NOW_MS, Bench, World
from overlay_entry_cases import OverlayCases, standing_overlay
from retention_entry_cases import RetentionCases, standing_retained

from tallystick.ledger import entries
from tallystick.ledger.block import parse
from tallystick.ledger.contracts.execute import execute
from tallystick.ledger.contracts.state import State


def stand_in_force(bench: Bench) -> None:
    standing(bench)
    bench.bring_into_force()
    bench.accept(bench.world.authority.sign(entries.activate("writes", 2, LATER)))
    bench.accept(bench.world.authority.sign(entries.announce_key(NOTES, NAME, HASH)))


def relayed(world: World, height: int) -> tuple[list[Case], list[Case]]:
    return OverlayCases(world, height).good(), OverlayCases(world, height).bad()


def newer(world: World, _height: int) -> tuple[list[Case], list[Case]]:
    return Cases(world).newer_good(), Cases(world).newer_bad()


def first(world: World, _height: int) -> tuple[list[Case], list[Case]]:
    return Cases(world).good(), Cases(world).bad()


def retained(world: World, _height: int) -> tuple[list[Case], list[Case]]:
    return RetentionCases(world).good(), RetentionCases(world).bad()


def updated(world: World, _height: int) -> tuple[list[Case], list[Case]]:
    return FirmwareCases(world).good(), FirmwareCases(world).bad()


# What there is before, and the good and the bad cases.
FILES = {
    "entries.json": (standing, first),
    "entries_2.json": (stand_in_force, newer),
    "retention_entries.json": (standing_retained, retained),
    "overlay_entries.json": (standing_overlay, relayed),
    "firmware_entries.json": (standing_fleet, updated),
}


def make(name: str) -> dict[str, Any]:
    bench = Bench()
    stand, cases_of = FILES[name]
    stand(bench)
    made: dict[str, Any] = {
        "about": "entries of every kind on one state: what each writes, or why it is refused (docs/formats/ledger.md)",
        "height": bench.height,
        "time_ms": NOW_MS,
        "state": {key.hex(): value.hex() for key, value in sorted(bench.stored.items())},
        "good": [],
        "bad": [],
    }
    for verdict, cases in zip(("good", "bad"), cases_of(bench.world, bench.height), strict=True):
        for name, author, entry in cases:
            transaction = author.sign(entry).data
            state = State(bench.stored.get)
            result = execute(state, parse(transaction), bench.height, NOW_MS)
            assert result.accepted == (verdict == "good"), (name, result)
            vector = {"name": name, "transaction": b64encode(transaction).decode()}
            if result.accepted:
                changes = {key.hex(): None if value is None else value.hex() for key, value in state.changes().items()}
                made[verdict].append(vector | {"writes": changes, "result": result.data.hex()})
            else:
                made[verdict].append(vector | {"reason": result.reason, "index": result.index})
    return made


def main() -> None:
    path = Path(__file__).parent / sys.argv[1]
    made = make(path.name)
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{len(made['good'])} good and {len(made['bad'])} bad vectors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
