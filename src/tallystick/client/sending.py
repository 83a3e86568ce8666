"""Steps 3 and 4 of docs/life-of-a-record.md, a publisher's sending hand: parcels go to the carrier, what it promises is
checked, and what was stored is held to the ledger. What follows from an answer is decided in outbox.py.

One thread at a time uses it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tallystick.carriers.carrier import NotStored, Outcome
from tallystick.client.grants import Advertised
from tallystick.client.outbox import AccuseNode, CheckAnchor, ForgetCopies, SendParcels, Spooled
from tallystick.client.spool import Spool
from tallystick.client.ties import Ties
from tallystick.crypto.merkle import leaf_hash, verify_inclusion
from tallystick.errors import Forged, Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.trust.promise import Promise

log = logging.getLogger(__name__)


class Sender:
    """Asks carrier, authority and ledger on behalf of one publisher."""

    def __init__(self, ties: Ties, advertised: Advertised, spool: Spool) -> None:
        self._ties, self._advertised, self._spool = ties, advertised, spool
        self._keys = {node.subject: node.verify_key for node in ties.identity.nodes}
        self._vow: tuple[bytes, bytes, bytes] | None = None  # the last signature that held: node, signature, message

    def sync(self) -> None:
        self._spool.unsynced().sync()

    def send(self, effect: SendParcels) -> tuple[bool, list[Outcome]]:
        """Whether the locks were taken, and the answer for each parcel, up to the first that was refused. Promises are
        held to their parcels before they count."""
        token, carrier = effect.topic.token, self._ties.carrier
        try:
            if effect.locks:
                carrier.put_locks(token, effect.topic.permit, effect.locks)
        except Refused as error:
            return False, [NotStored(error.reason, str(error))]
        parcels = [self._spool.read(one.lane, one.sequence) for one in effect.parcels]
        outcomes: list[Outcome] = []
        for one, outcome in zip(effect.parcels, carrier.publish(token, parcels), strict=False):
            outcomes.append(outcome)
            if isinstance(outcome, NotStored):
                break
            if not outcome.offsets:  # where nobody promises, the anchor alone will tell
                self._check_promises(one, outcome.promises)
        return True, outcomes

    def _check_promises(self, one: Spooled, promises: Sequence[Promise]) -> None:
        """Hold the node to its word: signed, for this parcel, for each of its topics."""
        if [promise.token for promise in promises] != [topic.token for topic in one.topics]:
            raise Forged("the node's promises are not for the parcel's topics", reason="bad-promise")
        for promise in promises:
            key = self._keys.get(promise.node)
            if key is None or promise.parcel != one.parcel or promise.instance != self._ties.identity.instance:
                raise Forged("the node's promise is for another parcel, or another's", reason="bad-promise")
            vow = (promise.node, *promise.signed_statement())
            if vow != self._vow:  # the promises of one answer share a signature
                promise.verify(key)
                self._vow = vow

    def renew(self) -> Refused | None:
        """Obtain new permits. The refusal, if the right is gone."""
        try:
            self._advertised.obtain_again()
        except Refused as refusal:
            return refusal
        return None

    def check(self, effect: CheckAnchor) -> tuple[list[tuple[Spooled, int]], tuple[Spooled, NotStored] | None]:
        """What the partition's proved anchor covers, and the first parcel of which the notary says that it refused it.
        One proved anchor, one path per parcel; raises `Forged` where something else is anchored in a promised place."""
        anchor = self._ties.view.row(ANCHORS(effect.token, effect.partition))
        below = [(one, offset) for one, offset in effect.parcels if anchor is not None and offset < anchor.size]
        if anchor is None or not below:
            return [], None
        place, carrier = (effect.token, effect.partition), self._ties.carrier
        proved: list[tuple[Spooled, int]] = []
        paths = carrier.inclusion(*place, anchor.size, [offset for _, offset in below])
        for (one, offset), path in zip(below, paths, strict=True):
            try:
                verify_inclusion(leaf_hash(one.parcel), offset, anchor.size, path, anchor.root)
            except Forged:
                reason = "" if one.promises else carrier.verdict(*place, offset)
                if not reason:
                    raise
                return proved, (one, NotStored(reason, f"the notary refused offset {offset}: {reason}"))
            proved.append((one, offset))
        return proved, None

    def accuse(self, effect: AccuseNode) -> bool:
        """Bring a promise to the ledger: the node signed it, and the contract can judge it. Whether that was done; the
        accused node carries the accusation, and may be away."""
        if self._ties.author is None:
            return False
        promise = effect.parcel.promises[0]
        log.error("offset %d was promised and is not anchored", promise.offset)
        try:
            self._ties.author.write(entries.broken_promise(promise))
        except Refused as error:
            log.warning("the ledger does not hold the promise broken: %s", error)
        return True

    def forget(self, effect: ForgetCopies) -> None:
        """Delete copies; what cannot be deleted now does no harm."""
        for sequence in effect.sequences:
            self._spool.forget(effect.lane, sequence)
        if effect.drop:
            self._spool.drop_lane(effect.lane)
