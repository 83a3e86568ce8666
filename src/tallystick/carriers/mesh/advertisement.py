"""Advertisements: a publisher's word that a topic can be had from its direction, and a hash chain that says how near.

Threat: a node that pretends to be nearer to a publisher than it is draws subscriptions to itself and learns who
subscribes; one that counts hops learns how near the publisher is. AnonPubSub 4.3 hashes a nonce h once per hop, so that
nobody can go back along the chain, but signs the topic's pseudonym alone: anybody puts an h of its own beside the
signature and passes for another publisher of the topic, right next door.

Ours is anchored. The publisher draws h₀ and a secret length D from 64 to 128, and signs the end of the chain, H^D(h₀).
A value counts only if it reaches the anchor in at most 128 steps; the more steps are left, the nearer it is. Until the
epoch ends, h₀, D and everything under the signature but the expiry stay the same: refreshes give nobody a second draw,
and `identifier` names the publisher's advertisement through all of them.

What remains. A liar passes on the h that it got, without hashing it, and looks one hop nearer than it is: as near as
its own predecessor, never nearer. Colluders who hand values to each other outside the mesh look as near as the nearest
of them, over any distance. Who sees s steps left knows that the publisher is at most 128 − s hops away, which is much
where D was drawn near 128: a neighbour is certain with a chance of 1 in 65.

Undoing. The advertisement holds the hash of a secret value; whoever shows that value takes the advertisement back.
Nodes pass it on, so it proves that the publisher said so and hides who that is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Annotated

from tallystick import wire
from tallystick.carriers.mesh.certified import Certified
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.mesh_keys import MeshPublisher
from tallystick.crypto.signatures import Verifier, VerifyKey
from tallystick.crypto.symmetric import derive, named_hash
from tallystick.errors import Forged, Refused
from tallystick.runtime.sources import Entropy
from tallystick.trust.mesh import EPOCH_MAX, check_publisher
from tallystick.wire import Number, Octets16, Octets32, number

CONTEXT = "tallystick mesh advertisement 1"
STEPS_MIN, STEPS_MAX = 64, 128
VALUE_BYTES = 32
ADVERTISEMENT_BYTES_MAX = 512  # it has about 300

_STEP = b"tallystick mesh step 1\x00"  # as `named_hash`, without its work: a chain is walked for each neighbour's word


def step(h: bytes) -> bytes:
    """What a node passes on where it received `h`."""
    return sha256(_STEP + h).digest()


def steps_left(h: bytes, anchor: bytes) -> int | None:
    """How many steps lead from `h` to the anchor, or None if it is not reached within 128. More are nearer."""
    for steps in range(STEPS_MAX + 1):
        if h == anchor:
            return steps
        h = step(h)
    return None


@dataclass(frozen=True)
class Advertisement(Certified):
    """Well-formed; whether it counts, `check` says. It travels beside a value of its chain."""

    what, bytes_max = "advertisement", ADVERTISEMENT_BYTES_MAX

    pseudonym: Octets16
    epoch: Annotated[int, number(EPOCH_MAX)]
    expiry_ms: Number
    undo: Octets32  # the hash of what takes it back
    anchor: Octets32  # the end of the chain
    key: Octets32  # the publisher's, of this epoch
    certificate: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    @cached_property
    def identifier(self) -> bytes:
        """The publisher's handle: 16 bytes that stay when the advertisement is refreshed with a later expiry."""
        lasting = [self.pseudonym, self.epoch, self.undo, self.anchor, self.key]
        return named_hash("tallystick mesh advertisement 1", wire.encode(lasting))[:16]

    def check_undo(self, preimage: bytes) -> None:
        """Raise `Forged` unless `preimage` takes this advertisement back."""
        if undo_hash_of(preimage) != self.undo:
            raise Forged("unadvertise: not the value that takes it back", reason="wrong-undo")


def undo_hash_of(preimage: bytes) -> bytes:
    return named_hash("tallystick mesh undo 1", preimage)


