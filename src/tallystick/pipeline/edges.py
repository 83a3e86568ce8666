"""Edges: where in each partition a query begins and ends.

Offsets are exact. A height or a block time stands for the first parcel that was anchored then or later; which one that
is, the node tells from the ledger's entries. Its word decides where the edge lies and nothing else: what lies between
two edges is proved, and an edge never lies beyond the proved anchor. A query that must not take the node's word for
its edges names offsets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tallystick.carriers.remote import RemoteNode
from tallystick.errors import Malformed, Misuse, Unavailable
from tallystick.ledger.block import Block
from tallystick.ledger.contracts.anchors import AnchorRow
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.pipeline.options import Edge
from tallystick.trust.promise import Anchor

_PAGE = 10_000  # entries that a node answers at most
_WINDOW = 64  # heights; grows fourfold while nothing is found


class ToldAnchor(NamedTuple):
    """An anchor as the node tells it: everything below `size` was anchored at this height or before."""

    size: int
    height: int
    time_ms: int


def offsets_at(
    edge: Edge,
    which: str,
    node: RemoteNode,
    token: bytes,
    anchors: Mapping[int, AnchorRow],
    bounds: Mapping[int, tuple[int, int]],
) -> dict[int, int]:
    """The offset of the edge in each partition. Raises `Misuse` or `Unavailable` where it lies outside of what is left
    and can be read (`bounds`)."""
    given, found = dict(edge.offsets), dict[int, int]()
    if unknown := given.keys() - bounds.keys():
        raise Misuse(f"{which}Offsets: there is no partition {min(unknown)}, the topic has {len(bounds)}")
    height = edge.height if edge.time_ms is None else _height_of(node, edge.time_ms, anchors)
    for partition, (below, end) in bounds.items():
        anchor = anchors.get(partition)
        if partition in given:
            found[partition] = given[partition]
            known = "anchored" if anchor is None or anchor.size == end else "stored"
            _check_inside(which, partition, given[partition], below, end, known)
        elif height is not None:
            found[partition] = 0 if anchor is None else max(below, _size_below(node, token, partition, height, anchor))
        else:
            found[partition] = below if edge.rest == "earliest" else end
    return found


def _check_inside(which: str, partition: int, offset: int, below: int, end: int, known: str) -> None:
    if offset > end:
        raise Unavailable(
            f"{which}Offsets: offset {offset} of partition {partition} was asked for, {end} parcels are {known}",
            hint="wait until the ledger has anchored them, or read to latest",
        )
    if offset < below:
        raise Misuse(
            f"{which}Offsets: offset {offset} of partition {partition} was retired, {below} is the first left",
            hint="start at earliest",
        )


def anchors_of(node: RemoteNode, token: bytes, partition: int, first: int, newest: AnchorRow) -> tuple[ToldAnchor, ...]:
    """The anchors that the parcels from `first` on came under, oldest first; the last is the proved one."""
    found = [ToldAnchor(newest.size, newest.height, newest.time_ms)]
    for told in _backwards(node, token, partition, newest.height):
        if told.size < found[-1].size and told.height <= found[-1].height:
            found.append(told)
        if told.size <= first:
            break
    return tuple(reversed(found))


def _size_below(node: RemoteNode, token: bytes, partition: int, height: int, newest: AnchorRow) -> int:
    if height > newest.height:
        return newest.size
    for told in _backwards(node, token, partition, height):
        return min(told.size, newest.size)
    return 0


def _backwards(node: RemoteNode, token: bytes, partition: int, end: int) -> Iterator[ToldAnchor]:
    """The partition's anchors below the height `end`, newest first."""
    window = _WINDOW
    while end > 0:
        first = max(0, end - window)
        items = node.audit(kind=int(EntryKind.ANCHOR), first=first, end=end, most=_PAGE)
        if len(items) >= _PAGE and window > 1:
            window //= 2
            continue
        for height, _, time_ms, _, _, entry in reversed(items):
            anchor = Anchor.decode_entry(entry)
            if (anchor.token, anchor.partition) == (token, partition):
                yield ToldAnchor(anchor.size, height, time_ms)
        end, window = first, window * 4


def _height_of(node: RemoteNode, time_ms: int, anchors: Mapping[int, AnchorRow]) -> int:
    """The first height whose block is not older than this time."""

    def told_ms(height: int) -> int:
        blocks = node.blocks(height, 1)
        if not blocks:
            raise Malformed(f"answer: block {height} expected")
        return Block.decode(blocks[0][0]).time_ms

    end = max((anchor.height for anchor in anchors.values()), default=0) + 1
    return bisect_left(range(end), time_ms, key=told_ms)
