"""The ledger as the authority sees it: read through a client that is not trusted, verified here.

Threat: a node that withholds a revocation, invents a right, shows another history to the authority than to the
world, or an old one. The authority folds every transaction of every block into its own frontier of the ledger's
tree and compares with the checkpoint that the trust file's keys signed: nothing can be left out, slipped in or taken
back. What the transactions *did* is not read from them: they only say where to look; the value of each key that they
touch is then asked for and held to the signed state root. So a transaction that the contracts refused, wherever it
may lie, changes nothing here.

Checkpoints are remembered on disk (`ledger/proofs.py`), with the evidence where two of them contradict. One counts
only while it is no older than `head_age_max_s`: an authority that is shown an honest but old ledger stops serving
instead of handing out keys on rights that may be gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

from tallystick import wire
from tallystick.authority.codec import Octets, Versioned, number
from tallystick.crypto.merkle import Frontier, verify_consistency
from tallystick.crypto.merkle_map import verify_map
from tallystick.errors import Refused, Withheld
from tallystick.ledger.block import Block, Head, Transaction, parse
from tallystick.ledger.contracts.state import Key, R
from tallystick.ledger.proofs import CheckpointMemory, StateProof
from tallystick.trust.trustfile import TrustFile


class LedgerClient(Protocol):
    """What the authority needs of a ledger: a node's `/v1/ledger/*`."""

    def submit(self, transaction: bytes) -> None:
        """Return when the transaction is in a block. Raises `Refused` with the contract's reason, or `Unavailable`."""
        ...

    def checkpoint(self) -> bytes:
        """The newest checkpoint note."""
        ...

    def consistency(self, old: int, new: int) -> Sequence[bytes]:
        """The proof that the tree of `old` transactions is the beginning of that of `new`."""
        ...

    def blocks(self, first: int, most: int) -> Sequence[tuple[bytes, Sequence[bytes]]]:
        """The blocks from height `first`, `most` at most, each with its transactions."""
        ...

    def state(self, key: bytes) -> StateProof:
        """The state's value under `key` at the newest checkpoint."""
        ...

    def states(self, keys: Sequence[bytes]) -> Sequence[StateProof]:
        """`state` of each, asked for together."""
        ...


@dataclass(frozen=True)
class Position(Versioned):
    """How far the ledger was folded; what the store keeps between runs."""

    what = "ledger position"
    height: Annotated[int, number(at_least=-1)]  # -1 before the first block
    frontier: Octets


class _Ahead(threading.local):
    """Rows that a thread asked for beforehand."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}


class Found(NamedTuple):
    """What lies on the ledger beyond a view's position."""

    transactions: list[tuple[Transaction, int]]  # each with the time of its block in milliseconds: the node's word
    position: Position
    head: Head | None  # if this is all, up to the newest checkpoint


