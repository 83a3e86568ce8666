"""What travels over a link between relays, or between a relay and a client: frames.

A frame names its kind, the version of the plan under which it was made, and its content, which the role of that kind
reads. Roles send and receive frames as bytes, so the same bytes go over TCP and through the simulated network, and
parties are named by the hex of their principals. Nothing in a frame says who sent it: the link does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tallystick import wire
from tallystick.crypto.coding import BLOCK_BYTES_MAX
from tallystick.errors import Malformed
from tallystick.wire import Fields

FRAME_BYTES_MAX = BLOCK_BYTES_MAX + 4096


class FrameKind(IntEnum):
    ROUTE = 1  # an advertisement, a subscription, or the undoing of one
    SHARES = 2  # of a lane key: that it is there, that an attempt failed, a sender's final set and the receiver's list
    CONTENT = 3  # a parcel's header, and its body or a block of it
    ASK = 4  # for parts of a parcel that did not come
    ACK = 5  # of content
    NOTICE = 6  # a relay attaches or detaches
    STATE = 7  # routing state for a newcomer
    ORDER = 8  # within a virtual node: a parcel's place in its partition, and signatures for it
    TAKE_OVER = 9  # within a virtual node: a new orderer, or who is stuck, asks what was ordered
    FETCH = 10  # within a virtual node: whoever has not got an ordered parcel asks for it
    PULL = 11  # a subscriber asks the relays of a virtual node that keeps secrets out of band for one of them
    CATCH_UP = 12  # a relay asks another for what the ledger anchored, and is answered
    ANCHOR = 13  # within a virtual node: a tree that its orderer would anchor, and signatures for it
    BRING = 14  # within a virtual node: a parcel that waits for its place, to who orders it


@dataclass(frozen=True, slots=True)
class OverlayFrame:
    kind: FrameKind
    plan: int
    content: bytes

    def encode(self) -> bytes:
        return wire.encode([1, int(self.kind), self.plan, self.content])

    def fields(self, what: str, length: int) -> Fields:
        """Of its content, behind the version. Raises `Malformed`."""
        fields = Fields.parse(self.content, what, length)
        fields.version(1)
        return fields

    @classmethod
    def decode(cls, data: bytes) -> OverlayFrame:
        """Raises `Malformed`."""
        if len(data) > FRAME_BYTES_MAX:
            raise Malformed(f"frame: at most {FRAME_BYTES_MAX} bytes expected")
        fields = Fields.parse(data, "frame", 4)
        fields.version(1)
        kind = FrameKind(fields.number(max(FrameKind), min(FrameKind)))
        return cls(kind, fields.number(), fields.octets(at_most=FRAME_BYTES_MAX))
