"""One lane key on its way: what is said of it in a message, and where it stands at a relay.

Everything here follows from the origin, which the publisher signed, and from the plan: who comes before, how many are
needed, who sends first. So all honest parties compute the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick import wire
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.redistribution import ALONE, Contribution, HeldShare, Hop, Threshold
from tallystick.crypto.signatures import SIGNED_BYTES_MAX, SignedObject, VerifyKey
from tallystick.errors import Malformed
from tallystick.trust.plan import Plan, VirtualNode
from tallystick.trust.shares import Origin
from tallystick.wire import Fields


def verify(one: SignedObject, key: VerifyKey) -> None:
    """Raises `Forged`."""
    key.verify(one.context, one.signature, one.body)


@dataclass(frozen=True)
class ForwardingLimits:
    """Times in seconds."""

    hop_wait_s: float = 0.5
    attempts_max: int = 3  # after the first
    keep_s: float = 3600.0  # how long shares of a lane key are kept
    publisher_keys_max: int = 64  # lane keys of one publisher at a time
    pulls_max: int = 16  # of one lane key by one subscriber, out of band
    delay_max_s: float = 60.0  # between a lane key's making and its first message here
    skew_max_s: float = 5.0  # between clocks


class Evidence(NamedTuple):
    """Two signed things that convict who signed them."""

    principal: bytes
    reason: str
    objects: tuple[bytes, bytes]


class SharesMessage(NamedTuple):
    """The content of a frame: always the origin, so that it can be read alone; then what is new."""

    origin: bytes
    complaint: bytes | None = None  # about the attempt before
    shares: bytes | None = None
    listed: bytes | None = None

    def frame(self, plan: int) -> bytes:
        return OverlayFrame(FrameKind.SHARES, plan, wire.encode([1, *self])).encode()

    @classmethod
    def decode(cls, frame: OverlayFrame) -> SharesMessage:
        """Raises `Malformed`."""
        fields = Fields.parse(frame.content, "shares", 5)
        fields.version(1)
        return cls(fields.octets(), *(fields.optional_octets(SIGNED_BYTES_MAX) for _ in range(3)))


def read_origin(frame: OverlayFrame, encoded: bytes) -> Origin:
    """The origin, not yet verified. Raises `Malformed`, also where the frame's tag is another plan's."""
    origin = Origin.decode(encoded)
    if origin.plan != frame.plan:
        raise Malformed(f"frame: of plan {frame.plan}, with a lane key of plan {origin.plan}")
    return origin


def scheduled(node: VirtualNode, lane_key: bytes) -> tuple[int, ...]:
    """The indices of those who send in the first attempt."""
    return tuple(sorted((lane_key[0] + step) % len(node.relays) + 1 for step in range(node.need)))


def threshold(node: VirtualNode) -> Threshold:
    return Threshold(node.need, len(node.relays))


def last_hop(plan: Plan, origin: Origin, edge: VirtualNode, subscriber: bytes, attempt: int) -> Hop:
    """The hop from a subscriber's virtual node to the subscriber."""
    path = plan.path(origin.edge, edge.identifier)
    before = threshold(path[-2]) if len(path) > 1 else ALONE
    fixed = origin.lane_key, origin.plan, subscriber, attempt
    return Hop(*fixed, before, threshold(edge), ALONE, origin.commitments)


@dataclass
class ShareAttempt:
    complaint: bytes | None  # that began it
    came: dict[int, Contribution] = field(default_factory=dict)
    held: tuple[HeldShare, ...] | None = None  # None until it is final
    liars: tuple[int, ...] = ()


@dataclass
class RelayedKey:
    """One lane key at this relay."""

    origin: Origin
    encoded: bytes
    plan: Plan
    path: tuple[VirtualNode, ...]  # from the publisher's edge to this relay's virtual node
    index: int
    erasable: bytes
    attempts: dict[int, ShareAttempt] = field(default_factory=dict)
    told: set[bytes] = field(default_factory=set)  # branches and subscribers that heard of it
    pulls: Counter[bytes] = field(default_factory=Counter)  # by subscriber

    @property
    def depth(self) -> int:
        return len(self.path) - 1

    @property
    def before(self) -> VirtualNode | None:
        return self.path[-2] if self.depth else None

    @property
    def here(self) -> VirtualNode:
        return self.path[-1]

    def hop_here(self, attempt: int) -> Hop:
        """The hop that ends at this relay."""
        before, senders = None, ALONE
        if self.depth:
            before = threshold(self.path[-3]) if self.depth > 1 else ALONE
            senders = threshold(self.path[-2])
        fixed = self.origin.lane_key, self.origin.plan, self.here.identifier, attempt
        return Hop(*fixed, before, senders, threshold(self.here), self.origin.commitments)

    def senders(self, attempt: int) -> tuple[int, ...]:
        """Who may send in an attempt, of those before this relay."""
        if self.before is None:
            return (1,)
        if attempt == 0:
            return scheduled(self.before, self.origin.lane_key)
        return tuple(range(1, len(self.before.relays) + 1))
