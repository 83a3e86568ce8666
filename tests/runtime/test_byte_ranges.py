"""`HttpClient.read_range` against web servers that answer with more, less, something else, elsewhere, or never."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from without import without

from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import ClientLimits
from tallystick.runtime.sources import SeededEntropy, SystemClock

FILE = bytes(range(256)) * 400


@contextmanager
def answering(answer: bytes, *, drips: bool = False) -> Iterator[tuple[HttpClient, list[bytes]]]:
    """A client of a server that gives everybody the same bytes, one after the other where it drips."""
    listening, heads, over = socket.create_server(("127.0.0.1", 0)), list[bytes](), threading.Event()

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, suppress(OSError):
                    heads.append(connection.recv(65536))
                    for at in range(0, len(answer), 1 if drips else len(answer)):
                        connection.sendall(answer[at : at + (1 if drips else len(answer))])
                        if drips and over.wait(0.02):
                            return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    limits = ClientLimits(attempts_max=1)
    try:
        with HttpClient([Address(url, bytes(16))], None, SystemClock(), SeededEntropy(1), limits=limits) as client:
            yield client, heads
    finally:
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def ranged(first: int, last: int, total: int, body: bytes, *, length: int | None = None, status: int = 206) -> bytes:
    length = len(body) if length is None else length
    told = f"content-range: bytes {first}-{last}/{total}\r\ncontent-length: {length}\r\n"
    return f"HTTP/1.1 {status} X\r\n{told}\r\n".encode() + body


def test_a_range_is_asked_for_and_read() -> None:
    with answering(ranged(100, 199, len(FILE), FILE[100:200])) as (client, heads):
        assert client.read_range("/x", 100, 100) == (FILE[100:200], len(FILE))
        assert b"\r\nrange: bytes=100-199\r\n" in heads[0]
        assert b"signature" not in heads[0]
    with answering(ranged(len(FILE) - 5, len(FILE) - 1, len(FILE), FILE[-5:])) as (client, _):
        assert client.read_range("/x", len(FILE) - 5, 100) == (FILE[-5:], len(FILE))
        for first, n in ((-1, 5), (0, 0)):
            with pytest.raises(Misuse):
                client.read_range("/x", first, n)


@pytest.mark.parametrize(
    "answer",
    [
        ranged(100, 199, len(FILE), FILE[100:200], status=200),
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwhole",
        b"HTTP/1.1 206 OK\r\ncontent-length: 5\r\n\r\nwhole",
        ranged(100, 198, len(FILE), FILE[100:199]),
        ranged(99, 198, len(FILE), FILE[99:199]),
        ranged(100, 200, len(FILE), FILE[100:201]),
        ranged(100, 199, len(FILE), FILE[100:199]),
        ranged(100, 199, 150, FILE[100:200]),
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 308 Moved\r\nlocation: /y\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 416 No\r\ncontent-length: 0\r\n\r\n",
    ],
)
def test_another_answer_than_the_range_is_refused(answer: bytes) -> None:
    with answering(answer) as (client, heads):
        with pytest.raises(Refused, match=r"127\.0\.0\.1"):
            client.read_range("/x", 100, 100)
        assert len(heads) == 1  # no redirect is followed


def test_no_more_is_read_than_was_asked_for() -> None:
    """Announced or not, in one piece or in chunks without end: what is longer ends the connection."""
    longer = ranged(0, 49_999, len(FILE), FILE[:50_000])
    endless = b"HTTP/1.1 206 X\r\ntransfer-encoding: chunked\r\n\r\n" + (b"1000\r\n" + bytes(4096) + b"\r\n") * 50
    for answer in (longer, endless, ranged(0, 99, len(FILE), FILE[:200], length=100)):
        with answering(answer) as (client, _), pytest.raises(Unavailable, match=r"body|bytes after|not HTTP"):
            client.read_range("/x", 0, 100)


def test_a_dripping_body_is_given_up() -> None:
    drip = answering(ranged(0, 99, 1000, FILE[:100]), drips=True)
    with drip as (client, _), pytest.raises(Unavailable, match=r"too long|timed out"):
        client.read_range("/x", 0, 100, timeout_s=0.3)


def test_without_the_exact_range_an_answer_from_elsewhere_is_taken() -> None:
    """What would be read is another part of the file; here only the hashes behind would find it."""
    with answering(ranged(300, 399, len(FILE), FILE[300:400])) as (client, _), without("the range of an answer"):
        assert client.read_range("/x", 100, 100)[0] == FILE[300:400]
