"""The baseline is the real scheme: it opens what it should and nothing else."""

from __future__ import annotations

import importlib
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tallystick.crypto.abe import group
from tallystick.policy.traits import TraitGate

ROOT = Path(__file__).resolve().parents[2]
A, B, C, D = (bytes([letter]) for letter in b"ABCD")
TREES = [
    A,
    TraitGate(2, (A, B)),
    TraitGate(1, (A, B)),
    TraitGate(2, (A, TraitGate(1, (B, C)), D)),
    TraitGate(2, (TraitGate(2, (A, B)), TraitGate(1, (C, D)))),
]


@pytest.fixture(scope="module")
def bsw07() -> Any:
    if not group.available():
        pytest.skip("pymcl has no wheel for Python 3.13")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return importlib.import_module("experiments.bsw07.scheme")


def met(tree: Any, held: list[bytes]) -> bool:
    if isinstance(tree, bytes):
        return tree in held
    return bool(sum(met(part, held) for part in tree.parts) >= tree.need)


@pytest.mark.parametrize("tree", TREES)
def test_it_opens_for_those_who_satisfy_the_tree(bsw07: Any, tree: Any) -> None:
    authority = bsw07.setup(b"authority")
    ciphertext, secret = bsw07.encapsulate(authority, tree, b"capsule")
    random = Random(7)
    for number in range(6):
        held = [trait for trait in (A, B, C, D) if random.random() < 0.6]
        key = bsw07.keygen(authority, held, b"key %d" % number)
        assert bsw07.decapsulate(key, ciphertext) == (secret if met(tree, held) else None)


def test_pooled_keys_do_not_open(bsw07: Any) -> None:
    authority = bsw07.setup(b"authority")
    ciphertext, secret = bsw07.encapsulate(authority, TraitGate(2, (A, B)), b"capsule")
    one, other = bsw07.keygen(authority, [A], b"1"), bsw07.keygen(authority, [B], b"2")
    pooled = bsw07.Key(one.d, {**one.parts, **other.parts})
    assert bsw07.decapsulate(pooled, ciphertext) not in (secret, None)
