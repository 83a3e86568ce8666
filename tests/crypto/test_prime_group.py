"""The group of prime order: its laws, and what is refused at its door."""

from __future__ import annotations

import pytest

from tallystick.crypto import group
from tallystick.crypto.group import NEUTRAL, ORDER, Point
from tallystick.errors import Malformed

P = 2**255 - 19
SMALL_ORDER = [
    "01" + "00" * 31,  # neutral
    "00" * 32,  # of order four
    "ec" + "ff" * 30 + "7f",  # of order two
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",  # of order eight
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
]
G = group.commit(1, 0)
H = group.blinding_base()


def test_the_bases_are_the_curves_and_a_hashed_one() -> None:
    assert G.hex() == "58" + "66" * 31
    assert group.decode_point(H, "base") == H == group.commit(0, 1)
    assert H.hex() == "889e71e3996c6b756cdbd6cbda74cb00b274887e0353a4f1393ed84a3d3c324a"


def test_sums_and_multiples_are_those_of_the_exponents() -> None:
    for one, other in ((1, 1), (5, ORDER - 5), (0, 7), (2**200 + 9, 2**251), (ORDER - 1, 3)):
        assert group.add(group.commit(one, other), group.commit(other, one)) == group.commit(one + other, one + other)
        assert group.multiply(group.commit(one, 2), other) == group.commit(one * other, 2 * other)
        assert group.multiply(H, one) == group.commit(0, one)
    assert group.commit(0, 0) == group.multiply(G, 0) == group.multiply(G, ORDER) == NEUTRAL
    assert group.multiply(NEUTRAL, 5) == NEUTRAL
    assert group.weighted([G, H], [3, ORDER - 4]) == group.commit(3, -4)


def test_a_commitment_to_a_polynomial_gives_those_to_its_values() -> None:
    values, blinds = [11, 2**250 + 1, 7, ORDER - 1], [5, 0, 2**128, 3]
    commitments = [group.commit(value, blind) for value, blind in zip(values, blinds, strict=True)]
    for index in range(1, 10):
        expected = group.commit(group.value_at(values, index), group.value_at(blinds, index))
        assert group.point_at(commitments, index) == expected
    for indices in ((1, 2, 3, 4), (7, 3, 5, 1)):
        shares = [group.value_at(values, index) for index in indices]
        weights = group.weights_at_zero(indices)
        assert sum(share * weight for share, weight in zip(shares, weights, strict=True)) % ORDER == 11


@pytest.mark.parametrize("text", SMALL_ORDER)
def test_points_off_the_prime_subgroup_are_refused(text: str) -> None:
    """Of small order, and sums of such a point with a good one: with the point of order two, libsodium took them
    until it was mended (CVE-2025-69277), which is why PyNaCl is 1.6.2 or newer."""
    small = Point(bytes.fromhex(text))
    with pytest.raises(Malformed):
        group.decode_point(small, "point")
    for good in (G, H, group.commit(3, 4)):
        poisoned = group.add(good, small)
        if small != NEUTRAL:
            with pytest.raises(Malformed):
                group.decode_point(poisoned, "point")


def test_second_encodings_and_other_lengths_are_refused() -> None:
    wrong = [
        P.to_bytes(32, "little"),
        (P + 1).to_bytes(32, "little"),
        (P + 3).to_bytes(32, "little"),  # y = 3 is on the curve
        b"\x02" + bytes(31),  # y = 2 is not
        NEUTRAL[:31] + b"\x80",  # neutral, with the sign of zero
        b"",
        G[:31],
        G + b"\x00",
    ]
    for data in wrong:
        with pytest.raises(Malformed):
            group.decode_point(data, "point")


def test_scalars_have_one_encoding() -> None:
    for scalar in (0, 1, ORDER - 1):
        assert group.decode_scalar(group.encode_scalar(scalar), "scalar") == scalar
    for data in (ORDER.to_bytes(32, "little"), b"\xff" * 32, b"", bytes(31), bytes(33)):
        with pytest.raises(Malformed):
            group.decode_scalar(data, "scalar")
