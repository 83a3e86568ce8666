"""The chain's application without a chain: blocks handed to it as CometBFT would, crashes where they hurt."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from chain_world import Node
from ledger_world import HOME, NOW_MS, World, operation_batch, token

from tallystick.abci import messages as m
from tallystick.crypto.merkle import Tree
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed, Misuse, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.block import Block, Transaction, checkpoint_text
from tallystick.ledger.cometbft import queries
from tallystick.ledger.cometbft.application import ChainSettings, LedgerApplication, genesis_state
from tallystick.ledger.cometbft.roots import app_hash, app_hash_of
from tallystick.ledger.cometbft.snapshot import Description, Restore, cut
from tallystick.ledger.fsck import fsck
from tallystick.trust.right import Right
from tallystick.wire import decode

HEART, AIR = token("heart"), token("air")
WORLD = World()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    world = World()
    node = Node(tmp_path / "ledger.sqlite", world)
    for transaction in world.founding():
        node.block(transaction)
    yield node
    node.application.close()


def operations(world: World, count: int = 3) -> Transaction:
    return world.node.sign(*operation_batch(world, count, [HEART, AIR], [world.monitor.id]))


def test_what_was_finalised_and_not_committed_is_gone_after_a_crash_and_comes_again(node: Node) -> None:
    transaction = operations(node.world)
    first = node.finalize(transaction.data)
    again = node.restart()
    info = again.application.info(m.RequestInfo())
    assert (info.last_block_height, info.last_block_app_hash) == (3, node.hash)
    assert again.finalize(transaction.data) == first
    again.application.commit(m.RequestCommit())
    assert again.application.info(m.RequestInfo()).last_block_app_hash == first.app_hash
    again.application.close()


def test_a_block_may_be_finalised_twice_without_a_commit(node: Node) -> None:
    one, other = operations(node.world, 2), operations(node.world, 5)
    node.finalize(one.data)
    expected = node.finalize(one.data, other.data)
    assert node.finalize(one.data, other.data) == expected
    node.application.commit(m.RequestCommit())
    assert node.application.book.last.size == 5


def test_two_validators_agree_whatever_they_saw_before(tmp_path: Path) -> None:
    world = World()
    blocks = [world.founding(), [operations(world)], [], [operations(world, 7), operations(world, 1)]]
    nodes = [Node(tmp_path / f"{name}.sqlite", world) for name in ("one", "two")]
    for block in blocks:
        nodes[0].block(*block)
        nodes[1].finalize(*(b"junk", block[0].data) if block else (b"junk",))  # a proposal that was not decided
        nodes[1].block(*block)
        nodes[1].application.close()
        nodes[1] = nodes[1].restart()
        nodes[1].hash = nodes[0].hash
        found = [one.application.info(m.RequestInfo()).last_block_app_hash for one in nodes]
        assert found[0] == found[1]
    for one in nodes:
        one.application.close()


def test_an_empty_block_leaves_the_app_hash(node: Node) -> None:
    before = node.hash
    assert node.block().app_hash == before, "else CometBFT would make blocks without end"


def test_finalise_checks_everything_again(node: Node) -> None:
    world = node.world
    good = operations(world)
    forged = bytearray(good.data)
    forged[97] ^= 1
    wrong = world.landlord.sign(entries.grant(HEART, world.monitor.id, 1))
    results = node.finalize(b"junk", bytes(forged), wrong.data, good.data, good.data).tx_results
    assert [one.code for one in results] == [1, 1, 1, 0, 1]
    assert results[2].codespace == "not-owner"
    assert results[4].codespace == "replayed"
    node.application.commit(m.RequestCommit())
    assert node.application.book.last.size == 4
    assert node.ask("find", wrong.leaf)[1:] == ["not-owner", results[2].log]
    assert node.ask("find", good.leaf) == [3, 4, 0]
    assert node.ask("find", bytes(32)) is None


def test_a_check_lets_in_what_is_signed_and_new_and_runs_no_contract(node: Node) -> None:
    world = node.world

    def check(data: bytes) -> m.ResponseCheckTx:
        return node.application.check_tx(m.RequestCheckTx(data))

    good = operations(world)
    assert check(good.data).code == 0
    not_owner = world.landlord.sign(entries.grant(HEART, world.monitor.id, 1))
    assert check(not_owner.data).code == 0, "that is for the block to say"
    node.block(good)
    assert check(good.data).codespace == "replayed"
    assert check(b"junk").codespace == "malformed"
    assert check(World().actor("nobody", 3, HOME).sign(b"\x81\x01").data).code == 1  # type: ignore[arg-type]


def test_a_proposal_with_junk_is_refused(node: Node) -> None:
    good = operations(node.world).data
    verdicts = [
        node.application.process_proposal(m.RequestProcessProposal(txs)).status
        for txs in ((good,), (), (good, b"junk"))
    ]
    assert verdicts == [m.Verdict.ACCEPT, m.Verdict.ACCEPT, m.Verdict.REJECT]


def test_a_slow_query_does_not_stall_a_block(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()
    audit = queries.write_audit

    def slow(items: Any) -> Any:
        reading.set()
        assert go_on.wait(30)
        return audit(items)

    monkeypatch.setattr(queries, "write_audit", slow)
    asking = threading.Thread(target=node.ask, args=("audit", None, None, None, False, 0, None, 10))
    asking.start()
    assert reading.wait(30)
    for _ in range(3):
        node.block(operations(node.world))
    go_on.set()
    asking.join()
    assert node.application.book.last.height == 6


def test_the_chain_of_another_instance_is_not_begun(tmp_path: Path) -> None:
    application = LedgerApplication(str(tmp_path / "l.sqlite"), WORLD.trust, WORLD.ledger_key)
    other = World(ledger_keys=(bytes(range(32)), WORLD.ledger_key.public.raw))
    state = json.dumps(genesis_state(other.trust)).encode()
    with pytest.raises(Misuse, match="of instance"):
        application.init_chain(m.RequestInitChain(app_state_bytes=state, initial_height=1))
    with pytest.raises(Malformed, match="does not name a trust file"):
        application.init_chain(m.RequestInitChain(app_state_bytes=b"{}", initial_height=1))
    state = json.dumps(genesis_state(WORLD.trust)).encode()
    with pytest.raises(Misuse, match="begins at height 7"):
        application.init_chain(m.RequestInitChain(app_state_bytes=state, initial_height=7))
    application.close()


def test_the_file_of_a_chain_that_ended_begins_another_and_no_other_place_does(node: Node) -> None:
    last, world = node.application.book.last, node.world
    node.application.close()

    def begin(first_height: int) -> LedgerApplication:
        return LedgerApplication(str(node.path), world.trust, world.ledger_key, first_height=first_height)

    node.application = begin(1)
    assert node.application.info(m.RequestInfo()).last_block_height == last.height, "its own chain goes on"
    node.application.close()
    node.application = begin(last.height + 1)
    assert node.application.info(m.RequestInfo()).last_block_height == 0, "the node begins with init_chain"
    ends = checkpoint_text(world.trust.origin, last)
    for height, checkpoint in ((last.height, ends), (last.height + 1, ""), (last.height + 1, ends + "x")):
        state = json.dumps(genesis_state(world.trust, checkpoint)).encode()
        with pytest.raises((Misuse, Forged)):
            node.application.init_chain(m.RequestInitChain(app_state_bytes=state, initial_height=height))
    state = json.dumps(genesis_state(world.trust, ends)).encode()
    begun = node.application.init_chain(m.RequestInitChain(app_state_bytes=state, initial_height=last.height + 1))
    assert begun.app_hash == app_hash_of(last)
    node.block(operations(world))
    assert node.application.info(m.RequestInfo()).last_block_height == last.height + 1


def test_what_is_remembered_of_transactions_is_bounded_by_their_bytes(tmp_path: Path) -> None:
    world = World()
    large, small = operations(world, 40).data, operations(world, 2).data
    settings = ChainSettings(parsed_bytes_max=len(large) + len(small))
    application = LedgerApplication(str(tmp_path / "l.sqlite"), world.trust, world.ledger_key, settings)
    parsed = [application._parsed(data) for data in (large, small)]
    assert [application._parsed(data) for data in (large, small)] == parsed
    assert application._parsed(bytes(bytearray(large))) is parsed[0], "by content"
    application._parsed(operations(world, 1).data)
    assert application._parsed(small) is not parsed[1], "the one that was asked for last longest ago went"
    assert application._transactions_bytes == sum(map(len, application._transactions)) <= settings.parsed_bytes_max
    application.close()


def test_a_validator_s_file_passes_fsck(node: Node) -> None:
    node.block(operations(node.world))
    node.application.close()
    assert fsck(str(node.path), node.world.trust).transactions == 4
    node.application = LedgerApplication(str(node.path), node.world.trust, node.world.ledger_key)


# --- snapshots ---


@pytest.fixture
def snapshot(tmp_path: Path) -> Iterator[tuple[Node, m.Snapshot, list[bytes]]]:
    world = World()
    node = Node(tmp_path / "source.sqlite", world, ChainSettings(snapshot_blocks=5))
    for transaction in (*world.founding(), operations(world, 40), operations(world, 2)):
        node.block(transaction)
    node.application.shelf.close()
    offered = node.application.list_snapshots(m.RequestListSnapshots()).snapshots[-1]
    chunks = [
        node.application.load_snapshot_chunk(m.RequestLoadSnapshotChunk(5, 1, index)).chunk
        for index in range(offered.chunks)
    ]
    yield node, offered, chunks
    node.application.close()


def test_snapshots_outlive_the_process_and_are_few(tmp_path: Path) -> None:
    world = World()
    node = Node(tmp_path / "source.sqlite", world, ChainSettings(snapshot_blocks=2))
    for transaction in (*world.founding(), *(operations(world, 2) for _ in range(5))):
        node.block(transaction)
        node.application.shelf.close()  # cut before the next block, so that every second one is
    held = node.application.shelf.held()
    assert [one.height for one in held] == [6, 8]
    node.application.close()
    torn = node.application.shelf.folder / "7.0"
    torn.write_bytes(b"a crash came between chunk and description")
    again = LedgerApplication(str(node.path), world.trust, world.ledger_key)
    assert again.shelf.held() == held
    assert again.load_snapshot_chunk(m.RequestLoadSnapshotChunk(8, 1, 0)).chunk
    assert again.load_snapshot_chunk(m.RequestLoadSnapshotChunk(7, 1, 0)).chunk == b"", "never whole"
    assert again.shelf.take() == 8, "the newest block has one already"
    again.shelf.forget_above(7)
    assert [one.height for one in again.shelf.held()] == [6], "a block that was taken back has none"
    assert again.shelf.take() == 8
    assert [one.height for one in again.shelf.held()] == [6, 8]
    again.close()
    node.path.unlink()
    fresh = LedgerApplication(str(node.path), world.trust, world.ledger_key)
    assert fresh.shelf.held() == [], "of another file"
    fresh.close()


def joining(tmp_path: Path, node: Node) -> LedgerApplication:
    return LedgerApplication(
        str(tmp_path / "joined.sqlite"),
        node.world.trust,
        node.world.ledger_key,
        agreed_block=lambda height: node.ask("block", height),
    )


def test_a_joined_validator_goes_on_with_the_same_hashes(tmp_path: Path, snapshot: Any) -> None:
    node, offered, chunks = snapshot
    joined = joining(tmp_path, node)
    accepted = joined.offer_snapshot(m.RequestOfferSnapshot(offered, node.hash))
    assert accepted.result == m.OfferResult.ACCEPT
    for index in reversed(range(len(chunks))):
        done = joined.apply_snapshot_chunk(m.RequestApplySnapshotChunk(index, chunks[index], "peer"))
        assert done.result == m.ApplyResult.ACCEPT
    info = joined.info(m.RequestInfo())
    assert (info.last_block_height, info.last_block_app_hash) == (5, node.hash)
    transaction = operations(node.world)
    request = m.RequestFinalizeBlock((transaction.data,), height=6, time=m.Timestamp(NOW_MS // 1000 + 6))
    expected = node.block(transaction)
    assert joined.finalize_block(request) == expected
    joined.commit(m.RequestCommit())
    assert joined.book.last == node.application.book.last
    with pytest.raises(Unavailable, match="older than the snapshot"):
        joined.book.receipt(0, 0, 6, b"")
    joined.book.receipt(5, 0, 6, b"")
    joined.close()


def test_a_bad_chunk_is_fetched_again_and_its_sender_banned(tmp_path: Path, snapshot: Any) -> None:
    node, offered, chunks = snapshot
    joined = joining(tmp_path, node)
    joined.offer_snapshot(m.RequestOfferSnapshot(offered, node.hash))
    for index, chunk in enumerate(chunks):
        swapped = chunks[(index + 1) % len(chunks)]
        for bad in (b"", chunk[:-1] + bytes([chunk[-1] ^ 1]), chunk + chunk, swapped):
            done = joined.apply_snapshot_chunk(m.RequestApplySnapshotChunk(index, bad, "liar"))
            assert (done.result, done.reject_senders) == (m.ApplyResult.RETRY, ("liar",))
    assert joined.info(m.RequestInfo()).last_block_height == 0
    joined.close()


def test_a_snapshot_of_another_state_is_refused_before_anything_is_fetched(tmp_path: Path, snapshot: Any) -> None:
    node, offered, _ = snapshot
    joined = joining(tmp_path, node)
    true = Description.decode(offered.metadata)
    values = dict(node.application.book.store.values())
    values[b"right/forged"] = b"\x01"
    leaves = b"".join(node.application.book.store.leaves())
    forged, _ = cut(true.block, leaves, values.items(), len(values))
    other = Block.decode(node.ask("block", 4))
    for description in (
        forged.encode(),
        Description(other, true.leaf_roots, true.depth, true.state_roots).encode(),
        offered.metadata[:-1],
        b"",
    ):
        lie = m.Snapshot(5, 1, offered.chunks, offered.hash, description)
        assert joined.offer_snapshot(m.RequestOfferSnapshot(lie, node.hash)).result == m.OfferResult.REJECT
    assert joined.offer_snapshot(m.RequestOfferSnapshot(offered, bytes(32))).result == m.OfferResult.REJECT
    joined.close()


def test_a_forged_snapshot_gives_a_right_to_whoever_does_not_check(snapshot: Any) -> None:
    """The same forgery against a reader that takes the peer's own roots for the truth, as a bare hash list would."""
    node, offered, _ = snapshot
    true = Description.decode(offered.metadata)
    values = {**dict(node.application.book.store.values()), b"right/forged": b"\x01"}
    leaves = b"".join(node.application.book.store.leaves())
    forged, chunks = cut(true.block, leaves, values.items(), len(values))
    with pytest.raises(Forged, match="lead to another root"):
        Description.decode(forged.encode())
    trusting = Restore(forged, app_hash_of(true.block), true.block.encoded)  # `decode`, and so its check, left out
    for index, chunk in enumerate(chunks):
        trusting.apply(index, chunk)
    assert dict(trusting.items())[b"right/forged"] == b"\x01", "the attack succeeds"


