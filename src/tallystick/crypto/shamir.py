"""Shamir's secret sharing over bytes, in GF(256): any `need` of `count` shares give the secret, fewer give nothing.

The field is that of AES (x⁸ + x⁴ + x³ + x + 1). Each byte of the secret is the value at zero of a polynomial of its
own, and a share is the polynomials' values at an index from 1 to 255. This is the splitting of Algorithm 2 (SYNAPSE),
for the experiments and the benchmark of iterative splitting; the overlay itself redistributes scalars of a group,
where shares can be verified (carriers/overlay/redistribution.py). Left out: any check that a share is true. A wrong
one gives a wrong secret, and nobody is named.

A multiplication by one byte is `bytes.translate` with a row of a table of 64 KiB, a sum is XOR of long integers: no
loop over bytes runs in Python. The polynomials come from 32 bytes of entropy through SHAKE-256, so a secret longer
than that is hidden as well as SHAKE-256 hides its seed. Time depends on indices, which are public, and on the table's
cache lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import shake_256

from tallystick.errors import Malformed, Misuse

COUNT_MAX = 255
ENTROPY_BYTES = 32


@cache
def _tables() -> tuple[tuple[bytes, ...], bytes]:
    """Row f holds the products of f with every byte; behind them the inverse of every byte (of 0: 0)."""
    rows = [bytes(256), bytes(range(256))]
    doubled = [byte << 1 ^ (0x11B if byte & 0x80 else 0) for byte in range(256)]
    for factor in range(2, 256):
        half = rows[factor >> 1]
        rows.append(bytes(doubled[byte] ^ (other if factor & 1 else 0) for other, byte in enumerate(half)))
    return tuple(rows), bytes([0, *(row.index(1) for row in rows[1:])])


def split(secret: bytes, need: int, count: int, entropy: bytes) -> dict[int, bytes]:
    """Shares by index from 1 on. The entropy must serve once. Raises `Misuse`."""
    if not 1 <= need <= count <= COUNT_MAX:
        raise Misuse(f"shares: {need} of {count} asked for, expected at most {COUNT_MAX} and no more needed than made")
    if len(entropy) < ENTROPY_BYTES:
        raise Misuse(f"shares: expected {ENTROPY_BYTES} bytes of entropy, found {len(entropy)}")
    size = len(secret)
    drawn = shake_256(entropy).digest(size * (need - 1))
    coefficients = [secret, *(drawn[at * size : (at + 1) * size] for at in range(need - 1))]
    rows, _ = _tables()
    shares = {}
    for index in range(1, count + 1):
        value = bytes(size)
        for coefficient in reversed(coefficients):
            value = _xor(value.translate(rows[index]), coefficient)
        shares[index] = value
    return shares


def combine(shares: Mapping[int, bytes], at: int = 0) -> bytes:
    """The secret, from exactly as many shares as are needed, or more; elsewhere than at zero, the share of that index.
    Raises `Malformed`."""
    sizes = {len(share) for share in shares.values()}
    if len(sizes) != 1 or not all(1 <= index <= COUNT_MAX for index in shares):
        raise Malformed("shares: expected some, all of one length, with indices from 1 to 255")
    rows, inverses = _tables()
    total = 0
    for index, share in shares.items():
        weight = 1
        for other in shares:
            if other != index:
                weight = rows[weight][rows[other ^ at][inverses[other ^ index]]]
        total ^= int.from_bytes(share.translate(rows[weight]), "little")
    return total.to_bytes(sizes.pop(), "little")


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).to_bytes(len(one), "little")
