"""Where a height or a block time lies in a partition: at the first parcel that was anchored then or later.

Which one that is, the node tells from the ledger's entries. Its word decides where a reader begins or ends and nothing
else: what is read is proved, and no place lies beyond the proved anchor. Who must not take the node's word for it names
offsets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple, Protocol

from tallystick.carriers.remote import RemoteNode
from tallystick.errors import Malformed
from tallystick.ledger.block import Block
from tallystick.ledger.contracts.anchors import AnchorRow
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.trust.promise import Anchor

_PAGE = 10_000  # entries that a node answers at most
_WINDOW = 64  # heights; grows fourfold while nothing is found
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EntrySource(Protocol):
    """Whoever has the ledger's entries: a node, or who replayed them."""

    def audit(self, **query: int) -> Sequence[Sequence[Any]]: ...


class ToldAnchor(NamedTuple):
    """An anchor as it is told: everything below `size` was anchored at this height or before."""

    size: int
    height: int
    time_ms: int


def to_ms(time: datetime) -> int:
    """A time with its zone in milliseconds, as blocks have it; exact, which a float is not."""
    return (time - _EPOCH) // timedelta(milliseconds=1)


def offsets_at_time(
    node: RemoteNode, token: bytes, time_ms: int, anchors: Mapping[int, AnchorRow | None]
) -> dict[int, int]:
    """The offset of the first parcel of each partition that was anchored at this block time or later, or the end of
    what is anchored. `anchors` are the proved ones."""
    newest = max((anchor.height for anchor in anchors.values() if anchor is not None), default=0)
    height = height_at(node, time_ms, newest + 1)
    return {
        partition: 0 if anchor is None else size_below(node, token, partition, height, anchor)
        for partition, anchor in anchors.items()
    }


def height_at(node: RemoteNode, time_ms: int, end: int) -> int:
    """The first height whose block is not older than this time, or `end` where all below it are."""

    def told_ms(height: int) -> int:
        blocks = node.blocks(height, 1)
        if not blocks:
            raise Malformed(f"answer: block {height} expected")
        return Block.decode(blocks[0][0]).time_ms

    return bisect_left(range(end), time_ms, key=told_ms)


def size_below(node: EntrySource, token: bytes, partition: int, height: int, newest: AnchorRow) -> int:
    """How many parcels of a partition were anchored below a height; `newest` is its proved anchor."""
    if height > newest.height:
        return newest.size
    for told in anchors_below(node, token, partition, height):
        return min(told.size, newest.size)
    return 0


def anchors_below(node: EntrySource, token: bytes, partition: int, end: int) -> Iterator[ToldAnchor]:
    """The partition's anchors below the height `end`, a carrier's or a notary's, newest first."""
    window = _WINDOW
    while end > 0:
        first = max(0, end - window)
        found = [
            node.audit(kind=int(kind), first=first, end=end, most=_PAGE)
            for kind in (EntryKind.ANCHOR, EntryKind.NOTARISE, EntryKind.JOINT_ANCHOR)
        ]
        if max(map(len, found)) >= _PAGE and window > 1:
            window //= 2
            continue
        for height, _, time_ms, _, _, entry in sorted(chain(*found), key=_place, reverse=True):
            anchor = Anchor.decode_entry(entry)
            if (anchor.token, anchor.partition) == (token, partition):
                yield ToldAnchor(anchor.size, height, time_ms)
        end, window = first, window * 4


def _place(item: Sequence[Any]) -> tuple[int, int]:
    return item[0], item[1]
