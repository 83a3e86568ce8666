"""Request smuggling: a proxy in front and the node read one run of bytes in two ways.

The attacks here were also sent through nginx 1.22 and HAProxy 2.6 on loopback; the suite needs neither. What a proxy
and the node might take in two ways reaches no handler, whoever sends it.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

import h11
import pytest
from server_thread import ServerThread
from without import without

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Malformed
from tallystick.runtime.http1 import REFUSED_UNREAD, Answer, Words, answer_value
from tallystick.runtime.router import Gate, Request, Router
from tallystick.runtime.sources import ManualClock
from tallystick.trust.envelope import Envelope, sign_request

PATIENT_S = 20.0  # a bound on waiting for what must happen
NODE, KEY, PRINCIPAL = b"n" * 16, SigningKey.from_seed(b"p" * 32), b"p" * 16
TOKEN = "ab" * 16


class Handlers:
    """Write down how each request was read."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str, bytes]] = []
        self.clock = ManualClock()
        self.entered, self.go_on = threading.Event(), threading.Event()
        gate = Gate(NODE, SigningKey.from_seed(b"n" * 32), {PRINCIPAL: KEY.public}.get, self.clock)
        self.router = Router()
        self.router.add("GET", "/public", self.public)
        self.router.add("POST", "/public", self.whole)
        self.router.add("GET", "/slow", self.slow)
        self.router.add("POST", "/v1/topics/{token}/parcels", gate.signed(self.signed))

    async def public(self, request: Request) -> Answer:
        """Answer without a look at the body, as all public routes do."""
        self.seen.append((request.method, request.path, request.query, b""))
        return answer_value(len(self.seen))

    async def whole(self, request: Request) -> Answer:
        self.seen.append((request.method, request.path, request.query, await request.body()))
        return answer_value(len(self.seen))

    async def slow(self, request: Request) -> Answer:
        self.seen.append((request.method, request.path, request.query, b""))
        self.entered.set()
        await asyncio.to_thread(self.go_on.wait, PATIENT_S)
        return Answer()

    async def signed(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        self.seen.append((request.method, request.path, request.query, body))
        return Answer()


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Handlers, ServerThread]]:
    handlers = Handlers()
    with ServerThread(handlers.router) as server:
        yield handlers, server


@pytest.fixture
def handlers(running: tuple[Handlers, ServerThread]) -> Handlers:
    running[0].seen.clear()
    return running[0]


@pytest.fixture
def line(running: tuple[Handlers, ServerThread]) -> Iterator[socket.socket]:
    """A connection as a proxy holds one."""
    with socket.create_connection(("127.0.0.1", running[1].port), timeout=PATIENT_S) as line:
        yield line


def answer_of(line: socket.socket, data: bytes) -> bytes:
    """What comes back for one request, until the answer is whole or the node hangs up."""
    line.sendall(data)
    got = b""
    with suppress(ConnectionResetError):
        while part := line.recv(65536):
            got += part
            head, end, body = got.partition(b"\r\n\r\n")
            if end and b"content-length: %d\r\n" % len(body) in head + b"\r\n":
                break
    return got


def post(
    extra: bytes, body: bytes = b"", first: bytes = b"POST /public HTTP/1.1", host: bytes = b"Host: n\r\n"
) -> bytes:
    return first + b"\r\n" + host + extra + b"\r\n" + body


