"""Client and server together, on loopback sockets."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from server_thread import ServerThread

from tallystick import wire
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.runtime.address import Address, client_tls, server_tls
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import ClientLimits, RequestSigner
from tallystick.runtime.http1 import Answer, answer_value
from tallystick.runtime.router import Gate, Request, Router
from tallystick.runtime.server import Server, ServerLimits
from tallystick.runtime.sources import ManualClock, SeededEntropy
from tallystick.trust.envelope import Envelope, sign_request

NODE, NODE_KEY = b"n" * 16, SigningKey.from_seed(b"n" * 32)
PRINCIPAL, KEY = b"p" * 16, SigningKey.from_seed(b"p" * 32)
IDENTITY = RequestSigner(PRINCIPAL, KEY)
BODY_MAX = 100_000
PATIENT_S = 20.0  # a bound on waiting for what must happen, not a time to sleep


def resolve(principal: bytes) -> VerifyKey | None:
    return KEY.public if principal == PRINCIPAL else None


class Node:
    """A small service: it echoes, refuses, is busy a number of times, and counts."""

    def __init__(self, node: bytes = NODE) -> None:
        self.clock = ManualClock()
        self.busy = 0
        self.seen: list[Envelope] = []
        self.charged: list[int] = []
        self.slow_s = 0.0
        gate = Gate(node, NODE_KEY, resolve, self.clock)
        self.router = Router(body_bytes_max=BODY_MAX, charge=self.charge)
        self.router.add("POST", "/echo", gate.signed(self.echo))
        self.router.add("GET", "/topics/{token}/{partition}", gate.signed(self.topic))
        self.router.add("POST", "/refuse", gate.signed(self.refuse))
        self.router.add("POST", "/busy", gate.signed(self.be_busy))
        self.router.add("POST", "/broken", gate.signed(self.broken))
        self.router.add("GET", "/health/live", self.health)

    def charge(self, client: tuple[str, int], announced: int) -> float:
        self.charged.append(announced)
        return self.slow_s

    async def echo(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        self.seen.append(envelope)
        return Answer(body=body, content_type="application/octet-stream")

    async def topic(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        return answer_value([request.parameters["token"], request.parameters["partition"], request.query])

    async def refuse(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        raise Refused('topic "brakes": epoch 12 was revoked', reason="revoked", hint="fetch a new permit")

    async def be_busy(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        if self.busy > 0:
            self.busy -= 1
            raise Unavailable("the disk is behind", retry_after_s=0.25)
        return Answer()

    async def broken(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        raise ZeroDivisionError

    async def health(self, request: Request) -> Answer:
        return Answer(body=b"ok", content_type="text/plain")


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Node, ServerThread]]:
    node = Node()
    with ServerThread(node.router) as server:
        yield node, server


@pytest.fixture
def node(running: tuple[Node, ServerThread]) -> Node:
    running[0].busy = 0
    running[0].slow_s = 0.0
    return running[0]


@pytest.fixture
def server(running: tuple[Node, ServerThread]) -> ServerThread:
    return running[1]


def client(url: str, identity: RequestSigner | None = IDENTITY, **options: Any) -> HttpClient:
    clock = options.pop("clock", ManualClock())
    return HttpClient([Address(url, NODE, NODE_KEY.public)], identity, clock, SeededEntropy(1), **options)


def test_requests_go_round_on_one_connection(node: Node, server: ServerThread) -> None:
    with client(server.url) as http:
        for size in (0, 1, 70_000, BODY_MAX):
            assert http.request("POST", "/echo", body=b"x" * size).body == b"x" * size
        answer = http.request("GET", "/topics/ab12/3", "after=7&max=2")
        assert wire.decode(answer.body) == ["ab12", "3", "after=7&max=2"]
        assert len({envelope.nonce for envelope in node.seen}) == len(node.seen)


def test_threads_share_a_client(server: ServerThread) -> None:
    answers: list[bytes] = []
    with client(server.url) as http:
        threads = [
            threading.Thread(target=lambda n=n: answers.append(http.request("POST", "/echo", body=b"%d" % n).body))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(answers) == [b"%d" % n for n in range(8)]


def test_a_refusal_keeps_its_reason_and_hint(node: Node, server: ServerThread) -> None:
    with client(server.url) as http, pytest.raises(Refused, match="epoch 12 was revoked") as caught:
        http.request("POST", "/refuse")
    assert (caught.value.reason, caught.value.hint) == ("revoked", "fetch a new permit")


def test_a_named_delay_is_waited_out(node: Node, server: ServerThread) -> None:
    clock = ManualClock()
    node.busy = 2
    with client(server.url, clock=clock) as http:
        http.request("POST", "/busy")
        assert clock.monotonic() == 0.5
        node.busy = 1
        with pytest.raises(Unavailable) as caught:
            http.request("POST", "/busy", attempts_max=1)
    assert caught.value.retry_after_s == 0.25


def test_a_time_for_all_that_is_asked(node: Node, server: ServerThread) -> None:
    clock = ManualClock()
    node.busy = 1_000
    with client(server.url, clock=clock) as http:
        with http.within(1.0):
            with pytest.raises(Unavailable):
                http.request("POST", "/busy", attempts_max=1_000)
            assert clock.monotonic() <= 1.0
            clock.advance(1.0)
            with pytest.raises(Unavailable, match="no time was left to ask"):
                http.request("POST", "/echo")
        assert http.request("POST", "/echo", body=b"abc").body == b"abc"


def test_the_rate_of_a_connection_is_charged_before_anything_else(node: Node, server: ServerThread) -> None:
    node.slow_s = 0.125
    with client(server.url, identity=None) as http, pytest.raises(Unavailable) as caught:
        http.request("POST", "/echo", body=b"abc", attempts_max=1)
    assert caught.value.retry_after_s == 0.125
    assert node.charged[-1] == 3


def test_a_clock_that_is_off_follows_the_node(node: Node, server: ServerThread) -> None:
    for off_s in (-7200.0, 7200.0):
        with client(server.url, clock=ManualClock(node.clock.now() + off_s)) as http:
            http.request("POST", "/echo", body=b"late")
        with (
            pytest.raises(Refused) as caught,
            client(
                server.url, clock=ManualClock(node.clock.now() + off_s), limits=ClientLimits(offset_max_s=3600)
            ) as http,
        ):
            http.request("POST", "/echo", body=b"late")
        assert caught.value.reason == ("stale" if off_s < 0 else "future")


def test_large_bodies_are_refused_before_they_are_taken(node: Node, server: ServerThread) -> None:
    with client(server.url) as http:
        with pytest.raises(Refused) as caught:
            http.request("POST", "/echo", body=bytes(BODY_MAX + 1))
        assert caught.value.reason == "too-large"
        assert http.request("POST", "/echo", body=b"fine").body == b"fine"


def test_large_answers_are_refused(server: ServerThread) -> None:
    with client(server.url, limits=ClientLimits(response_bytes_max=10, attempts_max=1)) as http:
        assert http.request("POST", "/echo", body=b"0123456789").body == b"0123456789"
        with pytest.raises(Unavailable, match="at most 10"):
            http.request("POST", "/echo", body=b"0123456789a")


# What strangers see.


def raw_request(port: int, data: bytes) -> bytes:
    """All that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENT_S) as connection:
        connection.sendall(data)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


