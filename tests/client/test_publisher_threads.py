"""The publisher's threads: who waits for whom, and who does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from actors import Topic, read_rows, rows
from stack import Stack, wait_until

from tallystick.carriers.carrier import NotStored, Outcome
from tallystick.carriers.remote import RemoteNode
from tallystick.client import packing
from tallystick.client.lanes import LaneState
from tallystick.client.sealing import Sealer
from tallystick.client.spool import _Segment
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.seal import Lane


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


def test_rows_are_taken_while_a_parcel_is_sealed(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    let, real = threading.Event(), Lane.seal
    begun = threading.Event()

    def seal_when_let(lane: Lane, *arguments: Any, **options: Any) -> Parcel:
        begun.set()
        let.wait(60)
        return real(lane, *arguments, **options)

    monkeypatch.setattr(Lane, "seal", seal_when_let)
    with topic.car.publisher(topic.name, batch_rows_max=10) as publisher:
        try:
            publisher.send(rows(*range(230, 240)))
            assert begun.wait(60)
            publisher.send(rows(*range(240, 250)))  # would wait for ever
            publisher.produce(rows(250)[0])
            assert publisher.flush(0.2) == 3
        finally:
            let.set()
        assert publisher.flush(60) == 0
    assert read_rows(topic.reader.subscriber(topic.name, start=23), 21) == list(range(230, 251))


def test_what_is_refused_is_dealt_with_between_two_parcels_and_not_while_one_is_sealed(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing, seal, publish = threading.Lock(), Lane.seal, RemoteNode.publish
    refused: list[bool] = []

    def seal_slowly(lane: Lane, *arguments: Any, **options: Any) -> Parcel:
        with sealing:
            time.sleep(0.005)
            return seal(lane, *arguments, **options)

    def refuse_first(node: RemoteNode, token: bytes, parcels: Sequence[bytes]) -> list[Outcome]:
        if len(refused) < 5:
            return [NotStored("epoch-over", "that epoch is over")] * len(parcels)
        return publish(node, token, parcels)

    def seal_again(sealer: Sealer, state: LaneState) -> None:
        refused.append(sealing.locked())
        real(sealer, state)

    real = Sealer.seal_again
    other = Topic(topic.stack, "rival")  # with nothing in its spool that was stored and would be refused as well
    with other.car.publisher(other.name, batch_rows_max=1) as publisher:
        monkeypatch.setattr(Lane, "seal", seal_slowly)
        monkeypatch.setattr(RemoteNode, "publish", refuse_first)
        monkeypatch.setattr(Sealer, "seal_again", seal_again)
        monkeypatch.setattr(publisher._advertised, "is_current", lambda *_: False)  # as if there were another epoch
        publisher.send(rows(*range(49)))
        wait_until(lambda: len(refused) == 5)
        monkeypatch.undo()
        assert publisher.flush(60) == 0
    assert refused == [False] * 5
    assert read_rows(other.reader.subscriber(other.name), 49) == list(range(49))
