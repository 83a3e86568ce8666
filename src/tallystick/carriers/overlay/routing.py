"""Which claims count at a relay, and who is told: advertisements flood, subscriptions follow them back (000, Fig. 4).

Each relay of a virtual node sends to each relay of the next, so a claim (`claims.py`) comes up to n times: the first
valid copy counts and is passed on once. What counts stands in `tables.py`, and `claim_store.py` bounds it.

Threat: up to f relays of each virtual node forge claims, replay them, keep them back, send them the wrong way, flood.
Invariant: a live subscription leads publications along the tree's one path to its edge, and nowhere else, whoever told
of it. Sketch: the direction is the plan's, for the edge that the principal signed. From any virtual node at which a
publication arrives, that direction either is where it came from, and it does not go back, or leads on along the path.
So a claim too many is never a wrong way. It remains that every honest relay along the path has a claim that covers it:
of n copies n−f come from honest relays, and what was lost is told again (`state_for`: when a link comes up, and from
time to time).

Old claims. A fresh claim speaks for itself. An old one may have been undone while nobody remembers: it counts when f+1
relays of one virtual node, hence an honest one, tell of it. Undo orders are the authority's final word and count at any
age. They are remembered until the ledger knows them (`is_ended`) or the permit is over. Within `delay_max_s` a liar can
show an undone claim to relays that heard neither it nor its order: until the ledger says so it leads to its edge.

Two claims under one permit for two edges: the later counts. A principal that moves tells both edges, so that all who
know the earlier claim hear of the later one, and whoever has it answers an earlier one with it. A principal that tells
the new edge alone may be sent publications at the old one until its permit ends.

Left out: claims for publications, since edges check each parcel's permit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from tallystick.carriers.overlay.claim_store import ClaimStore, RoutingLimits
from tallystick.carriers.overlay.claims import Claim
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.notices import Notice, NoticeKind, RoutingState, states
from tallystick.carriers.overlay.surroundings import Branches
from tallystick.carriers.overlay.tables import News, RouteEntry, RoutingTables
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.guards.route import RoutingGuard
from tallystick.parcel.header import Header
from tallystick.parcel.labels import Wanted
from tallystick.runtime.effects import Send
from tallystick.trust.permit import Permit
from tallystick.trust.plan import Plan

# Refusals that hang on this relay's own memory: whoever sent the claim must not think that it covers others here.
_TOLD = frozenset({"too-many-claims", "tables-full", "too-many-requests", "blacklisted", "permit-ended"})


@dataclass(frozen=True)
class RoutingStatistics:
    """The first two are sizes, the others counts since the start."""

    live: int
    undone: int
    accepted: int
    repeated: int
    refused: Mapping[str, int]  # by reason


class Routing:
    """What one relay knows of claims: `receive` takes one, `branches` says where a publication goes.

    Times are seconds since 1970: claims are signed with the time of their making.
    """

    def __init__(
        self,
        me: bytes,
        plan: Plan,
        guard: RoutingGuard,
        is_ended: Callable[[bytes], bool],
        is_clear: Callable[[bytes], bool] = lambda token: False,
        limits: RoutingLimits = RoutingLimits(),
        share_of: Callable[[bytes], bytes] = lambda principal: principal,
    ) -> None:
        """`is_ended` says of a permit's identifier whether the ledger ended it, `is_clear` of a token whether the
        topic's entry allows matching in the clear, `share_of` of a principal by whose share it is counted."""
        self._me, self._guard, self._is_ended, self._is_clear = me, guard, is_ended, is_clear
        self._store = ClaimStore(limits, share_of)
        self._refused: Counter[str] = Counter()
        self._accepted = self._repeated = 0
        self._place(plan)

    def branches(self, tokens: Sequence[bytes], came_from: bytes | None, header: Header | None = None) -> Branches:
        """Where a publication under these tokens goes that came from a neighbouring virtual node, or with None from a
        client: neighbours, and principals here. Nowhere, if no advertiser is there. A header's labels count."""
        source = self.node.identifier if came_from is None else came_from
        if len(tokens) == 1:
            return self._tables.branches(tokens[0], source, header)
        found = [self._tables.branches(token, source, header) for token in tokens]
        nodes, subscribers = ({name for one in found for name in one[part]} for part in (0, 1))
        return Branches(tuple(sorted(nodes)), tuple(sorted(subscribers)))

    def subscriptions(self, token: bytes) -> tuple[Permit, ...]:
        """The live subscriptions of clients here."""
        return self._tables.subscriptions(token)

    def grown(self) -> set[bytes]:
        """Tokens that may have got a branch since this was last asked: it is to be served what is kept for it."""
        grown, self._tables.grown = self._tables.grown, set()
        return grown

    def statistics(self) -> RoutingStatistics:
        sizes = len(self._store.live), len(self._store.undone)
        return RoutingStatistics(*sizes, self._accepted, self._repeated, dict(self._refused))

    def receive(self, content: bytes, sender: bytes, now: float) -> list[Send]:
        """The content of a ROUTE frame from a relay or a client. What is refused is counted and goes no further."""
        try:
            return self.take(content, sender, now)
        except Refused as error:
            self._refused[error.reason] += 1
            if error.reason not in _TOLD or self._plan.place(sender) is None:
                return []
            notice = Notice(NoticeKind.REFUSE, Claim.decode(content).identifier, self._plan.version)
            return [self._frame(sender, FrameKind.NOTICE, notice.encode())]

    def receive_state(self, content: bytes, sender: bytes, now: float) -> tuple[bool, list[Send]]:
        """The content of a STATE frame from a relay: whether it was the last, and what follows. Raises `Malformed`."""
        state = RoutingState.decode(content)
        return state.is_last, [send for claim in state.claims for send in self.receive(claim, sender, now)]

    def receive_refusal(self, notice: Notice, sender: bytes) -> list[Send]:
        """A relay has no place for a claim that we sent."""
        place, entry = self._plan.place(sender), self._store.live.get(notice.subject)
        return self._tell(self._tables.refuse(entry, place[0].identifier)) if place and entry else []

    def take(self, content: bytes, sender: bytes, now: float) -> list[Send]:
        """As `receive`, but raises `Refused`: a client may be told why."""
        digest = sha256(content).digest()
        if digest in self._store.digests:
            self._repeated += 1
            return []
        claim = Claim.decode(content)
        claim.permit.check_time(int(now * 1000))
        if claim.order is not None:
            return self._take_back(claim, digest, sender, now)
        towards, old = self._towards(claim.edge), self._store.live.get(claim.identifier)
        if self.has_ended(claim.identifier):
            return self._refuse_ended(claim, sender)
        if old and (old.claim.edge == claim.edge or _rank(old.claim) > _rank(claim)):
            return self._repeat(old, claim, digest, sender, now)
        if old is None:
            self._store.check_room(claim.permit.principal)
        vouched = self._is_vouched(claim, towards, sender, now, is_known=old is not None)
        self._guard.check(claim.message, now, vouched=vouched)
        self._accepted += 1
        entry = RouteEntry(claim, digest, towards, Wanted(claim.permit.labels))
        told = (old.told | {old.towards}) - {towards} if old else set()
        news = self._drop(old) if old else []
        self._store.keep(entry)
        news += self._tables.add(entry)
        news += [(node, entry) for node in sorted(told - entry.told)]  # they hold the old one, also on its own side
        entry.told |= told
        return self._tell(news)

    def _take_back(self, claim: Claim, digest: bytes, sender: bytes, now: float) -> list[Send]:
        old = self._store.live.get(claim.identifier)
        if claim.identifier in self._store.undone:
            self._repeated += 1
            return []
        if self._plan.place(sender) is None and sender not in (claim.permit.principal, claim.permit.authority):
            raise Refused("claim: neither a relay nor its principal brought it", reason="not-yours")
        if old is None:
            self._store.check_room(claim.permit.principal)
        self._guard.check(claim.message, now, vouched=True)
        self._accepted += 1
        news = self._drop(old) if old else []
        entry = RouteEntry(claim, digest, b"", Wanted(()), old.told if old else set())
        self._store.keep(entry)
        return self._tell(news + [(node, entry) for node in sorted(entry.told)])

    def has_ended(self, identifier: bytes) -> bool:
        """Whether a permit was taken back, by its order or on the ledger."""
        return identifier in self._store.undone or self._is_ended(identifier)

    def _refuse_ended(self, claim: Claim, sender: bytes) -> list[Send]:
        """A relay that missed the order gets it."""
        undone = self._store.undone.get(claim.identifier)
        if undone is None or self._plan.place(sender) is None:
            raise Refused("claim: its permit ended", reason="permit-ended")
        self._refused["permit-ended"] += 1
        return [self._frame(sender, FrameKind.ROUTE, undone.claim.data)]

    def _repeat(self, old: RouteEntry, claim: Claim, digest: bytes, sender: bytes, now: float) -> list[Send]:
        """Its principal says again where it is, or was elsewhere before; a relay that does not know gets the later."""
        self._repeated += 1
        if old.claim.edge != claim.edge:
            is_relay = self._plan.place(sender) is not None
            return [self._frame(sender, FrameKind.ROUTE, old.claim.data)] if is_relay else []
        if _rank(old.claim) < _rank(claim) and not self._guard.is_stale(claim.message, now):
            self._guard.check(claim.message, now)
            self._store.renew(old, claim, digest)  # it means the same, so nobody is told
        return []

    def _is_vouched(self, claim: Claim, towards: bytes, sender: bytes, now: float, is_known: bool) -> bool:
        """Whether the claim is old, and f+1 relays of one virtual node tell of it. Raises `Refused` where they do not,
        and for a claim from the wrong side, unless an earlier one of its permit is known here."""
        place, is_here = self._plan.place(sender), towards == self.node.identifier
        stale = self._guard.is_stale(claim.message, now)
        if place is None:
            if sender != claim.permit.principal or not (is_here or is_known):
                raise Refused("claim: a client brings its own, to its edge", reason="misrouted")
            return False
        # Of what is linked here neighbours may remind us; other fresh claims come from their own side.
        if place[0].identifier != towards and not is_known and not (is_here and stale):
            raise Refused("claim: it came from where its edge is not", reason="misrouted")
        if stale:
            self._store.vote(claim, sender, place[0])
        return stale

    def _drop(self, entry: RouteEntry) -> News:
        self._store.forget(entry)
        return self._tables.remove(entry)

    def sweep(self, now: float) -> list[Send]:
        """Forget permits that are over or that the ledger ended; to be called from time to time and after blocks."""

        def is_over(entry: RouteEntry) -> bool:
            return now * 1000 >= entry.claim.permit.not_after_ms or self._is_ended(entry.claim.identifier)

        for entry in [entry for entry in self._store.undone.values() if is_over(entry)]:
            self._store.forget(entry)
        over = [entry for entry in self._store.live.values() if is_over(entry)]
        return self._tell([news for entry in over for news in self._drop(entry)])

    def adopt(self, plan: Plan) -> list[Send]:
        """Go by another version of the plan. Claims at edges that it does not have are forgotten. Relays that are new
        in it hear what they were not told since they asked."""
        before, news = self._plan, self._tell(self._place(plan))
        for node in (self.node, *plan.neighbours(self.node.identifier)):
            for name in node.names:
                news += [] if before.place(name) else self.state_for(name, node.identifier)
        return news

    def _place(self, plan: Plan) -> News:
        found = plan.place(self._me)
        if found is None:
            raise Misuse(f"plan {plan.version}: no relay {self._me.hex()}")
        self._plan, self.node = plan, found[0]
        self._ways: dict[bytes, bytes] = {}
        self._store.forget_votes(plan)
        neighbours = [node.identifier for node in plan.neighbours(self.node.identifier)]
        self._tables = RoutingTables(self.node.identifier, neighbours, self._is_clear)
        for entry in list(self._store.live.values()):
            try:
                entry.towards = self._towards(entry.claim.edge)
            except Refused as error:
                self._refused[error.reason] += 1
                self._store.forget(entry)
        return self._tables.load(self._store.live.values())

    def _towards(self, edge: bytes) -> bytes:
        """The next virtual node on the way to an edge, or our own."""
        if edge not in self._ways:
            try:
                path = self._plan.path(self.node.identifier, edge)
            except Malformed:
                raise Refused("claim: the plan has no such edge", reason="unknown-edge") from None
            self._ways[edge] = path[min(1, len(path) - 1)].identifier
        return self._ways[edge]

    def state_for(self, relay: bytes, node: bytes) -> list[Send]:
        """All that a relay of this virtual node, a neighbour or our own, is to know: STATE frames."""
        known = {entry.claim.identifier: entry for entry in self._tables.due(node)}
        for entry in (*self._store.live.values(), *self._store.undone.values()):
            if node in entry.told or node == entry.claim.edge:
                known[entry.claim.identifier] = entry
        parts = states(known[identifier].claim.data for identifier in sorted(known))
        return [self._frame(relay, FrameKind.STATE, part.encode()) for part in parts]

    def _tell(self, news: Iterable[tuple[bytes, RouteEntry]]) -> list[Send]:
        sends = [(name, entry) for node, entry in news for name in self._plan.node(node).names if name != self._me]
        return [self._frame(name, FrameKind.ROUTE, entry.claim.data) for name, entry in sends]

    def _frame(self, relay: bytes, kind: FrameKind, content: bytes) -> Send:
        return Send(relay.hex(), OverlayFrame(kind, self._plan.version, content).encode())


def _rank(claim: Claim) -> tuple[int, bytes]:
    """Of two claims under one permit for two edges the greater counts."""
    return claim.message.created_ms, claim.message.identifier
