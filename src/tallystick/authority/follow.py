"""Following the ledger: every transaction read, every touched key looked up under the signed state root.

The authority's own entries come back on this way like everybody else's, so there is one place where things become
so. What it leads to (permits revoked because a right went, a new epoch because a permit went) is queued in the same
SQLite transaction as the new position: after a crash the same blocks are read again and lead to the same end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tallystick.authority.attribute_epochs import AttributeEpochs
from tallystick.authority.attributes import Attributes
from tallystick.authority.core import Core
from tallystick.authority.permits import Permits
from tallystick.authority.subjects import Subjects
from tallystick.authority.topics import Topics
from tallystick.errors import Refused
from tallystick.ledger.block import Transaction
from tallystick.ledger.contracts.identity import TRUST
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.trust.certificate import Certificate
from tallystick.trust.trustfile import TrustFile

log = logging.getLogger(__name__)


# Entries that may take something from somebody who holds a key for it.
REVOKING = frozenset(
    {
        *(EntryKind.REPLACE, EntryKind.REVOKE, EntryKind.WITHDRAW, EntryKind.UNDO_PERMIT, EntryKind.REVOKE_PERMIT),
        *(EntryKind.GRANT_ATTRIBUTE, EntryKind.WITHDRAW_ATTRIBUTE),
    }
)


@dataclass
class Touched:
    """What a run of transactions says to look at, each thing once, in the order of first mention."""

    revoked_ms: int | None = None  # the time of the first block that takes something from somebody
    certificates: dict[bytes, bytes] = field(default_factory=dict)  # subject → the newest seen
    subjects: dict[bytes, None] = field(default_factory=dict)
    tenants: dict[bytes, None] = field(default_factory=dict)
    trust: list[str] = field(default_factory=list)
    topics: dict[bytes, None] = field(default_factory=dict)
    epochs: dict[tuple[bytes, int], None] = field(default_factory=dict)
    rights: dict[tuple[bytes, bytes], None] = field(default_factory=dict)  # (token, principal)
    permits: dict[bytes, None] = field(default_factory=dict)
    erasures: dict[tuple[bytes, bytes, int], None] = field(default_factory=dict)
    attributes: dict[tuple[bytes, bytes, bytes], None] = field(default_factory=dict)  # (tenant, principal, pseudonym)
    attribute_epochs: dict[int, None] = field(default_factory=dict)
    policies: dict[tuple[bytes, int], None] = field(default_factory=dict)  # (token, column group)

    def add(self, entry: list[Any], time_ms: int) -> None:
        match entry:
            case [int(kind), *_] if kind in REVOKING and self.revoked_ms is None:
                self.revoked_ms = time_ms
        match entry:
            case [EntryKind.ENROL | EntryKind.REPLACE, bytes(certificate)]:
                subject = Certificate.decode(certificate).subject
                self.certificates[subject] = certificate
                self.subjects[subject] = None
            case [EntryKind.REVOKE, bytes(subject), *_]:
                self.subjects[subject] = None
            case [EntryKind.TENANT, bytes(tenant), *_]:
                self.tenants[tenant] = None
            case [EntryKind.TRUST, str(text)]:
                self.trust.append(text)
            case [EntryKind.TOPIC | EntryKind.SCHEMA | EntryKind.CLOSE_TOPIC, bytes(token), *_]:
                self.topics[token] = None
            case [EntryKind.ANNOUNCE_EPOCH | EntryKind.END_EPOCH, bytes(token), int(number), *_]:
                self.epochs[token, number] = None
            case [EntryKind.GRANT | EntryKind.WITHDRAW, bytes(token), bytes(principal), *_]:
                self.rights[token, principal] = None
            case [EntryKind.ISSUE_PERMIT | EntryKind.UNDO_PERMIT | EntryKind.REVOKE_PERMIT, bytes(identifier), *_]:
                self.permits[identifier] = None
            case [EntryKind.ERASE, bytes(token), bytes(publisher), int(period)]:
                self.erasures[token, publisher, period] = None
            case [
                EntryKind.GRANT_ATTRIBUTE | EntryKind.WITHDRAW_ATTRIBUTE,
                bytes(tenant),
                bytes(principal),
                bytes(pseudonym),
                *_,
            ]:
                self.attributes[tenant, principal, pseudonym] = None
            case [EntryKind.ATTRIBUTE_EPOCH, int(number), *_]:
                self.attribute_epochs[number] = None
            case [EntryKind.TOPIC_POLICY, bytes(token), int(group), *_]:
                self.policies[token, group] = None


class Follower:
    def __init__(
        self,
        core: Core,
        subjects: Subjects,
        topics: Topics,
        permits: Permits,
        attribute_epochs: AttributeEpochs,
        attributes: Attributes,
        of_topics: Mapping[str, Callable[..., object]],
    ) -> None:
        """`of_topics` applies what is of a topic, by its name in `Touched`, where the topic is known."""
        self._core, self._subjects, self._topics, self._permits = core, subjects, topics, permits
        self._attribute_epochs, self._attributes, self._of_topics = attribute_epochs, attributes, of_topics

    def follow(self) -> None:
        """Take over everything up to the newest checkpoint; `Withheld` if the ledger contradicts itself."""
        core = self._core
        with core.store.lock:
            while True:
                before = core.ledger.position
                transactions = core.ledger.catch_up(core.limits.blocks_max)
                if core.ledger.position != before:
                    try:
                        self._take_over(transactions)
                    except BaseException:
                        core.ledger.return_to(before)
                        raise
                if core.ledger.is_caught_up:
                    return

    def _take_over(self, transactions: list[tuple[Transaction, int]]) -> None:
        touched, core = Touched(), self._core
        for transaction, time_ms in transactions:
            _collect(transaction, time_ms, touched)
        core.since_ms = touched.revoked_ms
        try:
            with core.store.transaction():
                self._apply(touched)
                core.store.set_meta("position", core.ledger.position.encode())
        finally:
            core.since_ms = None

    def _apply(self, touched: Touched) -> None:
        for text in touched.trust:
            self._apply_trust(text)
        for tenant in touched.tenants:
            self._subjects.apply_tenant(tenant)
        shaken = [
            subject
            for subject in touched.subjects
            if self._subjects.apply_identity(subject, touched.certificates.get(subject))
        ]
        for token in touched.topics:
            self._topics.apply(token)
        for number in touched.attribute_epochs:
            self._attribute_epochs.apply(number)
        for place in touched.attributes:
            self._attributes.apply(*place)
        for name, apply in self._of_topics.items():
            for token, *rest in getattr(touched, name):
                if self._topics.find(token) is not None:
                    apply(token, *rest)
        for identifier in touched.permits:
            self._permits.apply(identifier)
        for subject in shaken:
            self._attributes.recheck(subject)
            self._permits.recheck(subject, all_of_them=True)
        for token, principal in touched.rights:
            self._permits.recheck(principal, token)

    def _apply_trust(self, text: str) -> None:
        """A newer trust file counts if the one before it agrees; the contracts asked the same."""
        core = self._core
        if core.ledger.raw(TRUST()) is None:
            return
        new = TrustFile.parse(text)
        if new.number != core.trust.number + 1:
            return
        core.trust.check_successor(new)
        core.trust = new
        core.ledger.use_trust(new)
        core.store.set_meta("trust", text.encode())


def _collect(transaction: Transaction, time_ms: int, touched: Touched) -> None:
    try:
        for entry in transaction.decode_entries():
            if type(entry) is list:
                touched.add(entry, time_ms)
    except Refused:  # the contracts refused it as well: whatever it says has not happened
        log.info("transaction of %s: not well-formed entries", transaction.author.hex())
