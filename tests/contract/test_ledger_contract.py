"""What every ledger engine does alike: one suite, run against each of them.

An engine joins by a line in `ENGINES`: how it is made in a folder, with its world, and how it is made to go on. Where
the engine makes its blocks by itself (a chain), what a test does between two blocks cannot be had: it asks for
`makes_blocks` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chain_world import Chain, ChainWorld
from ledger_world import HOME, HOSPITAL, NOW_MS, World, operation_batch, seed, token

from tallystick import wire
from tallystick.crypto.merkle import EMPTY_ROOT, Tree, leaf_hash, verify_consistency
from tallystick.errors import Forged, Misuse, Refused, Unavailable, Withheld
from tallystick.ledger import entries
from tallystick.ledger.block import Block, Transaction, parse, read_head
from tallystick.ledger.contracts import access, anchors
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.engine import AuditItem, Engine, Query, Submitted, find_before_revocation
from tallystick.ledger.proofs import StateProof, verify_history
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.trust.receipt import EntryProof, Receipt
from tallystick.trust.right import Right

HEART, AIR = token("heart"), token("air")


@dataclass
class Running:
    """An engine with its world, and the clock of both."""

    world: World
    engine: Engine
    advance: Callable[[int], object]  # what waits goes into a block
    close: Callable[[], None]
    makes_blocks: bool  # whether the caller does
    now_ms: int = NOW_MS

    def take(self, *transactions: Transaction) -> list[Submitted]:
        """Submit and wait for their block."""
        placed = [self.engine.submit(transaction.data, self.now_ms) for transaction in transactions]
        self.advance(self.now_ms)
        for one in placed:
            self.engine.wait(one, timeout_s=10)
        return placed


def sqlite(folder: Path, world: World) -> Running:
    engine = SqliteLedger(str(folder / "ledger.db"), world.trust, world.ledger_key, NOW_MS)
    return Running(world, engine, engine.flush, engine.close, makes_blocks=True)


def cometbft(folder: Path, world: World) -> Running:
    assert isinstance(world, ChainWorld)
    chain = Chain(world)
    engine = chain.client()

    def close() -> None:
        engine.close()
        chain.close()

    return Running(world, engine, lambda _: None, close, makes_blocks=False)


WORLDS: dict[str, Callable[[Path], World]] = {"sqlite": lambda _: World(), "cometbft": ChainWorld}
ENGINES = {"sqlite": sqlite, "cometbft": cometbft}
PARAMETERS = ["sqlite", pytest.param("cometbft", marks=pytest.mark.chain)]


@pytest.fixture(params=PARAMETERS)
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    running = ENGINES[request.param](tmp_path, WORLDS[request.param](tmp_path))
    running.take(*running.world.founding())
    yield running
    running.close()


def test_a_transaction_is_placed_once_whatever_is_sent_again(running: Running) -> None:
    world = running.world
    transaction = world.doctor.sign(entries.grant(HEART, world.monitor.id, Right.READ))
    first = running.engine.submit(transaction.data, NOW_MS)
    assert running.engine.submit(transaction.data, NOW_MS) == first
    running.take(transaction)
    assert running.engine.submit(transaction.data, NOW_MS) == first


def test_a_refusal_names_entry_and_reason_and_leaves_nothing(running: Running) -> None:
    world = running.world
    mixed = world.doctor.sign(
        entries.grant(HEART, world.monitor.id, Right.READ), entries.grant(AIR, world.doctor.id, Right.READ)
    )
    with pytest.raises(Refused, match="entry 1: only the owner") as refusal:
        running.engine.submit(mixed.data, NOW_MS)
    assert refusal.value.reason == "not-owner"
    running.take()
    assert not running.engine.query(lambda s: access.allowed(s, world.monitor.id, HEART, Right.READ, "x"))


def test_a_receipt_proves_an_entry_offline(running: Running) -> None:
    world = running.world
    anchor = entries.anchor(HEART, 0, 0, Tree().root())
    placed = running.take(world.node.sign(anchor, *operation_batch(world, 7, [HEART], [world.monitor.id])))[0]
    proof = EntryProof.decode(running.engine.receipt(placed.number, 0).encode())
    verified = proof.verify(world.trust)
    verified.check_author(world.node.key.public)
    assert (verified.author, verified.proof.entry, verified.checkpoint.cosigners) == (world.node.id, anchor, ())
    with pytest.raises(Misuse):
        running.engine.receipt(placed.number, 99)


def test_a_receipt_of_an_anchor_proves_a_parcel(running: Running) -> None:
    world = running.world
    parcels = [seed(f"parcel {i}") for i in range(5)]
    tree = Tree([leaf_hash(parcel) for parcel in parcels])
    placed = running.take(world.node.sign(entries.anchor(HEART, 0, 5, tree.root())))[0]
    receipt = Receipt(3, tuple(tree.inclusion(3, 5)), running.engine.receipt(placed.number, 0))
    found = Receipt.decode(receipt.encode()).verify(parcels[3], HEART, world.trust)
    assert (found.partition, found.offset, found.node) == (0, 3, world.node.id)
    for parcel, topic in ((parcels[2], HEART), (parcels[3], AIR)):
        with pytest.raises(Forged):
            receipt.verify(parcel, topic, world.trust)


def test_every_altered_receipt_is_refused(running: Running) -> None:
    world = running.world
    placed = running.take(world.node.sign(*operation_batch(world, 3, [HEART], [world.monitor.id])))[0]
    data = running.engine.receipt(placed.number, 1).encode()
    key = world.node.key.public
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(Refused):
            EntryProof.decode(bytes(changed)).verify(world.trust).check_author(key)


def test_checkpoints_continue_one_another(running: Running) -> None:
    world = running.world
    old = read_head(running.engine.checkpoint(), world.trust)
    running.take(world.doctor.sign(entries.grant(HEART, world.monitor.id, Right.READ)))
    new = read_head(running.engine.checkpoint(), world.trust)
    assert new.size == old.size + 1
    assert new.height > old.height
    proof = running.engine.consistency(old.size, new.size)
    verify_consistency(old.size, old.root, new.size, new.root, proof)


def test_the_state_is_proved_present_and_absent(running: Running) -> None:
    world = running.world
    running.take(world.doctor.sign(entries.grant(HEART, world.monitor.id, Right.READ)))
    present = running.engine.state(b"right/" + HEART + world.monitor.id)
    head = present.verify(world.trust)
    assert StateProof.decode(present.encode()) == present
    assert wire.decode(present.value or b"")[1] == [[1, 1, "*"]]
    assert head.size == 4
    absent = running.engine.state(b"right/" + HEART + world.sensor.id)
    absent.verify(world.trust)
    assert absent.value is None
    for lie in (
        StateProof(absent.key, present.value, absent.proof, absent.note),
        StateProof(present.key, None, present.proof, present.note),
        StateProof(absent.key, present.value, present.proof, present.note),
    ):
        with pytest.raises(Refused):
            lie.verify(world.trust)


def test_blocks_hold_the_transactions_of_the_tree(running: Running) -> None:
    world = running.world
    running.take(world.doctor.sign(entries.grant(HEART, world.monitor.id, Right.READ)))
    tree = Tree()
    previous = bytes(32)
    for encoded, transactions in running.engine.blocks(0, 1000):
        block = Block.decode(encoded)
        assert (block.previous, block.first, block.count) == (previous, tree.size, len(transactions))
        for data in transactions:
            tree.append(parse(data).leaf)
        assert (block.size, block.root) == (tree.size, tree.root())
        previous = block.hash
    head = read_head(running.engine.checkpoint(), world.trust)
    assert (tree.size, tree.root()) == (head.size, head.root)


def test_a_history_is_read_along_its_links_and_folds_to_the_proved_chain(running: Running) -> None:
    world = running.world
    for size in (1, 5, 3):
        running.engine.submit(
            world.node.sign(*operation_batch(world, size, [HEART, AIR], [world.monitor.id])).data, NOW_MS
        )
        running.take(world.node.sign(*operation_batch(world, size, [AIR, HEART], [world.sensor.id])))
    history = running.engine.history(HEART)
    assert len(history) == 9
    assert [(i.height, i.index) for i in history] == sorted(((i.height, i.index) for i in history), reverse=True)
    whole = [(item.height, item.index, item.entry) for item in reversed(history)]
    proved = running.engine.state(b"history/" + HEART)
    proved.verify(world.trust)
    verify_history(HEART, whole, proved)
    for cut in (whole[1:], whole[:-1], whole[:4] + whole[5:], [whole[1], whole[0], *whole[2:]], []):
        with pytest.raises(Withheld):
            verify_history(HEART, cut, proved)
    newest = running.engine.history(HEART, most=4)
    older = running.engine.history(HEART, before=(newest[-1].height, newest[-1].index))
    assert newest + older == history
    assert running.engine.history(token("silent")) == []


def anchored_around_a_revocation(running: Running) -> list[Submitted]:
    """Anchors before and after, each in a block of its own and in the one of the revocation; the latter's three."""
    world = running.world

    def anchor(size: int) -> Transaction:
        return world.node.sign(entries.anchor(HEART, 0, size, seed(str(size))))

    for size in (1, 2):
        running.take(anchor(size))
    placed = running.take(anchor(3), world.monitor.sign(entries.revoke(world.monitor.id)), anchor(4))
    running.take(anchor(5))
    return placed


