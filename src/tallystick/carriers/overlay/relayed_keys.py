"""One lane key on its way: what is said of it in a message, and where it stands at a relay.

Everything here follows from the origin, which the publisher signed, and from the plan: who comes before, how many are
needed, who sends first. So all honest parties compute the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick import wire
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.redistribution import ALONE, Contribution, HeldShare, Hop, Threshold
from tallystick.crypto.signatures import SIGNED_BYTES_MAX
from tallystick.errors import Malformed
from tallystick.trust.plan import Plan, VirtualNode
from tallystick.trust.shares import Origin, ShareList, ShareSet


@dataclass(frozen=True)
class ForwardingLimits:
    """Times in seconds."""

    hop_wait_s: float = 0.5
    attempts_max: int = 3  # after the first
    keep_s: float = 3600.0  # how long shares of a lane key are kept
    publisher_keys_max: int = 72  # lane keys of one publisher at a time
    tenant_keys_max: int = 4096  # of all publishers of a tenant: some 32 MiB at virtual nodes of three
    spare_keys: int = 8  # of both, that an edge does not give away: for keys on their way, or forgotten a moment later
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
        fields = frame.fields("shares", 5)
        return cls(fields.octets(), *(fields.optional_octets(SIGNED_BYTES_MAX) for _ in range(3)))

    def read_origin(self, frame: OverlayFrame) -> Origin:
        """The origin, not yet verified. Raises `Malformed`, also where the frame's tag is another plan's."""
        origin = Origin.decode(self.origin)
        if origin.plan != frame.plan:
            raise Malformed(f"frame: of plan {frame.plan}, with a lane key of plan {origin.plan}")
        return origin

    def read_shares(self) -> Contribution | None:
        """Set and list, if there are both, not yet verified. Raises `Malformed`."""
        if self.shares is None or self.listed is None:
            return None
        return Contribution(ShareSet.decode(self.shares), ShareList.decode(self.listed))


def scheduled(node: VirtualNode, lane_key: bytes) -> tuple[int, ...]:
    """The indices of those who send in the first attempt."""
    return tuple(sorted((lane_key[0] + step) % len(node.relays) + 1 for step in range(node.need)))


def hop_after(path: Sequence[VirtualNode], origin: Origin, branch: bytes, receivers: Threshold, attempt: int) -> Hop:
    """The hop that leads to `branch` from the end of a path, which begins at the publisher's edge and may be empty."""
    before, senders = [None, ALONE, *map(Threshold.of, path)][-2:]
    assert senders is not None
    fixed = origin.lane_key, origin.plan, branch, attempt
    return Hop(*fixed, before, senders, receivers, origin.commitments)


@dataclass
class ShareAttempt:
    complaint: bytes | None  # that began it
    came: dict[int, Contribution] = field(default_factory=dict)
    held: tuple[HeldShare, ...] | None = None  # None until its time is over

    def is_open(self) -> bool:
        """Whether it may take more: nothing was signed yet."""
        return not self.held


@dataclass
class RelayedKey:
    """One lane key at this relay."""

    origin: Origin
    encoded: bytes
    plan: Plan
    path: tuple[VirtualNode, ...]  # from the publisher's edge to this relay's virtual node
    index: int
    erasable: bytes
    accounts: frozenset[bytes]  # by whom it is counted: its publisher and their tenant
    attempts: dict[int, ShareAttempt] = field(default_factory=dict)
    told: set[bytes] = field(default_factory=set)  # branches and subscribers that heard of it
    pulls: Counter[bytes] = field(default_factory=Counter)  # by subscriber

    @property
    def before(self) -> VirtualNode | None:
        return self.path[-2] if len(self.path) > 1 else None

    @property
    def here(self) -> VirtualNode:
        return self.path[-1]

    @property
    def sources(self) -> tuple[bytes, ...]:
        """Who may tell this relay of the lane key, by index."""
        return self.before.names if self.before else (self.origin.publisher,)

    def hop_here(self, attempt: int) -> Hop:
        """The hop that ends at this relay."""
        return hop_after(self.path[:-1], self.origin, self.here.identifier, Threshold.of(self.here), attempt)

    def hop_to(self, branch: bytes, receivers: Threshold, attempt: int) -> Hop:
        """The hop that begins at this relay's virtual node."""
        return hop_after(self.path, self.origin, branch, receivers, attempt)

    def senders(self, attempt: int) -> tuple[int, ...]:
        """Who may send in an attempt, of those before this relay."""
        if self.before and attempt == 0:
            return scheduled(self.before, self.origin.lane_key)
        return tuple(range(1, len(self.sources) + 1))

    def is_turn(self, attempt: int) -> bool:
        """Whether this relay sends in an attempt without being asked."""
        return attempt > 0 or self.index in scheduled(self.here, self.origin.lane_key)
