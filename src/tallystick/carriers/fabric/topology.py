"""Which port leads where: probes that the controller sends through the switches and gets back.

Every so often a probe leaves every port: a control frame (EtherType 0x9003) with a nonce, an expiry and the
controller's tag over both and the port it leaves by. Where it arrives the next switch hands it to the controller, which
then knows one direction of a link and how long it took; a link is believed when both directions were heard. A host that
hears a probe sends it back as a *proof*: at this port somebody hears what is sent there. The frame names no switch and
no port, so hosts learn nothing about the fabric.

Threats, and what each meets. *Forged* probes: a nonce that was not drawn, a tag that does not hold, an expiry that has
passed. *Replayed* ones: a nonce counts once; at its second arrival what it showed is forgotten. *Relayed* ones, by
hosts that carry a probe from one port to another and so feign a link through which flows would go: a port is a host's
or a link's, never both, so one at which a host proved itself is no link's until the controller starts again; a probe
that took longer than `latency_max_s` is late; and with declared wiring, no other link is believed. *A switch that lies*
about where a probe came in: the other direction contradicts it. It can still rename its own ports, or hand probes on
unseen and be a piece of wire: then it carries what it would have carried, and opens nothing. Without declared wiring
that is not noticed, nor is a relay between two ports at which no host ever proved itself.

Latencies are jittery, and trees go by them: one is taken over only when it has doubled or halved.
"""

from __future__ import annotations

import hmac
import struct
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick.carriers.fabric.route import control
from tallystick.carriers.fabric.trees import FabricLink, PortPlace, Wiring
from tallystick.crypto.symmetric import derive
from tallystick.errors import Forged, Malformed, Refused

PROBE_VERSION = 1
PROBE_KIND, PROOF_KIND = 1, 2
NONCE_BYTES = TAG_BYTES = 16
_PROBE = struct.Struct("!BB16sQ16s")
PROBE_BYTES = _PROBE.size


@dataclass(frozen=True)
class ProbeLimits:
    probe_s: float = 1.0  # from one round to the next
    expiry_s: float = 2.0  # of a probe
    lost_s: float = 3.5  # after which a link or a host that was not heard again is lost: three rounds
    latency_max_s: float = 0.5  # of a link, with the way through the controller


class Probe(NamedTuple):
    kind: int
    nonce: bytes
    expiry_ms: int
    tag: bytes

    def encode(self) -> bytes:
        return _PROBE.pack(PROBE_VERSION, *self)

    @classmethod
    def decode(cls, payload: bytes) -> Probe:
        """From the first bytes of a control frame's payload. Raises `Malformed`."""
        if len(payload) < PROBE_BYTES or not is_probe(payload):
            raise Malformed(f"probe: {PROBE_BYTES} bytes of a probe or a proof expected, found {len(payload)}")
        return cls(*_PROBE.unpack_from(payload)[1:])


def is_probe(payload: bytes) -> bool:
    """Whether a control frame's payload is a probe's or a proof's."""
    return len(payload) >= 2 and payload[0] == PROBE_VERSION and payload[1] in (PROBE_KIND, PROOF_KIND)


def prove(payload: bytes) -> bytes:
    """What a host answers to a probe, at the port where it heard it. Raises `Malformed`."""
    return Probe.decode(payload)._replace(kind=PROOF_KIND).encode()


class _Heard(NamedTuple):
    end: PortPlace
    at: float
    latency_us: int


