"""Sealed topics as Kafka holds them: made once, kept as they were made, and known again.

Threat: whoever administers Kafka switches compaction or retention on for a sealed topic, adds partitions, so that lanes
would land elsewhere, deletes the topic, or deletes it and makes another of the same name. The last looks most harmless:
the new one begins at offset 0, where other records are anchored, and once it has grown past the old end, reading and
writing on would pass for a continuation. Kafka gives each topic an identity when it is made (KIP-516); this node keeps
the first that it sees beside its index. A topic that is gone, or has another identity, is *lost*: nothing is taken for
it, read from it or anchored in it any more, and nobody of ours makes it again. Settings are put back; added partitions
cannot be taken away, and are told.

Left out: what is written to the new topic between the deed and the next look, some second; a node that sees a topic for
the first time after the deed (it finds that the records are not those that were anchored, `notary.catch_up`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tallystick.carriers.kafka.administration import TOPIC_SETTINGS, Administration, FoundAccess
from tallystick.carriers.kafka.failures import REPLICAS
from tallystick.carriers.kafka.reconcile import Drift
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Place
from tallystick.crypto.kdf import named_hash
from tallystick.errors import Unavailable

ANY_S = 5.0  # for any broker to answer
GONE, REPLACED = "is gone", "was deleted, and another was made under its name"


def identity_name(token: bytes) -> bytes:
    """Under which the store keeps the identity of a topic."""
    return named_hash("tallystick kafka topic blob 1", token)


class KafkaTopics:
    """One node's; `check` and `make` belong to one thread, `trouble` may be asked by any."""

    def __init__(self, kafka: Administration, beside: LogStore, is_anchored: Callable[[bytes], bool]) -> None:
        """`beside` keeps the identities; `is_anchored` tells whether the ledger knows of records in a topic."""
        self._kafka, self._beside, self._is_anchored = kafka, beside, is_anchored
        self._lost: dict[bytes, str] = {}  # and what happened to them
        self._offline: frozenset[Place] = frozenset()
        self.away: Unavailable | None = None  # why the last look found no Kafka, if it did not
        self._grown: set[bytes] = set()  # topics whose added partitions were told
        self._untold: list[Drift] = []  # found, where the rest of the look failed

    def make(self, token: bytes, partitions: int, replicas: int) -> None:
        """Make a topic that never was; what was there once is not put back."""
        if self._identity(token) is None and not self._is_anchored(token):
            self._kafka.make_topic(token, partitions, replicas)

    def is_lost(self, token: bytes) -> bool:
        return token in self._lost

    def trouble(self, place: Place) -> Unavailable | None:
        """Why nothing can be written there now, as far as the last look tells."""
        if place.token in self._lost:
            return _lost(place.token, self._lost[place.token])
        if place in self._offline:
            return Unavailable(f"kafka: {place}: no broker serves it", retry_after_s=1.0, hint=REPLICAS)
        return self.away

    def replaced(self, token: bytes) -> Unavailable:
        """Kafka gave an offset that was anchored before: the topic is another one."""
        return _lost(token, REPLACED)

    def check(self, wanted: Mapping[bytes, int]) -> list[Drift]:
        """Look at these topics (token → partitions on the ledger). Returns what was changed behind the ledger's
        back."""
        try:
            found = self._kafka.find_topics(list(wanted))
        except Unavailable:  # perhaps only the controller is away, without whom brokers go on
            self.away = self._ask_any()
            raise
        self.away = None
        self._untold += self._check_lost(wanted, found)
        kept = {token: topic for token, topic in found.items() if token not in self._lost}
        self._offline = frozenset(Place(token, one) for token, topic in kept.items() for one in topic.offline)
        self._untold += self._check_partitions(wanted, kept)
        self._untold += self._check_settings(kept)
        told, self._untold = self._untold, []
        return told

    def _ask_any(self) -> Unavailable | None:
        try:
            self._kafka.broker_count(ANY_S)
        except Unavailable as error:
            return error
        return None

    def _check_lost(self, wanted: Mapping[bytes, int], found: Mapping[bytes, FoundAccess]) -> list[Drift]:
        before = self._lost
        closed = {token: what for token, what in before.items() if token not in wanted}
        lost = {token: what for token in wanted if (what := self._what_happened(token, found.get(token)))}
        self._lost = closed | lost
        return [
            Drift("topic-deleted" if token not in found else "topic-replaced", f"topic {token.hex()} {what}", token)
            for token, what in sorted(lost.items())
            if before.get(token) != what
        ]

    def _what_happened(self, token: bytes, found: FoundAccess | None) -> str | None:
        """How a topic was lost, if it was; one that is seen for the first time is remembered."""
        known = self._identity(token)
        if found is None:
            return GONE if known is not None or self._is_anchored(token) else None
        if known is None:
            self._beside.deposit(identity_name(token), found.identity)
            self._beside.sync()
        elif known != found.identity:
            return REPLACED
        return None

    def _identity(self, token: bytes) -> bytes | None:
        return self._beside.blobs.get(identity_name(token))

    def _check_settings(self, kept: Mapping[bytes, FoundAccess]) -> list[Drift]:
        drift = []
        for token, settings in self._kafka.topic_settings(list(kept)).items():
            changed = {name: value for name, value in settings.items() if value != TOPIC_SETTINGS[name]}
            if changed:
                self._kafka.restore_settings(token)
                what = ", ".join(f"{name} was {value}" for name, value in sorted(changed.items()))
                drift.append(Drift("topic-changed", f"topic {token.hex()}: {what}", token))
        return drift

    def _check_partitions(self, wanted: Mapping[bytes, int], kept: Mapping[bytes, FoundAccess]) -> list[Drift]:
        grown = {token for token, topic in kept.items() if topic.partitions != wanted[token]} - self._grown
        self._grown |= grown
        return [
            Drift(
                "partitions-added",
                f"topic {token.hex()}: {kept[token].partitions} partitions, {wanted[token]} on the ledger",
                token,
            )
            for token in sorted(grown)
        ]


def _lost(token: bytes, what: str) -> Unavailable:
    hint = "close it (tally topic close) and create another: Kafka cannot give back what it held"
    return Unavailable(f"kafka: topic {token.hex()} {what}", hint=hint)  # no delay would help