@dataclass(frozen=True)
class ChainSecret:
    """What a publisher keeps of its advertisement: the chain's beginning and length, and what takes it back."""

    first: bytes = field(repr=False)  # h₀, the value that the publisher itself sends
    length: int = field(repr=False)  # D
    undo: bytes = field(repr=False)  # the preimage

    @classmethod
    def draw(cls, entropy: Entropy) -> ChainSecret:
        return cls.from_seed(entropy.bytes(32))

    @classmethod
    def of(cls, publisher: MeshPublisher) -> ChainSecret:
        """That of one publisher, topic and epoch: the same after a restart, so that nobody sees a second length."""
        return cls.from_seed(publisher.chain_seed)

    @classmethod
    def from_seed(cls, seed: bytes) -> ChainSecret:
        first, length, undo = (derive(seed, "tallystick mesh chain part 1", part) for part in range(3))
        return cls(first, STEPS_MIN + int.from_bytes(length, "big") % (STEPS_MAX - STEPS_MIN + 1), undo)

    @cached_property
    def anchor(self) -> bytes:
        h = self.first
        for _ in range(self.length):
            h = step(h)
        return h

    def advertise(self, publisher: MeshPublisher, expiry_ms: int) -> Advertisement:
        """The signed advertisement; for a refresh the same with a later expiry."""
        fields = (publisher.pseudonym, publisher.epoch, expiry_ms, undo_hash_of(self.undo), self.anchor, publisher.key)
        body = Advertisement(*fields, certificate=b"", signature=b"").body
        return Advertisement(*fields, publisher.certificate, publisher.sign(CONTEXT, body))


def check(
    advertisement: Advertisement, h: bytes, now_ms: int, authority: Verifier, limits: MeshLimits = MeshLimits()
) -> int:
    """How many steps `h` is from the anchor; `authority` certifies the publishers of the mesh.

    Raises `Refused` unless the advertisement counts now and `h` is of its chain. Cheapest first.
    """
    check_times(advertisement, now_ms, limits)
    steps = check_chain(advertisement, h)
    check_signed(advertisement, authority)
    return steps


def check_times(advertisement: Advertisement, now_ms: int, limits: MeshLimits) -> None:
    """Raise `Refused` unless its epoch runs or soon begins, and it expires within it: not yet, and not far ahead."""
    begins, ends = (epoch * limits.epoch_ms for epoch in (advertisement.epoch, advertisement.epoch + 1))
    if now_ms < begins - limits.early_ms_max - limits.skew_max_ms:
        raise Refused(f"advertisement: epoch {advertisement.epoch} is far ahead", reason="future")
    if advertisement.expiry_ms > ends:
        raise Refused(f"advertisement: it would outlive its epoch {advertisement.epoch}", reason="wrong-epoch")
    if advertisement.expiry_ms <= now_ms - limits.skew_max_ms:
        raise Refused(f"advertisement: expired at {advertisement.expiry_ms} ms, it is {now_ms}", reason="expired")
    if advertisement.expiry_ms > max(now_ms, begins) + limits.advertised_ms_max + limits.skew_max_ms:
        raise Refused("advertisement: it would last longer than any may", reason="lasts-too-long")


def check_chain(advertisement: Advertisement, h: bytes) -> int:
    """The steps from `h` to the anchor. Raises `Forged` if it is not a value of this chain."""
    steps = steps_left(h, advertisement.anchor) if len(h) == VALUE_BYTES else None
    if steps is None:
        raise Forged(f"advertisement: its anchor is not within {STEPS_MAX} steps", reason="wrong-chain")
    return steps


def check_signed(advertisement: Advertisement, authority: Verifier) -> None:
    """Raise `Refused` unless a publisher signed it whom the authority certified for this pseudonym and epoch."""
    check_publisher(
        advertisement.pseudonym, advertisement.epoch, advertisement.key, advertisement.certificate, authority
    )
    VerifyKey(advertisement.key).verify(CONTEXT, advertisement.signature, advertisement.body)
