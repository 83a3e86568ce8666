"""The whole of Kafka that we use: topics by token, records by partition and offset. Foreign errors end here.

A topic is named by its token and never by its name. Keys, partitions and headers are ours to set: key = publisher ‖
lane, so that Kafka's own tools can route and count by lane without opening anything; the partition is the lane's.
Everything is read as committed: a record of an aborted transaction is not there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from tallystick.carriers.log.segments import Place
from tallystick.errors import Misuse, TallystickError, Unavailable
from tallystick.parcel.parcel import Parcel

log = logging.getLogger(__name__)  # the library's own lines too

PASSAGE = "tally-passage"  # the header with the gateway's word
PARCEL_BYTES_MAX = 16 << 20  # what a topic of ours takes; guards hold publishers to less
SEND_S = 30.0  # how long a record may take to be stored by all replicas
ASK_S = 15.0  # one administrative request
POLL_RECORDS = 1_000
SCRAM_ROUNDS = 8192
BACK_OFF_MS = 2_000  # between attempts to reach a broker, at most
DENIED_S = 10.0  # how long a failed authentication explains why nothing is answered
TOPIC_SETTINGS = {  # what a sealed topic must not be changed from: deleting is for `retire` alone
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(PARCEL_BYTES_MAX),
    "message.timestamp.type": "LogAppendTime",
}


class Entry(NamedTuple):
    """One entry of Kafka's access control: whether `user` may do `operation` on `topic` ("*": on any)."""

    user: str
    topic: str
    operation: str
    allowed: bool = True
    pattern: str = "LITERAL"  # or PREFIXED


class Record(NamedTuple):
    """What a partition holds at an offset."""

    offset: int
    value: bytes
    passage: bytes | None


@dataclass
class Sent:
    """A record on its way."""

    place: Place
    offset: int | None = None
    error: TallystickError | None = None


