"""Parcels out under the labels of flows, and in under those of subscriptions; the two halves of an agent (`agent.py`).

A parcel goes under the flows of the subspaces that its labels name. Where these are unknown or many, it goes once,
under the flow that all who match get: never a subscriber too few. What it is sealed under is another handle for each
flow, so that two flows have no bytes in common.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.fabric.control import SealedAsk
from tallystick.carriers.fabric.fragments import FabricKey, FlowPlace, FragmentHead, seal_parcel
from tallystick.carriers.fabric.reassembly import Reassemblies, ReassemblyLimits
from tallystick.carriers.fabric.repair import RepairLimits, RepairTimes, Resent, seal_request
from tallystick.carriers.fabric.route import ROUTE_BYTES, RouteHeader, publication
from tallystick.parcel.header import Header
from tallystick.parcel.labels import Labeller
from tallystick.parcel.parcel import Parcel
from tallystick.policy.clustering import read_part
from tallystick.runtime.sources import Entropy
from tallystick.trust.fabric import FabricAnswer
from tallystick.trust.permit import Operation

ROUTES_ASKED_MAX = 8  # labels along which a repair is asked for, where the flow is not known
FLOWS_MAX = 4_096  # whose newest parcel is remembered


@dataclass(frozen=True)
class AgentLimits:
    mtu: int = 1_500  # of what follows the Ethernet header
    group: int = 8  # fragments to one of parity; 0 for none
    reassembly: ReassemblyLimits = field(default_factory=ReassemblyLimits)
    repair: RepairLimits = field(default_factory=RepairLimits)
    burst: int = 64  # frames that leave at once, before what came is heard
    waiting_max: int = 32_768  # frames that wait to leave, some 50 MB
    again_s: float = 1.0  # after which a request without an answer goes again
    tries_max: int = 64  # ever further apart: within a quarter of an hour
    refresh_s: float = 300.0  # after which labels are asked for again: a dispatcher tells new ones once
    complain_s: float = 10.0  # between two complaints about one subscription, and two questions for lacking labels
    flows_max: int = 3  # that one parcel goes under; beyond that it goes under the one for all


@dataclass
class AgentRequest:
    """A request of the principal, and what the dispatcher said last."""

    operation: Operation | None
    token: bytes
    asked: SealedAsk
    labellers: Mapping[int, Labeller] = field(default_factory=dict)  # of a publisher, by the topic's epoch
    answer: FabricAnswer | None = None
    permit: bytes = b""  # its identifier
    before: FabricAnswer | None = field(init=False, default=None)  # of the route epoch before
    again_at: float = field(init=False, default=0.0)
    tries: int = field(init=False, default=0)
    complain_at: float = field(init=False, default=0.0)  # before which nothing more is said of altered frames

    @property
    def has_labels(self) -> bool:
        return self.answer is not None and not self.answer.refused and bool(self.answer.send)

    def flows_of(self, header: Header, most: int) -> list[tuple[bytes, bytes]]:
        """(flow, label) under which a parcel goes."""
        sent = self.answer.send if self.answer is not None else ()
        epoch = next((topic.epoch for topic in header.topics if topic.token == self.token), 0)
        labeller, labels = self.labellers.get(epoch), set(header.labels)
        found = [
            (flow, label)
            for flow, subspace, label in sent
            if subspace and labeller is not None and labeller.label(*read_part(subspace)) in labels
        ]
        return found if 0 < len(found) <= most else [(flow, label) for flow, subspace, label in sent if not subspace]


class FlowSender:
    """What goes out, and goes again for those who lack some of it."""

    def __init__(self, entropy: Entropy, limits: AgentLimits) -> None:
        self._entropy, self._limits = entropy, limits
        self._previous: dict[bytes, bytes] = {}  # handle, by flow
        self.sent = Resent(limits.repair)

    def frames(self, one: AgentRequest, key: FabricKey, pushed: Pushed, now: float) -> Iterator[bytes]:
        """A parcel's, for each of its flows."""
        assert one.answer is not None
        header = Parcel.decode_front(pushed.parcel).header
        for flow, label in one.flows_of(header, self._limits.flows_max):
            place = FlowPlace(flow, self._previous.get(flow, bytes(16)))
            size, group = self._limits.mtu - ROUTE_BYTES, self._limits.group
            sealed = seal_parcel(pushed, key, place, self._entropy.bytes(32), size, group)
            self._previous[flow] = sealed.handle
            route = RouteHeader(one.answer.epoch, label)
            frames = [publication(route, payload) for payload in sealed.payloads]
            self.sent.keep(sealed.handle, frames, now)
            yield from frames


