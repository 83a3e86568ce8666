"""BPS's Fig. 8 on Kafka, shrunken: the authorizer is asked in one arm and not in the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker import broker

from experiments.bps import fig08, transfer
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.storage import Place
from tallystick.engines.kafka import KafkaCluster

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def disarmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    broker()  # skips where Kafka cannot be had
    with fig08.create_disarmed(tmp_path_factory.mktemp("disarmed")) as cluster:
        yield cluster


def test_both_kafkas_take_what_the_user_may_write_and_are_measured(disarmed: KafkaCluster) -> None:
    rows = list(fig08.measure_kafka(broker(), disarmed, transfer.SMALL))
    assert [(row.arm, row.messages) for row in rows] == [
        (arm, messages) for messages in transfer.SMALL.messages for arm in ("on", "off")
    ]


def test_a_cluster_that_was_disarmed_lets_anybody_write(disarmed: KafkaCluster) -> None:
    operator = KafkaClient(disarmed.operator())
    operator.make_user(fig08.USER, b"p")
    operator.make_topic(bytes(16), 1, 1)
    stranger = KafkaClient(fig08.user_settings(disarmed, "p"))
    (sent,) = (stranger.produce(Place(bytes(16), 0), b"", b"value", ()),)
    stranger.flush([sent])
    assert sent.offset == 0
    for client in (stranger, operator):
        client.close()
