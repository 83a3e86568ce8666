"""Who opens a capsule and who does not: attacks with real keys and real points."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from formulas import ACME, RANDOMS, some_formula, some_holding
from hypothesis import HealthCheck, given, settings
from watching import calls_of
from without import without

from tallystick import wire
from tallystick.crypto.abe import capsule as capsule_module
from tallystick.crypto.abe import group
from tallystick.crypto.abe.capsule import Capsule, decapsulate, encapsulate
from tallystick.crypto.abe.keys import AttributeKey, AttributeMasterKey, epoch_trait
from tallystick.errors import CannotOpen, Malformed, Misuse
from tallystick.policy.attribute import Encoding, flag, integer
from tallystick.policy.evaluate import holds
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.policy.traits import traits_of

CONTEXT = b"permit and lane"
ENTROPY = bytes(range(32))
EPOCH = 7
LETTERS = AttributeSpace.of("t", *(flag(letter) for letter in "abpq"))

drawn = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def key_for(
    master: AttributeMasterKey, held: dict[str, object], name: bytes = b"p", space: AttributeSpace = ACME
) -> AttributeKey:
    return master.issue(name, traits_of(space.values(held), space), [EPOCH])  # type: ignore[arg-type]


def pooled(one: AttributeKey, other: AttributeKey) -> AttributeKey:
    """All parts of two keys under the first one's randomness."""
    return replace(one, parts={**other.parts, **one.parts})


@pytest.mark.parametrize(
    ("text", "pairings"),
    [
        ("a", 3),
        ("a && b && p && q", 3),
        ("a || b || p || q", 3),
        ("(a || p) && (b || q)", 3),
        ("2 of (a, b, p, q)", 3),
        ("(a && p) || (a && q)", 3),  # of a repetition that is not needed nothing is paid
        ("2 of (a && p, a && q, b && p)", 4),  # two rows with an attribute in common
    ],
)
def test_opening_takes_three_pairings_and_one_for_each_repetition(
    master: AttributeMasterKey, text: str, pairings: int
) -> None:
    capsule, secret = encapsulate(master.public, parse(text, LETTERS), EPOCH, CONTEXT, ENTROPY)
    key = key_for(master, dict.fromkeys("abpq", True), space=LETTERS)
    with calls_of(group.pair) as paired:
        assert decapsulate(key, capsule, CONTEXT) == secret
    assert len(paired) == pairings


@drawn
@given(RANDOMS)
def test_authorised_opens_and_unauthorised_does_not(master: AttributeMasterKey, random: Random) -> None:
    formula = some_formula(random)
    capsule, secret = encapsulate(master.public, formula, EPOCH, CONTEXT, ENTROPY)
    again = Capsule.decode(capsule.encode())
    for _ in range(3):
        held = some_holding(random, share=0.9)
        if not held:
            continue
        key = AttributeKey.decode(key_for(master, held).encode())
        if holds(formula, ACME.values(held)):
            assert decapsulate(key, again, CONTEXT) == secret
        else:
            with pytest.raises(CannotOpen):
                decapsulate(key, again, CONTEXT)


@drawn
@given(RANDOMS)
def test_colluding_keys_do_not_open(master: AttributeMasterKey, random: Random) -> None:
    formula = some_formula(random)
    capsule, secret = encapsulate(master.public, formula, EPOCH, CONTEXT, ENTROPY)
    holders = [some_holding(random, share=0.6) for _ in range(4)]
    keys = [
        key_for(master, held, bytes([number]))
        for number, held in enumerate(holders)
        if held and not holds(formula, ACME.values(held))
    ]
    for one in keys:
        for other in keys:
            try:
                found = decapsulate(pooled(one, other), capsule, CONTEXT)
            except CannotOpen:
                continue
            assert found != secret


def test_two_halves_of_a_policy_do_not_make_a_whole(master: AttributeMasterKey) -> None:
    formula = parse("role::insurer && region::EU", ACME)
    capsule, secret = encapsulate(master.public, formula, EPOCH, CONTEXT, ENTROPY)
    insurer, european = key_for(master, {"role": "insurer"}, b"1"), key_for(master, {"region": ["EU"]}, b"2")
    found = {decapsulate(pooled(*pair), capsule, CONTEXT) for pair in ((insurer, european), (european, insurer))}
    assert secret not in found
    assert decapsulate(key_for(master, {"role": "insurer", "region": ["EU"]}), capsule, CONTEXT) == secret


