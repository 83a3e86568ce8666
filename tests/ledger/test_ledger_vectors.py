"""Committed transactions, blocks, checkpoints, proofs and receipts give the verdicts that stand beside them, whatever
becomes of the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vector_readers import JUDGES, judge

from tallystick.errors import Refused
from tallystick.trust.trustfile import TrustFile

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "ledger.json").read_text(encoding="utf-8"))
TRUSTS = {name: TrustFile.parse(text) for name, text in VECTORS["trusts"].items()}


@pytest.mark.parametrize("vector", VECTORS["good"], ids=lambda vector: str(vector["name"]))
def test_good(vector: dict[str, Any]) -> None:
    assert judge(vector, TRUSTS) == vector["says"]


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda vector: str(vector["name"]))
def test_bad(vector: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        judge(vector, TRUSTS)
    assert (type(caught.value).__name__.lower(), caught.value.reason) == (vector["failure"], vector["reason"])


def test_every_kind_has_good_and_bad_ones() -> None:
    for verdict in ("good", "bad"):
        assert {vector["kind"] for vector in VECTORS[verdict]} == set(JUDGES)