def test_a_snapshot_is_not_offered_to_a_validator_that_has_a_ledger_or_no_peers_to_ask(
    tmp_path: Path, snapshot: Any
) -> None:
    node, offered, _ = snapshot
    request = m.RequestOfferSnapshot(offered, node.hash)
    assert node.application.offer_snapshot(request).result == m.OfferResult.ABORT
    alone = LedgerApplication(str(tmp_path / "alone.sqlite"), node.world.trust, node.world.ledger_key)
    assert alone.offer_snapshot(request).result == m.OfferResult.ABORT
    assert alone.apply_snapshot_chunk(m.RequestApplySnapshotChunk()).result == m.ApplyResult.ABORT
    alone.close()


@pytest.mark.parametrize("keys", [0, 1, 2, 3, 50, 9000])
def test_a_cut_ledger_is_put_together_again(keys: int) -> None:
    from tallystick.crypto.merkle_map import MerkleMap

    values = {f"key {n}".encode(): f"value {n}".encode() for n in range(keys)}
    state = MerkleMap({})
    state.update(values)
    leaves = Tree([bytes([n % 256]) * 32 for n in range(keys)])
    block = Block(7, 1, 0, 0, keys, leaves.root(), state.root, bytes(32))
    description, chunks = cut(block, bytes(leaves._levels[0]), values.items(), keys)
    restore = Restore(Description.decode(description.encode()), app_hash_of(block), block.encoded)
    for index, chunk in enumerate(chunks):
        restore.apply(index, chunk)
    assert restore.is_whole
    assert dict(restore.items()) == values
    assert Tree(restore.leaves()).root() == leaves.root()
    assert app_hash(block.size, block.root, block.state_root) == app_hash_of(block)


