"""Writes: many processes seal parts of one batch, and all of it counts at once or nothing does.

    1. each process seals its part into a lane of its own, marked pending, until it is anchored (`PartWriter`);
    2. one of them, the driver, keeps the list of what was sealed on its disk (`Committer`),
    3. wins the compare-and-set for (write, batch) on the ledger with the list's hash,
    4. seals the list as one commit parcel, which makes the parts count for every reader (client/pending.py).

Threat: a process that is killed between any two of these, or between two of their parts, and started again; a batch
that is run twice, at once or one after the other. Invariants: a batch has one list, since it has one hash on the
ledger; a list is on disk before it can win; a commit parcel is in the spool before it is sent, and sealed only if
neither the spool nor a mark says that it was. Whoever finds the batch taken finishes the list that won, and what it has
sealed itself never counts.

A folder belongs to one process at a time (its lock), and outlives it: the lane in its spool goes on, so the number of
lanes is that of processes at work at once, not of batches. What an earlier process had sealed and not sent is sent
first: it is part of the lane, and pending.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tallystick import wire
from tallystick.client.publish import Delivery, Publisher, PublisherSettings
from tallystick.client.session import Session
from tallystick.client.ties import Ties
from tallystick.errors import Misuse, Refused, TallystickError, Unavailable, name_cause
from tallystick.ledger import entries
from tallystick.ledger.contracts.state import Key
from tallystick.ledger.contracts.writes import WRITES, WriteRow
from tallystick.parcel.commit import LIST_BYTES_MAX, CommitList, WrittenRun, ledger_write, merge
from tallystick.record.schema import Schema
from tallystick.runtime.disk import RealDisk, read_all, write_atomic

T = TypeVar("T")

PATIENCE_S = 120.0  # until everything is anchored; a node that restarts is back long before
_MARKS_MAX = 1_000  # batches of which is kept that they are committed; Spark runs at most the last one again
_PENDING: dict[str, Any] = {
    "acks": "anchored",  # a list names nothing that is not anchored
    "anchor_check_s": 0.05,
    "heartbeat_s": float("inf"),  # a lane of pending parcels may be silent, and its runs have no gaps
    "keys_wait_ms": 0,
}


@contextmanager
def held(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """The folder, made where there is none, for this process alone; without `wait`, False if it is another's."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = open(folder / "lock", "w")  # noqa: SIM115
    except OSError as error:
        hint = "who writes keeps lanes and lists there: make it writable"
        raise Misuse(f"{folder}: cannot be written: {error.strerror}", hint=hint) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


@contextmanager
def _publisher(
    ties: Ties, topic: str, folder: Path, write: tuple[bytes, int], deliveries: list[Delivery], **settings: Any
) -> Iterator[Publisher]:
    """A publisher whose spool lies in `folder`; what it delivers is added to `deliveries`."""

    def delivered(error: TallystickError | None, delivery: Delivery | None) -> None:
        if error is not None:
            raise error
        assert delivery is not None
        deliveries.append(delivery)

    publishing = PublisherSettings(**{**_PENDING, "write": write, **settings})
    publisher = Publisher(ties, topic, RealDisk(folder / "spool"), publishing, on_delivery=delivered)
    try:
        yield publisher
    finally:
        publisher.stop()


def _settle(ties: Ties, publisher: Publisher) -> None:
    """Wait until all that was sealed is anchored."""
    if waiting := publisher.flush(PATIENCE_S):
        error = Unavailable(f"{waiting} parcels are not anchored after {PATIENCE_S:g} s", hint="see the node's log")
        name_cause(error, ties.node.trouble() or publisher.statistics().last_error)
        raise error


class PartWriter:
    """Seals one part of a batch, pending. The folder is the caller's alone (`held`)."""

    def __init__(self, ties: Ties, topic: str, folder: Path, **settings: Any) -> None:
        self._ties, self._topic, self._folder, self._settings = ties, topic, folder, settings

    def write(
        self, write: tuple[bytes, int], rows: Iterator[T], fit: Callable[[T, Schema], Any] = lambda rows, _: rows
    ) -> tuple[WrittenRun, ...]:
        """Seal rows for this write and batch, as `fit(rows, the topic's schema)` makes them fit for `Publisher.send`;
        what was anchored, for the list."""
        delivered: list[Delivery] = []
        with _publisher(self._ties, self._topic, self._folder, write, delivered, **self._settings) as publisher:
            _settle(self._ties, publisher)
            delivered.clear()  # so far what an earlier process left
            for some in rows:
                publisher.send(fit(some, publisher.schema))
                publisher.poll()
            _settle(self._ties, publisher)
        return _runs(delivered)


