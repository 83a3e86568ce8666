"""The publisher's threads: who waits for whom, and who does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from actors import Liar, Topic, read_rows, rows, ties
from stack import Stack, wait_until

from tallystick.carriers.carrier import NotStored, Outcome
from tallystick.client.hands import Sealer
from tallystick.client.outbox import SealAgain, Spooled
from tallystick.client.publish import Publisher
from tallystick.client.settings import PublisherSettings
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.seal import Lane
from tallystick.runtime.disk import RealDisk, RealFile
from tallystick.runtime.seeded_disk import SeededDisk


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    with Stack(tmp_path_factory.mktemp("threads"), node={"commit_ms": 50}) as stack:
        yield Topic(stack, "acme")


class HeldDisk(RealDisk):
    """What is spooled becomes durable when it is let."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.syncing, self.let = threading.Event(), threading.Event()

    def open(self, path: str, create: bool = False) -> RealFile:
        is_segment = path.rpartition("/")[2].isdecimal()
        return HeldFile(self, self._real(path), create) if is_segment else super().open(path, create)


class HeldFile(RealFile):
    def __init__(self, disk: HeldDisk, path: Path, create: bool) -> None:
        super().__init__(path, create)
        self._disk = disk

    def sync(self) -> None:
        self._disk.syncing.set()
        self._disk.let.wait(60)
        super().sync()


def test_sealing_goes_on_while_the_disk_syncs_and_nothing_is_sent_before(topic: Topic, tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    publisher = Publisher(ties(topic.car), topic.name, disk, PublisherSettings(batch_rows_max=10))
    try:
        publisher.send(rows(*range(10)))
        wait_until(disk.syncing.is_set)  # the sender has taken it
        publisher.send(rows(*range(10, 20)))
        publisher.send(rows(*range(20, 30)))
        (track,) = publisher._outbox.tracks.values()
        wait_until(lambda: track.sealed == 3)
        assert (track.durable, track.stored) == (0, 0)
        disk.let.set()
        assert publisher.flush(60) == 0
    finally:
        disk.let.set()
        publisher.stop()
    assert read_rows(topic.reader.subscriber(topic.name), 30) == list(range(30))


def test_what_was_packed_in_another_thread_comes_in_order(topic: Topic) -> None:
    with topic.car.publisher(topic.name, batch_rows_max=10, handed_over_bytes_min=0) as publisher:
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
            wait_until(lambda: publisher.flush(0.05) == 3)  # all but those; what an earlier one left was sent meanwhile
        finally:
            let.set()
        assert publisher.flush(60) == 0
    assert read_rows(topic.reader.subscriber(topic.name, start=23), 21) == list(range(230, 251))


def test_what_is_refused_is_dealt_with_between_two_parcels_and_not_while_one_is_sealed(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, seal = threading.Lock(), Lane.seal
    refused: list[bool] = []
    other = Topic(topic.stack, "rival")  # with nothing in its spool that was stored and would be refused as well
    node = Liar(other.car.node)

    def seal_slowly(lane: Lane, *arguments: Any, **options: Any) -> Parcel:
        with at_work:
            time.sleep(0.005)
            return seal(lane, *arguments, **options)

    def refuse_first(token: bytes, parcels: Sequence[bytes]) -> list[Outcome]:
        if len(refused) < 5:
            return [NotStored("epoch-over", "that epoch is over")] * len(parcels)
        honest: list[Outcome] = node.honest.publish(token, parcels)
        return honest

    def seal_again(sealer: Sealer, effect: SealAgain) -> list[Spooled]:
        refused.append(at_work.locked())
        return real(sealer, effect)

    node.publish = refuse_first
    real = Sealer._seal_again
    with Publisher(ties(other.car, node), other.name, SeededDisk(2), PublisherSettings(batch_rows_max=1)) as publisher:
        monkeypatch.setattr(Lane, "seal", seal_slowly)
        monkeypatch.setattr(Sealer, "_seal_again", seal_again)
        monkeypatch.setattr(publisher._advertised, "is_current", lambda *_: False)  # as if there were another epoch
        publisher.send(rows(*range(49)))
        wait_until(lambda: len(refused) == 5)
        monkeypatch.undo()
        assert publisher.flush(60) == 0
    assert refused == [False] * 5
    assert read_rows(other.reader.subscriber(other.name), 49) == list(range(49))
