"""An operator against its own ledger: rights edited in the database, results that the rules do not give, yesterday's
copy put back, two histories shown to two subscribers; with witnesses and without."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from actors import Hand, Liar, Topic, fresh_memory, read_rows, settle, stored, subscribe_through
from stack import READ, Stack
from test_broker import Later, found_by
from without import without

from tallystick import wire
from tallystick.carriers.storage import Place
from tallystick.client.subscribe import Subscriber
from tallystick.client.ties import View
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Refused, Withheld
from tallystick.ledger import entries
from tallystick.ledger.block import compose, read_head
from tallystick.ledger.contracts.access import RIGHTS
from tallystick.ledger.fsck import fsck
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.witness import Witness, encode_request, read_answer
from tallystick.runtime.disk import RealDisk
from tallystick.trust.notes import Algorithm, Note, NoteSigner, ledger_verifiers
from tallystick.trust.promise import Anchor


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("ledger")) as stack:
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    topic = Topic(stack, "acme")
    hand = Hand(topic.car, "brakes")
    stored(hand.send(hand.seal(0))[0])
    settle(stack)
    return topic


def database(stack: Stack) -> Path:
    return stack.folders.node / "ledger.sqlite"


def copy_ledger(stack: Stack, to: Path) -> None:
    """The ledger's files as they are while the node is down; it is up again afterwards."""
    stack.stop_node()
    copy_files(database(stack), to)
    stack.start_node()


def copy_files(source: Path, to: Path) -> None:
    for path in to.parent.glob(to.name + "*"):
        path.unlink()
    for path in source.parent.glob(source.name + "*"):
        shutil.copy(path, to.parent / path.name.replace(source.name, to.name))


# --- rights edited in the database ---


def test_a_right_edited_into_the_database_is_found(stack: Stack, topic: Topic) -> None:
    spy = topic.member("spy")
    key = RIGHTS(topic.token, spy.identity.principal)
    forged = wire.encode([1, [[1, int(READ), "*"]]])
    copy = stack.folders.root / "edited.sqlite"
    copy_ledger(stack, copy)
    trust = stack.node.trust
    fsck(str(copy), trust)
    with sqlite3.connect(copy) as edited:
        edited.execute("INSERT INTO state VALUES (?, ?)", (key, forged))
    edited.close()
    with pytest.raises(Forged, match=r"state: .* stored"):
        fsck(str(copy), trust)
    with pytest.raises(Forged, match="its state is not the one"):  # a node does not even open it
        SqliteLedger(str(copy), trust, stack.node.keys.ledger_key, 1)


def test_a_right_edited_under_a_running_node_proves_nothing(stack: Stack, topic: Topic) -> None:
    """The node's own guards would believe it; authority and clients ask for a proof, and get no key."""
    spy = topic.member("spy-2")
    key = RIGHTS(topic.token, spy.identity.principal)
    forged = wire.encode([1, [[1, int(READ), "*"]]])
    with closing(sqlite3.connect(database(stack))) as file:
        with file:
            file.execute("INSERT INTO state VALUES (?, ?)", (key, forged))
        with pytest.raises(Forged):
            spy.view.row(key)
        with pytest.raises(Refused):
            spy.subscriber("brakes")
        with file:
            file.execute("DELETE FROM state WHERE key = ?", (key,))


def test_a_wrong_result_is_found_by_whoever_replays(tmp_path: Path, stack: Stack, topic: Topic) -> None:
    """A node with rules of its own signs the state they give; every proof holds, but the replay does not."""
    thief = topic.member("thief")
    copy = tmp_path / "wrong.sqlite"
    copy_ledger(stack, copy)
    trust = stack.node.trust
    wrong = SqliteLedger(str(copy), trust, stack.node.keys.ledger_key, now_ms(stack))
    theft = compose(
        trust.instance,
        thief.identity.principal,
        now_ms(stack) * 1000,
        [entries.grant(topic.token, thief.identity.principal, int(READ))],
        thief.identity.signing_key,
    )
    with pytest.raises(Refused):
        wrong.submit(theft.data, now_ms(stack))
    with without("the owner's say over a topic"):
        wrong.submit(theft.data, now_ms(stack))
        wrong.flush(now_ms(stack))
    key = RIGHTS(topic.token, thief.identity.principal)
    assert wrong.state(key).verify(trust).height == wrong.height  # proved, signed, and wrong
    wrong.close()
    with pytest.raises(Forged, match="the contracts refuse it"):
        fsck(str(copy), trust)


