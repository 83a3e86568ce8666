"""A mirror and the nodes that it follows: honest ones, ones that are away, and ones that lie in every way that a node
can. Each lie is named, nothing of it is shown, what was verified before stays, and an honest answer mends it. Without
the defence the lie is shown."""

from __future__ import annotations

import gc
import sqlite3
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from actors import Liar
from ledger_world import NOW_MS, Actor, World, operation_batch, seed, token
from without import without

from tallystick.client.ties import View
from tallystick.console.mirror import FILE, KEPT_AT_ONCE, Mirror
from tallystick.crypto.signatures import RootKey
from tallystick.errors import Refused, TallystickError, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.block import Block, compose, parse, sign_checkpoint
from tallystick.ledger.contracts.access import RIGHTS
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.ledger.engine import Query
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import ManualClock
from tallystick.trust.right import Right

AGE_MAX_S = 60.0
HEART = token("heart")


class Instance:
    """A ledger that grows on demand, a node that shows it honestly, and a viewer's memory and mirror beside it."""

    def __init__(self, folder: Path, root: str = "root") -> None:
        self.folder, self.clock = folder, ManualClock(NOW_MS / 1000)
        self.kept_at_once = KEPT_AT_ONCE
        self.world = World(root=RootKey.from_seed(seed(root)))
        self.ledger = SqliteLedger(str(folder / "node.sqlite"), self.world.trust, self.world.ledger_key, NOW_MS)
        for transaction in self.world.founding():
            self.ledger.submit(transaction.data, self.now_ms)
        self.make_block()
        self.memory = CheckpointMemory(self.world.trust, RealDisk(folder / "memory"))
        self.mirror = self.new_mirror()

    @property
    def now_ms(self) -> int:
        return int(self.clock.now() * 1000)

    def make_block(self) -> Block:
        self.clock.advance(1)
        return self.ledger.flush(self.now_ms)

    def grow(self, blocks: int = 1, *, operations: int = 3) -> None:
        world = self.world
        for _ in range(blocks):
            batch = operation_batch(world, operations, [HEART], [world.monitor.id])
            self.ledger.submit(world.node.sign(*batch).data, self.now_ms)
            self.make_block()

    def grant(self) -> None:
        """The sensor may read the heart."""
        self.ledger.submit(
            self.world.doctor.sign(entries.grant(HEART, self.world.sensor.id, Right.READ)).data, self.now_ms
        )
        self.make_block()

    def new_mirror(self) -> Mirror:
        return Mirror(self.folder / "mirror", self.world.trust, lambda: self.now_ms, self.kept_at_once)

    def start_again(self) -> None:
        """Another process, as it were, with what lies in the folders."""
        self.mirror.close()
        self.memory = CheckpointMemory(self.world.trust, RealDisk(self.folder / "memory"))
        self.mirror = self.new_mirror()

    def follow(self, node: Any = None) -> bool:
        return self.mirror.follow(Way(self, node or self.ledger))

    def may_read(self, who: Actor) -> bool:
        """As the mirror has it."""
        return self.mirror.row(RIGHTS(HEART, who.id)) is not None

    def fork(self) -> SqliteLedger:
        """The ledger as it is now, to go on in another way under the same key."""
        there = self.folder / f"fork-{self.ledger.height}.sqlite"
        self.ledger._store.db.execute("VACUUM INTO ?", (str(there),))
        return SqliteLedger(str(there), self.world.trust, self.world.ledger_key, self.now_ms)

    def close(self) -> None:
        self.mirror.close()
        self.ledger.close()


class Way:
    """From the mirror to a node, through the viewer's memory."""

    def __init__(self, instance: Instance, node: Any) -> None:
        view = View(node, instance.memory, instance.clock, AGE_MAX_S)
        self.refresh, self.blocks = view.refresh, node.blocks


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    found = Instance(tmp_path)
    yield found
    found.close()


