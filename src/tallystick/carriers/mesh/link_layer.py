"""The link layer: a role around a node's role, which turns messages to neighbours into cells on links.

Threat: an observer of all links, who sees when, how much and with whom a node speaks. Every T seconds a **link beat**
of B cells of one size leaves on every link, whether there is anything to say or not (AnonPubSub 4.4, whose heartbeats
are padded to the largest control message). How much that hides, the dial says:

- `OFF`: cells as short as their content, at once. Times and sizes tell who speaks, and control from notifications.
- `PADDED`: full cells. Control messages leave in beats only, where nobody sees them; notifications leave at once, so
  that an observer sees that they pass, and when.
- `CONSTANT`: B full cells a beat on every link, and nothing else, ever: what leaves a node is a function of its links
  and of its clock. The cost: B cells in T seconds for each link, used or not, and up to T of delay for each hop.

Invariant: a message that the inner role sends to a neighbour arrives at most once. If it does not arrive, the inner
role is told (`LinkLost`), within a bound of beats; in doubt it is told. Messages may overtake each other. A neighbour
from whom nothing comes for `silent_beats` is lost, and said to be so once.

Work and memory are bounded for each link (`cells.py`), and so is the number of links: the inner role says with whom it
keeps one, and of other members who knock there are few, the oldest of those who proved nothing giving way first.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from tallystick.carriers.mesh.cells import CELL_BYTES
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.link_keys import LIFE_BYTES, SealedKnock, identity_of
from tallystick.carriers.mesh.linked import Linked, LinkLost, MeshPass
from tallystick.carriers.mesh.mesh_link import CAME_MAX, MeshLink
from tallystick.crypto.exchange import ExchangeKey
from tallystick.errors import CannotOpen, Malformed, Refused
from tallystick.runtime.effects import Arrived, Effect, Event, Send, WakeAt, Woken
from tallystick.runtime.sources import Entropy

NEIGHBOURS_KNOCKS_MAX = 8  # from the address of each, in a beat
_EARLY_S = 1e-6  # a driver may wake us by a rounding error too early


class Dial(Enum):
    OFF = auto()
    PADDED = auto()
    CONSTANT = auto()


@dataclass(frozen=True)
class MeshLinkStatistics:
    links: int
    bytes_sent: int  # on the wire
    bytes_spoken: int  # of messages that the inner role sent: the rest is the price
    bytes_heard: int  # of messages that arrived
    dropped: Mapping[str, int] = field(default_factory=dict)  # datagrams and messages, by reason


class LinkLayer:
    """`key` is the node's lasting key, `is_urgent` tells notifications from control. Its driver sends to addresses, and
    tells from which one something came. The entropy is another in each life."""

    def __init__(
        self,
        inner: Linked,
        key: ExchangeKey,
        entropy: Entropy,
        membership: MeshPass,
        is_urgent: Callable[[bytes], bool],
        dial: Dial = Dial.PADDED,
        limits: MeshLimits = MeshLimits(),
    ) -> None:
        self._inner, self._key, self._entropy, self._is_urgent = inner, key, entropy, is_urgent
        self._pass, self._dial, self._limits = membership, dial, limits
        self._life = entropy.bytes(LIFE_BYTES)
        self._links: dict[str, MeshLink] = {}
        self._strangers: dict[str, int] = {}  # since which beat the inner role keeps no link with them
        self._wakes: list[float] = []  # when the inner role wants to be woken
        self._unsent: dict[str, list[bytes]] = {}
        self._touched: dict[str, None] = {}  # links on which there may be something to say outside of a beat
        self._effects: list[Effect] = []
        self._beat, self._beat_at, self._knocks = 0, -1.0, 0
        self._sent = self._spoken = self._heard = 0
        self.dropped: Counter[str] = Counter()

    def receive(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Arrived(sender, bytes(data)):
                self._hear(sender, data, now)
            case Woken():
                self._wake(now)
        self._speak_outside_beats()
        effects, self._effects = self._effects, []
        return effects

    def stir(self) -> None:
        """The inner role was asked for something: let the next `Woken` reach it, whatever it waits for."""
        heapq.heappush(self._wakes, 0.0)

    def show(self, membership: MeshPass) -> None:
        """Knock with this from now on."""
        self._pass = membership

    def statistics(self) -> MeshLinkStatistics:
        return MeshLinkStatistics(len(self._links), self._sent, self._spoken, self._heard, dict(self.dropped))

    # --- the inner role ---

    def _tell(self, event: Event, now: float) -> None:
        """Let the inner role have an event, and take its effects up."""
        effects = self._inner.receive(event, now)
        self._follow_links()  # before messages to new neighbours are put in
        for effect in effects:
            if isinstance(effect, Send):
                self._put(effect.to, effect.message)
                continue
            if isinstance(effect, WakeAt):
                heapq.heappush(self._wakes, effect.time)
            self._effects.append(effect)

    def _follow_links(self) -> None:
        ends = {end.identity.hex(): end for end in self._inner.entries()}
        for name, end in ends.items():
            link = self._links.get(name)
            self._strangers.pop(name, None)
            if link is not None:
                link.address = end.address
                continue
            try:
                self._links[name] = self._new_link(end.key, end.address)
            except Malformed:  # a member's key of small order: nobody can speak with it
                self.dropped["malformed-key"] += 1
        for name in self._links:
            if name not in ends:
                self._strangers.setdefault(name, self._beat)

    def _put(self, to: str, message: bytes) -> None:
        self._spoken += len(message)
        self._touched[to] = None
        link = self._links.get(to)
        is_taken = len(message) <= self._limits.message_bytes_max and link is not None
        if link is None or not is_taken or not link.waiting.put(message, self._beat, urgent=self._is_urgent(message)):
            self.dropped["no-link" if link is None else "no-room"] += 1
            self._unsent.setdefault(to, []).append(message)

    # --- beats ---

    def _wake(self, now: float) -> None:
        is_first = self._beat_at < 0
        if is_first:  # each node beats at a time of its own
            self._beat_at = now + self._limits.beat_s * int.from_bytes(self._entropy.bytes(4), "big") / 2**32
            self._effects.append(WakeAt(self._beat_at))
        due = False
        while self._wakes and self._wakes[0] <= now + _EARLY_S:
            due = heapq.heappop(self._wakes) <= now + _EARLY_S
        if is_first or due:
            self._tell(Woken(), now)
        if not is_first and now + _EARLY_S >= self._beat_at:
            self._beat_at += self._limits.beat_s
            if self._beat_at <= now:  # what was missed is not made up: who is late would only hear the less
                self._beat_at = now + self._limits.beat_s
            self._effects.append(WakeAt(self._beat_at))
            self._on_beat(now)

    def _on_beat(self, now: float) -> None:
        self._beat, self._knocks = self._beat + 1, 0
        self._end_strangers()
        for name, link in list(self._links.items()):
            self._report(name, link, now)
        for to, messages in self._take_unsent():
            self._tell(Arrived(to, LinkLost(messages)), now)
        for name, link in self._links.items():
            self._touched[name] = None
            link.on_beat(self._beat)
            for _ in range(self._cells(name, link)):
                self._send(link)

    def _cells(self, name: str, link: MeshLink) -> int:
        """How many leave in a beat, whatever there is to say."""
        if name in self._strangers and not link.is_up:
            return int(link.owes)
        return 1 + link.is_trying if self._dial is Dial.OFF else self._limits.beat_cells

    def _report(self, name: str, link: MeshLink, now: float) -> None:
        lost = link.waiting.expire(self._beat, self._limits.message_beats_max)
        is_lost = link.is_silent(self._beat) and not link.is_lost
        if is_lost:
            link.is_lost = True
            lost += link.waiting.drop_all()
        if lost or is_lost:
            self._tell(Arrived(name, LinkLost(tuple(lost), is_lost)), now)

    def _take_unsent(self) -> list[tuple[str, tuple[bytes, ...]]]:
        unsent, self._unsent = self._unsent, {}
        return [(to, tuple(messages)) for to, messages in unsent.items()]

    def _end_strangers(self) -> None:
        """Links that the inner role does not keep last as long as goodbyes need, and who is silent is gone."""
        for name, since in list(self._strangers.items()):
            if self._beat - since >= 2 * self._limits.silent_beats or self._links[name].is_silent(self._beat):
                del self._strangers[name]
                if lost := self._links.pop(name).waiting.drop_all():
                    self._unsent.setdefault(name, []).extend(lost)

    def _speak_outside_beats(self) -> None:
        touched, self._touched = self._touched, {}
        links = [self._links[name] for name in touched if name in self._links and self._dial is not Dial.CONSTANT]
        for link in links:
            while link.speaks(self._beat) and (
                link.waiting.has_more(urgent_only=self._dial is Dial.PADDED) or link.came >= CAME_MAX
            ):
                self._send(link)

    def _send(self, link: MeshLink) -> None:
        data = link.datagram(self._beat, self._life, self._pass.shown, padded=self._dial is not Dial.OFF)
        self._sent += len(data)
        self._effects.append(Send(link.address, data))

    # --- what comes ---

    def _hear(self, address: str, data: bytes, now: float) -> None:
        if len(data) > CELL_BYTES:
            self.dropped["oversized"] += 1
            return
        try:
            name, messages = self._open(address, data, now)
        except Refused as error:
            self.dropped[error.reason] += 1
            return
        for message in messages:
            self._heard += len(message)
            self._tell(Arrived(name, message), now)

    def _open(self, address: str, data: bytes, now: float) -> tuple[str, list[bytes]]:
        """The messages of a cell, and whose; none where it is a knock. Raises `Refused`."""
        for name, link in self._links.items():  # two may give the same address, and one of them wrongly
            if link.address == address:
                try:
                    messages = link.open(data, self._beat)
                except CannotOpen:
                    continue
                self._touched[name] = None
                return name, messages
        self._hear_knock(address, data, now)
        return "", []

    def _hear_knock(self, address: str, data: bytes, now: float) -> None:
        """Raises `Refused` for what is no member's knock for us, and where there have been too many."""
        self._count_knock(address)
        sealed = SealedKnock.open_outer(self._key, data)
        name = identity_of(sealed.sender).hex()
        link = self._links.get(name) or self._new_link(sealed.sender, address)
        knock = sealed.open(self._key, link.agreed)
        if name not in self._links:
            self._check_member(sealed.sender, knock.shown, now)
            self._make_room()
            self._links[name], self._strangers[name] = link, self._beat
        link.hear_knock(knock)
        self._touched[name] = None

    def _check_member(self, key: bytes, shown: bytes, now: float) -> None:
        self._pass.check(key, shown, now)

    def _count_knock(self, address: str) -> None:
        """Strangers cannot use up what neighbours need for fresh keys."""
        for name, link in self._links.items():
            is_neighbour = link.address == address and name not in self._strangers
            if is_neighbour and link.knocks < NEIGHBOURS_KNOCKS_MAX:
                link.knocks += 1
                return
        self._knocks += 1
        if self._knocks > self._limits.knocks_max:
            raise Refused("knock: too many in one beat", reason="too-many-knocks")

    def _make_room(self) -> None:
        if len(self._strangers) >= self._limits.strangers_max:
            gone = next((name for name in self._strangers if not self._links[name].is_up), None)
            if gone is None:
                raise Refused("knock: all places for strangers are taken", reason="too-many-strangers")
            del self._links[gone], self._strangers[gone]

    def _new_link(self, peer: bytes, address: str) -> MeshLink:
        return MeshLink(self._key, peer, address, self._beat, self._limits, self._entropy)
