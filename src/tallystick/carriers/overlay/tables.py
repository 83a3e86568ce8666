"""The two tables of a relay (000, Fig. 4): the SRT says where advertisers are, the PRT where subscribers are.

Here stand claims that count already (`routing.py` says which), each with the direction of its edge. In come claims that
are new or over; out goes what neighbouring virtual nodes are to be told, and where a publication goes.

Covering. Towards a neighbour travel only claims that no other claim covers (`Wanted.covers`): of advertisements one for
each token, of subscriptions the widest. The choice is a function of the set, not of who came first, so that honest
relays tell the same. Whatever a claim covered is due again when the claim goes. So a direction's entry in the tables is
the set of permits behind it, and is gone when the set is empty.

Threat: a subscriber that is widest here and refused over there, having spent its share of that table, or which goes to
another edge: those whom it covers would get nothing. So a claim covers nobody towards a neighbour of which one relay
refused it, and who has a newer claim tells (`routing.py`). A relay that refuses for no reason costs us the saving:
after `REFUSALS_MAX` of a token nothing covers anything there, so that choosing anew is done a few times and no more.

Cost: a publication takes two looks into a dictionary where labels say nothing. A claim is compared with those that no
other covers, and one that covered others makes its token's choice anew, once for each neighbour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick.carriers.overlay.claims import Claim
from tallystick.carriers.overlay.surroundings import NOWHERE, Branches
from tallystick.parcel.header import Header
from tallystick.parcel.labels import Wanted
from tallystick.trust.permit import Operation, Permit

ADVERTISE, SUBSCRIBE = Operation.ADVERTISE, Operation.SUBSCRIBE
REFUSALS_MAX = 8  # of a token by a neighbour, while we still choose


@dataclass(slots=True, eq=False)
class RouteEntry:
    """A claim that counts, or the undo order that ended one."""

    claim: Claim
    digest: bytes  # of its bytes
    towards: bytes  # the virtual node next to here on the way to its edge, or our own
    wanted: Wanted
    told: set[bytes] = field(default_factory=set)  # virtual nodes that it was sent to
    refused: set[bytes] = field(default_factory=set)  # those of them of which a relay refused it

    @property
    def key(self) -> tuple[Operation, bytes]:
        return self.claim.permit.operation, self.claim.permit.token


News = list[tuple[bytes, RouteEntry]]  # virtual nodes, and what to tell each of its relays


class _Routes(NamedTuple):
    """A token's PRT, made for publications: by direction what is wanted there; None where all of it is."""

    nodes: tuple[tuple[bytes, tuple[Wanted, ...] | None], ...]
    here: tuple[RouteEntry, ...]
    plain: dict[bytes, Branches]  # by where an advertiser is: all branches, whatever the labels
    labelled: bool