def get(target: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    return post(b"", first=b"GET " + target + b" " + version)


HIDDEN = b"GET /public HTTP/1.1\r\nHost: n\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
EMPTY = b"0\r\n\r\n"

AMBIGUOUS = {
    "two lengths": post(b"Content-Length: 3\r\nContent-Length: 0\r\n", b"abc"),
    "one length twice": post(b"Content-Length: 3\r\nContent-Length: 3\r\n", b"abc"),
    "a list of lengths": post(b"Content-Length: 3, 3\r\n", b"abc"),
    "a length with a sign": post(b"Content-Length: +3\r\n", b"abc"),
    "a negative length": post(b"Content-Length: -3\r\n", b"abc"),
    "a hexadecimal length": post(b"Content-Length: 0x3\r\n", b"abc"),
    "an octal length": post(b"Content-Length: 010\r\n", b"abcdefgh"),
    "an empty length": post(b"Content-Length:\r\n", HIDDEN),
    "a length beyond 64 bits": post(b"Content-Length: 18446744073709551619\r\n", b"abc"),
    "a length beyond 63 bits": post(b"Content-Length: 92233720368547758080\r\n", b"abc"),
    "two numbers": post(b"Content-Length: 3 3\r\n", b"abc"),
    "length and chunks": post(b"Content-Length: 5\r\n" + CHUNKED, EMPTY + HIDDEN),
    "chunks and length": post(CHUNKED + b"Content-Length: 5\r\n", EMPTY + HIDDEN),
    "chunks": post(CHUNKED, b"3\r\nabc\r\n" + EMPTY),
    "chunks where no body is read": post(CHUNKED, EMPTY, b"GET /public HTTP/1.1"),
    "chunks of version 1.0": post(CHUNKED, EMPTY, b"POST /public HTTP/1.0"),
    "a chunk's extension": post(CHUNKED, b"3;a=\nb\r\nabc\r\n" + EMPTY),
    "another coding": post(b"Transfer-Encoding: xchunked\r\nContent-Length: 3\r\n", b"abc"),
    "a coding after chunks": post(b"Transfer-Encoding: chunked, identity\r\n", EMPTY),
    "a space before the colon": post(b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n", EMPTY),
    "a tab in the coding": post(b"Transfer-Encoding: \x0bchunked\r\nContent-Length: 5\r\n", EMPTY),
    "a folded coding": post(b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n", EMPTY),
    "an underscore for a hyphen": post(b"Content_Length: 5\r\n"),
    "a folded header": post(b"X: a\r\n b\r\n"),
    "a folded first line": b"POST /public HTTP/1.1\r\n X: y\r\nHost: n\r\n\r\n",
    "line feeds alone": b"POST /public HTTP/1.1\nHost: n\nContent-Length: 3\n\nabc",
    "one line feed alone": post(b"X: a\nContent-Length: 3\r\n", b"abc"),
    "a line feed at the end": b"POST /public HTTP/1.1\r\nHost: n\r\nContent-Length: 3\r\n\nabc",
    "a carriage return alone": post(b"X: a\rContent-Length: 3\r\n", b"abc"),
    "two carriage returns": post(b"X: a\r\r\n"),
    "a zero in a value": post(b"X: a\0b\r\n"),
    "a zero in a name": post(b"X\0: a\r\n"),
    "a letter of eight bits in a name": post(b"Content-Length\xa0: 3\r\n"),
    "a header without a name": post(b": a\r\n"),
    "a header without a colon": post(b"X\r\n"),
    "a bracket in a name": post(b"X(a): b\r\n"),
    "no host": b"GET /public HTTP/1.1\r\n\r\n",
    "two hosts": post(b"Host: m\r\n"),
    "two hosts in one": post(b"", host=b"Host: n, m\r\n"),
    "a host with a user": post(b"", host=b"Host: m@n\r\n"),
    "a host with a path": post(b"", host=b"Host: n/public\r\n"),
    "an empty host": post(b"", host=b"Host:\r\n"),
    "another host in the target": get(b"http://m/public"),
    "this host in the target": get(b"http://n/public"),
    "a host and no path": get(b"http://m?x"),
    "a fragment": get(b"/public#x"),
    "a fragment in the query": get(b"/public?a=1#&a=2"),
    "an asterisk": get(b"*"),
    "a tunnel": post(b"", HIDDEN, b"CONNECT n:80 HTTP/1.1"),
    "backslashes": get(b"/a\\..\\public"),
    "a space in the target": get(b"/public /x"),
    "tabs in the first line": post(b"", first=b"GET\t/public\tHTTP/1.1"),
    "eight bits in the target": get(b"/public?\xe9"),
    "a quote in the query": get(b'/public?"'),
    "a small method": post(b"", first=b"get /public HTTP/1.1"),
    "version 0.9": b"GET /public\r\nHost: n\r\n\r\n",
    "version 0.9 by name": get(b"/public", b"HTTP/0.9"),
    "version 1.2": get(b"/public", b"HTTP/1.2"),
    "version 2.0": get(b"/public", b"HTTP/2.0"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "another protocol": get(b"/public", b"ICE/1.0"),
    "an expectation": post(b"Expect: 100-continue\r\nContent-Length: 3\r\n", b"abc"),
    "HTTP/2 by upgrade": post(b"Connection: Upgrade\r\nUpgrade: h2c\r\n", HIDDEN),
    "an upgrade with a body": post(b"Connection: Upgrade\r\nUpgrade: x\r\nContent-Length: 3\r\n", b"abc" + HIDDEN),
    "an encoded letter": get(b"/%70ublic"),
    "dots": get(b"/a/../public"),
    "encoded dots": get(b"/a/%2e%2e/public"),
    "an encoded slash": get(b"/%2fpublic"),
    "two slashes": get(b"//n/public"),
    "a slash at the end": get(b"/public/"),
    "a parameter of the path": get(b"/public;x"),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_may_be_read_in_two_ways_reaches_nobody(handlers: Handlers, line: socket.socket, name: str) -> None:
    answer = answer_of(line, AMBIGUOUS[name])
    assert handlers.seen == []
    assert answer == REFUSED_UNREAD  # and the connection is closed, so that what follows is read by nobody


def test_plain_requests_are_read(handlers: Handlers, line: socket.socket) -> None:
    """Also those of a proxy: it forwards versions 1.0 and 1.1, adds headers, and keeps the connection."""
    forwarded = b"X-Forwarded-For: 10.1.2.3\r\nVia: 1.1 proxy\r\n"
    assert answer_of(line, post(forwarded + b"Content-Length: 3\r\n", b"abc")).startswith(b"HTTP/1.1 200 ")
    assert answer_of(line, b"\r\n" + get(b"/public?a=%20")).startswith(b"HTTP/1.1 200 ")
    assert answer_of(line, b"GET /public HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert handlers.seen == [
        ("POST", "/public", "", b"abc"),
        ("GET", "/public", "a=%20", b""),
        ("GET", "/public", "", b""),
    ]


# --- with the defence removed ---

ONE_READING = "the one reading of a request"


def test_without_it_a_stranger_swallows_the_next_request(handlers: Handlers, line: socket.socket) -> None:
    """Who expects to be told to go on is answered at once. A proxy takes that for the end of the request, and sends
    the next client's on the same connection: the node takes it for the body."""
    victim = get(b"/public?victim")
    attack = post(b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(victim), first=b"GET /public?attack HTTP/1.1")
    with without(ONE_READING):
        assert answer_of(line, attack).startswith(b"HTTP/1.1 200 ")
        answer_of(line, victim + get(b"/public?another"))
    assert [query for *_, query, _ in handlers.seen] == ["attack", "another"]


def test_without_it_bodies_vanish_and_hosts_and_fragments_are_dropped(
    handlers: Handlers, running: tuple[Handlers, ServerThread]
) -> None:
    with without(ONE_READING):
        for name in ("an upgrade with a body", "another host in the target", "a fragment in the query"):
            with socket.create_connection(("127.0.0.1", running[1].port), timeout=PATIENT_S) as line:
                assert answer_of(line, AMBIGUOUS[name]).startswith(b"HTTP/1.1 200 ")
    assert handlers.seen == [
        ("POST", "/public", "", b""),  # of three bytes
        ("GET", "/public", "", b""),  # at host m
        ("GET", "/public", "a=1", b""),  # of a=1#&a=2
    ]


# --- one request at a time ---


@pytest.mark.parametrize("follows", [HIDDEN * 2000, b"nonsense\r\n\r\n"])
def test_nothing_follows_before_the_answer(handlers: Handlers, line: socket.socket, follows: bytes) -> None:
    """What is smuggled lies behind another request. Thousands of requests in one piece would each be kept, too."""
    handlers.entered.clear()
    handlers.go_on.clear()
    line.sendall(get(b"/slow"))
    assert handlers.entered.wait(PATIENT_S)
    assert answer_of(line, follows) == b""  # least of all an answer in the place of the first one's
    handlers.go_on.set()
    assert [path for _, path, *_ in handlers.seen] == ["/slow"]


def test_without_it_what_follows_is_carried_out(handlers: Handlers, line: socket.socket) -> None:
    with without("one request at a time"):
        handlers.go_on.set()
        line.sendall(get(b"/slow") + HIDDEN * 3 + get(b"/public?last"))
        while b"\x05" not in (got := line.recv(65536)):
            assert got
    assert len(handlers.seen) == 5


# --- a second reader ---


def reading(data: bytes) -> tuple[str, str, bytes] | None:
    """(method, target, body) as h11 reads one whole request, or nothing."""
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(data)
    body = b""
    try:
        request = reader.next_event()
        while (event := reader.next_event()) is not h11.NEED_DATA:
            match event:
                case h11.Data():
                    body += event.data
                case h11.EndOfMessage():
                    break
    except h11.RemoteProtocolError:
        return None
    if not isinstance(request, h11.Request):
        return None
    return request.method.decode(), request.target.decode(), body


ODD = [b"\r", b"\n", b"\r\n", b" ", b"\t", b"\0", b"\x0b", b":", b",", b"#", b"%", b"_", b"0", b"\xff", b"\r\n "]


def altered(draw: random.Random) -> bytes:
    data = post(b"Content-Length: 3\r\nX-Y: z\r\n", b"abc", first=b"POST /public?a=1 HTTP/1.1")
    for _ in range(draw.choice([1, 1, 2])):
        at = draw.randrange(len(data))
        data = data[:at] + draw.choice([b"", *ODD]) + data[at + draw.choice([0, 1]) :]
    return data


def test_what_two_readers_accept_they_read_alike(
    handlers: Handlers, running: tuple[Handlers, ServerThread], seed: int
) -> None:
    draw, accepted = random.Random(seed), 0
    for _ in range(300):
        data = altered(draw)
        handlers.seen.clear()
        with socket.create_connection(("127.0.0.1", running[1].port), timeout=PATIENT_S) as line:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                while line.recv(65536):
                    pass
        other = reading(data)
        if other is not None and handlers.seen:
            [(method, path, query, body)] = handlers.seen
            assert (method, f"{path}?{query}", body) == other, data
            accepted += 1
    assert accepted > 20


# --- what a proxy may rewrite ---


def signed(handlers: Handlers, body: bytes) -> Sequence[tuple[bytes, bytes]]:
    path, now = f"/v1/topics/{TOKEN}/parcels", handlers.clock.now()
    target = {"method": "POST", "authority": "n", "path": path, "query": "a=1"}
    return sign_request(KEY, PRINCIPAL, NODE, **target, body=body, now=now, nonce=b"1" * 16)


def test_what_is_rewritten_on_the_way_is_refused(handlers: Handlers, running: tuple[Handlers, ServerThread]) -> None:
    headers = b"".join(b"%b: %b\r\n" % one for one in [*signed(handlers, b"abc"), (b"content-length", b"3")])
    honest = post(headers, b"abc", b"POST /v1/topics/%b/parcels?a=1 HTTP/1.1" % TOKEN.encode())
    rewritings = [
        (b"POST /v1", b"PUT /v1"),
        (b"/parcels?", b"/locks?"),
        (b"?a=1", b"?a=2"),
        (b"?a=1", b""),
        (TOKEN.encode(), b"cd" * 16),
        (TOKEN.encode(), TOKEN.upper().encode()),
        (TOKEN.encode(), b"%61" + TOKEN[1:].encode()),
        (b"Host: n", b"Host: upstream"),
        (b"\r\n\r\nabc", b"\r\n\r\nabd"),
        (b"content-length: 3", b"content-length: 2"),
        (NODE.hex().encode(), b"ab" * 16),
        (b"signature:", b"signature: x\r\nsignature:"),
    ]
    for before, after in [*rewritings, (b"", b"")]:
        data = honest.replace(before, after, 1)
        with socket.create_connection(("127.0.0.1", running[1].port), timeout=PATIENT_S) as line:
            is_taken = answer_of(line, data).startswith(b"HTTP/1.1 200 ")
        assert is_taken == (data == honest), (before, after)
    assert len(handlers.seen) == 1


def test_a_query_has_each_word_once() -> None:
    for query in ("a=1&a=2", "a=1&%61=2", "a=1&a", "&".join(f"a{number}=1" for number in range(33))):
        with pytest.raises(Malformed, match="query"):
            Words(query)
