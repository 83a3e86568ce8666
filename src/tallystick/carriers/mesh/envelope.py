"""Envelopes: a parcel as it travels over the mesh, with nothing outside that says whose it is.

Threat: forwarders, and whoever reads their memory, who look for topics, permits, lanes and principals; nodes that
repeat, forge or alter what they forward. A parcel's header has all of these names, so the parcel travels whole inside,
under the topic's mesh key, together with the permits and locks that a carrier that stores nothing has to bring along.
Outside stand the topic's pseudonym, the epoch, the time, and a signature under a key of one publisher and epoch, so
that every hop can refuse what is forged, old or repeated (`guard.py`) without knowing more.

The length of what is sealed is padded (Padmé): forwarders learn it within some per cent. One publisher's envelopes of
one epoch can be linked by its key, as its advertisement can; those of two epochs cannot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from tallystick import wire
from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.certified import Certified
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import CannotOpen, Malformed
from tallystick.parcel.padding import padme
from tallystick.trust.mesh import EPOCH_MAX
from tallystick.wire import Fields, Number, Octets16, Octets32, number, octets

CONTEXT = "tallystick mesh envelope 1"
SEALED_BYTES_MAX = 4 * 1024 * 1024  # the format's own bound; each node has its `envelope_bytes_max` below it
PERMITS_MAX = 16  # a parcel has at most 16 topics
LOCKS_MAX = 64  # each of its column groups has at most 8
OPEN_BYTES_MAX = 512  # what stands around the sealed part: about 240


@dataclass(frozen=True)
class MeshEnvelope(Certified):
    """Well-formed; whether it may pass, `MeshGuard` says."""

    what, bytes_max = "envelope", SEALED_BYTES_MAX + OPEN_BYTES_MAX

    pseudonym: Octets16
    epoch: Annotated[int, number(EPOCH_MAX)]
    created_ms: Number
    nonce: Octets32
    sealed: Annotated[bytes, octets(at_most=SEALED_BYTES_MAX)] = field(repr=False)
    key: Octets32  # the publisher's, of this epoch
    certificate: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    @cached_property
    def identifier(self) -> bytes:
        """16 bytes that name it, by which a node knows it again. No other envelope has it, whoever makes one."""
        return named_hash("tallystick mesh envelope 1", self.body)[:16]

    @property
    def place(self) -> bytes:
        """What the sealed part is bound to."""
        return self.place_of(self.pseudonym, self.epoch, self.created_ms, self.key)

    @staticmethod
    def place_of(pseudonym: bytes, epoch: int, created_ms: int, key: bytes) -> bytes:
        return wire.encode([1, pseudonym, epoch, created_ms, key])


Envelope = MeshEnvelope  # its short name, where no other envelope is about


def join_pushed(pushed: Pushed) -> bytes:
    """What is sealed: parcel, permits and locks, and padding behind them: a byte 0x80 and zeros."""
    data = wire.encode([1, pushed.parcel, list(pushed.permits), list(pushed.locks)]) + b"\x80"
    return data + bytes(padme(len(data)) - len(data))


def split_pushed(data: bytes) -> Pushed:
    """What `join_pushed` joined. Raises `CannotOpen`: whoever sealed it had the key, and nobody is told more."""
    unpadded = data.rstrip(b"\x00")
    try:
        if unpadded[-1:] != b"\x80":
            raise Malformed("envelope: no padding")
        fields = Fields.parse(unpadded[:-1], "envelope", 4)
        fields.version(1)
        parcel = fields.octets(at_most=SEALED_BYTES_MAX)
        return Pushed(parcel, *read_beside(fields))
    except Malformed as error:
        raise CannotOpen from error


def read_beside(fields: Fields) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Permits and locks that travel with a parcel. Raises `Malformed`."""
    permits, locks = (
        tuple(one.octets(at_most=SEALED_BYTES_MAX) for one in fields.each(at_most))
        for at_most in (PERMITS_MAX, LOCKS_MAX)
    )
    return permits, locks
