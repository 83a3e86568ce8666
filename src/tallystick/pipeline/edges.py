"""Edges: where in each partition a query begins and ends.

Offsets are exact. A height or a block time stands for the first parcel that was anchored then or later, on the node's
word (client/times.py). A query that must not take the node's word for its edges names offsets.
"""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.carriers.remote import RemoteNode
from tallystick.client.times import ToldAnchor, anchors_below, height_at, size_below
from tallystick.errors import Misuse, Unavailable
from tallystick.ledger.contracts.anchors import AnchorRow
from tallystick.pipeline.options import Edge


def offsets_at(
    edge: Edge,
    which: str,
    node: RemoteNode,
    token: bytes,
    anchors: Mapping[int, AnchorRow],
    bounds: Mapping[int, tuple[int, int]],
) -> dict[int, int]:
    """The offset of the edge in each partition, which may have been retired since, unless the query names it. Raises
    `Misuse` or `Unavailable` where that lies outside of what is left and can be read (`bounds`)."""
    given, found = dict(edge.offsets), dict[int, int]()
    if unknown := given.keys() - bounds.keys():
        raise Misuse(f"{which}Offsets: there is no partition {min(unknown)}, the topic has {len(bounds)}")
    newest = max((anchor.height for anchor in anchors.values()), default=0)
    height = edge.height if edge.time_ms is None else height_at(node, edge.time_ms, newest + 1)
    for partition, (below, end) in bounds.items():
        anchor = anchors.get(partition)
        if partition in given:
            found[partition] = given[partition]
            known = "anchored" if anchor is None or anchor.size == end else "stored"
            _check_inside(which, partition, given[partition], below, end, known)
        elif height is not None:
            found[partition] = 0 if anchor is None else size_below(node, token, partition, height, anchor)
        else:
            found[partition] = 0 if edge.rest == "earliest" else end
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
    for told in anchors_below(node, token, partition, newest.height):
        if told.size < found[-1].size and told.height <= found[-1].height:
            found.append(told)
        if told.size <= first:
            break
    return tuple(reversed(found))
