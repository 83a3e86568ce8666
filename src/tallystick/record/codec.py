"""Compression of a batch's message, bounded by the size that the header declares.

A decompressor is told how many bytes must come out; anything shorter or longer is `Malformed`, and no more
than that and a working chunk (1 MiB) is allocated; whoever calls holds the declared size to a limit first.
Arrow's one-shot lz4 decompressor reports success when less comes out and leaves the rest of its buffer
uninitialised, so lz4 is read as a stream, which knows where it ends; zstd's is exact by itself.

Measured on 4,096 records of 11 columns (75 bytes each): lz4 frames at level -10 compress in 95 ns a record to
52 bytes, at the default level or as raw blocks in 130 to 48; zstd level 1 in 233 to 37. The stream costs a
quarter more than the one-shot call to open, checking raw blocks by opening them twice would cost double.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tallystick.errors import Malformed, Misuse

NONE, LZ4, ZSTD = 0, 1, 2
NAMES = {"none": NONE, "lz4": LZ4, "zstd": ZSTD}

_lz4 = pa.Codec("lz4", -10)
_zstd = pa.Codec("zstd", 1)


def compress(message: Any, codec: int) -> Any:
    """`message` (a buffer) compressed: a `pa.Buffer`."""
    buffer = _buffer(message)
    if codec == NONE:
        return buffer
    if codec == LZ4:
        return _lz4.compress(buffer)
    if codec == ZSTD:
        return _zstd.compress(buffer)
    raise Misuse(f"codec {codec!r} is not one of 0 (none), 1 (lz4), 2 (zstd)")


def decompress(data: Any, codec: int, raw_size: int) -> Any:
    """The `raw_size` bytes that `data` (a buffer) holds, as a `pa.Buffer`; raises `Malformed` for any other
    number.
    """
    buffer = _buffer(data)
    try:
        if codec == NONE:
            raw = buffer
        elif codec == LZ4:
            raw = _decompress_lz4(buffer, raw_size)
        elif codec == ZSTD:
            raw = _zstd.decompress(buffer, raw_size)
        else:
            raise Malformed(f"codec {codec!r} is not one of 0 (none), 1 (lz4), 2 (zstd)")
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise Malformed(f"batch: does not decompress to {raw_size} bytes") from error
    if raw.size != raw_size:
        raise Malformed(f"batch: does not decompress to {raw_size} bytes")
    return raw


def _decompress_lz4(buffer: Any, raw_size: int) -> Any:
    with pa.CompressedInputStream(pa.BufferReader(buffer), "lz4") as stream:
        return stream.read_buffer(raw_size + 1)


def _buffer(data: Any) -> Any:
    return data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
