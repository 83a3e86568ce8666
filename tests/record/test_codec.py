"""Compression bounded by the declared size: neither a bomb nor a short answer passes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import Malformed, Misuse
from tallystick.record.codec import LZ4, NONE, PLANES, ZSTD, compress, decompress, xxh32

CODECS = [NONE, LZ4, ZSTD, PLANES]


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=300) | st.integers(0, 100_000).map(lambda n: b"tally" * n))
def test_round_trip(codec: int, data: bytes) -> None:
    assert bytes(decompress(compress(data, codec), codec, len(data))) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("wrong", [-1, 0, 1, 999, 1001, 2000])
def test_another_size_is_malformed(codec: int, wrong: int) -> None:
    with pytest.raises(Malformed, match="does not decompress"):
        decompress(compress(b"x" * 1000, codec), codec, wrong)


@pytest.mark.parametrize("codec", [LZ4, ZSTD, PLANES])
@pytest.mark.parametrize("data", [b"", b"garbage", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd"])
def test_garbage_is_malformed(codec: int, data: bytes) -> None:
    with pytest.raises(Malformed):
        decompress(data, codec, 10)


@pytest.mark.parametrize("codec", [LZ4, ZSTD, PLANES])
def test_truncated_data_is_malformed(codec: int) -> None:
    data = bytes(compress(bytes(range(256)) * 40, codec))
    for length in range(0, len(data), 7):
        with pytest.raises(Malformed):
            decompress(data[:length], codec, 256 * 40)


@pytest.mark.parametrize("codec", [LZ4, ZSTD, PLANES])
def test_a_bomb_allocates_little_more_than_declared(codec: int) -> None:
    bomb = bytes(compress(bytes(64 << 20), codec))
    before = pa.default_memory_pool()
    fresh = pa.proxy_memory_pool(before)
    pa.set_memory_pool(fresh)
    try:
        with pytest.raises(Malformed):
            decompress(bomb, codec, 1000)
    finally:
        pa.set_memory_pool(before)
    assert fresh.max_memory() < 2 << 20  # the stream decoder works in chunks of up to 1 MiB


def test_why_lz4_frames_state_their_size_or_are_read_as_a_stream() -> None:
    """Arrow's one-shot call succeeds on short data; whatever lay in memory would pass for the rest."""
    short = pa.Codec("lz4").compress(b"x" * 10)
    assert pa.Codec("lz4").decompress(short, 1000).size == 1000
    with pytest.raises(Malformed):
        decompress(short, LZ4, 1000)


def stating(frame: bytes, size: int) -> bytes:
    """The frame with another content size in its header."""
    stated = frame[4:6] + size.to_bytes(8, "little")
    return frame[:4] + stated + bytes((xxh32(stated) >> 8 & 0xFF,)) + frame[15:]


@pytest.mark.parametrize("size", [1, 999, 1001, 70_000])
def test_a_frame_that_lies_about_its_size_is_malformed(size: int) -> None:
    """The lz4 library holds a frame to what its header states, so its one-shot call is exact then."""
    frame = bytes(compress(b"x" * 1000, LZ4))
    assert bytes(decompress(stating(frame, 1000), LZ4, 1000)) == b"x" * 1000
    with pytest.raises(Malformed):
        decompress(stating(frame, size), LZ4, size)


def test_frames_are_lz4s_own() -> None:
    """Any lz4 reader takes ours, and we take frames that state no size."""
    data = bytes(range(256)) * 1000
    with pa.CompressedInputStream(pa.BufferReader(bytes(compress(data, LZ4))), "lz4") as stream:
        assert stream.read() == data
    assert bytes(decompress(pa.Codec("lz4").compress(data), LZ4, len(data))) == data


def test_xxh32() -> None:
    assert [xxh32(data) for data in (b"", b"abc")] == [0x02CC5D05, 0x32D153FF]


def test_unknown_codecs() -> None:
    with pytest.raises(Misuse, match="codec 4"):
        compress(b"", 4)
    with pytest.raises(Malformed, match="codec 4"):
        decompress(b"", 4, 0)