class KafkaClient:
    """Thread-safe. `settings` are librdkafka's (`bootstrap.servers`, `security.protocol`, …)."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings: dict[str, Any] = {
            "reconnect.backoff.max.ms": str(BACK_OFF_MS),
            **settings,
            "logger": log,
            "error_cb": self._hear,
        }
        self._denied: tuple[Any, float] | None = None  # Kafka does not know us: its error, and when we heard it
        self._lock = threading.Lock()
        self._producer: Any = None
        self._admin: Any = None
        self._idle: list[Any] = []  # consumers between two reads

    def _hear(self, error: Any) -> None:
        """What the library tells about its connections; it goes on trying by itself."""
        if error.name() == "_AUTHENTICATION":
            self._denied = error, time.monotonic()

    @contextmanager
    def _asking(self, act: str, ignore: Sequence[str] = ()) -> Iterator[None]:
        """Foreign errors become ours; and a Kafka that does not know us is told as such, not as one that is away."""
        try:
            with _translated(act, ignore):
                yield
        except Unavailable as error:
            if self._admin is not None:
                self._admin.poll(0)  # what it heard
            if self._denied is None or time.monotonic() - self._denied[1] > DENIED_S:
                raise
            raise _explain(self._denied[0], act) from error

    # Topics.

    @property
    def admin(self) -> Any:
        with self._lock:
            if self._admin is None:
                admin = _library("confluent_kafka.admin")
                self._admin = admin.AdminClient(self._settings)
            return self._admin

    def broker_count(self, timeout_s: float = ASK_S) -> int:
        with self._asking("list brokers"):
            return len(self.admin.list_topics(timeout=timeout_s).brokers)

    def topics(self) -> dict[bytes, int]:
        """Sealed topics that Kafka has: token → partitions."""
        with self._asking("list topics"):
            found = self.admin.list_topics(timeout=ASK_S).topics
        return {token: len(topic.partitions) for name, topic in found.items() if (token := token_of(name))}

    def make_shared_topic(self, name: str) -> None:
        """A topic of one partition for what gateways share; made where it is missing."""
        self._make(name, 1, -1)

    def put_shared(self, name: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Append key and value each; durable when it returns."""
        sent = [self._hand_over(name, 0, key, value, []) for key, value in records]
        self.flush(sent)
        for one in sent:
            if one.error is not None:
                raise one.error

    def make_topic(self, token: bytes, partitions: int, replicas: int) -> None:
        """Make it where it is missing."""
        # One replica on the ledger means that nobody asked for more: then Kafka's own default counts.
        self._make(token.hex(), partitions, replicas if replicas > 1 else -1)

    def _make(self, name: str, partitions: int, replicas: int) -> None:
        admin = _library("confluent_kafka.admin")
        topic = admin.NewTopic(name, partitions, replicas, config=TOPIC_SETTINGS)
        with self._asking(f"make topic {name}", ignore=("TOPIC_ALREADY_EXISTS",)):
            for future in self.admin.create_topics([topic], request_timeout=ASK_S).values():
                future.result(ASK_S)

    def topic_settings(self, tokens: Sequence[bytes]) -> dict[bytes, dict[str, str]]:
        """The settings of sealed topics that must stay as they were made."""
        if not tokens:
            return {}
        admin = _library("confluent_kafka.admin")
        asked = {admin.ConfigResource(admin.ResourceType.TOPIC, token.hex()): token for token in tokens}
        with self._asking("read topic settings"):
            answers = self.admin.describe_configs(list(asked), request_timeout=ASK_S)
            found = {asked[resource]: future.result(ASK_S) for resource, future in answers.items()}
        return {token: {name: str(found[token][name].value) for name in TOPIC_SETTINGS} for token in found}

    def restore_settings(self, token: bytes) -> None:
        admin = _library("confluent_kafka.admin")
        entries = [
            admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
            for name, value in TOPIC_SETTINGS.items()
        ]
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, token.hex(), incremental_configs=entries)
        with self._asking(f"restore the settings of topic {token.hex()}"):
            for future in self.admin.incremental_alter_configs([resource], request_timeout=ASK_S).values():
                future.result(ASK_S)

    # Access.

    def access_entries(self) -> frozenset[Entry]:
        """Every entry of Kafka's access control about topics."""
        admin = _library("confluent_kafka.admin")
        everything = admin.AclBindingFilter(
            *(admin.ResourceType.ANY, None, admin.ResourcePatternType.ANY, None, None),
            *(admin.AclOperation.ANY, admin.AclPermissionType.ANY),
        )
        with self._asking("read access control"):
            found = self.admin.describe_acls(everything, request_timeout=ASK_S).result(ASK_S)
        return frozenset(
            Entry(
                *(one.principal, one.name, one.operation.name, one.permission_type is admin.AclPermissionType.ALLOW),
                one.resource_pattern_type.name,
            )
            for one in found
            if one.restype is admin.ResourceType.TOPIC
        )

    def change_access(self, added: Iterable[Entry], removed: Iterable[Entry]) -> None:
        admin = _library("confluent_kafka.admin")
        new, old = [_binding(admin.AclBinding, one) for one in added], list(removed)
        with self._asking("change access control"):
            if new:
                for future in self.admin.create_acls(new, request_timeout=ASK_S).values():
                    future.result(ASK_S)
            if old:
                filters = [_binding(admin.AclBindingFilter, one) for one in old]
                for future in self.admin.delete_acls(filters, request_timeout=ASK_S).values():
                    future.result(ASK_S)

    def make_user(self, name: str, password: bytes) -> None:
        """Give a user a password, or another one."""
        admin = _library("confluent_kafka.admin")
        scram = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_512, SCRAM_ROUNDS)
        self._change_users([admin.UserScramCredentialUpsertion(name, scram, password)], ())

    def forget_user(self, name: str) -> None:
        """Take a user's password away: its connections end when Kafka next asks for it."""
        admin = _library("confluent_kafka.admin")
        gone = admin.UserScramCredentialDeletion(name, admin.ScramMechanism.SCRAM_SHA_512)
        self._change_users([gone], ("RESOURCE_NOT_FOUND",))

    def _change_users(self, changes: list[Any], ignore: Sequence[str]) -> None:
        with self._asking("change users", ignore=ignore):
            for future in self.admin.alter_user_scram_credentials(changes, request_timeout=ASK_S).values():
                future.result(ASK_S)

    # Writing.

    def produce(self, place: Place, key: bytes, value: bytes, headers: Sequence[tuple[str, bytes]]) -> Sent:
        """Hand a record over; it is stored when `flush` has returned and it has an offset."""
        return self._hand_over(place.token.hex(), place.partition, key, value, headers, place)

    def _hand_over(
        self,
        topic: str,
        partition: int,
        key: bytes,
        value: bytes,
        headers: Sequence[tuple[str, bytes]],
        place: Place = Place(b"", 0),
    ) -> Sent:
        sent = Sent(place)

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                sent.offset = message.offset()
            else:
                sent.error = _explain(error, f"store in {topic}")

        with self._asking(f"write to {topic}"):
            self._producing().produce(topic, value, key, partition, headers=list(headers), on_delivery=delivered)
        return sent

    def flush(self, sent: Sequence[Sent], timeout_s: float = SEND_S) -> None:
        """Wait until each is stored by all its replicas, or failed."""
        producer, deadline = self._producing(), time.monotonic() + timeout_s
        while any(one.offset is None and one.error is None for one in sent):
            producer.poll(0.1)
            if time.monotonic() > deadline:
                with self._asking("store records"):
                    raise Unavailable("kafka: records were not stored in time", retry_after_s=1.0)

    def _producing(self) -> Any:
        with self._lock:
            if self._producer is None:
                kafka = _library()
                self._producer = kafka.Producer(
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
        with self._consumer() as consumer, self._asking(f"read {place}"):
            consumer.assign([_library().TopicPartition(place.token.hex(), place.partition, first)])
            found: list[Record] = []
            size, at, deadline = 0, first, time.monotonic() + timeout_s
            while at < end and (not found or size < bytes_max):
                for message in consumer.consume(min(end - at, POLL_RECORDS), 0.05):
                    if _is_end(message):
                        continue
                    record = _record(message)
                    at = record.offset + 1
                    if record.offset < end and (not found or size + len(record.value) <= bytes_max):
                        found.append(record)
                        size += len(record.value)
                    else:
                        return found
                at = max(at, _position(consumer, place))
                if time.monotonic() > deadline:
                    self._check_readable(consumer, place)
                    raise Unavailable(f"kafka: {place} holds nothing readable at offset {at}", retry_after_s=1.0)
            return found

    def _check_readable(self, consumer: Any, place: Place) -> None:
        """Raise what Kafka says of a partition that does not answer: a reader is told nothing by itself."""
        name = place.token.hex()
        error = consumer.list_topics(name, timeout=ASK_S).topics[name].error
        if error is not None:
            raise _explain(error, f"read {place}")

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        with self._lock:
            consumer = self._idle.pop() if self._idle else None
        consumer = consumer or self.consumer()
        try:
            yield consumer
        except BaseException:
            consumer.close()
            raise
        consumer.unassign()
        with self._lock:
            self._idle.append(consumer)

    def consumer(self) -> Any:
        """A consumer that commits nothing and belongs to no group's rebalancing."""
        with self._asking("open a Kafka consumer"):
            return _library().Consumer(
                {
                    **self._settings,
                    "group.id": "tallystick",  # the library wants one; nothing is ever joined or committed
                    "enable.auto.commit": "false",
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed",
                    "enable.partition.eof": "true",
                    "fetch.wait.max.ms": "100",
                    "fetch.error.backoff.ms": "50",
                    "queued.max.messages.kbytes": str(64 << 10),
                    "message.max.bytes": str(PARCEL_BYTES_MAX),
                }
            )

    def close(self) -> None:
        with self._lock:
            for consumer in self._idle:
                consumer.close()
            self._idle.clear()
            if self._producer is not None:
                try:
                    with self._asking("send what waits"):
                        self._producer.flush(1.0)
                except TallystickError as error:
                    log.info("%s", error)  # whoever waited for it was not told that it is stored
            self._producer = self._admin = None  # their threads end with them


class Tail:
    """New records of many partitions, in order within each; for one thread."""

    def __init__(self, client: KafkaClient) -> None:
        self._consumer = client.consumer()
        self._next: dict[Place, int] = {}

    def follow(self, places: Mapping[Place, int]) -> None:
        """Go on with exactly these partitions, each from its offset."""
        if dict(places) == self._next:
            return
        partition = _library().TopicPartition
        with _translated("follow partitions"):
            self._consumer.assign([partition(p.token.hex(), p.partition, at) for p, at in places.items()])
        self._next = dict(places)

    def poll(self, timeout_s: float) -> dict[Place, list[Record]]:
        """What came, at most `POLL_RECORDS` of it."""
        found: dict[Place, list[Record]] = {}
        with _translated("read new records"):
            messages = self._consumer.consume(POLL_RECORDS, timeout_s) if self._next else []
            for message in messages:
                if not _is_end(message):
                    place = Place(bytes.fromhex(message.topic()), message.partition())
                    found.setdefault(place, []).append(_record(message))
                    self._next[place] = message.offset() + 1
        return found

    def close(self) -> None:
        self._consumer.close()


class SharedTail:
    """All records of a shared topic from its beginning, in order; for one thread."""

    def __init__(self, client: KafkaClient, name: str) -> None:
        self._consumer, self._partition = client.consumer(), _library().TopicPartition(name, 0, 0)
        self.is_at_end = False
        with _translated(f"follow {name}"):
            self._consumer.assign([self._partition])

    def poll(self) -> list[tuple[bytes, bytes]]:
        """Key and value of each record that came."""
        with _translated("read shared objects"):
            messages = self._consumer.consume(POLL_RECORDS, 0 if self.is_at_end else 0.2)
            found = [message for message in messages if not _is_end(message)]
            if len(found) < len(messages):
                self.is_at_end = True
        return [(message.key() or b"", message.value() or b"") for message in found]

    def close(self) -> None:
        self._consumer.close()


def _binding(kind: Any, entry: Entry) -> Any:
    admin = _library("confluent_kafka.admin")
    return kind(
        admin.ResourceType.TOPIC,
        entry.topic,
        admin.ResourcePatternType[entry.pattern],
        entry.user,
        "*",
        admin.AclOperation[entry.operation],
        admin.AclPermissionType.ALLOW if entry.allowed else admin.AclPermissionType.DENY,
    )


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


def token_of(name: str) -> bytes | None:
    """The token that a Kafka topic is named by, or None for a topic that is not ours."""
    try:
        return bytes.fromhex(name) if len(name) == 32 and name == name.lower() else None
    except ValueError:
        return None


def _record(message: Any) -> Record:
    headers = dict(message.headers() or ())
    return Record(message.offset(), message.value() or b"", headers.get(PASSAGE))


def _position(consumer: Any, place: Place) -> int:
    partition = _library().TopicPartition(place.token.hex(), place.partition)
    return int(max(0, consumer.position([partition])[0].offset))


def _is_end(message: Any) -> bool:
    """Whether it is no record but only tells that the partition ends here; raises what any other error means."""
    error = message.error()
    if error is None:
        return False
    if error.name() in ("_PARTITION_EOF", "GROUP_AUTHORIZATION_FAILED"):  # nor does anybody join a group here
        return True
    raise _explain(error, f"read {message.topic()}")


# What Kafka's errors mean to whoever runs this.
_REMEDIES = {
    "_ALL_BROKERS_DOWN": "start the brokers, or correct bootstrap.servers",
    "_TRANSPORT": "start the brokers, or correct bootstrap.servers",
    "_RESOLVE": "correct the host names in bootstrap.servers",
    "_TIMED_OUT": "see whether the brokers are up and reachable",
    "_MSG_TIMED_OUT": "see whether enough replicas are in sync",
    "NOT_ENOUGH_REPLICAS": "bring the missing brokers back",
    "_UNKNOWN_TOPIC": "the notary makes topics that are on the ledger: start one",
    "UNKNOWN_TOPIC_OR_PART": "the notary makes topics that are on the ledger: start one",
}
_FINAL = {
    "_AUTHENTICATION": "check user name, password or certificate in the Kafka settings",
    "SASL_AUTHENTICATION_FAILED": "check user name and password in the Kafka settings",
    "_SSL": "check ssl.ca.location and the client's certificate",
    "TOPIC_AUTHORIZATION_FAILED": "the ledger grants no such right, or the notary has not brought it to Kafka yet",
    "CLUSTER_AUTHORIZATION_FAILED": "this Kafka user may not do that",
    "UNSUPPORTED_VERSION": "Kafka 4.0 or newer is needed",
    "MSG_SIZE_TOO_LARGE": "seal fewer records a parcel",
}


def _explain(error: Any, act: str) -> TallystickError:
    message = f"kafka: cannot {act}: {error.str()}"
    if error.name() in _FINAL:
        return Misuse(message, hint=_FINAL[error.name()])
    return Unavailable(message, retry_after_s=1.0, hint=_REMEDIES.get(error.name()))


@contextmanager
def _translated(act: str, ignore: Sequence[str] = ()) -> Iterator[None]:
    kafka = _library()
    try:
        yield
    except kafka.KafkaException as error:
        cause = error.args[0]
        if cause.name() not in ignore:
            raise _explain(cause, act) from error
    except TimeoutError as error:  # of a future: the library had no answer to give yet
        raise Unavailable(
            f"kafka: cannot {act}: no answer in time", retry_after_s=1.0, hint=_REMEDIES["_TIMED_OUT"]
        ) from error
    except BufferError as error:
        raise Unavailable("kafka: too many records wait to be sent", retry_after_s=0.2) from error


def _library(module: str = "confluent_kafka") -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise Misuse("Kafka needs the package confluent-kafka", hint="pip install 'tallystick[kafka]'") from None
