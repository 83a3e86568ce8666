"""Writes commits.json beside itself: `PYTHONPATH=tests python tests/vectors/make_commits.py`.

Lists of commit parcels (docs/formats/commit.md): good ones with what they say and their hash, bad ones with words of
the refusal. Nothing is random, so a second run writes the same file.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from tallystick import wire
from tallystick.ledger.contracts.writes import WRITES
from tallystick.parcel.commit import CommitList, WrittenRun, ledger_write

PATH = Path(__file__).parent / "commits.json"
PUBLISHER = sha256(b"publisher").digest()[:16]
TOKEN, WRITE = sha256(b"topic").digest()[:16], sha256(b"write").digest()


def run(name: str, partition: int, first: int, *offsets: tuple[int, int]) -> WrittenRun:
    return WrittenRun(
        sha256(name.encode()).digest()[:16], partition, first, offsets, sha256(f"last {name}".encode()).digest()
    )


GOOD = {
    "one parcel": CommitList(TOKEN, WRITE, 0, (run("a", 0, 0, (0, 1)),)),
    "two lanes, interleaved": CommitList(
        TOKEN, WRITE, 7, (run("a", 2, 0, (10, 2), (15, 1)), run("b", 2, 4, (12, 3), (16, 40)))
    ),
    "two runs of one lane": CommitList(TOKEN, WRITE, 1 << 40, (run("a", 0, 5, (70_000, 1)), run("a", 0, 9, (1, 2)))),
}


def bad() -> dict[str, tuple[bytes, str]]:
    """Each a change of the second good list."""

    def changed(change: Any) -> bytes:
        value = wire.decode(GOOD["two lanes, interleaved"].encoded, "list")
        change(value)
        return wire.encode(value)

    return {
        "another version": (changed(lambda v: v.__setitem__(0, 2)), "version 1 expected"),
        "no run": (changed(lambda v: v[4].clear()), "an array of 1 to"),
        "a run without a parcel": (changed(lambda v: v[4][0][3].clear()), "an array of 1 to"),
        "a pair of none": (changed(lambda v: v[4][0][3][0].__setitem__(1, 0)), "an integer from 1"),
        "offsets that fall": (changed(lambda v: v[4][0][3].reverse()), "offsets of a run rise"),
        "neighbours as two pairs": (changed(lambda v: v[4][0][3].__setitem__(1, [12, 1])), "neighbours are one pair"),
        "a parcel in two runs": (changed(lambda v: v[4][1][3].__setitem__(0, [11, 1])), "offset 11 of partition 2"),
        "a short hash": (changed(lambda v: v[4][0].__setitem__(4, bytes(31))), "expected 32 bytes"),
        "a byte behind it": (GOOD["one parcel"].encoded + b"\x00", "commit list"),
    }


def encode(name: str, one: CommitList) -> dict[str, Any]:
    return {
        "name": name,
        "list": one.encoded.hex(),
        "hash": one.hash.hex(),
        "ledger key": WRITES(PUBLISHER, ledger_write(one.write), one.batch).hex(),
        "batch": one.batch,
        "places": [[run.lane.hex(), run.partition, run.first, list(run.places())] for run in one.runs],
    }


def main() -> None:
    made = {
        "about": "lists of commit parcels, format version 1: docs/formats/commit.md",
        "publisher": PUBLISHER.hex(),
        "token": TOKEN.hex(),
        "write": WRITE.hex(),
        "good": [encode(name, one) for name, one in GOOD.items()],
        "bad": [{"name": name, "list": data.hex(), "refusal": words} for name, (data, words) in bad().items()],
    }
    PATH.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