def request_bytes(path: str, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> bytes:
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"POST %b HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n%b\r\n%b" % (path.encode(), len(body), lines, body)


def signed(node: Node, **changes: Any) -> list[tuple[bytes, bytes]]:
    fields: dict[str, Any] = {
        "method": "POST",
        "authority": "h",
        "path": "/echo",
        "query": "",
        "body": b"",
        "now": node.clock.now(),
        "nonce": b"1" * 16,
    }
    key, principal, to = changes.pop("key", KEY), changes.pop("principal", PRINCIPAL), changes.pop("to", NODE)
    return list(sign_request(key, principal, to, **(fields | changes)))


def test_every_refusal_of_a_stranger_looks_the_same(node: Node, server: ServerThread) -> None:
    stranger = SigningKey.from_seed(b"s" * 32)
    good = signed(node)
    attacks = [
        request_bytes("/echo", []),
        request_bytes("/no/such/path", []),
        request_bytes("/no/such/path", good),
        request_bytes("/echo", signed(node, key=stranger)),
        request_bytes("/echo", signed(node, principal=b"q" * 16)),
        request_bytes("/echo", signed(node, to=b"m" * 16)),
        request_bytes("/echo", signed(node, key=stranger, now=node.clock.now() - 10_000)),
        request_bytes("/refuse", good),
        request_bytes("/echo?x=1", good),
        request_bytes("/echo", good, b"another body"),
        request_bytes("/echo", [*good, (b"tally-node", NODE.hex().encode())]),
        request_bytes("/echo", [*good, (b"host", b"other")]),
        request_bytes("/echo", [*good[:3], (b"signature", b"tally=:AA==:")]),
        request_bytes("/echo", [], bytes(BODY_MAX + 1)),
        request_bytes("/echo", good).replace(b"content-length: 0", b"transfer-encoding: chunked") + b"0\r\n\r\n",
    ]
    answers = {raw_request(server.port, attack) for attack in attacks}
    assert len(answers) == 1
    head, _, body = answers.pop().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 ")
    assert body == b""
    close = [*good, (b"connection", b"close")]
    assert raw_request(server.port, request_bytes("/echo", close)).startswith(b"HTTP/1.1 200 ")


def test_a_fault_of_the_node_is_told_to_the_authenticated_alone(node: Node, server: ServerThread) -> None:
    with client(server.url) as http, pytest.raises(Unavailable, match="its log says why"):
        http.request("POST", "/broken", attempts_max=1)


def test_an_unsigned_client_reads_what_is_public(server: ServerThread) -> None:
    with client(server.url, identity=None) as http:
        assert http.request("GET", "/health/live").body == b"ok"
        with pytest.raises(Refused) as caught:
            http.request("POST", "/echo")
    assert caught.value.reason == "unauthenticated"


# Peers that take up room.


HASTY = ServerLimits(head_bytes_max=2000, connections_max=3, request_s=0.3, unread_s=0.3, keep_alive_s=1, stop_s=1)


@pytest.fixture(scope="module")
def hasty() -> Iterator[ServerThread]:
    async def large(request: Request) -> Answer:
        return Answer(body=bytes(50_000_000))

    router = Node().router
    router.add("GET", "/large", large)
    with ServerThread(router, limits=HASTY) as server:
        yield server


def sends_until_broken(connection: socket.socket, piece: bytes) -> int:
    """How many bytes go out before the server ends the connection."""
    sent = 0
    with suppress(ConnectionError):
        while sent < 10_000_000:
            connection.sendall(piece)
            sent += len(piece)
    return sent


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"POST /echo HT",
        b"POST /echo HTTP/1.1\r\nhost: h\r\nx-slow: ",
        b"POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 10\r\n\r\nonly",
    ],
)
def test_a_request_that_does_not_end_is_ended(hasty: ServerThread, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=PATIENT_S) as connection:
        connection.sendall(data)
        with suppress(ConnectionResetError):
            assert connection.recv(100) == b""


