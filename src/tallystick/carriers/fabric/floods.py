"""Floods: a port that keeps the controller busy, a label above its permit's rate.

Threats. Every control frame becomes a packet-in, so one host could take all of the controller's time: each port has a
bucket, what is beyond is dropped before it is looked at, and counted. A publisher, or whoever stole its label, sends
faster than its permit allows: counters are polled, and a flow above its rate loses its first rule, so that its frames
go no further than the first switch; a label up that is used faster than its flow loses its rule at that switch. Until
the next poll the flood goes through: `FlowExcess` says how long that was at most, and how many frames went out of how
many ports. A host that guesses labels hits nothing at 128 bits, and no rule counts what it sends: its switch does, by
port, and a port above a limit is named. A publisher to whom nobody has subscribed sends under a label that no rule has,
as fast as its permit allows: that much is its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tallystick.carriers.fabric.flows import FlowBook
from tallystick.carriers.fabric.rules import RuleKey
from tallystick.carriers.fabric.trees import PortPlace

CountersBySwitch = Mapping[str, Mapping[RuleKey, tuple[int, int]]]  # (packets, bytes) of each rule
UnmatchedBySwitch = Mapping[str, Mapping[int, int]]  # frames under labels that nobody knows, by port


@dataclass(frozen=True)
class FloodLimits:
    packet_ins_per_s: float = 20.0  # of one port: a host's few requests, each of some pieces, and a proof a second
    packet_ins_burst: float = 64.0
    poll_s: float = 1.0  # from one look at the counters to the next
    slack: float = 1.25  # times the rate: what a burst may do between two looks
    guesses_per_s: float = 50.0  # frames of one port under labels that nobody knows: some are late at every change


@dataclass(frozen=True)
class FlowExcess:
    """A flow above its rate, and what to stop: "down", or the switch of the rule up."""

    flow: bytes
    what: str
    rate: float  # frames a second since the last look
    reaction_s: float  # at most, from the first frame too many to this look
    frames: int  # since the last look
    ports: int  # that each of them left by, in the whole fabric

    def __str__(self) -> str:
        return f"flood: flow {self.flow.hex()} {self.what}, {self.rate:.0f} frames a second to {self.ports} ports"


@dataclass(frozen=True)
class GuessingPort:
    """A port where more frames came in under labels that nobody knows than its hosts may send to nobody."""

    place: PortPlace
    rate: float  # frames a second since the last look
    frames: int  # since the switch started

    def __str__(self) -> str:
        where = f"port {self.place.port} of {self.place.switch}"
        return f"guessing: {where}, {self.rate:.0f} frames a second under labels that nobody knows"


class RateWatch:
    """Compares what switches counted with what permits allow."""

    def __init__(self, limits: FloodLimits = FloodLimits()) -> None:
        self._limits = limits
        self._last: dict[tuple[str, RuleKey], int] = {}
        self._guessed: dict[PortPlace, int] = {}
        self._guessing: set[PortPlace] = set()
        self._since = 0.0

    def poll(
        self, book: FlowBook, counters: CountersBySwitch, now: float, unmatched: UnmatchedBySwitch
    ) -> list[FlowExcess | GuessingPort]:
        """The flows to stop, and the ports that have begun to guess. `counters` are those of every switch that
        answered, `unmatched` the frames of its ports that no rule was for."""
        passed, self._since = now - self._since, now
        seen: dict[tuple[str, RuleKey], int] = {}
        sent: Counter[tuple[bytes, str]] = Counter()
        for switch, rule, meaning in book.placed():
            counted = counters.get(switch, {}).get(rule.key)
            if meaning is not None and counted is not None:
                seen[switch, rule.key] = counted[0]
                sent[meaning] += max(0, counted[0] - self._last.get((switch, rule.key), 0))
        self._last = seen
        found: list[FlowExcess | GuessingPort] = [*self._guesses(book, unmatched, passed)]
        for (identifier, what), frames in sent.items():
            flow = book.flows[identifier]
            if passed > 0 and frames > max(1, flow.request.rate * self._limits.slack * passed):
                ports = sum(len(one.hosts) for one in flow.branches.values()) if what == "down" else 1
                found.append(FlowExcess(identifier, what, frames / passed, passed, frames, ports))
        return found

    def _guesses(self, book: FlowBook, unmatched: UnmatchedBySwitch, passed: float) -> list[GuessingPort]:
        """The ports that have begun to guess."""
        counts = {PortPlace(switch, port): n for switch, ports in unmatched.items() for port, n in ports.items()}
        rates = {place: (n - self._guessed.get(place, n)) / passed for place, n in counts.items() if passed > 0}
        self._guessed = counts
        allowed = dict.fromkeys(rates, self._limits.guesses_per_s)
        for flow in book.flows.values():
            if flow.place in allowed and (not flow.branches or flow.stopped):
                allowed[flow.place] += flow.request.rate * self._limits.slack
        above = {place for place, rate in rates.items() if rate > allowed[place]}
        begun, self._guessing = above - self._guessing, above
        return [GuessingPort(place, rates[place], counts[place]) for place in sorted(begun)]
