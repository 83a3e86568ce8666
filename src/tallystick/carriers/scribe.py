"""The scribe: what happened at this node, written to the ledger in batches (BPS 4.5).

Every act, accepted or refused, is noted in the journal, which is synced with the parcels themselves; together they are
the ledger's write-ahead. Beside the notes stand accusations: evidence that convicts by itself. A commit gathers the
notes into operation entries, adds the anchors of partitions that have grown, and submits one transaction:

1. notes become entries; alike ones (operator, topic, kind, reason, host, partition) become one aggregate with their
   count and the Merkle root of their request hashes, unless `each` is asked for;
2. the signed transaction is journalled with the note up to which it covers, and synced;
3. it is submitted, which is idempotent, so a crash here repeats it and nothing else;
4. notes older than the duplicate window are trimmed: until then they are also the window's memory across a restart.

Threat: a flood that makes the ledger grow. A refusal carries evidence (the signed request) only where the contract
could hold it against its principal, and only `evidence_max` times a principal and window; what nobody signed is counted
by reason and enters as one aggregate each. Of a principal one accusation waits at a time: it blacklists, and a second
would add nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple, Protocol

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.errors import Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.block import compose, parse
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.contracts.state import NOBODY
from tallystick.ledger.engine import Submitted
from tallystick.runtime.conversation import RequestSigner
from tallystick.trust.promise import Anchor, is_anchor
from tallystick.wire import Fields

log = logging.getLogger(__name__)

ENTRIES_MAX = 512  # BPS Fig. 7: the batch at which committing is most efficient
AGAIN_MS = 600_000  # before an anchor that the ledger refused is offered again: somebody may have mended the cause
ACCUSATIONS_MAX = 32  # a commit: two headers of 16 KiB each, where a transaction holds 3 MiB
_NOTE, _TRANSACTION, _ACCUSATION = 1, 2, 3


class ActNote(NamedTuple):
    """One act at this node."""

    operator: bytes
    role: OperatorRole
    token: bytes
    operation: int
    reason: str  # empty if accepted
    host: str
    partition: int
    first: int
    end: int
    time_ms: int
    request: bytes
    nonce: bytes
    evidence: bytes = b""

    def encode(self) -> bytes:
        operator, role, *rest = self
        return wire.encode([_NOTE, operator, int(role), *rest])

    @classmethod
    def decode(cls, data: bytes) -> ActNote:
        _, operator, role, *rest = wire.decode(data, "note")
        return cls(operator, OperatorRole(role), *rest)


class Accusation(NamedTuple):
    """An entry that convicts a principal by itself."""

    operator: bytes
    time_ms: int
    entry: bytes

    def encode(self) -> bytes:
        return wire.encode([_ACCUSATION, *self])

    @classmethod
    def decode(cls, data: bytes) -> Accusation:
        return cls(*wire.decode(data, "accusation")[1:])


class _Prepared(NamedTuple):
    """A transaction in the journal, and the note below which it covers all."""

    sequence: int
    covered: int
    transaction: bytes


class NoteJournal(Protocol):
    """The carrier's journal, synced with its parcels."""

    @property
    def replay_end(self) -> int: ...

    def append(self, record: bytes) -> int: ...

    def replay(self) -> list[tuple[int, bytes]]: ...

    def trim(self, upto: int) -> None: ...


@dataclass(frozen=True)
class ScribeSettings:
    quiet: bool = False  # nothing comes to the ledger: acts are journalled for the duplicate window alone
    each: bool = False  # one entry per act instead of aggregates
    evidence_max: int = 16  # refusals with evidence for one principal and commit; 9 suffice for the blacklist
    keep_s: float = 70.0  # how long notes stay for the duplicate window: its own time
    journal_records_max: int = 200_000  # beyond it notes are trimmed once they are on the ledger, whatever their age


class Numbers:
    """The numbers of a node's transactions: microseconds of its clock, and above every earlier one, whatever that clock
    does between two starts. The ledger refuses a number that does not rise."""

    def __init__(self, last: int) -> None:
        """`last` is the newest one on the ledger."""
        self._last = last
        self._lock = threading.Lock()

    def next(self, now_us: int) -> int:
        with self._lock:
            self._last = max(self._last + 1, now_us)
            return self._last

    def learn(self, number: int) -> None:
        """Go on above this number, which was given before and may come to the ledger yet."""
        with self._lock:
            self._last = max(self._last, number)


