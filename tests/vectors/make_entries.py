"""Writes entries.json beside itself: `PYTHONPATH=tests:tests/ledger python tests/vectors/make_entries.py`.

Entries of every kind of docs/formats/ledger.md (`entry_cases.py`), each in a transaction on one given state: good ones
with the keys they write and their result, bad ones with the reason they must be refused for. The file was made once
and is kept: signatures of roots draw their own randomness, so a second run writes other bytes. Run it only to add
vectors, and say so in the commit.
"""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

from entry_cases import Cases, standing
from ledger_world import NOW_MS, Bench

from tallystick.ledger.block import parse
from tallystick.ledger.contracts.execute import execute
from tallystick.ledger.contracts.state import State

PATH = Path(__file__).parent / "entries.json"


def make() -> dict[str, Any]:
    bench = Bench()
    standing(bench)
    made: dict[str, Any] = {
        "about": "entries of every kind on one state: what each writes, or why it is refused (docs/formats/ledger.md)",
        "height": bench.height,
        "time_ms": NOW_MS,
        "state": {key.hex(): value.hex() for key, value in sorted(bench.stored.items())},
        "good": [],
        "bad": [],
    }
    given = Cases(bench.world)
    for verdict, cases in (("good", given.good()), ("bad", given.bad())):
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
    made = make()
    PATH.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{len(made['good'])} good and {len(made['bad'])} bad vectors, {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
