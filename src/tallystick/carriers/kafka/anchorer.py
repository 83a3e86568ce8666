"""The notary at work: what Kafka holds of sealed topics comes under anchors, and Kafka's own rules are held to the
ledger's.

A round: topics that are new on the ledger are made; records that came are read; permits and locks that gateways share
are taken over, and anchors that other notaries wrote; what is this notary's turn is judged, and an anchor is written
for it. Only then does the index grow, and the heads of lanes count for every gateway alike.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

from tallystick.carriers.accounts import permit_name, undo_name
from tallystick.carriers.front import Front
from tallystick.carriers.kafka.behind import BehindAnchors, Written
from tallystick.carriers.kafka.notary import HOST, Judged, Judgement, Notary
from tallystick.carriers.kafka.reconcile import Drift, Reconciler
from tallystick.carriers.kafka.shared import Shared, What
from tallystick.carriers.kafka.storage import KafkaStorage
from tallystick.carriers.kafka.topics import KafkaTopics
from tallystick.carriers.kafka.turns import Turns
from tallystick.carriers.storage import Location, Place
from tallystick.errors import Refused, Unavailable
from tallystick.guards.publish import Contradiction
from tallystick.ledger import entries
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.contracts.state import NOBODY
from tallystick.parcel.locks import lock_hash
from tallystick.trust.permit import Permit, UndoOrder
from tallystick.trust.promise import Anchor
from tallystick.trust.right import Right

log = logging.getLogger(__name__)

CHECK_MS = 1_000  # how often Kafka's rules are held to the ledger's
UNCHECKED_MS = 20_000  # after a look that failed, which may itself have taken most of it
POLL_S = 0.02  # how long the notary waits for records where none are there


class Carried(NamedTuple):
    """A sealed topic as the ledger has it; `nodes` may write about it."""

    partitions: int
    replicas: int
    nodes: Sequence[bytes]


class NotarySide(Protocol):
    """What a notary asks of the ledger."""

    def topics(self) -> Mapping[bytes, Carried]:
        """The sealed topics that this node carries, by token."""

    def write(self, entries: Sequence[bytes]) -> int:
        """Bring entries to the ledger in one transaction. Returns its number."""

    def follow(self, above: int) -> tuple[int, list[Written]]:
        """How high the ledger is, and the notaries' anchors above a height."""


