"""An object from servers in processes of their own: verified, opened, written.

    fetch_three, fetch_one   from three servers, from one; the peer fetches the sealed file from one of them with a
                             single GET, hashes it with SHA-256 and writes it
    fetch_limit              the same object from a local file in one thread: each chunk hashed, opened, hashed again
                             and written, without servers, sockets and the role; against the same peer
    fetch_faults             bytes that were needed by those that were asked for, two of three servers killed midway
    resume                   the same of a second attempt, when the first ended at half
    overhead                 plain bytes by what lies on a server: sealed chunks and slips
    memory_2g                the peak of a process that fetches 200 MB, by that of one that fetches 2 GB

Servers are `tally object serve`, on the same cores as whoever fetches. Nobody waits until the disk has it (fsync): both
arms would wait for the same. Each round begins with files that are not there.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import harness

from tallystick.errors import Unavailable
from tallystick.objects.asking import FetchLimits
from tallystick.objects.fetching import Fetching, PlainKeeper
from tallystick.objects.layout import Docket, ObjectKey, Slips, chunks_file, slips_file
from tallystick.objects.sealing import ChunkOpener
from tallystick.objects.sources import FolderSource, Source, WebSource
from tallystick.objects.store import ObjectStore
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import SystemClock, SystemEntropy

MB = 1 << 20
BYTES, QUICK_BYTES = 256 * MB, 8 * MB
LONG, SHORT = 2000 * MB, 200 * MB
TARGET = 1.2  # the peer's time by ours
FAULTS_TARGET, OVERHEAD_TARGET, MEMORY_TARGET = 0.99, 1 / 1.005, 0.9
ROUNDS = 9
FETCHER = Path(__file__).with_name("ota_fetcher.py")


class Shelf:
    """An object of random bytes in a folder. Its blocks differ, so that nothing is compressed or shared."""

    def __init__(self, folder: Path, length: int) -> None:
        self.folder = folder / "shelf"
        block = os.urandom(MB)
        data = lambda: (number.to_bytes(8, "big") + block[8:] for number in range(length // MB))  # noqa: E731
        store = ObjectStore(RealDisk(self.folder))
        self.docket, self.reference = store.put(data, os.urandom(32), os.urandom(32), bytes(16), 0.0)
        self.stored = self.docket.sealed_length + (self.folder / slips_file(self.docket.root)).stat().st_size


@contextmanager
def serving(folder: Path, count: int) -> Iterator[list[tuple[subprocess.Popen[str], str]]]:
    """So many servers of a folder, and their URLs."""
    command = [sys.executable, "-m", "tallystick.cli", "object", "serve", str(folder), "--port", "0", "--json"]
    with ExitStack() as stack:
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
        for one in processes:
            stack.callback(lambda one=one: (one.kill(), one.wait(), one.stdout.close()))
        yield [(one, json.loads(one.stdout.readline())["url"]) for one in processes]  # type: ignore[union-attr]


class Written(PlainKeeper):
    """Calls `on_store` with the number of chunks that have come, and waits for no disk."""

    def __init__(self, folder: Path, key: bytes, on_store: Callable[[int], None] = lambda n: None) -> None:
        super().__init__(RealDisk(folder), "fetched", ObjectKey(key), lambda n: self._count())
        self._on_store, self._stored = on_store, 0

    def _count(self) -> None:
        self._stored += 1
        self._on_store(self._stored)

    def finish(self) -> None:
        self._disk.rename("fetched.part", "fetched")


class Counted:
    """Another source, and how many bytes it was asked for: those of an answer that did not come whole count as well."""

    def __init__(self, source: Source, left: int = sys.maxsize) -> None:
        self._source, self.name, self.asked, self._left = source, source.name, 0, left

    def read(self, file: str, first: int, n: int) -> tuple[bytes, int]:
        if file.endswith(".seed"):
            return self._source.read(file, first, n)  # nobody is the seeder: an answer of no bytes
        if file.endswith(".chunks"):
            if self._left <= 0:
                raise Unavailable("it has ended")
            self._left -= n
        self.asked += n
        return self._source.read(file, first, n)

    def close(self) -> None:
        self._source.close()


def fetch(
    docket: Docket, sources: Mapping[str, Source], keeper: PlainKeeper, limits: FetchLimits = FetchLimits()
) -> None:
    try:
        Fetching(docket, sources, keeper, SystemClock(), limits=limits).run()
    finally:
        keeper.close()
        for one in sources.values():
            one.close()


def web(*urls: str) -> dict[str, Source]:
    return {url: WebSource(url, SystemClock(), SystemEntropy()) for url in urls}


def plain_get(url: str, file: str, into: Path) -> bytes:
    """One GET, SHA-256 and write, as quickly as the standard library does it."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("GET", f"/{file}")
    answer, hasher, room = connection.getresponse(), hashlib.sha256(), memoryview(bytearray(MB))
    with into.open("wb", buffering=0) as written:
        while count := answer.readinto(room):
            hasher.update(room[:count])
            written.write(room[:count])
    connection.close()
    return hasher.digest()


