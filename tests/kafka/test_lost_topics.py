"""Topics deleted behind the ledger's back, and made again: told with the remedy, never read as a continuation, and
everything else goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from actors import SCHEMA, Hand, await_topic, publish, read_rows
from broker import anchorer_of, await_round, broker, drifts, node_settings
from stack import READ, WRITE, Stack, wait_until
from without import without

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.failures import library
from tallystick.carriers.storage import Place
from tallystick.client.reader import Finding
from tallystick.client.session import Session
from tallystick.errors import Misuse, Unavailable

PATIENCE_S = 60.0
REMEDY = "close it (tally topic close) and create another"


class Yard:
    """Topics that somebody does harm to, one row in each; who writes and who reads them."""

    def __init__(self, stack: Stack, kafka: KafkaClient) -> None:
        self.stack, self.kafka = stack, kafka
        self._owner = stack.tenant("acme")
        self.car, self.reader = stack.principal("acme", "car"), stack.principal("acme", "reader")

    def topic(self, name: str) -> bytes:
        token = self.stack.topic(self._owner, name, SCHEMA)
        for who, operations in ((self.car, WRITE), (self.reader, READ)):
            self.stack.grant(self._owner, token, who, operations)
        await_topic(self.stack, token)
        publish(self.car, name, [1])
        sealed = anchorer_of(self.stack)._sealed
        wait_until(lambda: sealed._identity(token) is not None, PATIENCE_S)
        return token

    def delete(self, token: bytes) -> None:
        """What an administrator of Kafka does."""
        for future in self.kafka.admin.delete_topics([token.hex()]).values():
            future.result(30)

    def replace(self, token: bytes) -> int:
        """Delete it, and make another that has grown to where the first one ended; how far that is."""
        storage, place = self.stack.node.carrier.storage, Place(token, 0)
        wait_until(lambda: storage.end(place) == 2, PATIENCE_S)  # the row, and the end of the publisher's lane
        self.delete(token)
        self.kafka.make_topic(token, 1, 1)
        sent = [self.kafka.produce(place, b"", b"anything", []) for _ in range(2)]
        self.kafka.flush(sent)
        assert [one.offset for one in sent] == [0, 1]
        return 2

    def await_drift(self, token: bytes, reason: str) -> None:
        wait_until(lambda: reason in drifts(self.stack, token), PATIENCE_S)

    def check_refused(self, name: str, what: str) -> None:
        """Nothing more is taken for it, and whoever publishes is told why."""
        hand = Hand(self.car, name)
        with pytest.raises(Unavailable, match=what) as error:
            hand.send(hand.seal(2))
        assert REMEDY in (error.value.hint or "")


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    kafka = KafkaClient(broker().operator())
    with Stack(tmp_path_factory.mktemp("lost"), node=node_settings(broker())) as stack:
        yield Yard(stack, kafka)
    kafka.close()


def read_on(reader: Session, name: str, count: int) -> tuple[list[int], list[str]]:
    """Rows from where the reader is, and the reasons of what it found."""
    findings: list[Finding] = []
    with reader.subscriber(name, on_finding=findings.append) as subscriber:
        return read_rows(subscriber, count), [one.reason for one in findings]


@pytest.mark.long
def test_a_deleted_topic_is_told_and_the_others_go_on(yard: Yard) -> None:
    lost, kept = yard.topic("lost"), yard.topic("kept")
    yard.delete(lost)
    yard.await_drift(lost, "topic-deleted")
    yard.check_refused("lost", "is gone")
    publish(yard.car, "kept", [2])
    assert read_on(yard.reader, "kept", 2) == ([1, 2], [])
    assert drifts(yard.stack, kept) == []
    yard.stack.stop_node()
    yard.stack.start_node()  # which makes topics that Kafka has not yet
    yard.await_drift(lost, "topic-deleted")
    publish(yard.car, "kept", [3])
    assert lost not in yard.kafka.topics()  # nothing is put in its place


def test_another_topic_under_the_same_name_is_told_and_not_gone_on_with(yard: Yard) -> None:
    token = yard.topic("replaced")
    end = yard.replace(token)
    yard.await_drift(token, "topic-replaced")
    yard.check_refused("replaced", "was deleted, and another was made under its name")
    assert Place(token, 0) not in anchorer_of(yard.stack)._places()  # neither is it read any more
    assert yard.stack.node.carrier.storage.end(Place(token, 0)) == end


def test_without_identities_it_would_be_gone_on_with(yard: Yard) -> None:
    token = yard.topic("continued")
    with yard.reader.subscriber("continued") as subscriber:
        assert read_rows(subscriber, 1) == [1]
        with without("the identity of a topic in Kafka"):
            yard.replace(token)
            publish(yard.car, "continued", [2])
            assert read_rows(subscriber, 1) == [2]
            for _ in range(2):
                await_round(anchorer_of(yard.stack))
            assert drifts(yard.stack, token) == []  # the first row is gone, and nobody heard


def test_a_client_library_too_old_is_named_with_the_remedy() -> None:
    with pytest.raises(Misuse, match=r"librdkafka 2.6 or newer, found \d") as error:
        library(oldest=0xFF000000)
    assert "pip install" in (error.value.hint or "")
