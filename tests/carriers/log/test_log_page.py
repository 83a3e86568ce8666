"""docs/formats/log.md is enough to read a log: this reader knows the page and nothing of the code."""

from __future__ import annotations

import struct
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

import cbor2
import pytest
from log_parcels import SMALL, A, B, C, opaque, put

from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Place
from tallystick.runtime.disk import RealDisk

# --- the page ---


def read_file_header(data: bytes) -> tuple[bytes, bytes, int, int]:
    """Magic, token, partition, base."""
    magic, version, crc, token, partition, base = struct.unpack("<8sII16sIQ", data[:44])
    assert version == 1
    assert crc == zlib.crc32(data[:12] + bytes(4) + data[16:44])
    return magic, token, partition, base


def read_frames(data: bytes) -> list[dict[str, Any]]:
    at, found = 44, []
    offset = read_file_header(data)[3]
    while at < len(data):
        crc, length, rest_crc, number, after, stored, kind = struct.unpack_from("<IIIQQQB", data, at)
        name = data[at + 37 : at + 69]
        front_bytes, body_bytes = struct.unpack_from("<II", data, at + 69)
        front, rest = data[at + 77 : at + 77 + front_bytes], data[at + 77 + front_bytes : at + length]
        assert crc == zlib.crc32(data[at + 4 : at + 77 + front_bytes])
        assert rest_crc == zlib.crc32(rest)
        assert number == offset
        found.append(
            {"after": after, "stored": stored, "kind": kind, "name": name}
            | {"front": front, "rest": rest, "body_bytes": body_bytes}
        )
        at, offset = at + length, offset + 1
    return found


def read_index(data: bytes) -> tuple[list[tuple[Any, ...]], list[Any]]:
    assert struct.unpack("<I", data[44:48])[0] == zlib.crc32(data[48:])
    rows, pins = cbor2.loads(data[48:])
    return list(struct.iter_unpack("<QIIQB32s", rows)), pins


def read_journal(data: bytes) -> tuple[int, dict[tuple[bytes, int], tuple[int, int]], dict[int, bytes]]:
    """The last group's number, marks, and the records that are not done with."""
    at, group = 44, 0
    marks: dict[tuple[bytes, int], tuple[int, int]] = {}
    records: dict[int, bytes] = {}
    while at < len(data):
        crc, length, number = struct.unpack_from("<IIQ", data, at)
        assert crc == zlib.crc32(data[at + 4 : at + length])
        assert at == 44 or number == group + 1
        group = number
        trimmed, changed, first, added = cbor2.loads(data[at + 16 : at + length])
        marks |= {(token, partition): (end, below) for token, partition, end, below in changed}
        records |= dict(enumerate(added, first))
        records = {sequence: record for sequence, record in records.items() if sequence >= trimmed}
        at += length
    return group, marks, records


# --- a log to read ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Parcels in two partitions, some of them in both; others in a third, whose first segment is retired; a blob and
    records."""
    store = LogStore(RealDisk(tmp_path), SMALL)
    for number in range(12):
        put(store, *((A, B) if number % 3 == 0 else (A,)), n=number)
        put(store, C, n=number)
        store.journal.append(b"record %d" % number)
        store.sync()
    store.deposit(b"n" * 32, b"a lock")
    store.sync()
    store.journal.trim(5)
    store.retire(C, store.tree(C)._segments[1].index.base)
    store.sync()
    store.close()
    return tmp_path


def files(folder: Path, place: Place, kind: str) -> list[bytes]:
    home = folder / "topics" / place.token.hex() / str(place.partition)
    return [path.read_bytes() for path in sorted(home.glob(f"*.{kind}"))]


@pytest.mark.parametrize("place", [A, C])
def test_every_parcel_is_where_the_page_says(folder: Path, place: Place) -> None:
    headers, segments = files(folder, place, "headers"), files(folder, place, "segment")
    assert len(headers) == (place == C)
    shown = [*headers, *segments]
    assert {read_file_header(data)[0] for data in headers} <= {b"TALLYHDR"}
    assert {read_file_header(data)[0] for data in segments} == {b"TALLYSEG"}
    assert all(read_file_header(data)[1:3] == (place.token, place.partition) for data in shown)
    frames = [frame for data in shown for frame in read_frames(data)]
    expected = [opaque(number) for number in range(12)]
    assert [(one["name"], one["front"]) for one in frames] == [(one.parcel_hash, one.header) for one in expected]
    assert [one["body_bytes"] for one in frames] == [len(one.body) for one in expected]
    kept = [(one["kind"], one["rest"]) for one in frames]
    retired = sum(len(read_frames(data)) for data in headers)
    assert kept[:retired] == [(3, b"")] * retired
    assert kept[retired:] == [(1, one.body) for one in expected[retired:]]
    assert [one["after"] for one in frames] == sorted(one["after"] for one in frames)


def test_a_parcel_of_several_topics_has_one_body_and_references(folder: Path) -> None:
    for number, frame in zip(range(0, 12, 3), read_frames(b"".join(files(folder, B, "segment"))), strict=False):
        token, partition, offset = struct.unpack("<16sIQ", frame["rest"])
        assert (frame["kind"], token, partition, offset) == (2, A.token, A.partition, number)


@pytest.mark.parametrize("place", [A, C])
def test_an_index_tells_where_frames_lie(folder: Path, place: Place) -> None:
    indexes = files(folder, place, "index")
    assert indexes
    shown = {read_file_header(data)[3]: data for kind in ("headers", "segment") for data in files(folder, place, kind)}
    for data in indexes:
        magic, *_, base = read_file_header(data)
        rows, pins = read_index(data)
        expected, position = [], 44  # as in the segment, also where its headers alone are left
        for one in read_frames(shown[base]):
            expected.append((position, len(one["front"]), one["body_bytes"], one["stored"], 1, one["name"]))
            position += 77 + len(one["front"]) + one["body_bytes"]
        assert magic == b"TALLYIDX"
        assert rows == expected
        assert pins == []


def test_the_journal_says_what_is_committed(folder: Path) -> None:
    data = (folder / "journal").read_bytes()
    assert read_file_header(data) == (b"TALLYJNL", bytes(16), 0, 0)
    group, marks, records = read_journal(data)
    assert group >= 13
    assert marks[A.token, A.partition] == (12, 0)
    assert marks[C.token, C.partition] == (12, len(read_frames(files(folder, C, "headers")[0])))
    assert marks[B.token, B.partition] == (4, 0)
    assert records == {number: b"record %d" % number for number in range(5, 12)}


def test_a_blob_is_a_front_under_its_name(folder: Path) -> None:
    [data] = [path.read_bytes() for path in (folder / "blobs").glob("*.segment")]
    [frame] = read_frames(data)
    assert (frame["name"], frame["front"], frame["rest"]) == (b"n" * 32, b"a lock", b"")


def test_the_tree_is_over_the_names(folder: Path) -> None:
    store = LogStore(RealDisk(folder), SMALL)
    names = [frame["name"] for data in files(folder, B, "segment") for frame in read_frames(data)]
    leaves = [sha256(b"\x00" + name).digest() for name in names]
    while len(leaves) > 1:
        leaves = [sha256(b"\x01" + one + two).digest() for one, two in zip(leaves[::2], leaves[1::2], strict=True)]
    assert store.tree(B).root(4) == leaves[0]
    store.close()
