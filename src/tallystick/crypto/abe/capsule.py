"""Encapsulation: a fresh secret under a formula and an attribute epoch; FABEO, the ciphertext-policy variant.

    capsule      g2^s, g2^(t_j) for each occurrence j, and for each row i with traits L_i, share l_i of s, occurrence j
                 C_i = H0^(l_i) * (product of H(u), u in L_i)^(t_j)
    target       e(g1, g2)^(alpha s), from which the secret is derived
    opening      e(secret, g2^s) * product over j of e(product of parts^w, g2^(t_j)) / e(product of C_i^w, g2^r)
                 three pairings for any formula of which no used row is a repetition

Threats. *No attributes, no secret*: the paper's theorem in the generic group model, with rows of several traits as
docs/decisions/0012-one-row-for-an-and.md extends it. *A capsule transplanted or altered*: encapsulation alone would
give its secret to whoever moves it under another signature, or to an opener of a capsule some row of which was changed.
The secret is therefore derived over the whole capsule (formula and epoch are in it) and a context that both sides name
(the permit, the lane): another place, or one bit changed, is another secret, not an error. Whoever uses the secret must
find out, by a commitment or a tag, that it is the right one. *A repeated random state*: all scalars come from a seed
that mixes the entropy with key, formula, epoch and context.

Left out: hiding the formula (the lock around it may be sealed), and security against an opener that answers questions
about capsules of the adversary's making: ours answers none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from math import lcm
from typing import Any

from tallystick import wire
from tallystick.crypto.abe import group
from tallystick.crypto.abe.keys import EPOCH_MAX, IDENTIFIER_BYTES, AttributeKey, AttributePublicKey, epoch_trait
from tallystick.crypto.abe.sharing import ORDER, Program, ShareRow, coefficients, program_of, shares
from tallystick.crypto.symmetric import KEY_BYTES, derive, extract
from tallystick.errors import CannotOpen, Malformed, Misuse
from tallystick.policy.formula import Formula
from tallystick.policy.traits import TraitGate, trait_tree

CAPSULE_BYTES_MAX = 60 * 1024  # a lock of 64 KiB has it in it


@dataclass(frozen=True)
class Capsule:
    """A well-formed capsule. Its points are read, and checked, when an opener needs them."""

    authority: bytes
    epoch: int
    formula: Formula
    head: bytes  # g2^s
    occurrences: bytes  # g2^(t_j), one after the other
    rows: bytes  # C_i, one after the other

    def encode(self) -> bytes:
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        formula = self.formula.encode()
        return wire.encode([1, self.authority, self.epoch, formula, self.head, self.occurrences, self.rows])

    @classmethod
    def decode(cls, data: bytes) -> Capsule:
        """Raises `Malformed`."""
        if len(data) > CAPSULE_BYTES_MAX:
            raise Malformed(f"capsule: {len(data)} bytes, at most {CAPSULE_BYTES_MAX} expected")
        value: Any = wire.decode(data, "capsule")
        types = [int, bytes, int, bytes, bytes, bytes, bytes]
        if not isinstance(value, list) or [type(one) for one in value] != types or value[0] != 1:
            raise Malformed("capsule: version 1 expected", reason="version")
        _, authority, epoch, formula, head, occurrences, rows = value
        if len(authority) != IDENTIFIER_BYTES or not 0 <= epoch <= EPOCH_MAX or len(head) != group.G2_BYTES:
            raise Malformed("capsule: authority, epoch and head are 16 bytes, 32 bits and 96 bytes")
        capsule = cls(authority, epoch, _formula(formula), head, occurrences, rows)
        try:
            program = capsule.program
        except Misuse as error:
            raise Malformed(f"capsule: {error}") from error
        expected = (group.G2_BYTES * program.occurrences, group.G1_BYTES * len(program.rows))
        if (len(occurrences), len(rows)) != expected:
            raise Malformed("capsule: it has not as many points as its formula has rows")
        return capsule

    @cached_property
    def head_point(self) -> group.Point:
        return group.decode_g2(self.head, "capsule")

    def occurrence(self, number: int) -> group.Point:
        return self._point(self.occurrences, number, group.G2_BYTES, group.decode_g2)

    def row(self, number: int) -> group.Point:
        return self._point(self.rows, number, group.G1_BYTES, group.decode_g1)

    def _point(self, points: bytes, number: int, length: int, decode: Callable[[bytes, str], Any]) -> group.Point:
        """One of several points, read once."""
        key = (length, number)
        if key not in self._read:
            self._read[key] = decode(points[length * number : length * (number + 1)], "capsule")
        return self._read[key]

    @cached_property
    def _read(self) -> dict[tuple[int, int], group.Point]:
        return {}

    @cached_property
    def program(self) -> Program:
        return program_for(self.formula, self.epoch)


@lru_cache(maxsize=256)
def program_for(formula: Formula, epoch: int) -> Program:
    """The rows of a formula joined with an attribute epoch. Raises `Misuse` if they are too many."""
    return program_of(TraitGate(2, (epoch_trait(epoch), trait_tree(formula))))


def encapsulate(
    public: AttributePublicKey, formula: Formula, epoch: int, context: bytes, entropy: bytes
) -> tuple[Capsule, bytes]:
    """A fresh 32-byte secret, and the capsule that brings it to whoever satisfies `formula` in `epoch`.

    `context` is what the secret shall be bound to besides; opening takes the same. Raises `Misuse` for less than 32
    bytes of entropy or a formula of too many rows; whether anybody satisfies it is asked by `check_policy`.
    """
    if len(entropy) < KEY_BYTES:
        raise Misuse(f"encapsulation: expected at least {KEY_BYTES} bytes of entropy, found {len(entropy)}")
    if not 0 <= epoch <= EPOCH_MAX:
        raise Misuse(f"attribute epoch {epoch}: expected 0 to {EPOCH_MAX}")
    program = program_for(formula, epoch)
    seed = extract(b"tallystick abe capsule 1", entropy)
    bound = (public.raw, formula.encode(), epoch, context)
    randoms = group.scalars(derive(seed, "tallystick abe capsule 1", *bound))
    exponent = next(randoms)
    head = group.scalar(exponent)
    occurrences = [group.scalar(next(randoms)) for _ in range(program.occurrences)]
    power = group.generator2().power
    capsule = Capsule(
        public.identifier,
        epoch,
        formula,
        group.encode_point(power(head)),
        b"".join(group.encode_point(power(one)) for one in occurrences),
        b"".join(_rows(program.rows, shares(program, exponent, randoms), occurrences)),
    )
    if len(capsule.encode()) > CAPSULE_BYTES_MAX:
        raise Misuse(f"the capsule takes {len(capsule.encode())} bytes, at most {CAPSULE_BYTES_MAX} expected")
    return capsule, _secret(public.target.power(head), capsule, context)


def _rows(rows: Sequence[ShareRow], split: Sequence[int], occurrences: Sequence[group.Scalar]) -> list[bytes]:
    base = group.share_base()
    known: dict[int, group.Point] = {}  # the alternatives of an OR have one share
    found = []
    for row, share in zip(rows, split, strict=True):
        if share not in known:
            known[share] = base.power(group.scalar(share))
        exponent = occurrences[row.occurrence]
        mask = group.total(group.hashed(trait) for trait in row.traits) * exponent
        found.append(group.encode_point(known[share] + mask))
    return found


def decapsulate(key: AttributeKey, capsule: Capsule, context: bytes) -> bytes:
    """The secret. Raises `CannotOpen` if the key does not satisfy the formula in the capsule's epoch.

    Altered points give another secret, or `Malformed` if they are no points; only those that are needed are read.
    """
    parts = _parts(key, capsule)
    weights = None if parts is None else coefficients(capsule.program, parts)
    if parts is None or weights is None:
        raise CannotOpen
    common = lcm(*(weight.denominator for weight in weights.values()))
    rest = group.scalar(pow(common, -1, ORDER)) if common > 1 else None
    sums: dict[int, group.Point] = {}  # occurrence: the key's parts
    masked: group.Point = None
    for number, weight in weights.items():
        row, factor = capsule.program.rows[number], int(weight * common)
        mine = group.times(group.total(parts[trait] for trait in row.traits), factor)
        sums[row.occurrence] = sums[row.occurrence] + mine if row.occurrence in sums else mine
        theirs = group.times(capsule.row(number), factor)
        masked = theirs if masked is None else masked + theirs
    if rest is not None:
        masked, sums = masked * rest, {occurrence: one * rest for occurrence, one in sums.items()}
    target = group.pair(key.secret, capsule.head_point) * group.pair(-masked, key.randomness)
    for occurrence, mine in sums.items():
        target *= group.pair(mine, capsule.occurrence(occurrence))
    return _secret(target, capsule, context)


def satisfies(key: AttributeKey, capsule: Capsule) -> bool:
    """Whether the key has the capsule's epoch, and the attributes that its formula asks for; reads no point."""
    parts = _parts(key, capsule)
    return parts is not None and coefficients(capsule.program, parts) is not None


