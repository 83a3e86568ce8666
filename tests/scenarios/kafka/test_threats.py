"""The three threats of BPS 2.3 on a Kafka whose administrator helps the attacker, with the two tenants of 5.1.

Each attack is first seen to succeed where only Kafka stands in its way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import Hand, publish, read_rows, row_of
from broker import anchorer_of, await_round, broker, drifts, kafka_of, node_settings, straight
from city import City
from stack import READ, Stack, wait_until
from without import without

from tallystick.carriers.kafka.administration import AccessEntry, Spot
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.storage import Place
from tallystick.client.group import group_id
from tallystick.client.reader import Finding
from tallystick.client.subscribe import FoundError
from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.groups import GROUPS, OFFSETS
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.engine import Query
from tallystick.parcel.parcel import Parcel

HEART, PRESSURE = "heart-rate", "blood-pressure"


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaClient]:
    """Kafka's administrator, who may do everything there."""
    client = KafkaClient({**broker().operator(), "check.crcs": "true"})
    yield client
    client.close()


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory, kafka: KafkaClient) -> Iterator[City]:
    with Stack(tmp_path_factory.mktemp("threats"), node=node_settings(broker())) as stack:
        city = City(stack)
        wait_until(lambda: set(city.tokens.values()) <= set(kafka.topics()))
        yield city


def plain_values(kafka: KafkaClient, token: bytes, end: int) -> list[bytes]:
    """What anybody gets who believes Kafka, checksums and all."""
    found = kafka.read(Place(token, 0), 0, end, 1 << 22)
    return [record.value for record in found]


# --- threat 1: rights edited behind the ledger's back ---


def test_threat_1_a_right_that_only_kafka_knows_is_taken_away_and_told(city: City, kafka: KafkaClient) -> None:
    token, anchorer = city.tokens[HEART], anchorer_of(city.stack)
    publish(city.monitor, HEART, [70])
    sensor = straight(city.stack, city.sensor, kafka)
    own = kafka_of(sensor)
    user = f"User:{sensor.identity.principal.hex()}"
    given = [AccessEntry(user, token.hex(), operation) for operation in ("READ", "WRITE", "DESCRIBE")]
    with without("the reconciler"):
        await_round(anchorer)  # no earlier check is under way
        kafka.change_access(given, [])
        wait_until(lambda: ask(own, token) == "allowed")  # Kafka alone obeys whoever runs it; what came is sealed
        sent = own.produce(Place(token, 0), b"k", b"junk", [])
        own.flush([sent])
        assert sent.error is None
    wait_until(lambda: not set(given) & kafka.access_entries())
    wait_until(lambda: ask(own, token) == "refused")
    wait_until(lambda: drifts(city.stack, token) == ["acl-added"] * 3)
    findings: list[Finding] = []
    with city.doctor.subscriber(HEART, on_finding=findings.append) as subscriber:
        publish(city.monitor, HEART, [71])
        assert read_rows(subscriber, 2) == [70, 71]
    assert [(one.reason, one.offset) for one in findings] == [("refused", sent.offset)]


def ask(kafka: KafkaClient, token: bytes) -> str:
    """What Kafka makes of an attempt to read the topic."""
    try:
        return "allowed" if kafka.read(Place(token, 0), 0, 1, 1 << 20, timeout_s=2) else "empty"
    except Misuse:
        return "refused"
    except Unavailable:
        return "no answer"


# --- threat 2: tampered offsets of consumers ---


def test_threat_2_an_offset_moved_in_kafka_moves_nobody_and_is_put_back_and_told(
    city: City, kafka: KafkaClient
) -> None:
    token, group = city.tokens[PRESSURE], group_id(city.doctor.identity.tenant, "ward")
    publish(city.monitor, PRESSURE, range(4))
    with city.doctor.subscriber(PRESSURE, group="ward", fetch_bytes_max=1) as ward:
        assert read_rows(ward, 2) == [0, 1]
        ward.commit()
    wait_until(lambda: lag(kafka, group, token) == 3)  # what Kafka's own tools show: two rows and the closing parcel
    anchorer = anchorer_of(city.stack)
    with without("the reconciler"):
        await_round(anchorer)  # no earlier check is under way
        move_in_kafka(kafka, group, token, 5)
        await_round(anchorer)
        await_round(anchorer)  # and one that begins after the deed is over
        assert lag(kafka, group, token) == 0  # a consumer of Kafka's would miss two rows
        assert drifts(city.stack, token) == []
    wait_until(lambda: lag(kafka, group, token) == 3)
    wait_until(lambda: drifts(city.stack, token) == ["offset-moved"])
    with city.doctor.subscriber(PRESSURE, group="ward") as ward:
        assert read_rows(ward, 2) == [2, 3]
        ward.commit()
    stands = row_of(city.doctor.view, OFFSETS(group, token, 0)).offset
    fence = row_of(city.doctor.view, GROUPS(group)).fence
    back = entries.reset_offset(group, token, 0, fence=fence, old=stands, new=0)
    for thief, reason in (
        (city.sensor, "wrong-tenant"),
        (city.owners["home"], "wrong-tenant"),
        (city.monitor, "not-owner"),
    ):
        with pytest.raises(Refused) as refusal:
            thief.author.write(back)
        assert refusal.value.reason == reason
    city.doctor.author.write(back)
    with city.doctor.subscriber(PRESSURE, group="ward") as ward:
        assert read_rows(ward, 4) == [0, 1, 2, 3]
    moves = city.stack.node.ledger.audit(Query(kind=int(EntryKind.RESET_OFFSET)))
    assert [(move.author, *move.fields[3:]) for move in moves] == [
        (city.doctor.identity.principal, token, 0, fence, stands, 0)
    ]


