"""What the tests of Spark beside Kafka share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from broker import broker

from tallystick.carriers.kafka.client import KafkaClient


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaClient]:
    """Kafka's administrator."""
    client = KafkaClient(broker().operator())
    yield client
    client.close()
