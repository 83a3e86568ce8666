"""The notary at work: what Kafka holds of sealed topics comes under anchors, and Kafka's own rules are held to the
ledger's.

A round: topics that are new on the ledger are made; records that came are read; permits and locks that gateways share
are taken over, and anchors that other notaries wrote; what is this notary's turn is judged, and an anchor is written
for it. Only then does the index grow, and the heads of lanes count for every gateway alike.

Notaries of one instance share the partitions, and take over from one that is silent. Every notary reads every partition
and keeps every tree; what is dealt is the dear part, judging and writing. Each partition has an order of its topic's
nodes of its own, by hash, so that the work spreads evenly and a node that comes or goes moves its share alone. The
first judges at once, each next one when no anchor came for `PATIENCE_MS` more. Who took over goes on at once, until an
anchor of somebody else's shows that another is back. No election and no lease: two that judge at the same time do no
harm, since the ledger takes the first anchor and tells the other `anchor-moved`.

Anchors of others, or this notary's own of before a crash, are taken over in order. A partition that cannot be read, or
that holds other records than were anchored, keeps no other from going on: its anchors wait, and are tried again after a
while.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from tallystick.carriers.accounts import permit_name, undo_name
from tallystick.carriers.front import AsksTooMuch, Front
from tallystick.carriers.heads import ReadsLeft
from tallystick.carriers.kafka.ledger import Carried, NotaryLedger, Written
from tallystick.carriers.kafka.notary import HOST, Judged, Judgement, Notary
from tallystick.carriers.kafka.reconcile import Drift, KafkaTopics, Reconciler
from tallystick.carriers.kafka.shared import Shared, What
from tallystick.carriers.kafka.storage import KafkaStorage
from tallystick.carriers.storage import Location, Place
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Refused, Unavailable, Withheld
from tallystick.guards.publish import Contradiction
from tallystick.ledger import entries
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.contracts.state import NOBODY
from tallystick.parcel.locks import lock_hash
from tallystick.parcel.parcel import Parcel
from tallystick.trust.permit import Permit, UndoOrder
from tallystick.trust.promise import Anchor
from tallystick.trust.right import Right

log = logging.getLogger(__name__)

CHECK_MS = 1_000  # how often Kafka's rules are held to the ledger's
UNCHECKED_MS = 20_000  # after a look that failed, which may itself have taken most of it
POLL_S = 0.02  # how long the notary waits for records where none are there
PATIENCE_MS = 2_000  # some blocks of a busy chain
AGAIN_MS = 10_000  # before anchors that could not be taken over, or written, are tried again


class Turns:
    """For one notary, `me`."""

    def __init__(self, me: bytes) -> None:
        self._me = me
        self._since_ms: dict[Place, int] = {}  # when records were first seen to wait there
        self._taken: set[Place] = set()  # taken over

    def is_due(self, place: Place, nodes: Sequence[bytes], now_ms: int) -> bool:
        """Whether this notary judges what waits in `place` now; `nodes` are those that may."""
        waited_ms = now_ms - self._since_ms.setdefault(place, now_ms)
        return place in self._taken or waited_ms >= PATIENCE_MS * rank(place, nodes, self._me)

    def wrote(self, place: Place) -> None:
        """This notary's anchor is on the ledger."""
        self._since_ms.pop(place, None)
        self._taken.add(place)

    def followed(self, place: Place) -> None:
        """Somebody else's is."""
        self._since_ms.pop(place, None)
        self._taken.discard(place)


