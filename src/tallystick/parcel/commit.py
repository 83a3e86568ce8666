"""The list inside a commit parcel: which pending parcels of a write count (docs/formats/commit.md).

Threat: a writer that is killed and started again, whose attempts all left parcels; a list that names another's
parcels, or a parcel twice. Invariant: a batch of a write has one list for ever, since its hash won the compare-and-set
on the ledger, and every parcel that counts is bound by it: each run is a piece of one lane, whose parcels hang by their
previous hashes on the last one's hash, which the list names.

What is left to the readers (client/pending.py): that the list is the ledger's, and that what lies at the places it
names is what it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from tallystick import wire
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Malformed
from tallystick.wire import Fields

LIST_BYTES_MAX = 768 * 1024  # it travels in one parcel, of which carriers take 1 MiB
_RUNS_MAX = 1 << 16
_PARTITIONS_MAX = 1 << 32


@dataclass(frozen=True)
class WrittenRun:
    """Consecutive parcels of one lane that count."""

    lane: bytes
    partition: int
    first: int  # the sequence of the first of them
    offsets: tuple[tuple[int, int], ...]  # where they lie: (offset, how many from there on), rising
    last: bytes  # the hash of the last of them

    @property
    def count(self) -> int:
        return sum(count for _, count in self.offsets)

    def places(self) -> Iterator[int]:
        """The offset of each parcel, in the order of their sequences."""
        for offset, count in self.offsets:
            yield from range(offset, offset + count)


@dataclass(frozen=True)
class CommitList:
    """What counts of one batch of a write, in one topic."""

    token: bytes
    write: bytes
    batch: int
    runs: tuple[WrittenRun, ...]

    @cached_property
    def encoded(self) -> bytes:
        runs = [
            [run.lane, run.partition, run.first, [list(pair) for pair in run.offsets], run.last] for run in self.runs
        ]
        return wire.encode([1, self.token, self.write, self.batch, runs])

    @cached_property
    def hash(self) -> bytes:
        """What wins the compare-and-set."""
        return named_hash("tallystick commit list 1", self.encoded)

    @classmethod
    def decode(cls, data: bytes) -> CommitList:
        if len(data) > LIST_BYTES_MAX:
            raise Malformed(f"commit list: {len(data)} bytes, at most {LIST_BYTES_MAX} expected")
        fields = Fields.parse(data, "commit list", 5)
        fields.version(1)
        token, write, batch = fields.octets(16), fields.octets(32), fields.number()
        runs = tuple(_run(item) for item in fields.items(_RUNS_MAX, at_least=1))
        _check_once(runs)
        return cls(token, write, batch, runs)


def ledger_write(write: bytes) -> bytes:
    """A write as the ledger names it: there, as every identifier, in 16 bytes."""
    return write[:16]


def merge(offsets: list[int]) -> tuple[tuple[int, int], ...]:
    """Rising offsets as (offset, how many from there on)."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and offset == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((offset, 1))
    return tuple(runs)


def _run(item: Any) -> WrittenRun:
    fields = Fields(item, "commit list", 5)
    lane, partition, first = fields.octets(16), fields.number(_PARTITIONS_MAX - 1), fields.number()
    offsets = tuple(_pair(pair) for pair in fields.items(_RUNS_MAX, at_least=1))
    if any(sum(before) >= after[0] for before, after in pairwise(offsets)):
        raise Malformed("commit list: the offsets of a run rise, and neighbours are one pair")
    return WrittenRun(lane, partition, first, offsets, fields.octets(32))


def _pair(item: Any) -> tuple[int, int]:
    fields = Fields(item, "commit list", 2)
    return fields.number(), fields.number(at_least=1)


def _check_once(runs: tuple[WrittenRun, ...]) -> None:
    """A parcel counts once."""
    pairs = sorted((run.partition, *pair) for run in runs for pair in run.offsets)
    for (partition, offset, count), (other, after, _) in pairwise(pairs):
        if partition == other and offset + count > after:
            raise Malformed(f"commit list: offset {after} of partition {partition} is named twice")
