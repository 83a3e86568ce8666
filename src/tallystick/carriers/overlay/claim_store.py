"""The claims that a relay keeps, live and undone, within bounds; and who told of old ones that do not count yet.

Threat: principals, or relays, that fill a relay's memory. Each principal has its own room, and all together have some;
what is beyond is refused, and nothing is forgotten early. A relay that tells of old claims without end pushes out what
it told itself, and nobody else's word.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tallystick.carriers.overlay.claims import Claim
from tallystick.carriers.overlay.tables import RouteEntry
from tallystick.errors import Refused
from tallystick.trust.plan import Plan, VirtualNode


@dataclass(frozen=True)
class RoutingLimits:
    claims_max: int = 65_536  # live and undone ones together, some 150 MiB of permits and signatures
    principal_max: int = 64  # of one principal: a device has a handful of topics
    votes_max: int = 8_192  # old claims that one relay may tell of and that do not count yet


class ClaimStore:
    def __init__(self, limits: RoutingLimits) -> None:
        self._limits = limits
        self.live: dict[bytes, RouteEntry] = {}  # by permit
        self.undone: dict[bytes, RouteEntry] = {}
        self._digests: set[bytes] = set()  # of both: a repetition costs a look
        self._held: Counter[bytes] = Counter()  # by principal
        self._votes: dict[bytes, dict[tuple[bytes, bytes], None]] = {}  # by relay: (permit, edge)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    def check_room(self, principal: bytes) -> None:
        """Raise `Refused` if there is none for one more."""
        if self._held[principal] >= self._limits.principal_max:
            raise Refused(f"claim: more than {self._limits.principal_max} of one principal", reason="too-many-claims")
        if len(self.live) + len(self.undone) >= self._limits.claims_max:
            raise Refused(f"claim: the tables hold {self._limits.claims_max}", reason="tables-full")

    def keep(self, entry: RouteEntry) -> None:
        """Among the live or the undone."""
        claim = entry.claim
        (self.live if claim.order is None else self.undone)[claim.identifier] = entry
        self._digests.add(entry.digest)
        self._held[claim.permit.principal] += 1
        for votes in self._votes.values():
            votes.pop((claim.identifier, claim.edge), None)

    def forget(self, entry: RouteEntry) -> None:
        claim = entry.claim
        del (self.live if claim.order is None else self.undone)[claim.identifier]
        self._digests.discard(entry.digest)
        self._held[claim.permit.principal] -= 1
        if not self._held[claim.permit.principal]:
            del self._held[claim.permit.principal]

    def renew(self, entry: RouteEntry, claim: Claim, digest: bytes) -> None:
        """Put a later claim in the place of one that means the same."""
        self._digests.discard(entry.digest)
        self._digests.add(digest)
        entry.claim, entry.digest = claim, digest

    def vote(self, claim: Claim, relay: bytes, node: VirtualNode) -> None:
        """A relay of `node` tells of an old claim. Raises `Refused` unless f+1 of its relays do."""
        key, votes = (claim.identifier, claim.edge), self._votes.setdefault(relay, {})
        votes[key] = None
        if len(votes) > self._limits.votes_max:
            del votes[next(iter(votes))]
        telling = sum(key in self._votes.get(one.identifier, ()) for one in node.relays)
        if telling <= node.faults:
            raise Refused(f"claim: old, and {telling} of {node.faults + 1} relays tell of it", reason="unvouched")

    def forget_votes(self, plan: Plan) -> None:
        """Of relays that a new plan does not name."""
        self._votes = {relay: votes for relay, votes in self._votes.items() if plan.place(relay)}
