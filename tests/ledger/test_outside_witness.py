"""A witness that is not ours cosigns our checkpoints as they are: litewitness (Go, C2SP tlog-witness), from its module.

Where `make engines` could not build it these tests are skipped; they are of no engine that the product needs.
"""

from __future__ import annotations

import os
import socketserver
import sqlite3
import struct
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from chain_world import Chain, ChainWorld, require_cometbft, wait_until
from ledger_world import NOW_MS, World, operation_batch, seed, token

from engines import litewitness
from engines.cache import cache_folder
from tallystick.crypto.merkle import EMPTY_ROOT
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Unavailable
from tallystick.ledger.block import read_head
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.node.processes import free_ports
from tallystick.node.witnessing import Witnessing
from tallystick.trust.notes import Algorithm, Note, NoteVerifier, ledger_verifiers
from tallystick.trust.trustfile import TrustFile

pytestmark = pytest.mark.witness

PROGRAM = cache_folder() / litewitness.NAME / "litewitness"  # read before the suite moves HOME
NAME = "witness.example/outside"
KEY = SigningKey.from_seed(seed("outside witness"))
VKEY = NoteVerifier(NAME, KEY.public, Algorithm.COSIGNATURE_V1).encode()
IDENTITIES, SIGN = 11, 13  # requests of the ssh-agent protocol; an answer's type is one more


def text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


class Agent(socketserver.StreamRequestHandler):
    """litewitness has its key in an ssh-agent: this one holds `KEY` and nothing else."""

    def handle(self) -> None:
        blob = text(b"ssh-ed25519") + text(KEY.public.raw)
        while head := self.rfile.read(4):
            message = self.rfile.read(struct.unpack(">I", head)[0])
            if message[0] == IDENTITIES:
                answer = struct.pack(">I", 1) + text(blob) + text(b"witness")
            else:
                assert message[0] == SIGN
                behind = 5 + len(blob)
                size = struct.unpack(">I", message[behind : behind + 4])[0]
                signature = KEY.sign_raw(message[behind + 4 : behind + 4 + size])
                answer = text(text(b"ssh-ed25519") + text(signature))
            self.wfile.write(text(bytes([message[0] + 1]) + answer))


class Litewitness:
    """The witness's process; `know` tells it of a log."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "log"
        port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{port}"
        self._agent = socketserver.ThreadingUnixStreamServer(str(folder / "agent"), Agent)
        self._agent.daemon_threads = True
        threading.Thread(target=self._agent.serve_forever, args=(0.05,), daemon=True).start()
        fingerprint = sha256(KEY.public.raw).hexdigest()
        command = [
            *(str(PROGRAM), "-db", str(folder / "db"), "-name", NAME, "-key", fingerprint),
            *("-ssh-agent", str(folder / "agent"), "-listen", f"127.0.0.1:{port}"),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(lambda: "listening" in self.said, 20)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def know(self, trust: TrustFile) -> None:
        """As its `witnessctl add-log` and `add-key` do, while it runs."""
        with closing(sqlite3.connect(self._folder / "db", timeout=10)) as db, db:
            db.execute("INSERT INTO log VALUES (?, 0, ?)", (trust.origin, b64encode(EMPTY_ROOT).decode()))
            keys = [(trust.origin, verifier.encode()) for verifier in ledger_verifiers(trust)]
            db.executemany("INSERT INTO key VALUES (?, ?)", keys)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._agent.shutdown()
        self._agent.server_close()


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Litewitness]:
    if not os.access(PROGRAM, os.X_OK):
        pytest.skip("litewitness is not built here: make engines")
    witness = Litewitness(tmp_path_factory.mktemp("w"))
    try:
        yield witness
    finally:
        witness.close()


def batch(world: World) -> bytes:
    return world.node.sign(*operation_batch(world, 2, [token("heart")], [world.monitor.id])).data


def grow(ledger: SqliteLedger, *data: bytes) -> None:
    for one in data:
        ledger.submit(one, NOW_MS)
        ledger.flush(NOW_MS)


def check_cosigned(note: bytes, world: World) -> None:
    """Under our own trust file, with the witness's signature; not without it."""
    assert read_head(note, world.trust).size > 0
    whole = Note.decode(note)
    bare = Note(whole.text, tuple(one for one in whole.signatures if one.name != NAME))
    assert len(bare.signatures) == len(whole.signatures) - 1
    with pytest.raises(Forged, match="cosignature"):
        read_head(bare.encode(), world.trust)


def test_its_key_reads_as_ours_do(witness: Litewitness) -> None:
    assert VKEY in witness.said


def test_it_cosigns_checkpoints_of_the_embedded_ledger_and_of_no_fork(witness: Litewitness, tmp_path: Path) -> None:
    world = World(witnesses=(VKEY,), quorum=1)
    witness.know(world.trust)
    founding = [transaction.data for transaction in world.founding()]
    with closing(SqliteLedger(str(tmp_path / "ledger"), world.trust, world.ledger_key, NOW_MS)) as ledger:
        witnessing = Witnessing(ledger, world.trust, [witness.url])
        grow(ledger, *founding)
        for _ in range(2):  # the second with a proof of consistency
            grow(ledger, batch(world))
            witnessing.round()
            assert read_head(ledger.checkpoint(), world.trust).height == ledger.height
        check_cosigned(ledger.checkpoint(), world)
        witnessing.close()
    with closing(SqliteLedger(str(tmp_path / "fork"), world.trust, world.ledger_key, NOW_MS)) as fork:
        grow(fork, *founding, *(batch(world) for _ in range(3)))
        witnessing = Witnessing(fork, world.trust, [witness.url])
        witnessing.round()
        witnessing.close()
        with pytest.raises(Unavailable, match="witnesses"):
            fork.checkpoint()
        Note.decode(fork.newest_note()).verify(ledger_verifiers(world.trust))  # the operator alone would have done it


def test_it_cosigns_checkpoints_of_a_chain(witness: Litewitness, tmp_path: Path) -> None:
    require_cometbft()
    world = ChainWorld(tmp_path, 1, (VKEY,))
    witness.know(world.trust)
    chain = Chain(world)
    try:
        engine = chain.client()
        witnessing = Witnessing(engine, world.trust, [witness.url])
        for transaction in world.founding():
            placed = engine.submit(transaction.data, 0)
            engine.wait(placed, 30)
            witnessing.round()
        assert read_head(engine.checkpoint(), world.trust).height >= placed.height
        check_cosigned(engine.checkpoint(), world)
        witnessing.close()
        engine.close()
    finally:
        chain.close()
