"""`fsck`: believe nothing in the file, replay everything.

Threat: an operator, a backup or a disk that changed a right, an operation, a block, an index. Every transaction from
block 0 on goes through the contracts again (`replay`); every leaf, result, column, root, hash, time and signature is
computed and compared with what is stored, and at the end the whole state and the index of mentions. The first
difference is named. What a consistent forger with the ledger's key could do (write another history and sign it) is
found by clients' memories and witnesses, not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from tallystick.errors import Forged, Misuse, TallystickError
from tallystick.ledger.block import Block, checkpoint_text
from tallystick.ledger.contracts import identity
from tallystick.ledger.replay import Replay, Step, same, show
from tallystick.ledger.sqlite_store import LedgerStore
from tallystick.trust.notes import Note, ledger_verifiers, witness_verifiers
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
        self._store = store
        self._trust = trust
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
        self._compare("state", self._store.values(), sorted(values.items()))
        indexed = self._store.indexed
        expected = sorted(one for one in self._mentions if one[1] < indexed)
        self._compare("mentions", sorted(self._store.mentions()), expected)
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
            for name, expected in _row(step):
                same(f"transaction {number}", name, expected, getattr(row, name))
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

    def _compare(
        self, what: str, stored: Iterable[tuple[object, object]], computed: Iterable[tuple[object, object]]
    ) -> None:
        for found, expected in zip_longest(stored, computed):
            if found != expected:
                raise Forged(f"{what}: {show(expected)} expected, {show(found)} stored", reason="damaged")


def _row(step: Step) -> Iterator[tuple[str, object]]:
    """What each column must hold."""
    transaction, result = step.transaction, step.result
    yield "number", step.number
    yield "leaf", transaction.leaf
    yield "height", step.height
    yield "first", step.first
    yield "refused", result.refused
    yield "kinds", result.kinds
    yield "principals", b"".join(sorted(result.operators | {transaction.author}))
    yield "result", result.data
    yield "data", transaction.data