@dataclass
class FabricTopology:
    key: bytes = field(repr=False)
    ports: Mapping[str, Collection[int]]  # of each switch: those that may carry something
    entropy: Callable[[int], bytes]  # so many random bytes
    limits: ProbeLimits = ProbeLimits()
    declared: Collection[tuple[PortPlace, PortPlace]] | None = None  # the only links that are believed, if any are

    def __post_init__(self) -> None:
        self._places = [PortPlace(switch, port) for switch in sorted(self.ports) for port in sorted(self.ports[switch])]
        self._declared = None if self.declared is None else {frozenset(one) for one in self.declared}
        self._sent: dict[bytes, tuple[PortPlace, float]] = {}  # by nonce: where it left, and when
        self._arrived: set[bytes] = set()  # of these
        self._ends: dict[PortPlace, _Heard] = {}  # by the port that a probe left
        self._hosts: dict[PortPlace, float] = {}  # when they last proved themselves; stays
        self._links: dict[frozenset[PortPlace], FabricLink] = {}
        self.reports: Counter[tuple[PortPlace, str]] = Counter()  # by port and reason

    # --- probes ---

    def probe(self, now: float) -> list[tuple[PortPlace, bytes]]:
        """A round: the frames to send, each out of its port."""
        self._sent = {nonce: sent for nonce, sent in self._sent.items() if now - sent[1] < self.limits.expiry_s}
        self._arrived &= self._sent.keys()
        frames = []
        expiry_ms = int((now + self.limits.expiry_s) * 1000)
        for place in self._places:
            nonce = self.entropy(NONCE_BYTES)
            self._sent[nonce] = place, now
            probe = Probe(PROBE_KIND, nonce, expiry_ms, self._tag(place, nonce, expiry_ms))
            frames.append((place, control(probe.encode())))
        return frames

    def receive(self, place: PortPlace, payload: bytes, now: float) -> None:
        """A probe or a proof that a switch says came in at this port. Raises `Refused`; it is counted by port."""
        try:
            probe = Probe.decode(payload)
            take = self._prove if probe.kind == PROOF_KIND else self._arrive
            take(place, *self._check(probe, now), now)
        except Refused as error:
            self.reports[place, error.reason] += 1
            raise

    def _check(self, probe: Probe, now: float) -> tuple[PortPlace, float]:
        """Where it left, and when."""
        sent = self._sent.get(probe.nonce)
        if sent is None or not hmac.compare_digest(probe.tag, self._tag(sent[0], probe.nonce, probe.expiry_ms)):
            raise Forged("probe: no such nonce was sent, or its tag does not hold")
        if probe.expiry_ms <= now * 1000:
            raise Refused("probe: it has expired", reason="expired")
        if probe.nonce in self._arrived:
            if probe.kind == PROBE_KIND:  # somebody repeats it: which arrival was the true one?
                self._ends.pop(sent[0], None)
            raise Refused("probe: it has arrived before", reason="replayed")
        self._arrived.add(probe.nonce)
        return sent

    def _prove(self, place: PortPlace, left: PortPlace, at: float, now: float) -> None:
        if left != place:
            raise Refused("proof: of another port", reason="other-port")
        self._check_role(place, is_host=True)
        self._hosts[place] = now

    def _arrive(self, place: PortPlace, left: PortPlace, at: float, now: float) -> None:
        for end in (place, left):
            self._check_role(end, is_host=False)
        if now - at > self.limits.latency_max_s:
            raise Refused(f"probe: {now - at:.3f} s under way", reason="late")
        if self._declared is not None and frozenset((place, left)) not in self._declared:
            raise Refused("probe: no such link was declared", reason="not-declared")
        self._ends[left] = _Heard(place, now, max(1, round((now - at) * 1e6)))

    def _check_role(self, place: PortPlace, *, is_host: bool) -> None:
        """A port is a host's or a link's, never both."""
        is_link = any(place in pair for pair in self._links)
        if (is_host and is_link) or (not is_host and place in self._hosts):
            raise Refused(f"port {place.port} of {place.switch}: a host's or a link's, not both", reason="port-role")

    def _tag(self, place: PortPlace, nonce: bytes, expiry_ms: int) -> bytes:
        context = place.switch.encode(), place.port, nonce, expiry_ms
        return derive(self.key, "tallystick probe 1", *context)[:TAG_BYTES]

    # --- what is known ---

    def wiring(self, now: float) -> Wiring:
        """The links that were heard both ways of late."""
        links: dict[frozenset[PortPlace], FabricLink] = {}
        recent = {one: heard for one, heard in self._ends.items() if now - heard.at <= self.limits.lost_s}
        for one, (end, _, latency) in recent.items():
            back = recent.get(end)
            if back is not None and self._both_ways(one, back) and one != end:
                pair, latency = frozenset((one, end)), min(latency, back.latency_us)
                new = FabricLink.of(one, end, latency)
                old = self._links.get(pair, new)
                links[pair] = old if old.latency_us / 2 < latency < old.latency_us * 2 else new
        self._links = links
        return Wiring.of(self.ports, links.values())

    def _both_ways(self, one: PortPlace, back: _Heard) -> bool:
        return back.end == one

    def is_host(self, place: PortPlace, now: float) -> bool:
        """Whether a host proved itself there of late."""
        return now - self._hosts.get(place, float("-inf")) <= self.limits.lost_s

    def hosts(self) -> list[PortPlace]:
        """Ports at which a host has ever proved itself."""
        return list(self._hosts)
