"""Keys of the scheme: the authority's master key, its public half, and the attribute keys of principals.

A master key *is* a 32-byte seed. An attribute key is bound together by randomness r that runs through all its parts:
H(trait)^r for each trait, g1^alpha * H0^r, g2^r. Parts under different r do not combine, which is what stops pooling,
and what attribute epochs rest on: every policy is joined with an epoch, and a key reaches a new epoch by one more part,
H(epoch)^r.

Threat: a principal that lost an attribute keeps the old part and asks for the next epoch. r is therefore derived from
holder *and* the set of traits: another set has another r by construction, a refresh is one group element only while
the set stays as it is, and old parts do not mix with new ones. Whoever knows r and the key knows the master secret, so
r never leaves this module.

The paper publishes e(g1, g2)^alpha. We publish g2^alpha, from which everybody computes it, because elements of the
target group cannot be checked when read. It adds to what the adversary sees one element of G2 whose pairings all carry
the factor alpha and therefore cancel nothing (docs/decisions/0012-one-row-for-an-and.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tallystick import wire
from tallystick.crypto.abe import group
from tallystick.crypto.abe.sharing import TRAITS_MAX
from tallystick.crypto.symmetric import KEY_BYTES, derive, extract, named_hash
from tallystick.errors import Forged, Malformed, Misuse

IDENTIFIER_BYTES = 16
KEY_BYTES_MAX = 2 * 1024 * 1024
EPOCH_MAX = (1 << 32) - 1


def epoch_trait(epoch: int) -> bytes:
    """No attribute has an empty name, so no attribute has this trait."""
    return wire.encode(["", epoch])


@dataclass(frozen=True)
class AttributePublicKey:
    """What encapsulating takes: g2^alpha."""

    raw: bytes
    point: group.Point = field(repr=False, compare=False)

    @classmethod
    def decode(cls, data: bytes) -> AttributePublicKey:
        """Raises `Malformed`."""
        return cls(bytes(data), group.decode_g2(data, "attribute authority's public key"))

    def encode(self) -> bytes:
        return self.raw

    @cached_property
    def identifier(self) -> bytes:
        """Names the authority in keys and capsules."""
        return named_hash("tallystick abe public key 1", self.raw)[:IDENTIFIER_BYTES]

    @cached_property
    def target(self) -> group.TargetBase:
        return group.TargetBase(self.point)


@dataclass(frozen=True)
class AttributeMasterKey:
    """The authority's secret; `seed` is all of it."""

    seed: bytes = field(repr=False)
    public: AttributePublicKey = field(compare=False)
    _secret_point: group.Point = field(repr=False, compare=False)  # g1^alpha

    @classmethod
    def generate(cls, entropy: bytes) -> AttributeMasterKey:
        """The key that `entropy` (at least 32 bytes) determines."""
        if len(entropy) < KEY_BYTES:
            raise Misuse(f"master key: expected at least {KEY_BYTES} bytes of entropy, found {len(entropy)}")
        return cls.decode(extract(b"tallystick abe master 1", entropy))

    @classmethod
    def decode(cls, seed: bytes) -> AttributeMasterKey:
        """Raises `Malformed`."""
        if len(seed) != KEY_BYTES:
            raise Malformed(f"master key: expected {KEY_BYTES} bytes, found {len(seed)}")
        alpha = _scalar(derive(seed, "tallystick abe master 1"))
        point = group.generator2().power(alpha)
        return cls(bytes(seed), AttributePublicKey(group.encode_point(point), point), group.generator1().power(alpha))

    def encode(self) -> bytes:
        """The seed: a secret."""
        return self.seed

    def issue(self, holder: bytes, traits: Iterable[bytes], epochs: Iterable[int]) -> AttributeKey:
        """The key of `holder` for these traits and epochs; the same arguments give the same key."""
        ordered = tuple(sorted(set(traits)))
        if not 1 <= len(ordered) <= TRAITS_MAX:
            raise Misuse(f"attribute key: expected 1 to {TRAITS_MAX} traits, found {len(ordered)}")
        r = self._randomness(holder, ordered)
        parts = {trait: group.hashed(trait) * r for trait in ordered}
        return AttributeKey(
            self.public.identifier,
            self._secret_point + group.share_base().power(r),
            group.generator2().power(r),
            parts,
            {epoch: group.hashed(epoch_trait(epoch)) * r for epoch in epochs},
        )

    def refresh(self, holder: bytes, traits: Iterable[bytes], epoch: int) -> bytes:
        """The one part that takes the key of `holder` for exactly these traits to another epoch."""
        r = self._randomness(holder, tuple(sorted(set(traits))))
        return group.encode_point(group.hashed(epoch_trait(epoch)) * r)

    def _randomness(self, holder: bytes, traits: tuple[bytes, ...]) -> group.Scalar:
        held = named_hash("tallystick abe traits 1", wire.encode(list(traits)))
        return _scalar(derive(self.seed, "tallystick attribute key 1", holder, held))


