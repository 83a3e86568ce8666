"""Attribute spaces: declarations, values, namespaces, bytes."""

from __future__ import annotations

import math
import struct
from datetime import date
from random import Random

import pytest
from formulas import ACME, CONTENT, RANDOMS, some_holding
from hypothesis import given
from hypothesis import strategies as st

from tallystick import wire
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.policy.attribute import Encoding, category, day, integer, real, real_of, real_ordinal
from tallystick.policy.space import AttributeSet, AttributeSpace

TEXT = """
namespace = "acme"
[role]
kind = "category"
values = ["police", "city", "garage", "insurer"]
[region]
kind = "category"
values = ["EU", "KR", "US"]
many = true
[clearance]
kind = "integer"
bits = 8
[height]
kind = "integer"
bits = 12
least = -500
[since]
kind = "date"
[vin]
kind = "string"
[trained]
kind = "flag"
"""


def test_a_declaration_is_read() -> None:
    assert AttributeSpace.read(TEXT) == ACME


def test_bytes_decode_to_the_same_space() -> None:
    for space in (ACME, CONTENT, ACME.joined(CONTENT)):
        assert AttributeSpace.decode(space.encode()) == space


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.reverse(),
        lambda fields: fields.append(fields[0]),
        lambda fields: fields[0].__setitem__(0, "a b"),
        lambda fields: fields[0].__setitem__(1, 9),
        lambda fields: fields[0].__setitem__(4, 65),
        lambda fields: fields[0].__setitem__(6, 9),
        lambda fields: fields[0].append(1),
        lambda fields: fields[3][2].reverse(),
        lambda fields: fields[3].__setitem__(4, 8),
    ],
)
def test_bytes_that_declare_nonsense_are_refused(change: object) -> None:
    value = wire.decode(ACME.encode())
    change(value[2])  # type: ignore[operator]
    with pytest.raises(Malformed):
        AttributeSpace.decode(wire.encode(value))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[a]\nkind = 'categori'\nvalues = ['x']", "unknown kind"),
        ("[a]\nkind = 'category'", "missing or of the wrong type"),
        ("[a]\nkind = 'integer'\nbits = 65", "1 to 64 bits"),
        ("[a]\nkind = 'integer'\nbits = '8'", "wrong type"),
        ("[a]\nkind = 'integer'\nbit = 8", 'no setting "bit"'),
        ("[a]\nkind = 'integer'\nbits = 8\nencoding = 'radix'", "unknown encoding"),
        ("[or]\nkind = 'flag'", "not a name"),
        ("a = 3", "unknown kind 3"),
        ("[a", "attribute space:"),
    ],
)
def test_a_wrong_declaration_is_named(text: str, told: str) -> None:
    with pytest.raises(Misuse, match=told):
        AttributeSpace.read(text)


def test_a_tenant_grants_only_its_own() -> None:
    garage = AttributeSpace.of("garage", category("role", ["mechanic"]))
    both = ACME.joined(garage)
    assert both.grant({"role": "city", "acme.clearance": 4}).values == (("acme.clearance", 4), ("acme.role", ("city",)))
    with pytest.raises(Refused, match=r'"garage\.role" is outside the namespace "acme"') as caught:
        both.grant({"garage.role": "mechanic"})
    assert caught.value.reason == "namespace"
    with pytest.raises(Refused, match="outside"):
        CONTENT.grant({"gear": 3})


def test_values_are_typed() -> None:
    held = ACME.values({"region": ["KR", "EU"], "since": date(2026, 1, 31), "height": -500, "trained": True})
    assert dict(held.values) == {
        "acme.region": ("EU", "KR"),
        "acme.since": 20484,
        "acme.height": 0,
        "acme.trained": ("true",),
    }
    for wrong in ({"role": ["city", "garage"]}, {"clearance": 256}, {"clearance": True}, {"since": 3}, {"vin": ""}):
        with pytest.raises(Misuse):
            ACME.values(wrong)


@given(RANDOMS)
def test_attribute_sets_decode_to_the_same(random: Random) -> None:
    held = ACME.values(some_holding(random, ACME))
    assert AttributeSet.decode(held.encode()) == held
    ACME.check(held)


@pytest.mark.parametrize(
    "value",
    [
        [2, []],
        [1, [["b", 1], ["a", 1]]],
        [1, [["a", 1], ["a", 2]]],
        [1, [["a", -1]]],
        [1, [["a", []]]],
        [1, [["a", ["y", "x"]]]],
        [1, [["a", True]]],
        [1, [["a"]]],
        [1],
    ],
)
def test_malformed_attribute_sets_are_refused(value: object) -> None:
    with pytest.raises(Malformed):
        AttributeSet.decode(wire.encode(value))


@pytest.mark.parametrize(
    "values",
    [
        (("acme.clearance", 256),),
        (("acme.clearance", ("3",)),),
        (("acme.role", ("nobody",)),),
        (("acme.role", ("city", "garage")),),
        (("role", ("city",)),),
        (("acme.no", 1),),
    ],
)
def test_a_set_is_held_to_the_space(values: tuple[tuple[str, int | tuple[str, ...]], ...]) -> None:
    with pytest.raises(Misuse):
        ACME.check(AttributeSet(values))


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_ordinals_of_reals_keep_their_order(one: float, other: float) -> None:
    assert (real_ordinal(one) < real_ordinal(other)) == (one < other)
    assert real_of(real_ordinal(one)) == one


def test_reals_are_doubles() -> None:
    speed = real("speed")
    assert speed.ordinal(math.nextafter(120.0, math.inf)) == speed.ordinal(120) + 1
    for wrong in (math.inf, math.nan, (1 << 53) + 1, 10**400):
        with pytest.raises(Misuse, match="finite double"):
            speed.ordinal(wrong)
    assert struct.pack("<d", real_of(real_ordinal(-0.0))) == bytes(8)


def test_the_encoding_of_a_number_is_chosen_by_its_width_or_by_its_owner() -> None:
    assert integer("a", 16).encoding is day("a").encoding is Encoding.PREFIX
    assert integer("a", 17).encoding is Encoding.RADIX16
    assert integer("a", 64, encoding=Encoding.BITS).encoding is Encoding.BITS
