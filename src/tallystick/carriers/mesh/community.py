"""A topic's mesh M_a as one node sees it: why it is in, through whom, and what it does when that breaks (AnonPubSub
4.5).

A node is needed if it subscribes or publishes, or if a neighbour counts on it. Whoever is needed asks the next hop
towards each publisher to pass envelopes on; the next hop is needed then, and asks on, until the publisher or a member
is reached. Publishers ask as subscribers do, so that the meshes of several publishers are one (4.3, Fig. 5). Whoever is
not needed, and loses the neighbour through which it got the topic, leaves.

Invariant: members stay connected, whoever crashes and whatever games are played. What a next hop said once is no proof
of that: the shell game moves members away from their next hops, and a member behind a crash does not know whether the
members around it are cut off with it. The proof is an envelope. Publishers let one go at least every `pulse_s`, empty
if need be and in no way different. A member that is needed and heard nothing from a publisher for `silent_s` asks its
next hop anew, whether or not it has links. Sketch: take a part that is cut off from a publisher, and in it the node
that is nearest by chain. Its next hop is nearer, so it is not in that part; it is connected, or becomes a member and
asks on, each time nearer, up to the publisher. Whoever loses the link that it got the topic through asks at once. A
publisher that is started again does not wait to be missed: it takes its earlier neighbours on the topic as covers.

Threat: neighbours that subscribe to everything. `matching.py` bounds it. Who surrounds a node with colluders in a game
gains its silence, and it asks elsewhere.

What remains: whoever asks anew after a crash is needed, and an observer of many crashes may learn by whom. A swap
leaves members behind that are forwarders at the edge, needed by nobody any more; they stay until the neighbour goes or
the epoch ends, which is what the game wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from tallystick.carriers.mesh.forwarding import GUISES, draw_covers
from tallystick.carriers.mesh.frames import MeshFrame, MeshKind, tell
from tallystick.carriers.mesh.localisation import Localisation
from tallystick.carriers.mesh.matching import STANCES, Matching, Stance
from tallystick.errors import Malformed, Refused
from tallystick.runtime.effects import Send
from tallystick.trust.mesh import PSEUDONYM_BYTES


@dataclass(frozen=True)
class CommunityLimits:
    pulse_s: float = 30.0  # the same at all nodes: a publisher lets an envelope go at least so often
    silent_s: float = 75.0  # after which a publisher counts as cut off: two of these and some hops


@dataclass
class TopicState:
    """What a member remembers beside its links."""

    since: float  # when it entered, or its neighbourhood last changed but for a game
    heard: dict[bytes, float] = field(default_factory=dict)  # by publisher's handle: when an envelope came
    asked: dict[bytes, float] = field(default_factory=dict)  # by publisher's handle: when we asked a next hop


class Community:
    """The meshes that one node is in."""

    def __init__(
        self, matching: Matching, localisation: Localisation, graph: Callable[[], Sequence[bytes]],
        random: Random, limits: CommunityLimits = CommunityLimits(),
    ) -> None:  # fmt: skip
        self._matching, self._localisation, self._graph = matching, localisation, graph
        self._random, self._limits = random, limits
        self.subscribed: set[bytes] = set()
        self.states: dict[bytes, TopicState] = {}

    # --- why we are in ---

    def is_needed(self, pseudonym: bytes) -> bool:
        links = self._matching.links(pseudonym).values()
        return self.is_ours(pseudonym) or any(link.needs_us and not link.is_old for link in links)

    def is_ours(self, pseudonym: bytes) -> bool:
        """Whether we subscribe or publish."""
        publishers = self._localisation.publishers(pseudonym)
        return pseudonym in self.subscribed or any(self._localisation.known[one].first for one in publishers)

    def subscribe(self, pseudonym: bytes, now: float) -> list[Send]:
        self.subscribed.add(pseudonym)
        return self._reach(pseudonym, now)

    def unsubscribe(self, pseudonym: bytes) -> list[Send]:
        """Stay as a forwarder if others need us, or else leave."""
        self.subscribed.discard(pseudonym)
        return [] if self.is_needed(pseudonym) else self.leave(pseudonym)

    def heard(self, pseudonym: bytes, key: bytes, now: float) -> None:
        """An envelope of the publisher with this key came over the mesh."""
        if (state := self.states.get(pseudonym)) is not None:
            for handle in self._localisation.publishers(pseudonym):
                if self._localisation.known[handle].advertisement.key == key:
                    state.heard[handle] = now

    # --- time ---

    def tick(self, now: float) -> list[Send]:
        sends = []
        for pseudonym, neighbour in list(self._matching.ended(now)):
            sends += self._lose(pseudonym, neighbour, now)
        for pseudonym in list(self.states):
            is_forgotten = not self._matching.links(pseudonym) and not self.is_needed(pseudonym)
            if is_forgotten or not self._localisation.publishers(pseudonym):
                sends += self.leave(pseudonym)
        ours = [it.advertisement.pseudonym for it in self._localisation.known.values() if it.first is not None]
        for pseudonym in dict.fromkeys([*sorted(self.subscribed), *ours, *self._matching.topics]):
            if self.is_needed(pseudonym):
                sends += self._reach(pseudonym, now)
        return sends + self._matching.refresh(now)

    def _reach(self, pseudonym: bytes, now: float) -> list[Send]:
        """Ask the next hops towards publishers that were not asked yet, or that have fallen silent."""
        sends: list[Send] = []
        hops = self._localisation.next_hops(pseudonym)
        if not hops:
            return sends
        is_new, state = pseudonym not in self.states, self._state(pseudonym, now)
        for handle, hop in hops.items():
            if not self._is_silent(state, handle, now):
                continue
            state.asked[handle] = now
            link = self._matching.links(pseudonym).get(hop)
            if (link is None or not link.is_up) and self._matching.has_room(pseudonym, hop):
                link = self._matching.link(pseudonym, hop, now)
                link.is_up, link.is_cover, link.is_old, state.since = True, False, False, now
                sends.append(self._matching.say(pseudonym, hop))
        return sends + (self._draw(pseudonym, False, now) if is_new else [])

    def _is_silent(self, state: TopicState, handle: bytes, now: float) -> bool:
        """Whether we neither heard a publisher nor asked for it for too long."""
        return now - max(state.asked.get(handle, 0.0), state.heard.get(handle, 0.0)) >= self._limits.silent_s

    def _state(self, pseudonym: bytes, now: float) -> TopicState:
        self._matching.guises.met.setdefault(pseudonym, self._matching.guises.number(pseudonym))
        return self.states.setdefault(pseudonym, TopicState(now))

    def _draw(self, pseudonym: bytes, is_cover: bool, now: float) -> list[Send]:
        """Take covers in, once, on entering."""
        links = self._matching.links(pseudonym)
        candidates = [one for one in self._graph() if one not in links and self._matching.has_room(pseudonym, one)]
        sends = []
        for one in draw_covers(self._matching.guises.of(pseudonym).covers, is_cover, candidates, self._random):
            link = self._matching.link(pseudonym, one, now)
            link.is_down = link.is_cover = True
            sends.append(self._matching.say(pseudonym, one))
        return sends

    def rejoin(self, pseudonym: bytes, neighbours: Sequence[bytes], now: float) -> list[Send]:
        """Be where an earlier process of ours was. Whoever is a member still takes us, whatever we were to each other;
        no cover is drawn then, so that restarts do not tell covers from others."""
        sends, links = [], self._matching.links(pseudonym)
        for one in neighbours:
            if one not in links and self._matching.has_room(pseudonym, one):
                self._state(pseudonym, now)
                link = self._matching.link(pseudonym, one, now)
                link.is_down = link.is_cover = True
                sends.append(self._matching.say(pseudonym, one))
        return sends

    def leave(self, pseudonym: bytes) -> list[Send]:
        """Be no member any more, whoever needs us."""
        self.states.pop(pseudonym, None)
        self._matching.guises.met.pop(pseudonym, None)
        links = self._matching.topics.pop(pseudonym, {})
        return [tell(one, MeshKind.UNSUBSCRIBE, pseudonym, 0) for one in links]

    # --- what neighbours say ---

    def receive(self, frame: MeshFrame, sender: bytes, now: float) -> list[Send]:
        """Raises `Refused`."""
        fields = frame.fields(2)
        pseudonym = fields.octets(PSEUDONYM_BYTES)
        if frame.kind is MeshKind.SUBSCRIBE:
            guise, stance = divmod(fields.number(GUISES * STANCES - 1, 1), STANCES)
            if not stance:
                raise Malformed("subscription: a stance expected")
            return self._subscribed(pseudonym, Stance(stance), guise, sender, now)
        fields.number(1)  # whether it moved on to our successor: the game has looked at it
        return self._lose(pseudonym, sender, now)

    def _subscribed(self, pseudonym: bytes, stance: Stance, guise: int, sender: bytes, now: float) -> list[Send]:
        if not self._localisation.publishers(pseudonym):
            raise Refused("subscription: nobody advertises it here", reason="unknown-topic")
        link, sends = self._matching.links(pseudonym).get(sender), []
        if link is None:
            if stance is Stance.PEER:
                return [tell(sender, MeshKind.UNSUBSCRIBE, pseudonym, 0)]
            if pseudonym not in self.states and self._matching.has_room(pseudonym, sender):
                self._matching.guises.met[pseudonym] = guise
            sends = self._admit(pseudonym, stance, sender, now)
            link = self._matching.links(pseudonym)[sender]
        elif stance is Stance.FORWARD:
            link.is_down, link.is_cover = True, False
        elif link.is_up and not link.is_cover:
            link.is_down = False
        link.is_heard, link.until = True, now + self._matching.limits.lease_s
        if link.replaces:  # our new neighbour is there: the old one may go
            old, link.replaces = link.replaces, b""
            if self._matching.drop(pseudonym, old) is not None:
                sends.append(tell(old, MeshKind.UNSUBSCRIBE, pseudonym, 1))
        return sends + (self._reach(pseudonym, now) if link.needs_us else [])

    def _admit(self, pseudonym: bytes, stance: Stance, sender: bytes, now: float) -> list[Send]:
        """A neighbour makes us a member, or has come to us who are one already."""
        is_new = pseudonym not in self.states
        link = self._matching.link(pseudonym, sender, now)
        self._state(pseudonym, now).since = now
        if stance is Stance.FORWARD:
            link.is_down = True
        else:
            link.is_up = link.is_cover = True
        sends = [self._matching.say(pseudonym, sender)]
        if is_new:
            # A forwarder asks on before it draws, so that it knows its next hops to be in the mesh.
            sends += self._reach(pseudonym, now) if link.needs_us else []
            sends += self._draw(pseudonym, stance is Stance.COVER, now)
        return sends

    # --- losing links ---

    def lose(self, neighbour: bytes, now: float) -> list[Send]:
        """A neighbour failed: as if it had unsubscribed from everything (4.5)."""
        topics = [pseudonym for pseudonym, links in self._matching.topics.items() if neighbour in links]
        return [send for pseudonym in topics for send in self._lose(pseudonym, neighbour, now)]

    def _lose(self, pseudonym: bytes, neighbour: bytes, now: float) -> list[Send]:
        link = self._matching.drop(pseudonym, neighbour)
        state = self.states.get(pseudonym)
        if link is None or state is None:
            return []
        links = self._matching.links(pseudonym)
        for other in links.values():  # what was to take its place does so without a word
            other.replaces = b"" if other.replaces == neighbour else other.replaces
        if link.is_old or link.replaces:
            return []
        state.since = now
        if self.is_needed(pseudonym):
            if link.is_up:
                state.asked.clear()  # and so we ask again at once
                state.heard.clear()
            return []
        has_up = any(other.is_up for other in links.values())
        return [] if has_up and not link.needs_us else self.leave(pseudonym)
