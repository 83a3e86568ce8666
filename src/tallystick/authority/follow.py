"""What a run of the ledger's transactions says to look at.

The authority reads every transaction, and looks up every key that they touch under the signed state root. Its own
entries come back on this way like everybody else's, so there is one place where things become so (`Authority.follow`).
What it leads to (permits revoked because a right went, a new epoch because a permit went) is queued in the same SQLite
transaction as the new position: after a crash the same blocks are read again and lead to the same end.

The store's lock, for which every request waits, is not held meanwhile: blocks, and the rows that they touch, are asked
for before it is taken. Rows that lead from those to others are still read under it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tallystick.errors import Refused
from tallystick.ledger.block import Transaction
from tallystick.ledger.contracts.access import RIGHTS
from tallystick.ledger.contracts.attributes import ATTRIBUTE_EPOCHS, ATTRIBUTES, POLICIES
from tallystick.ledger.contracts.epochs import EPOCHS, ERASURES, LAST_EPOCHS
from tallystick.ledger.contracts.identity import IDENTITIES, TENANTS, TRUST
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.permits import PERMITS
from tallystick.ledger.contracts.state import Key, Table
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.trust.certificate import Certificate

log = logging.getLogger(__name__)


# Entries that may take something from somebody who holds a key for it.
REVOKING = frozenset(
    {
        *(EntryKind.REPLACE, EntryKind.REVOKE, EntryKind.WITHDRAW, EntryKind.UNDO_PERMIT, EntryKind.REVOKE_PERMIT),
        *(EntryKind.GRANT_ATTRIBUTE, EntryKind.WITHDRAW_ATTRIBUTE, EntryKind.DROP_ATTRIBUTE),
    }
)

# What an entry touches, and the types of the fields behind its kind that say which one.
_PLACES: dict[EntryKind, tuple[str, tuple[type, ...]]] = {
    EntryKind.REVOKE: ("subjects", (bytes,)),
    EntryKind.TENANT: ("tenants", (bytes,)),
    **dict.fromkeys((EntryKind.TOPIC, EntryKind.SCHEMA, EntryKind.CLOSE_TOPIC), ("topics", (bytes,))),
    **dict.fromkeys((EntryKind.ANNOUNCE_EPOCH, EntryKind.END_EPOCH), ("epochs", (bytes, int))),
    **dict.fromkeys((EntryKind.GRANT, EntryKind.WITHDRAW), ("rights", (bytes, bytes))),  # token, principal
    **dict.fromkeys((EntryKind.ISSUE_PERMIT, EntryKind.UNDO_PERMIT, EntryKind.REVOKE_PERMIT), ("permits", (bytes,))),
    EntryKind.ERASE: ("erasures", (bytes, bytes, int)),  # token, publisher, period
    EntryKind.GRANT_ATTRIBUTE: ("attributes", (bytes, bytes, bytes)),  # tenant, principal, pseudonym
    EntryKind.WITHDRAW_ATTRIBUTE: ("attributes", (bytes, bytes, bytes)),
    EntryKind.DROP_ATTRIBUTE: ("attributes", (bytes, bytes, bytes)),
    EntryKind.ATTRIBUTE_EPOCH: ("attribute epochs", (int,)),
    EntryKind.TOPIC_POLICY: ("policies", (bytes, int)),  # token, column group
}


# The row that says what became of it.
_ROWS: dict[str, Table[Any]] = {
    "subjects": IDENTITIES,
    "tenants": TENANTS,
    "topics": TOPICS,
    "epochs": EPOCHS,
    "rights": RIGHTS,
    "permits": PERMITS,
    "erasures": ERASURES,
    "attributes": ATTRIBUTES,
    "attribute epochs": ATTRIBUTE_EPOCHS,
    "policies": POLICIES,
}


@dataclass
class Touched:
    """Each thing once, in the order of first mention."""

    revoked_ms: int | None = None  # the time of the first block that takes something from somebody
    certificates: dict[bytes, bytes] = field(default_factory=dict)  # subject → the newest seen
    trust: list[str] = field(default_factory=list)
    # What is touched → which ones, of the types that `_PLACES` names.
    places: defaultdict[str, dict[tuple[Any, ...], None]] = field(default_factory=lambda: defaultdict(dict))

    def keys(self, authority: bytes) -> list[Key[Any]]:
        """The rows that say what became of each; `authority` is the one that follows."""
        found: list[Key[Any]] = [TRUST()] if self.trust else []
        for name, places in self.places.items():
            for place in places:
                parts = (authority, *place) if name == "attribute epochs" else place
                if _ROWS[name].fits(*parts):  # else the contracts refused it
                    found.append(_ROWS[name](*parts))
        # Of a topic that begins it is also asked whether it has an epoch.
        return [*found, *(LAST_EPOCHS(*place) for place in self.places["topics"] if LAST_EPOCHS.fits(*place))]

    @classmethod
    def by(cls, transactions: list[tuple[Transaction, int]]) -> Touched:
        """What these transactions touch, each given with the time of its block in milliseconds."""
        touched = cls()
        for transaction, time_ms in transactions:
            try:
                for entry in transaction.decode_entries():
                    touched.add(entry, time_ms)
            except Refused:  # the contracts refused it as well: whatever it says has not happened
                log.info("transaction of %s: not well-formed entries", transaction.author.hex())
        return touched

    def add(self, entry: Any, time_ms: int) -> None:
        match entry:
            case [int(kind), *_] if kind in REVOKING and self.revoked_ms is None:
                self.revoked_ms = time_ms
        match entry:
            case [EntryKind.ENROL | EntryKind.REPLACE, bytes(certificate)]:
                subject = Certificate.decode(certificate).subject
                self.certificates[subject] = certificate
                self.places["subjects"][subject,] = None
            case [EntryKind.TRUST, str(text)]:
                self.trust.append(text)
            case [int(kind), *rest] if kind in _PLACES:
                name, types = _PLACES[EntryKind(kind)]
                place = tuple(rest[: len(types)])
                if tuple(map(type, place)) == types:
                    self.places[name][place] = None
