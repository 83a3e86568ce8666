"""The shell game: two neighbours in a topic's mesh change places, so that a place says nothing of a role (AnonPubSub
4.5).

Threat: an observer of all links who infers from a member's place what it is there for. Every member plays as soon as it
has a neighbour, before the first envelope: if random < e^(−λt) it swaps with a neighbour that gets the topic through
it, and in any case tries again after an exponentially distributed wait. t is the time since it entered, and begins
again when a neighbour came or was lost. A swap itself does not begin it again: every swap changes the neighbourhood of
many, and the game would never come to rest. Publishers play too, since envelopes go both ways over every link.

A swap of v and w. v asks w and its own neighbours A for their locks, and w asks its neighbours B. One that is locked
already votes no, and nobody waits: the game is not worth it. If all say yes, v decides. Then v has links to B, w has
those to A, each with the bearings of the place (who gets the topic through whom), and the link between them is turned
round.

Invariant: a mesh that is connected stays so at every moment, unless somebody crashes who held it together, and then it
is mended as after any crash (`community.py`). Sketch: v and w keep their link throughout. A neighbour in A lets go of v
only when w has said a word to it, and so w holds it; the same for B. Until then it has both. So each of A and B is
linked to v or w at any time, and v and w to each other. In doubt, when a lock ends and no decision came, the old and
the new neighbour stay in the table together until the new one says a word or is given up. Decisions that were lost are
made good by that word, and a new neighbour that knows nothing of it declines.

Links outside the graph. A swap makes neighbours on a topic of nodes that are none in the graph. Such a link is made
like any other, direct, and is kept while the topic wants it; advertisements and covers do not go over it, so that the
graph stays the membership's own. To go through the former neighbour instead would leave the traffic where it was, and
the observer with it. What remains: an observer sees that a link appears, as links also do by leases and joins, and one
who records all of them can try to rewind the swaps.

Messages. The paper counts 3|N(v)| + |N(w)|, by which the neighbours of w are told and not asked. Here all are asked,
and a lock, a vote, a decision, the new neighbour's word and the release of the old one make 5 for each of A and B, and
3 between v and w.

Threat: a neighbour that locks and never decides, or that hands over neighbours who are not. Locks end by themselves,
who let one end is not given another for a while, entries are members' by certificate, and who was led astray falls
silent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from random import Random

from tallystick.carriers.mesh.community import Community
from tallystick.carriers.mesh.frames import MeshFrame, MeshKind, tell
from tallystick.carriers.mesh.matching import Matching
from tallystick.carriers.mesh.members import MemberEntry
from tallystick.carriers.mesh.membership import Membership
from tallystick.carriers.mesh.swaps import SWAP_BYTES, Part, SwapLock, SwapPlace, bearings_of
from tallystick.errors import Refused
from tallystick.runtime.effects import Send
from tallystick.trust.mesh import PSEUDONYM_BYTES


@dataclass(frozen=True)
class ShellGameLimits:
    plays: bool = True  # or else it only takes part where others ask
    decay: float = 0.05  # λ, per second (Fig. 15)
    wait_s: float = 5.0  # the mean of the exponential wait (SEEDS: procedure shellGame)
    decide_s: float = 8.0  # v gives up if votes are missing: four messages in link beats, each sent twice
    lock_s: float = 14.0  # after which a lock ends in doubt: a decision and its way
    pause_s: float = 30.0  # in which one that let a lock end is not given another
    paused_max: int = 1_024
    over_max: int = 256  # swaps remembered as over: decisions may overtake locks


class ShellGame:
    """The games of one node, at most one at a time on each topic."""

    def __init__(
        self, membership: Membership, matching: Matching, community: Community, random: Random,
        draw: Callable[[int], bytes], limits: ShellGameLimits = ShellGameLimits(),
    ) -> None:  # fmt: skip
        """`draw` gives fresh names for swaps."""
        self._membership, self._matching, self._community = membership, matching, community
        self._random, self._draw, self._limits = random, draw, limits
        self.locks: dict[bytes, SwapLock] = {}  # by pseudonym
        self._play_at: dict[bytes, float] = {}
        self._paused: dict[tuple[bytes, bytes], float] = {}
        self._over: dict[bytes, None] = {}  # swaps that ended before we were asked, the oldest first
        self.swaps = 0  # that we decided, as v

    # --- time ---

    def tick(self, now: float) -> list[Send]:
        sends = []
        for pseudonym, lock in list(self.locks.items()):
            sends += self._hurry(pseudonym, lock, now)
        states = self._community.states if self._limits.plays else {}
        self._play_at = {one: at for one, at in self._play_at.items() if one in states}
        for pseudonym, state in list(states.items()):
            if now >= self._play_at.setdefault(pseudonym, now + self._wait()):
                self._play_at[pseudonym] = now + self._wait()
                decay = self._matching.guises.of(pseudonym).decay
                if self._random.random() < exp(-decay * (now - state.since)):
                    sends += self._play(pseudonym, now)
        return sends

    def _wait(self) -> float:
        return self._random.expovariate(1 / self._limits.wait_s)

    def _play(self, pseudonym: bytes, now: float) -> list[Send]:
        below = [one for one, link in self._matching.links(pseudonym).items() if link.is_down]
        return self.challenge(pseudonym, self._random.choice(below), now) if below else []

    def _hurry(self, pseudonym: bytes, lock: SwapLock, now: float) -> list[Send]:
        """Repeat decisions, and end what takes too long."""
        links = self._matching.links(pseudonym)
        if lock.is_decided:
            pending = [one for one in lock.mine if (link := links.get(one)) and link.is_old]
            moving = [one for one in lock.moves.values() if (link := links.get(one.identity)) and link.replaces]
            if now >= lock.until or not (pending or moving):
                for one in pending:
                    links[one].is_old = False  # it speaks and did not let go: it stays where it is
                del self.locks[pseudonym]
                return []
            if now < lock.repeat_at:
                return []
            lock.repeat_at = now + self._limits.lock_s / 4
            return [tell(one, MeshKind.DECIDE, pseudonym, lock.swap, 1) for one in pending]
        if now < lock.until:
            return []
        if lock.part is Part.NEIGHBOUR or (lock.part is Part.PARTNER and not lock.waiting):
            return self._doubt(pseudonym, lock, now)
        return self._abort(pseudonym, lock)

    # --- the first phase ---

    def challenge(self, pseudonym: bytes, partner: bytes, now: float) -> list[Send]:
        """As v, ask for all locks (procedure shellGame, lines 8 and 9)."""
        link = self._matching.links(pseudonym).get(partner)
        entry = self._membership.entry_of(partner)
        if pseudonym in self.locks or link is None or entry is None or not self._is_settled(pseudonym):
            return []
        mine = tuple(one for one in self._matching.links(pseudonym) if one != partner)
        swap, until = self._draw(SWAP_BYTES), now + self._limits.decide_s
        self.locks[pseudonym] = SwapLock(swap, Part.INITIATOR, until, partner, {partner, *mine}, mine)
        places = self._places(pseudonym, mine)
        sends = [tell(partner, MeshKind.LOCK, pseudonym, swap, int(Part.PARTNER), places)]
        named = [[entry.listed(), 0]]
        return sends + [tell(one, MeshKind.LOCK, pseudonym, swap, int(Part.NEIGHBOUR), named) for one in mine]

    def _is_settled(self, pseudonym: bytes) -> bool:
        """Whether all our links are as they should be: otherwise we neither play nor are locked."""
        links = self._matching.links(pseudonym).items()
        return all(
            link.is_heard and not link.is_old and not link.replaces and one in self._membership.known
            for one, link in links
        )

    def _places(self, pseudonym: bytes, of: tuple[bytes, ...]) -> list[list[object]]:
        links = self._matching.links(pseudonym)
        return [[self._membership.known[one].entry.listed(), bearings_of(links[one])] for one in of]

    def receive(self, frame: MeshFrame, sender: bytes, now: float) -> list[Send]:
        """Raises `Refused`."""
        fields = frame.fields(3 if frame.kind is MeshKind.DECIDE else 4)
        pseudonym, swap, number = fields.octets(PSEUDONYM_BYTES), fields.octets(SWAP_BYTES), fields.number(1)
        if frame.kind is MeshKind.DECIDE:
            return self._decided(pseudonym, swap, bool(number), sender, now)
        named = [one.array(2) for one in fields.each(self._matching.limits.links_max)]
        places = tuple(SwapPlace(MemberEntry.read(one), one.number(7)) for one in named)
        if frame.kind is MeshKind.VOTE:
            return self._voted(pseudonym, swap, bool(number), places, sender, now)
        try:
            return self._lock(pseudonym, swap, Part(number), places, sender, now)
        except Refused:  # it waits for our vote
            return [tell(sender, MeshKind.VOTE, pseudonym, swap, 0, [])]

    def _lock(
        self, pseudonym: bytes, swap: bytes, part: Part, places: tuple[SwapPlace, ...], sender: bytes, now: float
    ) -> list[Send]:
        lock = self.locks.get(pseudonym)
        is_second = lock is not None and lock.swap == swap and lock.part is part is Part.NEIGHBOUR
        if not (is_second or self._is_free(pseudonym, swap, sender, now)):
            raise Refused("shell game: locked", reason="locked")
        if sender not in self._matching.links(pseudonym) or not self._is_settled(pseudonym):
            raise Refused("shell game: not ready", reason="not-ready")
        until = now + self._limits.lock_s
        for place in places:
            if place.entry.identity != self._membership.me.identity:
                self._membership.pin(place.entry, until + self._matching.limits.doubt_s, now)
        if part is Part.NEIGHBOUR:
            if len(places) != 1 or places[0].entry.identity in (sender, self._membership.me.identity):
                raise Refused("shell game: one other neighbour expected", reason="malformed")
            lock = self.locks.setdefault(pseudonym, SwapLock(swap, part, until, sender))
            lock.moves[sender] = places[0].entry
            return [tell(sender, MeshKind.VOTE, pseudonym, swap, 1, [])]
        mine = tuple(one for one in self._matching.links(pseudonym) if one != sender)
        self.locks[pseudonym] = lock = SwapLock(swap, part, until, sender, set(mine), mine, places)
        if not mine:
            return self._agree(pseudonym, lock)
        entry = self._membership.known[sender].entry
        named = [[entry.listed(), 0]]
        return [tell(one, MeshKind.LOCK, pseudonym, swap, int(Part.NEIGHBOUR), named) for one in mine]

    def _is_free(self, pseudonym: bytes, swap: bytes, sender: bytes, now: float) -> bool:
        """Whether we can be locked for it, by this neighbour."""
        is_patient = self._paused.get((pseudonym, sender), 0.0) <= now
        return pseudonym not in self.locks and swap not in self._over and is_patient

    def _agree(self, pseudonym: bytes, lock: SwapLock) -> list[Send]:
        """As w: all of B are locked, and v learns of them."""
        return [tell(lock.other, MeshKind.VOTE, pseudonym, lock.swap, 1, self._places(pseudonym, lock.mine))]

    def _voted(
        self, pseudonym: bytes, swap: bytes, is_yes: bool, places: tuple[SwapPlace, ...], sender: bytes, now: float
    ) -> list[Send]:
        lock = self.locks.get(pseudonym)
        if lock is None or lock.swap != swap:  # it was given up, or long since decided
            return [tell(sender, MeshKind.DECIDE, pseudonym, swap, 0)] if is_yes else []
        if sender not in lock.waiting:
            return []
        links = self._matching.links(pseudonym)
        is_possible = all(one in links for one in (lock.other, *lock.mine))
        if lock.part is Part.INITIATOR and sender == lock.other:
            others = [one.entry for one in places if one.entry.identity != self._membership.me.identity]
            is_possible = is_possible and all(self._is_open(pseudonym, one, now) for one in others)
            lock.gets = places
        if not (is_yes and is_possible):
            return self._abort(pseudonym, lock)
        lock.waiting.discard(sender)
        if lock.waiting:
            return []
        return self._agree(pseudonym, lock) if lock.part is Part.PARTNER else self._apply(pseudonym, lock, now)

    def _abort(self, pseudonym: bytes, lock: SwapLock) -> list[Send]:
        """No swap: whoever was asked is let go."""
        del self.locks[pseudonym]
        sends = [tell(one, MeshKind.DECIDE, pseudonym, lock.swap, 0) for one in lock.mine]
        if lock.part is Part.PARTNER:
            return [*sends, tell(lock.other, MeshKind.VOTE, pseudonym, lock.swap, 0, [])]
        return [*sends, tell(lock.other, MeshKind.DECIDE, pseudonym, lock.swap, 0)]

    # --- the second phase ---

    def _decided(self, pseudonym: bytes, swap: bytes, is_yes: bool, sender: bytes, now: float) -> list[Send]:
        lock = self.locks.get(pseudonym)
        if lock is None or lock.swap != swap:
            self._over[swap] = None  # the lock itself may come later
            if len(self._over) > self._limits.over_max:
                del self._over[next(iter(self._over))]
            return []
        if lock.is_decided or lock.part is Part.INITIATOR:
            return []
        if sender not in (lock.other, *lock.moves, *(one.identity for one in lock.moves.values())):
            raise Refused("shell game: not its swap to decide", reason="not-yours")
        if is_yes and not lock.waiting:
            return self._apply(pseudonym, lock, now)
        del self.locks[pseudonym]
        return [tell(one, MeshKind.DECIDE, pseudonym, swap, 0) for one in lock.mine]

    def learn(self, pseudonym: bytes, sender: bytes, now: float) -> list[Send]:
        """Somebody who is no neighbour yet speaks as one, or a neighbour moves on: if that is by a swap whose decision
        we have not heard, it was yes."""
        lock = self.locks.get(pseudonym)
        if lock is None or lock.is_decided or lock.waiting or lock.part is Part.INITIATOR:
            return []
        named = [one.identity for one in lock.moves.values()] + [one.entry.identity for one in lock.gets]
        return self._apply(pseudonym, lock, now) if sender in (*named, *lock.mine) else []

    def _apply(self, pseudonym: bytes, lock: SwapLock, now: float) -> list[Send]:
        """The swap happens (lines 10 to 13): v and w take each other's places, neighbours their new neighbour."""
        lock.is_decided, lock.until = True, now + self._limits.lock_s
        lock.repeat_at = now + self._limits.lock_s / 4
        if lock.part is Part.NEIGHBOUR:
            self._move(pseudonym, lock, now)
            return []
        links = self._matching.links(pseudonym)
        between = links.get(lock.other)
        if between is not None:
            between.is_up, between.is_down = between.is_down, between.is_up
        for one in lock.mine:
            if one in links:
                links[one].is_old = True
        sends = self._take_places(pseudonym, lock, now)
        told = (lock.other, *lock.mine) if lock.part is Part.INITIATOR else lock.mine
        self.swaps += lock.part is Part.INITIATOR
        return [tell(one, MeshKind.DECIDE, pseudonym, lock.swap, 1) for one in told] + sends

    def _take_places(self, pseudonym: bytes, lock: SwapLock, now: float) -> list[Send]:
        sends = []
        for place in lock.gets:
            one = place.entry.identity
            is_new = one not in self._matching.links(pseudonym)
            if one in (self._membership.me.identity, lock.other) or not self._is_open(pseudonym, place.entry, now):
                continue
            place.apply(self._matching.link(pseudonym, one, now))
            if is_new:  # those whom both have keep both, with the bearings changed
                sends.append(self._matching.say(pseudonym, one))
        return sends

    def _move(self, pseudonym: bytes, lock: SwapLock, now: float) -> None:
        """As a neighbour: the new one beside the old one, until it says a word."""
        links = self._matching.links(pseudonym)
        bearings = {old: bearings_of(links[old]) for old in lock.moves if old in links}
        for old, entry in lock.moves.items():
            new = entry.identity
            is_new = new not in links
            if old not in bearings or not self._is_open(pseudonym, entry, now):
                continue
            link = self._matching.link(pseudonym, new, now)
            SwapPlace(entry, bearings[old]).apply(link)
            if is_new:
                link.replaces = old

    def _is_open(self, pseudonym: bytes, entry: MemberEntry, now: float) -> bool:
        """Whether there can be a link with it, far or not."""
        try:
            self._membership.pin(entry, now + self._matching.limits.doubt_s, now)
        except Refused:
            return False
        links = self._matching.links(pseudonym)
        return entry.identity in links or self._matching.has_room(pseudonym, entry.identity)

    def _doubt(self, pseudonym: bytes, lock: SwapLock, now: float) -> list[Send]:
        """We said yes and heard no more: keep the old and take the new beside it."""
        del self.locks[pseudonym]
        self._paused[pseudonym, lock.other] = now + self._limits.pause_s
        if len(self._paused) > self._limits.paused_max:
            self._paused = {key: at for key, at in self._paused.items() if at > now}
        if lock.part is Part.PARTNER:
            return self._take_places(pseudonym, lock, now)
        before = set(self._matching.links(pseudonym))
        self._move(pseudonym, lock, now)
        added = [one for one in self._matching.links(pseudonym) if one not in before]
        return [self._matching.say(pseudonym, one) for one in added]