def now_ms(stack: Stack) -> int:
    return int(stack.clock.now() * 1000)


# --- two histories ---


class Fork:
    """A second history of the same ledger, under the same key, and a node that shows it."""

    def __init__(self, stack: Stack, honest: object, path: Path) -> None:
        self._stack, self._trust = stack, stack.node.trust
        copy_ledger(stack, path)
        self.ledger = SqliteLedger(str(path), self._trust, stack.node.keys.ledger_key, now_ms(stack))
        self.node = Liar(honest)
        self.node.checkpoint = self.ledger.checkpoint
        self.node.consistency = self.ledger.consistency
        self.node.state = self.ledger.state
        self.node.states = lambda keys: [self.ledger.state(key) for key in keys]

    def grow(self, token: bytes, transactions: int = 8) -> None:
        """Anchor the partition as it is, in a history of its own."""
        storage, place = self._stack.node.carrier.storage, Place(token, 0)
        partition, size = storage.tree(place), storage.end(place)
        anchor = Anchor(token, 0, size, partition.root(size)).encode_entry()
        keys = self._stack.node.keys
        for number in range(transactions):
            junk = entries.junk("fork", 1, 2, time_ms=number)
            transaction = compose(
                self._trust.instance,
                keys.certificate.subject,
                now_ms(self._stack) * 1000 + number,
                [anchor, junk],
                keys.key,
            )
            self.ledger.submit(transaction.data, now_ms(self._stack))
        self.ledger.flush(now_ms(self._stack))


@pytest.fixture(scope="module")
def fork(stack: Stack, topic: Topic) -> Iterator[Fork]:
    fork = Fork(stack, topic.reader.node, stack.folders.root / "fork.sqlite")
    topic.owner.author.write(entries.grant(topic.token, topic.owner.identity.principal, int(READ)))  # they part
    yield fork
    fork.ledger.close()


def misled(stack: Stack, topic: Topic, fork: Fork, name: str) -> Subscriber:
    """A subscriber that has only ever been shown the fork."""
    memory = fresh_memory(topic.reader, stack, name)
    return subscribe_through(topic.reader, fork.node, "brakes", memory=memory, on_bad="report")


def test_a_fork_shown_to_one_of_two_subscribers(stack: Stack, topic: Topic, fork: Fork) -> None:
    # A publisher that says nothing of its own view leaves the misled one content: the attack succeeds.
    silent = Hand(topic.car, "brakes")
    silent.session.view._memory.head = None
    stored(silent.send(silent.seal(1))[0])
    settle(stack)
    fork.grow(topic.token)
    assert found_by(misled(stack, topic, fork, "content"), 2) == ([0, 1], [])
    # One whose headers carry the checkpoint that it accepted gives the fork away.
    topic.car.view.refresh()
    stored(silent.send(silent.seal(2))[0])
    settle(stack)
    fork.grow(topic.token)
    subscriber = misled(stack, topic, fork, "warned")
    got, reasons = found_by(subscriber, 3)
    assert (got, reasons) == ([0, 1], ["split-view"])
    # The other subscriber, on the true ledger, is content too, and rightly.
    assert read_rows(topic.reader.subscriber("brakes"), 3) == [0, 1, 2]


def test_a_checkpoint_ahead_of_the_readers_is_held_to_it_when_the_reader_has_come_so_far(stack: Stack) -> None:
    ahead = Topic(stack, "ahead")
    hand = Hand(ahead.car, ahead.name)
    shown = ahead.reader.view.refresh().size + 20, bytes(32)  # to the publisher, and never to the reader

    def send(number: int) -> None:
        parcel = hand.resign(hand.seal(number), checkpoint=shown)
        hand.lane.previous = parcel.hash
        stored(hand.send(parcel)[0])
        settle(stack)

    send(0)
    with ahead.reader.subscriber(ahead.name, on_bad="report") as subscriber:
        assert found_by(subscriber, 1) == ([0], [])
        for number in range(20):
            right = entries.grant(ahead.token, ahead.reader.identity.principal, int(READ), host=f"host-{number}")
            ahead.owner.author.write(right)
        send(1)
        assert found_by(subscriber, 1) == ([], ["split-view"])


