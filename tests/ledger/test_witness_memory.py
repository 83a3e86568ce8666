"""Rollback and split view: what clients remember, what witnesses cosign, and what that finds."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ledger_world import NOW_MS, World, operation_batch, seed, token
from memory_child import accept_all

from tallystick import wire
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed, Refused, Unavailable, Withheld
from tallystick.ledger import entries
from tallystick.ledger.block import Head, read_head, sign_checkpoint
from tallystick.ledger.proofs import CheckpointMemory, Lagging
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.witness import Witness, encode_request, read_answer
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.trust.notes import Algorithm, Checkpoint, Note, NoteSigner, ledger_verifiers
from tallystick.trust.right import Right

HEART = token("heart")
NOW_S = NOW_MS // 1000
WORLD = World()
FOUNDING = WORLD.founding()
SIGNER = NoteSigner("witness.example/one", SigningKey.from_seed(seed("witness")), Algorithm.COSIGNATURE_V1)


def ledger_at(path: Path, world: World = WORLD) -> SqliteLedger:
    return SqliteLedger(str(path), world.trust, world.ledger_key, NOW_MS)


def grow(ledger: SqliteLedger, *data: bytes) -> bytes:
    for one in data:
        ledger.submit(one, NOW_MS)
    ledger.flush(NOW_MS)
    return ledger.newest_note()


def batch(count: int = 1, world: World = WORLD) -> bytes:
    return world.node.sign(*operation_batch(world, count, [HEART], [world.monitor.id])).data


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    ledger = ledger_at(tmp_path / "ledger.db")
    grow(ledger, *(transaction.data for transaction in FOUNDING))
    yield ledger
    ledger.close()


# --- the client's memory ---


def test_a_client_follows_a_ledger_that_goes_on(ledger: SqliteLedger) -> None:
    disk = SeededDisk(1)
    memory = CheckpointMemory(WORLD.trust, disk)
    for _ in range(3):
        head = memory.accept(grow(ledger, batch()), ledger.consistency)
        assert memory.head == head
    ledger.flush(NOW_MS + 1)
    memory.accept(ledger.checkpoint(), ledger.consistency)
    assert CheckpointMemory(WORLD.trust, disk).head == memory.head
    assert memory.evidence() == []


def test_a_ledger_put_back_to_an_older_copy_is_refused(tmp_path: Path, ledger: SqliteLedger) -> None:
    ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "yesterday.db")
    ledger = ledger_at(tmp_path / "ledger.db")
    memory = CheckpointMemory(WORLD.trust, RealDisk(tmp_path / "memory"))
    newest = grow(ledger, batch())
    memory.accept(newest, ledger.consistency)
    ledger.close()
    restored = ledger_at(tmp_path / "yesterday.db")
    forgetful = CheckpointMemory(WORLD.trust, SeededDisk(1))
    forgetful.accept(restored.checkpoint(), restored.consistency)  # the attack works on who remembers nothing
    with pytest.raises(Lagging):  # of one among several that only lags, nothing is kept
        memory.accept(restored.checkpoint(), restored.consistency, may_lag=True)
    assert memory.evidence() == []
    with pytest.raises(Withheld) as refusal:
        memory.accept(restored.checkpoint(), restored.consistency)
    assert refusal.value.reason == "rollback"
    assert [wire.decode(item) for item in memory.evidence()] == [["rollback", newest, restored.checkpoint()]]
    regrown = grow(restored, batch(2), batch(3))
    with pytest.raises(Withheld) as refusal:
        memory.accept(regrown, restored.consistency, may_lag=True)
    assert refusal.value.reason == "split-view", "growing past the remembered size does not help"
    assert memory.head is not None
    assert memory.head.note == newest
    restored.close()


def test_what_one_process_accepted_binds_the_others_of_its_identity(tmp_path: Path, ledger: SqliteLedger) -> None:
    disk = RealDisk(tmp_path / "memory")
    first, second = CheckpointMemory(WORLD.trust, disk), CheckpointMemory(WORLD.trust, disk)
    notes = [grow(ledger, batch()) for _ in range(3)]
    first.accept(notes[0], ledger.consistency)
    newest = second.accept(notes[2], ledger.consistency)
    assert first.accept(notes[1], ledger.consistency).note == notes[1]  # asked for before, and no contradiction
    assert first.head == newest == CheckpointMemory(WORLD.trust, disk).head, "the memory went back"
    with pytest.raises(Withheld, match="it was at height"):
        first.accept(notes[1], ledger.consistency)


def test_a_fork_shown_to_one_of_two_processes_of_an_identity_is_found(tmp_path: Path, ledger: SqliteLedger) -> None:
    ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "fork.db")
    ledger, fork = ledger_at(tmp_path / "ledger.db"), ledger_at(tmp_path / "fork.db")
    disk = RealDisk(tmp_path / "memory")
    one, two = CheckpointMemory(WORLD.trust, disk), CheckpointMemory(WORLD.trust, disk)
    one.accept(grow(ledger, batch(1)), ledger.consistency)
    with pytest.raises(Withheld) as refusal:
        two.accept(grow(fork, batch(2)), fork.consistency)
    assert refusal.value.reason == "split-view"
    ledger.close()
    fork.close()


def test_what_was_asked_for_before_another_thread_moved_the_memory_is_no_rollback(
    tmp_path: Path, ledger: SqliteLedger
) -> None:
    ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "fork.db")
    ledger, fork = ledger_at(tmp_path / "ledger.db"), ledger_at(tmp_path / "fork.db")
    memory = CheckpointMemory(WORLD.trust, SeededDisk(1))
    first, late, newest = [grow(ledger, batch()) for _ in range(3)]
    asked_at = memory.accept(first, ledger.consistency).height
    known = memory.accept(newest, ledger.consistency)
    assert memory.accept(late, ledger.consistency, since=asked_at).note == late
    assert (memory.head, memory.evidence()) == (known, [])
    with pytest.raises(Withheld, match="it was at height"):
        memory.accept(first, ledger.consistency, since=asked_at + 1)
    forked = grow(fork, batch(2), batch(3))
    with pytest.raises(Withheld) as refusal:
        memory.accept(forked, ledger.consistency, since=asked_at)
    assert refusal.value.reason == "split-view", "a late answer is of our own history all the same"
    ledger.close()
    fork.close()


def test_two_threads_that_accept_at_once_hold_what_they_were_shown_against_each_other(
    tmp_path: Path, ledger: SqliteLedger
) -> None:
    first = grow(ledger, batch())
    ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "fork.db")
    ledger, fork = ledger_at(tmp_path / "ledger.db"), ledger_at(tmp_path / "fork.db")
    memory = CheckpointMemory(WORLD.trust, SeededDisk(1))
    memory.accept(first, ledger.consistency)
    mine, shown_to_another = grow(ledger, batch(1)), [grow(fork, batch(2))]

    def overtaken(old: int, new: int) -> Sequence[bytes]:
        if shown_to_another:  # while ours is held against the one before, another thread accepts a fork of it
            memory.accept(shown_to_another.pop(), fork.consistency)
        return ledger.consistency(old, new)

    with pytest.raises(Withheld) as refusal:
        memory.accept(mine, overtaken)
    assert refusal.value.reason == "split-view"
    ledger.close()
    fork.close()


def test_a_checkpoint_that_another_thread_accepts_meanwhile_accuses_nobody(ledger: SqliteLedger) -> None:
    class Overtaken(CheckpointMemory):
        """Whose head is a newer one whenever it is looked at."""

        @property
        def head(self) -> Head | None:
            return heads.pop(0) if len(heads) > 1 else heads[0]

        @head.setter
        def head(self, _: Head | None) -> None: ...

    heads: list[Head | None] = [None]
    memory = Overtaken(WORLD.trust, SeededDisk(1))
    heads[:] = [read_head(grow(ledger, batch()), WORLD.trust) for _ in range(6)]
    seen = heads[0]
    assert seen is not None
    assert memory.check_seen(seen.size, seen.root, ledger.consistency)
    assert memory.evidence() == []


def test_processes_that_share_a_memory_neither_fail_nor_spoil_it(tmp_path: Path, ledger: SqliteLedger) -> None:
    notes = [grow(ledger, batch()) for _ in range(12)]
    sizes = [read_head(note, WORLD.trust).size for note in notes]
    proofs = {(old, new): ledger.consistency(old, new) for old in sizes for new in sizes if old <= new}
    start = multiprocessing.get_context("spawn")
    arguments = (tmp_path / "memory", WORLD.trust.to_json(), notes, proofs)
    workers = [start.Process(target=accept_all, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    head = CheckpointMemory(WORLD.trust, RealDisk(tmp_path / "memory")).head
    assert head is not None
    assert head.note == notes[-1]


def test_a_fork_shown_to_one_of_two_subscribers_is_found_through_the_data(tmp_path: Path, ledger: SqliteLedger) -> None:
    ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "fork.db")
    ledger, fork = ledger_at(tmp_path / "ledger.db"), ledger_at(tmp_path / "fork.db")
    grow(ledger, batch(1))
    right = WORLD.doctor.sign(entries.grant(HEART, WORLD.sensor.id, Right.READ)).data
    grow(fork, right)
    one, two = CheckpointMemory(WORLD.trust, SeededDisk(1)), CheckpointMemory(WORLD.trust, SeededDisk(2))
    mine = one.accept(ledger.checkpoint(), ledger.consistency)
    theirs = two.accept(fork.checkpoint(), fork.consistency)  # each alone is content: the attack without comparison
    assert one.check_seen(mine.size, mine.root, ledger.consistency)
    assert not one.check_seen(mine.size + 1, seed("newer"), ledger.consistency)
    with pytest.raises(Withheld) as refusal:
        one.check_seen(theirs.size, theirs.root, ledger.consistency)
    assert refusal.value.reason == "split-view"
    assert len(one.evidence()) == 1
    with pytest.raises(Withheld):
        one.accept(fork.checkpoint(), fork.consistency)
    ledger.close()
    fork.close()


def test_one_height_has_one_state_root(ledger: SqliteLedger) -> None:
    memory = CheckpointMemory(WORLD.trust, SeededDisk(1))
    memory.accept(ledger.checkpoint(), ledger.consistency)
    lie = replace(ledger.block(ledger.height), state_root=seed("another state"))
    with pytest.raises(Withheld, match="differ"):
        memory.accept(sign_checkpoint(WORLD.trust.origin, lie, WORLD.ledger_key), ledger.consistency)


def test_a_stranger_s_checkpoint_is_forged(ledger: SqliteLedger) -> None:
    memory = CheckpointMemory(WORLD.trust, SeededDisk(1))
    stranger = SigningKey.from_seed(seed("stranger"))
    note = sign_checkpoint(WORLD.trust.origin, ledger.block(ledger.height), stranger)
    with pytest.raises(Forged):
        memory.accept(note, ledger.consistency)
    with pytest.raises(Malformed):
        memory.accept(b"junk", ledger.consistency)


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("height 1", "time 2"),
        ("time 2", "height 1", "state " + "A" * 43 + "="),
        ("height 01", "time 2", "state " + "A" * 43 + "="),
        ("height 1", "time 2", "state AAAA"),
        ("height 1", "time 2", "state " + "A" * 43 + "=", "more 1"),
        ("height 1", "time -2", "state " + "A" * 43 + "="),
    ],
)
def test_extension_lines_have_one_form(lines: tuple[str, ...]) -> None:
    text = Checkpoint(WORLD.trust.origin, 0, bytes(32), lines).encode()
    note = Note.sign(text, NoteSigner(WORLD.trust.origin, WORLD.ledger_key)).encode()
    with pytest.raises(Malformed):
        read_head(note, WORLD.trust)


# --- witnesses ---


@pytest.fixture
def witness() -> Witness:
    return Witness(SIGNER, {WORLD.trust.origin: ledger_verifiers(WORLD.trust)}, SeededDisk(1))


def ask(witness: Witness, ledger: SqliteLedger, note: bytes, old: int) -> int:
    size = read_head(note, WORLD.trust).size
    proof = ledger.consistency(old, size) if 0 < old < size else []
    return witness.add_checkpoint(encode_request(old, proof, note), NOW_S).status


def test_a_witness_cosigns_one_history(ledger: SqliteLedger, witness: Witness) -> None:
    assert ask(witness, ledger, ledger.checkpoint(), 0) == 200
    grown = grow(ledger, batch())
    answer = witness.add_checkpoint(encode_request(0, [], grown), NOW_S)
    assert (answer.status, answer.body, answer.content_type) == (409, b"3\n", "text/x.tlog.size")
    assert read_answer(answer.status, answer.body) == 3
    answer = witness.add_checkpoint(encode_request(3, ledger.consistency(3, 4), grown), NOW_S)
    signatures = read_answer(answer.status, answer.body)
    assert isinstance(signatures, tuple)
    note = Note.decode(grown).add(signatures[0])
    signed = note.verify([SIGNER.verifier])
    assert [(one.verifier.name, one.time_s) for one in signed] == [(SIGNER.name, NOW_S)]
    assert ask(witness, ledger, grown, 4) == 200, "the same again is fine"


def test_a_witness_sees_through_a_fork_and_a_rollback(tmp_path: Path, ledger: SqliteLedger, witness: Witness) -> None:
    ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "fork.db")
    ledger, fork = ledger_at(tmp_path / "ledger.db"), ledger_at(tmp_path / "fork.db")
    before = ledger.checkpoint()
    newest = grow(ledger, batch(1), batch(1))
    assert ask(witness, ledger, newest, 0) == 200
    same_size = grow(fork, batch(2), batch(2))
    assert ask(witness, fork, same_size, 5) == 409
    longer = grow(fork, batch(2))
    assert ask(witness, fork, longer, 5) == 422
    assert ask(witness, fork, before, 3) == 409
    ledger.close()
    fork.close()


def test_a_witness_cosigns_one_state_per_height(ledger: SqliteLedger, witness: Witness) -> None:
    assert ask(witness, ledger, ledger.checkpoint(), 0) == 200
    block = ledger.block(ledger.height)
    for lie in (replace(block, state_root=seed("other")), replace(block, height=0)):
        note = sign_checkpoint(WORLD.trust.origin, lie, WORLD.ledger_key)
        assert witness.add_checkpoint(encode_request(3, [], note), NOW_S).status == 409


def test_a_witness_knows_its_logs(ledger: SqliteLedger, witness: Witness) -> None:
    block = ledger.block(ledger.height)
    stranger = SigningKey.from_seed(seed("stranger"))
    unknown = sign_checkpoint("tallystick/other", block, WORLD.ledger_key)
    unsigned = sign_checkpoint(WORLD.trust.origin, block, stranger)
    assert witness.add_checkpoint(encode_request(0, [], unknown), NOW_S).status == 404
    assert witness.add_checkpoint(encode_request(0, [], unsigned), NOW_S).status == 403
    assert witness.add_checkpoint(encode_request(9, [], ledger.checkpoint()), NOW_S).status == 400


@pytest.mark.parametrize(
    "change",
    [
        lambda body: b"",
        lambda body: b"old 1",
        lambda body: b"old -1\n\n" + body.partition(b"\n\n")[2],
        lambda body: b"old 01\n\n" + body.partition(b"\n\n")[2],
        lambda body: b"old 0\nAAAA\n\n" + body.partition(b"\n\n")[2],
        lambda body: b"old 0\n!!\n\n" + body.partition(b"\n\n")[2],
        lambda body: b"old 0\n" + (b"A" * 43 + b"=\n") * 64 + b"\n" + body.partition(b"\n\n")[2],
        lambda body: body[:-2],
        lambda body: b"\xff" + body,
    ],
)
def test_a_request_out_of_form_is_bad(ledger: SqliteLedger, witness: Witness, change: Callable[[bytes], bytes]) -> None:
    body = encode_request(0, [], ledger.checkpoint())
    assert witness.add_checkpoint(change(body), NOW_S).status == 400


def test_what_a_witness_cosigned_is_on_its_disk_first(ledger: SqliteLedger) -> None:
    disk = SeededDisk(7)
    logs = {WORLD.trust.origin: ledger_verifiers(WORLD.trust)}
    assert ask(Witness(SIGNER, logs, disk), ledger, ledger.checkpoint(), 0) == 200
    disk.crash()
    again = Witness(SIGNER, logs, disk)
    assert ask(again, ledger, ledger.checkpoint(), 0) == 409
    assert ask(again, ledger, ledger.checkpoint(), 3) == 200


def test_other_answers_of_a_witness_are_errors() -> None:
    with pytest.raises(Refused):
        read_answer(403, b"")
    with pytest.raises(Unavailable):
        read_answer(503, b"")
    with pytest.raises(Unavailable):
        read_answer(409, b"no number")
    with pytest.raises(Malformed):
        read_answer(200, b"no signature")


# --- together ---


def test_without_the_quorum_nothing_is_believed(tmp_path: Path) -> None:
    world = World(witnesses=(SIGNER.verifier.encode(),), quorum=1)
    ledger = ledger_at(tmp_path / "w.db", world)
    note = grow(ledger, *(transaction.data for transaction in world.founding()))
    memory = CheckpointMemory(world.trust, SeededDisk(1))
    with pytest.raises(Forged, match="1 cosignatures expected, found 0"):
        memory.accept(note, ledger.consistency)
    witness = Witness(SIGNER, {world.trust.origin: ledger_verifiers(world.trust)}, SeededDisk(2))
    answer = witness.add_checkpoint(encode_request(0, [], note), NOW_S)
    signatures = read_answer(answer.status, answer.body)
    assert isinstance(signatures, tuple)
    ledger.cosign(Note.decode(note).add(signatures[0]).encode())
    head = memory.accept(ledger.checkpoint(), ledger.consistency)
    assert head.cosigners == (SIGNER.name,)
    ledger.close()
