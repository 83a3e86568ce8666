"""The contracts gone through again: blocks and transactions in, the first difference by name.

Threat: a ledger that shows results its rules do not give, an entry slipped in, cut out or moved, times that fall. Every
transaction goes through `execute` on a state of our own; previous hash, time, first transaction, tree and state root of
every block are computed and compared. Whoever then finds the last block under a checkpoint that it accepted has the
whole history under that checkpoint: the tree root covers each transaction, the state root what they amount to, the
heights of operations and anchors included. `fsck` replays a file, an audit what a node sends.

A replay can be put down and taken up again (`encode`, `decode`): its notes are as trustworthy as the place where they
lie, and hold no secret.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick import wire
from tallystick.crypto.merkle import Frontier
from tallystick.errors import Forged, Malformed, Refused
from tallystick.ledger.block import NO_PREVIOUS, Block, Head, Transaction, parse
from tallystick.ledger.book import StateMap
from tallystick.ledger.contracts import identity
from tallystick.ledger.contracts.execute import Result, execute
from tallystick.ledger.contracts.state import State
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
        changes = self.state.changes()
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
        """The replay that was put down; raises `Malformed` unless its parts fit together and are of this instance."""
        fields = Fields.parse(data, "replay", 4)
        fields.version(1)
        replay = cls(first)
        replay.block = Block.decode(fields.octets(at_most=1 << 10))
        replay._frontier = Frontier.decode(fields.octets(at_most=1 << 12))
        replay.values = dict(_pair(item) for item in fields.items(_STATE_KEYS_MAX))
        replay._open()
        if identity.trust_file(replay.state).instance != first.instance:
            raise Malformed("replay: of another instance")
        if (replay._frontier.root(), replay._map.root) != (replay.block.root, replay.block.state_root):
            raise Malformed("replay: its tree and state are not those of its block")
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
