"""The group of prime order in edwards25519, with Pedersen commitments: the one module that touches PyNaCl.

Threats: a point outside the prime subgroup, which lets two commitments differ by a part that no check sees; a second
encoding of a point or scalar, which gives one share two names; the neutral element, which commits to nothing. So
points from the wire are held to their curve, subgroup and one encoding, and are never neutral (`decode_point`);
scalars are below the order (`decode_scalar`). A `Point` that came through here need not be checked again, and sums of
points may be neutral: whoever sends one on asks.

A commitment to (value, blind) is value·G + blind·H. H is hashed to the group from a text, so nobody knows its
logarithm: that makes the commitment binding. For every value there is one blind that gives the same point: that makes
it hiding, for ever and against any computer. docs/decisions/0056-a-group-for-shares.md says why it is this group.

Left out: constant time. libsodium multiplies in constant time; Python's integers, in which polynomials are evaluated,
do not, and a relay has its own process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from hashlib import sha256
from typing import Any, NewType

from tallystick.crypto.symmetric import uniform
from tallystick.errors import Malformed
from tallystick.later import Later

_sodium: Any = Later("nacl.bindings")  # most processes that load a contract never touch a point

ORDER = 2**252 + 27742317777372353535851937790883648493
POINT_BYTES = SCALAR_BYTES = 32
POINTS_CACHED = 1 << 12  # a set of one relay has at most 350

Point = NewType("Point", bytes)

NEUTRAL = Point(b"\x01" + bytes(31))
_BASE_NAME = b"tallystick pedersen base 1"


def scalars(seed: bytes) -> Iterator[int]:
    """Scalars without end from a 32-byte seed."""
    return uniform(seed, ORDER)


def encode_scalar(scalar: int) -> bytes:
    return (scalar % ORDER).to_bytes(SCALAR_BYTES, "little")


def decode_scalar(data: bytes, what: str) -> int:
    """The scalar whose one encoding is `data`. Raises `Malformed`."""
    scalar = int.from_bytes(data, "little")
    if len(data) != SCALAR_BYTES or scalar >= ORDER:
        raise Malformed(f"{what}: not a scalar in its one encoding")
    return scalar


@lru_cache(maxsize=POINTS_CACHED)  # the same commitments come from every relay of a virtual node
def decode_point(data: bytes, what: str) -> Point:
    """The point whose one encoding is `data`, in the prime subgroup and not neutral. Raises `Malformed`."""
    if len(data) != POINT_BYTES or not _sodium.crypto_core_ed25519_is_valid_point(data):
        raise Malformed(f"{what}: not a point of the prime subgroup in its one encoding")
    return Point(bytes(data))


def add(one: Point, other: Point) -> Point:
    return Point(_sodium.crypto_core_ed25519_add(one, other))


def multiply(point: Point, scalar: int) -> Point:
    scalar %= ORDER
    if scalar == 0 or point == NEUTRAL:  # the library refuses both
        return NEUTRAL
    return Point(_sodium.crypto_scalarmult_ed25519_noclamp(encode_scalar(scalar), point))


def commit(value: int, blind: int) -> Point:
    """value·G + blind·H."""
    value %= ORDER
    based = Point(_sodium.crypto_scalarmult_ed25519_base_noclamp(encode_scalar(value))) if value else NEUTRAL
    return add(based, multiply(blinding_base(), blind))


@lru_cache(maxsize=1)
def blinding_base() -> Point:
    """H: libsodium's Elligator map of SHA-256("tallystick pedersen base 1")."""
    return Point(_sodium.crypto_core_ed25519_from_uniform(sha256(_BASE_NAME).digest()))


def weighted(points: Iterable[Point], weights: Iterable[int]) -> Point:
    """The sum of the points, each times its weight."""
    return reduce(add, (multiply(point, weight) for point, weight in zip(points, weights, strict=True)))


def value_at(coefficients: Sequence[int], index: int) -> int:
    """The polynomial with these coefficients, the lowest first, at `index`."""
    return reduce(lambda value, coefficient: (value * index + coefficient) % ORDER, reversed(coefficients), 0)


def point_at(commitments: Sequence[Point], index: int) -> Point:
    """The commitment to a polynomial's value at `index`, a small one, from those to its coefficients."""
    *lower, value = commitments
    for commitment in reversed(lower):
        value = add(_few_times(value, index), commitment)
    return value


def _few_times(point: Point, factor: int) -> Point:
    """`point` times a small positive integer: a few additions cost less than a multiplication."""
    total = point
    for bit in f"{factor:b}"[1:]:
        total = add(total, total)
        if bit == "1":
            total = add(total, point)
    return total


@lru_cache(maxsize=1024)
def weights_at_zero(indices: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights: a polynomial's value at zero is the sum of its values at `indices` times these."""
    weights = []
    for index in indices:
        others = [other for other in indices if other != index]
        top = reduce(lambda product, other: product * other % ORDER, others, 1)
        bottom = reduce(lambda product, other: product * (other - index) % ORDER, others, 1)
        weights.append(top * pow(bottom, -1, ORDER) % ORDER)
    return tuple(weights)
