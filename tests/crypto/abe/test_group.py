"""The group: points from the wire, tables, scalars, and the hash to the curve written a second time."""

from __future__ import annotations

import hashlib
from functools import partial

import pytest

from tallystick.crypto.abe import group
from tallystick.crypto.abe.keys import AttributeMasterKey
from tallystick.crypto.abe.sharing import ORDER
from tallystick.errors import Malformed, Misuse

FIELD = 0x1A0111EA397FE69A4B1BA7B6434BACD764774B84F38512BF6730D2A0F6B0F6241EABFFFEB153FFFFB9FEFFFFFFFFAAAB
COFACTOR = 0x396C8C005555E1568C00AAAB0000AAAB

Affine = tuple[int, int] | None

pytestmark = pytest.mark.usefixtures("master")


def root(value: int) -> int | None:
    found = pow(value, (FIELD + 1) // 4, FIELD)
    return found if found * found % FIELD == value % FIELD else None


def plus(one: Affine, other: Affine) -> Affine:
    if one is None or other is None:
        return one or other
    if one[0] == other[0]:
        if (one[1] + other[1]) % FIELD == 0:
            return None
        slope = 3 * one[0] * one[0] * pow(2 * one[1], -1, FIELD)
    else:
        slope = (other[1] - one[1]) * pow(other[0] - one[0], -1, FIELD)
    x = (slope * slope - one[0] - other[0]) % FIELD
    return x, (slope * (one[0] - x) - one[1]) % FIELD


def multiple(point: Affine, factor: int) -> Affine:
    found: Affine = None
    while factor:
        if factor & 1:
            found = plus(found, point)
        point, factor = plus(point, point), factor >> 1
    return found


def encoded(point: Affine) -> bytes:
    assert point is not None
    data = bytearray(point[0].to_bytes(48, "little"))
    data[47] |= 0x80 * (point[1] & 1)
    return bytes(data)


def hash_again(message: bytes) -> bytes:
    """docs/formats/policy-locks.md, "Hashing to the curve", in plain integers."""
    t = int.from_bytes(hashlib.sha512(message).digest()[:48], "little") & (1 << 381) - 1
    t = t if t < FIELD else t & (1 << 380) - 1
    root3 = root(-3 % FIELD)
    assert root3 is not None
    w = root3 * t * pow(t * t + 5, -1, FIELD) % FIELD
    first = ((root3 - 1) * pow(2, -1, FIELD) - t * w) % FIELD
    for x in (first, -first - 1, 1 + pow(w * w, -1, FIELD)):
        y = root((x**3 + 4) % FIELD)
        if y is not None:
            is_square = pow(t, (FIELD - 1) // 2, FIELD) == 1
            return encoded(multiple((x % FIELD, y if is_square else FIELD - y), COFACTOR))
    raise AssertionError("one of the three is on the curve")


@pytest.mark.parametrize("trait", [b"", b"role", b"\x00" * 40, *(bytes([n]) * 7 for n in range(8))])
def test_the_hash_to_the_curve_is_what_the_page_says(trait: bytes) -> None:
    assert group.encode_point(group.hashed(trait)) == hash_again(b"tallystick abe 1 trait\x00" + trait)


def test_points_outside_the_subgroup_and_off_the_curve_are_refused() -> None:
    x = 1
    while root((x**3 + 4) % FIELD) is None:
        x += 1
    outside = (x, root((x**3 + 4) % FIELD))
    assert multiple(outside, ORDER) is not None  # type: ignore[arg-type]
    off = next(x for x in range(1, 99) if root((x**3 + 4) % FIELD) is None)
    for data in (encoded(outside), off.to_bytes(48, "little"), bytes(48), b"\xff" * 48, bytes(47), bytes(96)):  # type: ignore[arg-type]
        with pytest.raises(Malformed):
            group.decode_g1(data, "point")
    for data in (bytes(96), b"\xff" * 96, bytes(95), off.to_bytes(96, "little")):
        with pytest.raises(Malformed):
            group.decode_g2(data, "point")


Pair = tuple[int, int]  # a + b·i


def product(one: Pair, other: Pair) -> Pair:
    (a, b), (c, d) = one, other
    return (a * c - b * d) % FIELD, (a * d + b * c) % FIELD


def pair_root(value: Pair) -> Pair | None:
    norm = root((value[0] ** 2 + value[1] ** 2) % FIELD)
    if norm is None:
        return None
    for sign in (1, -1):
        first = root((value[0] + sign * norm) * pow(2, -1, FIELD) % FIELD)
        if first:
            found = first, value[1] * pow(2 * first, -1, FIELD) % FIELD
            if product(found, found) == value:
                return found
    return None


def test_points_of_the_twist_outside_the_subgroup_are_refused() -> None:
    """Almost every point of the twist lies outside: its cofactor has 507 bits."""
    tried = 0
    for a in range(1, 12):
        x = (a, 1)
        cube = product(product(x, x), x)
        y = pair_root(((cube[0] + 4) % FIELD, (cube[1] + 4) % FIELD))
        if y is None:
            continue
        tried += 1
        data = bytearray(x[0].to_bytes(48, "little") + x[1].to_bytes(48, "little"))
        data[95] |= 0x80 * (y[0] & 1)
        with pytest.raises(Malformed):
            group.decode_g2(bytes(data), "point")
    assert tried > 2


def test_the_encoding_of_the_twist_is_what_the_page_says() -> None:
    """So that the points above are refused for their subgroup and not for how they are written."""
    good = group.encode_point(group.generator2().point)
    x = int.from_bytes(good[:48], "little"), int.from_bytes(good[48:95] + bytes([good[95] & 0x7F]), "little")
    cube = product(product(x, x), x)
    y = pair_root(((cube[0] + 4) % FIELD, (cube[1] + 4) % FIELD))
    assert y is not None
    for sign in (y, ((-y[0]) % FIELD, (-y[1]) % FIELD)):
        data = bytearray(good[:95] + bytes([good[95] & 0x7F]))
        data[95] |= 0x80 * (sign[0] & 1)
        assert group.encode_point(group.decode_g2(bytes(data), "point")) == bytes(data)


def test_a_point_has_one_encoding() -> None:
    good = group.encode_point(group.hashed(b"x"))
    assert group.encode_point(group.decode_g1(good, "point")) == good
    x = int.from_bytes(good[:47] + bytes([good[47] & 0x7F]), "little")
    if x + FIELD < 1 << 383:
        longer = bytearray((x + FIELD).to_bytes(48, "little"))
        longer[47] |= good[47] & 0x80
        with pytest.raises(Malformed):
            group.decode_g1(bytes(longer), "point")
    with pytest.raises(Malformed):
        group.decode_g1(good + b"\x00", "point")


def test_tables_give_what_multiplication_gives() -> None:
    exponents = [group.scalar(value) for value in (0, 1, 255, 256, ORDER - 1, *_some(5))]
    for base in (group.Base(group.generator1().point), group.Base(group.generator2().point)):
        plain = [base.point * exponent for exponent in exponents]
        base.make_table()
        assert [base.power(exponent) for exponent in exponents] == plain


def test_the_target_has_a_table_too(master: AttributeMasterKey) -> None:
    target = group.TargetBase(master.public.point)
    exponents = [group.scalar(value) for value in _some(4)]
    plain = [group.pair(group.generator1().point * exponent, master.public.point) for exponent in exponents]
    assert [target.power(exponent) for exponent in exponents] == plain
    target.make_table()
    assert [target.power(exponent) for exponent in exponents] == plain


def _some(count: int) -> list[int]:
    stream = group.scalars(b"seed".ljust(32))
    return [next(stream) for _ in range(count)]


def test_scalars_are_a_function_of_the_seed_and_do_not_repeat() -> None:
    found = _some(200)
    assert found == _some(200)
    assert len(set(found)) == 200
    assert all(0 <= value < ORDER for value in found)


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "pymcl", None)
    group.hashed.cache_clear()
    for work in (partial(group.decode_g2, bytes(96), "point"), partial(group.hashed, b"x"), partial(group.scalar, 3)):
        with pytest.raises(Misuse, match="pymcl"):
            work()
    with pytest.raises(Misuse, match="pymcl") as caught:
        AttributeMasterKey.generate(bytes(32))
    assert "tallystick[policy]" in str(caught.value.hint)
    assert "3.11 or 3.12" in str(caught.value.hint)