@dataclass(frozen=True, repr=False)
class AttributeKey:
    """What a principal opens with. Parts come from the wire unread and are checked when first used."""

    authority: bytes  # the identifier of its public key
    secret: group.Point  # g1^alpha * H0^r
    randomness: group.Point  # g2^r
    parts: Mapping[bytes, group.Point]  # trait: H(trait)^r
    epochs: Mapping[int, group.Point]  # epoch: H(epoch)^r

    def with_epoch(self, epoch: int, part: bytes) -> AttributeKey:
        """This key in one more epoch. Raises `Forged` if `part` was made for another key or epoch."""
        point = group.decode_g1(part, "epoch part")
        expected = group.pair(group.hashed(epoch_trait(epoch)), self.randomness)
        if group.pair(point, group.generator2().point) != expected:
            raise Forged(f"epoch part: not of this key, or not of attribute epoch {epoch}")
        return replace(self, epochs={**self.epochs, epoch: point})

    def encode(self) -> bytes:
        """A secret: wire [1, authority, secret, randomness, traits, their parts, [[epoch, part], …]]."""
        return wire.encode(
            [
                1,
                self.authority,
                group.encode_point(self.secret),
                group.encode_point(self.randomness),
                sorted(self.parts),
                b"".join(group.encode_point(self.parts[trait]) for trait in sorted(self.parts)),
                [[epoch, group.encode_point(self.epochs[epoch])] for epoch in sorted(self.epochs)],
            ]
        )

    @classmethod
    def decode(cls, data: bytes) -> AttributeKey:
        """Raises `Malformed`; of the traits' parts only when they are used."""
        if len(data) > KEY_BYTES_MAX:
            raise Malformed(f"attribute key: {len(data)} bytes, at most {KEY_BYTES_MAX} expected")
        value: Any = wire.decode(data, "attribute key")
        types = [int, bytes, bytes, bytes, list, bytes, list]
        if not isinstance(value, list) or [type(one) for one in value] != types or value[0] != 1:
            raise Malformed("attribute key: version 1 expected", reason="version")
        _, authority, secret, randomness, traits, parts, epochs = value
        if any(type(trait) is not bytes for trait in traits) or traits != sorted(set(traits)):
            raise Malformed("attribute key: traits are sorted and different")
        if not 1 <= len(traits) <= TRAITS_MAX or len(parts) != group.G1_BYTES * len(traits):
            raise Malformed("attribute key: a part for each trait expected")
        if len(authority) != IDENTIFIER_BYTES:
            raise Malformed(f"attribute key: an authority is named by {IDENTIFIER_BYTES} bytes")
        return cls(
            authority,
            group.decode_g1(secret, "attribute key"),
            group.decode_g2(randomness, "attribute key"),
            _Unread(traits, parts),
            _epochs(epochs),
        )


def _epochs(value: list[Any]) -> dict[int, group.Point]:
    found = {}
    for item in value:
        if not (isinstance(item, list) and [type(one) for one in item] == [int, bytes] and 0 <= item[0] <= EPOCH_MAX):
            raise Malformed("attribute key: expected [epoch, part]")
        found[item[0]] = group.decode_g1(item[1], "attribute key")
    if list(found) != sorted(found) or len(found) != len(value):
        raise Malformed("attribute key: epochs are sorted and different")
    return found


class _Unread(Mapping[bytes, group.Point]):
    """The parts of a key as bytes, read one by one."""

    def __init__(self, traits: list[bytes], parts: bytes) -> None:
        self._places = {trait: group.G1_BYTES * number for number, trait in enumerate(traits)}
        self._bytes = parts
        self._read: dict[bytes, group.Point] = {}

    def __getitem__(self, trait: bytes) -> group.Point:
        if trait not in self._read:
            place = self._places[trait]
            self._read[trait] = group.decode_g1(self._bytes[place : place + group.G1_BYTES], "attribute key")
        return self._read[trait]

    def __contains__(self, trait: object) -> bool:
        return trait in self._places

    def __iter__(self) -> Any:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _scalar(seed: bytes) -> group.Scalar:
    return group.scalar(next(group.scalars(seed)))