@pytest.mark.parametrize("start", [b"GET /health/live HTTP/1.1\r\n", b"GET /", b"GET / HTTP/1.1\r\nx: "])
def test_endless_heads_are_ended(hasty: ServerThread, start: bytes) -> None:
    piece = b"x: y\r\n" * 100 if start.endswith(b"1.1\r\n") else b"a" * 600
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=PATIENT_S) as connection:
        connection.sendall(start)
        assert sends_until_broken(connection, piece) < 10_000_000


def test_connections_beyond_the_limit_are_dropped(hasty: ServerThread) -> None:
    held = [socket.create_connection(("127.0.0.1", hasty.port), timeout=PATIENT_S) for _ in range(10)]
    try:
        ended = 0
        for connection in reversed(held):  # the surplus at once, the rest when their time is over
            try:
                ended += connection.recv(1) == b""
            except ConnectionResetError:
                ended += 1
        assert ended == 10
    finally:
        for connection in held:
            connection.close()
    with client(hasty.url, identity=None) as http:
        assert http.request("GET", "/health/live").body == b"ok"


def test_an_answer_that_nobody_reads_is_given_up(hasty: ServerThread) -> None:
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=PATIENT_S) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nhost: h\r\n\r\n")
        assert sends_until_broken(connection, b"\r\n") < 10_000_000  # empty lines ask for nothing more


# Failing over.


def test_another_address_takes_over_and_a_restarted_node_is_met_again() -> None:
    first, second = Node(), Node()
    with ServerThread(second.router) as standing:
        with ServerThread(first.router) as falling:
            addresses = [Address(falling.url, NODE), Address(standing.url, NODE)]
            http = HttpClient(addresses, IDENTITY, ManualClock(), SeededEntropy(3))
            http.request("POST", "/echo", body=b"1")
        http.request("POST", "/echo", body=b"2")
        http.request("POST", "/echo", body=b"3")
    assert (len(first.seen), len(second.seen)) == (1, 2)
    with pytest.raises(Unavailable):
        http.request("POST", "/echo", body=b"4")
    with ServerThread(first.router, port=falling.port):
        http.request("POST", "/echo", body=b"5")
    assert len(first.seen) == 2
    http.close()


