"""What neighbours on the mesh say to each other: frames, of one kind each.

A frame is bytes, `[1, kind, field…]`, so that the same bytes go through the link layer and through a simulated network.
Nothing in it says who sent it: the link does. A name on the mesh is a mesh identity of 16 bytes, and its hex where an
effect names a receiver. Each role reads the fields of its own kinds, with a bound for every one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tallystick import wire
from tallystick.errors import Malformed
from tallystick.runtime.effects import Send
from tallystick.wire import Fields

FRAME_BYTES_MAX = 5 * 1024 * 1024  # the largest envelope that has a form, and room; a node's own limits are below


class MeshKind(IntEnum):
    JOIN = 1  # membership: a newcomer's entry, on its walk
    HOLD = 2  # membership: the sender holds the receiver in its view
    LEAVE = 3  # membership: the sender goes, and names others in its place
    ALIVE = 4  # membership: nothing else to say, and whether the sender holds the receiver
    ADVERTISE = 5  # localisation: an advertisement and a value of its chain
    UNADVERTISE = 6  # localisation: the value that takes an advertisement back
    LOST = 7  # localisation: the sender knows no way to a publisher, or none but through the receiver
    SUBSCRIBE = 8  # matching: the sender shares the receiver's link for a topic, and how
    UNSUBSCRIBE = 9  # matching: it does not any more
    NOTIFY = 10  # distribution: an envelope
    HAVE = 11  # distribution: names of envelopes that the sender has
    WANT = 12  # distribution: those of them that the receiver has not
    LOCK = 13  # shell game: do not move, and who will be your neighbour
    VOTE = 14  # shell game: yes or no
    DECIDE = 15  # shell game: it happens, or it does not


_LAST = max(MeshKind)


@dataclass(frozen=True, slots=True)
class MeshFrame:
    kind: MeshKind
    content: list[Any]

    def fields(self, length: int) -> Fields:
        """Its content, to be read field by field. Raises `Malformed` if there are more or fewer."""
        return Fields(self.content, self.kind.name.lower(), length)

    @classmethod
    def decode(cls, data: Any) -> MeshFrame:
        """Raises `Malformed`."""
        if not isinstance(data, bytes) or len(data) > FRAME_BYTES_MAX:
            raise Malformed(f"mesh frame: at most {FRAME_BYTES_MAX} bytes expected")
        value = wire.decode(data, "mesh frame")
        if not isinstance(value, list) or len(value) < 2:
            raise Malformed("mesh frame: a version and a kind expected")
        head = Fields(value[:2], "mesh frame", 2)
        head.version(1)
        return cls(MeshKind(head.number(_LAST, 1)), value[2:])


def framed(kind: MeshKind, *fields: Any) -> bytes:
    return wire.encode([1, int(kind), *fields])


def tell(to: bytes, kind: MeshKind, *fields: Any) -> Send:
    """The effect that says this to the neighbour of this identity."""
    return Send(to.hex(), framed(kind, *fields))


def is_urgent(message: bytes) -> bool:
    """Whether a frame of ours may leave outside of link beats: an envelope, and nothing else (AnonPubSub 4.1)."""
    return message[2:3] == bytes([MeshKind.NOTIFY])  # behind the array's head and the version