def _parts(key: AttributeKey, capsule: Capsule) -> _WithEpoch | None:
    part = key.epochs.get(capsule.epoch)
    if part is None or key.authority != capsule.authority:
        return None
    return _WithEpoch(key, epoch_trait(capsule.epoch), part)


class _WithEpoch:
    """The parts of a key together with one epoch's."""

    def __init__(self, key: AttributeKey, trait: bytes, part: group.Point) -> None:
        self._parts, self._trait, self._part = key.parts, trait, part

    def __contains__(self, trait: object) -> bool:
        return trait == self._trait or trait in self._parts

    def __getitem__(self, trait: bytes) -> group.Point:
        return self._part if trait == self._trait else self._parts[trait]


def _secret(target: group.Point, capsule: Capsule, context: bytes) -> bytes:
    root = extract(b"tallystick abe secret 1", target.serialize())
    return derive(root, "tallystick abe secret 1", sha256(capsule.encode()).digest(), context)


@lru_cache(maxsize=256)
def _formula(data: bytes) -> Formula:
    """Policies are few and capsules many."""
    return Formula.decode(data)


def capsule_bytes(formula: Formula) -> int:
    """How long a capsule under `formula` is; needs no library. Raises `Misuse` if its rows are too many."""
    program = program_for(formula, EPOCH_MAX)
    points = bytes(group.G2_BYTES * program.occurrences), bytes(group.G1_BYTES * len(program.rows))
    empty = Capsule(bytes(IDENTIFIER_BYTES), EPOCH_MAX, formula, bytes(group.G2_BYTES), *points)
    return len(empty.encode())