def move_in_kafka(kafka: KafkaClient, group: bytes, token: bytes, offset: int) -> None:
    """What an administrator does to a consumer group."""
    kafka.set_group_offsets({Spot(group, Place(token, 0)): offset})


def lag(kafka: KafkaClient, group: bytes, token: bytes) -> int:
    """What `kafka-consumer-groups` shows: the partition's end less what the group committed."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    partition = TopicPartition(token.hex(), 0)
    asked = ConsumerGroupTopicPartitions(group.hex(), [partition])
    told = kafka.admin.list_consumer_group_offsets([asked])[group.hex()].result(10).topic_partitions[0].offset
    end = kafka.admin.list_offsets({partition: OffsetSpec.latest()})[partition].result(10).offset
    return int(end - told)


# --- threat 3: forged and altered messages ---


def test_threat_3_what_others_append_to_a_topic_is_named_and_never_opened(city: City, kafka: KafkaClient) -> None:
    topic, token = "temperature", city.tokens["temperature"]
    hand, stranger = Hand(city.sensor, topic), Hand(city.monitor, HEART)
    good = [hand.seal(number) for number in range(2)]
    forged = Parcel(good[1].header, bytes(64), good[1].body)
    altered = Parcel(good[1].header, good[1].signature, bytes(good[1].body[:-1]) + bytes([good[1].body[-1] ^ 1]))
    written = [good[0], forged, altered, stranger.seal(99), good[1]]
    sent = [kafka.produce(Place(token, 0), b"k", parcel.encode(), []) for parcel in written]
    kafka.flush(sent)
    assert plain_values(kafka, token, 5) == [parcel.encode() for parcel in written]  # Kafka took all
    findings: list[Finding] = []
    with city.resident.subscriber(topic, on_finding=findings.append) as subscriber:
        assert read_rows(subscriber, 2) == [0, 1]
    assert [(one.reason, one.offset) for one in findings] == [("refused", 1), ("refused", 2), ("refused", 3)]
    reasons = [city.resident.node.verdict(token, 0, offset) for offset in range(1, 4)]
    assert reasons[:2] == ["bad-signature", "altered"]
    assert reasons[2]


@pytest.mark.long
def test_threat_3_a_byte_changed_on_the_brokers_disk_is_named_by_every_reader(city: City, kafka: KafkaClient) -> None:
    stack, topic = city.stack, "humidity"
    token = city.tokens[topic]
    publish(city.sensor, topic, range(3))
    before = plain_values(kafka, token, 3)
    straight_reader = city.member("home", "straight", topic, int(READ))
    readers = [city.resident, straight(stack, straight_reader, kafka)]
    cluster = broker()
    cluster.stop()
    (segment,) = (cluster.brokers[0].folder / "data" / f"{token.hex()}-0").glob("*.log")
    changed = change_record(segment, before[1])
    cluster.start()
    assert plain_values(kafka, token, 3) == [before[0], changed, before[2]]  # Kafka serves it, checksum and all
    for reader in readers:
        with reader.subscriber(topic) as subscriber:
            assert read_rows(subscriber, 1) == [0]
            with pytest.raises(FoundError) as found:
                read_rows(subscriber, 1)
        assert (found.value.finding.reason, found.value.finding.offset) == ("altered", 1)


def change_record(segment: Path, value: bytes) -> bytes:
    """Change the last byte of a stored record, and mend the checksum of its batch; the record as it is now."""
    data, changed = bytearray(segment.read_bytes()), value[:-1] + bytes([value[-1] ^ 1])
    at = data.index(value)
    data[at : at + len(value)] = changed
    start = 0
    while (end := start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")) <= at:
        start = end
    data[start + 17 : start + 21] = struct.pack(">I", crc32c(bytes(data[start + 21 : end])))
    segment.write_bytes(data)
    return changed


def crc32c(data: bytes) -> int:
    """Castagnoli's polynomial, as Kafka's record batches have it (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
