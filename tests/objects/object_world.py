"""Objects of a few seeded bytes, a store in a folder, and sources that lie."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tallystick.objects.layout import FIXED, PLAIN, Docket, ObjectReference, chunks_file
from tallystick.objects.sources import FolderSource
from tallystick.objects.store import ObjectStore, Wish
from tallystick.runtime.disk import RealDisk

SECRET, TENANT = b"s" * 32, b"t" * 16
SMALL = Wish(FIXED, 4096, PLAIN)


def noise(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


def put(
    folder: Path, data: bytes, wish: Wish = SMALL, *, entropy: bytes = b"e" * 32, tenant: bytes = TENANT
) -> tuple[Docket, ObjectReference]:
    return ObjectStore(RealDisk(folder)).put(lambda: [data], SECRET, entropy, tenant, 0.0, wish)


class FolderLiar(FolderSource):
    """Changes what it sends: `change(file, first, data)`. Remembers what it was asked for."""

    def __init__(self, folder: Path, name: str, change: Callable[[str, int, bytes], bytes] | None = None) -> None:
        super().__init__(RealDisk(folder), name)
        self._change = change or (lambda _file, _first, data: data)
        self.asked: list[tuple[str, int, int]] = []
        self.closed = False

    def read(self, file: str, first: int, n: int) -> tuple[bytes, int]:
        self.asked.append((file, first, n))
        data, total = super().read(file, first, n)
        return self._change(file, first, data), total

    def close(self) -> None:
        self.closed = True

    def chunk_bytes(self, root: bytes) -> int:
        """How many bytes of chunks it was asked for."""
        return sum(n for file, _, n in self.asked if file == chunks_file(root))


def flipped(data: bytes, at: int, mask: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
