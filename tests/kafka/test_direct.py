"""Clients that speak to Kafka themselves: rights reach Kafka, drift is undone and told, rows arrive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import SCHEMA, Hand, await_topic, publish, read_rows
from broker import anchorer_of, broker, drifts, kafka_of, node_settings, straight
from stack import READ, WRITE, Stack, wait_beyond, wait_until

from tallystick.carriers.kafka.administration import TOPIC_SETTINGS, AccessEntry
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.direct import FILE
from tallystick.carriers.storage import Place
from tallystick.client.reader import Finding
from tallystick.client.session import Session
from tallystick.errors import Misuse, Refused, TallystickError
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.state import NOBODY
from tallystick.ledger.engine import Query


class Fleet:
    """An instance on Kafka, whose principals go to Kafka themselves."""

    def __init__(self, stack: Stack, kafka: KafkaClient) -> None:
        self.stack, self.kafka = stack, kafka
        self.owner = stack.tenant("acme")
        self._numbers = 0

    def topic(self) -> tuple[str, bytes]:
        self._numbers += 1
        name = f"topic-{self._numbers}"
        token = self.stack.topic(self.owner, name, SCHEMA)
        await_topic(self.stack, token)
        wait_until(lambda: token in self.kafka.topics())
        return name, token

    def principal(self, name: str, token: bytes, operations: int) -> Session:
        """A direct client with a right, once Kafka knows of it."""
        session = self.stack.principal("acme", f"{name}-{self._numbers}")
        if operations:
            self.stack.grant(self.owner, token, session, operations)
        return straight(self.stack, session, self.kafka, has_right=bool(operations))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    cluster = broker()
    kafka = KafkaClient(cluster.operator())
    with Stack(tmp_path_factory.mktemp("fleet"), node=node_settings(cluster)) as stack:
        yield Fleet(stack, kafka)
    kafka.close()


def test_rows_go_through_kafka_and_the_ledger_vouches_for_them(fleet: Fleet) -> None:
    name, token = fleet.topic()
    car, reader = fleet.principal("car", token, WRITE), fleet.principal("reader", token, READ)
    publish(car, name, range(8))  # waits for the anchors, each held to the parcel that was sealed
    findings: list[Finding] = []
    with reader.subscriber(name, on_finding=findings.append) as subscriber:
        assert read_rows(subscriber, 8) == list(range(8))
    assert findings == []
    acts = [item.fields for item in fleet.stack.node.ledger.audit(Query(token=token))]
    assert {car.identity.principal} == {fields[1] for fields in acts if fields[6] == "kafka"}
    reads = [fields for fields in acts if fields[1] == reader.identity.principal and fields[4] == 1]
    assert reads  # the reader's own signed statements


def test_the_password_is_in_one_file_that_only_its_owner_reads(fleet: Fleet) -> None:
    _, token = fleet.topic()
    car = fleet.principal("car", token, WRITE)
    path = Path(car.identity.home) / FILE
    assert path.stat().st_mode & 0o077 == 0


def test_nobody_gets_anothers_password(fleet: Fleet) -> None:
    _, token = fleet.topic()
    car, thief = fleet.principal("car", token, WRITE), fleet.principal("thief", token, 0)
    with pytest.raises(Refused) as refusal:
        thief.node.kafka_credentials(car.identity.certificate.encode())
    assert refusal.value.reason == "wrong-certificate"


def test_kafka_itself_refuses_who_has_no_right(fleet: Fleet) -> None:
    name, token = fleet.topic()
    car, stranger = fleet.principal("car", token, WRITE), fleet.principal("stranger", token, 0)
    publish(car, name, [1])
    kafka = kafka_of(stranger)
    with pytest.raises(Misuse, match="authorization failed"):
        kafka.read(Place(token, 0), 0, 1, 1 << 20, timeout_s=3)
    sent = kafka.produce(Place(token, 0), b"k", b"junk", [])
    kafka.flush([sent])
    assert isinstance(sent.error, Misuse)


def test_a_right_edited_behind_the_ledgers_back_is_undone_and_told(fleet: Fleet) -> None:
    _, token = fleet.topic()
    reader, spy = fleet.principal("reader", token, READ), fleet.principal("spy", token, 0)
    given = AccessEntry(f"User:{spy.identity.principal.hex()}", token.hex(), "READ")
    taken = AccessEntry(f"User:{reader.identity.principal.hex()}", token.hex(), "READ")
    wait_until(lambda: taken in anchorer_of(fleet.stack)._reconciler._seen)
    wide = given._replace(name=token.hex()[:4], pattern="PREFIXED")
    fleet.kafka.change_access([given, wide], [taken])
    wait_until(lambda: not {given, wide} & fleet.kafka.access_entries())
    wait_until(lambda: taken in fleet.kafka.access_entries())
    wait_until(lambda: {"acl-added", "acl-removed"} <= set(drifts(fleet.stack, token)))


def test_rights_for_everybody_are_taken_away_and_told(fleet: Fleet) -> None:
    _, token = fleet.topic()
    spy = fleet.principal("spy", token, 0)
    kafka = kafka_of(spy)
    everybody, others = (
        [
            AccessEntry("User:*", "*", "READ"),
            AccessEntry("User:*", token.hex()[:6], "WRITE", pattern="PREFIXED"),
            AccessEntry("User:*", token.hex(), "DELETE"),
            AccessEntry("User:*", "*", "READ", resource="GROUP"),
            AccessEntry("User:*", "*", "WRITE", resource="TRANSACTIONAL_ID"),
            AccessEntry("User:*", "kafka-cluster", "ALTER", resource="BROKER"),
            AccessEntry("User:*", "*", "ALL", allowed=False),
        ],
        {AccessEntry("User:*", "somebody-elses", "READ"), AccessEntry("User:connect", "*", "DESCRIBE")},
    )
    reconciler = anchorer_of(fleet.stack)._reconciler
    wait_until(lambda: token in reconciler._wanted().partitions and reconciler._initial is not None)
    told = len(wide_drifts(fleet.stack))
    fleet.kafka.change_access([*everybody, *others], [])
    wait_until(lambda: not set(everybody) & fleet.kafka.access_entries())
    wait_until(lambda: others <= fleet.kafka.access_entries())  # of other applications
    wait_until(lambda: len(wide_drifts(fleet.stack)) == told + 6)
    wait_until(lambda: drifts(fleet.stack, token) == ["acl-added"])
    fleet.kafka.change_access([], others)
    with pytest.raises(Misuse, match="authorization failed"):
        kafka.read(Place(token, 0), 0, 1, 1 << 20, timeout_s=3)


def wide_drifts(stack: Stack) -> list[str]:
    """What the ledger tells of changes in Kafka that concern no one topic."""
    found = stack.node.ledger.audit(Query(kind=int(EntryKind.OPERATION), refused=True))
    return [item.fields[5] for item in found if item.fields[6] == "kafka" and item.fields[3] == NOBODY]


def test_a_right_that_the_owner_withdraws_leaves_kafka_without_a_word(fleet: Fleet) -> None:
    _, token = fleet.topic()
    reader = fleet.principal("reader", token, READ)
    fleet.stack.withdraw(fleet.owner, token, reader, READ)
    user = f"User:{reader.identity.principal.hex()}"
    wait_until(lambda: all(entry.user != user for entry in fleet.kafka.access_entries()))
    assert drifts(fleet.stack, token) == []


def test_settings_of_a_sealed_topic_are_restored_and_told(fleet: Fleet) -> None:
    _, token = fleet.topic()
    wait_until(lambda: token in anchorer_of(fleet.stack)._made)
    change_settings(fleet.kafka, token, {"cleanup.policy": "compact", "retention.ms": "1000"})
    wait_until(lambda: fleet.kafka.topic_settings([token])[token] == TOPIC_SETTINGS)
    wait_until(lambda: "topic-changed" in drifts(fleet.stack, token))


def change_settings(kafka: KafkaClient, token: bytes, settings: dict[str, str]) -> None:
    """What an administrator of Kafka does."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [ConfigEntry(n, v, incremental_operation=AlterConfigOpType.SET) for n, v in settings.items()]
    resource = ConfigResource(ResourceType.TOPIC, token.hex(), incremental_configs=entries)
    for future in kafka.admin.incremental_alter_configs([resource]).values():
        future.result(10)


