"""A stranger opens the first vector with docs/formats/policy-locks.md, a CBOR reader, HMAC and the curve alone."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import cbor2
import pytest

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "abe.json").read_text())


@pytest.mark.usefixtures("master")
def test_the_page_is_enough_to_open_an_and() -> None:
    import pymcl

    g1, g2 = pymcl.G1.deserialize, pymcl.G2.deserialize
    _, name, secret, randomness, traits, points, epochs = cbor2.loads(bytes.fromhex(VECTORS["key"]))
    vector = VECTORS["opened"][0]
    capsule = bytes.fromhex(vector["capsule"])
    _, authority, epoch, formula, head, occurrences, rows = cbor2.loads(capsule)
    assert authority == name == bytes.fromhex(VECTORS["identifier"])

    # The formula: an AND of two leaves with one value each; joined with the epoch it is one row of three traits.
    _, attributes, steps = cbor2.loads(formula)
    assert [step[0] for step in steps] == [1, 1, 3]
    assert steps[2][1:] == [2, 2]
    wanted = [cbor2.dumps([attributes[number][0], 0, value]) for _, number, (value,) in steps[:2]]
    parts = {trait: points[48 * number :][:48] for number, trait in enumerate(traits)}
    mine = g1(dict(epochs)[epoch]) + g1(parts[wanted[0]]) + g1(parts[wanted[1]])
    assert (len(rows), len(occurrences)) == (48, 96)

    target = pymcl.pairing(g1(secret), g2(head)) * pymcl.pairing(mine, g2(occurrences))
    target *= pymcl.pairing(-g1(rows), g2(randomness))
    assert derived(target, capsule).hex() == vector["secret"]


def derived(target: Any, capsule: bytes) -> bytes:
    label = "tallystick abe secret 1"
    key = hmac.digest(label.encode(), target.serialize(), "sha256")
    info = cbor2.dumps([label, hashlib.sha256(capsule).digest(), bytes.fromhex(VECTORS["context"])])
    return hmac.digest(key, info + b"\x01", "sha256")
