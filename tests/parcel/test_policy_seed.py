"""The private half of a topic policy: for those who satisfy the formula, in one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("pymcl", reason="extra policy")

from tallystick.crypto import symmetric
from tallystick.crypto.abe.capsule import Capsule, decapsulate
from tallystick.crypto.abe.keys import AttributeKey, AttributeMasterKey
from tallystick.errors import CannotOpen, Malformed
from tallystick.parcel.locks import PolicyPlace, open_seed, seal_seed
from tallystick.policy.attribute import category
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.policy.traits import traits_of

MASTER = AttributeMasterKey.generate(b"m" * 32)
SPACE = AttributeSpace.of("acme", category("role", ["garage", "insurer"]))
FORMULA = parse("role::insurer", SPACE)
PLACE = PolicyPlace(bytes(32), b"t" * 16, 1, 2)
SEED = b"s" * 32
CAPSULE, SEALED = seal_seed(MASTER.public, FORMULA, 7, PLACE, SEED, b"e" * 32)


def key(role: str, *epochs: int) -> AttributeKey:
    return MASTER.issue(b"holder", traits_of(SPACE.values({"role": role}), SPACE), epochs)


def test_whoever_satisfies_the_formula_in_the_epoch_opens_the_seed() -> None:
    assert open_seed(key("insurer", 7), CAPSULE, SEALED, 7, PLACE) == SEED


@pytest.mark.parametrize("held", [key("garage", 7), key("insurer", 6)])
def test_nobody_else_does(held: AttributeKey) -> None:
    with pytest.raises(CannotOpen):
        open_seed(held, CAPSULE, SEALED, 7, PLACE)


@pytest.mark.parametrize(
    "place",
    [
        replace(PLACE, instance=b"i" * 32),
        replace(PLACE, token=b"u" * 16),
        replace(PLACE, group=0),
        replace(PLACE, version=1),
    ],
)
def test_a_capsule_shown_for_another_place_opens_nothing(place: PolicyPlace) -> None:
    with pytest.raises(CannotOpen):
        open_seed(key("insurer", 7), CAPSULE, SEALED, 7, place)


def test_a_capsule_shown_for_another_epoch_opens_nothing() -> None:
    with pytest.raises(CannotOpen):
        open_seed(key("insurer", 7, 8), CAPSULE, SEALED, 8, PLACE)


def test_without_the_place_in_the_context_the_transplant_would_open() -> None:
    """What the context stops: the same capsule and seed under no place serve every topic alike."""
    other = PolicyPlace(b"", b"", 0, 0)
    capsule, sealed = seal_seed(MASTER.public, FORMULA, 7, other, SEED, b"e" * 32)
    secret = decapsulate(key("insurer", 7), Capsule.decode(capsule), other.context)
    assert symmetric.decrypt(secret, sealed, other.context) == SEED


def test_an_altered_capsule_or_seed_opens_nothing() -> None:
    for capsule, sealed in ((CAPSULE, SEALED[:-1] + bytes([SEALED[-1] ^ 1])), (CAPSULE, b"")):
        with pytest.raises(CannotOpen):
            open_seed(key("insurer", 7), capsule, sealed, 7, PLACE)
    with pytest.raises(Malformed):
        open_seed(key("insurer", 7), CAPSULE[:-1], SEALED, 7, PLACE)


def test_the_same_arguments_give_the_same_bytes() -> None:
    """An authority restored from a backup makes the capsules again that it handed out before."""
    assert seal_seed(MASTER.public, FORMULA, 7, PLACE, SEED, b"e" * 32) == (CAPSULE, SEALED)
