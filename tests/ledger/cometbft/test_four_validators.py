"""Four validators on loopback: who may be away, who may lie, and what nobody can do alone.

One chain serves the whole file; each test leaves all four running.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chain_world import Chain, ChainWorld, wait_until
from ledger_world import HOSPITAL, operation_batch, token
from without import without

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Misuse, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.block import read_head
from tallystick.ledger.cometbft.client import ClientSettings, CometbftLedger
from tallystick.ledger.contracts.access import RIGHTS
from tallystick.ledger.proofs import StateProof
from tallystick.ledger.sqlite_store import LedgerStore
from tallystick.node.validator import roll_back_validator
from tallystick.trust.notes import Note, NoteSigner
from tallystick.trust.right import Right

HEART = token("heart")
PATIENT = ClientSettings(submit_s=60)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    chain = Chain(ChainWorld(tmp_path_factory.mktemp("four"), 4))
    try:
        world, engine = chain.world, chain.client(PATIENT)
        founding = world.founding()
        given = world.doctor.sign(entries.grant(HEART, world.monitor.id, Right.READ))
        for transaction in (*founding, given):
            engine.wait(engine.submit(transaction.data, 0), 60)
        engine.close()
        yield chain
    finally:
        chain.close()


@pytest.fixture
def engine(chain: Chain) -> Iterator[CometbftLedger]:
    engine = chain.client(PATIENT)
    yield engine
    engine.close()


def act(chain: Chain) -> bytes:
    """A transaction of its own."""
    world = chain.world
    return world.node.sign(*operation_batch(world, 1, [HEART], [world.monitor.id])).data


def chain_height(folder: Path) -> int:
    store = LedgerStore(str(folder / "ledger.sqlite"), create=False)
    try:
        return store.last_height() or 0
    finally:
        store.close()


def same_history(chain: Chain) -> bool:
    """Whether all stand at one height, with one app hash."""
    found = {one.application.book.last.hash for one in chain.validators.values()}
    return len(found) == 1


def test_a_checkpoint_has_three_of_four_signatures_and_no_two_suffice(chain: Chain, engine: CometbftLedger) -> None:
    placed = engine.submit(act(chain), 0)
    engine.wait(placed, 30)
    note = Note.decode(engine.checkpoint())
    assert read_head(note.encode(), chain.world.trust).height >= placed.height
    assert len(note.signatures) >= 3
    with pytest.raises(Forged, match="3 ledger signatures expected, found 2"):
        read_head(Note(note.text, note.signatures[:2]).encode(), chain.world.trust)


def test_three_go_on_and_the_fourth_catches_up(chain: Chain, engine: CometbftLedger) -> None:
    chain.stop(3)
    engine.wait(engine.submit(act(chain), 0), 60)
    chain.start(3)
    newest = engine.height
    wait_until(lambda: chain.heights()[3] >= newest)
    wait_until(lambda: same_history(chain))


def test_two_of_four_halt_and_nothing_is_lost(chain: Chain) -> None:
    engine = chain.client(ClientSettings(submit_s=3, halted_s=1))
    data = act(chain)
    for index in (2, 3):
        chain.stop(index)
    height = max(chain.heights().values())
    with pytest.raises(Unavailable, match="the chain stands at height") as halted:
        engine.submit(data, 0)
    assert "a third" in (halted.value.hint or "")
    assert max(chain.heights().values()) <= height + 1, "no block beyond the one that had its votes"
    for index in (2, 3):
        chain.start(index)
    engine.close()
    again = chain.client(PATIENT)
    again.wait(again.submit(data, 0), 60)
    again.close()


def test_one_endpoint_is_not_two_thirds(chain: Chain) -> None:
    with pytest.raises(Misuse, match="3 validators must sign a checkpoint, it names fewer"):
        chain.client(PATIENT, f"cometbft://{chain.world.cards[0].rpc}")
    one_alive = ",".join([chain.world.cards[0].rpc, "127.0.0.1:1", "127.0.0.1:1"])
    alone = chain.client(ClientSettings(answer_s=0.5), f"cometbft://{one_alive}")
    with pytest.raises(Unavailable, match="3 validators must sign a checkpoint, 1 answer"):
        alone.checkpoint()
    alone.close()


class Liar:
    """An endpoint whose answers are bent on the way."""

    def __init__(self, endpoint: Any, bend: Any) -> None:
        self._endpoint, self._bend = endpoint, bend
        self.name = endpoint.name

    def ask(self, name: str, *arguments: Any, **more: Any) -> Any:
        return self._bend(name, self._endpoint.ask(name, *arguments, **more))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)


def test_a_validator_that_signs_another_history_convinces_nobody(chain: Chain, engine: CometbftLedger) -> None:
    """With its own, true key; three others outvote it. Counting answers instead of keys would let it win."""
    key = SigningKey.from_seed((chain.world.folders[0] / "note.key").read_bytes())
    signer = NoteSigner(chain.world.trust.origin, key)

    def forge(name: str, answer: Any) -> Any:
        if name != "note":
            return answer
        text = Note.decode(answer).text.replace("time 1", "time 2")
        return Note.sign(text, signer).encode()

    endpoints = engine._endpoints.all
    true = endpoints[0]
    endpoints[0] = Liar(true, forge)  # type: ignore[call-overload]
    try:
        engine.wait(engine.submit(act(chain), 0), 30)
        head = read_head(engine.checkpoint(), chain.world.trust)
        assert str(head.time_ms).startswith("1")
    finally:
        endpoints[0] = true


def test_an_endpoint_whose_proofs_fail_is_passed_over(chain: Chain, engine: CometbftLedger) -> None:
    asked = []

    def lie(name: str, answer: Any) -> Any:
        if name != "state":
            return answer
        asked.append(name)
        return answer[:-40] + bytes(40)

    endpoints = engine._endpoints.all
    true = list(endpoints)
    engine._endpoints._first = 0
    endpoints[0] = Liar(true[0], lie)  # type: ignore[call-overload]
    try:
        engine.state(b"right/" + HEART + chain.world.monitor.id).verify(chain.world.trust)
        assert asked, "the liar was asked first"
        endpoints[1:] = [Liar(one, lie) for one in true[1:]]  # type: ignore[misc]
        engine._settings = ClientSettings(answer_s=0.5)
        with pytest.raises(Unavailable, match="does not hold"):
            engine.state(b"right/" + HEART + chain.world.monitor.id)
    finally:
        endpoints[:] = true


def test_an_endpoint_that_tells_a_stale_value_is_believed_without_the_check(
    chain: Chain, engine: CometbftLedger
) -> None:
    """The same lie with the check switched off: the right that was taken away seems to be there."""
    world = chain.world
    key = b"right/" + HEART + world.sensor.id
    assert engine.query(lambda state: state.get(key)) is None
    given = engine.state(b"right/" + HEART + world.monitor.id)
    assert given.value is not None

    def lie(name: str, answer: Any) -> Any:
        return answer if name != "state" else StateProof(key, given.value, given.proof, b"").encode()

    endpoints = engine._endpoints.all
    true = list(endpoints)
    endpoints[:] = [Liar(one, lie) for one in true]  # type: ignore[misc]
    try:
        with without("the check of an endpoint's proof"):
            assert engine.query(lambda state: state.get(key)) is not None, "the attack succeeds"
        engine._settings = ClientSettings(answer_s=0.5)
        with pytest.raises(Unavailable, match="does not hold"):
            engine.query(lambda state: state.get(key))
    finally:
        endpoints[:] = true


@pytest.mark.parametrize("defended", [True, False])
def test_a_validator_that_signs_false_answers_is_outvoted(chain: Chain, engine: CometbftLedger, defended: bool) -> None:
    """A real one, with its own key: rights are left out of its scans, and it refuses what the contracts took."""
    bent = chain.validators[0].application
    true = dict(bent._methods)
    bent._methods |= {
        "scan": lambda *_: [],
        "find": lambda *_: [bent.book.last.height, "no-right", "one validator says so"],
    }
    engine._endpoints._first = 0
    try:
        if defended:
            assert engine.scan(RIGHTS, HEART)
            engine.wait(engine.submit(act(chain), 0), 60)
        else:
            with without("the second validator behind an answer"):
                assert engine.scan(RIGHTS, HEART) == [], "the attack succeeds"
                with pytest.raises(Refused, match="one validator says so"):
                    engine.submit(act(chain), 0)
    finally:
        bent._methods = true


def test_a_validator_with_a_wrong_app_hash_is_left_behind_and_the_others_go_on(
    chain: Chain, engine: CometbftLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process stays up and answers; its height tells."""
    world = chain.world
    bent = chain.validators[3].application
    finalize = bent.finalize_block

    def wrong(request: Any) -> Any:
        return replace(finalize(request), app_hash=bytes(32))

    monkeypatch.setattr(bent, "finalize_block", wrong)
    engine.wait(engine.submit(world.doctor.sign(world.topic("new", world.doctor, HOSPITAL)).data, 0), 60)
    stuck = chain.heights()[3]
    engine.wait(engine.submit(act(chain), 0), 60)
    wait_until(lambda: chain.heights()[0] > stuck + 3)
    assert chain.heights()[3] <= stuck + 1
    assert chain.validators[3].pair.statistics().running, "watch heights, not processes"
    monkeypatch.undo()
    # Recovered: what was wrong is mended, the last block taken back on both sides and finalised again.
    chain.stop(3)
    assert roll_back_validator(world.folders[3], chain.program) == chain_height(world.folders[3])
    chain.start(3)
    newest = engine.height
    wait_until(lambda: chain.heights()[3] >= newest)
    wait_until(lambda: same_history(chain))


def test_entries_of_many_writers_are_all_there_once(chain: Chain, engine: CometbftLedger) -> None:
    world = chain.world
    before = read_head(engine.checkpoint(), world.trust).size
    for number in range(5):
        data = world.node.sign(*operation_batch(world, 64, [HEART], [world.monitor.id])).data
        placed = engine.submit(data, 0)
        assert engine.submit(data, 0) == placed, f"transaction {number}, sent twice"
    engine.wait(placed, 30)
    assert read_head(engine.checkpoint(), world.trust).size == before + 5
