"""The claims that a relay keeps, live and undone, within bounds; and who told of old ones that do not count yet.

Threat: principals, or relays, that fill a relay's memory. Each principal has its own room, those of one tenant have
some together, since a tenant may enrol as many as it likes, and so have all; what is beyond is refused, and nothing is
forgotten early. A relay that tells of old claims without end pushes out what it told itself, and nobody else's word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tallystick.carriers.overlay.claims import Claim
from tallystick.carriers.overlay.tables import RouteEntry
from tallystick.errors import Refused
from tallystick.trust.plan import Plan, VirtualNode


@dataclass(frozen=True)
class RoutingLimits:
    claims_max: int = 65_536  # live and undone ones together, some 150 MiB of permits and signatures
    tenant_max: int = 16_384  # of all principals of a tenant: a quarter of it all
    principal_max: int = 64  # of one principal: a device has a handful of topics
    votes_max: int = 8_192  # old claims that one relay may tell of and that do not count yet


class ClaimStore:
    def __init__(self, limits: RoutingLimits, share_of: Callable[[bytes], bytes]) -> None:
        """`share_of` says by whose share a principal is counted: its tenant's."""
        self._limits, self._share_of = limits, share_of
        self.live: dict[bytes, RouteEntry] = {}  # by permit
        self.undone: dict[bytes, RouteEntry] = {}
        self.digests: set[bytes] = set()  # of both: a repetition costs a look
        self._held: Counter[bytes] = Counter()  # by principal, and by tenant
        self._tenants: dict[bytes, bytes] = {}  # of principals that hold some, as they were counted
        self._votes: dict[bytes, dict[tuple[bytes, bytes], None]] = {}  # by relay: (permit, edge)

    def check_room(self, principal: bytes) -> None:
        """Raise `Refused` if there is none for one more."""
        tenant = self._tenant(principal)
        if self._held[principal] >= self._limits.principal_max:
            raise Refused(f"claim: more than {self._limits.principal_max} of one principal", reason="too-many-claims")
        if tenant != principal and self._held[tenant] >= self._limits.tenant_max:
            raise Refused(f"claim: more than {self._limits.tenant_max} of one tenant", reason="too-many-claims")
        if len(self.live) + len(self.undone) >= self._limits.claims_max:
            raise Refused(f"claim: the tables hold {self._limits.claims_max}", reason="tables-full")

    def _tenant(self, principal: bytes) -> bytes:
        return self._tenants.get(principal) or self._share_of(principal)

    def keep(self, entry: RouteEntry) -> None:
        """Among the live or the undone."""
        claim = entry.claim
        (self.live if claim.order is None else self.undone)[claim.identifier] = entry
        self.digests.add(entry.digest)
        principal = claim.permit.principal
        tenant = self._tenants.setdefault(principal, self._tenant(principal))
        self._held.update({principal, tenant})
        for votes in self._votes.values():
            votes.pop((claim.identifier, claim.edge), None)

    def forget(self, entry: RouteEntry) -> None:
        claim = entry.claim
        del (self.live if claim.order is None else self.undone)[claim.identifier]
        self.digests.discard(entry.digest)
        principal = claim.permit.principal
        for who in {principal, self._tenants[principal]}:
            self._held[who] -= 1
            if not self._held[who]:
                del self._held[who]
        if principal not in self._held:
            del self._tenants[principal]

    def renew(self, entry: RouteEntry, claim: Claim, digest: bytes) -> None:
        """Put a later claim in the place of one that means the same."""
        self.digests.discard(entry.digest)
        self.digests.add(digest)
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
