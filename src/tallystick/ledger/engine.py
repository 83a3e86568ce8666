"""The short interface that every ledger engine obeys; `tests/contract/test_ledger_contract.py` holds them to it.

An engine orders transactions, runs the contracts, keeps what they did and answers with proofs. Nothing it says is
believed without one: callers hold answers to a checkpoint that their trust file accepts (`checkpoints`, `memory`,
`proofs`). Time is handed in where a block may be made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from tallystick.ledger.block import Block, Head, parse
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.state import R, State, Table
from tallystick.ledger.proofs import StateProof
from tallystick.trust.promise import Anchor, is_anchor
from tallystick.trust.receipt import EntryProof, is_revocation

T = TypeVar("T")
BlockListener = Callable[[Block, Collection[bytes]], None]  # the block, and the keys of the state that it changed


class Submitted(NamedTuple):
    """Where a transaction lies, or will lie when its block is stored."""

    leaf: bytes
    number: int  # in the tree
    height: int
    first: int  # place in the block of its first entry


@dataclass(frozen=True, slots=True)
class HistoryItem:
    """One operation of a topic's history."""

    height: int
    index: int
    entry: bytes


@dataclass(frozen=True, slots=True)
class AuditItem:
    """One entry that an audit query found."""

    height: int
    index: int
    time_ms: int  # block time
    author: bytes
    kind: int
    fields: Sequence[Any]
    entry: bytes


class Query(NamedTuple):
    """What an audit looks for; None does not restrict."""

    principal: bytes | None = None  # as author or operator
    token: bytes | None = None  # in that topic's history
    kind: int | None = None
    refused: bool = False  # only operations that were refused
    first_height: int = 0
    end_height: int | None = None
    most: int = 1000


@dataclass(frozen=True)
class LedgerStatistics:
    height: int
    time_ms: int
    transactions: int
    waiting_entries: int
    published_height: int | None
    entries: int  # accepted since the start
    refusals: Mapping[str, int]  # transactions refused since the start, by reason


class Engine(Protocol):
    def submit(self, data: bytes, now_ms: int) -> Submitted:
        """Run a transaction. Raises `Refused` with the contract's reason. The same bytes again give the first answer.

        It is kept for good only when `wait` has returned.
        """
        ...

    def wait(self, submitted: Submitted, timeout_s: float) -> Block:
        """Return the block that holds it once it is stored, and listeners have heard of it. Raises `Unavailable` where
        that takes longer or the block was lost."""
        ...

    def checkpoint(self) -> bytes:
        """The newest note with the signatures that the trust file demands."""
        ...

    def consistency(self, old: int, new: int) -> list[bytes]: ...

    def receipt(self, number: int, entry: int) -> EntryProof:
        """The proof that an entry of a transaction is on the ledger, under `checkpoint`."""
        ...

    def state(self, key: bytes) -> StateProof:
        """A value of the state, or its absence, proved under `checkpoint`."""
        ...

    def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
        """Blocks from height `first`, each with its transactions."""
        ...

    def history(self, token: bytes, most: int = 1000, before: tuple[int, int] | None = None) -> list[HistoryItem]:
        """A topic's operations, newest first, read along their links."""
        ...

    def audit(self, query: Query) -> list[AuditItem]: ...

    def query(self, read: Callable[[State], T]) -> T:
        """`read` on the stored state; for whoever trusts this engine (the node whose own it is)."""
        ...

    def scan(self, table: Table[R], *parts: bytes | int, most: int = 1000) -> list[tuple[tuple[Any, ...], R]]:
        """Rows of one table whose keys begin with `parts`, each with all parts of its key, in order; unproved."""
        ...

    def on_block(self, listener: BlockListener) -> None:
        """Call `listener` after each block that is stored."""
        ...


class NodeLedger(Engine, Protocol):
    """What a node asks of the engine that is its own, beside what everybody may."""

    @property
    def height(self) -> int:
        """Of the newest block that is stored."""
        ...

    def block(self, height: int) -> Block: ...

    def tick(self, now_ms: int) -> Block | None:
        """Make a block if one is due; an engine that makes its blocks by itself does nothing."""
        ...

    def flush(self, now_ms: int) -> Block | None:
        """As `tick`, of whatever waits, now."""
        ...

    def newest_note(self) -> bytes:
        """The newest note of the ledger's keys, witnesses or not: what is shown to them."""
        ...

    def cosign(self, note: bytes) -> Head:
        """Take a note back with cosignatures; it is published once they suffice. Raises `Forged`."""
        ...

    def statistics(self) -> LedgerStatistics: ...

    def close(self) -> None: ...


Entry = tuple[int, int]  # the number of a transaction, and which of its entries
_ITEMS = 10_000  # that are looked at together
_HEIGHTS = 64  # that are searched first; then four times as many, as long as nothing is found
_LOOKS = 16  # after which a search gives up


def find_entry(
    ledger: Engine, height: int, matches: Callable[[bytes], bool], before: Entry | None = None
) -> Entry | None:
    """The last entry of a block that matches, below `before` if that is given."""
    for encoded, transactions in ledger.blocks(height, 1):
        first = Block.decode(encoded).first
        for number, data in reversed(list(enumerate(transactions, first))):
            for index, entry in reversed(list(enumerate(parse(data).entries))):
                if matches(entry) and (before is None or (number, index) < before):
                    return number, index
    return None


def is_anchor_of(entry: bytes, token: bytes, partition: int) -> bool:
    if not is_anchor(entry):
        return False
    anchor = Anchor.decode_entry(entry)
    return (anchor.token, anchor.partition) == (token, partition)


def find_before_revocation(ledger: Engine, subject: bytes, token: bytes, partition: int) -> tuple[Entry, Entry] | None:
    """Where a subject was revoked, and the partition's last anchor before. Returns None where there is no such thing,
    or none was found within a bounded search: whoever asks must then take nothing for older than the revocation."""
    row = ledger.query(lambda state: state.row(IDENTITIES(subject)))
    if row is None or not row.revoked:
        return None
    revocation = find_entry(ledger, row.revoked, lambda entry: is_revocation(entry, subject))
    if revocation is None:
        return None
    end, window = row.revoked + 1, _HEIGHTS
    for _ in range(_LOOKS):
        first = max(0, end - window)
        kinds = (EntryKind.ANCHOR, EntryKind.NOTARISE, EntryKind.JOINT_ANCHOR)
        pages = [ledger.audit(Query(kind=int(kind), first_height=first, end_height=end, most=_ITEMS)) for kind in kinds]
        if window > 1 and any(len(page) >= _ITEMS for page in pages):  # its newest may be missing
            window //= 2
            continue
        matching = {item.height for page in pages for item in page if is_anchor_of(item.entry, token, partition)}
        for height in sorted(matching, reverse=True)[:2]:  # the first may hold anchors after the revocation only
            anchor = find_entry(ledger, height, lambda entry: is_anchor_of(entry, token, partition), revocation)
            if anchor is not None:
                return revocation, anchor
        if not first:
            return None
        end, window = first, window * 4
    return None
