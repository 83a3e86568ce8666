"""The publisher's threads: who waits for whom, and who does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from actors import Topic, read_rows, rows
from stack import Stack, wait_until

from tallystick.client import packing
from tallystick.client.spool import _Segment


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    with Stack(tmp_path_factory.mktemp("threads"), node={"commit_ms": 50}) as stack:
        yield Topic(stack, "acme")


def test_sealing_goes_on_while_the_disk_syncs_and_nothing_is_sent_before(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real = threading.Event(), _Segment.sync

    def sync_when_let(segment: _Segment) -> None:
        synced.wait(60)
        real(segment)

    monkeypatch.setattr(_Segment, "sync", sync_when_let)
    publisher = topic.car.publisher(topic.name, batch_rows_max=10)
    try:
        publisher.send(rows(*range(10)))
        wait_until(lambda: publisher._lanes.states and not publisher._sealer.has_unsynced)  # the sender has taken it
        publisher.send(rows(*range(10, 20)))
        publisher.send(rows(*range(20, 30)))
        (state,) = publisher._lanes.states
        wait_until(lambda: len(state.unsent) == 3)
        assert not any(one.ready for one in state.unsent)
        assert not state.stored
        synced.set()
        assert publisher.flush(60) == 0
    finally:
        synced.set()
        publisher.stop()
    assert read_rows(topic.reader.subscriber(topic.name), 30) == list(range(30))


def test_what_was_packed_in_another_thread_comes_in_order(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "HANDED_OVER_BYTES_MIN", 0)
    with topic.car.publisher(topic.name, batch_rows_max=10) as publisher:
        publisher.send(rows(*range(30, 230)))
        assert publisher.flush(60) == 0
    assert read_rows(topic.reader.subscriber(topic.name), 230) == list(range(230))
