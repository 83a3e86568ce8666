"""Who a node's neighbours are: partial views that keep themselves, after SCAMP (AnonPubSub 4.1).

A newcomer gives its entry to a contact, from where it goes some steps at random, so that it does not matter which
contact it was. Whoever it comes to sends it on to everybody in its own view and to `copies` more at random. Whoever
receives it keeps it with probability 1/(1 + size of its view), or else passes it on to one of its view: views grow to
about (copies + 1)·ln n without anybody knowing n. A link leads both ways, whoever holds whom: N(v) is the view and
whoever holds v (Eq. 1). An entry counts for a lease; each node gives its own to the mesh again before that is over,
which also mends views that became lopsided. Whoever hears nobody begins anew with a contact.

Threat: a neighbour that fills a victim's view with its colluders and so surrounds it (an eclipse). All identities are
the authority's (`members.py`), and of what one neighbour brought, with what those brought in turn, a view has at most
`introduced_max`: inviting each other in a row does not help. Neither does it to hold the victim in many views, for what
those bring who came by themselves is `uninvited_max` together. The victim's walks begin at honest neighbours too, so it
keeps some. A view outlives its process (`kept_view.py`). What remains: one whose every contact is the attacker's was
never among others, and colluders that knock at a node by themselves fill its list of those who hold *it*, which is
bounded and apart from its own view.

Far links. The shell game (`shell_game.py`) gives a node neighbours on a topic that are not in the graph. It has a link
to them while the topic asks for it (`pin`), on which it says that it is alive, and no advertisements.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from tallystick.carriers.mesh.frames import MeshFrame, MeshKind, tell
from tallystick.carriers.mesh.kept_view import KeptView, Members
from tallystick.carriers.mesh.members import MemberEntry
from tallystick.errors import Refused
from tallystick.runtime.effects import Send

UNINVITED = b"uninvited"


@dataclass(frozen=True)
class ViewLimits:
    copies: int = 1  # SCAMP's c: so many crashes more than ln n leave the graph connected
    view_max: int = 24  # entries that we hold: at copies 1 enough for 100,000 nodes
    holders_max: int = 48  # who may hold us; their number varies more
    introduced_max: int = 4  # of what one neighbour brought, directly or not: a sixth of the view
    uninvited_max: int = 12  # of what all those brought whom we do not hold ourselves: half of it
    far_max: int = 256  # links for topics alone, outside the graph
    steps: int = 4  # at random, from the contact to whoever spreads the newcomer's entry
    hops_max: int = 32  # of a walk: in a view of 24, three in four have ended
    alive_s: float = 2.0  # after which a node says that it is alive
    lost_s: float = 7.0  # after which one that says nothing is lost: three words in a row
    lease_s: float = 600.0  # of an entry
    again_s: float = 3.0  # between two knocks of one newcomer
    knocks_max: int = 256  # newcomers and entries remembered, each for `again_s`
    replacements_max: int = 4  # that one who leaves may name


@dataclass
class Neighbour:
    """Somebody we have a link with, or try to have."""

    entry: MemberEntry
    introducer: bytes = b""  # who brought it; empty where we knew it, or it came by itself
    held_until: float = 0.0  # in our view until then
    holds_us: bool = False
    pinned_until: float = 0.0  # a topic wants it until then
    since: float = 0.0
    heard: float | None = None  # None until it says something


Check = Callable[[MemberEntry, float], None]


class Membership:
    """The views of one node."""

    def __init__(
        self, me: MemberEntry, contacts: Sequence[MemberEntry], check: Check, random: Random,
        limits: ViewLimits = ViewLimits(), earlier: Members = (),
    ) -> None:  # fmt: skip
        """`check` raises `Refused` unless an entry is the authority's; `earlier` are those of an earlier process."""
        self.me, self._judge, self._random, self._limits, self._earlier = me, check, random, limits, earlier
        self._contacts: Members = tuple((one, b"") for one in contacts if one.identity != me.identity)
        self._others = earlier  # whom we knew
        self.known: dict[bytes, Neighbour] = {}
        self._knocks: OrderedDict[bytes, float] = OrderedDict()
        self._judged: OrderedDict[MemberEntry, float] = OrderedDict()
        self._alive_at = self._again_at = self._renew_at = 0.0
        self._told: tuple[set[bytes], set[bytes]] = set(), set()

    @property
    def neighbours(self) -> list[bytes]:
        """N(v): those in the graph that have said something."""
        return [one for one, it in self.known.items() if it.heard is not None and _in_graph(it)]

    @property
    def view(self) -> list[bytes]:
        """Those that we hold."""
        return [one for one, it in self.known.items() if it.held_until]

    def entry_of(self, identity: bytes) -> MemberEntry | None:
        found = self.known.get(identity)
        return found.entry if found else None

    def heard_from(self, identity: bytes, now: float) -> None:
        """A frame came over the link."""
        if (it := self.known.get(identity)) is not None:
            it.heard = now

    def changes(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Since this was last asked: who came into the graph, who is not in it any more, to whom there is no link."""
        (graph, known), self._told = self._told, (set(self.neighbours), set(self.known))
        return sorted(self._told[0] - graph), sorted(graph - self._told[0]), sorted(known - self._told[1])

    def pin(self, entry: MemberEntry, until: float, now: float) -> None:
        """Keep a link to it until then, for a topic. Raises `Refused` if it is not a member, or one too many."""
        it = self.known.get(entry.identity)
        if it is None:
            if sum(not _in_graph(one) for one in self.known.values()) >= self._limits.far_max:
                raise Refused(f"far links: there are {self._limits.far_max}", reason="tables-full")
            self._check(entry, now)
            it = self.known[entry.identity] = Neighbour(entry, since=now)
        it.pinned_until = max(it.pinned_until, until)

    def keep(self, identity: bytes, until: float) -> None:
        """As `pin`, for one to whom there is a link already."""
        if (it := self.known.get(identity)) is not None:
            it.pinned_until = max(it.pinned_until, until)

    def forget(self, identity: bytes) -> None:
        """The link to it is lost."""
        self.known.pop(identity, None)

    def kept(self, topics: Sequence[tuple[bytes, tuple[bytes, ...]]]) -> KeptView:
        """The view, and these neighbours by topic, for the next process."""
        held = [(it.entry, it.introducer) for it in self.known.values() if it.held_until]
        far = [self.known[one] for one in {one for _, links in topics for one in links} if one in self.known]
        others = [(it.entry, UNINVITED) for it in far if not it.held_until]
        return KeptView((*held, *others), tuple(topics))

    def renew(self, me: MemberEntry) -> list[Send]:
        """Our certificate is another: all neighbours hear of it, and nobody beyond them now."""
        self.me = me
        return [tell(one, MeshKind.JOIN, me.listed(), self._limits.hops_max) for one in self.known]

    # --- time ---

    def tick(self, now: float) -> list[Send]:
        """Forget who is lost, say that we are alive, knock again where it is time."""
        for one, it in list(self.known.items()):
            if it.held_until and it.held_until <= now:
                it.held_until = 0.0
            wanted = _in_graph(it) or it.pinned_until > now
            if not wanted or now - (it.since if it.heard is None else it.heard) > self._limits.lost_s:
                del self.known[one]
        sends = []
        if now >= self._alive_at:
            self._alive_at = now + self._limits.alive_s
            sends = [tell(one, MeshKind.ALIVE, int(bool(it.held_until))) for one, it in self.known.items()]
        is_alone = not self.neighbours and now >= self._again_at
        return sends + (self._knock(now) if is_alone or now >= self._renew_at else [])

    def leave(self) -> list[Send]:
        """Say goodbye; those who hold us get others of our view instead (SCAMP's unsubscription)."""
        view = self.view
        sends = []
        for one in self.known:
            others = [other for other in view if other != one]
            named = self._random.sample(others, min(len(others), self._limits.copies + 1))
            sends.append(tell(one, MeshKind.LEAVE, [self.known[other].entry.listed() for other in named]))
        self.known.clear()
        return sends

    def _knock(self, now: float) -> list[Send]:
        """Give our entry to the mesh: for the first time, again for the lease, or since nobody is left."""
        near, earlier, self._earlier = self.neighbours, self._earlier, ()
        sends = []
        for entry, introducer in earlier:
            with suppress(Refused):
                self._check(entry, now)
                sends += self._hold(entry, introducer, now) if self._has_room(introducer) else []
        return sends + self._give_entry(near, now)

    def _give_entry(self, near: list[bytes], now: float) -> list[Send]:
        self._again_at = now + self._limits.again_s
        self._renew_at = now + self._limits.lease_s * self._random.uniform(0.5, 0.8)
        contacts = self._others if self._others and self._random.random() < 0.5 else self._contacts or self._others
        # A contact now and then, so that two halves that lost each other meet again.
        if contacts and (not near or self._random.random() < 0.2):
            contact, introducer = self._random.choice(contacts)
            sends = [] if contact.identity in near else self._hold(contact, introducer, now)
            return [*sends, tell(contact.identity, MeshKind.JOIN, self.me.listed(), 0)]
        return [tell(self._random.choice(near), MeshKind.JOIN, self.me.listed(), 0)] if near else []

    # --- what neighbours say ---

    def receive(self, frame: MeshFrame, sender: bytes, now: float) -> list[Send]:
        """Raises `Refused`."""
        match frame.kind:
            case MeshKind.JOIN:
                fields = frame.fields(2)
                return self._join(MemberEntry.read(fields), fields.number(self._limits.hops_max), sender, now)
            case MeshKind.HOLD:
                return self._held_by(MemberEntry.read(frame.fields(1)), sender, now)
            case MeshKind.LEAVE:
                named = frame.fields(1).each(self._limits.replacements_max)
                return self._left([MemberEntry.read(one) for one in named], sender, now)
            case _:
                return self._alive(frame, sender, now)

    def _join(self, entry: MemberEntry, hops: int, sender: bytes, now: float) -> list[Send]:
        self._check(entry, now)
        newcomer = entry.identity
        if newcomer == self.me.identity:
            return []
        view = [one for one in self.view if one != newcomer]
        if sender == newcomer:
            self._check_patience(newcomer, now)
            self._refresh(entry)
        elif sender not in self.known:
            raise Refused("join: brought by a stranger", reason="stranger")
        if hops < self._limits.steps and view:
            return [tell(self._random.choice(view), MeshKind.JOIN, entry.listed(), hops + 1)]
        if hops <= self._limits.steps and view:
            extra = [self._random.choice(view) for _ in range(self._limits.copies)]
            return [tell(one, MeshKind.JOIN, entry.listed(), self._limits.steps + 1) for one in (*view, *extra)]
        if not view or self._random.random() < 1 / (1 + len(view)):
            it = self.known.get(newcomer)
            if it is not None and it.held_until:
                it.held_until = now + self._limits.lease_s
                return []
            if self._has_room(sender):
                return self._hold(entry, sender, now)
        if not view or hops >= self._limits.hops_max:
            return []
        return [tell(self._random.choice(view), MeshKind.JOIN, entry.listed(), hops + 1)]

    def _check_patience(self, newcomer: bytes, now: float) -> None:
        """Each knock is worth as many messages as a view has entries: nobody knocks all the time."""
        if now - self._knocks.get(newcomer, float("-inf")) < self._limits.again_s * 0.9:
            raise Refused("join: it knocked just now", reason="too-many-requests")
        self._knocks[newcomer] = now
        self._knocks.move_to_end(newcomer)
        if len(self._knocks) > self._limits.knocks_max:
            self._knocks.popitem(last=False)

    def _hold(self, entry: MemberEntry, introducer: bytes, now: float) -> list[Send]:
        if entry.identity == self.me.identity:
            return []
        it = self.known.setdefault(entry.identity, Neighbour(entry, since=now))
        it.introducer, it.held_until = introducer, now + self._limits.lease_s
        return [tell(entry.identity, MeshKind.HOLD, self.me.listed())]

    def _held_by(self, entry: MemberEntry, sender: bytes, now: float) -> list[Send]:
        if entry.identity != sender:
            raise Refused("hold: somebody else's entry", reason="not-yours")
        self._check(entry, now)
        it = self.known.get(sender)
        if not (it and it.holds_us) and sum(one.holds_us for one in self.known.values()) >= self._limits.holders_max:
            return [tell(sender, MeshKind.LEAVE, [])]
        if it is None:
            it = self.known[sender] = Neighbour(entry, since=now)
        it.holds_us, it.heard = True, now
        self._refresh(entry)
        self._told[0].discard(sender)  # it may have been started again, and know nothing: it counts as new
        return [tell(sender, MeshKind.ALIVE, int(bool(it.held_until)))]

    def _alive(self, frame: MeshFrame, sender: bytes, now: float) -> list[Send]:
        holds, it = bool(frame.fields(1).number(1)), self.known.get(sender)
        if it is None:  # we were started again, or let it go: it shall not count on us
            return [tell(sender, MeshKind.LEAVE, [])]
        if not holds:
            it.holds_us = False
        elif not it.holds_us:
            return self._held_by(it.entry, sender, now)
        return []

    def _left(self, named: list[MemberEntry], sender: bytes, now: float) -> list[Send]:
        it = self.known.get(sender)
        if it is None:
            return []
        was_held = bool(it.held_until)
        it.held_until, it.holds_us = 0.0, False
        if it.pinned_until <= now:  # a topic may need the link all the same
            del self.known[sender]
        if not was_held:
            return []
        sends = []
        for entry in named:
            self._check(entry, now)
            if entry.identity not in self.known and self._has_room(sender):
                sends += self._hold(entry, sender, now)
        return sends

    def _refresh(self, entry: MemberEntry) -> None:
        """What a neighbour says of itself, with a later certificate or at another address. Nobody else is asked: the
        address is not signed."""
        it = self.known.get(entry.identity)
        if it is not None and entry.until_ms >= it.entry.until_ms:
            it.entry = entry

    # --- room ---

    def _check(self, entry: MemberEntry, now: float) -> None:
        """Raise `Refused` unless it is a member's. An entry comes again and again, and is judged once in `again_s`."""
        if now - self._judged.get(entry, float("-inf")) < self._limits.again_s:
            return
        self._judge(entry, now)
        self._judged.pop(entry, None)
        self._judged[entry] = now
        if len(self._judged) > self._limits.knocks_max:
            self._judged.popitem(last=False)

    def _has_room(self, introducer: bytes) -> bool:
        """Whether the view takes one more entry that this neighbour brings."""
        if len(self.view) >= self._limits.view_max:
            return False
        lines = [self._line(self.known[one].introducer) for one in self.view]
        bounds = dict.fromkeys(self._line(introducer), self._limits.introduced_max)
        bounds[UNINVITED] = self._limits.uninvited_max if UNINVITED in bounds else len(lines) + 1
        return all(sum(one in line for line in lines) < most for one, most in bounds.items())

    def _line(self, introducer: bytes) -> set[bytes]:
        """Who brought an entry, who brought that one, and so on, up to one whom we knew ourselves or do not hold."""
        line: set[bytes] = set()
        while introducer and introducer not in line:
            line.add(introducer)
            it = self.known.get(introducer)
            if it is None or not it.held_until:
                return line | {UNINVITED}
            introducer = it.introducer
        return line


def _in_graph(it: Neighbour) -> bool:
    return bool(it.held_until) or it.holds_us