def test_a_kept_connection_that_died_costs_no_attempt() -> None:
    node = Node()
    with ServerThread(node.router) as server:
        http = client(server.url)
        http.request("POST", "/echo")
    with ServerThread(node.router, port=server.port):
        http.request("POST", "/echo", attempts_max=1)
    http.close()
    assert len(node.seen) == 2


def test_a_server_runs_on_a_loop_that_is_there() -> None:
    async def story() -> bytes:
        server = Server(Node().router)
        serving = asyncio.create_task(server.serve())
        with client(server.url) as http:
            answer = await asyncio.to_thread(http.request, "POST", "/echo", body=b"round")
        server.stop()
        await serving
        return answer.body

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(story()) == b"round"


def test_a_port_in_use_is_named(server: ServerThread) -> None:
    with pytest.raises(Unavailable, match=f"port {server.port}"):
        Server(Node().router, port=server.port)


# TLS.


def certificate(folder: Path) -> tuple[str, str, str]:
    """A CA of our own and a certificate for 127.0.0.1: the CA's PEM, and the files of certificate and key."""
    now = datetime.datetime.now(datetime.UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("test ca", "node")]

    def issue(of: int, *extensions: x509.ExtensionType) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[of])
            .issuer_name(names[0])
            .public_key(keys[of].public_key())
            .serial_number(of + 1)
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(keys[of].public_key()), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(keys[0], hashes.SHA256())

    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = issue(0, x509.BasicConstraints(ca=True, path_length=None), usage)
    leaf = issue(1, x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]))
    pem = serialization.Encoding.PEM
    (folder / "node.pem").write_bytes(leaf.public_bytes(pem))
    (folder / "node.key").write_bytes(
        keys[1].private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return ca.public_bytes(pem).decode(), str(folder / "node.pem"), str(folder / "node.key")


def test_tls_carries_requests_and_refuses_strangers_certificates(tmp_path: Path) -> None:
    ca, certificate_file, key_file = certificate(tmp_path)
    tls = server_tls(certificate_file, key_file)
    with ServerThread(Node().router, tls=tls) as server:
        assert server.url.startswith("https://")
        with client(server.url, tls=client_tls(ca)) as http:
            for size in (1, 90_000):
                assert http.request("POST", "/echo", body=bytes(size)).body == bytes(size)
        with client(server.url) as http, pytest.raises(Refused) as caught:  # the system's CAs do not know ours
            http.request("POST", "/echo")
        assert caught.value.reason == "tls"

        old = ssl.create_default_context(cadata=ca)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENT_S)
        with connection, pytest.raises(ssl.SSLError):
            old.wrap_socket(connection, server_hostname="127.0.0.1")


def test_a_server_that_offers_less_than_tls_13_is_refused(tmp_path: Path) -> None:
    ca, certificate_file, key_file = certificate(tmp_path)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.load_cert_chain(certificate_file, key_file)
    with pytest.raises(Misuse, match=r"TLS 1\.3"):
        Server(Node().router, tls=old)
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, pytest.raises(ssl.SSLError):
            old.wrap_socket(connection, server_side=True)

    thread = threading.Thread(target=answer)
    thread.start()
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    with client(url, tls=client_tls(ca)) as http, pytest.raises(Refused) as caught:
        http.request("POST", "/echo")
    thread.join()
    listener.close()
    assert caught.value.reason == "tls"
    with pytest.raises(Misuse, match=r"TLS 1\.3"):
        client(url, tls=ssl.create_default_context(cadata=ca))


def test_plain_http_off_loopback_must_be_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="off loopback"):
        Server(Node().router, host="0.0.0.0")
    with pytest.raises(Misuse, match="off loopback"):
        client("http://192.0.2.1:80")
    Server(Node().router, host="0.0.0.0", insecure=True).close()
    client("http://192.0.2.1:80", insecure=True).close()
    with pytest.raises(Misuse, match="cannot be used"):
        server_tls(str(tmp_path / "none.pem"), str(tmp_path / "none.key"))


def test_who_still_waits_when_the_server_has_stopped_is_cut_off() -> None:
    """An open connection would be read from when the loop is closed already."""
    begun = threading.Event()

    async def endless(request: Request) -> Answer:
        begun.set()
        await asyncio.sleep(3600)
        raise AssertionError("nobody waits so long")

    router = Node().router
    router.add("GET", "/endless", endless)
    with ServerThread(router, limits=replace(HASTY, stop_s=0)) as server:
        connection = socket.create_connection(("127.0.0.1", server.port), 60)
        connection.sendall(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
        assert begun.wait(60)
    with connection, suppress(ConnectionError):
        assert connection.recv(1) == b""