def test_a_scan_as_of_a_height_has_the_same_pages_whatever_came_after(node: Node) -> None:
    """Rows were added, changed and taken away since; so validators a few blocks apart say the same."""
    world = node.world
    people = [world.monitor, world.doctor, world.sensor]
    steps = [entries.grant(HEART, one.id, Right.READ) for one in people]
    steps += [entries.grant(HEART, one.id, Right.WRITE) for one in people[:2]]
    steps += [entries.withdraw(HEART, one.id, Right.READ) for one in reversed(people)]
    then: dict[int, list[Any]] = {}
    for step in steps:
        node.block(world.doctor.sign(step))
        then[node.height] = node.ask("scan", b"right", 1000, b"")
    assert len(then[node.height]) < max(map(len, then.values())), "one was taken away"
    for height, rows in then.items():
        for most in (1, 2, 3, 1000):
            found: list[Any] = []
            while page := node.ask("scan", b"right", most, found[-1][0] if found else b"", height):
                assert page == rows[len(found) : len(found) + most]
                found += page
            assert found == rows
    with pytest.raises(Unavailable, match="not held"):
        node.ask("scan", b"right", 10, b"", node.height + 1)


def test_clients_of_the_release_before_find_what_they_ask_for(node: Node) -> None:
    """They follow without signatures, and scan what is newest."""
    node.block(operations(node.world))
    newest, page = node.ask("follow", 2)
    assert newest == node.height == 4
    assert [Block.decode(block).height for block, _ in page] == [3, 4]
    assert [block for block, _ in page] == [block for block, _ in node.ask("changes", 3, 5, False)]
    assert page == node.ask("changes", 3, 5, True)
    assert node.ask("scan", b"topic/", 10, b"") == node.ask("scan", b"topic/", 10, b"", 4)


