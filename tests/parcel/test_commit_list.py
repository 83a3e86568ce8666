"""The lists of commit parcels against their vectors, and what they must never accept."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import Malformed
from tallystick.ledger.contracts.writes import WRITES
from tallystick.parcel.commit import LIST_BYTES_MAX, CommitList, ledger_write, merge

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "commits.json").read_text())


@pytest.mark.parametrize("vector", VECTORS["good"], ids=lambda vector: vector["name"])
def test_a_good_list_says_what_it_said(vector: dict[str, Any]) -> None:
    listed = CommitList.decode(bytes.fromhex(vector["list"]))
    assert listed.encoded.hex() == vector["list"]
    assert listed.hash.hex() == vector["hash"]
    assert (listed.token.hex(), listed.write.hex(), listed.batch) == (
        VECTORS["token"],
        VECTORS["write"],
        vector["batch"],
    )
    assert [[run.lane.hex(), run.partition, run.first, list(run.places())] for run in listed.runs] == vector["places"]
    key = WRITES(bytes.fromhex(VECTORS["publisher"]), ledger_write(listed.write), listed.batch)
    assert key.hex() == vector["ledger key"]


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda vector: vector["name"])
def test_a_bad_list_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match=vector["refusal"]):
        CommitList.decode(bytes.fromhex(vector["list"]))


def test_a_list_has_a_bound() -> None:
    with pytest.raises(Malformed, match="at most"):
        CommitList.decode(bytes(LIST_BYTES_MAX + 1))


@given(st.sets(st.integers(0, 200), min_size=1))
def test_offsets_are_merged_and_come_back(offsets: set[int]) -> None:
    pairs = merge(sorted(offsets))
    assert [at for offset, count in pairs for at in range(offset, offset + count)] == sorted(offsets)
    assert all(sum(before) < after[0] for before, after in pairwise(pairs))
