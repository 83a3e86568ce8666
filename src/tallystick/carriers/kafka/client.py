"""The whole of Kafka that we use: records by partition and offset, and what an administrator sees (administration.py).

Keys, partitions and headers are ours to set: key = publisher ‖ lane, so that Kafka's own tools can route and count by
lane without opening anything; the partition is the lane's. A parcel of several topics is one record in each, written in
one transaction: taken for all or for none (EventGuard 4.4). Everything is read as committed: a record of an aborted
transaction is not there.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from tallystick.carriers.kafka.administration import ASK_S, PARCEL_BYTES_MAX, Administration, log
from tallystick.carriers.kafka.consumers import POLL_RECORDS, RangeReader, Record, choose, put_away
from tallystick.carriers.kafka.failures import REPLICAS, explain, library, translated
from tallystick.carriers.storage import Place
from tallystick.errors import TallystickError, Unavailable
from tallystick.parcel.parcel import Parcel

SEND_S = 30.0  # how long a record may take to be stored by all replicas
TOGETHER_S = 10.0  # a transaction: readers of its partitions wait for its end, so Kafka aborts one that takes longer
AHEAD_BYTES = 16 << 20  # that a consumer may fetch before it is asked: a few requests of a reader


class Outgoing(NamedTuple):
    """A record to be written."""

    place: Place
    key: bytes
    value: bytes
    headers: Sequence[tuple[str, bytes]]


@dataclass
class SentRecord:
    """A record on its way."""

    place: Place
    offset: int | None = None
    error: TallystickError | None = None


Trouble = Callable[[Place], TallystickError | None]


class KafkaClient(Administration):
    """Thread-safe. `settings` are librdkafka's (`bootstrap.servers`, `security.protocol`, …)."""

    def __init__(self, settings: Mapping[str, str], transactions: str = "tallystick") -> None:
        """The identifiers of this client's transactions begin with `transactions`."""
        super().__init__(settings)
        self._producer: Any = None
        self._transactions, self._together = transactions, threading.Lock()
        self._transactional: Any = None
        self._idle: list[RangeReader] = []  # between two reads, the one that was left last at the end

    # Writing.

    def store(self, parcels: Sequence[Sequence[Outgoing]], trouble: Trouble = lambda _: None) -> list[list[SentRecord]]:
        """Write each parcel's records, those of several topics together; all are stored by all replicas, or failed,
        when it returns. `trouble` tells why a place cannot be written to now, as far as anybody knows."""
        several = [one for records in parcels if len(records) > 1 for one in records]
        together = iter(self._store_together(several) if several else ())
        sent = [
            [next(together) for _ in records] if len(records) > 1 else [self.produce(*one) for one in records]
            for records in parcels
        ]
        waiting = [one for records in sent for one in records]
        try:
            self.flush(waiting, trouble=trouble)
        except Unavailable as error:
            for one in waiting:
                one.error = one.error or (error if one.offset is None else None)
        return sent

    def _store_together(self, records: Sequence[Outgoing]) -> list[SentRecord]:
        """All of them, or none that anybody ever sees; then each has the error."""
        sent: list[SentRecord] = []
        with self._together:
            try:
                with self._asking("store records together"):
                    producer = self._transactional = self._transactional or self._open_transactional()
                    producer.begin_transaction()
                    sent = [self._hand_over(producer, one) for one in records]
                    if producer.flush(TOGETHER_S):
                        raise _late()
                    for one in sent:
                        if one.error is not None:
                            raise one.error
                    producer.commit_transaction(TOGETHER_S)
            except TallystickError as error:
                self._abort()
                return [SentRecord(one.place, error=error) for one in records]
        return sent

    def _abort(self) -> None:
        """Give the transaction up; where even that fails, Kafka aborts it, and another producer goes on."""
        producer = self._transactional
        try:
            with translated("give up records"):
                if producer is not None:
                    producer.abort_transaction(TOGETHER_S)
        except TallystickError as error:
            log.info("%s", error)
            self._transactional = None

    def _open_transactional(self) -> Any:
        # A name of its own each time: two processes of one principal must not end each other's transactions.
        producer = library().Producer(
            {
                **self._settings,
                "transactional.id": f"{self._transactions}-{secrets.token_hex(8)}",
                "transaction.timeout.ms": str(int(TOGETHER_S * 1000)),
                "delivery.timeout.ms": str(int(TOGETHER_S * 1000)),
                "message.max.bytes": str(PARCEL_BYTES_MAX),
            }
        )
        producer.init_transactions(ASK_S)
        return producer

    def produce(self, place: Place, key: bytes, value: bytes, headers: Sequence[tuple[str, bytes]]) -> SentRecord:
        """Hand a record over; it is stored when `flush` has returned and it has an offset."""
        return self._hand_over(self._producing(), Outgoing(place, key, value, headers))

    def _hand_over(self, producer: Any, one: Outgoing, name: str | None = None) -> SentRecord:
        """`name` is that of a topic that has no token."""
        sent, topic = SentRecord(one.place), name or one.place.token.hex()

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                sent.offset = message.offset()
            else:
                sent.error = explain(error, f"store in {topic}")

        try:
            with self._writing(f"write to {topic}"):
                producer.produce(
                    *(topic, one.value, one.key, one.place.partition), headers=list(one.headers), on_delivery=delivered
                )
        except TallystickError as error:  # the library may know of it before it asks; what lies beside it goes on
            sent.error = error
        return sent

    def put_shared(self, name: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Append key and value each; durable when it returns."""
        nowhere, producer = Place(b"", 0), self._producing()
        sent = [self._hand_over(producer, Outgoing(nowhere, key, value, []), name) for key, value in records]
        self.flush(sent)
        for one in sent:
            if one.error is not None:
                raise one.error

    def flush(self, sent: Sequence[SentRecord], timeout_s: float = SEND_S, trouble: Trouble = lambda _: None) -> None:
        """Wait until each is stored by all its replicas, or failed; one whose place is in trouble is not waited for."""
        producer, deadline = self._producing(), time.monotonic() + timeout_s
        while waiting := [one for one in sent if one.offset is None and one.error is None]:
            with self._writing("store records"):
                producer.poll(0.1)
                if time.monotonic() > deadline:
                    raise _late()
            for one in waiting:
                if one.offset is None:
                    one.error = one.error or trouble(one.place)

    @contextmanager
    def _writing(self, act: str) -> Iterator[None]:
        """As `_asking`. A producer that met what it calls a fatal error (no right yet, a broker too old) takes nothing
        any more, whatever is mended: the next record gets another one."""
        with self._asking(act):
            try:
                yield
            except library().KafkaException as error:
                if error.args[0].fatal() or error.args[0].name() == "_FATAL":
                    self._producer = None
                raise

    def _producing(self) -> Any:
        with self._lock:
            if self._producer is None:
                self._producer = library().Producer(
                    {
                        **self._settings,
                        "enable.idempotence": "true",  # acks=all, and a retry stores nothing twice
                        "linger.ms": "2",
                        "message.max.bytes": str(PARCEL_BYTES_MAX),
                        "delivery.timeout.ms": str(int(SEND_S * 1000)),
                    }
                )
            return self._producer

    # Reading.

    def read(self, place: Place, first: int, end: int, bytes_max: int, timeout_s: float = ASK_S) -> list[Record]:
        """Records from `first` on and below `end`, as many as `bytes_max` allows and at least one; offsets without a
        visible record are left out. Raises `Unavailable` where they do not come in time."""
        found: list[Record] = []
        size, deadline = 0, time.monotonic() + timeout_s

        def fits(record: Record) -> bool:
            return record.offset < end and (not found or size + len(record.value) <= bytes_max)

        with self._reader(place, first) as reader, self._asking(f"read {place}"):
            reader.go_to(place, first)
            while reader.at < end and (not found or size < bytes_max):
                record = reader.next(min(end - reader.at, POLL_RECORDS), fits)
                if record is not None:
                    found.append(record)
                    size += len(record.value)
                elif reader.has_next:
                    break
                elif time.monotonic() > deadline:
                    self._check_readable(reader.consumer, place)
                    raise Unavailable(f"kafka: {place} holds nothing readable at offset {reader.at}", retry_after_s=1.0)
            reader.leave()
        return found

    def _check_readable(self, consumer: Any, place: Place) -> None:
        """Raise what Kafka says of a partition that does not answer: a reader is told nothing by itself."""
        name = place.token.hex()
        topic = consumer.list_topics(name, timeout=ASK_S).topics.get(name)
        if topic is not None and topic.error is not None:
            raise explain(topic.error, f"read {place}")

    @contextmanager
    def _reader(self, place: Place, first: int) -> Iterator[RangeReader]:
        with self._lock:
            reader = choose(self._idle, place, first)
        reader = reader or RangeReader(self.consumer())
        try:
            yield reader
        except BaseException:
            reader.close()
            raise
        with self._lock:
            self._idle.append(reader)

    def consumer(self) -> Any:
        """A consumer that commits nothing and belongs to no group's rebalancing."""
        with self._asking("open a Kafka consumer"):
            return library().Consumer(
                {
                    **self._settings,
                    "group.id": "tallystick",  # the library wants one; nothing is ever joined or committed
                    "enable.auto.commit": "false",
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed",
                    "enable.partition.eof": "true",
                    "fetch.wait.max.ms": "100",
                    "fetch.error.backoff.ms": "50",
                    "queued.max.messages.kbytes": str(AHEAD_BYTES >> 10),
                    "fetch.queue.backoff.ms": "10",  # when it is full; the library would not look again for a second
                    "message.max.bytes": str(PARCEL_BYTES_MAX),
                }
            )

    def close(self) -> None:
        with self._lock:
            if self._producer is not None:
                try:
                    with self._asking("send what waits"):
                        self._producer.flush(1.0)
                except TallystickError as error:
                    log.info("%s", error)  # whoever waited for it was not told that it is stored
            held = [self._producer, self._transactional, self._admin, *self._named.values()]
            held += [reader.consumer for reader in self._idle]
            self._producer = self._transactional = self._admin = None
            self._idle.clear()
            self._named.clear()
        put_away(held)  # and the threads of each with it


def _late() -> Unavailable:
    return Unavailable("kafka: records were not stored in time", retry_after_s=1.0, hint=REPLICAS)


def outgoing(parcel: Parcel, principal: bytes, places: Sequence[Place], *headers: tuple[str, bytes]) -> list[Outgoing]:
    """The records of a parcel of this publisher: one in each of its places."""
    key, value, described = principal + parcel.header.lane, parcel.encode(), [*describe(parcel), *headers]
    return [Outgoing(place, key, value, described) for place in places]


def describe(parcel: Parcel) -> list[tuple[str, bytes]]:
    """A record's headers, for Kafka's own tools to route by; all of it stands in the clear header."""
    header = parcel.header
    return [
        ("tally", b"1"),
        ("tally-kind", header.kind.name.lower().encode()),
        ("tally-lane", header.lane.hex().encode()),
        ("tally-sequence", str(header.sequence).encode()),
        ("tally-schema", str(header.schema_version).encode()),
    ]
