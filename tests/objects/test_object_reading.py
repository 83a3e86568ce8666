"""Reading from places that die, lie or lack the object: what is read is right, liars are named, memory is bounded."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from object_world import SMALL, FolderLiar, flipped, noise, put
from server_thread import ServerThread
from without import without

from tallystick.errors import Forged, Misuse, Refused, TallystickError, Unavailable
from tallystick.objects.layout import GEAR, ObjectReference, slips_file
from tallystick.objects.reading import AHEAD_BYTES, ObjectReader, run_end
from tallystick.objects.sources import REQUEST_BYTES_MAX, Source, WebSource
from tallystick.objects.store import Wish
from tallystick.objects.web import object_server
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import ManualClock, SeededEntropy

DATA = noise(6, 100_000)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ObjectReference]:
    folder = tmp_path_factory.mktemp("shelf")
    return folder, put(folder, DATA, Wish(GEAR, 4096, 3))[1]


class Dead:
    name = "dead"

    def read(self, file: str, first: int, n: int) -> tuple[bytes, int]:
        raise Unavailable("dead: nobody answers")

    def close(self) -> None:
        pass


def liar_of_chunks(folder: Path, *, from_byte: int = 0) -> FolderLiar:
    def change(file: str, first: int, data: bytes) -> bytes:
        at = max(0, from_byte - first)
        return flipped(data, at) if file.endswith(".chunks") and at < len(data) else data

    return FolderLiar(folder, "liar", change)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(DATA) + 50), st.integers(0, 40_000)), max_size=6))
def test_any_range_is_read_as_from_a_file(reads: list[tuple[int, int]]) -> None:
    folder, reference = _KEPT["shelf"]
    with ObjectReader(reference, [FolderLiar(folder, "here")]) as reader:
        for at, n in reads:
            assert reader.seek(at) == at == reader.tell()
            assert reader.read(n) == DATA[at : at + n]
        assert reader.seek(-10, io.SEEK_END) == len(DATA) - 10
        assert reader.read() == DATA[-10:]
        assert reader.seek(-20, io.SEEK_CUR) == len(DATA) - 20
        assert reader.read(5) == DATA[-20:-15]
        with pytest.raises(Misuse):
            reader.seek(-1)


_KEPT: dict[str, tuple[Path, ObjectReference]] = {}


@pytest.fixture(autouse=True)
def _keep(shelf: tuple[Path, ObjectReference]) -> None:
    _KEPT["shelf"] = shelf


def test_the_dead_are_passed_over_and_liars_named(shelf: tuple[Path, ObjectReference]) -> None:
    folder, reference = shelf
    faults: list[tuple[str, TallystickError]] = []
    liar, honest = liar_of_chunks(folder, from_byte=30_000), FolderLiar(folder, "honest")
    sources: list[Source] = [Dead(), liar, honest]
    with ObjectReader(reference, sources, lambda name, error: faults.append((name, error))) as reader:
        assert reader.readall() == DATA
        asked = liar.chunk_bytes(reference.root)
        assert reader.seek(0) == 0
        assert reader.read() == DATA
        assert liar.chunk_bytes(reference.root) == asked <= REQUEST_BYTES_MAX  # who lied is asked no more
    assert {name for name, _ in faults} == {"dead", "liar"}
    assert [name for name, error in faults if isinstance(error, Forged)] == ["liar"]
    (told,) = [str(error) for _, error in faults if isinstance(error, Forged)]
    assert "liar: chunk " in told
    assert reference.name in told
    assert liar.closed
    assert honest.closed


def test_what_was_verified_before_the_lie_is_not_fetched_again(shelf: tuple[Path, ObjectReference]) -> None:
    folder, reference = shelf
    liar, honest = liar_of_chunks(folder, from_byte=30_000), FolderLiar(folder, "honest")
    with ObjectReader(reference, [liar, honest]) as reader:
        assert reader.readall() == DATA
        lied = next(n for n in range(len(reader.slips)) if reader.slips.sealed[n + 1] > 30_000)
        assert honest.chunk_bytes(reference.root) == reader.slips.sealed[-1] - reader.slips.sealed[lied]


def test_where_all_lie_or_are_dead_nothing_is_read(shelf: tuple[Path, ObjectReference]) -> None:
    folder, reference = shelf
    with ObjectReader(reference, [liar_of_chunks(folder)]) as reader:
        with pytest.raises(Forged, match="liar: chunk 0"):
            reader.read(1)
        with pytest.raises(Misuse, match="nobody is left"):
            reader.read(1)
    with pytest.raises(Unavailable):
        ObjectReader(reference, [Dead(), FolderLiar(folder.parent, "empty")])
    with pytest.raises(Refused, match="empty: no file"):
        ObjectReader(reference, [FolderLiar(folder.parent, "empty")])
    with pytest.raises(Misuse, match="nobody is left"):
        ObjectReader(reference, [])


def test_other_slips_are_refused_before_one_is_read(shelf: tuple[Path, ObjectReference], tmp_path: Path) -> None:
    """A server that has the slips of another object, of its own making, shows those."""
    folder, reference = shelf
    other, _ = put(tmp_path, b"another image" * 1000, SMALL)
    forged = (tmp_path / slips_file(other.root)).read_bytes()

    def change(file: str, first: int, data: bytes) -> bytes:
        return forged if file.endswith(".slips") else data

    with pytest.raises(Forged, match="liar: not the slips of object"):
        ObjectReader(reference, [FolderLiar(folder, "liar", change)])
    liar = FolderLiar(folder, "liar", change)
    with ObjectReader(reference, [liar, FolderLiar(folder, "honest")]) as reader:
        assert reader.read() == DATA
    assert {file for file, _, _ in liar.asked} == {slips_file(reference.root)}  # it was asked for no chunk
    assert liar.closed


def test_without_the_hash_of_sealed_chunks_a_liar_is_not_told_from_a_wrong_key(
    shelf: tuple[Path, ObjectReference],
) -> None:
    """GCM's tag still finds the change, but says nothing of whose doing it is: the liar is not named, and nobody else
    is asked."""
    folder, reference = shelf
    faults: list[str] = []
    with (
        without("the hash of a sealed chunk"),
        ObjectReader(
            reference, [liar_of_chunks(folder), FolderLiar(folder, "honest")], lambda name, _: faults.append(name)
        ) as reader,
        pytest.raises(Refused, match="cannot open"),
    ):
        reader.read(1)
    assert faults == []


def test_memory_is_bounded_where_chunks_become_much_more(tmp_path: Path) -> None:
    """Zeros: forty bytes become 256 KiB, so a request of 1 MiB would become gigabytes."""
    data = bytes(24 << 20)
    _, reference = put(tmp_path, data, Wish(GEAR, 1 << 16, 3))
    source = FolderLiar(tmp_path, "here")
    with ObjectReader(reference, [source]) as reader:
        while block := reader.read(1 << 20):
            assert sum(map(len, reader._plain)) <= AHEAD_BYTES
            assert not any(block)
        slips = reader.slips
        assert all(
            slips.plain[run_end(slips, n, len(slips))] - slips.plain[n] <= AHEAD_BYTES for n in range(len(slips))
        )
    assert len(source.asked) <= 1 + 24 // 3


def web(url: str) -> WebSource:
    return WebSource(url, ManualClock(), SeededEntropy(1))


def test_a_web_server_serves_ranges_of_the_two_files_and_nothing_else(shelf: tuple[Path, ObjectReference]) -> None:
    folder, reference = shelf
    with ServerThread(object_server(RealDisk(folder))) as server:
        source = web(server.url)
        with ObjectReader(reference, [source]) as reader:
            reader.seek(50_000)
            assert reader.read(10_000) == DATA[50_000:60_000]
            assert reader.readall() == DATA[60_000:]
        source = web(server.url)
        slips = (folder / slips_file(reference.root)).read_bytes()
        assert source.read(slips_file(reference.root), 72, 10) == (slips[72:82], len(slips))
        assert source.read(slips_file(reference.root), len(slips) - 3, 10) == (slips[-3:], len(slips))
        for file in (f"own/{reference.name}", f"{reference.name}", "own", "..%2f", f"{'0' * 64}.slips"):
            with pytest.raises(Refused, match="404"):
                source.read(file, 0, 1)
        with pytest.raises(Refused, match="416"):
            source.read(slips_file(reference.root), len(slips), 1)
        source.close()
        elsewhere = web(f"{server.url}/elsewhere")
        with pytest.raises(Refused, match="404"):
            elsewhere.read(slips_file(reference.root), 0, 1)
        elsewhere.close()


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        (None, 200, (0, None)),
        (b"bytes=0-0", 206, (0, 1)),
        (b"bytes=10-", 206, (10, None)),
        (b"bytes=-10", 206, (-10, None)),
        (b"bytes=5-999999999", 206, (5, None)),
        (b"bytes=10-5", 416, (0, 0)),
        (b"bytes=-0", 416, (0, 0)),
        (b"bytes=0-1,5-6", 416, (0, 0)),
        (b"items=0-1", 416, (0, 0)),
        (b"bytes=" + b"9" * 30 + b"-", 416, (0, 0)),
    ],
)
def test_ranges_that_web_servers_know(
    shelf: tuple[Path, ObjectReference], asked: bytes | None, status: int, told: tuple[int, int | None]
) -> None:
    folder, reference = shelf
    slips = (folder / slips_file(reference.root)).read_bytes()
    for method in ("GET", "HEAD"):
        found, headers, body = answer(folder, method, f"/{slips_file(reference.root)}", asked)
        assert found == status
        assert body == (slips[slice(*told)] if method == "GET" else b"")
        if status != 416:
            assert int(headers[b"content-length"]) == len(slips[slice(*told)])
    assert answer(folder, "POST", f"/{slips_file(reference.root)}", asked)[0] == 405


def answer(folder: Path, method: str, path: str, asked: bytes | None) -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if asked is None else [(b"range", asked)]
    scope = {"method": method, "path": path, "headers": headers}
    asyncio.run(object_server(RealDisk(folder))(scope, None, send))
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(one["body"] for one in sent[1:])


def test_urls_with_queries_are_no_places() -> None:
    with pytest.raises(Misuse, match="without a query"):
        web("http://127.0.0.1:1/x?y")
