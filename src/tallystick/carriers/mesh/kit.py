"""What a node of the mesh needs of the principal that it serves: its membership, and the keys of its topics.

A principal gets all of this from its authority, and gives its node a **kit** of it: the lasting key of the node's links
with its certificate, and for some topics and epochs the mesh key, with a publisher's key where it publishes there:
whoever breaks into the node has the keys of the epochs in the kit, and no others. No key here opens bodies.

What the kit names is what the node takes part in. It subscribes to what it `reads` as long as it has the keys, whether
or not somebody fetches: when applications come and go, nothing on the mesh does.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from tallystick import wire
from tallystick.carriers.mesh.forwarding import GUISES
from tallystick.carriers.mesh.members import MemberEntry
from tallystick.carriers.mesh.mesh_keys import MeshKey, MeshPublisher
from tallystick.carriers.mesh.mesh_node import Publication
from tallystick.crypto.exchange import ExchangeKey
from tallystick.crypto.signatures import SIGNATURE_BYTES
from tallystick.errors import Malformed, Misuse
from tallystick.trust.mesh import EPOCH_MAX
from tallystick.wire import Fields, Number, Octets16, Octets32, number, octets

TOPICS_MAX = 4_096  # topics times epochs: 256 topics for 16 epochs
KIT_BYTES_MAX = TOPICS_MAX * 256
ENTRY_BYTES_MAX = 256


@dataclass(frozen=True)
class MeshTopicKeys:
    """A topic in one epoch. Seed and certificate are empty where the principal does not publish on it."""

    token: Octets16
    epoch: Annotated[int, number(EPOCH_MAX)]
    secret: Octets32 = field(repr=False)
    reads: Annotated[int, number(1)]
    seed: Annotated[bytes, octets(at_most=32)] = field(default=b"", repr=False)  # of the publisher's key
    certificate: Annotated[bytes, octets(at_most=SIGNATURE_BYTES)] = field(default=b"", repr=False)
    guise: Annotated[int, number(GUISES - 1)] = 0  # which of the mesh's the topic's owner chose

    @cached_property
    def key(self) -> MeshKey:
        return MeshKey(self.secret, self.epoch)

    @cached_property
    def publication(self) -> Publication | None:
        """Raises `Malformed` if the seed is none."""
        if not self.certificate:
            return None
        if len(self.seed) != 32:
            raise Malformed("mesh kit: a certificate without the seed of its key")
        return Publication(MeshPublisher(self.key.pseudonym, self.epoch, self.seed, self.certificate), self.key)


_FIELDS = 7


@dataclass(frozen=True)
class MeshKit:
    authority: Octets32  # the key under which members and publishers are certified
    epoch_ms: Annotated[int, number(1 << 40, 1)]
    lasting: Octets32 = field(repr=False)  # the seed of the key of the node's links
    until_ms: Number  # when its certificate ends
    certificate: Annotated[bytes, octets(SIGNATURE_BYTES)] = field(repr=False)
    topics: tuple[MeshTopicKeys, ...] = field(default=(), repr=False)

    @cached_property
    def link_key(self) -> ExchangeKey:
        return ExchangeKey(self.lasting)

    def is_same_node(self, other: MeshKit) -> bool:
        """Whether links to it stay as they are: all but keys of topics and the certificate is equal."""
        return (self.authority, self.epoch_ms, self.lasting) == (other.authority, other.epoch_ms, other.lasting)

    def entry(self, address: str) -> MemberEntry:
        """How others know the node."""
        return MemberEntry(self.link_key.public, self.until_ms, address, self.certificate)

    def encode(self) -> bytes:
        return wire.encode([1, *wire.listed(self), [wire.listed(one) for one in self.topics]])

    @classmethod
    def decode(cls, data: bytes) -> MeshKit:
        """Raises `Malformed`."""
        if len(data) > KIT_BYTES_MAX:
            raise Malformed(f"mesh kit: {len(data)} bytes, at most {KIT_BYTES_MAX} expected")
        fields = Fields.parse(data, "mesh kit", 7)
        fields.version(1)
        head = wire.read_fields(_Head, fields)
        topics = tuple(wire.read_fields(MeshTopicKeys, one.array(_FIELDS)) for one in fields.each(TOPICS_MAX))
        for one in topics:
            _ = one.publication  # raises where a seed is none
        return cls(head.authority, head.epoch_ms, head.lasting, head.until_ms, head.certificate, topics)


@dataclass(frozen=True)
class _Head:
    """All but the topics, which have a reader of their own."""

    authority: Octets32
    epoch_ms: Annotated[int, number(1 << 40, 1)]
    lasting: Octets32
    until_ms: Number
    certificate: Annotated[bytes, octets(SIGNATURE_BYTES)]


def show_entry(entry: MemberEntry) -> str:
    """An entry as text, as others write it into `mesh_contacts`."""
    return base64.urlsafe_b64encode(wire.encode([1, *entry.listed()])).decode().rstrip("=")


def read_entry(text: str) -> MemberEntry:
    """Raises `Misuse`: somebody wrote it down."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        if len(data) > ENTRY_BYTES_MAX:
            raise Malformed("too long")
        return wire.read_as(MemberEntry, data, "mesh contact")
    except (binascii.Error, ValueError, Malformed) as error:
        raise Misuse(
            f'mesh contact "{text[:16]}…": not an entry', hint="tally mesh status shows a node's own"
        ) from error
