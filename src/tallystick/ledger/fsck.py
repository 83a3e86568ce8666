"""The contracts gone through again: blocks and transactions in, the first difference by name.

Threat: a ledger that shows results its rules do not give, an entry slipped in, cut out or moved, times that fall. Every
transaction goes through `execute` on a state of our own; previous hash, time, first transaction, tree and state root of
every block are computed and compared. Whoever then finds the last block under a checkpoint that it accepted has the
whole history under that checkpoint: the tree root covers each transaction, the state root what they amount to, the
heights of operations and anchors included. An audit replays what a node sends.

A replay can be put down and taken up again (`encode`, `decode`): its notes are as trustworthy as the place where they
lie, and hold no secret.

`fsck` replays a file and believes nothing in it. Threat: an operator, a backup or a disk that changed a right, an
operation, a block, an index. Every leaf, result, column, root, hash, time and signature is computed and compared with
what is stored, and at the end the whole state and the index of mentions. What a consistent forger with the ledger's key
could do (write another history and sign it) is found by clients' memories and witnesses, not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from tallystick import wire
from tallystick.crypto.merkle import Frontier
from tallystick.errors import Forged, Malformed, Misuse, Refused, TallystickError
from tallystick.ledger.block import NO_PREVIOUS, Block, Head, Transaction, checkpoint_text, parse
from tallystick.ledger.book import StateMap
from tallystick.ledger.contracts import identity
from tallystick.ledger.contracts.execute import Result, execute
from tallystick.ledger.contracts.state import State
from tallystick.ledger.sqlite_store import LedgerStore, TransactionRow
from tallystick.trust.notes import Note, ledger_verifiers, witness_verifiers
from tallystick.trust.trustfile import TrustFile
from tallystick.wire import Fields

_STATE_KEYS_MAX = 1 << 28


@dataclass(frozen=True, slots=True)
class Step:
    """A transaction that the contracts took again."""

    number: int  # in the tree
    height: int
    first: int  # place in the block of its first entry
    transaction: Transaction
    result: Result


class Replay:
    """For each block `begin`, a `step` for each of its transactions, and `end`; raises `Forged` at a difference."""

    def __init__(self, first: TrustFile) -> None:
        """`first` is the instance's first trust file: the genesis."""
        genesis = identity.genesis(first.to_json())
        self.values = {key: value for key, value in genesis.items() if value is not None}
        self.block: Block | None = None  # the last one that was replayed
        self.changed: Mapping[bytes, bytes | None] = {}  # by that block
        self._frontier = Frontier()
        self._open()

    def _open(self) -> None:
        self.state = State(self.values.get)
        self._map = StateMap(self.values.items(), 0 if self.block is None else self.block.height)
        self._next: Block | None = None
        self._entries = 0

    @property
    def size(self) -> int:
        """Transactions so far."""
        return self._frontier.size

    @property
    def height(self) -> int:
        """Of the next block."""
        return 0 if self.block is None else self.block.height + 1

    def begin(self, block: Block) -> None:
        what, last = f"block {self.height}", self.block
        same(what, "height", self.height, block.height)
        same(what, "previous hash", NO_PREVIOUS if last is None else last.hash, block.previous)
        if last is not None and block.time_ms < last.time_ms:
            raise Forged(f"{what}: its time falls from {last.time_ms} to {block.time_ms}", reason="damaged")
        same(what, "first transaction", self.size, block.first)
        self._next, self._entries = block, 0

    def step(self, data: bytes) -> Step:
        """The next transaction of the block; before it, `state` is what the contracts see."""
        assert self._next is not None, "begin first"
        number, block = self.size, self._next
        try:
            transaction = parse(data)
        except Refused as refusal:
            raise Forged(f"transaction {number}: {refusal}", reason="damaged") from refusal
        result = execute(self.state, transaction, block.height, block.time_ms, self._entries)
        if not result.accepted:
            raise Forged(f"transaction {number}: the contracts refuse it: {result.message}", reason="damaged")
        step = Step(number, block.height, self._entries, transaction, result)
        self._frontier.append(transaction.leaf)
        self._entries += len(transaction.entries)
        return step

    def end(self) -> None:
        assert self._next is not None, "begin first"
        block, what = self._next, f"block {self._next.height}"
        same(what, "tree size", self.size, block.size)
        same(what, "tree root", self._frontier.root(), block.root)
        same(what, "state root", self._advance(block.height), block.state_root)
        self.block, self._next = block, None

    def _advance(self, height: int) -> bytes:
        changes = self.changed = self.state.changes()
        for key, value in changes.items():
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value
        self.state.seal()
        if height == 0:
            return self._map.root
        root = self._map.advance(height, changes, {})
        self._map.forget_before(height)
        return root

    def check_head(self, head: Head) -> None:
        """Raise `Forged` unless the last block is the one under this checkpoint."""
        assert self.block is not None, "no block was replayed"
        block, what = self.block, f"block {head.height}"
        same(what, "height under the checkpoint", head.height, block.height)
        same(what, "tree size under the checkpoint", head.size, block.size)
        same(what, "tree root under the checkpoint", head.root, block.root)
        same(what, "state root under the checkpoint", head.state_root, block.state_root)
        same(what, "time under the checkpoint", head.time_ms, block.time_ms)

    def encode(self) -> bytes:
        """What it takes to go on later."""
        assert self.block is not None, "no block was replayed"
        state = [list(item) for item in sorted(self.values.items())]
        return wire.encode([1, self.block.encoded, self._frontier.encode(), state])

    @classmethod
    def decode(cls, data: bytes, first: TrustFile) -> Replay:
        """The replay that was put down. Raises `Malformed` unless its parts fit together and are of this instance."""
        fields = Fields.parse(data, "replay", 4)
        fields.version(1)
        block = Block.decode(fields.octets(at_most=1 << 10))
        frontier = Frontier.decode(fields.octets(at_most=1 << 12))
        return cls._whole(block, frontier, map(_pair, fields.items(_STATE_KEYS_MAX)), first)

    @classmethod
    def resume(
        cls, block: Block, leaves: Iterable[bytes], values: Iterable[tuple[bytes, bytes]], first: TrustFile
    ) -> Replay:
        """The replay after `block`, from what a ledger's file holds. Raises `Malformed` as `decode` does."""
        frontier = Frontier()
        for leaf in leaves:
            frontier.append(leaf)
        return cls._whole(block, frontier, values, first)

    @classmethod
    def _whole(
        cls, block: Block, frontier: Frontier, values: Iterable[tuple[bytes, bytes]], first: TrustFile
    ) -> Replay:
        replay = cls(first)
        replay.block, replay._frontier, replay.values = block, frontier, dict(values)
        replay._open()
        if (replay._frontier.root(), replay._map.root) != (replay.block.root, replay.block.state_root):
            raise Malformed("replay: its tree and state are not those of its block")
        if identity.trust_file(replay.state).instance != first.instance:
            raise Malformed("replay: of another instance")
        return replay


