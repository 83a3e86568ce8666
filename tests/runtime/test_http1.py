from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import Misuse, Unavailable
from tallystick.runtime.http1 import HEAD_BYTES_MAX, ResponseReader, encode_head

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Kind: a\r\n\r\nhello"


def read(data: bytes, step: int = 1 << 20, body_bytes_max: int = 100) -> ResponseReader:
    reader = ResponseReader(body_bytes_max)
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
    return reader


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_an_answer_is_read_however_it_arrives(step: int) -> None:
    reader = read(GOOD, step)
    assert reader.response is not None
    assert (reader.response.status, reader.response.body) == (200, b"hello")
    assert reader.response.headers == {"content-length": "5", "x-kind": "a"}
    assert reader.keep_alive


def test_chunks_are_joined_and_a_closing_answer_is_not_kept() -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    reader = read(data, 3)
    assert reader.response is not None
    assert reader.response.body == b"hello"
    assert not reader.keep_alive


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nrest",
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + b"x" * 101,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES_MAX,
        GOOD + GOOD,
        GOOD + b"rest",
    ],
)
def test_what_is_not_one_bounded_answer_is_unavailable(data: bytes) -> None:
    for step in (64, 1 << 20):
        with pytest.raises(Unavailable):
            read(data, step)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_our_errors_only(data: bytes) -> None:
    with contextlib.suppress(Unavailable):
        read(b"HTTP/1.1 " + data)


def test_a_head_is_exact_and_nothing_breaks_its_lines() -> None:
    head = encode_head("GET", "/a?b", "host:1", [(b"x", b"y")], 3)
    assert head == b"GET /a?b HTTP/1.1\r\nhost: host:1\r\ncontent-length: 3\r\nx: y\r\n\r\n"
    for method, target, authority, header in [
        ("GET\r\n", "/", "h", (b"x", b"y")),
        ("GET", "/ HTTP/1.1\r\nevil: 1\r\n", "h", (b"x", b"y")),
        ("GET", "/", "h\r", (b"x", b"y")),
        ("GET", "/", "h", (b"x", b"y\nevil: 1")),
        ("GET", "/", "h", (b"x\r", b"y")),
    ]:
        with pytest.raises(Misuse):
            encode_head(method, target, authority, [header], 0)
