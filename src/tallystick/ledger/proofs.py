"""What a client believes of the ledger: proofs that it checks itself, and the newest checkpoint, which it remembers.

A state proof shows a value, or that there is none, under the state root of a checkpoint that the trust file accepts. A
whole history is verified by folding it and comparing with the proved value of `history/<token>`. Proofs of single
entries, and receipts of parcels, stand in `trust.receipt`.

The memory. Threat: an operator that restores yesterday's ledger, or shows two subscribers two. Invariant: another
checkpoint is accepted only with the signatures that the trust file demands and a proof that its tree continues the
remembered one; heights and times never fall. What contradicts is refused as `Withheld`, and both notes are kept as
evidence: they carry the ledger's own signatures. Views of different clients are compared through the data: headers name
a checkpoint that their publisher accepted (`check_seen`).

A client without memory believes the first checkpoint it sees; there the witnesses of the trust file must serve.

Processes of one identity share the memory. What one of them accepted binds the others: the file never goes back, since
it is written under a lock by whoever has seen what lies there, and what another wrote meanwhile is held against what
is to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.merkle import verify_consistency
from tallystick.crypto.merkle_map import verify_map
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed, Misuse, Refused, Unavailable, Withheld, blame
from tallystick.ledger.block import Head, read_head
from tallystick.ledger.contracts.operations import HISTORIES, next_chain
from tallystick.ledger.contracts.state import HistoryRow
from tallystick.runtime.disk import Disk, read_all, write_atomic
from tallystick.trust.notes import NOTE_BYTES_MAX, Note, ledger_verifiers, witness_verifiers
from tallystick.trust.trustfile import KEYS_MAX, TrustFile
from tallystick.wire import Fields


@dataclass(frozen=True)
class StateProof:
    """A value of the state under a checkpoint, as an engine claims it."""

    key: bytes
    value: bytes | None  # None: the key is absent
    proof: bytes
    note: bytes

    def verify(self, trust: TrustFile) -> Head:
        """The head under which the value stands. Raises `Forged`."""
        head = read_head(self.note, trust)
        verify_map(head.state_root, self.key, self.value, self.proof)
        return head

    def encode(self) -> bytes:
        return wire.encode([1, self.key, self.value, self.proof, self.note])

    @classmethod
    def decode(cls, data: bytes) -> StateProof:
        """Raises `Malformed`."""
        match wire.decode(data, "state proof"):
            case [1, bytes(key), bytes() | None as value, bytes(proof), bytes(note)]:
                return cls(key, value, proof, note)
        raise Malformed("state proof: expected version, key, value, proof and note")


def verify_history(token: bytes, oldest_first: Sequence[tuple[int, int, bytes]], proved: StateProof) -> None:
    """Raise `Withheld` unless these (height, index, entry) are the whole history under a verified state proof."""
    key = HISTORIES(token)
    if proved.key != key:
        raise Forged("history: the proof is of another topic")
    chain = bytes(32)
    for height, index, entry in oldest_first:
        chain = next_chain(chain, height, index, merkle.leaf_hash(entry))
    last = HistoryRow(*oldest_first[-1][:2], len(oldest_first), chain) if oldest_first else None
    expected = None if proved.value is None else key.read(wire.decode(proved.value, "history"))
    if last != expected:
        found = expected.operations if expected else 0
        raise Withheld(f"history: {len(oldest_first)} operations do not fold to the {found} on the ledger")


Consistency = Callable[[int, int], Sequence[bytes]]  # (old size, new size) → proof

_NEWEST = "checkpoint"
_LOCK = "lock"
_EVIDENCE = "evidence-"
_STRANGERS_MAX = 64  # whoever signs with ever new names is not worth more questions


class Lagging(Unavailable):
    """One of several that show the ledger has not come as far as another of them was."""


class CheckpointMemory:
    """The newest accepted checkpoint, kept in a folder of its own."""

    def __init__(self, trust: TrustFile, disk: Disk, successors: Callable[[], Iterable[str]] = tuple) -> None:
        """`successors` brings trust files that followed, in order, from whoever has them; the root's signatures are
        what counts."""
        self.trust = trust
        self._disk, self._successors = disk, successors
        self._strangers: set[tuple[str, bytes]] = set()  # signers of notes whom no trust file that we found names
        self.head = self._load()

    def accept(self, note: bytes, consistency: Consistency, *, since: int | None = None, may_lag: bool = False) -> Head:
        """Remember and return the note's head. Raises `Forged` or `Malformed` if it has none that counts, and
        `Withheld` if it contradicts the newest, or is of a height below `since`: the newest when it was asked for, if
        others may have moved the memory since then. Of who `may_lag` that is `Lagging`, and no contradiction."""
        self._follow_trust(Note.decode(note))
        new = read_head(note, self.trust)
        known = self.head
        if known is not None:
            lowest = known.height if since is None else since
            if may_lag and new.height < lowest:
                raise Lagging(f"ledger: height {known.height} is known, {new.height} is shown", retry_after_s=0.5)
            self._check(known, new, lowest, consistency)
        while (known is None or new.height > known.height) and not self._remember(new, known):
            known = self.head
            assert known is not None  # what another accepted meanwhile, maybe more than this
            self._check(known, new, 0, consistency)
        return new

    def _follow_trust(self, note: Note) -> None:
        """Where somebody signed whom the trust file does not name, there may be a newer one: look, once for each."""
        known = {(one.name, one.key_id) for one in (*ledger_verifiers(self.trust), *witness_verifiers(self.trust))}
        strangers = {(one.name, one.key_id) for one in note.signatures} - known - self._strangers
        if not strangers or len(self._strangers) >= _STRANGERS_MAX:
            return
        self._strangers |= strangers
        with suppress(Refused, Unavailable):  # then the note is judged by what is known
            for text in self._successors():
                new = TrustFile.parse(text)
                if new.number == self.trust.number + 1:
                    self.trust.check_successor(new)
                    self.trust = new

    def _remember(self, new: Head, known: Head | None) -> bool:
        """Write the new head, which was held against `known`. Returns False if another thread or process moved the
        memory, to which ours is set then."""
        with self._writing():
            kept = self._load()
            if kept is not None and kept != known:
                self.head = kept
                return False
            write_atomic(self._disk, _NEWEST, encode_head(new))
            self.head = new
            return True

    def check_seen(self, size: int, root: bytes, consistency: Consistency, head: Head | None = None) -> bool:
        """Return whether a checkpoint that somebody else accepted lies in our history up to `head`, which is the newest
        unless said, or False where it is newer. Raises `Withheld` if it lies in another history.
        """
        head = head or self.head  # once: another thread may accept a newer one meanwhile
        if head is None or size > head.size:
            return False
        try:
            verify_consistency(size, root, head.size, head.root, list(consistency(size, head.size)))
        except Forged as error:
            self._keep(named_hash("tallystick seen 1", root), ["split-view", head.note, size, root])
            raise Withheld(
                f"ledger: somebody was shown another history of {size} transactions", reason="split-view"
            ) from error
        return True

    def evidence(self) -> list[bytes]:
        """What was kept of contradictions: wire [reason, accepted note, …]."""
        names = sorted(name for name in self._disk.listdir("") if name.startswith(_EVIDENCE))
        return [read_all(self._disk, name) for name in names]

    def _check(self, known: Head, shown: Head, lowest: int, consistency: Consistency) -> None:
        """That both lie in one history, whichever is the older, and that what is shown is no lower than this height."""
        old, new = sorted((known, shown), key=lambda head: head.height)
        if shown.height < lowest or new.size < old.size or new.time_ms < old.time_ms:
            message = f"it was at height {known.height}, size {known.size}; it shows {shown.height}, {shown.size}"
            self._contradiction(known, shown, "rollback", message)
        if new.height == old.height and (new.root, new.state_root) != (old.root, old.state_root):
            self._contradiction(old, new, "split-view", f"two checkpoints of height {old.height} differ")
        try:
            proof = [] if new.size == old.size else list(consistency(old.size, new.size))
            verify_consistency(old.size, old.root, new.size, new.root, proof)
        except Forged:
            self._contradiction(old, new, "split-view", f"size {new.size} does not continue size {old.size}")

    def _contradiction(self, old: Head, new: Head, reason: str, message: str) -> None:
        self._keep(named_hash("tallystick evidence 1", old.note + new.note), [reason, old.note, new.note])
        raise Withheld(f"ledger: {message}", reason=reason, hint="both checkpoints were kept as evidence")

    def _keep(self, digest: bytes, content: list[object]) -> None:
        with self._writing():
            write_atomic(self._disk, f"{_EVIDENCE}{digest[:8].hex()}", wire.encode(content))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """For this process alone. Raises what a disk that cannot be written means to whoever runs us: the hands of a
        publisher wait out what passes, and give up for what does not."""
        try:
            with self._disk.held(_LOCK):
                yield
        except OSError as error:
            raise blame(error, "checkpoint memory: ") from error

    def _load(self) -> Head | None:
        if not self._disk.exists(_NEWEST):
            return None
        # Not verified again: it was when it was accepted, by the trust file of then.
        head = decode_head(read_all(self._disk, _NEWEST))
        if head.origin != self.trust.origin:
            raise Misuse(f"checkpoint memory: it is of {head.origin}, expected {self.trust.origin}")
        return head


def encode_head(head: Head) -> bytes:
    """As it is kept by whoever accepted it."""
    return wire.encode([1, *astuple(head)])


def decode_head(data: bytes) -> Head:
    """Not verified again: it was when it was accepted, by the trust file of then."""
    fields = Fields.parse(data, "checkpoint memory", 9)
    fields.version(1)
    return Head(
        origin=fields.text(),
        size=fields.number(),
        root=fields.octets(32),
        height=fields.number(),
        time_ms=fields.number(),
        state_root=fields.octets(32),
        note=fields.octets(at_most=NOTE_BYTES_MAX),
        cosigners=tuple(fields.items(KEYS_MAX)),
    )