def reused_attribute_attack(capsule: Capsule, key: AttributeKey) -> bytes:
    """(a || p) && (a || q) with p alone: the quotient of the two rows of a shows the difference of their shares."""
    traits = {next(iter(row.traits)): number for number, row in enumerate(capsule.program.rows)}
    a, p = wire.encode(["t.a", 0, "true"]), wire.encode(["t.p", 0, "true"])
    first, second = (number for number, row in enumerate(capsule.program.rows) if a in row.traits)
    if traits[p] not in (first - 1, first + 1):
        first, second = second, first
    weights = {traits[epoch_trait(EPOCH)]: 1, traits[p]: 2, first: -1, second: 1}
    masked: Any = None
    for number, weight in weights.items():
        row = group.times(group.decode_g1(capsule.rows[48 * number :][:48], "row"), weight)
        masked = row if masked is None else masked + row
    mine = key.epochs[EPOCH] + group.times(key.parts[p], 2)
    target = group.pair(key.secret, group.decode_g2(capsule.head, "head")) * group.pair(-masked, key.randomness)
    target *= group.pair(mine, group.decode_g2(capsule.occurrences[:96], "occurrence"))
    return capsule_module._secret(target, capsule, CONTEXT)


def test_the_reused_attribute_attack_fails(master: AttributeMasterKey) -> None:
    formula = parse("(a || p) && (a || q)", LETTERS)
    key = key_for(master, {"p": True}, space=LETTERS)
    capsule, secret = encapsulate(master.public, formula, EPOCH, CONTEXT, ENTROPY)
    assert capsule.program.occurrences == 2
    assert reused_attribute_attack(capsule, key) != secret
    with pytest.raises(CannotOpen):
        decapsulate(key, capsule, CONTEXT)

    # The same with the one randomness for all rows of the published code: the attack succeeds.
    capsule_module.program_for.cache_clear()
    try:
        with without("randomness of its own for each occurrence"):
            careless, secret = encapsulate(master.public, formula, EPOCH, CONTEXT, ENTROPY)
        assert reused_attribute_attack(careless, key) == secret
    finally:
        capsule_module.program_for.cache_clear()


def test_a_capsule_of_another_place_gives_another_secret(master: AttributeMasterKey) -> None:
    formula = parse("role::insurer || region::EU", ACME)
    key = key_for(master, {"role": "insurer"})
    capsule, secret = encapsulate(master.public, formula, EPOCH, CONTEXT, ENTROPY)
    assert decapsulate(key, capsule, CONTEXT) == secret
    assert decapsulate(key, capsule, b"another permit") != secret

    # A row that this key does not use, replaced by another point: other openers would be cheated, this one notices.
    other, _ = encapsulate(master.public, formula, EPOCH, b"other", ENTROPY)
    for number in range(len(capsule.program.rows)):
        rows = capsule.rows[: 48 * number] + other.rows[48 * number :][:48] + capsule.rows[48 * (number + 1) :]
        assert decapsulate(key, replace(capsule, rows=rows), CONTEXT) != secret
    # The same points under a formula that admits more.
    wider = parse("role in (insurer, police) || region::EU", ACME)
    assert len(capsule_module.program_for(wider, EPOCH).rows) > len(capsule.program.rows)
    renamed = parse("role::police || region::EU", ACME)
    police = key_for(master, {"role": "police"})
    assert decapsulate(police, replace(capsule, formula=renamed), CONTEXT) != secret


def test_a_repeated_random_state_repeats_no_secret(master: AttributeMasterKey) -> None:
    formulas = [parse(text, ACME) for text in ("role::insurer", "role::police")]
    made = [
        encapsulate(master.public, formula, epoch, context, ENTROPY)
        for formula in formulas
        for epoch in (1, 2)
        for context in (b"a", b"b")
    ]
    assert len({secret for _, secret in made}) == len({capsule.head for capsule, _ in made}) == len(made)
    assert encapsulate(master.public, formulas[0], 1, b"a", ENTROPY) == made[0]


def test_old_and_new_parts_do_not_mix(master: AttributeMasterKey) -> None:
    """An attribute is dropped: the new key has other randomness, so the old part is worth nothing in the new epoch."""
    before = traits_of(ACME.values({"role": "insurer", "clearance": 9}), ACME)
    after = traits_of(ACME.values({"clearance": 9}), ACME)
    old, new = master.issue(b"p", before, [1]), master.issue(b"p", after, [2])
    capsule, secret = encapsulate(master.public, parse("role::insurer", ACME), 2, CONTEXT, ENTROPY)
    with pytest.raises(CannotOpen):
        decapsulate(old, capsule, CONTEXT)
    with pytest.raises(CannotOpen):
        decapsulate(new, capsule, CONTEXT)
    assert decapsulate(pooled(new, old), capsule, CONTEXT) != secret
    assert decapsulate(replace(old, epochs=new.epochs), capsule, CONTEXT) != secret

    # What would happen if the randomness stayed: the old part and the new epoch open together.
    same = master.refresh(b"p", before, 2)
    assert decapsulate(old.with_epoch(2, same), capsule, CONTEXT) == secret


