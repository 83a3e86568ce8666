"""What a client of a chain says when something is wrong: which thing, and what to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from chain_world import Chain, ChainWorld
from ledger_world import World, operation_batch, token

from tallystick.errors import Malformed, Misuse, Refused, TallystickError, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.cometbft.client import ClientSettings, CometbftLedger
from tallystick.ledger.cometbft.rpc import Endpoints, RpcEndpoint
from tallystick.node.processes import free_ports
from tallystick.runtime.sources import SystemClock
from tallystick.trust.right import Right

HEART = token("heart")


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    chain = Chain(ChainWorld(tmp_path_factory.mktemp("one")))
    try:
        engine = chain.client()
        for transaction in chain.world.founding():
            engine.wait(engine.submit(transaction.data, 0), 30)
        engine.close()
        yield chain
    finally:
        chain.close()


@pytest.fixture
def engine(chain: Chain) -> Iterator[CometbftLedger]:
    engine = chain.client()
    yield engine
    engine.close()


class Says(BaseHTTPRequestHandler):
    """A node that says one thing."""

    answer: Any = None

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(self.answer).encode() if not isinstance(self.answer, bytes) else self.answer
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def saying() -> Iterator[Any]:
    servers = []

    def start(answer: Any) -> RpcEndpoint:
        server = HTTPServer(("127.0.0.1", 0), type("Handler", (Says,), {"answer": answer}))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return RpcEndpoint("127.0.0.1", server.server_port)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("message", "kind", "reason"),
    [
        ("mempool is full: number of txs 20000 (max: 20000)", Unavailable, "full"),
        ("Tx too large. Max size is 3146752, but got 4000000", Misuse, "larger than the chain takes"),
        ("error reading request body: http: request body too large", Misuse, "larger than the chain takes"),
        ("something else", Unavailable, "something else"),
    ],
)
def test_a_node_s_errors_are_told_apart(saying: Any, message: str, kind: type[TallystickError], reason: str) -> None:
    endpoint = saying(
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "Internal error", "data": message}}
    )
    with pytest.raises(kind, match=reason):
        endpoint.broadcast(b"transaction")
    endpoint.close()


def test_a_transaction_that_a_node_has_already_is_well(saying: Any) -> None:
    error = {"code": -32603, "message": "Internal error", "data": "tx already exists in cache"}
    endpoint = saying({"jsonrpc": "2.0", "id": 1, "error": error})
    endpoint.broadcast(b"transaction")
    endpoint.close()


@pytest.mark.parametrize("answer", [b"<html>", [], b""])
def test_what_is_no_node_is_unavailable(saying: Any, answer: Any) -> None:
    endpoint = saying(answer)
    with pytest.raises(Unavailable):
        endpoint.call("status")
    endpoint.close()


@pytest.mark.parametrize(
    "url", ["kafka://x:1", "cometbft://", "cometbft://host", "cometbft://host:port", "cometbft://h:0"]
)
def test_a_url_that_is_none_is_misuse(url: str) -> None:
    with pytest.raises(Misuse, match="ledger"):
        Endpoints.parse(url, SystemClock())


def test_nobody_there(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with pytest.raises(Unavailable, match="no validator answers"):
        CometbftLedger(f"cometbft://127.0.0.1:{port}", World().trust, SystemClock(), ClientSettings(answer_s=0.3))


def test_another_chain(chain: Chain) -> None:
    with pytest.raises(Misuse, match="it serves chain tally-"):
        CometbftLedger(chain.url, World().trust, SystemClock())


def test_another_version_of_the_questions(chain: Chain) -> None:
    host, _, port = chain.world.cards[0].rpc.rpartition(":")
    endpoint = RpcEndpoint(host, int(port))
    with pytest.raises(Misuse, match="nothing answers to /tally/1/tomorrow") as told:
        endpoint.ask("tomorrow")
    assert "upgrade" in (told.value.hint or "")
    for arguments in ((), (1, 2, 3), ("x",), (None,)):
        with pytest.raises((Misuse, Unavailable, Refused)):
            endpoint.ask("receipt", *arguments)
    endpoint.close()


def test_junk_is_refused_before_it_reaches_a_block(chain: Chain, engine: CometbftLedger) -> None:
    world, other = chain.world, World()
    stranger = other.actor("stranger", 3, b"tenant: hospital")  # type: ignore[arg-type]
    host, _, port = world.cards[0].rpc.rpartition(":")
    endpoint = RpcEndpoint(host, int(port))
    good = world.node.sign(*operation_batch(world, 1, [HEART], [world.monitor.id])).data
    flipped = bytearray(good)
    flipped[120] ^= 1
    forged = bytearray(good)
    forged[97] ^= 1
    for junk in (b"junk", bytes(flipped), bytes(forged), stranger.sign(b"\x81\x01").data):
        with pytest.raises((Refused, Malformed)):
            endpoint.broadcast(junk)
    engine.wait(engine.submit(good, 0), 30)
    with pytest.raises(Refused, match="a number above") as replayed:
        engine.submit(world.node.sign(*operation_batch(world, 2, [HEART], [world.monitor.id]), number=1).data, 0)
    assert replayed.value.reason == "replayed"
    endpoint.close()


def test_a_refused_transaction_may_be_good_later(chain: Chain, engine: CometbftLedger) -> None:
    """Its old refusal is not taken for the new answer."""
    world = chain.world
    late = world.monitor.sign(entries.write(HEART, bytes(16), 0, bytes(32)))
    for _ in range(2):
        with pytest.raises(Refused, match="entry 0: no right to write"):
            engine.submit(late.data, 0)
    engine.submit(world.doctor.sign(entries.grant(HEART, world.monitor.id, Right.WRITE)).data, 0)
    engine.wait(engine.submit(late.data, 0), 30)
