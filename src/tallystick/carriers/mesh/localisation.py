"""Where a topic is published: advertisements flood the graph and leave triples (t_a, h, v) behind (AnonPubSub 4.3).

A publisher sends its advertisement with the first value of its chain to all neighbours. Whoever takes it notes which
value came from which neighbour, and passes on one step of the nearest. A later copy that is no nearer goes no further,
so loops and duplicates end (Fig. 3). The neighbour of the nearest value is the next hop towards this publisher; when it
is lost the next by chain takes its place, and the others hear of the new value. A failure counts as undoing: whoever
has no way left says so, and says it to the next hop itself as well (LOST), so that two nodes do not send each other in
circles. Longer circles end with the chain, which has at most 128 steps, and with the next refresh.

Publishers send again from time to time, with a later expiry; nodes repeat what they know to their neighbours every
`retell_s`, and a value that is not repeated is forgotten. So nothing depends on one message. Messages may overtake each
other, and the older of two values would then stand until the next time: so a value that changed is repeated soon.

Threat: advertisements that fill the tables. Each is signed by a publisher whom the authority certified for one
pseudonym and epoch, and such a key has one advertisement at a time. A topic has at most `publishers_max`, and what one
neighbour was first to bring is bounded; what is beyond is refused with the reason. One that was taken back, which only
its publisher's secret value can do, is remembered until it would have expired. What liars can do about h is in
`advertisement.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick.carriers.mesh.advertisement import ADVERTISEMENT_BYTES_MAX, VALUE_BYTES, Advertisement, step
from tallystick.carriers.mesh.frames import MeshFrame, MeshKind, tell
from tallystick.errors import Refused
from tallystick.runtime.effects import Send

HANDLE_BYTES = 16
UNDO_BYTES = 32


@dataclass(frozen=True)
class LocalisationLimits:
    advertised_max: int = 512  # publishers in all: at `retell_s` two cells a second on each link
    brought_max: int = 256  # of these, those that one neighbour brought first
    publishers_max: int = 64  # of one topic
    undone_max: int = 4_096  # remembered as taken back
    undone_s: float = 7200.0  # after which none that was taken back would count any more: twice the longest expiry
    retell_s: float = 300.0  # after which neighbours hear it again
    settle_s: float = 5.0  # after which they do where the value has changed: some link beats, with what was resent
    stale_s: float = 1000.0  # after which a value is forgotten that was not repeated: three times in a row


class HopValue(NamedTuple):
    """A triple, without its topic."""

    h: bytes
    steps: int  # left to the anchor: more are nearer
    until: float


@dataclass
class KnownPublisher:
    advertisement: Advertisement
    data: bytes
    brought_by: bytes
    first: bytes | None = None  # h₀, where it is our own
    ways: dict[bytes, HopValue] = field(default_factory=dict)  # by neighbour
    told: dict[bytes, bytes] = field(default_factory=dict)  # the value that each neighbour has from us
    told_at: float = 0.0

    @property
    def next_hop(self) -> bytes | None:
        """The neighbour nearest to it; of two, the one that was there first."""
        return max(self.ways, key=lambda one: self.ways[one].steps, default=None)

    @property
    def value(self) -> bytes | None:
        """What we pass on."""
        if self.first is not None:
            return self.first
        hop = self.next_hop
        return step(self.ways[hop].h) if hop is not None else None


class Localisation:
    """What one node knows of publishers. `check` is the guard's word on an advertisement and a value, `graph` gives the
    neighbours to which advertisements go."""

    def __init__(
        self,
        check: Callable[[Advertisement, bytes, int], int],
        graph: Callable[[], Sequence[bytes]],
        limits: LocalisationLimits = LocalisationLimits(),
    ) -> None:
        self._check, self._graph, self._limits = check, graph, limits
        self.known: dict[bytes, KnownPublisher] = {}
        self._by_topic: dict[bytes, dict[bytes, None]] = {}
        self._undone: OrderedDict[bytes, float] = OrderedDict()  # by handle: when

    def publishers(self, pseudonym: bytes) -> list[bytes]:
        """The handles of those who advertise a topic, us included."""
        return list(self._by_topic.get(pseudonym, ()))

    def next_hops(self, pseudonym: bytes) -> dict[bytes, bytes]:
        """For each publisher of a topic but ourselves the neighbour that is nearest to it, where there is one."""
        found = {}
        for handle in self.publishers(pseudonym):
            it = self.known[handle]
            if it.first is None and (hop := it.next_hop) is not None:
                found[handle] = hop
        return found

    # --- our own ---

    def advertise(self, advertisement: Advertisement, first: bytes, now: float) -> list[Send]:
        """Flood our own, or refresh it."""
        it = KnownPublisher(advertisement, advertisement.encode(), b"", first, told_at=now)
        if (old := self.known.get(advertisement.identifier)) is not None:
            it.ways, it.told = {}, dict.fromkeys(old.told, b"")
        self._keep(it)
        return self._settle(it)

    def unadvertise(self, handle: bytes, preimage: bytes, now: float) -> list[Send]:
        """Take our own back."""
        return self._undo(handle, preimage, b"", now)

    # --- what neighbours say ---

    def receive(self, frame: MeshFrame, sender: bytes, now: float) -> list[Send]:
        """Raises `Refused`."""
        match frame.kind:
            case MeshKind.ADVERTISE:
                fields = frame.fields(2)
                return self._take(
                    fields.octets(at_most=ADVERTISEMENT_BYTES_MAX), fields.octets(VALUE_BYTES), sender, now
                )
            case MeshKind.UNADVERTISE:
                fields = frame.fields(2)
                return self._undo(fields.octets(HANDLE_BYTES), fields.octets(UNDO_BYTES), sender, now)
            case _:
                return self._lost(frame.fields(1).octets(HANDLE_BYTES), sender)

    def _take(self, data: bytes, h: bytes, sender: bytes, now: float) -> list[Send]:
        advertisement = Advertisement.decode(data)
        handle = advertisement.identifier
        if handle in self._undone:
            raise Refused("advertisement: it was taken back", reason="undone")
        it = self.known.get(handle)
        if it is not None and it.first is not None:
            return []
        if it is None:
            self._check_room(advertisement, sender)
        steps = self._check(advertisement, h, int(now * 1000))
        if it is None:
            it = KnownPublisher(advertisement, data, sender, told_at=now)
            self._keep(it)
        elif advertisement.expiry_ms > it.advertisement.expiry_ms:
            it.advertisement, it.data = advertisement, data
            it.told = dict.fromkeys(it.told, b"")  # the refresh goes on to everybody
        before = it.value
        it.ways[sender] = HopValue(h, steps, now + self._limits.stale_s)
        if it.value != before:
            it.told_at = min(it.told_at, now + self._limits.settle_s - self._limits.retell_s)
        return self._settle(it)

    def _check_room(self, advertisement: Advertisement, sender: bytes) -> None:
        same = self.publishers(advertisement.pseudonym)
        if any(self.known[one].advertisement.key == advertisement.key for one in same):
            raise Refused("advertisement: its publisher has another", reason="second-advertisement")
        if len(same) >= self._limits.publishers_max:
            raise Refused(f"advertisement: {len(same)} publishers of one topic", reason="too-many-publishers")
        brought = sum(it.brought_by == sender for it in self.known.values())
        if len(self.known) >= self._limits.advertised_max or brought >= self._limits.brought_max:
            raise Refused(f"advertisement: {len(self.known)} are known, {brought} from this side", reason="tables-full")

    def _undo(self, handle: bytes, preimage: bytes, sender: bytes, now: float) -> list[Send]:
        it = self.known.get(handle)
        if it is None:
            return []
        it.advertisement.check_undo(preimage)
        self._forget(it)
        self._undone[handle] = now
        if len(self._undone) > self._limits.undone_max:
            self._undone.popitem(last=False)
        others = [one for one in self._graph() if one != sender]
        return [tell(one, MeshKind.UNADVERTISE, handle, preimage) for one in others]

    def _lost(self, handle: bytes, sender: bytes) -> list[Send]:
        """The sender has no way, or its way is through us."""
        it = self.known.get(handle)
        if it is None or it.ways.pop(sender, None) is None:
            return []
        return self._settle(it)

    # --- changes ---

    def gain(self, neighbour: bytes) -> list[Send]:
        """Somebody came into the graph: it hears what we know."""
        told = [(it, value) for it in self.known.values() if (value := it.value) is not None]
        return [self._tell(it, neighbour, value) for it, value in told if it.next_hop != neighbour]

    def lose(self, neighbour: bytes) -> list[Send]:
        """Somebody is not in the graph any more: as if it had taken everything back that came from it."""
        sends = []
        for it in self.known.values():
            it.told.pop(neighbour, None)
            if it.ways.pop(neighbour, None) is not None:
                sends += self._settle(it)
        return sends

    def tick(self, now: float) -> list[Send]:
        """Forget what is over, repeat what is not."""
        now_ms, sends = int(now * 1000), []
        for it in list(self.known.values()):
            if it.advertisement.expiry_ms <= now_ms:
                self._forget(it)
                continue
            stale = [one for one, way in it.ways.items() if way.until <= now]
            for one in stale:
                del it.ways[one]
            if stale:
                sends += self._settle(it)
            if now - it.told_at >= self._limits.retell_s:
                it.told, it.told_at = dict.fromkeys(it.told, b""), now
                sends += self._settle(it)
        while self._undone and next(iter(self._undone.values())) <= now - self._limits.undone_s:
            self._undone.popitem(last=False)
        return sends

    def _keep(self, it: KnownPublisher) -> None:
        handle = it.advertisement.identifier
        self.known[handle] = it
        self._by_topic.setdefault(it.advertisement.pseudonym, {})[handle] = None

    def _forget(self, it: KnownPublisher) -> None:
        handle, pseudonym = it.advertisement.identifier, it.advertisement.pseudonym
        del self.known[handle], self._by_topic[pseudonym][handle]
        if not self._by_topic[pseudonym]:
            del self._by_topic[pseudonym]

    def _settle(self, it: KnownPublisher) -> list[Send]:
        """Tell whoever has another value from us than the one that holds now; the next hop, that we go through it."""
        value, hop = it.value, it.next_hop
        handle = it.advertisement.identifier
        sends = []
        for one in self._graph():
            if value is None or one == hop:
                if it.told.pop(one, None) is not None:
                    sends.append(tell(one, MeshKind.LOST, handle))
            elif it.told.get(one) != value:
                sends.append(self._tell(it, one, value))
        return sends

    def _tell(self, it: KnownPublisher, neighbour: bytes, value: bytes) -> Send:
        it.told[neighbour] = value
        return tell(neighbour, MeshKind.ADVERTISE, it.data, value)