def _pair(item: object) -> tuple[bytes, bytes]:
    fields = Fields(item, "replay", 2)
    return fields.octets(at_most=1 << 16), fields.octets(at_most=1 << 26)


def same(what: str, name: str, expected: object, found: object) -> None:
    """Raise `Forged`, naming both, unless they are equal and of one type."""
    if expected != found or type(expected) is not type(found):
        raise Forged(f"{what}: {name} {show(expected)} expected, {show(found)} stored", reason="damaged")


def show(value: object) -> str:
    """A value for a message: bytes in hexadecimal, cut where it is long."""
    if isinstance(value, tuple):
        return "(" + ", ".join(show(item) for item in value) + ")"
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= 80 else text[:77] + "…"


@dataclass(frozen=True)
class FsckReport:
    """What was replayed and found whole."""

    height: int
    transactions: int
    entries: int
    state_keys: int


def fsck(path: str, trust: TrustFile, vfs: str | None = None) -> FsckReport:
    """Replay the ledger in `path`, of the instance of `trust`. Raises `Forged`, naming the first difference."""
    try:
        store = LedgerStore(path, vfs, create=False)
        try:
            return _Check(store, trust).run()
        finally:
            store.close()
    except (Forged, Misuse):
        raise
    except TallystickError as error:
        raise Forged(f"ledger file: {error}", reason="damaged") from error