class RoutingTables:
    """What a relay of the virtual node `here` knows, and what its neighbours are to know."""

    def __init__(self, here: bytes, neighbours: Iterable[bytes], is_clear: Callable[[bytes], bool]) -> None:
        self._here, self._neighbours, self._is_clear = here, tuple(neighbours), is_clear
        self._tables: dict[tuple[Operation, bytes], dict[bytes, RouteEntry]] = {}  # by kind and token, then by permit
        self._advertised: dict[bytes, Counter[bytes]] = {}  # by token: advertisers in each direction
        self._due: dict[tuple[Operation, bytes, bytes], dict[bytes, RouteEntry]] = {}  # by kind, token and neighbour
        self._uncovered: set[tuple[Operation, bytes, bytes]] = set()  # keys of `_due` where nothing covers anything
        self._routes: dict[bytes, _Routes] = {}
        self.grown: set[bytes] = set()  # tokens that got a claim since somebody looked

    def branches(self, token: bytes, came_from: bytes, header: Header | None) -> Branches:
        routes = self._routes.get(token) or self._compile(token)
        plain = routes.plain.get(came_from, NOWHERE)
        if not routes.labelled or header is None or not header.labels or plain is NOWHERE:
            return plain
        nodes = tuple(
            node
            for node, wanted in routes.nodes
            if node != came_from and (wanted is None or any(one.asks_for(header) for one in wanted))
        )
        return Branches(nodes, _holders(one for one in routes.here if one.wanted.asks_for(header)))

    def subscriptions(self, token: bytes) -> tuple[Permit, ...]:
        return tuple(entry.claim.permit for entry in (self._routes.get(token) or self._compile(token)).here)

    def _compile(self, token: bytes) -> _Routes:
        entries = self._tables.get((SUBSCRIBE, token), {}).values()
        by_node: dict[bytes, list[Wanted]] = {}
        for entry in entries:
            by_node.setdefault(entry.towards, []).append(entry.wanted)
        by_node.pop(self._here, None)
        here = tuple(entry for entry in entries if entry.towards == self._here)
        nodes = tuple((node, tuple(wanted) if all(wanted) else None) for node, wanted in sorted(by_node.items()))
        holders = _holders(here)
        plain = {
            source: Branches(tuple(node for node, _ in nodes if node != source), holders)
            for source in self._advertised.get(token, ())
        }
        labelled = any(wanted for _, wanted in nodes) or any(entry.wanted for entry in here)
        routes = _Routes(nodes, here, plain, labelled)
        if plain:
            self._routes[token] = routes  # what nobody advertised is not remembered: anybody can ask for it
        return routes

    def add(self, entry: RouteEntry) -> News:
        """Enter a claim. Returns what is to be told now: the claim, and subscriptions that it attracts."""
        operation, token = entry.key
        self._enter(entry)
        news = self._untold(self._here, [entry] if entry.towards == self._here else [])  # to those who replicate us
        for node in self._neighbours:
            if self._is_for(entry, node):
                news += self._untold(node, self._fold(node, self._due.setdefault((*entry.key, node), {}), entry))
        if operation is ADVERTISE and self._advertised[token][entry.towards] == 1:
            news += self._settle(SUBSCRIBE, token, entry.towards)
        return news

    def remove(self, entry: RouteEntry) -> News:
        """Forget a claim. Returns what it covered and is to be told now."""
        operation, token = entry.key
        table = self._tables[entry.key]
        del table[entry.claim.identifier]
        if not table:
            del self._tables[entry.key]
        self._routes.pop(token, None)
        if operation is ADVERTISE:
            self._unadvertise(token, entry.towards)
        news: News = []
        for node in self._neighbours:
            if entry.claim.identifier in self._due.get((operation, token, node), ()):
                news += self._settle(operation, token, node)
        return news

    def load(self, entries: Iterable[RouteEntry]) -> News:
        """Enter all claims at once, those of an earlier plan. Returns what neighbours have not been told yet."""
        for entry in entries:
            entry.told &= {self._here, *self._neighbours}
            self._enter(entry)
        return [news for node in self._neighbours for key in self._tables for news in self._settle(*key, node)]

    def refuse(self, entry: RouteEntry, node: bytes) -> News:
        """A relay of a neighbour refused a claim. Returns what the claim covered there, to be told now."""
        key, due = (*entry.key, node), self._due.get((*entry.key, node), {})
        if node in entry.refused or key in self._uncovered or entry.claim.identifier not in due:
            return []
        entry.refused.add(node)
        if sum(node in one.refused for one in self._tables[entry.key].values()) > REFUSALS_MAX:
            self._uncovered.add(key)
        return self._settle(*entry.key, node)

    def due(self, node: bytes) -> Iterator[RouteEntry]:
        """All that a neighbour, or whoever replicates us, is to know."""
        if node == self._here:
            yield from (one for table in self._tables.values() for one in table.values() if one.towards == node)
        for (_, _, neighbour), due in self._due.items():
            if neighbour == node:
                yield from due.values()

    def _enter(self, entry: RouteEntry) -> None:
        operation, token = entry.key
        self._tables.setdefault(entry.key, {})[entry.claim.identifier] = entry
        self._routes.pop(token, None)
        self.grown.add(token)
        if operation is ADVERTISE:
            self._advertised.setdefault(token, Counter())[entry.towards] += 1

    def _unadvertise(self, token: bytes, towards: bytes) -> None:
        directions = self._advertised[token]
        directions[towards] -= 1
        if not directions[towards]:
            del directions[towards]
            self._due.pop((SUBSCRIBE, token, towards), None)
        if not directions:
            del self._advertised[token]

    def _is_for(self, entry: RouteEntry, node: bytes) -> bool:
        """Whether a neighbour has use for a claim: it comes from elsewhere, and a subscription finds advertisers."""
        operation, token = entry.key
        return entry.towards != node and (operation is ADVERTISE or node in self._advertised.get(token, ()))

    def _settle(self, operation: Operation, token: bytes, node: bytes) -> News:
        """Choose anew what a neighbour is to know of a token. Returns what it has not been told."""
        due: dict[bytes, RouteEntry] = {}
        for entry in self._tables.get((operation, token), {}).values():
            if node in self._neighbours and self._is_for(entry, node):
                self._fold(node, due, entry)
        self._due.pop((operation, token, node), None)
        if due:
            self._due[operation, token, node] = due
        else:
            self._uncovered.discard((operation, token, node))
        return self._untold(node, due.values())

    def _fold(self, node: bytes, due: dict[bytes, RouteEntry], entry: RouteEntry) -> list[RouteEntry]:
        """Keep the widest. Returns the entry, if it is one of them."""
        if (*entry.key, node) in self._uncovered:
            due[entry.claim.identifier] = entry
            return [entry]
        if any(self._dominates(node, other, entry) for other in due.values()):
            return []
        for identifier in [identifier for identifier, other in due.items() if self._dominates(node, entry, other)]:
            del due[identifier]
        due[entry.claim.identifier] = entry
        return [entry]

    def _dominates(self, node: bytes, one: RouteEntry, other: RouteEntry) -> bool:
        """Whether one covers the other; of two that cover each other, the one with the smaller identifier does."""
        first = one.claim.identifier < other.claim.identifier
        if node in one.refused:
            return False
        if one.claim.permit.operation is ADVERTISE:
            return first or node in other.refused
        clear = self._is_clear(one.claim.permit.token)
        return one.wanted.covers(other.wanted, clear) and (
            first or node in other.refused or not other.wanted.covers(one.wanted, clear)
        )

    def _untold(self, node: bytes, entries: Iterable[RouteEntry]) -> News:
        news = [(node, entry) for entry in entries if node not in entry.told]
        for _, entry in news:
            entry.told.add(node)
        return news


def _holders(entries: Iterable[RouteEntry]) -> tuple[bytes, ...]:
    return tuple(sorted({entry.claim.permit.principal for entry in entries}))