def test_an_answer_is_vouched_for_at_a_height_that_is_there(node: Node) -> None:
    key, signature, value = node.ask("vouch", "block", [2], 3, True)
    assert Block.decode(decode(value)).height == 2
    statement = queries.vouched(node.world.instance, "block", [2], 3, sha256(value).digest())
    queries.check_vouch(node.world.trust, key, signature, statement)
    assert node.ask("vouch", "block", [2], 3, False) == [key, signature, sha256(value).digest()]
    for other in (
        queries.vouched(node.world.instance, "block", [3], 3, sha256(value).digest()),
        queries.vouched(node.world.instance, "block", [2], 2, sha256(value).digest()),
        queries.vouched(bytes(32), "block", [2], 3, sha256(value).digest()),
    ):
        with pytest.raises(Forged):
            queries.check_vouch(node.world.trust, key, signature, other)
    stranger = node.world.monitor.key
    signed = stranger.sign(queries.VOUCH, statement)
    with pytest.raises(Forged, match="none of the trust file's validators"):
        queries.check_vouch(node.world.trust, stranger.public.raw, signed, statement)
    assert node.ask("vouch", "block", [2], 4, True) is None, "it is at height 3"
    for name in ("vouch", "status", "note"):
        with pytest.raises(Misuse, match="no answer that is vouched for"):
            node.ask("vouch", name, [], 0, True)


@pytest.mark.parametrize(("validators", "needed"), [(1, 1), (2, 2), (3, 2), (4, 2), (6, 2), (7, 3), (10, 4)])
def test_so_many_say_the_same_that_one_is_honest(validators: int, needed: int) -> None:
    keys = tuple(SigningKey.from_seed(bytes([n]) * 32).public.raw for n in range(validators))
    assert queries.voices_needed(World(ledger_keys=keys).trust) == needed