class Scribe:
    """Single-threaded by its caller's lock, except `submit`, which may take as long as the ledger does."""

    def __init__(
        self,
        instance: bytes,
        signer: RequestSigner,
        journal: NoteJournal,
        submit: Callable[[bytes], Submitted],
        numbers: Numbers,
        settings: ScribeSettings,
    ) -> None:
        """`submit` hands a transaction to the ledger and waits for its block; the same bytes may be handed over
        again."""
        self._instance, self._signer = instance, signer
        self._journal, self.submit, self._numbers, self._settings = journal, submit, numbers, settings
        self._waiting: list[tuple[int, ActNote | Accusation]] = []
        self._junk: Counter[tuple[str, int]] = Counter()
        self._junk_lock = threading.Lock()
        self._junk_told: Counter[tuple[str, int]] = Counter()  # what the prepared transaction tells of it
        self._recent: list[tuple[int, int]] = []  # (sequence, time) of what is still in the journal
        self._covered = 0  # what lies below is on the ledger
        self._entries_max = ENTRIES_MAX  # less while an entry that the ledger refuses is looked for
        self._aside: dict[tuple[bytes, int], int] = {}  # partitions whose anchors it refuses, and when to ask again
        self._prepared: _Prepared | None = None  # the transaction under way
        self.on_note: Callable[[ActNote], None] = lambda note: None  # hears of each, as it is noted

    def recover(self) -> list[ActNote]:
        """Take up the journal of an earlier process. Returns the notes in it, for the duplicate window."""
        notes = []
        for sequence, record in self._journal.replay():
            kind = wire.decode(record, "journal record")[0]
            if kind == _NOTE:
                notes.append(ActNote.decode(record))
                self._wait(sequence, notes[-1])
            elif kind == _ACCUSATION:
                self._wait(sequence, Accusation.decode(record))
            else:
                fields = Fields.parse(record, "journal record", 3)
                fields.version(_TRANSACTION)
                self._prepared = _Prepared(sequence, fields.number(), fields.octets(at_most=1 << 24))
        if self._prepared is not None:
            # It may not have reached the ledger; those before it did, and what they tell of waits no more.
            transaction, covered = parse(self._prepared.transaction), self._prepared.covered
            self._numbers.learn(transaction.number)
            told = sum(sequence < covered for sequence, _ in self._waiting) - _count_acts(transaction.entries)
            del self._waiting[: max(0, told)]
        return notes

    def note(self, note: ActNote) -> None:
        """Write an act down; it is durable with the carrier's next sync."""
        self._wait(self._journal.append(note.encode()), note)
        self.on_note(note)

    def accuse(self, accusation: Accusation) -> None:
        """Bring a principal's misdeed to the ledger; as durable as a note."""
        if self._settings.quiet:
            return
        if not any(isinstance(one, Accusation) and one.operator == accusation.operator for _, one in self._waiting):
            self._wait(self._journal.append(accusation.encode()), accusation)

    def _wait(self, sequence: int, one: ActNote | Accusation) -> None:
        if not self._settings.quiet:
            self._waiting.append((sequence, one))
        self._recent.append((sequence, one.time_ms))

    def count_junk(self, reason: str, operation: int) -> None:
        """Count a refusal that nobody signed; from any thread. Never waits for the disk: junk stalls nobody."""
        if self._settings.quiet:
            return
        with self._junk_lock:
            self._junk[reason, operation] += 1

    @property
    def is_quiet(self) -> bool:
        """Whether nothing of what happens here comes to the ledger: then nothing can be promised either."""
        return self._settings.quiet

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def aside(self) -> frozenset[tuple[bytes, int]]:
        """The partitions whose anchors the ledger refused, by token and number."""
        return frozenset(self._aside)

    def prepare(self, anchors: Sequence[Anchor], now_ms: int) -> bytes | None:
        """The next transaction, staged in the journal; sync the journal before `submit`. None if nothing waits."""
        if self._settings.quiet:
            self._covered = self._journal.replay_end
            self._trim(now_ms)
            return None
        if self._prepared is not None:
            return self._prepared.transaction
        self._aside = {place: again_ms for place, again_ms in self._aside.items() if again_ms > now_ms}
        anchors = [one for one in anchors if (one.token, one.partition) not in self._aside]
        is_looking, room = self._entries_max < ENTRIES_MAX, ENTRIES_MAX
        if is_looking:
            anchors = anchors[: self._entries_max]
            room = self._entries_max - len(anchors)
        written = [anchor.encode_entry() for anchor in anchors]
        if not is_looking:
            with self._junk_lock:
                self._junk_told = self._junk.copy()
            written += [
                entries.junk(reason, count, operation, time_ms=now_ms)
                for (reason, operation), count in self._junk_told.items()
            ]
        covered, acts = self._gather(room)
        if not written and not acts:
            self._entries_max = ENTRIES_MAX
            return None
        return self._stage(covered, [*written, *acts], now_ms)

    def _stage(self, covered: int, written: Sequence[bytes], now_ms: int) -> bytes:
        number = self._numbers.next(now_ms * 1000)
        transaction = compose(self._instance, self._signer.principal, number, written, self._signer.key).data
        sequence = self._journal.append(wire.encode([_TRANSACTION, covered, transaction]))
        self._prepared = _Prepared(sequence, covered, transaction)
        return transaction

    def refused(self, error: Refused, now_ms: int) -> None:
        """The ledger refused the prepared transaction. One entry spoils it for all, so half of them go next time, until
        the one is found: it is given up, an anchor for a while, and the log says so. Where the number was refused, no
        entry is at fault: all of them go under another one, in the next round."""
        assert self._prepared is not None
        refused = parse(self._prepared.transaction).entries
        if error.reason == "replayed":
            self._stage(self._prepared.covered, refused, now_ms)
            raise Unavailable(str(error), retry_after_s=1.0) from error
        if len(refused) > 1:
            self._entries_max, self._prepared = min(len(refused), ENTRIES_MAX) // 2, None
            self._junk_told.clear()
            return
        log.error("the ledger does not take an entry of this node: %s (%s)", error, error.reason)
        if is_anchor(refused[0]):
            self._stand_aside(Anchor.decode_entry(refused[0]), now_ms)
        self.finish(now_ms)

    def _stand_aside(self, anchor: Anchor, now_ms: int) -> None:
        """Offer no anchor of this partition for a while, so that the others go on."""
        self._aside[anchor.token, anchor.partition] = now_ms + AGAIN_MS

    def revert(self) -> None:
        """The sync failed: what was noted or prepared since the last good one never happened. A transaction that is
        durable goes on, it may be with the ledger already."""
        end = self._journal.replay_end
        self._waiting = [(sequence, one) for sequence, one in self._waiting if sequence < end]
        self._recent = [(sequence, time_ms) for sequence, time_ms in self._recent if sequence < end]
        if self._prepared is not None and self._prepared.sequence >= end:
            self._prepared = None
            self._junk_told.clear()

    def finish(self, now_ms: int) -> None:
        """After `submit`: forget what is both on the ledger and older than the duplicate window."""
        assert self._prepared is not None
        self._entries_max = min(ENTRIES_MAX, 2 * self._entries_max)
        self._covered, self._prepared = self._prepared.covered, None
        self._waiting = [(sequence, one) for sequence, one in self._waiting if sequence >= self._covered]
        with self._junk_lock:
            self._junk -= self._junk_told
            self._junk_told.clear()
        self._trim(now_ms)

    def _trim(self, now_ms: int) -> None:
        oldest_ms = now_ms - int(self._settings.keep_s * 1000)
        crowded = len(self._recent) > self._settings.journal_records_max

        def is_done(one: tuple[int, int]) -> bool:
            sequence, time_ms = one
            return sequence < self._covered and (time_ms < oldest_ms or crowded)

        if done := list(takewhile(is_done, self._recent)):
            del self._recent[: len(done)]
            self._journal.trim(min(done[-1][0] + 1, self._journal.replay_end))

    def _gather(self, entries_max: int) -> tuple[int, list[bytes]]:
        """Entries for as much of what waits as fits, and the sequence below which all is covered."""
        groups: dict[object, list[ActNote]] = {}
        accusations: list[bytes] = []
        evident: dict[bytes, set[bytes]] = {}  # requests by operator: one proves as much as many
        taken = 0
        for sequence, note in self._waiting:
            if isinstance(note, Accusation):
                if len(accusations) == ACCUSATIONS_MAX or len(accusations) + len(groups) == entries_max:
                    break
                accusations.append(note.entry)
                taken += 1
                continue
            shown = evident.setdefault(note.operator, set())
            with_evidence = note.evidence and note.request not in shown and len(shown) < self._settings.evidence_max
            key: object = sequence if self._settings.each or with_evidence else _alike(note)
            if key not in groups and len(accusations) + len(groups) == entries_max:
                break
            if with_evidence:
                shown.add(note.request)
            groups.setdefault(key, []).append(note)
            taken += 1
        covered = self._waiting[taken - 1][0] + 1 if taken else self._covered
        return covered, [*accusations, *(_entry(notes) for notes in groups.values())]


