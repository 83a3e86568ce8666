"""The keys that members of a mesh hold: a topic's mesh key, which opens envelopes, and a publisher's key of an epoch.

Invariant: a mesh key opens envelopes and never bodies. What is inside an envelope is a parcel, sealed under keys that
have nothing to do with this one; who holds a mesh key alone sees header, permits and locks.

A publisher has a seed for each topic and epoch, from its authority: that of the key which is certified, and of its hash
chain. Two of them have nothing in common, so that nobody else can tell that they belong together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.envelope import CONTEXT, MeshEnvelope, join_pushed, split_pushed
from tallystick.crypto.signatures import SigningKey
from tallystick.crypto.symmetric import SALT_BYTES, derive, unwrap, wrap
from tallystick.errors import CannotOpen, Misuse
from tallystick.runtime.sources import Entropy
from tallystick.trust.mesh import mesh_pseudonym


@dataclass(frozen=True)
class MeshPublisher:
    """A publisher of one topic in one epoch, and its certificate."""

    pseudonym: bytes
    epoch: int
    seed: bytes = field(repr=False)
    certificate: bytes = field(repr=False)

    @cached_property
    def signing(self) -> SigningKey:
        return SigningKey.from_seed(self.seed)

    @cached_property
    def chain_seed(self) -> bytes:
        """That of the hash chain of the publisher's advertisement."""
        return derive(self.seed, "tallystick mesh chain 1")

    @property
    def key(self) -> bytes:
        return self.signing.public.raw

    def sign(self, context: str, body: bytes) -> bytes:
        return self.signing.sign(context, body)


@dataclass(frozen=True)
class MeshKey:
    """The key of a topic in one epoch, which its publishers and subscribers share (K_a of AnonPubSub 4.2)."""

    secret: bytes = field(repr=False)
    epoch: int

    @cached_property
    def pseudonym(self) -> bytes:
        return mesh_pseudonym(self.secret, self.epoch)

    def seal(self, pushed: Pushed, created_ms: int, publisher: MeshPublisher, entropy: Entropy) -> MeshEnvelope:
        """A parcel and what goes with it, for whoever has this key. Raises `Misuse` for another topic's publisher."""
        if (publisher.pseudonym, publisher.epoch) != (self.pseudonym, self.epoch):
            raise Misuse("envelope: the publisher is certified for another topic or epoch")
        open_fields = (self.pseudonym, self.epoch, created_ms)
        place = MeshEnvelope.place_of(*open_fields, publisher.key)
        wrapped = wrap(self.secret, join_pushed(pushed), place, entropy.bytes(SALT_BYTES))
        closed = (wrapped[:SALT_BYTES], wrapped[SALT_BYTES:], publisher.key)
        body = MeshEnvelope(*open_fields, *closed, b"", b"").body
        return MeshEnvelope(*open_fields, *closed, publisher.certificate, publisher.sign(CONTEXT, body))

    def open(self, envelope: MeshEnvelope) -> Pushed:
        """What was sealed. Raises `CannotOpen`, whatever the reason."""
        if envelope.pseudonym != self.pseudonym or envelope.epoch != self.epoch:
            raise CannotOpen
        return split_pushed(unwrap(self.secret, envelope.nonce + envelope.sealed, envelope.place))
