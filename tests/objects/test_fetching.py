"""Fetching on real files and sockets: what comes is kept, an attempt goes on where the last ended, and who has fetched
an object serves it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
from commands import running
from object_world import FolderLiar, flipped, noise, put
from server_thread import ServerThread
from without import without

from tallystick.errors import CannotOpen, Misuse, Unavailable
from tallystick.objects.asking import FetchLimits
from tallystick.objects.fetching import Fetching, FolderKeeper, PlainKeeper
from tallystick.objects.layout import Docket, ObjectKey, chunks_file, slips_file
from tallystick.objects.outcomes import FetchStatistics, ServerNamed
from tallystick.objects.ranges import seed_file
from tallystick.objects.reading import ObjectReader
from tallystick.objects.serving import make_seed
from tallystick.objects.sources import FolderSource, Source, WebSource
from tallystick.objects.web import object_server
from tallystick.runtime.disk import Disk, RealDisk, read_all
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sources import SystemClock, SystemEntropy

DATA = noise(8, 600_000)
LIMITS = FetchLimits(
    floor_bytes_s=256 * 1024, grace_s=0.5, ask_bytes_max=64 * 1024, first_bytes=16 * 1024, patience_s=20
)


class Shelf:
    """An object in a folder that seeds it."""

    def __init__(self, folder: Path, data: bytes = DATA, names: tuple[str, ...] = ("a", "b", "c")) -> None:
        self.folder, self.data = folder, data
        self.docket, self.reference = put(folder, data)
        seed = make_seed(self.docket, (folder / slips_file(self.docket.root)).read_bytes(), names, 3)
        (folder / seed_file(self.docket.root)).write_bytes(seed.encode())

    def read(self, *sources: Source) -> bytes:
        with ObjectReader(self.reference, sources) as reader:
            return reader.readall()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


def fetch(
    disk: Disk, docket: Docket, sources: dict[str, Source], limits: FetchLimits = LIMITS
) -> tuple[FetchStatistics, dict[str, str]]:
    named: dict[str, str] = {}

    def on_named(one: ServerNamed) -> None:
        named[one.server] = one.what

    keeper = FolderKeeper(disk, docket)
    try:
        fetching = Fetching(docket, sources, keeper, SystemClock(), limits=limits, on_named=on_named)
        return fetching.run(), named
    finally:
        keeper.close()
        for source in sources.values():
            source.close()


def web(url: str) -> WebSource:
    return WebSource(url, SystemClock(), SystemEntropy())


@contextmanager
def plain_server(folder: Path, rate: float | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, str(Path(__file__).with_name("plain_server.py")), str(folder)]
    process = subprocess.Popen([*command, *([str(rate)] if rate else [])], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_three_servers_of_which_one_is_any_web_server_and_one_lies(shelf: Shelf, tmp_path: Path) -> None:
    def change(file: str, first: int, data: bytes) -> bytes:
        return flipped(data, len(data) // 2) if file.endswith(".chunks") else data

    liar = FolderLiar(shelf.folder, "c", change)
    with (
        ServerThread(object_server(RealDisk(shelf.folder))) as server,
        plain_server(shelf.folder) as (_, url),
    ):
        sources: dict[str, Source] = {"a": web(server.url), "b": web(url), "c": liar}
        statistics, named = fetch(RealDisk(tmp_path), shelf.docket, sources)
    assert set(named) == {"c"}
    assert statistics.chunks == shelf.docket.count
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        chunks_file(shelf.docket.root),
        slips_file(shelf.docket.root),
    ]
    # Who has fetched it serves it.
    assert shelf.read(FolderSource(RealDisk(tmp_path), "joined")) == DATA


def test_a_server_that_hangs_holds_up_nobody(shelf: Shelf, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        sources: dict[str, Source] = {"a": web(url), "b": FolderSource(RealDisk(shelf.folder), "b")}
        statistics, named = fetch(RealDisk(tmp_path), shelf.docket, sources)
    assert named == {}
    assert statistics.chunks == shelf.docket.count


class Ends(FolderLiar):
    """Sends about so many bytes of chunks, and then nothing."""

    def __init__(self, folder: Path, limit: int) -> None:
        super().__init__(folder, "ends")
        self._left = limit

    def read(self, file: str, first: int, n: int) -> tuple[bytes, int]:
        if file.endswith(".chunks"):
            if self._left <= 0:
                raise Unavailable("it has ended")
            self._left -= n
        return super().read(file, first, n)


QUICK = replace(LIMITS, patience_s=0.5)


def half(shelf: Shelf, disk: Disk) -> None:
    with pytest.raises(Unavailable, match="nothing new came"):
        fetch(disk, shelf.docket, {"a": Ends(shelf.folder, 300_000)}, QUICK)


def test_another_attempt_goes_on_where_the_last_ended(shelf: Shelf, tmp_path: Path) -> None:
    half(shelf, RealDisk(tmp_path))
    assert all(path.name.endswith(".part") for path in tmp_path.iterdir())  # nobody takes it for an object
    again = FolderLiar(shelf.folder, "a")
    fetch(RealDisk(tmp_path), shelf.docket, {"a": again})
    assert again.chunk_bytes(shelf.docket.root) < shelf.docket.sealed_length - 290_000
    assert shelf.read(FolderSource(RealDisk(tmp_path), "here")) == DATA


def test_what_rotted_meanwhile_is_fetched_again(shelf: Shelf, tmp_path: Path) -> None:
    def rot() -> None:
        half(shelf, RealDisk(tmp_path))
        [part] = tmp_path.glob("*.chunks.part")
        part.write_bytes(flipped(part.read_bytes(), 5000))
        fetch(RealDisk(tmp_path), shelf.docket, {"a": FolderSource(RealDisk(shelf.folder), "a")})

    rot()
    assert shelf.read(FolderSource(RealDisk(tmp_path), "here")) == DATA
    for path in tmp_path.iterdir():
        path.unlink()
    with without("the hash of what lies on disk"):
        rot()
    name = chunks_file(shelf.docket.root)
    assert (tmp_path / name).read_bytes()[5000] != (shelf.folder / name).read_bytes()[5000]


@pytest.mark.parametrize("seed", range(6))
def test_power_fails_at_any_write_and_it_ends_whole(shelf: Shelf, seed: int) -> None:
    disk, random = SeededDisk(seed), Random(seed)
    source = FolderSource(RealDisk(shelf.folder), "a")
    for _ in range(5):
        disk.power_off_after(random.randrange(200))
        try:
            fetch(disk, shelf.docket, {"a": source})
        except (Unavailable, Misuse, OSError):
            disk.crash()
    disk.disarm()
    fetch(disk, shelf.docket, {"a": source})
    disk.crash()
    assert disk.listdir("") == [chunks_file(shelf.docket.root), slips_file(shelf.docket.root)]
    assert shelf.read(FolderSource(disk, "here")) == DATA


def plain(disk: Disk, few: Shelf, source: Source) -> None:
    with closing(PlainKeeper(disk, "image", ObjectKey(few.reference.key))) as keeper:
        Fetching(few.docket, {"a": source}, keeper, SystemClock(), limits=LIMITS).run()


def both(disk: Disk, few: Shelf, source: Source) -> None:
    fetch(disk, few.docket, {"a": source})


@pytest.mark.parametrize("keep", [both, plain])
@pytest.mark.parametrize("seed", range(2))
def test_power_fails_at_every_write_and_it_ends_whole(keep: Callable[..., None], seed: int, tmp_path: Path) -> None:
    """Sealed or opened: what has its name is whole, and the next attempt goes on."""
    few, changes = Shelf(tmp_path, noise(9, 20_000)), 0
    source = FolderSource(RealDisk(few.folder), "a")
    while True:
        changes += 1
        disk = SeededDisk(seed)
        disk.power_off_after(changes)
        try:
            keep(disk, few, source)
            break
        except (Unavailable, Misuse, OSError):
            disk.crash()
        check_named(disk, few)
        keep(disk, few, source)
        disk.crash()
        check_named(disk, few)
        assert not any(name.endswith(".part") for name in disk.listdir(""))
    assert changes > 8


def check_named(disk: Disk, few: Shelf) -> None:
    here = disk.listdir("")
    if "image" in here:
        assert read_all(disk, "image") == few.data
    if slips_file(few.docket.root) in here:
        assert few.read(FolderSource(disk, "here")) == few.data


def test_an_object_is_opened_into_a_file_and_what_lies_there_is_hashed_again(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "image.part").write_bytes(flipped(DATA, 5000) + b"more than that")
    source = FolderLiar(shelf.folder, "a")
    plain(RealDisk(tmp_path), shelf, source)
    assert (tmp_path / "image").read_bytes() == DATA
    assert source.chunk_bytes(shelf.docket.root) == 4096 + 16  # the chunk that had changed, and no other


def test_another_key_opens_nothing_and_names_nobody(shelf: Shelf, tmp_path: Path) -> None:
    named: list[ServerNamed] = []
    sources = {"a": FolderSource(RealDisk(shelf.folder), "a")}
    with closing(PlainKeeper(RealDisk(tmp_path), "image", ObjectKey(b"w" * 32))) as keeper:
        fetching = Fetching(shelf.docket, sources, keeper, SystemClock(), limits=LIMITS, on_named=named.append)
        with pytest.raises(CannotOpen, match="chunk"):
            fetching.run()
    assert named == []
    assert [path.name for path in tmp_path.iterdir()] == ["image.part"]


def test_a_full_disk_is_the_world_s_fault(shelf: Shelf) -> None:
    disk = SeededDisk(1)
    disk.fill(100_000)
    source = FolderSource(RealDisk(shelf.folder), "a")
    with pytest.raises(Unavailable, match="no space left"):
        fetch(disk, shelf.docket, {"a": source})
    disk.fill(None)
    fetch(disk, shelf.docket, {"a": source})
    assert shelf.read(FolderSource(disk, "here")) == DATA


def test_a_seed_is_served_and_not_cached(shelf: Shelf) -> None:
    with ServerThread(object_server(RealDisk(shelf.folder))) as server:
        source = web(server.url)
        data, total = source.read(seed_file(shelf.docket.root), 0, 65536)
        source.close()
    assert len(data) == total
    assert data == (shelf.folder / seed_file(shelf.docket.root)).read_bytes()


# --- processes that are killed ---


class Deadly(FolderKeeper):
    """Strikes processes when so many chunks have come."""

    def __init__(self, disk: Disk, docket: Docket, strikes: dict[int, partial[None]]) -> None:
        super().__init__(disk, docket)
        self._strikes, self._chunks = strikes, 0

    def store(self, key: str, value: bytes) -> None:
        super().store(key, value)
        self._chunks += key.startswith("chunk")
        if strike := self._strikes.pop(self._chunks, None):
            strike()


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("number", range(3))
def test_two_of_three_processes_are_lost_under_load(number: int, how: signal.Signals, tmp_path: Path) -> None:
    """At moments drawn by seed. Two are our own server, the third is any web server."""
    random = Random(number)
    shelf = Shelf(tmp_path / "shelf", noise(number, 16_000_000))
    with ExitStack() as stack:
        ours = [stack.enter_context(running("object", "serve", shelf.folder, "--port", 0)) for _ in range(2)]
        plain, url = stack.enter_context(plain_server(shelf.folder))
        servers = [*((process, said["url"]) for process, said in ours), (plain, url)]
        victims = [process for process, _ in random.sample(servers, 2)]
        for process in victims:
            stack.callback(process.send_signal, signal.SIGCONT)
        moments = random.sample(range(1, shelf.docket.count), 2)
        strikes = {moment: partial(process.send_signal, how) for moment, process in zip(moments, victims, strict=True)}
        sources: dict[str, Source] = dict(zip("abc", (web(address) for _, address in servers), strict=True))
        keeper = Deadly(RealDisk(tmp_path / "car"), shelf.docket, strikes)
        named: list[ServerNamed] = []
        fetching = Fetching(shelf.docket, sources, keeper, SystemClock(), limits=LIMITS, on_named=named.append)
        statistics = fetching.run()
        keeper.close()
        for source in sources.values():
            source.close()
    assert named == []
    assert statistics.chunks == shelf.docket.count
    assert statistics.bytes_arrived == statistics.bytes_used
    assert shelf.read(FolderSource(RealDisk(tmp_path / "car"), "car")) == shelf.data
