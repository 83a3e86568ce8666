"""Kafka as its administrator sees it: topics and their settings, access control, users, and the offsets of groups.

A topic is named by its token and never by its name, a user by its principal's identifier, a group by its own; all in
hex. Kafka's own tools show all of it, and none of it says more than the ledger does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tallystick.carriers.kafka.consumers import partition_at, put_away
from tallystick.carriers.kafka.failures import FINAL, explain, is_final, library, translated
from tallystick.carriers.storage import Place
from tallystick.errors import Misuse, Unavailable

log = logging.getLogger(__name__)  # the library's own lines too

PARCEL_BYTES_MAX = 16 << 20  # what a topic of ours takes; guards hold publishers to less
ASK_S = 15.0  # one administrative request
SCRAM_ROUNDS = 8192
USERS_AT_ONCE = 500  # in one request
GROUPS_AT_ONCE = 16  # for each a consumer is kept, of four threads
BACK_OFF_MS = 500, 2_000  # between attempts to reach a broker, at first and at most
HEARD_S = 10.0  # how long an error of a connection explains why nothing is answered
TOPIC_SETTINGS = {  # what a sealed topic must not be changed from: deleting is for `retire` alone
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(PARCEL_BYTES_MAX),
    "message.timestamp.type": "LogAppendTime",
}


class AccessEntry(NamedTuple):
    """One entry of Kafka's access control: whether `user` ("User:*": anybody) may do `operation` on the resource `name`
    ("*": on any)."""

    user: str
    name: str
    operation: str
    allowed: bool = True
    pattern: str = "LITERAL"  # or PREFIXED
    resource: str = "TOPIC"  # or GROUP, TRANSACTIONAL_ID, BROKER: the cluster


class Spot(NamedTuple):
    """Where a group reads."""

    group: bytes
    place: Place


class FoundTopic(NamedTuple):
    """A sealed topic as Kafka has it."""

    identity: bytes  # that Kafka gave it when it was made: another topic of the same name has another
    partitions: int
    offline: frozenset[int]  # partitions that no broker serves now


class Administration:
    """Thread-safe. `settings` are librdkafka's (`bootstrap.servers`, `security.protocol`, …)."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings: dict[str, Any] = {
            "reconnect.backoff.ms": str(BACK_OFF_MS[0]),
            "reconnect.backoff.max.ms": str(BACK_OFF_MS[1]),
            "log_level": "2",  # a line for each attempt to connect helps nobody; settings may ask for more
            **settings,
            "logger": log,
            "error_cb": self._hear,
        }
        self._heard: tuple[Any, float] | None = None  # an error that does not pass by itself, and when we heard it
        self._lock = threading.Lock()
        self._admin: Any = None
        self._named: dict[bytes, Any] = {}  # consumers by the groups in whose names they ask, the last one last

    def _hear(self, error: Any) -> None:
        """What the library tells about its connections; it goes on trying by itself."""
        if is_final(error):
            self._heard = error, time.monotonic()

    @contextmanager
    def _asking(self, act: str, ignore: Sequence[str] = ()) -> Iterator[None]:
        """Foreign errors become ours; and a Kafka that does not know us, or whom we do not believe, is told as such and
        not as one that is away."""
        try:
            with translated(act, ignore):
                yield
        except Unavailable as error:
            if self._admin is not None:
                self._admin.poll(0)  # what it heard
            if self._heard is None or time.monotonic() - self._heard[1] > HEARD_S:
                raise
            raise explain(self._heard[0], act) from error

    def _ask(self, act: str, method: str, *asked: Any, ignore: Sequence[str] = ()) -> dict[Any, Any]:
        """Every answer to one request of an administrator, by what was asked for."""
        with self._asking(act, ignore):
            futures = getattr(self.admin, method)(*asked, request_timeout=ASK_S)
            return {one: future.result(ASK_S) for one, future in futures.items()}
        return {}  # what was asked for is there already, or gone

    # Topics.

    @property
    def admin(self) -> Any:
        with self._lock:
            if self._admin is None:
                self._admin = library("confluent_kafka.admin").AdminClient(self._settings)
            return self._admin

    def broker_count(self, timeout_s: float = ASK_S) -> int:
        with self._asking("list brokers"):
            return len(self.admin.list_topics(timeout=timeout_s).brokers)

    def topics(self) -> dict[bytes, int]:
        """Sealed topics that Kafka has: token → partitions."""
        with self._asking("list topics"):
            found = self.admin.list_topics(timeout=ASK_S).topics
        return {token: len(topic.partitions) for name, topic in found.items() if (token := token_of(name))}

    def find_topics(self, tokens: Sequence[bytes]) -> dict[bytes, FoundTopic]:
        """Which of these topics Kafka has, and what they are there."""
        if not tokens:
            return {}
        found: dict[bytes, FoundTopic] = {}
        names = library().TopicCollection([token.hex() for token in tokens])
        with self._asking("describe topics"):
            answers = self.admin.describe_topics(names, request_timeout=ASK_S)
        for name, future in answers.items():
            with self._asking(f"describe topic {name}", ignore=("UNKNOWN_TOPIC_OR_PART",)):
                found[bytes.fromhex(name)] = _found(future.result(ASK_S))
        return found

    def make_shared_topic(self, name: str) -> None:
        """A topic of one partition for what gateways share; made where it is missing."""
        self._make(name, 1, -1)

    def make_topic(self, token: bytes, partitions: int, replicas: int) -> None:
        """Make it where it is missing."""
        # One replica on the ledger means that nobody asked for more: then Kafka's own default counts.
        self._make(token.hex(), partitions, replicas if replicas > 1 else -1)

    def _make(self, name: str, partitions: int, replicas: int) -> None:
        admin = library("confluent_kafka.admin")
        topic = admin.NewTopic(name, partitions, replicas, config=TOPIC_SETTINGS)
        self._ask(f"make topic {name}", "create_topics", [topic], ignore=("TOPIC_ALREADY_EXISTS",))

    def topic_settings(self, tokens: Sequence[bytes]) -> dict[bytes, dict[str, str]]:
        """The settings of sealed topics that must stay as they were made."""
        if not tokens:
            return {}
        admin = library("confluent_kafka.admin")
        asked = {admin.ConfigResource(admin.ResourceType.TOPIC, token.hex()): token for token in tokens}
        found = self._ask("read topic settings", "describe_configs", list(asked))
        return {asked[one]: {name: str(found[one][name].value) for name in TOPIC_SETTINGS} for one in found}

    def restore_settings(self, token: bytes) -> None:
        admin = library("confluent_kafka.admin")
        entries = [
            admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
            for name, value in TOPIC_SETTINGS.items()
        ]
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, token.hex(), incremental_configs=entries)
        self._ask(f"restore the settings of topic {token.hex()}", "incremental_alter_configs", [resource])

    # Access.

    def access_entries(self) -> frozenset[AccessEntry]:
        """Every entry of Kafka's access control."""
        admin = library("confluent_kafka.admin")
        everything = admin.AclBindingFilter(
            *(admin.ResourceType.ANY, None, admin.ResourcePatternType.ANY, None, None),
            *(admin.AclOperation.ANY, admin.AclPermissionType.ANY),
        )
        with self._asking("read access control"):
            found = self.admin.describe_acls(everything, request_timeout=ASK_S).result(ASK_S)
        return frozenset(
            AccessEntry(
                *(one.principal, one.name, one.operation.name, one.permission_type is admin.AclPermissionType.ALLOW),
                *(one.resource_pattern_type.name, one.restype.name),
            )
            for one in found
            if one.restype is not admin.ResourceType.UNKNOWN  # of a Kafka newer than the library
        )

    def change_access(self, added: Iterable[AccessEntry], removed: Iterable[AccessEntry]) -> None:
        admin = library("confluent_kafka.admin")
        new = [_binding(admin.AclBinding, one) for one in added]
        old = [_binding(admin.AclBindingFilter, one) for one in removed]
        if new:
            self._ask("change access control", "create_acls", new)
        if old:
            self._ask("change access control", "delete_acls", old)

    def make_user(self, name: str, password: bytes) -> None:
        """Give a user a password, or another one."""
        admin = library("confluent_kafka.admin")
        scram = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_512, SCRAM_ROUNDS)
        change = admin.UserScramCredentialUpsertion(name, scram, password)
        self._ask("change users", "alter_user_scram_credentials", [change])

    def forget_users(self, names: Sequence[str]) -> None:
        """Take users' passwords away: their connections end when Kafka next asks for them."""
        admin = library("confluent_kafka.admin")
        for at in range(0, len(names), USERS_AT_ONCE):
            gone = [
                admin.UserScramCredentialDeletion(name, admin.ScramMechanism.SCRAM_SHA_512)
                for name in names[at : at + USERS_AT_ONCE]
            ]
            with self._asking("change users"):
                answers = self.admin.alter_user_scram_credentials(gone, request_timeout=ASK_S)
            for answer in answers.values():
                with self._asking("change users", ignore=("RESOURCE_NOT_FOUND",)):  # it never had one
                    answer.result(ASK_S)

    # Groups.

    def group_offsets(self, spots: Collection[Spot], timeout_s: float = ASK_S) -> dict[Spot, int]:
        """What Kafka holds of these, as far as it holds any; it has `timeout_s` for all of them."""
        found, deadline = dict[Spot, int](), time.monotonic() + timeout_s
        with self._in_their_names({spot.group for spot in spots}) as consumers:
            for group, consumer in consumers.items():
                asked = [partition_at(spot.place, 0) for spot in spots if spot.group == group]
                with self._asking(f"read the offsets of group {group.hex()}"):
                    consumer.poll(0)  # what it heard
                    answers = consumer.committed(asked, timeout=max(0.0, deadline - time.monotonic()))
                places = [(Place(bytes.fromhex(one.topic), one.partition), one.offset) for one in answers]
                found |= {Spot(group, place): offset for place, offset in places if offset >= 0}
        return found

    def set_group_offsets(self, offsets: Mapping[Spot, int]) -> None:
        """Write the offsets of one group; refused by Kafka while somebody reads in its name."""
        (group,) = {spot.group for spot in offsets}
        told = [partition_at(spot.place, offset) for spot, offset in offsets.items()]
        act = f"write the offsets of group {group.hex()}"
        with self._in_their_names({group}) as consumers, self._asking(act):
            for one in consumers[group].commit(offsets=told, asynchronous=False):
                if one.error is not None:
                    raise explain(one.error, act)

    @contextmanager
    def _in_their_names(self, groups: Collection[bytes]) -> Iterator[dict[bytes, Any]]:
        """A consumer in the name of each group, which never joins it.

        Threat: asked as an administrator asks, the library falls over the answer that another broker looks after the
        group by now (decision 84), and the process with it: whoever restarts a broker would end every gateway.
        """
        with self._lock:
            held = {group: self._named.pop(group, None) or self._consumer_of(group) for group in sorted(groups)}
        try:
            yield held
        finally:
            with self._lock:
                self._named |= held  # which are the last now
                over = [self._named.pop(group) for group in list(self._named)[:-GROUPS_AT_ONCE]]
            put_away(over)

    def _consumer_of(self, group: bytes) -> Any:
        patience = str(int(ASK_S * 1000))
        own = {"group.id": group.hex(), "socket.timeout.ms": patience, "session.timeout.ms": patience}
        with translated("open a Kafka consumer"):
            return library().Consumer({**self._settings, **own, "enable.auto.commit": "false"})


def _found(topic: Any) -> FoundTopic:
    high, low = topic.topic_id.get_most_significant_bits(), topic.topic_id.get_least_significant_bits()
    if not high and not low:
        raise Misuse(f"kafka: topic {topic.name} has no identity", hint=FINAL["UNSUPPORTED_VERSION"])
    identity = high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True)
    offline = frozenset(one.id for one in topic.partitions if one.leader is None or one.leader.id < 0)
    return FoundTopic(identity, len(topic.partitions), offline)


def _binding(kind: Any, entry: AccessEntry) -> Any:
    admin = library("confluent_kafka.admin")
    return kind(
        *(admin.ResourceType[entry.resource], entry.name, admin.ResourcePatternType[entry.pattern], entry.user, "*"),
        *(admin.AclOperation[entry.operation], admin.AclPermissionType["ALLOW" if entry.allowed else "DENY"]),
    )


def token_of(name: str) -> bytes | None:
    """The token that a Kafka topic is named by, or None for a topic that is not ours."""
    try:
        return bytes.fromhex(name) if len(name) == 32 and name == name.lower() else None
    except ValueError:
        return None
