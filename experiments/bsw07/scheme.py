"""BSW07 on the curve, the hashes, tables and scalars of `tallystick.crypto.abe`: the peer of `make bench-abe`.

The scheme of the paper's section 4.2, moved to asymmetric pairings with attributes hashed to G1, as is usual:

    public    h = g2^beta, e(g1, g2)^alpha
    key       D = g1^((alpha + r) / beta); for each trait j: D_j = g1^r * H(j)^(r_j), D'_j = g2^(r_j)
    capsule   C = h^s; for each leaf y with share q: C_y = g2^q, C'_y = H(trait of y)^q
    opening   e(D_j, C_y) / e(D'_j, C'_y) = e(g1, g2)^(r q) for each leaf that is needed, weighted by Lagrange's
              coefficients in the exponents of D_j and C'_y; then e(D, C) divided by their product

Trees are those of the paper: every gate is a threshold with a polynomial (an AND of n is n of n), every leaf a row.
What helps our own scheme helps this one too: cached hashes of traits, tables for bases that are used often, scalars
from the same stream. For comparison only: nothing here is bound to a context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from typing import Any

from tallystick.crypto.abe import group
from tallystick.crypto.abe.sharing import ORDER
from tallystick.policy.traits import TraitTree


@dataclass(frozen=True)
class Authority:
    alpha: int
    beta: int
    h: group.Base  # g2^beta
    target: group.TargetBase  # e(g1, g2)^alpha


@dataclass(frozen=True)
class Key:
    d: Any
    parts: dict[bytes, tuple[Any, Any]]

    def encode(self) -> list[bytes]:
        points = [self.d, *(point for pair in self.parts.values() for point in pair)]
        return [group.encode_point(point) for point in points]


@dataclass(frozen=True)
class Ciphertext:
    tree: TraitTree
    c: Any
    leaves: list[tuple[bytes, Any, Any]]  # in the order of the tree

    def encode(self) -> list[bytes]:
        points = [self.c, *(point for _, one, other in self.leaves for point in (one, other))]
        return [group.encode_point(point) for point in points]

    @classmethod
    def decode(cls, tree: TraitTree, traits: list[bytes], points: list[bytes]) -> Ciphertext:
        """With the checks that our own capsules get."""
        c, *rest = points
        leaves = [
            (trait, group.decode_g2(one, "leaf"), group.decode_g1(other, "leaf"))
            for trait, one, other in zip(traits, rest[::2], rest[1::2], strict=True)
        ]
        return cls(tree, group.decode_g2(c, "capsule"), leaves)


def setup(seed: bytes) -> Authority:
    randoms = group.scalars(seed.ljust(32))
    alpha, beta = next(randoms), next(randoms)
    h = group.Base(group.generator2().power(group.scalar(beta)))
    return Authority(alpha, beta, h, group.TargetBase(group.generator2().power(group.scalar(alpha))))


def keygen(authority: Authority, traits: list[bytes], seed: bytes) -> Key:
    randoms = group.scalars(seed.ljust(32))
    g1, g2 = group.generator1(), group.generator2()
    r = next(randoms)
    common = g1.power(group.scalar(r))
    parts = {}
    for trait in traits:
        own = group.scalar(next(randoms))
        parts[trait] = (common + group.hashed(trait) * own, g2.power(own))
    return Key(g1.power(group.scalar((authority.alpha + r) * pow(authority.beta, -1, ORDER))), parts)


def encapsulate(authority: Authority, tree: TraitTree, seed: bytes) -> tuple[Ciphertext, bytes]:
    randoms = group.scalars(seed.ljust(32))
    secret = next(randoms)
    g2 = group.generator2()
    leaves = []
    for trait, share in _shares(tree, secret, randoms):
        exponent = group.scalar(share)
        leaves.append((trait, g2.power(exponent), group.hashed(trait) * exponent))
    exponent = group.scalar(secret)
    key = sha256(authority.target.power(exponent).serialize()).digest()
    return Ciphertext(tree, authority.h.power(exponent), leaves), key


def decapsulate(key: Key, ciphertext: Ciphertext) -> bytes | None:
    _, chosen = _weights(ciphertext.tree, key.parts, 0)
    if chosen is None:
        return None
    blinding = None
    for number, weight in chosen.items():
        trait, c, c_hash = ciphertext.leaves[number]
        d, d_own = key.parts[trait]
        if weight != 1:
            factor = group.scalar(weight.numerator * pow(weight.denominator, -1, ORDER))
            d, c_hash = d * factor, c_hash * factor
        share = group.pair(d, c) * group.pair(-c_hash, d_own)
        blinding = share if blinding is None else blinding * share
    assert blinding is not None
    return sha256((group.pair(key.d, ciphertext.c) * ~blinding).serialize()).digest()


def _shares(tree: TraitTree, secret: int, randoms: Iterator[int]) -> Iterator[tuple[bytes, int]]:
    if isinstance(tree, bytes):
        yield tree, secret
        return
    polynomial = [secret, *(next(randoms) for _ in range(tree.need - 1))]
    for point, part in enumerate(tree.parts, 1):
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * point + coefficient) % ORDER
        yield from _shares(part, value, randoms)


def _weights(tree: TraitTree, held: dict[bytes, Any], first: int) -> tuple[int, dict[int, Fraction] | None]:
    """(number of leaves, weights of those to use), leaves counted from `first`; the fewest of several ways."""
    if isinstance(tree, bytes):
        return 1, {first: Fraction(1)} if tree in held else None
    found, count = [], 0
    for point, part in enumerate(tree.parts, 1):
        size, weights = _weights(part, held, first + count)
        count += size
        if weights is not None:
            found.append((len(weights), point, weights))
    if len(found) < tree.need:
        return count, None
    taken = sorted(found, key=lambda one: one[:2])[: tree.need]
    points = [point for _, point, _ in taken]
    merged: dict[int, Fraction] = {}
    for _, point, weights in taken:
        factor = Fraction(1)
        for other in points:
            if other != point:
                factor *= Fraction(other, other - point)
        merged.update({number: weight * factor for number, weight in weights.items()})
    return count, merged
