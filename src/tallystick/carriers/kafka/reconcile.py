"""Kafka's own rules kept to the ledger's: rights as access control entries, topics as they were made.

Threat: an administrator of Kafka who grants what the ledger does not (BPS 2.3, threat 1), takes away what it does,
switches compaction or retention on for a sealed topic, or adds partitions, so that lanes would land elsewhere. Every
`check` compares what Kafka has with what the ledger says, undoes the difference, and names what nobody of ours did:
a *drift*. Partitions cannot be taken away again; that is told and left.

Only what concerns this instance is looked at: entries on its topics, whoever they are for, and entries of its
principals on any topics; so several instances and other applications may share a Kafka. A difference is acted on when
it is there twice in a row: gateways learn of a block, and brokers of an entry, some moments one after the other.

Kafka's users are principals: `User:<identifier in hex>`. READ and WRITE on the ledger become READ and WRITE on the
topic, each with DESCRIBE. A blacklisted principal has one entry that denies everything, and no password any more: its
connections end when Kafka next asks for it (`connections.max.reauth.ms`). Left out: what Kafka's super users read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.carriers.kafka.administration import TOPIC_SETTINGS, Administration, Entry, token_of

USER = "User:"


@dataclass(frozen=True)
class Drift:
    """Something in Kafka that the ledger does not say; `token` is empty where it concerns no one topic."""

    reason: str  # acl-added, acl-removed, topic-changed, partitions-added
    what: str
    token: bytes = b""


@dataclass(frozen=True)
class Wanted:
    """What the ledger says: (principal, token) → operations, topics with their partitions, who there is, and who of
    them is blacklisted."""

    rights: Mapping[tuple[bytes, bytes], frozenset[str]]
    partitions: Mapping[bytes, int]
    principals: Iterable[bytes] = ()
    blacklisted: Iterable[bytes] = ()

    def entries(self) -> frozenset[Entry]:
        denied = {Entry(USER + principal.hex(), "*", "ALL", False) for principal in self.blacklisted}
        allowed = {
            Entry(USER + principal.hex(), token.hex(), operation)
            for (principal, token), operations in self.rights.items()
            for operation in (*operations, "DESCRIBE")
            if operations
        }
        return frozenset(allowed | denied)

    def concerns(self, found: Iterable[Entry]) -> frozenset[Entry]:
        """The entries that are this instance's business."""
        topics = {token.hex() for token in self.partitions}
        users = {USER + principal.hex() for principal in self.principals}
        return frozenset(entry for entry in found if entry.name in topics or entry.user in users)


class Reconciler:
    """One notary's; several do no harm, since all bring Kafka to the same state."""

    def __init__(self, kafka: Administration, wanted: Callable[[], Wanted]) -> None:
        self._kafka, self._wanted = kafka, wanted
        self._initial: frozenset[Entry] | None = None  # there when this reconciler began: nobody can say by whom
        self._ever_wanted: set[Entry] = set()  # since then; what the owner withdrew is no drift
        self._seen: set[Entry] = set()  # wanted, and found in Kafka
        self._told: frozenset[Entry] = frozenset()  # taken away, and still shown
        self._added: frozenset[Entry] = frozenset()  # differences at the last look
        self._missing: frozenset[Entry] = frozenset()
        self._denied: set[str] = set()
        self._settled: set[bytes] = set()  # topics whose added partitions were told

    def check(self) -> list[Drift]:
        """Bring Kafka to what the ledger says; what nobody of ours had changed."""
        wanted = self._wanted()
        return [*self._check_entries(wanted), *self._check_topics(wanted)]

    def _check_entries(self, wanted: Wanted) -> list[Drift]:
        desired, found = wanted.entries(), wanted.concerns(self._kafka.access_entries())
        if self._initial is None:
            self._initial = found
        added, self._added = (found - desired) & self._added, found - desired
        missing, self._missing = (desired - found) & self._missing, desired - found
        self._kafka.change_access(missing, added)
        for entry in desired:
            if not entry.allowed and entry.user not in self._denied:
                self._kafka.forget_user(entry.user.removeprefix(USER))
                self._denied.add(entry.user)
        odd, lost = added - self._ever_wanted - self._initial - self._told, missing & self._seen
        self._told = (self._told & found) | odd
        self._ever_wanted |= desired
        self._seen = (self._seen | (desired & found)) - lost
        drift = [Drift("acl-added", _say(entry), _token(entry)) for entry in sorted(odd)]
        return drift + [Drift("acl-removed", _say(entry), _token(entry)) for entry in sorted(lost)]

    def _check_topics(self, wanted: Wanted) -> list[Drift]:
        drift: list[Drift] = []
        found = self._kafka.topics()
        tokens = [token for token in wanted.partitions if token in found]
        for token, settings in self._kafka.topic_settings(tokens).items():
            changed = {name: value for name, value in settings.items() if value != TOPIC_SETTINGS[name]}
            if changed:
                self._kafka.restore_settings(token)
                what = ", ".join(f"{name} was {value}" for name, value in sorted(changed.items()))
                drift.append(Drift("topic-changed", f"topic {token.hex()}: {what}", token))
            if found[token] != wanted.partitions[token] and token not in self._settled:
                self._settled.add(token)
                what = f"topic {token.hex()}: {found[token]} partitions, {wanted.partitions[token]} on the ledger"
                drift.append(Drift("partitions-added", what, token))
        return drift


def _say(entry: Entry) -> str:
    may = "may" if entry.allowed else "may not"
    what = "topic" if entry.pattern == "LITERAL" else "topics that begin with"
    return f"{entry.user} {may} {entry.operation} {what} {entry.name}"


def _token(entry: Entry) -> bytes:
    return token_of(entry.name) or b""


def operations_of(value: Any, decide: Callable[[Any, int, str], bool], host: str) -> frozenset[str]:
    """What a right on the ledger (its rules) allows on Kafka."""
    return frozenset(name for name, right in (("READ", 1), ("WRITE", 2)) if decide(value, right, host))