def test_whoever_remembers_one_history_does_not_take_the_other(stack: Stack, topic: Topic, fork: Fork) -> None:
    fork.grow(topic.token, 40)
    assert fork.ledger.height > 0
    topic.reader.view.refresh()
    while fork.ledger.height <= stack.node.ledger.height:
        fork.ledger.flush(now_ms(stack))
    view = View(fork.node, topic.reader.memory, topic.reader.clock, 60)
    with pytest.raises(Withheld) as refusal:
        view.refresh()
    assert refusal.value.reason == "split-view"
    kept = [wire.decode(item)[0] for item in topic.reader.memory.evidence()]
    assert "split-view" in kept  # both notes, signed by the ledger's own key


def test_a_witness_cosigns_one_of_two_histories(stack: Stack, topic: Topic, fork: Fork) -> None:
    """With a quorum in the trust file even a client that remembers nothing is shown one history."""
    signer = NoteSigner("witness.example/w", SigningKey.from_seed(b"w" * 32), Algorithm.COSIGNATURE_V1)
    trust = stack.node.trust
    witness = Witness(
        signer, {trust.origin: ledger_verifiers(trust)}, RealDisk(stack.folders.root / "memories" / "witness")
    )
    witnessed = replace(trust, number=2, first=trust.instance, witnesses=(signer.verifier.encode(),), quorum=1)
    now_s = int(stack.clock.now())

    def cosigned(note: bytes, old: int, proof: list[bytes]) -> bytes:
        answer = witness.add_checkpoint(encode_request(old, proof, note), now_s)
        signatures = read_answer(answer.status, answer.body)
        assert isinstance(signatures, tuple)
        return Note.decode(note).add(signatures[0]).encode()

    honest = stack.node.ledger.checkpoint()
    size, height = read_head(honest, trust).size, read_head(honest, trust).height
    good = cosigned(honest, 0, [])
    fork.grow(topic.token, 40)
    while fork.ledger.height <= height:  # else it is older, and refused for that
        fork.ledger.flush(now_ms(stack))
    forked = fork.ledger.checkpoint()
    with pytest.raises(Refused) as refusal:
        cosigned(forked, size, fork.ledger.consistency(size, read_head(forked, trust).size))
    assert refusal.value.reason == "witness-refused"
    newcomer = CheckpointMemory(witnessed, RealDisk(stack.folders.root / "memories" / "newcomer"))
    with pytest.raises(Forged):
        newcomer.accept(forked, fork.ledger.consistency)
    assert newcomer.accept(good, stack.node.ledger.consistency).cosigners == ("witness.example/w",)
    unwitnessed = CheckpointMemory(trust, RealDisk(stack.folders.root / "memories" / "unwitnessed"))
    alone = unwitnessed.accept(forked, fork.ledger.consistency)  # without a witness the fork is believed,
    assert "operator alone" in alone.vouched_by(trust)  # and the client knows on whose word


def test_a_checkpoint_that_is_too_old_serves_nobody(topic: Topic) -> None:
    view = View(topic.reader.node, topic.reader.memory, Later(), 60)
    with pytest.raises(Withheld) as refusal:
        view.refresh()
    assert refusal.value.reason == "stale-head"
    assert View(topic.reader.node, topic.reader.memory, Later(), 600).refresh()


# --- yesterday's copy: last, since the instance does not recover from it ---


def test_a_ledger_put_back_to_an_older_copy(stack: Stack, topic: Topic) -> None:
    copy = stack.folders.root / "yesterday.sqlite"
    copy_ledger(stack, copy)
    topic.owner.author.write(entries.grant(topic.token, topic.car.identity.principal, int(READ)))
    remembered = topic.reader.view.refresh()
    stack.stop_node()
    copy_files(copy, database(stack))
    stack.start_node()
    # Whoever remembers sees it go back, and sees it again when it has grown past what was remembered.
    with pytest.raises(Withheld) as refusal:
        topic.reader.view.refresh()
    assert refusal.value.reason == "rollback"
    for host in ("a", "b", "c"):
        right = entries.grant(topic.token, topic.reader.identity.principal, int(READ), host=host)
        topic.owner.author.write(right)
    while stack.node.ledger.height <= remembered.height:
        stack.node.ledger.flush(now_ms(stack))
    assert read_head(stack.node.ledger.checkpoint(), stack.node.trust).size > remembered.size
    with pytest.raises(Withheld) as refusal:
        topic.reader.view.refresh()
    assert refusal.value.reason == "split-view"
    # A client that lost its memory, without witnesses, is not defended: the threat model says so.
    assert View(topic.reader.node, fresh_memory(topic.reader, stack, "forgetful"), stack.clock, 60).refresh()