class FlowReceiver:
    """What comes, and is asked for where some of it does not."""

    def __init__(self, random: Random, entropy: Entropy, limits: AgentLimits) -> None:
        self._entropy, self._wait_s, self._soon_s = entropy, limits.reassembly.wait_s, limits.complain_s
        self.parcels = Reassemblies(limits.reassembly)
        self.times = RepairTimes[tuple[AgentRequest, FabricKey, bytes]](random, limits.repair)
        self._newest: OrderedDict[bytes, bytes] = OrderedDict()  # handle, by flow

    def take(self, one: AgentRequest, key: FabricKey, head: FragmentHead, piece: bytes, now: float) -> Pushed | None:
        """The parcel, if this was the last fragment that was needed. Raises `Malformed`, or `Forged` if altered."""
        parcel = self.parcels.find(head, len(piece), now)
        if parcel is None:
            return None
        pushed = self.parcels.put(parcel, head, piece, now)
        flow = b"" if parcel.place is None else parcel.place.flow
        if pushed is None:
            self.times.expect(head.handle, (one, key, flow), now)
        else:
            self.times.came(head.handle)
        if parcel.place is not None and self._newest.get(flow) != head.handle:
            self._miss(parcel.place, (one, key, flow), now)
            self._newest[flow] = head.handle
            self._newest.move_to_end(flow)
        return pushed

    def _miss(self, place: FlowPlace, along: tuple[AgentRequest, FabricKey, bytes], now: float) -> None:
        """The parcel before this one, if nothing of it came though others of its flow did."""
        if place.flow in self._newest and any(place.previous) and not self.parcels.knows(place.previous):
            self.times.expect(place.previous, along, now)
        if len(self._newest) > FLOWS_MAX:
            self._newest.popitem(last=False)

    def requests(self, now: float) -> list[bytes]:
        """The frames that ask for what is missing."""
        self.parcels.give_up(now)
        frames: list[bytes] = []
        for handle, along in self.times.due(now):
            parcel = self.parcels.open.get(handle)
            if parcel is None and self.parcels.knows(handle):  # given up meanwhile
                self.times.came(handle)
            elif asked := self._ask(handle, *along, () if parcel is None else parcel.missing):
                frames += asked
            else:  # what the dispatcher told of this flow was lost
                along[0].again_at = min(along[0].again_at, now + self._soon_s)
        return frames

    def _ask(self, handle: bytes, one: AgentRequest, key: FabricKey, flow: bytes, lacks: Sequence[int]) -> list[bytes]:
        epoch, told = (one.answer.epoch, one.answer.send) if one.answer is not None else (0, ())
        labels = [label for name, _, label in told if name == flow] or [label for *_, label in told]
        payload = seal_request(key, handle, lacks, self._entropy.bytes(16))
        return [publication(RouteHeader(epoch, label), payload) for label in labels[:ROUTES_ASKED_MAX]]

    @property
    def next_at(self) -> float | None:
        oldest = next(iter(self.parcels.open.values()), None)
        ends = None if oldest is None else oldest.began + self._wait_s
        return min((at for at in (ends, self.times.next_at) if at is not None), default=None)
