"""The Kafka carrier: what a gateway serves. The guards of the log stand in front, Kafka stores, the notary anchors.

A publish request goes the way of the log carrier's, but for the middle: what the guards accept is written to Kafka with
the gateway's passage, and only when all replicas have it is the act noted and the promise given. Heads of lanes are
those of the index, and before them those of what this gateway passed and the index does not hold yet (`_gate`). A
parcel that another gateway took may thus come twice: Kafka then holds it twice, and readers skip it.

Headers, proofs, permits and locks come from the node's own store, bodies from Kafka. What Kafka changed or lost is
shown as it is: the reader holds it to the anchor and names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple

from tallystick.carriers.acts import Asked
from tallystick.carriers.carrier import NotStored, Outcome
from tallystick.carriers.kafka.behind import Behind, Found
from tallystick.carriers.kafka.client import PASSAGE, KafkaClient, Outgoing, Sent, describe
from tallystick.carriers.kafka.notary import HOST, Judged, Judgement, Notary
from tallystick.carriers.kafka.passage import sign_passages
from tallystick.carriers.kafka.reconcile import Drift, Reconciler
from tallystick.carriers.kafka.shared import Shared, What
from tallystick.carriers.kafka.topics import Topics
from tallystick.carriers.kafka.turns import Turns
from tallystick.carriers.log.carrier import LogCarrier
from tallystick.carriers.log.deposits import permit_name, undo_name
from tallystick.carriers.log.heads import joined, settled
from tallystick.carriers.log.partition import Entry
from tallystick.carriers.log.report import Damaged
from tallystick.carriers.log.segments import Place
from tallystick.carriers.log.store import Staged
from tallystick.carriers.voids import is_void
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Malformed, Misuse, Refused, TallystickError, Unavailable
from tallystick.guards.lanes import Lanes
from tallystick.guards.publish import Accepted, Contradiction, Repeated
from tallystick.guards.rules import Act, Right
from tallystick.ledger import entries
from tallystick.ledger.contracts.call import NOBODY
from tallystick.ledger.contracts.operations import Role
from tallystick.parcel.locks import lock_hash
from tallystick.parcel.parcel import Parcel, front_bytes
from tallystick.trust.permit import Permit, UndoOrder
from tallystick.trust.promise import Anchor

log = logging.getLogger(__name__)

CHECK_MS = 1_000  # how often Kafka's rules are held to the ledger's
UNCHECKED_MS = 20_000  # after a look that failed, which may itself have taken most of it
POLL_S = 0.02  # how long the notary waits for records where none are there
FRONT_BYTES = 4 << 20  # of headers in one answer with bodies


class Carried(NamedTuple):
    """A sealed topic as the ledger has it; `nodes` may write about it."""

    partitions: int
    replicas: int
    nodes: Sequence[bytes]


class KafkaCarrier(LogCarrier):
    """As thread-safe as the log carrier; `commit` belongs to one thread."""

    def __init__(
        self,
        kafka: KafkaClient,
        *log: Any,
        write: Callable[[Sequence[bytes]], int],
        follow: Callable[[int], tuple[int, list[Found]]],
        topics: Callable[[], Mapping[bytes, Carried]],
        reconciler: Reconciler,
        node_key: Callable[[bytes], VerifyKey | None],
        **options: Any,
    ) -> None:
        """`log` and `options` are those of `LogCarrier`. `write` brings entries to the ledger in one transaction and
        tells its number; `follow` tells how high the ledger is, and the notaries' anchors above a height (with
        transaction and entry); `topics` are the sealed topics on it, by token."""
        super().__init__(*log, **options)
        self._kafka, self._write, self._follow, self._topics = kafka, write, follow, topics
        self._reconciler, self._checked_ms = reconciler, 0
        self._drift: list[bytes] = []  # found, and not yet on the ledger
        self._followed = -1
        self._made: dict[bytes, Carried] = {}
        self._sealed = Topics(kafka, self._store, self._is_anchored)
        self._behind = Behind(self._sealed.trouble, self._follow_anchor)
        self._turns = Turns(self._node)
        self._new_blobs: list[tuple[bytes, bytes]] = []  # staged, and not yet shared
        self._shared = Shared(kafka, self._rules.instance, self._rules, self._take_shared)
        self._shared.catch_up()
        self._store.sync()
        self._lanes = Lanes(self._limits.lanes_max, self._heads.lanes)
        self._gate: dict[tuple[bytes, bytes], Staged] = {}  # where the heads lie that are beyond the index
        self._passed: dict[bytes, Staged] = {}  # parcels by hash that the index does not hold yet
        self._leaving: list[tuple[Accepted, Act, Asked, Staged]] = []
        self.notary = Notary(
            kafka,
            self._store,
            self._rules,
            self._live,
            node_key=node_key,
            has_lock=self._deposits.has_lock,
            principal_of=self._deposits.principal_of,
            contradicted=self._convict,
            limits=self._limits,
        )

    # Publishing.

    def publish(
        self, requests: Sequence[tuple[Asked, bytes, Sequence[bytes]]]
    ) -> list[list[Outcome] | TallystickError]:
        with self._lock:
            judged = [self._judge(asked, token, parcels) for asked, token, parcels in requests]
            try:
                self._send()
                self._sync()
            except (Unavailable, Misuse) as error:
                return [_ours(error) if isinstance(answer, list) else answer for answer in judged]
        self.on_growth()
        return [self._answer(answer) if isinstance(answer, list) else answer for answer in judged]

    def _answer(self, judged: list[tuple[Parcel, Staged, bool] | NotStored]) -> list[Outcome] | TallystickError:
        """Promises for a request, or why some parcel of it is not stored."""
        for one in judged:
            if not isinstance(one, NotStored) and one[1].error is not None:
                return one[1].error
        return self._promise(judged)

    def _stage(self, accepted: Accepted, act: Act, asked: Asked) -> Staged:
        header = accepted.parcel.header
        topics = zip(header.topics, accepted.partitions, strict=True)
        staged = Staged(tuple(Place(topic.token, partition) for topic, partition in topics), ())
        trouble = next(filter(None, map(self._sealed.trouble, staged.places)), None)
        if trouble is not None:
            raise trouble
        self._charge(accepted.permit.tenant, header.body_bytes, asked.now)
        self._lanes.advance(act.principal, header)
        self._gate[act.principal, header.lane] = staged
        self._leaving.append((accepted, act, asked, staged))
        return staged

    def _send(self) -> None:
        """Bring what the guards took to Kafka, and note each act with the offset that it got. What one partition does
        not take keeps no parcel of another from its promise."""
        leaving, self._leaving = self._leaving, []
        if not leaving:
            return
        failed: dict[tuple[bytes, bytes], TallystickError] = {}  # lanes: nothing counts behind a parcel that is missing
        try:
            sent = self._produce(leaving)
        except TallystickError:
            for accepted, act, _, _ in leaving:
                self._take_back(act.principal, accepted.parcel.header.lane)
            raise
        for (accepted, act, asked, staged), records in zip(leaving, sent, strict=True):
            lane = act.principal, accepted.parcel.header.lane
            error = failed.get(lane) or next((_ours(one.error) for one in records if one.error is not None), None)
            if error is not None:
                failed[lane] = error
                staged.settle(error)
                self._take_back(*lane)
                continue
            staged.planned = tuple(record.offset or 0 for record in records)
            staged.settle(None)
            self._passed[accepted.parcel.hash] = staged
            for place, offset in zip(staged.places, staged.planned, strict=True):
                self._note_stored(asked, place, offset)

    def _take_back(self, principal: bytes, lane: bytes) -> None:
        """Forget how far a lane is: what did get to Kafka comes back through the index."""
        self._lanes.restore(principal, lane, None)
        self._gate.pop((principal, lane), None)

    def _produce(self, leaving: Sequence[tuple[Accepted, Act, Asked, Staged]]) -> list[list[Sent]]:
        height, _ = self._block()
        hashes = [accepted.parcel.hash for accepted, _, _, _ in leaving]
        passages = sign_passages(self._node, height, hashes, self._key)
        written: list[list[Outgoing]] = []
        for (accepted, act, _, staged), passage in zip(leaving, passages, strict=True):
            parcel = accepted.parcel
            key, headers = act.principal + parcel.header.lane, [*describe(parcel), (PASSAGE, passage.encode())]
            written.append([Outgoing(place, key, parcel.encode(), headers) for place in staged.places])
        sent = self._kafka.store(written, self._sealed.trouble)
        for one in (one for records in sent for one in records):
            if one.offset is not None and one.offset < self._store.end_offset(one.place):
                one.error = self._sealed.replaced(one.place.token)  # Kafka counts from 0 again
        return sent

    def _find(self, repeated: Repeated) -> Staged:
        key = (repeated.permit.principal, repeated.parcel.header.lane)
        return self._gate[key] if key in self._gate else self._heads.where(*key)

    def _contradict(self, error: Contradiction, asked: Asked, token: bytes) -> NotStored | tuple[Parcel, Staged, bool]:
        passed = self._passed.get(error.parcel.hash)
        return (error.parcel, passed, True) if passed is not None else super()._contradict(error, asked, token)

    def _is_settled(self, principal: bytes, lane: bytes) -> bool:
        return (principal, lane) not in self._gate

    def _bytes_stored(self, place: Place) -> int:
        return self.notary.bytes_stored(place)

    # Permits and locks.

    def _stage_blob(self, name: bytes, data: bytes) -> None:
        super()._stage_blob(name, data)
        self._new_blobs.append((name, data))

    def _sync(self) -> None:
        """Others have what is new before anybody is told that it counts."""
        new, self._new_blobs = self._new_blobs, []
        if new and self._sealed.away is not None:
            raise self._sealed.away  # to whoever brought them, and will again: the notary's own work goes on
        if new:
            self._shared.put([(_what(name, data), data) for name, data in new])
        super()._sync()

    def _take_shared(self, what: What, data: bytes) -> None:
        """A permit, order or lock that some gateway took; checked."""
        if what is What.UNDO:
            order = UndoOrder.decode(data)
            self._store.stage_blob(undo_name(order.identifier), data)  # first, or the permit would be loaded again
            self._live.remove(order.identifier)
        elif what is What.PERMIT:
            self._store.stage_blob(permit_name(Permit.decode(data).identifier), data)
        else:
            self._store.stage_blob(lock_hash(data), data)

    # Reading.

    def _read(self, place: Place, offset: int, end: int, bytes_max: int, headers: bool) -> list[Entry]:
        if headers:
            return super()._read(place, offset, end, bytes_max, headers)
        fronts = super()._read(place, offset, end, FRONT_BYTES, headers=True)
        if not fronts:
            return []
        records = self._kafka.read(place, offset, fronts[-1].offset + 1, bytes_max)
        values = {record.offset: record.value for record in records}
        found: list[Entry] = []
        for front in fronts:
            value = values.get(front.offset)
            if is_void(front.header):
                found.append(front._replace(body=b""))
            elif value is not None:
                cut = _front_end(value)
                found.append(front._replace(header=value[:cut], body=value[cut:]))
            elif not found or (records and front.offset < records[-1].offset):
                raise Damaged(f"{place}: kafka holds nothing at offset {front.offset}")
            else:
                break
        return found

    # The ledger.

    def commit(self, now: float) -> bool:
        """Write what waits: the gateway's own operations, and the notary's anchors."""
        wrote = super().commit(now)
        return self._notarise(int(now * 1000)) or wrote

    def _notarise(self, now_ms: int) -> bool:
        self._make_topics()
        self._keep(now_ms)
        waits = self.notary.poll(self._places(), POLL_S)
        height, anchors = self._follow(self._followed)
        with self._lock:  # after the records: whose permits and locks are then among what is shared
            if self._shared.catch_up() if waits or anchors else self._shared.poll():
                self._store.sync()
        self._behind.catch_up(anchors, now_ms)
        self._followed = height
        with self._lock:
            judged = self.notary.judge(self._block()[1], lambda place: self._is_due(place, now_ms))
        for judgement in judged:
            self._write_judgement(judgement, now_ms)
        if judged:
            self.on_growth()
        return bool(judged)

    def _places(self) -> list[Place]:
        kept = {token: topic for token, topic in self._made.items() if not self._sealed.is_lost(token)}
        return [Place(token, n) for token, topic in kept.items() for n in range(topic.partitions)]

    def _is_anchored(self, token: bytes) -> bool:
        topic = self._topics().get(token)
        return topic is not None and any(self._anchored.size(Place(token, n)) for n in range(topic.partitions))

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
            self._write(told)
        except Unavailable:
            self._drift = told
            raise

    def _check_topics(self) -> list[Drift]:
        return self._sealed.check({token: topic.partitions for token, topic in self._topics().items()})

    def _follow_anchor(self, place: Place, found: Found, now_ms: int) -> None:
        with self._lock:
            items = self.notary.catch_up(found[0], now_ms)
            self._take_over(place, items)
            self._anchored.remember(*found)
        if items:
            self._turns.followed(place)
            self.on_growth()

    def _write_judgement(self, judgement: Judgement, now_ms: int) -> None:
        written = [judgement.anchor.encode_entry(), *self.notary.operations(judgement, now_ms)]
        try:
            number = self._write(written)
        except Refused as error:
            if error.reason != "anchor-moved":  # else another notary was first
                raise
            return
        self._turns.wrote(judgement.place)
        with self._lock:
            self.notary.take(judgement, now_ms)
            self._take_over(judgement.place, judgement.items)
            self._anchored.remember(judgement.anchor, number, 0)

    def _take_over(self, place: Place, items: Sequence[Judged]) -> None:
        for one in items:
            if one.parcel is not None:
                self._passed_on(place, one.offset, one.parcel, one.principal)
        self._heads.settle()

    def _passed_on(self, place: Place, offset: int, parcel: Parcel, principal: bytes) -> None:
        """The index holds it: its head counts from there, for every gateway alike."""
        header, key = parcel.header, (principal, parcel.header.lane)
        self._passed.pop(parcel.hash, None)
        head, gate = self._heads.lanes.head(*key), self._lanes.head(*key)
        passed = self._gate.get(key) if gate is not None and gate.parcel == parcel.hash else None
        if head is None or header.sequence > head.sequence:
            self._heads.advance(principal, header, passed or settled((place,), (offset,)))
        elif head.parcel == parcel.hash and place not in self._heads.where(*key).places:
            self._heads.advance(principal, header, joined(self._heads.where(*key), place, offset))
        if gate is not None and gate.sequence <= header.sequence:
            self._lanes.restore(*key, None)
            self._gate.pop(key, None)

    def _make_topics(self) -> None:
        for token, topic in self._topics().items():
            if token not in self._made:
                self._sealed.make(token, topic.partitions, topic.replicas)
            self._made[token] = topic

    def _grown(self) -> list[Anchor]:
        return []  # the notary's, each with the size it continues

    def retirable(self, now_ms: int, bytes_max: int | None, age_max_ms: int | None) -> list[tuple[Place, int, bytes]]:
        return []  # Kafka's retention is off on sealed topics

    def close(self) -> None:
        self._shared.close()
        self.notary.close()
        self._kafka.close()
        super().close()

    def _convict(self, error: Contradiction, place: Place) -> None:
        """A direct client signed two parcels of one sequence: both headers go to the ledger."""
        other = self._find_sequence(place, error.permit.principal, error.parcel.header)
        if other is not None and other.hash != error.parcel.hash:
            self._accuse(error.permit, other, error.parcel, self._block()[1])


def _ours(error: TallystickError) -> Unavailable:
    """To clients, a mistake in this gateway's settings is a gateway that is away."""
    return error if isinstance(error, Unavailable) else Unavailable(str(error), hint=error.hint)


def _what(name: bytes, data: bytes) -> What:
    """What kind of object lies under a name."""
    if name == lock_hash(data):
        return What.LOCK
    with suppress(Malformed):
        if name == permit_name(Permit.decode(data).identifier):
            return What.PERMIT
    return What.UNDO


def _tell(drift: Drift, now_ms: int) -> bytes:
    """A drift as an operation of nobody's, in the topic's own history where it has one."""
    return entries.operation(
        *(NOBODY, Role.NONE, drift.token or NOBODY, int(Right.DESCRIBE)),
        time_ms=now_ms,
        request=sha256(drift.what.encode()).digest(),
        reason=drift.reason,
        host=HOST,
    )


def _front_end(value: bytes) -> int:
    """Where the body of a record begins; a record that is no parcel any more has no body."""
    try:
        return min(front_bytes(value), len(value))
    except Refused:
        return len(value)
