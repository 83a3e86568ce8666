"""Between which two switches frames are altered (thesis 7.1.2, use case 4: "would be very interesting to explore").

An altered payload is found at the first receiver, whose tag does not hold, and its dispatcher hands the complaint on.
The switches along the way then get, one after the other from the publisher's on, a *verifying host*: a host of the
operator's at that switch, which subscribes to the flow as any other and reports which copies it got. It needs no key; a
copy is the bytes behind the route header, and copies of one frame are equal or somebody altered them. The first switch
at which there are copies that the one before never had is one of a pair: either the one altered what it sent, or the
other what it got. Copies that are missing are loss, and accuse nobody; one in twenty may be missing at the host
before, and accuses nobody either.

What it does not show: which of the two; a switch that alters less than that, or behaves as long as it sees a new port
in its table; and where copies agree all the way it was at one of the ends, between a host and its switch. Threat: a
host that complains to keep the controller busy. A complaint changes no route, there is one search at a time with a
pause behind it, and a search has an end. A switch that lies to its verifying host is one of the pair that is named.

A busy flow has more copies than a report holds: all hosts choose alike, those of the least digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from tallystick.carriers.fabric.configurator import Configurator
from tallystick.carriers.fabric.requests import FlowKind, FlowRequest
from tallystick.carriers.fabric.route import ETHERTYPE_CONTROL, control, ethertype, read_control, read_publication
from tallystick.carriers.fabric.topology import is_probe, prove
from tallystick.carriers.fabric.trees import PortPlace
from tallystick.errors import Malformed, Refused
from tallystick.runtime.effects import Arrived, Effect, Event, Send, WakeAt

DIGEST_BYTES = 16
COPIES_MAX = 64  # of one report
REPORT_S = 0.25  # from one report to the next
COPIES_HEAD = bytes((1, 3))  # version and kind: 1 and 2 are probes (topology.py)


def copy_digest(payload: bytes) -> bytes:
    """Of what stays the same of a publication from hop to hop."""
    return sha256(payload).digest()[:DIGEST_BYTES]


# --- at the switches ---


class VerifyingHost:
    """A role at a host port. It proves that it is there, and reports the copies that come."""

    def __init__(self) -> None:
        self._copies: set[bytes] = set()
        self._report_at = 0.0

    def receive(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, Arrived):
            with suppress(Malformed):
                effects += self._hear(event.message)
        if self._copies and now >= self._report_at:
            report = COPIES_HEAD + bytes((len(self._copies),)) + b"".join(sorted(self._copies))
            effects.append(Send("wire", control(report)))
            self._copies, self._report_at = set(), now + REPORT_S
        return [*effects, WakeAt(self._report_at)] if self._copies else effects

    def _hear(self, frame: bytes) -> list[Effect]:
        if ethertype(frame) == ETHERTYPE_CONTROL:
            payload = read_control(frame)
            return [Send("wire", control(prove(payload)))] if is_probe(payload) else []
        self._copies.add(copy_digest(read_publication(frame)[1]))
        if len(self._copies) > COPIES_MAX:
            self._copies.remove(max(self._copies))
        return []


# --- at the controller ---


@dataclass(frozen=True)
class BlameLimits:
    pause_s: float = 60.0  # from one search to the next
    search_s: float = 120.0  # that one takes at most
    look_s: float = 3.0  # at each switch,
    wait_s: float = 10.0  # or this long where few copies come
    settle_s: float = 0.75  # a copy that is younger may not have been told of the switch before
    copies_min: int = 8  # that are compared
    flows_max: int = 8  # of the subscription


@dataclass(frozen=True)
class AlteringPair:
    """Copies differ between these two; without them, between one of the two hosts and its switch."""

    flow: bytes
    before: str
    to: str
    copies: int  # that were looked at
    differing: int

    def __str__(self) -> str:
        where = f"between {self.before} and {self.to}" if self.to else "at the publisher's own switch or the last"
        return f"altering: flow {self.flow.hex()} {where}, {self.differing} of {self.copies} copies"


@dataclass
class AlterationSearch:
    configurator: Configurator
    verifying: Mapping[str, int]  # by switch that has one: the port of its verifying host
    report: Callable[[AlteringPair], None]
    limits: BlameLimits = BlameLimits()

    def __post_init__(self) -> None:
        self._search: Iterator[None] = iter(())
        self._now = self._next_at = 0.0
        self._until = 0.0  # the end of the search under way
        self._seen: dict[str, dict[bytes, float]] = {}  # at the switch that is looked at and the one before: when
        self._most: dict[str, bytes] = {}  # by switch: up to this digest all copies are in its reports

    def complain(self, owner: str, subscription: bytes, now: float) -> None:
        """Begin a search for what alters a subscription's frames. Raises `Refused`."""
        it = self.configurator.book.subscriptions.get(subscription)
        if it is None or it.owner != owner:
            raise Refused("complaint: no subscription of this dispatcher's", reason="not-owner")
        self._check_rested(now)
        self._until = now + self.limits.search_s
        self._search = self._look(owner, sorted(it.pairs)[: self.limits.flows_max], subscription)

    def _check_rested(self, now: float) -> None:
        if now < max(self._next_at, self._until):
            raise Refused("complaint: a search is under way, or has just been", reason="searched")

    def heard(self, place: PortPlace, payload: bytes, now: float) -> None:
        """A verifying host's report. Raises `Malformed` and `Refused`."""
        count = payload[2] if len(payload) > 2 else 0
        ends = range(3, 3 + count * DIGEST_BYTES, DIGEST_BYTES)
        if not 0 < count <= COPIES_MAX or len(payload) < ends.stop:
            raise Malformed(f"copies: {count} in {len(payload)} bytes")
        if self.verifying.get(place.switch) != place.port or place.switch not in self._seen:
            raise Refused("copies that nobody asked for", reason="not-asked")
        copies = [payload[at : at + DIGEST_BYTES] for at in ends]
        if count == COPIES_MAX:
            self._most[place.switch] = min(self._most[place.switch], max(copies))
        for one in copies:
            self._seen[place.switch].setdefault(one, now)

    def step(self, now: float) -> None:
        """Do what is due."""
        self._now = now
        if self._until and next(self._search, self) is self:  # it has ended
            self._until, self._next_at, self._seen = 0.0, now + self.limits.pause_s, {}

    def _look(self, owner: str, flows: Sequence[bytes], subscription: bytes) -> Iterator[None]:
        """One flow after the other, each from switch to switch. Yields while it waits for copies."""
        limits, agreed = self.limits, None
        for flow in flows:
            before, copies, self._seen = "", 0, {}
            for switch in self._way(flow, subscription):
                self._seen[switch], self._most[switch] = {}, b"\xff" * DIGEST_BYTES
                self._verify(owner, flow, [before, switch] if before else [switch])
                began = self._now
                while self._now < min(self._until, began + limits.wait_s) and (
                    self._now < began + limits.look_s or len(self._settled(before, switch)) < limits.copies_min
                ):
                    yield
                if self._now >= self._until:
                    return
                found = self._settled(before, switch)
                differing = sum(one not in self._seen[before] for one in found) if before else 0
                if differing > max(2, len(found) // 20):
                    self.report(AlteringPair(flow, before, switch, len(found), differing))
                    return
                if len(found) >= limits.copies_min:  # else nobody is there, or says too little
                    before, copies, self._seen = switch, len(found), {switch: self._seen[switch]}
            if before:
                agreed = agreed or AlteringPair(flow, "", "", copies, 0)
        if agreed is not None:
            self.report(agreed)

    def _way(self, flow: bytes, subscription: bytes) -> list[str]:
        """The switches from a publisher's to a subscriber's that have a verifying host, as things are now."""
        book = self.configurator.book
        if flow not in book.flows or subscription not in book.subscriptions:
            return []
        tree, end = book.flows[flow].tree, book.subscriptions[subscription].request.switch
        return [one for one in tree.path(end) if one in self.verifying] if tree.covers(end) else []

    def _verify(self, owner: str, flow: bytes, switches: Iterable[str]) -> None:
        """Let the hosts at these switches get the flow too, while one is looked at. The dispatcher that owns the flow
        hears of subscriptions that it does not know, and ignores them."""
        until_ms = int((self._now + self.limits.wait_s + 1) * 1000)
        for one in switches:
            name, place = sha256(flow + one.encode()).digest()[:16], (one, self.verifying[one])
            asked = FlowRequest(FlowKind.SUBSCRIBE, name, *place, until_ms, 0, frozenset((flow,)))
            self.configurator.receive(owner, [asked])

    def _settled(self, before: str, switch: str) -> list[bytes]:
        """Its copies of which the switch before would have been heard, too."""
        until, most = self._now - self.limits.settle_s, min(self._most[one] for one in (before or switch, switch))
        return [one for one, at in self._seen[switch].items() if at <= until and one <= most]
