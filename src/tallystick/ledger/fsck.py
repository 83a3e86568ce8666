"""`fsck`: believe nothing in the file, replay everything.

Threat: an operator, a backup or a disk that changed a right, an operation, a block, an index. Every transaction from
block 0 on goes through the contracts again; every leaf, result, column, root, hash, time and signature is computed
and compared with what is stored, and at the end the whole state and the index of mentions. The first difference is
named. What a consistent forger with the ledger's key could do (write another history and sign it) is found by
clients' memories and witnesses, not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from tallystick.crypto.merkle import Frontier
from tallystick.errors import Forged, Misuse, Refused, TallystickError
from tallystick.ledger.block import NO_PREVIOUS, Block
from tallystick.ledger.checkpoints import checkpoint_text
from tallystick.ledger.contracts import identity
from tallystick.ledger.contracts.execute import Result, execute
from tallystick.ledger.contracts.state import State
from tallystick.ledger.sqlite_store import Store
from tallystick.ledger.state_map import StateMap
from tallystick.ledger.transaction import Transaction, parse
from tallystick.trust.checkpoint import ledger_verifiers, witness_verifiers
from tallystick.trust.notes import Note
from tallystick.trust.trustfile import TrustFile


@dataclass(frozen=True)
class FsckReport:
    """What was replayed and found whole."""

    height: int
    transactions: int
    entries: int
    state_keys: int


def fsck(path: str, trust: TrustFile, vfs: str | None = None) -> FsckReport:
    """Replay the ledger in `path`, of the instance of `trust`; raises `Forged`, naming the first difference."""
    try:
        store = Store(path, vfs, create=False)
        try:
            return _Replay(store, trust).run()
        finally:
            store.close()
    except (Forged, Misuse):
        raise
    except TallystickError as error:
        raise Forged(f"ledger file: {error}", reason="damaged") from error


class _Replay:
    def __init__(self, store: Store, trust: TrustFile) -> None:
        self._store = store
        self._trust = trust
        genesis = identity.genesis(self._first_trust_file())
        self._values = {key: value for key, value in genesis.items() if value is not None}
        self._state = State(self._values.get)
        self._map = StateMap(self._values.items(), 0)
        self._frontier = Frontier()
        self._mentions: list[tuple[bytes, int]] = []
        self._entries = 0

    def _first_trust_file(self) -> str:
        """The genesis as the file has it; that its content hashes to the instance makes it the first."""
        text = self._store.meta("genesis")
        first = TrustFile.parse(text) if isinstance(text, str) else None
        if first is None or first.number != 1 or first.instance != self._trust.instance:
            raise Forged("ledger file: its genesis is not the first trust file of this instance", reason="damaged")
        return str(text)

    def run(self) -> FsckReport:
        for fault in self._store.faults():
            raise Forged(f"ledger file: {fault}", reason="damaged")
        last = self._store.last_height()
        if last is None:
            raise Forged("ledger file: it holds no block", reason="damaged")
        previous = None
        for height in range(last + 1):
            previous = self._block(height, previous)
        _same("ledger file", "number of transactions", self._frontier.size, self._store.count())
        self._compare("state", self._store.values(), sorted(self._values.items()))
        indexed = self._store.indexed
        expected = sorted(one for one in self._mentions if one[1] < indexed)
        self._compare("mentions", sorted(self._store.mentions()), expected)
        return FsckReport(last, self._frontier.size, self._entries, len(self._values))

    def _block(self, height: int, previous: Block | None) -> Block:
        what = f"block {height}"
        stored = self._store.block(height)
        if stored is None:
            raise Forged(f"{what}: it is missing", reason="damaged")
        data, note = stored
        block = Block.decode(data)
        _same(what, "height", height, block.height)
        _same(what, "previous hash", NO_PREVIOUS if previous is None else previous.hash, block.previous)
        if previous is not None and block.time_ms < previous.time_ms:
            raise Forged(f"{what}: its time falls from {previous.time_ms} to {block.time_ms}", reason="damaged")
        _same(what, "first transaction", self._frontier.size, block.first)
        self._transactions(block)
        _same(what, "tree size", self._frontier.size, block.size)
        _same(what, "tree root", self._frontier.root(), block.root)
        _same(what, "state root", self._advance(height), block.state_root)
        self._note(what, block, note)
        return block

    def _transactions(self, block: Block) -> None:
        numbers = range(block.first, block.first + block.count)
        first = 0
        for number, row in zip_longest(numbers, self._store.rows(block.first, block.first + block.count)):
            if row is None:
                raise Forged(f"transaction {number}: it is missing", reason="damaged")
            try:
                transaction = parse(row.data)
            except Refused as refusal:
                raise Forged(f"transaction {number}: {refusal}", reason="damaged") from refusal
            result = execute(self._state, transaction, block.height, block.time_ms, first)
            if not result.accepted:
                raise Forged(f"transaction {number}: the contracts refuse it: {result.message}", reason="damaged")
            for name, expected in _row(number, block.height, first, transaction, result):
                _same(f"transaction {number}", name, expected, getattr(row, name))
            self._frontier.append(transaction.leaf)
            self._mentions += [(one, number) for one in result.operators | {transaction.author}]
            first += len(transaction.entries)
        self._entries += first

    def _advance(self, height: int) -> bytes:
        changes = self._state.changes()
        for key, value in changes.items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
        self._state.seal()
        if height == 0:
            return self._map.root
        root = self._map.advance(height, changes, {})
        self._map.forget_before(height)
        return root

    def _note(self, what: str, block: Block, data: bytes) -> None:
        note = Note.decode(data)
        _same(what, "checkpoint", checkpoint_text(self._trust.origin, block), note.text)
        trust = identity.trust_file(self._state)
        ledger = ledger_verifiers(trust)
        signed = note.verify([*ledger, *witness_verifiers(trust)])
        if not any(one.verifier in ledger for one in signed):
            raise Forged(f"{what}: its checkpoint lacks the ledger's signature", reason="damaged")

    def _compare(
        self, what: str, stored: Iterable[tuple[object, object]], computed: Iterable[tuple[object, object]]
    ) -> None:
        for found, expected in zip_longest(stored, computed):
            if found != expected:
                raise Forged(f"{what}: {_show(expected)} expected, {_show(found)} stored", reason="damaged")


def _row(
    number: int, height: int, first: int, transaction: Transaction, result: Result
) -> Iterator[tuple[str, object]]:
    """What each column must hold."""
    yield "number", number
    yield "leaf", transaction.leaf
    yield "height", height
    yield "first", first
    yield "refused", result.refused
    yield "kinds", result.kinds
    yield "principals", b"".join(sorted(result.operators | {transaction.author}))
    yield "result", result.data
    yield "data", transaction.data


def _same(what: str, name: str, expected: object, found: object) -> None:
    if expected != found or type(expected) is not type(found):
        raise Forged(f"{what}: {name} {_show(expected)} expected, {_show(found)} stored", reason="damaged")


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(_show(item) for item in value) + ")"
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= 80 else text[:77] + "…"
