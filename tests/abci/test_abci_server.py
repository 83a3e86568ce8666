"""The socket server as a node sees it: order, flushes, four connections that do not wait for one another, errors."""

from __future__ import annotations

import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.abci import messages as m
from tallystick.abci.application import Application
from tallystick.abci.protobuf import Message, read_varint, write_varint
from tallystick.abci.server import FAULT, Limits, Server, write_frame
from tallystick.errors import Misuse, Unavailable

ANSWERS: dict[int, type[Message]] = {
    1: m.ResponseException,
    2: m.ResponseEcho,
    3: m.ResponseFlush,
    7: m.ResponseQuery,
    9: m.ResponseCheckTx,
    12: m.ResponseCommit,
    17: m.ResponsePrepareProposal,
}
NUMBERS = {kind: number for number, (_, kind, _) in m.METHODS.items()}


class Probe(Application):
    """Counts, and waits or fails where it is told to."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked = threading.Event()
        self.commits = 0

    def query(self, request: m.RequestQuery) -> m.ResponseQuery:
        if request.path == "/slow":
            self.asked.set()
            assert self.release.wait(30)
        if request.path == "/fails":
            raise RuntimeError("a secret detail")
        return m.ResponseQuery(value=request.data)

    def check_tx(self, request: m.RequestCheckTx) -> m.ResponseCheckTx:
        raise RuntimeError("a secret detail")

    def commit(self, request: m.RequestCommit) -> m.ResponseCommit:
        self.commits += 1
        return m.ResponseCommit(retain_height=self.commits)

    def prepare_proposal(self, request: m.RequestPrepareProposal) -> m.ResponsePrepareProposal:
        raise RuntimeError("a secret detail")


class Client:
    """One connection of a node."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(server.address.removeprefix("unix://"))
        self.socket.settimeout(30)
        self.stream = self.socket.makefile("rb")

    def send(self, *requests: Message) -> None:
        self.socket.sendall(b"".join(write_frame(NUMBERS[type(one)], one.encode()) for one in requests))

    def read(self) -> Message:
        size, shift = 0, 0
        while (byte := self.stream.read(1)[0]) >= 0x80:
            size |= (byte & 0x7F) << shift
            shift += 7
        frame = self.stream.read(size | byte << shift)
        tag, position = read_varint(memoryview(frame), 0)
        length, position = read_varint(memoryview(frame), position)
        assert len(frame) == position + length
        return ANSWERS[tag >> 3].decode(frame[position:])

    def ask(self, request: Message) -> Message:
        self.send(request, m.RequestFlush())
        answer = self.read()
        if not isinstance(answer, m.ResponseException):
            assert self.read() == m.ResponseFlush()
        return answer

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def server(probe: Probe) -> Iterator[Server]:
    server = Server(probe)
    server.start()
    yield server
    probe.release.set()
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    client = Client(server)
    yield client
    client.close()


def test_answers_come_in_the_order_of_the_questions(server: Server, client: Client) -> None:
    client.send(*(m.RequestEcho(str(number)) for number in range(1000)), m.RequestFlush())
    assert [client.read() for _ in range(1000)] == [m.ResponseEcho(str(number)) for number in range(1000)]
    assert client.read() == m.ResponseFlush()
    assert server.statistics().requests == {"echo": 1000, "flush": 1}


def test_a_slow_query_does_not_stall_a_commit(server: Server, probe: Probe, client: Client) -> None:
    client.send(m.RequestQuery(path="/slow"), m.RequestFlush())
    assert probe.asked.wait(30)
    consensus = Client(server)
    for height in range(1, 50):
        assert consensus.ask(m.RequestCommit()) == m.ResponseCommit(height)
    probe.release.set()
    assert client.read() == m.ResponseQuery()
    consensus.close()


def test_a_failed_query_or_check_is_an_answer_without_detail(client: Client, server: Server) -> None:
    assert client.ask(m.RequestQuery(path="/fails")) == m.ResponseQuery(code=FAULT, log="the application failed")
    assert client.ask(m.RequestCheckTx(b"x")) == m.ResponseCheckTx(code=FAULT, log="the application failed")
    assert client.ask(m.RequestQuery(data=b"on")) == m.ResponseQuery(value=b"on"), "the connection goes on"
    assert server.statistics().faults == 2


def test_a_failure_anywhere_else_stops_the_node(client: Client) -> None:
    answer = client.ask(m.RequestPrepareProposal())
    assert answer == m.ResponseException("application failed in prepare_proposal")
    assert client.stream.read() == b"", "closed"


@pytest.mark.parametrize("junk", [b"\x00", b"\xff" * 12, write_varint(1 << 40), write_frame(99, b""), b"\x05\x08\x01"])
def test_junk_closes_its_own_connection_only(server: Server, client: Client, junk: bytes) -> None:
    stranger = Client(server)
    stranger.socket.sendall(junk)
    stranger.socket.shutdown(socket.SHUT_WR)
    assert stranger.stream.read() == b""
    stranger.close()
    assert client.ask(m.RequestEcho("here")) == m.ResponseEcho("here")


def test_a_node_that_does_not_read_is_not_read_from(probe: Probe) -> None:
    """Back-pressure: answers are not gathered without end, the sender waits."""
    server = Server(probe, limits=Limits(write_bytes=1 << 16))
    server.start()
    client = Client(server)
    client.socket.setblocking(False)
    frame = write_frame(6, m.RequestQuery(data=bytes(1 << 16)).encode())
    sent = waits = 0
    while waits < 20 and sent < 1 << 27:
        try:
            sent += client.socket.send(frame)
            waits = 0
        except BlockingIOError:
            waits += 1
            time.sleep(0.01)
    assert waits == 20
    assert sent < 1 << 25
    client.close()
    server.stop()


def test_connections_are_bounded(probe: Probe) -> None:
    server = Server(probe, limits=Limits(connections_max=2))
    server.start()
    clients = [Client(server) for _ in range(2)]
    for one in clients:
        one.ask(m.RequestEcho("in"))
    refused = Client(server)
    assert refused.stream.read() == b""
    for one in (*clients, refused):
        one.close()
    server.stop()


def test_only_the_owner_reaches_the_socket(server: Server) -> None:
    path = Path(server.address.removeprefix("unix://"))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_network_is_no_place_to_listen(probe: Probe, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="loopback"):
        Server(probe, "tcp://0.0.0.0:0")
    with pytest.raises(Misuse, match="expected tcp"):
        Server(probe, "http://127.0.0.1")
    with pytest.raises(Unavailable):
        Server(probe, f"unix://{tmp_path}/missing/app.sock")


def test_a_port_of_loopback_where_it_is_asked_for(probe: Probe) -> None:
    server = Server(probe, "tcp://127.0.0.1:0")
    server.start()
    with socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2]))) as connection:
        connection.sendall(write_frame(1, m.RequestEcho("x").encode()) + write_frame(2, b""))
        answers = write_frame(2, m.ResponseEcho("x").encode()) + write_frame(3, b"")
        assert connection.makefile("rb").read(len(answers)) == answers
    server.stop()