class _Check:
    def __init__(self, store: LedgerStore, trust: TrustFile) -> None:
        self._store, self._trust = store, trust
        self._replay = Replay(self._first_trust_file())
        self._mentions: list[tuple[bytes, int]] = []
        self._entries = 0

    def _first_trust_file(self) -> TrustFile:
        """The genesis as the file has it; that its content hashes to the instance makes it the first."""
        text = self._store.meta("genesis")
        first = TrustFile.parse(text) if isinstance(text, str) else None
        if first is None or first.number != 1 or first.instance != self._trust.instance:
            raise Forged("ledger file: its genesis is not the first trust file of this instance", reason="damaged")
        return first

    def run(self) -> FsckReport:
        for fault in self._store.faults():
            raise Forged(f"ledger file: {fault}", reason="damaged")
        last = self._store.last_height()
        if last is None:
            raise Forged("ledger file: it holds no block", reason="damaged")
        for height in range(last + 1):
            self._block(height)
        size, values = self._replay.size, self._replay.values
        same("ledger file", "number of transactions", size, self._store.count())
        _compare("state", self._store.values(), sorted(values.items()))
        indexed = self._store.indexed
        expected = sorted(one for one in self._mentions if one[1] < indexed)
        _compare("mentions", sorted(self._store.mentions()), expected)
        return FsckReport(last, size, self._entries, len(values))

    def _block(self, height: int) -> None:
        what = f"block {height}"
        stored = self._store.block(height)
        if stored is None:
            raise Forged(f"{what}: it is missing", reason="damaged")
        data, note = stored
        block = Block.decode(data)
        before = identity.trust_file(self._replay.state)
        self._replay.begin(block)
        self._transactions(block)
        self._replay.end()
        self._note(what, block, note, before)

    def _transactions(self, block: Block) -> None:
        numbers = range(block.first, block.first + block.count)
        for number, row in zip_longest(numbers, self._store.rows(block.first, block.first + block.count)):
            if row is None:
                raise Forged(f"transaction {number}: it is missing", reason="damaged")
            step = self._replay.step(row.data)
            computed = TransactionRow.of(step.transaction, step.result, step.number, step.height, step.first)
            for name, expected, found in zip(TransactionRow._fields, computed, row, strict=True):
                same(f"transaction {number}", name, expected, found)
            self._mentions += [(one, step.number) for one in step.result.operators | {step.transaction.author}]
            self._entries += len(step.transaction.entries)

    def _note(self, what: str, block: Block, data: bytes, before: TrustFile) -> None:
        """A block that brings a new trust file may be signed by a key of either: who ends a ledger that goes on under
        other keys is not one of them."""
        note = Note.decode(data)
        same(what, "checkpoint", checkpoint_text(self._trust.origin, block), note.text)
        trust = identity.trust_file(self._replay.state)
        ledger = [*ledger_verifiers(trust), *ledger_verifiers(before)]
        signed = note.verify([*ledger, *witness_verifiers(trust)])
        if not any(one.verifier in ledger for one in signed):
            raise Forged(f"{what}: its checkpoint lacks the ledger's signature", reason="damaged")


def _compare(what: str, stored: Iterable[object], computed: Iterable[object]) -> None:
    for found, expected in zip_longest(stored, computed):
        if found != expected:
            raise Forged(f"{what}: {show(expected)} expected, {show(found)} stored", reason="damaged")
