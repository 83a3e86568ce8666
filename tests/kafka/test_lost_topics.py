"""A topic deleted behind the ledger's back, and versions too old: told with the remedy, and everything else goes on."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest
from actors import SCHEMA, await_topic, publish, read_rows
from broker import broker, drifts, node_settings
from stack import READ, WRITE, Stack, wait_until

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.errors import Misuse

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaClient]:
    client = KafkaClient(broker().operator())
    yield client
    client.close()


def delete(kafka: KafkaClient, token: bytes) -> None:
    """What an administrator of Kafka does."""
    for future in kafka.admin.delete_topics([token.hex()]).values():
        future.result(30)


def test_a_deleted_topic_is_told_and_the_others_go_on(
    kafka: KafkaClient, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Stack(tmp_path_factory.mktemp("lost"), node=node_settings(broker())) as stack:
        owner = stack.tenant("acme")
        tokens = {name: stack.topic(owner, name, SCHEMA) for name in ("kept", "lost")}
        car, reader = stack.principal("acme", "car"), stack.principal("acme", "reader")
        for name, token in tokens.items():
            await_topic(stack, token)
            stack.grant(owner, token, car, WRITE)
            stack.grant(owner, token, reader, READ)
            publish(car, name, [1])
        wait_until(lambda: set(tokens.values()) <= stack.node.carrier._reconciler._topics, PATIENCE_S)
        delete(kafka, tokens["lost"])
        wait_until(lambda: "topic-deleted" in drifts(stack, tokens["lost"]), PATIENCE_S)
        publish(car, "kept", [2])
        with reader.subscriber("kept") as subscriber:
            assert read_rows(subscriber, 2) == [1, 2]
        assert tokens["lost"] not in kafka.topics()  # nothing is put in its place
        assert drifts(stack, tokens["kept"]) == []


def test_a_client_library_too_old_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka, "libversion", lambda: ("1.9.2", 0x010902FF))
    with pytest.raises(Misuse, match=r"librdkafka 2.6 or newer, found 1.9.2") as error:
        KafkaClient({"bootstrap.servers": "127.0.0.1:1"}).broker_count(timeout_s=1)
    assert "pip install" in (error.value.hint or "")
