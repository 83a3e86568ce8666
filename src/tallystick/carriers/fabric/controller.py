"""The operator's controller: the configurator on real switches, one step after the other.

A step takes what came (packet-ins, dispatchers' frames), and does what is due: keep the lease, send probes, look at the
counters, let the configurator tick. One thread makes the steps, so nothing here is done twice at once; drivers and
dispatchers put what they have into a bounded inbox from threads of their own.

Control frames that are no probes are a host's sealed pieces: they go, with the port where they came in, to the
dispatcher that they name, if there is one. A dispatcher routes to and from ports whose hosts have spoken to it, so that
none sends its flows to another's hosts. What a dispatcher sends to hosts leaves by host ports only, so that none can
speak to another switch in the controller's place. Whoever loses the lease, or is refused as superseded, forgets
everything: the next to lead begins with what the switches hold and what dispatchers repeat.

Loss of all controllers stops nothing that is under way: switches go on with the rules they have.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tallystick.carriers.fabric.blaming import COPIES_HEAD, AlterationSearch, AlteringPair, BlameLimits
from tallystick.carriers.fabric.configurator import Configurator, ConfiguratorSettings, ConfiguratorStatistics
from tallystick.carriers.fabric.control import ControlPiece
from tallystick.carriers.fabric.floods import FloodLimits, FlowExcess, GuessingPort, RateWatch
from tallystick.carriers.fabric.installing import FlowInstaller
from tallystick.carriers.fabric.requests import FlowAnswer, FlowKind, FlowRequest, PortPiece, read_frame, wrap
from tallystick.carriers.fabric.route import control, read_control
from tallystick.carriers.fabric.rules import Superseded, SwitchDriver
from tallystick.carriers.fabric.topology import FabricTopology, ProbeLimits, is_probe
from tallystick.carriers.fabric.trees import PortPlace
from tallystick.errors import Refused, Unavailable, counted
from tallystick.runtime.router import Buckets, Rate
from tallystick.runtime.sources import Clock, Entropy
from tallystick.runtime.steps import Steps

log = logging.getLogger(__name__)

Finding = FlowExcess | GuessingPort | AlteringPair
INBOX_MAX = 16_384  # frames of ports and dispatchers that wait; what is beyond is dropped, and sent again by its sender


@dataclass(frozen=True)
class ControllerSettings:
    ports: Mapping[str, Collection[int]]  # of each switch: those that may carry something
    declared: Collection[tuple[PortPlace, PortPlace]] | None = None  # the only links that are believed
    dispatchers: Collection[str] = ()  # hex of the nodes that may ask
    verifying: Mapping[str, int] = field(default_factory=dict)  # by switch: where a verifying host is (blaming.py)
    configurator: ConfiguratorSettings = field(default_factory=ConfiguratorSettings)
    probes: ProbeLimits = field(default_factory=ProbeLimits)
    floods: FloodLimits = field(default_factory=FloodLimits)
    blame: BlameLimits = field(default_factory=BlameLimits)
    drain_s: float = 0.05
    step_s: float = 0.05  # at the latest after this the next step


class Dispatchers(Protocol):
    """Who hears the controller."""

    def send(self, owner: str, data: bytes) -> None: ...

    def repeat(self) -> None:
        """A controller has begun to lead: everybody is to ask again for what stands."""


@dataclass(frozen=True)
class ControllerStatistics:
    fence: int  # 0 while another leads
    configurator: ConfiguratorStatistics | None
    links: int
    packet_ins: int
    dropped: Mapping[str, int]  # packet-ins and frames, by reason
    findings: tuple[Finding, ...]  # the newest


@dataclass
class FabricController:
    key: bytes = field(repr=False)
    drivers: Mapping[str, SwitchDriver]  # whose packet-ins come here
    lease: Callable[[int], int | None]  # at a time in ms: the fencing number, while we hold the lease
    dispatchers: Dispatchers
    clock: Clock
    entropy: Entropy
    settings: ControllerSettings

    def __post_init__(self) -> None:
        settings, entropy = self.settings, self.entropy.bytes
        self.topology = FabricTopology(self.key, settings.ports, entropy, settings.probes, settings.declared)
        self._rate = Rate(settings.floods.packet_ins_per_s, settings.floods.packet_ins_burst)
        self._rates = Buckets[PortPlace](65_536)
        self._inbox: deque[tuple[PortPlace | str, bytes]] = deque()  # (port or dispatcher, frame)
        self._lock = threading.Lock()
        self._steps = Steps(self.step, settings.step_s, "fabric controller")
        self.start, self.stop = self._steps.start, self._steps.stop
        self.configurator: Configurator | None = None  # while we lead
        self._watch: RateWatch  # and these, too
        self._search: AlterationSearch
        self._fence = self._beaten = self._packet_ins = 0
        self._spoken: dict[PortPlace, set[str]] = {}  # the dispatchers that each port's host has asked
        self._dropped: Counter[str] = Counter()
        self._findings: deque[Finding] = deque(maxlen=64)
        self._probe_at = self._poll_at = 0.0
        for driver in self.drivers.values():
            driver.listen(partial(self._heard, driver.name))

    # --- what comes, on threads of others ---

    def _heard(self, switch: str, port: int, frame: bytes) -> None:
        place = PortPlace(switch, port)
        with self._lock:
            self._packet_ins += 1
            if not self._admits(place):
                self._dropped["packet-in-rate"] += 1
                return
        self.receive(place, frame)

    def _admits(self, place: PortPlace) -> bool:
        return self._rates.charge(place, self._rate, 1, self.clock.now()) == 0

    def receive(self, sender: PortPlace | str, data: bytes) -> None:
        """A frame of a port's, or of a dispatcher's: a request about flows, or a piece that is to leave by a port."""
        with self._lock:
            if len(self._inbox) >= INBOX_MAX:
                self._dropped["inbox-full"] += 1
                return
            self._inbox.append((sender, data))
        self._steps.wake()

    # --- steps ---

    def step(self) -> None:
        """Do what is due. Whoever is superseded while it does so leads no more."""
        now = self.clock.now()
        fence = self.lease(int(now * 1000))
        if fence is not None and fence <= self._beaten:
            fence = None  # the lease says otherwise than the switches, who have the last word
        try:
            if fence != (self._fence or None):
                self._change(fence)
            if self.configurator is None:
                self._inbox.clear()  # it is for whoever leads
            else:
                self._take_inbox(self.configurator, now)
                self._work(self.configurator, now)
        except Superseded:
            self._dropped["superseded"] += 1
            self._beaten = max(self._beaten, fence or 0)
            self._change(None)

    def _change(self, fence: int | None) -> None:
        """Lead under this number, or no more."""
        self._fence, self.configurator = fence or 0, None
        if fence is None:
            return
        settings = self.settings
        installer = FlowInstaller(self.drivers, self.clock.pause, settings.drain_s, self._aside)
        tools = installer, self._tell, self._is_host, self.clock.now
        configurator = Configurator(self.key, *tools, settings.configurator)
        configurator.lead(fence)
        self.configurator, self._watch = configurator, RateWatch(settings.floods)
        self._search = AlterationSearch(configurator, settings.verifying, self._find, settings.blame)
        self.dispatchers.repeat()

    def _is_host(self, place: PortPlace) -> bool:
        return self.topology.is_host(place, self.clock.now())

    def _tell(self, owner: str, answer: FlowAnswer) -> None:
        self.dispatchers.send(owner, wrap(answer))

    def _work(self, configurator: Configurator, now: float) -> None:
        if now >= self._probe_at:
            self._probe_at = now + self.settings.probes.probe_s
            for place, frame in self.topology.probe(now):
                self._out(place, frame)
        if (wiring := self.topology.wiring(now)) != configurator.wiring:
            configurator.rewire(wiring)
        if now >= self._poll_at:
            self._poll_at = now + self.settings.floods.poll_s
            self._poll(configurator, now)
        configurator.tick()
        self._search.step(now)

    def _poll(self, configurator: Configurator, now: float) -> None:
        counters, unmatched = {}, {}
        for name in self.drivers.keys() - configurator.installer.doubtful:
            try:
                counters[name], unmatched[name] = self.drivers[name].counters(), self.drivers[name].unmatched()
            except Unavailable:
                configurator.doubt(name)
        for finding in self._watch.poll(configurator.book, counters, now, unmatched):
            self._find(finding)
            if isinstance(finding, FlowExcess):
                configurator.stop(finding.flow, finding.what)

    def _find(self, finding: Finding) -> None:
        log.warning("%s", finding)
        self._findings.append(finding)

    # --- the inbox ---

    def _take_inbox(self, configurator: Configurator, now: float) -> None:
        """What one dispatcher asked is asked at once; what dispatchers asked, of flows of their own, does not cross."""
        asked: dict[str, list[FlowRequest]] = {}
        for _ in range(len(self._inbox)):
            sender, data = self._inbox.popleft()
            with counted(self._dropped):
                if isinstance(sender, PortPlace):
                    self._from_port(sender, data, now)
                elif (said := self._said(configurator, sender, data, now)) is not None:
                    asked.setdefault(sender, []).append(said)
        for owner, requests in asked.items():
            configurator.receive(owner, requests)

    def _from_port(self, place: PortPlace, frame: bytes, now: float) -> None:
        payload = read_control(frame)
        if is_probe(payload):
            self.topology.receive(place, payload, now)
        elif payload.startswith(COPIES_HEAD):
            self._search.heard(place, payload, now)
        else:
            owner = ControlPiece.decode(payload).party.hex()
            self._check_known(owner)
            self._spoken.setdefault(place, set()).add(owner)
            self.dispatchers.send(owner, PortPiece(*place, payload).encode())

    def _check_known(self, owner: str) -> None:
        if owner not in self.settings.dispatchers:
            raise Refused("dispatcher: nobody knows it", reason="unknown-dispatcher")

    def _said(self, configurator: Configurator, owner: str, data: bytes, now: float) -> FlowRequest | None:
        self._check_known(owner)
        said = read_frame(data)
        if isinstance(said, PortPiece):
            place = PortPlace(said.switch, said.port)
            if not self._is_host(place):
                raise Refused("dispatcher: a piece for a port that is no host's", reason="not-a-host-port")
            ControlPiece.decode(said.payload)
            self._out(place, control(said.payload))
        elif isinstance(said, FlowRequest) and said.kind is FlowKind.COMPLAIN:
            self._search.complain(owner, said.identifier, now)
        elif isinstance(said, FlowRequest) and self._may_use(configurator, owner, said):
            return said
        return None

    def _may_use(self, configurator: Configurator, owner: str, request: FlowRequest) -> bool:
        """Whether the host at the request's port has asked this dispatcher for anything. A successor, which has heard
        no host yet, takes their word for what stands."""
        place = PortPlace(request.switch, request.port)
        if configurator.is_gathering and place in self.topology.hosts():
            self._spoken.setdefault(place, set()).add(owner)
        has_spoken = owner in self._spoken.get(place, ())
        if request.kind is FlowKind.WITHDRAW or has_spoken or not self._is_host(place):  # the configurator refuses that
            return True
        self._tell(owner, FlowAnswer(request.identifier, refused="not-asked"))
        return False

    def _out(self, place: PortPlace, frame: bytes) -> None:
        if (driver := self.drivers.get(place.switch)) is not None:
            with suppress(Unavailable):
                driver.packet_out(place.port, frame)

    def _aside(self, work: Callable[[], None]) -> None:
        asking = threading.Thread(target=work, name="fabric switch asked", daemon=True)
        (asking.start if self._steps.is_running else work)()  # where steps are made by hand, at once

    def statistics(self) -> ControllerStatistics:
        leading = self.configurator
        told, links = (None, 0) if leading is None else (leading.statistics(), len(leading.wiring.links))
        counted = self._packet_ins, dict(self._dropped), tuple(self._findings)
        return ControllerStatistics(self._fence, told, links, *counted)
