"""What a relay knows of the ledger, read from its rows: plans, leases, anchors, keys, rights and permits.

`LedgerRules` says what rows mean, as it does for every guard, through a cache that blocks invalidate; here stands only
what overlays add. Everything is of the newest block that the relay has seen: two relays may differ by a block, and
what one refuses now the other sends again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tallystick.carriers.overlay.claims import holders_key
from tallystick.carriers.overlay.places import Lease
from tallystick.carriers.rules import LedgerRules
from tallystick.carriers.storage import Place
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged, Refused, Unavailable
from tallystick.guards.route import RoutingGuard
from tallystick.guards.rules import GuardLimits
from tallystick.ledger.contracts import leases, plans
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.permits import PERMITS
from tallystick.ledger.contracts.plans import OVERLAYS, PLANS
from tallystick.ledger.contracts.topics import CLEAR, TOPICS
from tallystick.parcel.header import SIGNATURE_CONTEXT, Header
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.peers import PinnedPeer
from tallystick.trust.certificate import SubjectKind
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.plan import Plan
from tallystick.trust.right import Right


class LedgerBearings:
    """Of one overlay, for one of its relays. `block` tells height and time of the newest block; `kept` the end of the
    log; `follows` whether a publisher's parcel is the next of its lane behind the log."""

    def __init__(
        self,
        rules: LedgerRules,
        overlay: bytes,
        block: Callable[[], tuple[int, int]],
        kept: Callable[[Place], int] | None = None,
        follows: Callable[[Place, bytes, Header], bool] = lambda place, publisher, header: True,
    ) -> None:
        self._rules, self._overlay, self.block, self._follows = rules, overlay, block, follows
        self._newest = block
        self.kept, self.read, self.share_of = kept or self.anchored, rules.read, rules.share_of
        self.key_of, self.is_ended = rules.verify_key, rules.permit_ended

    def look(self) -> None:
        """Go by the block that is the newest now, until the next look: who asks with every frame should not wait
        for validators."""
        seen = self._newest()
        self.block = lambda: seen

    def guard(self, limits: GuardLimits) -> RoutingGuard:
        """Judges claims by the authorities and the blacklist of this ledger."""
        return RoutingGuard(holders_key(self._rules.authority), _Blacklist(self._rules), limits)

    def plans(self) -> Sequence[tuple[int, Plan]]:
        """Those that are kept, from the one in force on, and the one before it; oldest first."""
        row, height = self._rules.read(OVERLAYS(self._overlay)), self.block()[0]
        found: list[tuple[int, Plan]] = []
        for version in range(0 if row is None else row.version, 0, -1):
            known, plan = self._rules.read(PLANS(self._overlay, version)), self.plan(version)
            if known is None or plan is None:
                break
            found.append((known.first, plan))
            if known.first <= height and len([one for one in found if one[0] <= height]) > 1:
                break
        return found[::-1]

    def newest_plan(self) -> Plan:
        plan = plans.plan_at(self._rules.read, self._overlay, self.block()[0])
        if plan is None:
            raise Unavailable(f"overlay {self._overlay.hex()}: no plan is in force")
        return plan

    def plan(self, version: int) -> Plan | None:
        """A version that is kept."""
        return plans.find_plan(self._rules.read, self._overlay, version)

    def peers(self) -> dict[str, PinnedPeer]:
        """Whom links may be with: the relays of all plans that matter now."""
        relays = [relay for _, plan in self.plans() for node in plan.nodes for relay in node.relays]
        return {relay.identifier.hex(): PinnedPeer(relay.address, relay.link_key) for relay in relays}

    def lease(self, place: Place) -> Lease | None:
        row = leases.find(self._rules.read, *place, self.block()[1])
        return None if row is None else Lease(row.holder, row.fence)

    def anchored(self, place: Place) -> int:
        row = self._rules.read(ANCHORS(*place))
        return 0 if row is None else row.size

    def is_next(self, place: Place, header: Header) -> bool:
        row = self._rules.read(PERMITS(header.topics[0].permit))
        return row is not None and self._follows(place, row.principal, header)

    def may_publish(self, publisher: bytes, tokens: Sequence[bytes]) -> bool:
        """To all of them, by rights that hold wherever it is: nobody can say here where a frame began."""
        return all(self._may(publisher, token, Right.WRITE) for token in tokens)

    def may_pull(self, subscriber: bytes, permit: bytes, tokens: Sequence[bytes], now: float) -> bool:
        """By its own permit for one of them: a lane's secret is for the readers of all its topics. Whether the permit
        was ended routing knows, sooner than the ledger."""
        row = self._rules.read(PERMITS(permit))
        if row is None or (row.operation, row.principal) != (Operation.SUBSCRIBE, subscriber):
            return False
        return row.token in tokens and now * 1000 < row.not_after_ms and self._may(subscriber, row.token, Right.READ)

    def _may(self, principal: bytes, token: bytes, right: Right) -> bool:
        rules = self._rules
        return rules.allows(principal, token, right, "") and not (
            rules.blacklisted(principal) or rules.is_over(principal, self.block()[1])
        )

    def check_permit(self, permit: Permit) -> None:
        """Raise `Refused` unless the ledger knows of it, and an authority, perhaps revoked since, signed it."""
        row, authority = self.read(PERMITS(permit.identifier)), self.read(IDENTITIES(permit.authority))
        named = permit.principal, permit.operation, permit.token
        if row is None or (row.principal, row.operation, row.token) != named:
            raise Refused("permit: the ledger knows of no such permit", reason="unknown-permit")
        if authority is None or authority.kind != SubjectKind.AUTHORITY:
            raise Refused("permit: its authority is not known", reason="unknown-authority")
        VerifyKey(authority.key).verify(permit.context, permit.signature, permit.body)

    def is_clear(self, token: bytes) -> bool:
        row = self._rules.read(TOPICS(token))
        return row is not None and bool(row.flags & CLEAR)

    def check_front(self, parcel: Parcel) -> None:
        """Raise `Refused` unless the header is signed by a publisher whose permits hold. That it is the next of its
        lane, and in a schema and an epoch that count, the relays said that promised it."""
        publisher = b""
        for topic in parcel.header.topics:
            row = self._rules.read(PERMITS(topic.permit))
            if row is None or (row.operation, row.token) != (Operation.ADVERTISE, topic.token):
                raise Refused("parcel: its permit is not known", reason="unknown-permit")
            publisher = publisher or row.principal
            if row.principal != publisher:
                raise Refused("parcel: permits of two publishers", reason="forged")
        key: VerifyKey | None = self._rules.verify_key(publisher)
        if key is None:
            raise Refused("parcel: its publisher is not known", reason="unknown-principal")
        if self._rules.blacklisted(publisher):
            raise Refused("parcel: its publisher is blacklisted", reason="blacklisted")
        try:
            key.verify(SIGNATURE_CONTEXT, parcel.signature, parcel.header.encoded)
        except Forged as error:
            raise Refused("parcel: not signed by its publisher", reason="bad-signature") from error


class _Blacklist:
    def __init__(self, rules: LedgerRules) -> None:
        self._rules = rules

    def __contains__(self, principal: object) -> bool:
        return isinstance(principal, bytes) and self._rules.blacklisted(principal)
