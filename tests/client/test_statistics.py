"""The numbers that publishers and subscribers give of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import Liar, Topic, read_rows, rows, ties
from stack import Stack, wait_until

from tallystick.carriers.carrier import NotStored
from tallystick.client.outbox import RowCounts
from tallystick.client.publish import Publisher
from tallystick.client.settings import PublisherSettings
from tallystick.errors import Unavailable
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import SystemClock


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    with Stack(tmp_path_factory.mktemp("statistics"), node={"commit_ms": 50}) as stack:
        yield Topic(stack, "acme")


def test_a_publisher_counts_what_waits_and_what_became_of_it(topic: Topic) -> None:
    publisher = topic.car.publisher(
        topic.name, background=False, batch_rows_max=10, anchor_check_s=0.0, linger_s=3600.0
    )
    publisher.send(rows(*range(30)))
    publisher.produce(rows(30)[0])
    waiting = publisher.statistics()
    assert (waiting.rows, waiting.sealed, waiting.spool_bytes) == (31, 0, 0)
    publisher._seal_step()
    sealed = publisher.statistics()
    assert (sealed.rows, sealed.sealed, sealed.unsent, sealed.stored, sealed.lanes) == (1, 3, 3, 0, 1)
    assert sealed.spool_bytes > 0
    publisher.flush(60)
    wait_until(lambda: publisher.pump() or publisher.statistics().anchored == 4)
    done = publisher.statistics()
    assert (done.rows, done.unsent, done.unproved, done.stored, done.refused) == (0, 0, 0, 4, 0)
    assert done.produced == RowCounts(stored=31, anchored=31)
    publisher.stop()


def test_a_subscriber_counts_what_it_delivered_and_how_far_it_is_behind(topic: Topic) -> None:
    with topic.reader.subscriber(topic.name, fetch_bytes_max=1) as subscriber:
        assert subscriber.statistics().rows == 0
        got = read_rows(subscriber, 10)
        some = subscriber.statistics()
        assert (some.rows, some.partitions, some.findings) == (len(got), 1, 0)
        assert some.behind == 4 - some.parcels
        read_rows(subscriber, 31 - len(got))
        assert subscriber.statistics().behind == 0


def test_what_was_refused_is_counted_with_its_reason(topic: Topic, tmp_path: Path) -> None:
    liar = Liar(topic.car.node)
    liar.publish = lambda token, parcels: [NotStored("too-large", "a parcel is too large")] * len(parcels)
    publisher = Publisher(ties(topic.car, liar), topic.name, RealDisk(tmp_path), background=False)
    publisher.send(rows(1))
    publisher.flush(60)
    told = publisher.statistics()
    assert (told.refused, told.last_error, told.stored) == (1, "a parcel is too large", 0)
    assert told.produced == RowCounts(not_taken=1)
    publisher.stop()


def test_rows_that_an_earlier_process_left_are_counted_apart(topic: Topic, tmp_path: Path) -> None:
    held, disk = ties(topic.car, grants=topic.car.grants), RealDisk(tmp_path)
    first = Publisher(held, topic.name, disk, background=False)
    first.send(rows(*range(31, 36)))
    first._seal_step()
    assert first.statistics().produced == RowCounts(waiting=5)
    first.stop()
    second = Publisher(held, topic.name, disk, PublisherSettings(anchor_check_s=0.0), background=False)
    second.send(rows(36))
    told = second.statistics()
    assert (told.produced, told.earlier) == (RowCounts(waiting=1), RowCounts(waiting=5))
    wait_until(lambda: second.pump() or second.statistics().produced.anchored == 1)
    told = second.statistics()
    assert (told.produced, told.earlier) == (RowCounts(1, 1), RowCounts(5, 5))
    second.stop()


class HastyClock(SystemClock):
    """A second passes whenever it is looked at."""

    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return float(self.looks)


def test_closing_takes_the_time_that_it_was_given_and_not_twice(topic: Topic, tmp_path: Path) -> None:
    def publish(token: bytes, parcels: object) -> None:
        raise Unavailable("the node is away")

    liar, clock = Liar(topic.car.node), HastyClock()
    liar.publish = publish
    publisher = Publisher(ties(topic.car, liar, clock=clock), topic.name, RealDisk(tmp_path), background=False)
    publisher.send(rows(1))
    before = clock.looks
    publisher.close(1000)
    assert 1000 <= clock.looks - before < 1500
    assert publisher.statistics().produced == RowCounts(waiting=1)
