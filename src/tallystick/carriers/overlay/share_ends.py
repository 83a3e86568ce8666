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
from tallystick.carriers.overlay.redistribution import (
    ALONE,
    Contribution,
    ShareOpener,
    Threshold,
    check,
    commitment_to,
    split,
)
from tallystick.carriers.overlay.relayed_keys import ForwardingLimits, SharesMessage, hop_after
from tallystick.crypto.signatures import Signer, VerifyKey
from tallystick.errors import Forged, Refused
from tallystick.runtime.alarms import Alarms
from tallystick.runtime.effects import Deliver, Effect, Send
from tallystick.trust.plan import Plan, VirtualNode
from tallystick.trust.shares import CANNOT_OPEN, Complaint, Origin, name_lane_key


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
    made = split(entropy, lane_key, plan.version, edge, Threshold.of(node))
    fixed = publisher, lock, created_ms, plan.version, edge, tokens
    origin = Origin(*fixed, made.hop.commitments, commitment_to(made.secret, lane_key)).sign(signer)
    shares, effects = made.shares.sign(signer).encode(), list[Effect]()
    for index, name in enumerate(node.names, start=1):
        message = SharesMessage(origin.encode(), None, shares, made.lists[index].sign(signer).encode())
        effects.append(Send(name.hex(), message.frame(plan.version)))
    return Given(origin, made.secret, effects)


def pull_shares(plan: Plan, node: bytes, lock: bytes, permit: bytes) -> list[Effect]:
    """Ask the relays of a virtual node, one's edge or one that keeps secrets out of band, for the shares of a lock, by
    the identifier of one's live permit."""
    frame = OverlayFrame(FrameKind.PULL, plan.version, wire.encode([1, lock, permit])).encode()
    return [Send(name.hex(), frame) for name in plan.node(node).names]


class OpenedShares(NamedTuple):
    """A share lock's secret, as a subscriber has it."""

    publisher: bytes
    lock: bytes
    secret: bytes


@dataclass
class _Wanted:
    """A lane key that is not opened yet."""

    origin: Origin
    path: tuple[VirtualNode, ...]  # from the publisher's edge to the subscriber's
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
            wanted = self._want(message.read_origin(frame), sender, now, effects)
            if not wanted.done and (sent := message.read_shares()) is not None:
                self._receive(wanted, sent, sender, effects)
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
                effects += [Send(name.hex(), complaint) for name in wanted.path[-1].names]
                self._wait(wanted, number + 1, now, effects)
        return effects

    def _want(self, origin: Origin, sender: bytes, now: float, effects: list[Effect]) -> _Wanted:
        known = self._wanted.get(origin.lane_key)
        if known is not None:
            if known.origin.body != origin.body:
                raise Refused("share origin: there is another one", reason="contradiction")
            return known
        plan, key = self._plan_of(origin.plan), self._key_of(origin.publisher)
        if plan is None or key is None:
            raise Refused("share origin: its plan or its publisher is not known", reason="plan")
        if sender not in plan.node(self._edge).names:
            raise Refused("share origin: not from this subscriber's edge", reason="misrouted")
        if self._of[origin.publisher] >= self._limits.publisher_keys_max:
            raise Refused("share origin: its publisher has too many lane keys", reason="full")
        origin.verify_by(key)
        wanted = self._wanted[origin.lane_key] = _Wanted(origin, plan.path(origin.edge, self._edge))
        self._of[origin.publisher] += 1
        self._alarms.set(now + self._limits.keep_s, (origin.lane_key, None), effects)
        self._wait(wanted, 0, now, effects)
        return wanted

    def _wait(self, wanted: _Wanted, number: int, now: float, effects: list[Effect]) -> None:
        wait_s = len(wanted.path) * self._limits.hop_wait_s * 2**number
        self._alarms.set(now + wait_s, (wanted.origin.lane_key, number), effects)

    def _receive(self, wanted: _Wanted, sent: Contribution, sender: bytes, effects: list[Effect]) -> None:
        shares, names = sent.shares, wanted.path[-1].names
        if shares.attempt > self._limits.attempts_max or sender not in names[shares.sender - 1 : shares.sender]:
            raise Refused("share set: of no attempt that there is, or not from the relay it names", reason="misrouted")
        for one in sent:
            one.verify_by(wanted.path[-1].key(shares.sender))
        hop = hop_after(wanted.path, wanted.origin, self._subscriber, ALONE, shares.attempt)
        opener = wanted.openers.setdefault(shares.attempt, ShareOpener(hop, wanted.origin.opens))
        try:
            secret = opener.add(check(hop, sent, 1))
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
        return SharesMessage(origin.encode(), complaint).frame(origin.plan)