def test_added_partitions_are_told(fleet: Fleet) -> None:
    from confluent_kafka.admin import NewPartitions

    _, token = fleet.topic()
    wait_until(lambda: token in anchorer_of(fleet.stack)._made)
    for future in fleet.kafka.admin.create_partitions([NewPartitions(token.hex(), 2)]).values():
        future.result(10)
    wait_until(lambda: drifts(fleet.stack, token) == ["partitions-added"])


def test_who_is_blacklisted_is_denied_and_loses_its_connection(fleet: Fleet) -> None:
    name, token = fleet.topic()
    car = fleet.principal("car", token, WRITE)
    publish(car, name, [1])
    liar = fleet.principal("liar", token, WRITE)
    hand = Hand(liar, name)
    other = hand.fork()
    kafka = kafka_of(liar)
    for parcel in (hand.seal(1), hand.seal(2, lane=other)):
        sent = kafka.produce(Place(token, 0), b"k", parcel.encode(), [])
        kafka.flush([sent])
        wait_beyond(lambda: fleet.stack.node.carrier.ends(token, 0)[0], sent.offset or 0)
    wait_until(lambda: fleet.stack.node.rules.blacklisted(liar.identity.principal))
    denied = AccessEntry(f"User:{liar.identity.principal.hex()}", "*", "ALL", allowed=False)
    wait_until(lambda: denied in fleet.kafka.access_entries())
    wait_until(lambda: is_shut_out(kafka, token))


def test_who_is_revoked_keeps_neither_entry_nor_password(fleet: Fleet) -> None:
    _, token = fleet.topic()
    car = fleet.principal("car", token, WRITE)
    user, kafka = f"User:{car.identity.principal.hex()}", kafka_of(car)
    fleet.owner.authority.revoke(car.identity.principal)
    wait_until(lambda: all(entry.user != user for entry in fleet.kafka.access_entries()))
    assert drifts(fleet.stack, token) == []
    wait_until(lambda: car.identity.principal.hex() in anchorer_of(fleet.stack)._reconciler._forgotten)
    wait_until(lambda: is_shut_out(kafka, token))


def is_shut_out(kafka: KafkaClient, token: bytes) -> bool:
    """Whether Kafka itself takes nothing of this client."""
    try:
        sent = kafka.produce(Place(token, 0), b"k", b"again", [])
        kafka.flush([sent], 5)
    except TallystickError:
        return True
    return sent.error is not None
