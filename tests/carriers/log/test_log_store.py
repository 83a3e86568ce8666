"""Parcels in, the same parcels out: offsets, several topics, trees, blobs, bounds, threads."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from log_parcels import EVERYTHING, SMALL, A, B, C, fill, opaque, put, read_through

from tallystick.carriers.log.limits import LogLimits
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Place
from tallystick.crypto import merkle
from tallystick.errors import Misuse, Unavailable
from tallystick.runtime.disk import Disk, RealDisk
from tallystick.runtime.seeded_disk import SeededDisk


@pytest.fixture(params=["real", "seeded"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else SeededDisk(1)


def test_what_is_stored_is_read_again_and_after_reopening(disk: Disk) -> None:
    store = fill(disk, 50)
    for opened in (store, LogStore(disk, SMALL)):
        assert not opened.recovery.lines()
        entries = read_through(opened, A)
        assert [entry.offset for entry in entries] == list(range(50))
        assert [(e.parcel_hash, e.header, e.body) for e in entries] == [opaque(n) for n in range(50)]
        assert [entry.stored_ms for entry in entries] == [1000 + n for n in range(50)]
        assert opened.statistics().segments > 3
        assert opened.end(A) == 50
        assert opened.read(A, 50, 10) == []
        assert opened.read(B, 0, 10) == []
        opened.close()


def test_a_read_ends_at_its_bound_but_gives_at_least_one(disk: Disk) -> None:
    store = LogStore(disk, LogLimits(reserve_bytes=0))
    for n in range(20):
        put(store, A, n=n)
    store.sync()
    assert len(store.read(A, 3, 1)) == 1
    assert 1 < len(store.read(A, 3, 1000)) < 17
    assert len(store.read(A, 3, EVERYTHING)) == 17
    headers = store.read(A, 3, 1000, headers_only=True)
    assert len(headers) > len(store.read(A, 3, 1000))
    assert all(entry.body is None and entry.body_bytes == 100 for entry in headers)
    assert headers[0].header == opaque(3).header
    assert [entry.offset for entry in store.read(A, 3, EVERYTHING, below=6)] == [3, 4, 5]
    assert store.read(A, 3, EVERYTHING, below=3) == []
    store.close()


def test_headers_of_large_parcels_are_read_without_their_bodies(disk: Disk) -> None:
    store = LogStore(disk, LogLimits(reserve_bytes=0))
    for n in range(4):
        put(store, A, n=n, body_bytes=200_000)
    store.sync()
    entries = store.read(A, 0, 4096, headers_only=True)
    assert [entry.header for entry in entries] == [opaque(n).header for n in range(4)]
    store.close()


def test_a_parcel_of_several_topics_stores_its_body_once(disk: Disk) -> None:
    store = LogStore(disk, SMALL)
    put(store, B, n=99)
    staged = put(store, A, B, C, n=1, body_bytes=5000)
    store.sync()
    assert staged.offsets == (0, 1, 0)
    for opened in (store, LogStore(disk, SMALL)):
        for place, offset in zip((A, B, C), staged.offsets, strict=True):
            (entry,) = opened.read(place, offset, EVERYTHING)
            assert (entry.parcel_hash, entry.header, entry.body) == opaque(1, body_bytes=5000)
            assert entry.body_bytes == 5000
        assert opened.bytes_stored(A) > 5000
        assert opened.bytes_stored(B) + opened.bytes_stored(C) < 1000
        opened.close()


def test_two_parcels_of_one_group_may_refer_to_one_another_s_partitions(disk: Disk) -> None:
    store = LogStore(disk, SMALL)
    put(store, A, B, n=1)
    put(store, B, A, n=2)
    store.sync()
    for place in (A, B):
        assert [entry.body for entry in read_through(store, place)] == [opaque(n).body for n in (1, 2)]
    store.close()


def test_nothing_is_seen_or_promised_before_the_sync(disk: Disk) -> None:
    store = LogStore(disk, SMALL)
    staged = put(store, A, n=1)
    assert staged.planned == (0,)
    assert store.end(A) == 0
    assert store.read(A, 0, EVERYTHING) == []
    with pytest.raises(Misuse, match="staged, not stored"):
        _ = staged.offsets
    store.sync()
    assert staged.offsets == (0,)
    store.close()


def test_the_tree_is_that_of_the_parcel_hashes_and_proves_them(disk: Disk) -> None:
    store = fill(disk, 30)
    leaves = [merkle.leaf_hash(opaque(n).parcel_hash) for n in range(30)]
    for opened in (store, LogStore(disk, SMALL)):
        partition = opened.tree(A)
        assert partition.root() == merkle.root(leaves)
        assert partition.root(12) == merkle.root(leaves[:12])
        merkle.verify_inclusion(leaves[7], 7, 30, partition.inclusion(7, 30), partition.root())
        merkle.verify_range(leaves[4:9], 4, 30, partition.range_proof(4, 9, 30), partition.root())
        merkle.verify_consistency(12, partition.root(12), 30, partition.root(), partition.consistency(12, 30))
        assert partition.parcel_hash(7) == opaque(7).parcel_hash
        opened.close()


def test_one_sync_for_each_touched_file_whatever_the_number_of_parcels() -> None:
    disk = SeededDisk(1)
    store = LogStore(disk, LogLimits(reserve_bytes=0))
    for n in range(3):
        put(store, A, B, n=n)
    store.sync()
    before = disk.syncs
    for n in range(500):
        put(store, A, B, n=n)
        store.journal.append(b"operation")
    store.sync()
    assert disk.syncs - before == 3, "two segments and the journal"
    store.sync()
    assert disk.syncs - before == 3, "nothing staged, nothing synced"
    store.close()


def test_blobs_are_stored_once_under_their_names(disk: Disk) -> None:
    store = LogStore(disk, SMALL)
    blobs = {opaque(n).parcel_hash: b"lock %d" % n * 50 for n in range(40)}
    for _ in range(2):
        for name, data in blobs.items():
            store.deposit(name, data)
        assert store.blobs.get(opaque(1).parcel_hash) in (None, blobs[opaque(1).parcel_hash])
        store.sync()
    for opened in (store, LogStore(disk, SMALL)):
        assert len(opened.blobs) == 40
        assert all(opened.blobs.get(name) == data for name, data in blobs.items())
        assert opened.blobs.get(b"?" * 32) is None
        assert opened.places() == []
        opened.close()


def test_a_blob_tells_whether_it_is_stored() -> None:
    disk = SeededDisk(1)
    store = LogStore(disk, SMALL)
    disk.fill(0)
    name = opaque(1).parcel_hash
    failed = store.deposit(name, b"lock")
    with pytest.raises(Unavailable):
        store.sync()
    with pytest.raises(Unavailable, match="disk full"):
        _ = failed.offsets
    disk.fill(None)
    first = store.deposit(name, b"lock")
    assert store.deposit(name, b"lock") is first
    store.sync()
    assert first.offsets == store.deposit(name, b"lock").offsets == ()
    assert store.blobs.get(name) == b"lock"


def test_what_no_store_could_take_is_a_misuse() -> None:
    store = LogStore(SeededDisk(1), replace(SMALL, header_bytes_max=50, body_bytes_max=200, blob_bytes_max=9))
    good = opaque(1)
    for places, parcel_hash, header, body in (
        ((), *good),
        ((A, A), *good),
        ((Place(b"short", 0),), *good),
        ((Place(b"A" * 16, -1),), *good),
        ((A,), b"short", good.header, good.body),
        ((A,), good.parcel_hash, bytes(51), good.body),
        ((A,), good.parcel_hash, good.header, bytes(201)),
    ):
        with pytest.raises(Misuse):
            store.stage(places, parcel_hash, header, body, 0)
    with pytest.raises(Misuse):
        store.deposit(b"short", b"")
    with pytest.raises(Misuse):
        store.deposit(bytes(32), bytes(10))
    with pytest.raises(Misuse):
        store.tree(A)
    store.sync()
    assert store.places() == []


def test_everything_staged_is_bounded() -> None:
    store = LogStore(SeededDisk(1), replace(SMALL, staged_bytes_max=900))
    for n in range(4):
        put(store, A, n=n)
    with pytest.raises(Unavailable, match="wait to be stored"):
        put(store, A, n=4)
    store.sync()
    put(store, A, n=1)
    few = LogStore(SeededDisk(1), replace(SMALL, partitions_max=3))
    for n in range(2):
        put(few, Place(b"A" * 16, n), n=n)
    few.sync()
    with pytest.raises(Unavailable, match="the most it may"):
        put(few, Place(b"A" * 16, 3), n=3)
    put(few, Place(b"A" * 16, 1), n=4)


def test_readers_and_stagers_run_beside_commits(tmp_path: Path) -> None:
    """Many threads stage and sync; a reader sees only whole, committed parcels, in order."""
    store = LogStore(RealDisk(tmp_path), replace(SMALL, segment_bytes_max=20_000))
    numbers = {opaque(n).parcel_hash: n for n in range(400)}
    done = threading.Event()
    wrong: list[object] = []

    def publish(first: int) -> None:
        for n in range(first, first + 100):
            staged = put(store, A, B, n=n)
            store.sync()
            for place, offset in zip(staged.places, staged.offsets, strict=True):
                if store.tree(place).parcel_hash(offset) != opaque(n).parcel_hash:
                    wrong.append(staged)

    def follow() -> None:
        while not done.is_set():
            for entry in read_through(store, B):
                if opaque(numbers[entry.parcel_hash])[1:] != (entry.header, entry.body):
                    wrong.append(entry)

    publishers = [threading.Thread(target=publish, args=(first,)) for first in range(0, 400, 100)]
    follower = threading.Thread(target=follow)
    for thread in (*publishers, follower):
        thread.start()
    for thread in publishers:
        thread.join()
    done.set()
    follower.join()
    assert not wrong
    assert sorted(numbers[entry.parcel_hash] for entry in read_through(store, A)) == list(range(400))
    assert store.statistics().groups <= 400
    store.close()


def test_ten_thousand_entries_are_reopened_without_reading_their_bodies(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    limits = LogLimits(segment_bytes_max=4 << 20, reserve_bytes=0)
    store = LogStore(disk, limits)
    for n in range(10_000):
        put(store, A, n=n, header_bytes=600, body_bytes=2400)
        if n % 1000 == 999:
            store.sync()
    root = store.tree(A).root()
    store.close()
    again = LogStore(disk, limits)
    assert again.tree(A).root() == root
    assert again.read(A, 9_999, 10)[0].header == opaque(9_999, 600).header
    again.close()