def open_all(shelf: Shelf, into: Path) -> None:
    """Everything that a fetch does with the bytes of an object, in one thread, and nothing else."""
    slips = Slips((shelf.folder / slips_file(shelf.docket.root)).read_bytes())
    opener = ChunkOpener(ObjectKey(shelf.reference.key))
    with (shelf.folder / chunks_file(shelf.docket.root)).open("rb") as sealed, into.open("wb", buffering=0) as written:
        for number, slip in enumerate(slips):
            chunk = sealed.read(slip.sealed_length)
            slip.check(chunk, "chunk")
            written.write(opener.open(number, slip, chunk))


def rows(quick: bool, rounds: int | None) -> Iterator[harness.Result]:
    length, count = (QUICK_BYTES, 1) if quick else (BYTES, rounds or ROUNDS)
    with TemporaryDirectory(prefix="tally-ota-") as at:
        folder = Path(at)
        shelf = Shelf(folder, length)
        sealed, into = chunks_file(shelf.docket.root), folder / "fetched"
        with serving(shelf.folder, 3) as servers:
            urls = [url for _, url in servers]
            arms: dict[str, Callable[[], object]] = {
                "fetch_three": lambda: fetch(shelf.docket, web(*urls), Written(folder, shelf.reference.key)),
                "fetch_one": lambda: fetch(shelf.docket, web(urls[0]), Written(folder, shelf.reference.key)),
                "fetch_limit": lambda: open_all(shelf, into),
                "peer": lambda: plain_get(urls[0], sealed, into),
            }
            times: dict[str, list[float]] = {name: [] for name in arms}
            for turn in range(count + 1):
                for name in arms if turn % 2 else reversed(arms):
                    into.unlink(missing_ok=True)
                    os.sync()  # what the last arm left to be written is not this one's
                    started = time.perf_counter()
                    arms[name]()
                    times[name] += [1000 * (time.perf_counter() - started)] if turn else []  # the first warms up
        for name in ("fetch_three", "fetch_one", "fetch_limit"):
            target = None if name == "fetch_limit" else TARGET
            yield harness.compare(name, times[name], times["peer"], "ms", target)


def fault_rows(quick: bool, rounds: int | None) -> Iterator[harness.Figure]:
    with TemporaryDirectory(prefix="tally-ota-") as at:
        folder = Path(at)
        shelf = Shelf(folder, QUICK_BYTES if quick else BYTES)
        count = shelf.docket.count
        yield harness.Figure("overhead", shelf.stored, shelf.docket.plain_length, "bytes", OVERHEAD_TARGET)
        with serving(shelf.folder, 3) as servers:
            moments = {count // 3: servers[0][0].kill, count // 2: servers[1][0].kill}
            sources = {url: Counted(one) for url, one in web(*(url for _, url in servers)).items()}
            keeper = Written(folder, shelf.reference.key, lambda number: moments.pop(number, lambda: None)())
            fetch(shelf.docket, sources, keeper)
        asked = sum(one.asked for one in sources.values())
        yield harness.Figure("fetch_faults", asked, shelf.stored, "bytes", FAULTS_TARGET)
        (folder / "fetched").unlink()
        half, again = (
            Counted(FolderSource(RealDisk(shelf.folder), "here"), left)
            for left in (shelf.docket.sealed_length // 2, sys.maxsize)
        )
        try:
            fetch(shelf.docket, {"here": half}, Written(folder, shelf.reference.key), FetchLimits(patience_s=1.0))
            raise AssertionError("a server that ends at half has sent all of it")
        except Unavailable:
            pass
        left = shelf.stored - (folder / "fetched.part").stat().st_blocks * 512
        fetch(shelf.docket, {"here": again}, Written(folder, shelf.reference.key))
        assert abs(left - again.asked) < shelf.stored // 10, "what was asked for again is not what was missing"
        yield harness.Figure("resume", again.asked + half.asked, shelf.stored, "bytes")


def memory_rows(quick: bool, rounds: int | None) -> Iterator[harness.Figure]:
    peaks = []
    for length in (QUICK_BYTES, 2 * QUICK_BYTES) if quick else (SHORT, LONG):
        with TemporaryDirectory(prefix="tally-ota-") as at:
            shelf = Shelf(Path(at), length)
            with serving(shelf.folder, 3) as servers:
                told = [at, shelf.docket.encode().hex(), shelf.reference.key.hex(), *(url for _, url in servers)]
                done = subprocess.run([sys.executable, str(FETCHER), *told], check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout) / 1024)
    yield harness.Figure("memory_2g", peaks[1], peaks[0], "MiB", MEMORY_TARGET)