def _count_acts(written: Iterable[bytes]) -> int:
    """How many notes and accusations these entries tell of."""
    acts = 0
    for entry in written:
        match wire.decode(entry, "entry"):
            case [EntryKind.EQUIVOCATION, *_]:
                acts += 1
            case [EntryKind.OPERATION, operator, _, _, _, _, _, count, *_] if operator != NOBODY:
                acts += count
    return acts


def _alike(note: ActNote) -> object:
    # Acts on parcels apart from others: the counts of the former then add up to what is anchored, and an audit asks.
    is_about_parcels = note.end > 0
    return (note.operator, note.token, note.operation, note.reason, note.host, note.partition, is_about_parcels)


def _entry(notes: list[ActNote]) -> bytes:
    first = notes[0]
    hashes = [merkle.leaf_hash(note.request) for note in notes]
    return entries.operation(
        *(first.operator, first.role, first.token, first.operation),
        time_ms=notes[-1].time_ms,
        request=first.request if len(notes) == 1 else merkle.root(hashes),
        reason=first.reason,
        host=first.host,
        count=len(notes),
        partition=first.partition,
        first=min(note.first for note in notes),
        end=max(note.end for note in notes),
        evidence=first.evidence if len(notes) == 1 else b"",
    )


def window_entries(notes: Iterable[ActNote]) -> list[tuple[float, bytes, bytes]]:
    """What the duplicate window remembers of these acts; reads do not pass it."""
    return [
        (note.time_ms / 1000, note.operator, note.nonce) for note in notes if note.role is not OperatorRole.SUBSCRIBER
    ]
