"""The two ends of a lane key's way: a publisher that gives its shares out, a subscriber that opens.

The publisher signs the origin, splits a new secret for the relays of its edge, and sends each its share. The
subscriber hears of the lane key from the relays of its own edge, combines the first k shares of one lineage, and
knows the secret by the publisher's commitment. It complains about an attempt that brought nothing in time, and about
the next, whatever relays tell it: so a relay that lies about attempts gains nothing. Threat and timing:
`secret_forwarding.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick import wire
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.redistribution import Contribution, ShareOpener, check, commitment_to, split
from tallystick.carriers.overlay.relayed_keys import (
    ForwardingLimits,
    SharesMessage,
    last_hop,
    read_origin,
    threshold,
    verify,
)
from tallystick.crypto.signatures import Signer, VerifyKey
from tallystick.errors import Forged, Refused
from tallystick.runtime.alarms import Alarms
from tallystick.runtime.effects import Deliver, Effect, Send
from tallystick.trust.plan import Plan, VirtualNode
from tallystick.trust.shares import (
    CANNOT_OPEN,
    Complaint,
    Origin,
    ShareList,
    ShareSet,
    name_lane_key,
)


class Given(NamedTuple):
    """A lane key that is ready to go: the secret stays with the publisher, each relay of its edge gets a frame."""

    origin: Origin
    secret: bytes
    effects: list[Effect]


def give_shares(
    plan: Plan,
    edge: bytes,
    publisher: bytes,
    lock: bytes,
    created_ms: int,
    tokens: tuple[bytes, ...],
    entropy: bytes,
    signer: Signer,
) -> Given:
    """A new secret for a share lock, split for the relays of the publisher's edge. The entropy serves only once; the
    same arguments give the same bytes, so what was lost may be sent again."""
    node, lane_key = plan.node(edge), name_lane_key(publisher, lock, created_ms)
    made = split(entropy, lane_key, plan.version, edge, threshold(node))
    fixed = publisher, lock, created_ms, plan.version, edge, tokens
    origin = Origin(*fixed, made.hop.commitments, commitment_to(made.secret, lane_key)).sign(signer)
    shares, effects = made.shares.sign(signer).encode(), list[Effect]()
    for index, relay in enumerate(node.relays, start=1):
        message = SharesMessage(origin.encode(), None, shares, made.lists[index].sign(signer).encode())
        effects.append(Send(relay.identifier.hex(), message.frame(plan.version)))
    return Given(origin, made.secret, effects)


def pull_shares(plan: Plan, repositories: bytes, lock: bytes) -> list[Effect]:
    """Ask the relays of a virtual node that keeps secrets out of band for the shares of a lock."""
    frame = OverlayFrame(FrameKind.PULL, plan.version, wire.encode([1, lock])).encode()
    return [Send(relay.identifier.hex(), frame) for relay in plan.node(repositories).relays]


class OpenedShares(NamedTuple):
    """A share lock's secret, as a subscriber has it."""

    publisher: bytes
    lock: bytes
    secret: bytes


@dataclass
class _Wanted:
    """A lane key that is not opened yet."""

    origin: Origin
    encoded: bytes
    plan: Plan
    edge: VirtualNode
    openers: dict[int, ShareOpener] = field(default_factory=dict)  # by attempt
    done: bool = False  # opened, or given up