def test_a_key_of_another_authority_or_epoch_does_not_open(master: AttributeMasterKey) -> None:
    other = AttributeMasterKey.generate(b"\x01" * 32)
    formula = parse("role::insurer", ACME)
    capsule, secret = encapsulate(master.public, formula, EPOCH, CONTEXT, ENTROPY)
    foreign = key_for(other, {"role": "insurer"})
    with pytest.raises(CannotOpen):
        decapsulate(foreign, capsule, CONTEXT)
    assert decapsulate(replace(foreign, authority=master.public.identifier), capsule, CONTEXT) != secret
    later, _ = encapsulate(master.public, formula, EPOCH + 1, CONTEXT, ENTROPY)
    with pytest.raises(CannotOpen):
        decapsulate(key_for(master, {"role": "insurer"}), later, CONTEXT)


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("bits", [8, 32, 64])
def test_numbers_in_every_encoding(master: AttributeMasterKey, encoding: Encoding, bits: int) -> None:
    space = AttributeSpace.of("t", integer("n", bits, encoding=encoding))
    middle = (1 << bits - 1) + 5
    formula = parse(f"n in {middle - 2}..{middle + 2}", space)
    capsule, secret = encapsulate(master.public, formula, EPOCH, CONTEXT, ENTROPY)
    assert decapsulate(key_for(master, {"n": middle}, space=space), capsule, CONTEXT) == secret
    with pytest.raises(CannotOpen):
        decapsulate(key_for(master, {"n": middle + 3}, space=space), capsule, CONTEXT)


# Bytes.


def changed(capsule: Capsule, place: int, value: object) -> bytes:
    fields = wire.decode(capsule.encode())
    fields[place] = value
    return wire.encode(fields)


def test_malformed_capsules_are_refused(master: AttributeMasterKey) -> None:
    capsule, _ = encapsulate(master.public, parse("role::insurer || region::EU", ACME), EPOCH, CONTEXT, ENTROPY)
    bad = [
        changed(capsule, 0, 2),
        changed(capsule, 1, b"short"),
        changed(capsule, 2, 1 << 32),
        changed(capsule, 2, True),
        changed(capsule, 3, b"\x80"),
        changed(capsule, 4, capsule.head[:-1]),
        changed(capsule, 5, capsule.occurrences * 2),
        changed(capsule, 6, capsule.rows[48:]),
        changed(capsule, 6, capsule.rows + capsule.rows[:48]),
        capsule.encode() + b"\x00",
        capsule.encode()[:-1],
        bytes(capsule_module.CAPSULE_BYTES_MAX + 1),
    ]
    for data in bad:
        with pytest.raises(Malformed):
            Capsule.decode(data)


def test_points_that_are_none_are_refused_when_they_are_needed(master: AttributeMasterKey) -> None:
    capsule, _ = encapsulate(master.public, parse("role::insurer && region::EU", ACME), EPOCH, CONTEXT, ENTROPY)
    key = key_for(master, {"role": "insurer", "region": ["EU"]})
    for broken in (
        replace(capsule, head=bytes(96)),
        replace(capsule, occurrences=b"\xff" * 96),
        replace(capsule, rows=bytes(48)),
        replace(capsule, rows=b"\x01" * 48),
    ):
        with pytest.raises(Malformed):
            decapsulate(key, broken, CONTEXT)


def test_only_the_rows_that_are_needed_are_read(master: AttributeMasterKey) -> None:
    capsule, secret = encapsulate(master.public, parse("role::insurer || region::EU", ACME), EPOCH, CONTEXT, ENTROPY)
    broken = replace(capsule, rows=capsule.rows[:96] + b"\xff" * 48)
    assert len(capsule.program.rows) == 3
    opened = []
    holders: list[dict[str, object]] = [{"role": "insurer"}, {"region": ["EU"]}]
    for held in holders:
        try:
            opened.append(decapsulate(key_for(master, held), broken, CONTEXT))
        except Malformed:
            opened.append(b"malformed")
    assert sorted(map(len, opened)) == [9, 32]
    assert secret not in opened  # and still the change was noticed


def test_bad_arguments_are_named(master: AttributeMasterKey) -> None:
    formula = parse("role::insurer", ACME)
    with pytest.raises(Misuse, match="32 bytes of entropy"):
        encapsulate(master.public, formula, EPOCH, CONTEXT, bytes(31))
    with pytest.raises(Misuse, match="attribute epoch -1"):
        encapsulate(master.public, formula, -1, CONTEXT, ENTROPY)
    wide = AttributeSpace.of("t", integer("n", 64, encoding=Encoding.BITS))
    text = " || ".join(f"n in {number << 40}..{(number << 40) + 12345}" for number in range(1, 60))
    with pytest.raises(Misuse, match="more than 768 rows"):
        encapsulate(master.public, parse(text, wide), EPOCH, CONTEXT, ENTROPY)