def same_as_the_node(instance: Instance) -> None:
    """Blocks, transactions, state and the index of mentions are the node's own."""
    mirror, ledger = instance.mirror, instance.ledger
    assert mirror.at.trouble is None
    assert mirror.at.head is not None
    assert mirror.at.head.height == ledger.height
    for height in range(ledger.height + 1):
        assert mirror.block(height).encoded == ledger.blocks(height, 1)[0][0]
        assert [one.entry for one in mirror.block_entries(height)] == [
            one.entry for one in ledger.audit(Query(first_height=height, end_height=height + 1, most=1000))
        ]
    assert list(mirror._store.values()) == list(ledger._store.values())
    asked = Query(principal=instance.world.monitor.id, most=1000)
    assert mirror.audit(asked) == ledger.audit(asked) != []


# --- an honest node ---


def test_a_mirror_replays_from_the_genesis_and_equals_the_node(instance: Instance) -> None:
    instance.grow(5)
    assert instance.follow()
    same_as_the_node(instance)
    assert not instance.follow()  # nothing new
    instance.grow(3)
    instance.grant()
    assert instance.follow()
    same_as_the_node(instance)
    assert instance.may_read(instance.world.sensor)


def test_the_next_start_goes_on_with_its_file(instance: Instance) -> None:
    instance.grow(5)
    instance.follow()
    instance.start_again()
    kept = instance.mirror.at.head
    assert kept is not None  # before anybody is asked
    assert kept.height == instance.ledger.height
    asked: list[int] = []
    node = Liar(instance.ledger)
    node.blocks = lambda first, most: asked.append(first) or instance.ledger.blocks(first, most)
    instance.grow(2)
    instance.follow(node)
    assert asked == [kept.height + 1]
    same_as_the_node(instance)


def test_the_file_is_its_owners_alone_and_holds_what_a_ledger_does(instance: Instance) -> None:
    instance.follow()
    for file in (instance.folder / "mirror").iterdir():
        assert file.stat().st_mode & 0o077 == 0, file


def overwrite_the_begin(file: Path) -> None:
    file.write_bytes(b"not a database at all" + file.read_bytes()[21:])


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def edited(statement: str) -> Callable[[Path], None]:
    def edit(file: Path) -> None:
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(statement)

    return edit


@pytest.mark.parametrize(
    "damage",
    [
        overwrite_the_begin,
        cut,
        edited("UPDATE meta SET value = 99 WHERE name = 'format'"),
        edited("UPDATE meta SET value = x'00' WHERE name = 'checked'"),
        edited("DELETE FROM transactions WHERE number = 2"),
        edited("UPDATE transactions SET leaf = zeroblob(32) WHERE number = 1"),
        edited("DELETE FROM state WHERE key = (SELECT max(key) FROM state)"),
        edited("UPDATE blocks SET data = x'8101' WHERE height = (SELECT max(height) FROM blocks)"),
    ],
    ids=["begin", "cut", "format", "checked", "transaction", "leaf", "state", "block"],
)
def test_a_damaged_file_is_made_anew(instance: Instance, damage: Callable[[Path], None]) -> None:
    instance.grow(5)
    instance.follow()
    instance.mirror.close()
    damage(instance.folder / "mirror" / FILE)
    instance.start_again()
    assert instance.mirror.at.head is None  # nothing of it is shown
    instance.follow()
    same_as_the_node(instance)
    instance.start_again()
    assert instance.mirror.at.head is not None  # and it was kept