class ShareReceiver:
    """A subscriber's end, told what its edge relays send and when it is time."""

    def __init__(
        self,
        subscriber: bytes,
        signer: Signer,
        plan_of: Callable[[int], Plan | None],
        edge: bytes,
        key_of: Callable[[bytes], VerifyKey | None],
        limits: ForwardingLimits = ForwardingLimits(),
    ) -> None:
        self._subscriber, self._signer, self._edge = subscriber, signer, edge
        self._plan_of, self._key_of, self._limits = plan_of, key_of, limits
        self._wanted: dict[bytes, _Wanted] = {}
        self._of: Counter[bytes] = Counter()
        self._alarms: Alarms[tuple[bytes, int | None]] = Alarms()  # an attempt's end, or with None a lane key's
        self.dropped: Counter[str] = Counter()

    def take(self, frame: OverlayFrame, sender: bytes, now: float) -> list[Effect]:
        """A frame. What does not fit is dropped, counted by reason."""
        effects: list[Effect] = []
        try:
            message = SharesMessage.decode(frame)
            origin = read_origin(frame, message.origin)
            wanted = self._want(origin, message.origin, sender, now, effects)
            if not wanted.done and message.shares is not None and message.listed is not None:
                self._receive(wanted, message.shares, message.listed, sender, effects)
        except Refused as error:
            self.dropped[error.reason] += 1
        return effects

    def wake(self, now: float) -> list[Effect]:
        """Complain about what did not come in time, and wait twice as long for the next attempt."""
        effects: list[Effect] = []
        for key, number in self._alarms.due(now):
            wanted = self._wanted.get(key)
            if wanted is not None and number is None:
                del self._wanted[key]
                self._of[wanted.origin.publisher] -= 1
            elif wanted is not None and number is not None and not wanted.done and number < self._limits.attempts_max:
                complaint = self._complain(wanted, number)
                effects += [Send(relay.identifier.hex(), complaint) for relay in wanted.edge.relays]
                self._wait(wanted, number + 1, now, effects)
        return effects

    def _want(self, origin: Origin, encoded: bytes, sender: bytes, now: float, effects: list[Effect]) -> _Wanted:
        known = self._wanted.get(origin.lane_key)
        if known is not None:
            if known.origin.body != origin.body:
                raise Refused("share origin: there is another one", reason="contradiction")
            return known
        plan, key = self._plan_of(origin.plan), self._key_of(origin.publisher)
        if plan is None or key is None:
            raise Refused("share origin: its plan or its publisher is not known", reason="plan")
        edge = plan.node(self._edge)
        if sender not in [relay.identifier for relay in edge.relays]:
            raise Refused("share origin: not from this subscriber's edge", reason="misrouted")
        if self._of[origin.publisher] >= self._limits.publisher_keys_max:
            raise Refused("share origin: its publisher has too many lane keys", reason="full")
        verify(origin, key)
        wanted = self._wanted[origin.lane_key] = _Wanted(origin, encoded, plan, edge)
        self._of[origin.publisher] += 1
        self._alarms.set(now + self._limits.keep_s, (origin.lane_key, None), effects)
        self._wait(wanted, 0, now, effects)
        return wanted

    def _wait(self, wanted: _Wanted, number: int, now: float, effects: list[Effect]) -> None:
        hops = len(wanted.plan.path(wanted.origin.edge, self._edge))
        self._alarms.set(now + hops * self._limits.hop_wait_s * 2**number, (wanted.origin.lane_key, number), effects)

    def _receive(self, wanted: _Wanted, encoded: bytes, listed: bytes, sender: bytes, effects: list[Effect]) -> None:
        shares, mine = ShareSet.decode(encoded), ShareList.decode(listed)
        relays = wanted.edge.relays
        if shares.attempt > self._limits.attempts_max or shares.sender > len(relays):
            raise Refused("share set: of no attempt, or no relay, that there is", reason="misrouted")
        relay = relays[shares.sender - 1]
        if relay.identifier != sender:
            raise Refused("share set: not from the relay that it names", reason="misrouted")
        key = VerifyKey(relay.key)
        verify(shares, key)
        verify(mine, key)
        hop = last_hop(wanted.plan, wanted.origin, wanted.edge, self._subscriber, shares.attempt)
        opener = wanted.openers.setdefault(shares.attempt, ShareOpener(hop, wanted.origin.opens))
        try:
            secret = opener.add(check(hop, Contribution(shares, mine), 1))
        except Forged:
            wanted.done = True  # no attempt will bring another secret
            raise
        if secret is not None:
            wanted.done = True
            wanted.openers.clear()
            effects.append(Deliver(OpenedShares(wanted.origin.publisher, wanted.origin.lock, secret)))

    def _complain(self, wanted: _Wanted, number: int) -> bytes:
        origin = wanted.origin
        liars = tuple(sorted(wanted.openers[number].liars)) if number in wanted.openers else ()
        what = origin.lane_key, origin.plan, number, self._subscriber, 0, CANNOT_OPEN, liars
        complaint = Complaint(*what).sign(self._signer).encode()
        return SharesMessage(wanted.encoded, complaint).frame(origin.plan)