class KafkaAnchorer:
    """For one thread, beside those of the front."""

    def __init__(
        self,
        front: Front,
        storage: KafkaStorage,
        notary: Notary,
        sealed: KafkaTopics,
        shared: Shared,
        reconciler: Reconciler,
        ledger: NotarySide,
        turns: Turns,
    ) -> None:
        self._front, self._storage, self.notary, self._ledger, self._turns = front, storage, notary, ledger, turns
        self._sealed, self._shared, self._reconciler, self._checked_ms = sealed, shared, reconciler, 0
        self._drift: list[bytes] = []  # found, and not yet on the ledger
        self._followed = -1
        self._made: dict[bytes, Carried] = {}
        self._behind = BehindAnchors(sealed.trouble, self._follow_anchor)
        shared.catch_up(self._take_shared)
        storage.sync()

    def grown(self) -> list[Anchor]:
        return []  # the notary's, each with the size it continues

    def work(self, now_ms: int) -> bool:
        self._make_topics()
        self._keep(now_ms)
        waits = self.notary.poll(self._places(), POLL_S)
        height, anchors = self._ledger.follow(self._followed)
        # After the records: their permits and locks are then among what is shared.
        if self._shared.catch_up(self._take_shared) if waits or anchors else self._shared.poll(self._take_shared):
            with self._front.lock:
                self._storage.sync()
        self._behind.catch_up(anchors, now_ms)
        self._followed = height
        with self._front.lock:
            judged = self.notary.judge(self._front.block()[1], lambda place: self._is_due(place, now_ms))
        for judgement in judged:
            self._write_judgement(judgement, now_ms)
        if judged:
            self._front.on_growth()
        return bool(judged)

    def _places(self) -> list[Place]:
        kept = {token: topic for token, topic in self._made.items() if not self._sealed.is_lost(token)}
        return [Place(token, n) for token, topic in kept.items() for n in range(topic.partitions)]

    def _is_due(self, place: Place, now_ms: int) -> bool:
        if self._sealed.is_lost(place.token) or place in self._behind:
            return False
        return self._turns.is_due(place, self._made[place.token].nodes, now_ms)

    def _keep(self, now_ms: int) -> None:
        """Hold Kafka's own rules to the ledger's; what was changed behind its back is written down there."""
        if now_ms - self._checked_ms < CHECK_MS:
            return
        self._checked_ms = now_ms
        try:
            for check in (self._check_topics, self._reconciler.check):
                for one in check():
                    log.error("kafka was changed: %s: %s", one.reason, one.what)
                    self._drift.append(_tell(one, now_ms))
        except Unavailable as error:  # without a controller; records are judged all the same
            log.warning("%s", error)
            self._checked_ms += UNCHECKED_MS
        if not self._drift:
            return
        told, self._drift = self._drift, []
        try:
            self._ledger.write(told)
        except Unavailable:
            self._drift = told
            raise

    def _check_topics(self) -> list[Drift]:
        return self._sealed.check({token: topic.partitions for token, topic in self._ledger.topics().items()})

    def _follow_anchor(self, place: Place, found: Written, now_ms: int) -> None:
        with self._front.lock:
            items = self.notary.catch_up(found[0], now_ms)
            self._take_over(place, items)
            self._front.anchored.remember(*found)
        if items:
            self._turns.followed(place)
            self._front.on_growth()

    def _write_judgement(self, judgement: Judgement, now_ms: int) -> None:
        written = [judgement.anchor.encode_entry(), *self.notary.operations(judgement, now_ms)]
        try:
            number = self._ledger.write(written)
        except Refused as error:
            if error.reason != "anchor-moved":  # else another notary was first
                raise
            return
        self._turns.wrote(judgement.place)
        with self._front.lock:
            self.notary.take(judgement, now_ms)
            self._take_over(judgement.place, judgement.items)
            self._front.anchored.remember(judgement.anchor, number, 0)

    def _take_over(self, place: Place, items: Sequence[Judged]) -> None:
        """The index holds them: heads of lanes count from there, for every gateway alike."""
        for one in items:
            if one.parcel is not None:
                self._storage.indexed(one.parcel)
                self._front.heads.stored(one.principal, one.parcel.header, Location((place,), (one.offset,)))

    def _take_shared(self, what: What, data: bytes) -> None:
        """A permit, order or lock that some gateway took; checked."""
        with self._front.lock:
            if what is What.UNDO:
                order = UndoOrder.decode(data)
                self._storage.deposit(undo_name(order.identifier), data)  # first, or the permit would be loaded again
                self._front.live.remove(order.identifier)
            elif what is What.PERMIT:
                self._storage.deposit(permit_name(Permit.decode(data).identifier), data)
            else:
                self._storage.deposit(lock_hash(data), data)

    def _make_topics(self) -> None:
        for token, topic in self._ledger.topics().items():
            if token not in self._made:
                self._sealed.make(token, topic.partitions, topic.replicas)
            self._made[token] = topic

    def statistics(self) -> Mapping[str, int]:
        drifts = {"drifts_waiting": len(self._drift), "partitions_behind": len(self._behind)}
        return {**self.notary.statistics(), **drifts}

    def close(self) -> None:
        self.notary.close()


def convict(front: Front, error: Contradiction, place: Place) -> None:
    """A direct client signed two parcels of one sequence: both headers go to the ledger."""
    other = front.find_sequence(place, error.permit.principal, error.parcel.header)
    if other is not None and other.hash != error.parcel.hash:
        front.accuse(error.permit, other, error.parcel, front.block()[1])


def _tell(drift: Drift, now_ms: int) -> bytes:
    """A drift as an operation of nobody's, in the topic's own history where it has one."""
    return entries.operation(
        *(NOBODY, OperatorRole.NONE, drift.token or NOBODY, int(Right.DESCRIBE)),
        time_ms=now_ms,
        request=sha256(drift.what.encode()).digest(),
        reason=drift.reason,
        host=HOST,
    )