def test_a_file_of_another_instance_is_made_anew(instance: Instance, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    instance.grow()
    other = Instance(tmp_path / "other", "another root")
    other.follow()
    other.close()
    instance.mirror.close()
    (tmp_path / "other" / "mirror" / FILE).replace(instance.folder / "mirror" / FILE)
    instance.start_again()
    assert instance.mirror.at.head is None
    instance.follow()
    same_as_the_node(instance)


def test_who_listens_is_told_of_everything_new(instance: Instance) -> None:
    told: list[int] = []
    with instance.mirror.listening(lambda: told.append(instance.mirror.at.version)):
        instance.follow()
        instance.follow()
        instance.grow(210, operations=1)
        instance.follow()
    instance.grow()
    instance.follow()
    assert told == sorted(set(told))
    assert len(told) == 4  # on the way, too


def memory_of(folder: Path, blocks: int) -> tuple[int, int]:
    """Bytes that are kept, and the most that there were, while a mirror replays so many blocks."""
    folder.mkdir()
    with closing(Instance(folder)) as instance:
        instance.grow(blocks, operations=20)
        tracemalloc.start()
        try:
            instance.follow()
            most = tracemalloc.get_traced_memory()[1]
            gc.collect()
            return tracemalloc.get_traced_memory()[0], most
        finally:
            tracemalloc.stop()


def test_memory_follows_the_state_and_not_the_history(tmp_path: Path) -> None:
    """In a process of its own: instances of other tests live in this one."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        found = process.map(memory_of, [tmp_path / "short", tmp_path / "longer"], [100, 300])
        (kept, most), (kept_of_longer, most_of_longer) = found
    assert kept_of_longer < 1.2 * kept + 20_000  # the longer history has a megabyte more
    # For three times the blocks: what a batch takes, and what waits to be collected.
    assert most_of_longer < 2 * most


# --- interrupted ---


class Interrupted(Exception):
    """Nothing that anybody expects."""


def breaking(ledger: SqliteLedger, after: int, error: Exception) -> Any:
    """A node that answers block by block, and fails behind `after` blocks."""
    node, answered = Liar(ledger), list[int]()

    def blocks(first: int, most: int) -> Any:
        if len(answered) >= after:
            raise error
        answered.append(first)
        return ledger.blocks(first, 1)

    node.blocks = blocks
    return node


def test_the_first_long_replay_goes_on_where_it_was_interrupted(instance: Instance) -> None:
    instance.kept_at_once = 10
    instance.start_again()
    instance.grow(40)
    with pytest.raises(Unavailable):
        instance.follow(breaking(instance.ledger, 30, Unavailable("away")))
    assert instance.mirror.at.head is None  # nothing was checked, nothing is shown
    instance.start_again()
    node = breaking(instance.ledger, 25, Unavailable("away"))
    instance.follow(node)
    same_as_the_node(instance)


@pytest.mark.parametrize("error", [Unavailable("away"), Interrupted("what nobody expects")])
def test_a_replay_that_was_interrupted_later_is_taken_back_whole(instance: Instance, error: Exception) -> None:
    instance.grow(3)
    instance.follow()
    before = instance.mirror.at.head
    instance.grow(6)
    with pytest.raises(type(error)):
        instance.follow(breaking(instance.ledger, 4, error))
    assert instance.mirror.at.head == before
    instance.follow()
    same_as_the_node(instance)
    instance.start_again()
    assert instance.mirror.at.head is not None
    same_as_the_node(instance)


# --- nodes that lie ---


def show_blocks(instance: Instance, alter: Callable[[int, bytes, list[bytes]], list[tuple[bytes, list[bytes]]]]) -> Any:
    """A node that alters its blocks, one by one."""
    node = Liar(instance.ledger)
    node.blocks = lambda first, most: [
        shown
        for place, (block, transactions) in enumerate(instance.ledger.blocks(first, most))
        for shown in alter(first + place, block, transactions)
    ]
    return node


def alter_a_time(instance: Instance) -> Any:
    """Of the last block but one."""

    def alter(height: int, block: bytes, transactions: list[bytes]) -> list[tuple[bytes, list[bytes]]]:
        if height == instance.ledger.height - 1:
            old = Block.decode(block)
            block = replace(old, time_ms=old.time_ms - 1).encoded
        return [(block, transactions)]

    return show_blocks(instance, alter)


def alter_the_last_time(instance: Instance) -> Any:
    """Of the last block: nothing but the checkpoint tells."""

    def alter(height: int, block: bytes, transactions: list[bytes]) -> list[tuple[bytes, list[bytes]]]:
        if height == instance.ledger.height:
            block = replace(Block.decode(block), time_ms=instance.now_ms + 5).encoded
        return [(block, transactions)]

    return show_blocks(instance, alter)


def alter_a_grant(instance: Instance) -> Any:
    """Another person than the owner named."""
    world = instance.world

    def other(data: bytes) -> bytes:
        found = parse(data)
        if world.sensor.id not in data or found.author != world.doctor.id:
            return data
        grant = entries.grant(HEART, world.landlord.id, Right.READ)
        return compose(found.instance, found.author, found.number, [grant], world.stranger.key).data

    return show_blocks(instance, lambda _, block, all: [(block, list(map(other, all)))])


def leave_out_a_grant(instance: Instance) -> Any:
    granted, founded = instance.world.sensor.id, 1

    def alter(height: int, block: bytes, transactions: list[bytes]) -> list[tuple[bytes, list[bytes]]]:
        return [(block, [one for one in transactions if height <= founded or granted not in one])]

    return show_blocks(instance, alter)


def leave_out_a_block(instance: Instance) -> Any:
    """The one with the grant."""
    hidden = instance.ledger.height - 1
    return show_blocks(instance, lambda height, block, all: [] if height == hidden else [(block, all)])


def show_nonsense(instance: Instance) -> Any:
    return show_blocks(instance, lambda height, block, all: [(block[:-1], all)])


def show_nothing(instance: Instance) -> Any:
    return show_blocks(instance, lambda height, block, all: [])


def be_away(instance: Instance) -> Any:
    return breaking(instance.ledger, 0, Unavailable("node: no answer", hint="is it running?"))


def judge_by_rules_of_its_own(instance: Instance) -> Any:
    """It takes a grant that the contracts refuse, and signs what comes of it."""
    wrong = instance.fork()
    thief = instance.world.landlord
    theft = thief.sign(entries.grant(HEART, thief.id, Right.READ))
    with without("the owner's say over a topic"):
        wrong.submit(theft.data, instance.now_ms)
        wrong.flush(instance.now_ms)
    return wrong


def withhold(instance: Instance) -> Any:
    """It stands still while time passes, and says that the ledger does."""
    instance.clock.advance(AGE_MAX_S + 1)
    return instance.ledger


def grow_apart(instance: Instance, fork: SqliteLedger, blocks: int) -> None:
    """In another history than the one that the instance's node shows."""
    for _ in range(blocks):
        batch = operation_batch(instance.world, 2, [HEART], [instance.world.sensor.id])
        fork.submit(instance.world.node.sign(*batch).data, instance.now_ms)
        instance.clock.advance(1)
        fork.flush(instance.now_ms)


def blocks_named(instance: Instance) -> list[bytes]:
    """All that the mirror shows of blocks."""
    head = instance.mirror.at.head
    return [] if head is None else [instance.mirror.block(height).encoded for height in range(head.height + 1)]


LIES: dict[str, tuple[Callable[[Instance], Any], str, str]] = {
    "a block's time": (alter_a_time, "damaged", "state root"),
    "the last block's time": (alter_the_last_time, "damaged", "time under the checkpoint"),
    "an entry": (alter_a_grant, "damaged", "signature"),
    "an entry left out": (leave_out_a_grant, "damaged", "tree size"),
    "a block left out": (leave_out_a_block, "damaged", "height"),
    "nonsense": (show_nonsense, "malformed", "block"),
    "nothing": (show_nothing, "away", "not block"),
    "away": (be_away, "away", "no answer"),
    "withheld": (withhold, "stale-head", "newest checkpoint is"),
}


@pytest.mark.parametrize("lie", LIES)
def test_every_lie_is_named_and_nothing_of_it_is_shown(instance: Instance, lie: str) -> None:
    make, reason, words = LIES[lie]
    instance.grow(3)
    instance.follow()
    shown, height = blocks_named(instance), instance.ledger.height
    instance.grow()
    instance.grant()
    instance.grow()
    node = make(instance)
    for _ in range(2):  # it goes on lying
        with pytest.raises(TallystickError):
            instance.follow(node)
    trouble = instance.mirror.at.trouble
    assert trouble is not None
    assert (trouble.reason, trouble.is_away) == (reason, reason == "away")
    assert words in trouble.message
    assert trouble.since_ms == instance.now_ms
    assert blocks_named(instance) == shown  # what was verified stays
    assert instance.mirror.at.head is not None
    assert instance.mirror.at.head.height == height
    assert not instance.may_read(instance.world.sensor)
    if node is instance.ledger:
        instance.make_block()
    instance.follow()
    same_as_the_node(instance)
    assert instance.may_read(instance.world.sensor)


@pytest.mark.parametrize("lie", ["a block's time", "an entry", "an entry left out", "a block left out", "nonsense"])
def test_a_lie_to_who_knows_nothing_yet(instance: Instance, lie: str) -> None:
    make, reason, _ = LIES[lie]
    instance.grow(3)
    instance.grant()
    instance.grow()
    with pytest.raises(Refused):
        instance.follow(make(instance))
    assert instance.mirror.at.head is None
    assert instance.mirror.at.trouble is not None
    assert instance.mirror.at.trouble.reason == reason
    instance.follow()
    same_as_the_node(instance)


def test_without_comparing_what_is_left_out_is_missed(instance: Instance) -> None:
    instance.grow(3)
    instance.grant()
    instance.grow()
    with without("the comparisons of a replay"):
        instance.follow(leave_out_a_grant(instance))
    assert instance.mirror.at.trouble is None
    assert not instance.may_read(instance.world.sensor)


def test_without_comparing_a_block_has_another_time(instance: Instance) -> None:
    instance.grow(3)
    with without("the comparisons of a replay"):
        instance.follow(alter_a_time(instance))
    height = instance.ledger.height - 1
    assert instance.mirror.at.trouble is None
    assert instance.mirror.block(height).time_ms == instance.ledger.block(height).time_ms - 1


def test_without_signatures_and_comparing_an_entry_is_another(instance: Instance) -> None:
    instance.grow(3)
    instance.grant()
    with without("the comparisons of a replay", "the signature on a transaction"):
        instance.follow(alter_a_grant(instance))
    assert instance.mirror.at.trouble is None
    assert instance.may_read(instance.world.landlord)


def test_without_the_checkpoint_the_last_block_is_the_nodes_word(instance: Instance) -> None:
    instance.grow(3)
    with without("the checkpoint at the end of a replay"):
        instance.follow(alter_the_last_time(instance))
    assert instance.mirror.at.trouble is None
    assert instance.mirror.block(instance.ledger.height).time_ms == instance.now_ms + 5


def test_a_result_that_the_contracts_do_not_give_is_named(instance: Instance) -> None:
    """The ledger itself lies, and its key has signed that: no honest node is left to mend it."""
    instance.grow(3)
    instance.follow()
    wrong, thief = judge_by_rules_of_its_own(instance), instance.world.landlord
    with pytest.raises(Refused, match="the contracts refuse it"):
        instance.follow(wrong)
    assert instance.mirror.at.trouble is not None
    assert instance.mirror.at.trouble.reason == "damaged"
    assert not instance.may_read(thief)
    with without("the owner's say over a topic"):
        instance.follow(wrong)
    assert instance.mirror.at.trouble is None
    assert instance.may_read(thief)
    wrong.close()


def test_without_the_age_what_is_withheld_goes_unnoticed(instance: Instance) -> None:
    instance.follow()
    node = withhold(instance)
    with without("the age of a checkpoint"):
        instance.follow(node)
    assert instance.mirror.at.trouble is None


# --- a node that goes back, or shows another history ---


def lose_the_memory(instance: Instance) -> None:
    """The home's `ledger` folder is gone; the mirror's is not."""
    instance.memory = CheckpointMemory(instance.world.trust, RealDisk(instance.folder / "another memory"))


@pytest.mark.parametrize("has_memory", [True, False])
def test_a_node_that_goes_back_is_named(instance: Instance, has_memory: bool) -> None:
    instance.grow(3)
    old = instance.fork()
    instance.grow()
    instance.grant()
    instance.follow()
    if not has_memory:
        lose_the_memory(instance)
    with pytest.raises(Refused):
        instance.follow(old)
    assert instance.mirror.at.trouble is not None
    assert instance.mirror.at.trouble.reason == "rollback"
    assert instance.may_read(instance.world.sensor)
    if has_memory:
        instance.follow()
        same_as_the_node(instance)
    with without("the memory of checkpoints", "the mirror's look back"):
        instance.follow(old)
    assert instance.mirror.at.trouble is None  # and nobody learns that the node forgot a right
    old.close()


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("blocks", [2, 5])  # as high as what was verified, and higher
def test_a_fork_is_named(instance: Instance, has_memory: bool, blocks: int) -> None:
    instance.grow(3)
    instance.follow()
    fork = instance.fork()
    instance.grow()
    instance.grant()
    instance.follow()
    grow_apart(instance, fork, blocks)
    shown = blocks_named(instance)
    if not has_memory:
        lose_the_memory(instance)
    with pytest.raises(Refused):
        instance.follow(fork)
    trouble = instance.mirror.at.trouble
    assert trouble is not None
    if blocks == 5 and not has_memory:
        assert (trouble.reason, "previous hash" in trouble.message) == ("damaged", True)
    else:
        assert trouble.reason == "split-view"
    assert blocks_named(instance) == shown
    if has_memory:
        instance.follow()
        same_as_the_node(instance)
    fork.close()


def test_without_memory_and_looking_back_a_fork_is_taken_for_the_same(instance: Instance) -> None:
    instance.grow(3)
    instance.follow()
    fork = instance.fork()
    instance.grow(2)
    instance.follow()
    grow_apart(instance, fork, 2)
    with without("the memory of checkpoints", "the mirror's look back"):
        instance.follow(fork)
    assert instance.mirror.at.trouble is None
    fork.close()


def test_a_state_that_is_signed_and_wrong_is_named(instance: Instance, tmp_path: Path) -> None:
    """The ledger's own key signs a state root that the entries do not give: every proof under it would hold."""
    instance.grow(2)
    last = instance.ledger.block(instance.ledger.height)
    wrong = replace(last, state_root=bytes(32))
    node = show_blocks(instance, lambda height, block, all: [(wrong.encoded if height == last.height else block, all)])
    node.checkpoint = lambda: sign_checkpoint(instance.ledger.origin, wrong, instance.world.ledger_key)
    with pytest.raises(Refused):
        instance.follow(node)
    assert instance.mirror.at.head is None
    assert instance.mirror.at.trouble is not None
    assert "state root" in instance.mirror.at.trouble.message
    with without("the comparisons of a replay"):
        instance.follow(node)
    assert instance.mirror.at.trouble is None


def test_more_blocks_than_were_asked_for_are_not_taken(instance: Instance) -> None:
    instance.grow(5)
    node = Liar(instance.ledger)
    node.blocks = lambda first, most: instance.ledger.blocks(first, 1000) * 1000
    node.checkpoint = lambda note=instance.ledger.checkpoint(): note
    instance.follow(node)
    same_as_the_node(instance)


# --- several at once ---


def test_pages_read_while_it_follows(instance: Instance) -> None:
    """What they read was verified, and nothing fails."""
    instance.grow(2)
    instance.follow()
    faults: list[BaseException] = []
    is_over = threading.Event()

    def read() -> None:
        try:
            while not is_over.is_set():
                items, _ = instance.mirror.newest(10)
                head = instance.mirror.at.head
                assert head is not None
                assert items
                assert instance.mirror.block(head.height).state_root == head.state_root
                assert instance.mirror.row(TOPICS(HEART)) is not None
                assert instance.mirror.scan(TOPICS)
        except BaseException as fault:
            faults.append(fault)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(15):
        instance.grow()
        with suppress(Refused):
            instance.follow(alter_a_time(instance))
        instance.follow()
    is_over.set()
    for reader in readers:
        reader.join()
    assert faults == []
    same_as_the_node(instance)