def _runs(delivered: list[Delivery]) -> tuple[WrittenRun, ...]:
    """The parcels of each lane as one run: they were sealed one after the other."""
    lanes: dict[bytes, list[Delivery]] = {}
    for one in delivered:
        lanes.setdefault(one.lane, []).append(one)
    runs = []
    for lane, items in lanes.items():
        items.sort(key=lambda one: one.sequence)
        places = [one.offsets[0] for one in items]
        offsets = merge([offset for _, _, offset in places])
        runs.append(WrittenRun(lane, places[0][1], items[0].sequence, offsets, items[-1].parcel))
    return tuple(runs)


class Committer:
    """Makes lists count, each batch once. The folder must be there again after a restart: it holds the lists."""

    def __init__(self, session: Session, topic: str, folder: Path) -> None:
        self._session, self._topic, self._folder = session, topic, folder
        self._disk, self._view = RealDisk(folder / "lists"), session.view

    def commit(self, proposed: CommitList) -> CommitList | None:
        """Let this list count, or, where its batch is taken, the one that won. Returns None if that was done long
        ago."""
        if len(proposed.encoded) > LIST_BYTES_MAX:
            raise Misuse(
                f"the list of a write has {len(proposed.encoded)} bytes, at most {LIST_BYTES_MAX} fit a parcel",
                hint="write fewer, larger partitions: coalesce the frame",
            )
        write = (proposed.write, proposed.batch)
        with held(self._folder):
            if self._disk.exists(_mark(write)):
                return None
            row = self._view.row(self._place(*write))
            if row is None:
                self._keep(proposed)
                row = self._win(proposed)
            chosen = self._kept(write, row.hash)
            self._seal(chosen)
            self._finish(write)
            return chosen

    def _keep(self, proposed: CommitList) -> None:
        """On disk before it can win; beside others that were proposed for the batch."""
        write_atomic(self._disk, _name((proposed.write, proposed.batch), proposed.hash), proposed.encoded)

    def _place(self, write: bytes, batch: int) -> Key[WriteRow]:
        """Where the ledger says which list won."""
        return WRITES(self._session.identity.principal, ledger_write(write), batch)

    def _win(self, proposed: CommitList) -> WriteRow:
        """The compare-and-set. Returns what has won, ours or another's."""
        entry = entries.write(proposed.token, ledger_write(proposed.write), proposed.batch, proposed.hash)
        try:
            self._session.author.write(entry)
        except Refused as error:
            if error.reason != "batch-taken":
                raise
        won = self._view.wait_for(self._place(proposed.write, proposed.batch), lambda row: row is not None)
        assert won is not None  # or it would still be waiting
        return won

    def _kept(self, write: tuple[bytes, int], winner: bytes) -> CommitList:
        name = _name(write, winner)
        if not self._disk.exists(name):
            raise Misuse(
                f"batch {write[1]} of this write is committed on the ledger, and its list is not in {self._folder}",
                hint="the folder was lost or emptied: start a new write (a new checkpointLocation, another write name)",
            )
        return CommitList.decode(read_all(self._disk, name))

    def _seal(self, chosen: CommitList) -> None:
        """Seal the commit parcel unless it was, and wait until it is anchored."""
        write = (chosen.write, chosen.batch)
        with _publisher(self._session, self._topic, self._folder, write, []) as publisher:
            last = publisher.last_commit()
            _settle(self._session, publisher)
            if last == write:
                return
            if last is not None:
                self._mark(last)  # the spool keeps the newest only: from here on the mark must say it
            publisher.commit(chosen.encoded)
            _settle(self._session, publisher)

    def _finish(self, write: tuple[bytes, int]) -> None:
        """The lists of the batch are not needed any more, nor old marks."""
        self._mark(write)
        prefix, lists = _name(write, b""), self._folder / "lists"
        names = self._disk.listdir("")
        done = [name for name in names if name.endswith(_DONE)]
        marks = sorted(done, key=lambda name: (lists / name).stat().st_mtime)
        for name in [*(one for one in names if one.startswith(prefix) and one != _mark(write)), *marks[:-_MARKS_MAX]]:
            self._disk.remove(name)

    def _mark(self, write: tuple[bytes, int]) -> None:
        """The commit parcel of this batch is anchored."""
        write_atomic(self._disk, _mark(write), wire.encode([1]))


_DONE = ".done"


def _name(write: tuple[bytes, int], digest: bytes) -> str:
    return f"{write[0].hex()}-{write[1]}-{digest.hex()}"


def _mark(write: tuple[bytes, int]) -> str:
    return _name(write, b"") + _DONE
