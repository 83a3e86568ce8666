"""One of four validators lies to those who ask it, with its own true key; and one endpoint of it stands for several.

Each attack is made on a client that asks the liar first, and then once more with the defence away: it succeeds.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from chain_endpoints import HASTY, InProcessChain
from chain_world import wait_until
from ledger_world import operation_batch, token
from without import without

from tallystick import wire
from tallystick.abci.messages import RequestQuery
from tallystick.carriers.kafka.administration import AccessEntry
from tallystick.carriers.kafka.ledger import NotaryLedger
from tallystick.carriers.kafka.reconcile import Reconciler
from tallystick.errors import Misuse, Refused, TallystickError, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.block import Block, Transaction
from tallystick.ledger.cometbft.client import CometbftLedger
from tallystick.ledger.cometbft.queries import PREFIX
from tallystick.ledger.cometbft.rpc import RpcEndpoint
from tallystick.ledger.contracts.access import RIGHTS
from tallystick.ledger.engine import Query
from tallystick.trust.right import Right

HEART = token("heart")
SECOND = "the second validator behind an answer"


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessChain]:
    with closing(InProcessChain(tmp_path_factory.mktemp("four"))) as four:
        four.block(grant(four, host="*"))
        yield four


@pytest.fixture
def chain(four: InProcessChain) -> InProcessChain:
    """All of them honest again."""
    for one in four.validators:
        one.become_honest()
    return four


@pytest.fixture
def engine(chain: InProcessChain) -> Iterator[CometbftLedger]:
    with closing(chain.client()) as engine:
        yield engine


def grant(chain: InProcessChain, host: str | None = None) -> Transaction:
    """What the contracts take: another host from which the monitor may read."""
    world = chain.world
    return world.doctor.sign(entries.grant(HEART, world.monitor.id, Right.READ, host=host or f"10.0.0.{chain.height}"))


def theft(chain: InProcessChain) -> Transaction:
    """What they refuse: only the doctor grants rights to this topic."""
    world = chain.world
    return world.sensor.sign(entries.grant(HEART, world.sensor.id, Right.READ))


def alone(*, defended: bool) -> AbstractContextManager[None]:
    return nullcontext() if defended else without(SECOND)


# --- a transaction's fate ---


@pytest.mark.parametrize("defended", [True, False])
def test_a_transaction_is_not_refused_by_one(chain: InProcessChain, engine: CometbftLedger, defended: bool) -> None:
    chain.liar.lies["find"] = lambda true, leaf: [chain.height, "no-right", "one validator says so"]
    with alone(defended=defended):
        if defended:
            assert engine.submit(grant(chain).data, 0).height == chain.height
        else:
            with pytest.raises(Refused, match="one validator says so"):
                engine.submit(grant(chain).data, 0)


@pytest.mark.parametrize("defended", [True, False])
def test_the_door_is_not_closed_by_one(chain: InProcessChain, engine: CometbftLedger, defended: bool) -> None:
    chain.liar.refuses = "blacklisted"
    with alone(defended=defended):
        if defended:
            assert engine.submit(grant(chain).data, 0).height == chain.height
        else:
            with pytest.raises(Refused, match="the door is closed"):
                engine.submit(grant(chain).data, 0)


@pytest.mark.parametrize("defended", [True, False])
def test_a_transaction_is_not_accepted_by_one(chain: InProcessChain, engine: CometbftLedger, defended: bool) -> None:
    chain.liar.lies["find"] = lambda true, leaf: [3, chain.height, 0]
    with alone(defended=defended):
        if defended:
            with pytest.raises(Refused, match="only the owner"):
                engine.submit(theft(chain).data, 0)
        else:
            assert engine.submit(theft(chain).data, 0).number == 3, "it was never taken"


def test_a_transaction_that_one_drops_is_handed_in_elsewhere(chain: InProcessChain, engine: CometbftLedger) -> None:
    chain.liar.swallows = True
    chain.liar.lies["find"] = lambda true, leaf: None
    assert engine.submit(grant(chain).data, 0).height == chain.height


# --- what nothing proves: scans, blocks, histories, changes ---


class KafkaInMemory:
    """As much of Kafka's administration as the reconciler asks for."""

    def __init__(self) -> None:
        self.entries: set[AccessEntry] = set()

    def access_entries(self) -> set[AccessEntry]:
        return set(self.entries)

    def change_access(self, add: Any, remove: Any) -> None:
        self.entries = (self.entries | set(add)) - set(remove)

    def group_offsets(self, spots: Any) -> dict[Any, int]:
        return {}

    def forget_users(self, names: Any) -> None:
        pass


def reconciled(chain: InProcessChain, engine: CometbftLedger) -> set[str]:
    """Whom Kafka lets read, once its access control was held to the ledger (twice: a difference counts then)."""
    kafka, signer = KafkaInMemory(), SimpleNamespace(principal=chain.world.node.id)
    rules = SimpleNamespace(consents=lambda tenant: True)
    host = SimpleNamespace(ledger=engine, signer=signer, rules=rules, write=None)
    reconciler = Reconciler(cast("Any", kafka), NotaryLedger(cast("Any", host)).wanted)
    for _ in range(2):
        assert list(reconciler.check()) == []
    return {entry.user for entry in kafka.entries if entry.operation == "READ"}


