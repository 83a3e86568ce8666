"""Shamir's sharing in GF(256)."""

from __future__ import annotations

from itertools import combinations

import pytest

from tallystick.crypto import shamir
from tallystick.errors import Malformed, Misuse

ENTROPY = bytes(range(32))
SECRET = b"the key of a lane, 32 bytes long"


@pytest.mark.parametrize(("need", "count"), [(1, 1), (1, 3), (2, 3), (3, 5), (4, 4), (6, 10)])
def test_any_that_are_enough_give_the_secret_and_fewer_do_not(need: int, count: int) -> None:
    shares = shamir.split(SECRET, need, count, ENTROPY)
    assert sorted(shares) == list(range(1, count + 1))
    for chosen in combinations(shares, need):
        assert shamir.combine({index: shares[index] for index in chosen}) == SECRET
        assert shamir.combine({index: shares[index] for index in chosen}, at=count) == shares[count]
    assert shamir.combine(shares) == SECRET
    if need > 1:
        assert shamir.combine({index: shares[index] for index in range(1, need)}) != SECRET


def test_the_largest_number_of_shares() -> None:
    shares = shamir.split(b"x", 128, 255, ENTROPY)
    assert shamir.combine({index: shares[index] for index in range(100, 228)}) == b"x"


def test_every_secret_fits_what_is_less_than_enough() -> None:
    """With one of two shares in hand, each byte is as likely as any other: over all polynomials it is hit once."""
    rows, _ = shamir._tables()
    for index in (1, 2, 255):
        assert {secret ^ rows[index][slope] for secret, slope in ((7, slope) for slope in range(256))} == set(
            range(256)
        )


def test_the_field_is_that_of_aes() -> None:
    rows, inverses = shamir._tables()
    assert rows[0x57][0x83] == 0xC1  # FIPS 197, section 4.2
    assert rows[0x57][0x13] == 0xFE
    assert all(rows[byte][inverses[byte]] == 1 for byte in range(1, 256))


def test_what_cannot_be_split_or_combined_is_said() -> None:
    for need, count in ((0, 3), (4, 3), (2, 256)):
        with pytest.raises(Misuse):
            shamir.split(SECRET, need, count, ENTROPY)
    with pytest.raises(Misuse):
        shamir.split(SECRET, 2, 3, b"short")
    for shares in ({}, {1: b"ab", 2: b"a"}, {0: b"ab"}, {256: b"ab"}):
        with pytest.raises(Malformed):
            shamir.combine(shares)
