"""BLS12-381 as the scheme needs it: the one module that touches `pymcl`.

Threats: a point outside the group of prime order, which leaks a scalar modulo a small factor; a second encoding of a
point, which gives one capsule two names; a scalar that repeats because the random state did; a hash shared with another
protocol. So points from the wire are held to their length, their subgroup and their one encoding, and are never the
neutral element; elements of the target group are never read at all (the library takes garbage for them); scalars are
drawn from a seed that mixes entropy with everything they serve for; traits are hashed under a prefix of our own.

Left out: constant time. Tables and multiplications take paths that depend on scalars, so whoever shares a core with an
authority may learn of them; an authority has its own machine.

Speed: hashes of traits are cached. The generators, H0 and an authority's target get a table of their multiples by every
byte of a scalar once they are used often (1.8 MB in G1, 3 MB in G2, 5 MB in the target group), so that a power is 32
additions; who encapsulates once or twice does not pay the 10–25 ms that a table takes to make. Traits have none: fifty
such tables do not stay in any cache, and a power by table is then slower than one without
(docs/decisions/0032-what-attribute-keys-cost.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, reduce
from operator import add, getitem, mul
from typing import Any

from tallystick.crypto.abe.sharing import ORDER
from tallystick.crypto.symmetric import uniform
from tallystick.errors import Malformed, Misuse

try:
    import pymcl
except ImportError:  # Python 3.13, or the extra is not installed: said by name on first use
    pymcl = None

G1_BYTES = 48
G2_BYTES = 96
HASHES_MAX = 1 << 16  # cached hashes of traits, some 400 bytes each
TABLE_USES = 64  # uses after which a base gets its table

Point = Any  # pymcl.G1, G2, GT and Fr have no types of their own
Scalar = Any

_TRAIT_DOMAIN = b"tallystick abe 1 trait\x00"
_BASE_DOMAIN = b"tallystick abe 1 base\x00"


def require() -> None:
    """Raises `Misuse` where there is no `pymcl`."""
    if pymcl is None:
        raise Misuse(
            "policy locks need the library pymcl, which is not installed",
            hint="pip install 'tallystick[policy]', on Python 3.11 or 3.12 (Linux x86-64): there are no other wheels",
        )


def available() -> bool:
    return pymcl is not None


def scalar(value: int) -> Scalar:
    require()
    return pymcl.Fr(str(value % ORDER))


def scalars(seed: bytes) -> Iterator[int]:
    """Scalars without end from a 32-byte seed."""
    return uniform(seed, ORDER)


class Base:
    """A point that is raised to many powers."""

    __slots__ = ("_table", "_uses", "point")
    combine: Callable[[Point, Point], Point] = staticmethod(add)

    def __init__(self, point: Point) -> None:
        self.point = point
        self._uses = 0
        self._table: list[list[Point]] | None = None

    def power(self, exponent: Scalar) -> Point:
        if self._table is not None:
            return reduce(self.combine, map(getitem, self._table, exponent.serialize()))
        self._uses += 1
        if self._uses > TABLE_USES:
            self.make_table()
        return self._power(exponent)

    def make_table(self) -> None:
        self._table = _table(self.point, type(self.point)(), add)

    def _power(self, exponent: Scalar) -> Point:
        return self.point * exponent


class TargetBase(Base):
    """e(g1, point) for a point of G2: an element of the target group, raised to many powers."""

    __slots__ = ()
    combine = staticmethod(mul)

    def make_table(self) -> None:
        self._table = _table(pymcl.pairing(pymcl.g1, self.point), pymcl.GT(), mul)

    def _power(self, exponent: Scalar) -> Point:
        return pymcl.pairing(pymcl.g1 * exponent, self.point)


def _table(point: Point, neutral: Point, operation: Any) -> list[list[Point]]:
    """For each of the 32 bytes of a scalar the 256 multiples."""
    rows = []
    for _ in range(32):
        row = [neutral]
        for _ in range(255):
            row.append(operation(row[-1], point))
        rows.append(row)
        point = operation(row[-1], point)
    return rows


@lru_cache(maxsize=HASHES_MAX)
def hashed(trait: bytes) -> Point:
    """The point of a trait, the same under every authority."""
    require()
    return pymcl.G1.hash(_TRAIT_DOMAIN + trait)


@lru_cache(maxsize=1)
def share_base() -> Base:
    """The point under which shares stand: the paper's H(|U| + 1)."""
    require()
    return Base(pymcl.G1.hash(_BASE_DOMAIN))


@lru_cache(maxsize=1)
def generator1() -> Base:
    require()
    return Base(pymcl.g1)


@lru_cache(maxsize=1)
def generator2() -> Base:
    require()
    return Base(pymcl.g2)


def pair(one: Point, other: Point) -> Point:
    return pymcl.pairing(one, other)


def total(points: Iterator[Point]) -> Point:
    """The sum of points of G1."""
    return reduce(add, points)


def times(point: Point, factor: int) -> Point:
    """`point` times a small integer, which the library does in a few additions."""
    if factor == 1:
        return point
    return point * scalar(factor) if factor > 0 else -(point * scalar(-factor))


def encode_point(point: Point) -> bytes:
    encoded: bytes = point.serialize()
    return encoded


def decode_g1(data: bytes, what: str) -> Point:
    """A point of G1 from the wire. Raises `Malformed`."""
    require()
    return _decode(pymcl.G1, data, G1_BYTES, what)


def decode_g2(data: bytes, what: str) -> Point:
    """A point of G2 from the wire. Raises `Malformed`."""
    require()
    return _decode(pymcl.G2, data, G2_BYTES, what)


def _decode(group: Any, data: bytes, length: int, what: str) -> Point:
    if len(data) != length:  # the library would ignore what follows
        raise Malformed(f"{what}: a point of {length} bytes expected, found {len(data)}")
    try:
        point = group.deserialize(data)  # checks curve and subgroup
    except ValueError as error:
        raise Malformed(f"{what}: not a point of the group") from error
    if point.is_zero() or point.serialize() != data:
        raise Malformed(f"{what}: not a point in its one encoding")
    return point