def add_row(chain: InProcessChain) -> Callable[..., Any]:
    """The sensor is let in as the monitor is."""
    there, thief = (RIGHTS(HEART, one.id) for one in (chain.world.monitor, chain.world.sensor))

    def bend(true: Any, prefix: bytes, *rest: Any) -> Any:
        rows = dict(true)
        return sorted([*true, (bytes(thief), rows[bytes(there)])]) if bytes(there) in rows else true

    return bend


def leave_out(true: Any, prefix: bytes, *rest: Any) -> Any:
    """As if nobody had a right."""
    return [] if prefix.startswith(b"right/") else true


@pytest.mark.parametrize("defended", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_kafka_s_access_control_is_not_written_by_one(
    chain: InProcessChain, engine: CometbftLedger, added: bool, defended: bool
) -> None:
    monitor, thief = (f"User:{one.id.hex()}" for one in (chain.world.monitor, chain.world.sensor))
    chain.liar.lies["scan"] = add_row(chain) if added else leave_out
    with alone(defended=defended):
        found = reconciled(chain, engine)
    assert (monitor in found, thief in found) == ((True, False) if defended else (added, added))


def other_time(true: Any, *arguments: Any) -> Any:
    """A block, or those in a list, an hour later."""
    if isinstance(true, list):
        return [[other_time(block), rest] for block, rest in true]
    block = Block.decode(true)
    return replace(block, time_ms=block.time_ms + 3_600_000).encoded


def without_transactions(true: Any, *arguments: Any) -> Any:
    return [[block, []] for block, _ in true]


@pytest.mark.parametrize("defended", [True, False])
@pytest.mark.parametrize(
    ("name", "bend", "ask"),
    [
        ("blocks", other_time, lambda engine: engine.blocks(1, 3)),
        ("blocks", without_transactions, lambda engine: engine.blocks(1, 3)),
        ("block", other_time, lambda engine: engine.block(2)),
        ("history", lambda true, *_: true[1:], lambda engine: engine.history(HEART)),
        ("audit", lambda true, *_: true[1:], lambda engine: engine.audit(Query())),
        ("consistency", lambda true, *_: [bytes(32)], lambda engine: engine.consistency(1, 3)),
    ],
)
def test_what_nothing_proves_is_not_the_word_of_one(
    chain: InProcessChain, name: str, bend: Any, ask: Any, defended: bool
) -> None:
    world = chain.world
    chain.block(world.node.sign(*operation_batch(world, 3, [HEART], [world.monitor.id])))
    with closing(chain.client(*chain.addresses[1:])) as honest:
        expected = ask(honest)
    chain.liar.lies[name] = bend
    with closing(chain.client()) as engine, alone(defended=defended):
        assert (ask(engine) == expected) is defended


@pytest.mark.parametrize("defended", [True, False])
def test_a_change_is_not_hidden_by_one(chain: InProcessChain, defended: bool) -> None:
    def hide(true: Any, *arguments: Any) -> Any:
        return [[block, []] for block, _ in true]

    chain.liar.lies["changes"] = hide
    chain.liar.lies["follow"] = lambda true, since: [true[0], hide(true[1])]
    seen: dict[int, set[bytes]] = {}
    key = bytes(RIGHTS(HEART, chain.world.monitor.id))
    with closing(chain.client()) as engine, alone(defended=defended):
        engine.on_block(lambda block, keys: seen.update({block.height: set(keys)}))
        engine.state(key)
        placed = engine.submit(grant(chain).data, 0)
        wait_until(lambda: placed.height in seen)
    assert (key in seen[placed.height]) is defended


@pytest.mark.parametrize("claimed", [0, 1 << 40])
def test_a_height_that_one_invents_holds_nobody_up(chain: InProcessChain, claimed: int) -> None:
    chain.liar.lies["status"] = lambda true: [true[0], claimed, *true[2:]]
    seen: list[int] = []
    with closing(chain.client()) as engine:
        engine.on_block(lambda block, keys: seen.append(block.height))
        placed = engine.submit(grant(chain).data, 0)
        engine.wait(placed, 10)
        wait_until(lambda: placed.height in seen)
        assert engine.height == placed.height


def test_who_was_restarted_and_forgot_what_changed_differs_in_nothing_else(chain: InProcessChain) -> None:
    """Then whatever was asked for is forgotten."""
    for number, one in enumerate(chain.validators):
        one.lies["changes"] = lambda true, first, end, with_keys, number=number: (
            [[block, [b"%d" % number]] for block, _ in true] if with_keys else true
        )
    seen: dict[int, set[bytes]] = {}
    with closing(chain.client()) as engine:
        engine.on_block(lambda block, keys: seen.update({block.height: set(keys)}))
        chain.block()
        wait_until(lambda: chain.height in seen, 10)
        key = bytes(RIGHTS(HEART, chain.world.monitor.id))
        engine.state(key)
        chain.block(grant(chain))
        wait_until(lambda: chain.height in seen, 10)
        assert key in seen[chain.height]


# --- who counts ---


def test_validators_are_counted_not_their_addresses(chain: InProcessChain) -> None:
    chain.liar.lies["scan"] = leave_out
    liar, *others = chain.addresses
    with closing(chain.client(liar, liar, liar, *others)) as engine:
        assert len(engine.scan(RIGHTS, HEART)) == 1
    with closing(chain.client(*chain.addresses, settings=replace(HASTY, answer_s=0.3))) as engine:
        engine.checkpoint()
        for one in chain.validators[1:3]:
            one.lies["vouch"] = lambda *_: Unavailable  # no answer at all
        chain.validators[3].lies["vouch"] = lambda true, *_: [*true[:1], bytes(64), true[2]]
        with pytest.raises(Unavailable, match="2 validators must sign one answer to scan, 1 did"):
            engine.scan(RIGHTS, HEART)


@pytest.mark.parametrize("defended", [True, False])
def test_another_validator_s_key_needs_its_signature(chain: InProcessChain, defended: bool) -> None:
    """Two endpoints of nobody say that they are the third validator and the fourth."""
    for one, other in zip(chain.validators[:2], chain.validators[2:], strict=True):
        one.lies["scan"] = leave_out
        key = other._ask_status(None)[4]  # type: ignore[arg-type]
        one.lies["vouch"] = lambda true, *_, key=key: [key, *true[1:]]
    removed = nullcontext() if defended else without("the signature under an answer")
    with closing(chain.client()) as engine, removed:
        assert len(engine.scan(RIGHTS, HEART)) == (1 if defended else 0)


def test_what_others_signed_before_does_not_serve_again(chain: InProcessChain) -> None:
    """The liar shows the same question's answer of an earlier height, under another's true signature."""
    height = chain.height
    question = wire.encode(["scan", [RIGHTS.prefix(HEART), 1000, b"", height], height, True])
    old = wire.decode(chain.validators[1].query(RequestQuery(path=f"{PREFIX}vouch", data=question)).value)
    added = f"10.0.0.{height}"
    assert added.encode() not in old[2]
    chain.block(grant(chain))
    chain.liar.lies["vouch"] = lambda true, name, *_: old if name == "scan" else true
    with closing(chain.client()) as engine:
        assert added in str(engine.scan(RIGHTS, HEART))


def test_validators_of_an_older_release_are_named_as_such(chain: InProcessChain, engine: CometbftLedger) -> None:
    engine.checkpoint()
    chain.validators[3].forget_how_to("vouch")
    assert len(engine.scan(RIGHTS, HEART)) == 1, "one of four may come later"
    for one in chain.validators[:3]:
        one.forget_how_to("vouch")
    with pytest.raises(Misuse, match="nothing answers to /tally/1/vouch") as told:
        engine.scan(RIGHTS, HEART)
    assert "upgrade validators before their clients" in (told.value.hint or "")


# --- endpoints that hold somebody up ---


@pytest.fixture
def trickler() -> Iterator[RpcEndpoint]:
    """An endpoint that answers truthfully, a byte at a time."""
    listening = socket.create_server(("127.0.0.1", 0))
    body = b'{"result": {}}'
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)

    def serve() -> None:
        try:
            while True:
                with listening.accept()[0] as connection:
                    connection.recv(1 << 16)
                    for at in range(len(answer)):
                        connection.sendall(answer[at : at + 1])
                        time.sleep(0.05)  # more than two seconds in all
        except OSError:
            pass

    threading.Thread(target=serve, daemon=True).start()
    endpoint = RpcEndpoint(*listening.getsockname())
    yield endpoint
    endpoint.close()
    listening.close()


@pytest.mark.parametrize("defended", [True, False])
def test_a_whole_answer_has_a_deadline(trickler: RpcEndpoint, defended: bool) -> None:
    if defended:
        with pytest.raises(Unavailable, match=r"takes too long|timed out"):
            trickler.call("status", timeout_s=1.5)
    else:
        with without("the deadline of a whole answer"):
            assert trickler.call("status", timeout_s=1.5) == {}


@pytest.mark.parametrize("answer", [b"[]", b'{"result": 5}', b'{"error": "x"}', b'{"result": {"code": "x"}}', b"{}"])
def test_an_answer_that_is_none_is_that_endpoint_s_fault(answer: bytes) -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            with listening.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))

    threading.Thread(target=serve, daemon=True).start()
    endpoint = RpcEndpoint(*listening.getsockname())
    for act in (lambda: endpoint.ask("status"), lambda: endpoint.broadcast(b"transaction")):
        with pytest.raises(TallystickError) as told:
            act()
        assert isinstance(told.value, Unavailable)
    endpoint.close()
    listening.close()
