"""A folder of objects over HTTP: GET and HEAD of the files of each, whole or one byte range (RFC 9110, 14).

Any web server does the same; this one needs nothing besides, and serves no other file of the folder. It knows no key
and asks nobody who they are: what it sends is sealed, and proves itself. Threat: who asks for much and reads slowly.
The server around it (`runtime/server`) bounds connections and time; in memory is one piece of each answer. A piece is
read in the loop itself: a thread for each costs more than reading it from a warm disk, and everybody waits for a cold
one anyway.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, MutableMapping
from contextlib import closing
from typing import Any

from tallystick.runtime.disk import Disk, File

_PATH = re.compile(r"/([0-9a-f]{64}\.(?:slips|chunks|seed))")
_RANGE = re.compile(rb"bytes=([0-9]{1,18})-([0-9]{0,18})|bytes=-([0-9]{1,18})")
_PIECE_BYTES = 96 * 1024  # more would be mapped and unmapped by the allocator, each time

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


def object_server(disk: Disk) -> Callable[..., Coroutine[Any, Any, None]]:
    """The application (ASGI)."""

    async def application(scope: Message, _receive: object, send: Send) -> None:
        path = _PATH.fullmatch(scope["path"])
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, {"allow": "GET, HEAD"})
            return
        try:
            file = disk.open(path[1]) if path else None
        except OSError:
            file = None
        if file is None:
            await _answer(send, 404, {})
            return
        with closing(file):
            wanted = dict(scope["headers"]).get(b"range")
            cached = not scope["path"].endswith(".seed")  # the names of the others are hashes: they never change
            await _serve(send, file, wanted, cached=cached, with_body=scope["method"] == "GET")

    return application


async def _serve(send: Send, file: File, wanted: bytes | None, *, cached: bool, with_body: bool) -> None:
    size = file.size()
    first, end = (0, size) if wanted is None else _range(wanted, size)
    if first >= end and wanted is not None:
        await _answer(send, 416, {"content-range": f"bytes */{size}"})
        return
    headers = {
        "content-type": "application/octet-stream",
        "content-length": str(end - first),
        "accept-ranges": "bytes",
        "cache-control": "public, max-age=31536000, immutable" if cached else "no-store",
    }
    if wanted is not None:
        headers["content-range"] = f"bytes {first}-{end - 1}/{size}"
    await _answer(send, 200 if wanted is None else 206, headers, _pieces(file, first, end) if with_body else ())


def _pieces(file: File, first: int, end: int) -> Iterator[bytes]:
    while first < end:
        piece = file.pread(first, min(_PIECE_BYTES, end - first))
        if not piece:
            raise OSError("the file became shorter while it was served")  # the server ends the connection
        first += len(piece)
        yield piece


def _range(wanted: bytes, size: int) -> tuple[int, int]:
    """One range, as `(first, end)`; an empty one where it lies behind the file, or is none that we know."""
    found = _RANGE.fullmatch(wanted)
    if found is None:
        return 0, 0
    if found[3] is not None:
        return max(0, size - int(found[3])), size
    return int(found[1]), min(size, int(found[2]) + 1 if found[2] else size)


async def _answer(send: Send, status: int, headers: dict[str, str], pieces: Iterable[bytes] = ()) -> None:
    told = {"content-length": "0", **headers}
    encoded = [(name.encode(), value.encode()) for name, value in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