def test_the_last_anchor_before_a_revocation_is_found(running: Running) -> None:
    world = running.world
    before, revocation, _ = anchored_around_a_revocation(running)
    found = find_before_revocation(running.engine, world.monitor.id, HEART, 0)
    assert found == ((revocation.number, 0), (before.number, 0))
    assert find_before_revocation(running.engine, world.monitor.id, HEART, 1) is None
    assert find_before_revocation(running.engine, world.monitor.id, AIR, 0) is None
    assert find_before_revocation(running.engine, world.doctor.id, HEART, 0) is None, "it was not revoked"


class Crowded:
    """An engine whose every stretch of blocks holds more anchors of others than one look takes in."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.looks = engine, 0

    def audit(self, query: Query) -> list[AuditItem]:
        self.looks += 1
        other = entries.anchor(AIR, 0, 0, EMPTY_ROOT)
        return [AuditItem(query.first_height, 0, 0, bytes(16), EntryKind.ANCHOR, [], other)] * query.most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def test_the_search_for_an_anchor_has_a_bound(running: Running) -> None:
    anchored_around_a_revocation(running)
    crowded: Any = Crowded(running.engine)
    assert find_before_revocation(crowded, running.world.monitor.id, HEART, 0) is None
    assert 0 < crowded.looks <= 48  # of each of three kinds of anchors


def test_audit_finds_by_principal_topic_kind_refusal_and_height(running: Running) -> None:
    world = running.world
    running.take(world.node.sign(*operation_batch(world, 6, [HEART, AIR], [world.monitor.id, world.sensor.id])))
    refused = entries.operation(
        *(world.sensor.id, OperatorRole.PUBLISHER, HEART, 2),
        time_ms=NOW_MS,
        request=seed("r"),
        reason="no-right",
    )
    placed = running.take(world.node.sign(refused, entries.junk("unsigned", 9, 2, time_ms=NOW_MS)))[0]

    def found(**query: Any) -> int:
        return len(running.engine.audit(Query(**query)))

    assert found(principal=world.sensor.id) == 4
    assert found(principal=world.sensor.id, refused=True) == 1
    assert found(token=HEART) == 4
    assert found(token=HEART, principal=world.sensor.id) == 1
    assert found(refused=True) == 2
    assert found(kind=EntryKind.OPERATION) == 8
    assert found(kind=EntryKind.TOPIC) == 2
    assert found(kind=EntryKind.OPERATION, first_height=placed.height) == 2
    assert found(kind=EntryKind.OPERATION, end_height=placed.height) == 6
    assert found(token=HEART, first_height=placed.height) == 1
    assert found(token=HEART, end_height=placed.height) == 3
    assert found(kind=EntryKind.OPERATION, most=3) == 3
    assert found(principal=world.doctor.id, kind=EntryKind.TOPIC) == 1


def test_families_are_scanned_and_queries_read_what_is_stored(running: Running) -> None:
    world = running.world
    running.take(world.node.sign(entries.anchor(AIR, 2, 3, seed("root")), entries.anchor(AIR, 1, 1, seed("r"))))
    assert [place for place, _ in running.engine.scan(ANCHORS, AIR)] == [(AIR, 1), (AIR, 2)]
    assert len(running.engine.scan(ANCHORS, most=1)) == 1
    found = running.engine.query(lambda state: anchors.find(state, AIR, 2))
    assert found is not None
    assert found[:2] == (3, seed("root"))
    if running.makes_blocks:
        running.engine.submit(world.node.sign(entries.anchor(AIR, 2, 9, seed("later"))).data, NOW_MS)
        assert running.engine.query(lambda state: anchors.find(state, AIR, 2)) == found, "not yet stored"


def test_listeners_learn_what_a_block_changed(running: Running) -> None:
    world = running.world
    seen: dict[int, set[bytes]] = {}
    running.engine.on_block(lambda block, keys: seen.update({block.height: set(keys)}))
    placed = running.take(world.doctor.sign(entries.grant(HEART, world.monitor.id, Right.READ)))[0]
    assert {b"right/" + HEART + world.monitor.id, b"rights/" + world.monitor.id} <= seen[placed.height]


def test_who_waited_for_a_withdrawal_finds_that_listeners_heard_of_it(running: Running) -> None:
    """Guards go by what they were told: else a right would count after its owner was told that it is gone."""
    world, heard = running.world, list[int]()
    running.engine.on_block(lambda block, _: heard.append(block.height))
    for number in range(20):
        change = entries.withdraw if number % 2 else entries.grant
        placed = running.take(world.doctor.sign(change(HEART, world.monitor.id, Right.READ)))[0]
        assert placed.height in heard


def test_waiting_for_a_block_that_is_not_made_ends(tmp_path: Path) -> None:
    """Only where the caller makes the blocks: a chain's `submit` returns when the block is there."""
    running = sqlite(tmp_path, World())
    running.take(*running.world.founding())
    world = running.world
    placed = running.engine.submit(world.sensor.sign(world.topic("late", world.sensor, HOME)).data, NOW_MS)
    with pytest.raises(Unavailable):
        running.engine.wait(placed, timeout_s=0)
    running.close()


@pytest.mark.parametrize("engine", PARAMETERS)
def test_the_same_transactions_give_the_same_tree(engine: str, tmp_path: Path) -> None:
    """And the same state, where they come at the same heights."""
    world = WORLDS[engine](tmp_path)
    batches = [
        world.founding(),
        [world.landlord.sign(world.topic("third", world.sensor, HOME))],
        [world.node.sign(*operation_batch(world, 40, [HEART, AIR], [a.id for a in world.principals]))],
        [world.doctor.sign(world.topic("second", world.doctor, HOSPITAL))],
    ]
    roots = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        running = ENGINES[engine](tmp_path / name, world)
        for batch in batches:
            running.take(*batch)
        head = read_head(running.engine.checkpoint(), world.trust)
        roots.append((head.size, head.root, head.state_root if running.makes_blocks else None))
        running.close()
    assert roots[0] == roots[1]