def rank(place: Place, nodes: Sequence[bytes], me: bytes) -> int:
    """How many of these nodes come first in a partition."""
    where = place.token + place.partition.to_bytes(4, "big")
    order = sorted(nodes, key=lambda node: named_hash("tallystick turn 1", where + node))
    return order.index(me) if me in order else len(order)


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
        ledger: NotaryLedger,
        turns: Turns,
    ) -> None:
        self._front, self._storage, self.notary, self._ledger, self._turns = front, storage, notary, ledger, turns
        self._sealed, self._shared, self._reconciler = sealed, shared, reconciler
        self.check_ms, self._checked_ms = CHECK_MS, 0
        self._drift: list[bytes] = []  # found, and not yet on the ledger
        self._followed = -1
        self._made: dict[bytes, Carried] = {}
        self._behind: dict[Place, list[Written]] = {}  # anchors that are yet to be taken over
        self._again_ms: dict[Place, int] = {}  # when to try those that could not be
        self._aside: dict[Place, int] = {}  # partitions whose anchors the ledger refuses, and when to ask again
        shared.catch_up(self._take_shared)
        storage.sync()

    def grown(self) -> list[Anchor]:
        return []  # the notary's, each with the size it continues

    def work(self, now_ms: int) -> bool:
        self._make_topics()
        self._keep(now_ms)
        self._aside = {place: again_ms for place, again_ms in self._aside.items() if again_ms > now_ms}
        waits = self.notary.poll(self._places(), POLL_S)
        height, anchors = self._ledger.follow(self._followed)
        # After the records: their permits and locks are then among what is shared.
        if self._shared.catch_up(self._take_shared) if waits or anchors else self._shared.poll(self._take_shared):
            with self._front.syncing():
                self._storage.sync()
        self._catch_up(anchors, now_ms)
        self._followed = height
        with self._front.lock:
            judged = self.notary.judge(self._front.block()[1], lambda place: self._is_due(place, now_ms))
        for judgement in judged:
            self._write_judgement(judgement, now_ms)
        if judged:
            self._front.on_growth()
        return bool(judged)

    def _places(self) -> list[Place]:
        """What is read on: records that this notary may not judge would fill its memory, and stop it for all."""
        kept = {token: topic for token, topic in self._made.items() if not self._sealed.is_lost(token)}
        places = [Place(token, n) for token, topic in kept.items() for n in range(topic.partitions)]
        return [place for place in places if place not in self._aside and self._front.rules.carries(*place)]

    def _is_due(self, place: Place, now_ms: int) -> bool:
        if self._sealed.is_lost(place.token) or place in self._behind or place in self._aside:
            return False
        nodes = self._made[place.token].nodes_of(place.partition)
        return self._front.rules.carries(*place) and self._turns.is_due(place, nodes, now_ms)

    def _keep(self, now_ms: int) -> None:
        """Hold Kafka's own rules to the ledger's; what was changed behind its back is written down there."""
        if now_ms - self._checked_ms < self.check_ms:
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

    def _check_topics(self) -> Iterable[Drift]:
        return self._sealed.check({token: topic.partitions for token, topic in self._ledger.topics().items()})

    def _catch_up(self, anchors: Iterable[Written], now_ms: int) -> None:
        """Take over the anchors that wait, and these."""
        for found in anchors:
            self._behind.setdefault(Place(found[0].token, found[0].partition), []).append(found)
        for place in [one for one in self._behind if self._again_ms.get(one, 0) <= now_ms]:
            if self._sealed.trouble(place) is not None:
                continue
            try:
                while self._behind[place]:
                    self._follow_anchor(place, self._behind[place][0], now_ms)
                    self._behind[place].pop(0)
            except (Unavailable, Withheld) as error:
                log.error("%s", error)
                self._again_ms[place] = now_ms + AGAIN_MS
                return  # it may have taken long: the others next time
            del self._behind[place]

    def _follow_anchor(self, place: Place, found: Written, now_ms: int) -> None:
        with self._front.syncing():
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
                log.error("%s stands aside: the ledger does not take its anchor: %s", judgement.place, error)
                self._aside[judgement.place] = now_ms + AGAIN_MS
            return
        self._turns.wrote(judgement.place)
        with self._front.syncing():
            self.notary.take(judgement, now_ms)
            self._take_over(judgement.place, judgement.items)
            self._front.anchored.remember(judgement.anchor, number, 0)

    def _take_over(self, place: Place, items: Sequence[Judged]) -> None:
        """The index holds them: heads of lanes count from there, for every gateway alike."""
        for one in items:
            if one.parcel is not None:
                self._storage.indexed(one.parcel)
            if one.parcel is not None and one.is_new:  # one that is repeated lies where it lay first
                self._front.heads.stored(one.principal, one.parcel.header, Location((place,), (one.offset,)))
        if items:
            self._front.heads.index.cover(place, items[-1].offset + 1)

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

    def statistics(self) -> Mapping[str, Any]:
        return self.notary.statistics() | {
            "drifts_waiting": len(self._drift),
            "partitions_behind": len(self._behind),
            "partitions_aside": len(self._aside),
        }

    def close(self) -> None:
        self.notary.close()


def convict(front: Front, error: Contradiction, place: Place) -> bool:
    """A direct client's parcel has a sequence that is taken: returns True if it lies there; if it is another, both
    headers go to the ledger. Raises `Refused` where the client has more looked up than it may: it waits for nobody."""
    principal, now_ms = error.permit.principal, front.block()[1]
    try:
        with front.asking(HOST.encode() + principal, now_ms / 1000) as work:  # by another clock than at the gateway
            found = front.find_sequence(place, principal, error.parcel.header, work)
    except AsksTooMuch as refusal:
        raise Refused(str(refusal), reason="behind") from refusal
    if found is not None and found[1].hash != error.parcel.hash:
        front.accuse(error.permit, found[1], error.parcel, now_ms)
    return found is not None and found[1].hash == error.parcel.hash


def lies(front: Front, place: Place, principal: bytes, parcel: Parcel) -> bool:
    """Whether a principal's parcel is the one that has its sequence."""
    found = front.find_sequence(place, principal, parcel.header, ReadsLeft())
    return found is not None and found[1].hash == parcel.hash


def _tell(drift: Drift, now_ms: int) -> bytes:
    """A drift as an operation of nobody's, in the topic's own history where it has one."""
    return entries.operation(
        *(NOBODY, OperatorRole.NONE, drift.token or NOBODY, int(Right.DESCRIBE)),
        time_ms=now_ms,
        request=sha256(drift.what.encode()).digest(),
        reason=drift.reason,
        host=HOST,
    )