class LedgerView:
    """One reader's verified view. One thread at a time follows; any may ask for rows."""

    def __init__(self, client: LedgerClient, memory: CheckpointMemory, position: Position | None) -> None:
        self.client = client
        self._memory = memory
        self._height = -1 if position is None else position.height
        self._frontier = Frontier() if position is None else Frontier.decode(position.frontier)
        self._accepting = threading.Lock()
        self._ahead = _Ahead()
        self.head: Head | None = None  # the newest accepted in this run
        self.followed: Head | None = None  # the newest up to which every transaction was folded

    @property
    def position(self) -> Position:
        return Position(self._height, self._frontier.encode())

    def look(self, blocks_max: int) -> Found:
        """What is new, up to the newest checkpoint or for `blocks_max` blocks; it counts once it is taken.

        `Withheld` if the ledger went back, forked, or leaves out what it signed; from then on nothing is followed.
        """
        try:
            return self._look(blocks_max)
        except Refused:
            self.followed = None
            raise

    def take(self, found: Found) -> None:
        """Go on from there: it was taken over."""
        self._height, self._frontier = found.position.height, Frontier.decode(found.position.frontier)
        self.followed = found.head or self.followed

    @contextmanager
    def ahead(self, keys: Iterable[bytes]) -> Iterator[None]:
        """Ask for these rows now, together: until the end of the block, this thread finds them at hand. So a lock is
        not held over the network for them."""
        asked = [bytes(key) for key in keys]
        answers = self._ask(lambda: self.client.states(asked))
        self._ahead.values = {key: _proven(key, *answer) for key, answer in zip(asked, answers, strict=True)}
        try:
            yield
        finally:
            self._ahead.values = {}

    def _look(self, blocks_max: int) -> Found:
        head = self._newest()
        if head.height < self._height or head.size < self._frontier.size:
            raise Withheld(f"ledger: it was at height {self._height}, now shows {head.height}", reason="rollback")
        found: list[tuple[Transaction, int]] = []
        frontier = Frontier.decode(self._frontier.encode())
        height = self._height
        while height < head.height and height - self._height < blocks_max:
            blocks = self.client.blocks(height + 1, min(blocks_max, head.height - height))
            if not blocks:
                raise Withheld(f"ledger: blocks from height {height + 1} are missing", reason="withheld")
            for block in blocks[: head.height - height]:
                height += 1
                time_ms = Block.decode(block[0]).time_ms
                for data in block[1]:
                    transaction = parse(data)
                    frontier.append(transaction.leaf)
                    found.append((transaction, time_ms))
        if height == head.height:
            if (frontier.size, frontier.root()) != (head.size, head.root):
                raise Withheld("ledger: its blocks are not those under its checkpoint", reason="withheld")
        else:
            # Not yet at the checkpoint: what was folded must at least be the beginning of it.
            proof = list(self.client.consistency(frontier.size, head.size))
            verify_consistency(frontier.size, frontier.root(), head.size, head.root, proof)
        return Found(found, Position(height, frontier.encode()), head if height == head.height else None)

    @property
    def trust(self) -> TrustFile:
        return self._memory.trust

    def use_trust(self, trust: TrustFile) -> None:
        """Judge checkpoints by a newer trust file from now on."""
        self._memory.trust = trust

    @property
    def is_caught_up(self) -> bool:
        """Whether the ledger was followed to its end when it was last looked at; how long ago, `followed` says."""
        followed = self.followed  # another thread may begin to follow meanwhile
        return followed is not None and self._height == followed.height

    def row(self, key: Key[R]) -> R | None:
        """The proven row under `key`, None where it is proven absent."""
        stored = self.raw(key)
        return None if stored is None else key.read(wire.decode(stored, "state value"))

    def raw(self, key: bytes) -> bytes | None:
        """As `row`, not decoded."""
        if key in self._ahead.values:
            return self._ahead.values[key]
        return _proven(key, *self._ask(lambda: [self.client.state(key)])[0])

    def _newest(self) -> Head:
        seen, note = self.head, self.client.checkpoint()
        with self._accepting:
            return self._accept(self.client.checkpoint() if self._is_overtaken(seen, [note]) else note)

    def _ask(self, ask: Callable[[], Sequence[StateProof]]) -> list[tuple[StateProof, Head]]:
        """The answers, each with the head under which it is proved. Many ask at once, and nobody waits for another's
        answer; one that another has overtaken would look like a rollback, so it is asked for again, alone."""
        seen, answers = self.head, ask()
        with self._accepting:
            if self._is_overtaken(seen, [answer.note for answer in answers]):
                answers = ask()
            return [(answer, self._accept(answer.note)) for answer in answers]

    def _is_overtaken(self, seen: Head | None, notes: Sequence[bytes]) -> bool:
        """Whether others were heard since `seen`, and not with these notes."""
        head = self.head
        return head is not None and head is not seen and any(note != head.note for note in notes)

    def _accept(self, note: bytes) -> Head:
        """The note's head. Raises `Withheld` unless it goes on from the newest that was ever accepted."""
        if self.head is None or self.head.note != note:
            self.head = self._memory.accept(note, self.client.consistency)
        return self.head


def _proven(key: bytes, answer: StateProof, head: Head) -> bytes | None:
    verify_map(head.state_root, key, answer.value, answer.proof)
    return answer.value
