"""The node and its witnesses: a quorum is enough, slow and false ones hold nobody up, a rollback is noticed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from ledger_world import NOW_MS, World, seed
from server_thread import ServerThread

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Misuse, Unavailable
from tallystick.ledger.block import read_head
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.witness import Witness, WitnessAnswer
from tallystick.node.witnessing import Witnessing
from tallystick.runtime.http1 import Answer
from tallystick.runtime.router import Request, Router
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.trust.notes import Algorithm, NoteSigner, ledger_verifiers

SIGNERS = [
    NoteSigner(f"witness.example/{name}", SigningKey.from_seed(seed(name)), Algorithm.COSIGNATURE_V1)
    for name in ("one", "two", "three")
]


def world(quorum: int) -> World:
    return World(witnesses=tuple(signer.verifier.encode() for signer in SIGNERS), quorum=quorum)


@contextmanager
def ledger_of(path: Path, place: World) -> Iterator[SqliteLedger]:
    ledger = SqliteLedger(str(path), place.trust, place.ledger_key, NOW_MS)
    try:
        for transaction in place.founding():
            ledger.submit(transaction.data, NOW_MS)
        ledger.flush(NOW_MS)
        yield ledger
    finally:
        ledger.close()


class Served:
    """A witness over HTTP; `hangs` until it is let go, `lies` with a signature of somebody else."""

    def __init__(self, place: World, signer: NoteSigner, *, hangs: bool = False, lies: bool = False) -> None:
        self._witness = Witness(signer, {place.trust.origin: ledger_verifiers(place.trust)}, SeededDisk(1))
        self.let_go = threading.Event()
        if not hangs:
            self.let_go.set()
        self._lies = lies
        self.router = Router()
        self.router.add("POST", "/add-checkpoint", self._add)

    async def _add(self, request: Request) -> Answer:
        import asyncio

        body = await request.body()
        await asyncio.to_thread(self.let_go.wait, 30)
        told: WitnessAnswer = self._witness.add_checkpoint(body, NOW_MS // 1000)
        if self._lies:
            line = NoteSigner("mallory", SigningKey.from_seed(seed("mallory"))).sign("another text\n").encode()
            return Answer(200, line.encode())
        return Answer(told.status, told.body, told.content_type)


def test_a_quorum_is_enough_though_one_hangs_and_one_lies(tmp_path: Path) -> None:
    place = world(quorum=1)
    with ledger_of(tmp_path / "ledger", place) as ledger, ExitStack() as stack:
        slow = Served(place, SIGNERS[1], hangs=True)
        served = [Served(place, SIGNERS[0]), slow, Served(place, SIGNERS[2], lies=True)]
        urls = [stack.enter_context(ServerThread(one.router)).url for one in served]
        witnessing = Witnessing(ledger, place.trust, urls)
        try:
            with pytest.raises(Unavailable, match="quorum"):
                ledger.checkpoint()
            witnessing.round()
            head = read_head(ledger.checkpoint(), place.trust)
            assert head.cosigners == (SIGNERS[0].name,)
            ledger.submit(place.node.sign(*_operation(place)).data, NOW_MS)
            ledger.flush(NOW_MS)
            witnessing.round()  # from the size that it cosigned last, with a proof
            assert read_head(ledger.checkpoint(), place.trust).size == head.size + 1
        finally:
            slow.let_go.set()
            witnessing.close()


def _operation(place: World) -> list[bytes]:
    from ledger_world import operation_batch, token

    return list(operation_batch(place, 1, [token("heart")], [place.monitor.id]))


def test_without_the_quorum_nothing_is_published(tmp_path: Path) -> None:
    place = world(quorum=2)
    with ledger_of(tmp_path / "ledger", place) as ledger, ServerThread(Served(place, SIGNERS[0]).router) as only:
        witnessing = Witnessing(ledger, place.trust, [only.url, "http://127.0.0.1:9"])
        witnessing.round()
        with pytest.raises(Unavailable, match="quorum"):
            ledger.checkpoint()
        witnessing.close()


def test_a_ledger_that_was_set_back_gets_no_cosignature(tmp_path: Path) -> None:
    place = world(quorum=1)
    served = Served(place, SIGNERS[0])
    with ServerThread(served.router) as server:
        with ledger_of(tmp_path / "long", place) as ledger:
            ledger.submit(place.node.sign(*_operation(place)).data, NOW_MS)
            ledger.flush(NOW_MS)
            witnessing = Witnessing(ledger, place.trust, [server.url])
            witnessing.round()
            witnessing.close()
        place.node.number = 0
        with ledger_of(tmp_path / "short", place) as ledger:
            witnessing = Witnessing(ledger, place.trust, [server.url])
            witnessing.round()
            with pytest.raises(Unavailable, match="quorum"):
                ledger.checkpoint()
            witnessing.close()


def test_a_quorum_without_addresses_is_a_mistake_that_names_the_remedy(tmp_path: Path) -> None:
    place = world(quorum=2)
    with (
        ledger_of(tmp_path / "ledger", place) as ledger,
        pytest.raises(Misuse, match="2 witnesses must cosign, 1 are named") as error,
    ):
        Witnessing(ledger, place.trust, ["http://127.0.0.1:9"])
    assert "node.toml" in (error.value.hint or "")
