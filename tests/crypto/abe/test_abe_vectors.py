"""The committed vectors of attribute-based encryption, good and bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick import errors
from tallystick.crypto.abe.capsule import Capsule, decapsulate, encapsulate
from tallystick.crypto.abe.keys import AttributeKey, AttributeMasterKey, AttributePublicKey
from tallystick.policy.formula import Formula
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "abe.json").read_text())
unhex = bytes.fromhex
CONTEXT, EPOCH = unhex(VECTORS["context"]), VECTORS["epoch"]


def test_keys(master: AttributeMasterKey) -> None:
    master = AttributeMasterKey.decode(unhex(VECTORS["master"]))
    traits = [unhex(trait) for trait in VECTORS["traits"]]
    assert master.public.encode().hex() == VECTORS["public"]
    assert master.public.identifier.hex() == VECTORS["identifier"]
    assert master.issue(unhex(VECTORS["holder"]), traits, [EPOCH]).encode().hex() == VECTORS["key"]
    assert master.refresh(unhex(VECTORS["holder"]), traits, EPOCH + 1).hex() == VECTORS["refresh_8"]


@pytest.mark.parametrize("vector", VECTORS["opened"], ids=lambda vector: vector["policy"])
def test_capsules(master: AttributeMasterKey, vector: dict[str, str]) -> None:
    formula = parse(vector["policy"], AttributeSpace.decode(unhex(VECTORS["space"])))
    assert formula.encode().hex() == vector["formula"]
    assert Formula.decode(unhex(vector["formula"])) == formula
    public = AttributePublicKey.decode(unhex(VECTORS["public"]))
    capsule, secret = encapsulate(public, formula, EPOCH, CONTEXT, unhex(VECTORS["entropy"]))
    assert (capsule.encode().hex(), secret.hex()) == (vector["capsule"], vector["secret"])
    key = AttributeKey.decode(unhex(VECTORS["key"]))
    assert decapsulate(key, Capsule.decode(unhex(vector["capsule"])), CONTEXT).hex() == vector["secret"]


@pytest.mark.parametrize(
    "vector", VECTORS["refused"] + VECTORS["altered"], ids=lambda v: v.get("what", v.get("policy"))
)
def test_what_must_fail(master: AttributeMasterKey, vector: dict[str, str]) -> None:
    key = AttributeKey.decode(unhex(VECTORS["key"]))
    with pytest.raises(getattr(errors, vector["error"])):
        decapsulate(key, Capsule.decode(unhex(vector["capsule"])), CONTEXT)
