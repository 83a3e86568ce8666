"""Parcels of several topics on Kafka: taken for all or for none; and what aborted transactions leave behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from actors import SCHEMA, Hand, await_topic, read_rows, rows
from broker import broker, kafka_of, node_settings, straight
from confluent_kafka import TopicPartition
from stack import READ, WRITE, Stack, wait_until

from tallystick.carriers.carrier import Void, is_void
from tallystick.carriers.kafka.client import KafkaClient, Outgoing, SentRecord
from tallystick.carriers.storage import Place
from tallystick.client.reader import Finding
from tallystick.client.session import Session
from tallystick.errors import Misuse

PATIENCE_S = 60.0  # the first transaction of a broker makes its book-keeping


class Pair:
    """An instance on Kafka with two topics, and a car that may write to both."""

    def __init__(self, stack: Stack, kafka: KafkaClient) -> None:
        self.stack, self.kafka, self.owner = stack, kafka, stack.tenant("acme")
        self.tokens = {name: stack.topic(self.owner, name, SCHEMA) for name in ("brakes", "wheels", "others")}
        for token in self.tokens.values():
            await_topic(stack, token)
        self.car, self.reader = (stack.principal("acme", name) for name in ("car", "reader"))
        for name, token in self.tokens.items():
            stack.grant(self.owner, token, self.reader, READ)
            if name != "others":
                stack.grant(self.owner, token, self.car, WRITE)
        wait_until(lambda: set(self.tokens.values()) <= set(kafka.topics()))
        self.direct = straight(stack, self.car, kafka)  # the car on its own way
        self.own = kafka_of(self.direct)

    def read(self, name: str, count: int) -> list[int]:
        """The first rows of a topic, by a reader who hears of nothing odd."""
        findings: list[Finding] = []
        with self.reader.subscriber(name, on_finding=findings.append) as subscriber:
            found = read_rows(subscriber, count)
        assert findings == []
        return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    cluster = broker()
    kafka = KafkaClient(cluster.operator())
    with Stack(tmp_path_factory.mktemp("pair"), node=node_settings(cluster)) as stack:
        yield Pair(stack, kafka)
    kafka.close()


def visible(kafka: KafkaClient, token: bytes) -> list[bytes]:
    """What anybody sees who reads what is committed."""
    from confluent_kafka.admin import OffsetSpec

    partition = TopicPartition(token.hex(), 0)
    end = kafka.admin.list_offsets({partition: OffsetSpec.latest()})[partition].result(10).offset
    return [record.value for record in kafka.read(Place(token, 0), 0, end, 1 << 22)] if end else []


def send(session: Session, *numbers: int) -> None:
    with session.publisher(["brakes", "wheels"], acks="anchored", anchor_check_s=0.05) as publisher:
        for number in numbers:
            publisher.send(rows(number))
        assert publisher.flush(PATIENCE_S) == 0


def test_rows_under_two_topics_are_in_both_by_the_gateway_and_straight(pair: Pair) -> None:
    send(pair.car, 1, 2)
    send(pair.direct, 3)
    assert pair.read("brakes", 3) == pair.read("wheels", 3) == [1, 2, 3]
    both = [visible(pair.kafka, pair.tokens[name]) for name in ("brakes", "wheels")]
    assert both[0] == both[1]  # the same bytes in each


def together(kafka: KafkaClient, *tokens: bytes) -> list[SentRecord]:
    return kafka.store([[Outgoing(Place(token, 0), b"k", b"v", []) for token in tokens]])[0]


def test_where_one_topic_refuses_the_other_gets_nothing_and_without_a_transaction_it_would(pair: Pair) -> None:
    mine, others = pair.tokens["wheels"], pair.tokens["others"]
    before = visible(pair.kafka, mine)
    sent = together(pair.own, mine, others)
    assert all(isinstance(one.error, Misuse) for one in sent)
    assert visible(pair.kafka, mine) == before
    alone = [pair.own.produce(Place(token, 0), b"k", b"v", []) for token in (mine, others)]
    pair.own.flush(alone)
    assert [one.error is None for one in alone] == [True, False]
    assert visible(pair.kafka, mine) == [*before, b"v"]


def test_one_whose_refusal_is_known_before_it_is_sent_takes_nobody_with_it(pair: Pair) -> None:
    """The library refuses at once what a broker has told it of; others of the group are under way by then."""
    mine, others = pair.tokens["wheels"], pair.tokens["others"]
    before = visible(pair.kafka, mine)
    producer = pair.own._producing()
    producer.list_topics(others.hex(), timeout=PATIENCE_S)
    group = [[Outgoing(Place(token, 0), b"k", b"v", [])] for token in (mine, others, mine)]
    sent = [one for [one] in pair.own.store(group)]
    assert [type(one.error) for one in sent] == [type(None), Misuse, type(None)]
    assert visible(pair.kafka, mine) == [*before, b"v", b"v"]


def test_nobody_writes_under_anothers_transactions(pair: Pair) -> None:
    mine = [pair.tokens[name] for name in ("brakes", "wheels")]
    thief = KafkaClient(pair.own._settings, transactions=pair.reader.identity.principal.hex())
    assert all(isinstance(one.error, Misuse) for one in together(thief, *mine))
    thief.close()


def test_what_an_aborted_transaction_leaves_is_an_empty_leaf(pair: Pair) -> None:
    token = pair.tokens["others"]
    pair.stack.grant(pair.owner, token, pair.car, WRITE)
    hand = Hand(pair.car, "others")
    first, second = hand.seal(0), hand.seal(1)

    def write(data: bytes) -> None:
        sent = pair.kafka.produce(Place(token, 0), b"k", data, [])
        pair.kafka.flush([sent])

    write(first.encode())
    producer = pair.kafka._open_transactional()
    producer.begin_transaction()
    producer.produce(token.hex(), second.encode(), b"k", 0)
    assert producer.flush(PATIENCE_S) == 0  # it lies there
    producer.abort_transaction(PATIENCE_S)
    consumer, partition = pair.kafka.consumer(), TopicPartition(token.hex(), 0)
    wait_until(lambda: consumer.get_watermark_offsets(partition, PATIENCE_S)[1] == 3)  # Kafka marks it in its own time
    consumer.close()
    write(second.encode())
    ends = pair.stack.node.carrier.ends
    wait_until(
        lambda: ends(token, 0)[0] == 4, PATIENCE_S
    )  # the parcel, the aborted record, the mark of its end, the parcel
    entries = pair.stack.node.carrier.storage.read(Place(token, 0), 0, 1 << 22, headers_only=True)
    voids = [Void.decode(entry.header) if is_void(entry.header) else None for entry in entries]
    assert voids == [None, Void(), Void(), None]
    assert pair.read("others", 2) == [0, 1]
