"""Ranges of a partition read one after the other: each record once and in order, however the reads are cut."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from broker import broker
from stack import wait_until

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.consumers import KEPT_MAX, RangeReader, Tail, put_away
from tallystick.carriers.storage import Place
from tallystick.errors import TallystickError

confluent_kafka: Any = pytest.importorskip("confluent_kafka")

PARTITIONS = KEPT_MAX + 2
VALUES = [bytes([number]) * (100 * (1 + number % 7)) for number in range(40)]


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaClient]:
    client = KafkaClient(broker().operator())
    yield client
    client.close()


@pytest.fixture(scope="module")
def token(kafka: KafkaClient) -> bytes:
    token = os.urandom(16)
    kafka.make_topic(token, PARTITIONS, 1)
    for partition in range(PARTITIONS):
        write(kafka, Place(token, partition), VALUES)
    return token


def write(kafka: KafkaClient, place: Place, values: list[bytes]) -> None:
    kafka.flush([kafka.produce(place, b"", value, ()) for value in values])


def read_on(kafka: KafkaClient, place: Place, first: int, end: int, bytes_max: int) -> Iterator[tuple[int, bytes]]:
    while first < end:
        for record in kafka.read(place, first, end, bytes_max):
            yield record.offset, record.value
            first = record.offset + 1


@pytest.mark.parametrize("bytes_max", [1, 1_000, 1 << 20])
def test_reading_on_gives_each_record_once(kafka: KafkaClient, token: bytes, bytes_max: int) -> None:
    found = list(read_on(kafka, Place(token, 0), 3, len(VALUES), bytes_max))
    assert found == list(enumerate(VALUES))[3:]


def test_a_read_ends_where_it_was_asked_to_though_more_was_fetched(kafka: KafkaClient, token: bytes) -> None:
    assert [one.offset for one in kafka.read(Place(token, 0), 0, 5, 1 << 20)] == [0, 1, 2, 3, 4]
    assert [one.offset for one in kafka.read(Place(token, 0), 5, 7, 1 << 20)] == [5, 6]
    assert [one.offset for one in kafka.read(Place(token, 0), 1, 3, 1 << 20)] == [1, 2]  # and back


def test_readers_of_more_partitions_than_are_kept_do_not_disturb_each_other(kafka: KafkaClient, token: bytes) -> None:
    ranges = [read_on(kafka, Place(token, partition), 0, 12, 1_000) for partition in range(PARTITIONS)]
    found = list(zip(*ranges, strict=True))
    assert found == [(one,) * PARTITIONS for one in list(enumerate(VALUES))[:12]]


def test_what_comes_after_the_end_was_reached_is_read_on(kafka: KafkaClient, token: bytes) -> None:
    place = Place(token, 1)
    assert len(list(read_on(kafka, place, 0, len(VALUES), 1 << 20))) == len(VALUES)
    write(kafka, place, [b"more"])
    assert list(read_on(kafka, place, len(VALUES), len(VALUES) + 1, 1)) == [(len(VALUES), b"more")]


class Ending(confluent_kafka.Consumer):  # type: ignore[misc]
    """Comes to its end when it may."""

    def __init__(self, ended: list[str], name: str, may_end: threading.Event) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1", "group.id": "tallystick", "log_level": "0"})
        self._ended, self._name, self._may_end = ended, name, may_end

    def close(self) -> None:
        self._may_end.wait()
        super().close()
        self._ended.append(self._name)


def by_a_client(consumer: Any) -> None:
    """Where it rests between two reads."""
    client = KafkaClient({"bootstrap.servers": "127.0.0.1:1"})
    client._idle.append(RangeReader(consumer))
    client.close()


def by_a_failed_read(consumer: Any) -> None:
    client = KafkaClient({"bootstrap.servers": "127.0.0.1:1"})
    client._idle.append(RangeReader(consumer))
    with suppress(TallystickError):
        client.read(Place(bytes(16), 0), 0, 1, 1, timeout_s=0)


WAYS: dict[str, Callable[[Any], None]] = {
    "a client": by_a_client,
    "a failed read": by_a_failed_read,
    "a reader": lambda consumer: RangeReader(consumer).close(),
    "the notary's tail": lambda consumer: Tail(consumer).close(),
}


def test_a_consumer_that_never_ends_is_left_alone_and_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """As the library's may where a broker came back; its `close` alone would stand still."""
    may_end, at_once, ended = threading.Event(), threading.Event(), list[str]()
    at_once.set()
    with ThreadPoolExecutor(len(WAYS) + 1) as pool:
        waiting = [pool.submit(way, Ending(ended, name, may_end)) for name, way in WAYS.items()]
        waiting.append(pool.submit(put_away, [Ending(ended, "other", at_once), None, Ending(ended, "list", may_end)]))
        try:
            for one in waiting:
                one.result(30)
            assert ended == ["other"]
            assert caplog.text.count("left to the end of this process") == len(waiting)
        finally:
            may_end.set()
    wait_until(lambda: sorted(ended) == sorted(["other", "list", *WAYS]))
