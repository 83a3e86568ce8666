"""Committed entries on a committed state write what stands beside them, or are refused for the reason that does."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger.block import parse
from tallystick.ledger.contracts.execute import CONTRACTS, Result, execute
from tallystick.ledger.contracts.state import State

FOLDER = Path(__file__).parents[1] / "vectors"
NAMES = (
    *("entries.json", "entries_2.json", "retention_entries.json", "overlay_entries.json"),
    "firmware_entries.json",
)
FILES = [json.loads((FOLDER / name).read_text(encoding="utf-8")) for name in NAMES]
STORED = [{bytes.fromhex(key): bytes.fromhex(value) for key, value in file["state"].items()} for file in FILES]
KINDS = {int(kind) for table in CONTRACTS.values() for kind in table}


def vectors(verdict: str) -> list[dict[str, Any]]:
    """Those of every file, each with the number of its file."""
    return [{"file": number, **vector} for number, file in enumerate(FILES) for vector in file[verdict]]


def run(vector: dict[str, Any]) -> tuple[Result, dict[str, str | None]]:
    file = FILES[vector["file"]]
    state = State(STORED[vector["file"]].get)
    result = execute(state, parse(b64decode(vector["transaction"])), file["height"], file["time_ms"])
    changes = state.changes()
    return result, {key.hex(): None if value is None else value.hex() for key, value in changes.items()}


@pytest.mark.parametrize("vector", vectors("good"), ids=lambda vector: str(vector["name"]))
def test_good_entries_write_what_they_say(vector: dict[str, Any]) -> None:
    result, changes = run(vector)
    assert result.accepted, result
    assert (changes, result.data.hex()) == (vector["writes"], vector["result"])


@pytest.mark.parametrize("vector", vectors("bad"), ids=lambda vector: str(vector["name"]))
def test_bad_entries_are_refused_and_write_nothing(vector: dict[str, Any]) -> None:
    result, changes = run(vector)
    assert (result.accepted, result.reason, result.index) == (False, vector["reason"], vector["index"])
    assert changes == {}


@pytest.mark.parametrize("verdict", ["good", "bad"])
def test_every_kind_of_entry_has_some(verdict: str) -> None:
    """A kind that is added gets vectors: tests/vectors/entry_cases.py."""
    found = set()
    for vector in vectors(verdict):
        kind = next(parse(b64decode(vector["transaction"])).decode_entries(0, 1))[0]
        assert vector["name"].startswith(f"{kind} ")
        found.add(kind)
    assert found == KINDS
