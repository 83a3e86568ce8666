"""Opaque parcels for the tests of the storage engine."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from tallystick.carriers.log.limits import LogLimits
from tallystick.carriers.log.store import LogStore, Staged
from tallystick.carriers.storage import Entry, Place
from tallystick.runtime.disk import Disk, parent_of, read_all, write_atomic
from tallystick.runtime.seeded_disk import SeededDisk

A = Place(b"A" * 16, 0)
B = Place(b"B" * 16, 3)
C = Place(b"C" * 16, 1)
SMALL = LogLimits(segment_bytes_max=2000, reserve_bytes=0)
EVERYTHING = 1 << 30


class Opaque(NamedTuple):
    parcel_hash: bytes
    header: bytes
    body: bytes


def opaque(n: int, header_bytes: int = 30, body_bytes: int = 100) -> Opaque:
    header = (b"header %d " % n).ljust(header_bytes, b".")
    return Opaque(hashlib.sha256(header).digest(), header, (b"body %d " % n).ljust(body_bytes, b"-"))


def put(store: LogStore, *places: Place, n: int, header_bytes: int = 30, body_bytes: int = 100) -> Staged:
    return store.stage(places, *opaque(n, header_bytes, body_bytes), now_ms=1000 + n)


def fill(disk: Disk, count: int, place: Place = A, limits: LogLimits = SMALL) -> LogStore:
    """A store with parcels 0 to `count` in one partition, one group each."""
    store = LogStore(disk, limits)
    for n in range(count):
        put(store, place, n=n)
        store.sync()
    return store


def read_through(store: LogStore, place: Place, headers_only: bool = False, first: int = 0) -> list[Entry]:
    entries: list[Entry] = []
    while got := store.read(place, first + len(entries), 4096, headers_only):
        entries += got
    return entries


def contents(disk: Disk, folder: str = "") -> dict[str, bytes]:
    """Every file of a disk."""
    found: dict[str, bytes] = {}
    for name in disk.listdir(folder):
        path = f"{folder}/{name}" if folder else name
        try:
            found |= contents(disk, path)
        except OSError:  # a file, not a folder
            found[path] = read_all(disk, path)
    return found


def disk_with(files: dict[str, bytes]) -> SeededDisk:
    """A disk that holds these files, synced."""
    disk = SeededDisk(1)
    for path, data in files.items():
        if parent_of(path):
            disk.mkdir(parent_of(path))
        write_atomic(disk, path, data)
    return disk
