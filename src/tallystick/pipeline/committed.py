"""Commit parcels as the driver reads them: each becomes the ranges of pending parcels that it makes count.

The rows of a write belong to the query, or to the micro-batch, in whose range its commit parcel lies, wherever the rows
lie themselves; that is a function of the range alone, so a micro-batch that is planned again is the same. The driver
opens commit parcels itself, with the keys of the query's permit, and proves what they name (client/pending.py) before a
task is told of it. What does not hold is a finding, and nothing of that write is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tallystick.carriers.carrier import Fetched
from tallystick.client.fetching import Supplier
from tallystick.client.opening import ask_once
from tallystick.client.pending import Commits, Written
from tallystick.client.reader import Finding, Placed
from tallystick.errors import Refused, Withheld
from tallystick.ledger.contracts.anchors import RETIRED
from tallystick.parcel.locks import NotEntitled
from tallystick.parcel.open import open_content
from tallystick.parcel.parcel import Parcel, VerifiedHeader, describe
from tallystick.parcel.verify import verify_named
from tallystick.pipeline.access import Access


class CommitReader:
    def __init__(
        self,
        access: Access,
        supplier: Supplier,
        fetch_headers: Callable[[int, int, int, int], Fetched],
        pass_over_closed: bool,
    ) -> None:
        self._access, self._view, self._pass_over_closed = access, supplier.view, pass_over_closed
        self._commits = Commits(supplier, fetch_headers, access.wanted.asks_for)

    def ranges(self, partition: int, commit: Placed[VerifiedHeader]) -> Iterator[Written | Finding]:
        """What the commit parcel at this place makes count, and what was found."""
        try:
            for written in self._commits.resolve(commit, self._open(partition, commit)):
                yield from self._left(partition, commit, written)
        except Refused as error:
            if isinstance(error, NotEntitled) and self._pass_over_closed:
                return  # none of its columns opens, and so it is with the rows that it makes count
            message = f"{error}; {error.hint}" if error.hint else str(error)
            yield self._finding(error.reason, message, partition, commit)

    def _open(self, partition: int, commit: Placed[VerifiedHeader]) -> bytes:
        """The list inside; its header was proved, so its bytes are held to its name."""
        access, header, offset = self._access, commit.verified.header, commit.offset
        size = None if commit.anchor is None else commit.anchor.size
        fetched = access.fetch(partition, offset, offset + 1, size, stored=size is None)
        if len(fetched.parcels) != 1:
            place = f"offset {offset} of partition {partition}"
            told = f"{describe(header)}: it lies at {place}, and the node does not show it"
            raise Withheld(told, reason="missing")
        try:
            verified = verify_named(Parcel.decode(fetched.parcels[0]), header.hash, commit.verified.permits)
        except Refused as error:
            raise Withheld(f"partition {partition}, offset {offset}: {error}", reason="altered") from error
        return ask_once(lambda: open_content(verified, access.ring), access.update)

    def _left(self, partition: int, commit: Placed[VerifiedHeader], written: Written) -> Iterator[Written | Finding]:
        """Yield what retention has left of a range, and a finding that tells what it took."""
        mark = self._view.row(RETIRED(self._access.token, written.partition))
        gone = 0 if mark is None else min(max(0, mark.below - written.first), len(written.names))
        if gone:
            place = f"partition {written.partition}"
            message = f"{place}: {gone} parcels of a write were retired from offset {written.first} on"
            yield self._finding("retired", message, partition, commit)
        if gone < len(written.names):
            yield replace(written, first=written.first + gone, names=written.names[gone:], sizes=written.sizes[gone:])

    def _finding(self, reason: str, message: str, partition: int, commit: Placed[VerifiedHeader]) -> Finding:
        place, verified = (self._access.token, partition, commit.offset), commit.verified
        return Finding.about(reason, message, place, verified.publisher, verified.parcel)
