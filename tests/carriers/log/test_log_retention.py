"""Retention takes bodies by whole segments; headers, hashes and trees stay, and so does what others need."""

from __future__ import annotations

import pytest
from log_parcels import EVERYTHING, SMALL, A, B, C, contents, fill, opaque, put, read_through

from tallystick.carriers.log.report import Retired
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Damaged
from tallystick.errors import Misuse
from tallystick.runtime.seeded_disk import SeededDisk


def test_bodies_go_and_headers_stay() -> None:
    disk = SeededDisk(1)
    store = fill(disk, 50)
    root, before = store.tree(A).root(), store.bytes_stored(A)
    below = store.retirable(A, 30)
    assert 0 < below < 50
    store.retire(A, below)
    assert store.bytes_stored(A) <= before - below * 100, "of every body"
    for opened in (store, LogStore(disk, SMALL)):
        assert not opened.recovery.lines()
        with pytest.raises(Retired) as caught:
            opened.read(A, below - 1, EVERYTHING)
        assert (caught.value.below, caught.value.reason) == (below, "retired")
        assert [e.body for e in read_through(opened, A, first=below)] == [opaque(n).body for n in range(below, 50)]
        heads = read_through(opened, A, headers_only=True)
        assert [(e.header, e.body_bytes) for e in heads] == [(opaque(n).header, 100) for n in range(50)]
        assert opened.tree(A).root() == root
        opened.tree(A).inclusion(0, 50)
        assert opened.bytes_stored(A) == store.bytes_stored(A)


def test_whole_segments_go() -> None:
    store = fill(SeededDisk(1), 50)
    second = store.tree(A)._segments[1].index
    assert [store.retirable(A, limit) for limit in (0, second.base - 1, second.base)] == [0, 0, second.base]
    assert store.retirable(A, second.end - 1) == second.base
    assert store.retirable(A, 50) == 50, "the newest segment as well"


def test_a_segment_of_which_some_may_go_is_not_held_by_what_comes() -> None:
    disk = SeededDisk(1)
    store = fill(disk, 3)
    assert store.retirable(A, 2) == 0
    put(store, A, n=3)
    store.sync()
    assert store.retirable(A, 3) == 3
    store.retire(A, 3)
    for opened in (store, LogStore(disk, SMALL)):
        assert not opened.recovery.lines()
        assert [entry.offset for entry in read_through(opened, A, first=3)] == [3]


def test_a_partition_can_be_retired_to_its_end_and_go_on() -> None:
    disk = SeededDisk(1)
    store = fill(disk, 10)
    store.retire(A, 10)
    assert not any(path.endswith(".segment") for path in contents(disk))
    put(store, A, n=10)
    store.sync()
    for opened in (store, LogStore(disk, SMALL)):
        assert not opened.recovery.lines()
        assert [entry.offset for entry in read_through(opened, A, first=10)] == [10]


def test_a_mark_inside_a_segment_hides_bodies_and_deletes_nothing_yet() -> None:
    disk = SeededDisk(1)
    store = fill(disk, 5)
    files = set(contents(disk))
    store.retire(A, 3)
    assert set(contents(disk)) == files
    with pytest.raises(Retired):
        store.read(A, 2, EVERYTHING)
    assert store.read(A, 3, 1)[0].offset == 3
    store.retire(A, 2)
    assert store.tree(A).below == 3, "a mark never falls"
    with pytest.raises(Misuse, match="the end is 5"):
        store.retire(A, 6)


def test_a_body_that_another_topic_needs_outlives_its_own_topic_s_retention() -> None:
    disk = SeededDisk(1)
    store = LogStore(disk, SMALL)
    for n in range(12):
        put(store, A, B, C, n=n)
        store.sync()
    store.retire(A, 12)
    for opened in (store, LogStore(disk, SMALL)):
        with pytest.raises(Retired):
            opened.read(A, 0, EVERYTHING)
        assert [entry.body for entry in read_through(opened, B)] == [opaque(n).body for n in range(12)]
    folder = store.tree(A).folder
    store.retire(B, 12)
    assert any(name.endswith(".segment") for name in disk.listdir(folder)), "the third topic still needs it"
    store.retire(C, 12)
    assert not any(name.endswith(".segment") for name in disk.listdir(folder))
    assert not LogStore(disk, SMALL).recovery.lines()


def test_a_segment_whose_headers_cannot_be_read_is_kept() -> None:
    disk = SeededDisk(1)
    store = fill(disk, 20)
    path = f"{store.tree(A).folder}/{0:020d}.segment"
    disk.flip(path, 100)
    with pytest.raises(Damaged, match="kept, since its headers cannot all be read"):
        store.retire(A, 20)
    assert disk.exists(path)
