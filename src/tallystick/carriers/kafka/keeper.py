"""Kafka's own rules kept to the ledger's: rights as access control entries, topics as they were made.

Threat: an administrator of Kafka who grants what the ledger does not (BPS 2.3, threat 1), takes away what it does,
switches compaction or retention on for a sealed topic, or adds partitions, so that lanes would land elsewhere. Every
`check` compares what Kafka has with what the ledger says, undoes the difference, and names what nobody of ours did:
a *drift*. Partitions cannot be taken away again; that is told and left.

Kafka's users are principals: `User:<identifier in hex>`. READ and WRITE on the ledger become READ and WRITE on the
topic, each with DESCRIBE. A blacklisted principal has one entry that denies everything, and no password any more: its
connections end when Kafka next asks for it (`connections.max.reauth.ms`). Left out: what Kafka's super users read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.carriers.kafka.client import TOPIC_SETTINGS, Entry, KafkaClient

USER = "User:"


@dataclass(frozen=True)
class Drift:
    """Something in Kafka that the ledger does not say; `token` is empty where it concerns no one topic."""

    reason: str  # acl-added, acl-removed, topic-changed, partitions-added
    what: str
    token: bytes = b""


@dataclass(frozen=True)
class Wanted:
    """What the ledger says: (principal, token) → operations, topics with their partitions, who is blacklisted."""

    rights: Mapping[tuple[bytes, bytes], frozenset[str]]
    partitions: Mapping[bytes, int]
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


class Keeper:
    """One notary's; several do no harm, since all bring Kafka to the same state."""

    def __init__(self, kafka: KafkaClient, wanted: Callable[[], Wanted]) -> None:
        self._kafka, self._wanted = kafka, wanted
        self._wanted_before: frozenset[Entry] | None = None
        self._seen: frozenset[Entry] = frozenset()  # wanted, and found in Kafka since
        self._going: frozenset[Entry] = frozenset()  # taken away, and still shown: Kafka's brokers learn with a delay
        self._denied: set[str] = set()
        self._settled: set[bytes] = set()  # topics whose added partitions were told

    def check(self) -> list[Drift]:
        """Bring Kafka to what the ledger says; what nobody of ours had changed."""
        wanted = self._wanted()
        return [*self._check_entries(wanted), *self._check_topics(wanted)]

    def _check_entries(self, wanted: Wanted) -> list[Drift]:
        desired, found = wanted.entries(), self._kafka.access_entries()
        added, missing = found - desired, desired - found
        self._kafka.change_access(missing, added)
        for entry in desired:
            if not entry.allowed and entry.user not in self._denied:
                self._kafka.forget_user(entry.user.removeprefix(USER))
                self._denied.add(entry.user)
        before, self._wanted_before = self._wanted_before, desired
        lost, self._seen = missing & self._seen, desired & found
        odd, self._going = added - self._going, added
        if before is None:  # the first look: whoever ran before us may have left what the ledger has changed since
            return []
        drift = [Drift("acl-added", _say(entry), _token(entry)) for entry in sorted(odd - before)]
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
    return f"{entry.user} {may} {entry.operation} topic {entry.topic}"


def _token(entry: Entry) -> bytes:
    return b"" if entry.topic == "*" else bytes.fromhex(entry.topic)


def operations_of(value: Any, decide: Callable[[Any, int, str], bool], host: str) -> frozenset[str]:
    """What a right on the ledger (its rules) allows on Kafka."""
    return frozenset(name for name, right in (("READ", 1), ("WRITE", 2)) if decide(value, right, host))
