"""A failing disk, an old backup, a missing file: what was acknowledged and is gone is named, never cut."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from log_parcels import EVERYTHING, SMALL, A, B, contents, disk_with, fill, opaque, put, read_through

from tallystick.carriers.log.report import Recovery
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Damaged
from tallystick.errors import Misuse
from tallystick.runtime.seeded_disk import SeededDisk

FOLDER = f"topics/{A.token.hex()}/0/"
ENTRIES = 20


def _filled(retire: bool = False) -> dict[str, bytes]:
    disk = SeededDisk(1)
    store = fill(disk, ENTRIES)
    if retire:
        store.retire(A, store.retirable(A, ENTRIES // 2))
    store.close()
    return contents(disk)


def _named(files: dict[str, bytes], kind: str) -> list[str]:
    return [path for path in sorted(files) if path.startswith(FOLDER) and path.endswith(kind)]


def _finds(files: dict[str, bytes]) -> Recovery:
    """Open a store on these files; every entry that it gives must be the one that was stored."""
    store = LogStore(disk_with(files), SMALL, anchored={A: ENTRIES})
    offset = 0
    try:
        while got := store.read(A, offset, 500, headers_only=offset < store.tree(A).below):
            for entry in got:
                expected = opaque(entry.offset)
                assert (entry.offset, entry.parcel_hash, entry.header) == (offset, *expected[:2])
                assert entry.body in (None, expected.body)
                offset += 1
    except Damaged as error:
        if not store.recovery.damages:
            store.recovery.rebuilt.append(str(error))
    else:
        assert offset == ENTRIES
    return store.recovery


def _flipped(files: dict[str, bytes], path: str, at: int) -> dict[str, bytes]:
    data = bytearray(files[path])
    data[at] ^= 1 << at % 8
    return {**files, path: bytes(data)}


@pytest.mark.parametrize(
    ("choose", "retire"),
    [
        (lambda files: _named(files, ".segment")[0], False),
        (lambda files: _named(files, ".segment")[-1], False),
        (lambda files: _named(files, ".index")[0], False),
        (lambda files: _named(files, ".headers")[0], True),
        (lambda files: _named(files, ".index")[0], True),
        (lambda files: "journal", False),
    ],
    ids=["sealed segment", "newest segment", "index", "retired headers", "retired index", "journal"],
)
def test_every_flipped_byte_is_found(choose: Callable[[dict[str, bytes]], str], retire: bool) -> None:
    files = _filled(retire)
    assert not _finds(files).lines()
    path = choose(files)
    for at in range(len(files[path])):
        assert _finds(_flipped(files, path, at)).lines(), f"byte {at} of {path}"


def test_a_damaged_entry_ends_a_read_and_is_named_at_its_own() -> None:
    files = _filled()
    sealed = _named(files, ".segment")[0]
    store = LogStore(disk_with(_flipped(files, sealed, 44 + 3 * 207 + 150)), SMALL)
    assert not store.recovery.lines(), "bodies of sealed segments are read when they are asked for"
    assert len(store.read(A, 0, EVERYTHING)) == 3
    with pytest.raises(Damaged, match=f"{sealed}: offset 3: the body does not match its checksum"):
        store.read(A, 3, EVERYTHING)
    assert store.read(A, 3, 1, headers_only=True)[0].header == opaque(3).header


def test_a_promised_tail_that_is_short_is_damage_and_not_cut() -> None:
    files = _filled()
    newest = _named(files, ".segment")[-1]
    for missing in (1, 150, 300):
        short = {**files, newest: files[newest][:-missing]}
        disk = disk_with(short)
        store = LogStore(disk, SMALL)
        (damage,) = store.recovery.damages
        assert damage.offset == store.end(A) < ENTRIES
        assert not store.recovery.cuts
        assert disk.size(newest) == len(short[newest])
        assert len(read_up_to(store)) == store.end(A)
        with pytest.raises(Damaged, match="read only"):
            put(store, A, n=1)
        put(store, B, n=1)
        store.sync()
        assert store.end(B) == 1


def read_up_to(store: LogStore) -> list[int]:
    """The offsets that a damaged partition still gives."""
    offsets: list[int] = []
    while len(offsets) < store.end(A):
        offsets += [entry.offset for entry in store.read(A, len(offsets), EVERYTHING)]
    with pytest.raises(Damaged):
        store.read(A, len(offsets), 1)
    return offsets


def test_an_anchor_above_the_end_is_damage_even_if_the_journal_agrees_with_the_log() -> None:
    disk = SeededDisk(1)
    fill(disk, 5)
    store = LogStore(disk, SMALL, anchored={A: 6, B: 2})
    assert [str(damage) for damage in store.recovery.damages] == [
        f"{A}: damaged at offset 5: 6 entries are anchored, 5 are there",
        f"{B}: damaged at offset 0: 2 entries are anchored, 0 are there",
    ]


@pytest.mark.parametrize("kept", [4, 9, 19])
def test_a_journal_from_yesterday_does_not_make_today_s_entries_a_torn_tail(kept: int) -> None:
    """Restoring an old journal beside newer segments must not cut what was promised since."""
    disk = SeededDisk(1)
    fill(disk, kept).close()
    old = contents(disk)["journal"]
    files = {**_filled(), "journal": old}
    disk = disk_with(files)
    store = LogStore(disk, SMALL)
    if kept == ENTRIES - 1:
        assert store.recovery.cuts, "one group behind the journal is what a crash leaves"
        return
    assert store.recovery.damages
    assert not store.recovery.cuts
    assert contents(disk) == files


def test_a_missing_journal_leaves_a_store_to_read() -> None:
    files = _filled()
    del files["journal"]
    store = LogStore(disk_with(files), SMALL)
    assert str(store.recovery.damages[0]) == "journal: damaged at offset 0: the file is missing"
    assert [entry.offset for entry in read_through(store, A)] == list(range(ENTRIES))
    with pytest.raises(Damaged, match="journal"):
        put(store, B, n=1)


@pytest.mark.parametrize("kind", [".segment", ".index"])
def test_a_missing_file_in_the_middle(kind: str) -> None:
    files = _filled()
    del files[_named(files, kind)[1]]
    disk = disk_with(files)
    store = LogStore(disk, SMALL)
    if kind == ".index":
        assert store.recovery.rebuilt == [_named(_filled(), kind)[1]]
        assert contents(disk) == _filled()
    else:
        assert "the file is missing" in str(store.recovery.damages[0])
        assert 0 < store.end(A) < ENTRIES


@pytest.mark.parametrize("kind", ["segment", "index", "journal"])
def test_a_file_of_a_newer_version_is_refused_by_name(kind: str) -> None:
    files = _filled()
    path = "journal" if kind == "journal" else _named(files, kind)[0]
    head = bytearray(files[path][:44])
    head[8:16] = (2).to_bytes(4, "little") + bytes(4)
    head[12:16] = zlib.crc32(head).to_bytes(4, "little")
    with pytest.raises(Misuse, match=f"{path}: format version 2, this release reads up to 1"):
        LogStore(disk_with({**files, path: bytes(head) + files[path][44:]}), SMALL)


def test_what_is_not_ours_is_left_alone() -> None:
    strange = {"topics/lost+found/x": b"?", f"{FOLDER}notes.txt": b"?", f"topics/{A.token.hex()}/x/y": b"?"}
    disk = disk_with({**_filled(), **strange})
    store = LogStore(disk, SMALL)
    assert not store.recovery.lines()
    assert len(read_through(store, A)) == ENTRIES
    assert strange.items() <= contents(disk).items()
