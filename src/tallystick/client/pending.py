"""Reading back what a commit parcel names: pending parcels are passed over where they lie and delivered here.

Subscribers and the Spark driver share it. Threat: a publisher whose commit parcel lies (another's parcels, parcels of
another batch, a list that did not win on the ledger, its rows a second time), and a node that shows something else at
the places named. Before anything is delivered, for the whole list:

  a. it is of this topic, and of the write and batch in the commit parcel's header;
  b. its hash is the one that the ledger has for publisher, write and batch: there is one for ever;
  c. every place it names lies below the anchor of its partition: it was anchored before the list was sealed;
  d. what lies there is the anchored range (a range proof over the headers);
  e. each run is data of one lane in its partition, by the commit parcel's own publisher, marked with the same write and
     batch, without a gap, and ends in the hash that the list names; one signature vouches for it.

What breaks (a) to (c) or (e) is the publisher's doing, a `BadCommit`, told once; nothing of the list is delivered. What
breaks (d) is the node's. A parcel is named in the list of one batch only, since its header says which (e), so no two
lists deliver it. The same list in a second commit parcel is found where this reader met the first one; a publisher that
wants its rows twice can also publish them twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tallystick.carriers.carrier import Fetched, Void
from tallystick.client.fetching import Supplier
from tallystick.client.reader import FRONTS, Placed, V, parse, withheld
from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts.anchors import ANCHORS, AnchorRow
from tallystick.ledger.contracts.writes import WRITES
from tallystick.parcel.commit import CommitList, WrittenRun, ledger_write
from tallystick.parcel.header import Header, ParcelKind, lane_partition
from tallystick.parcel.parcel import Parcel, describe
from tallystick.parcel.verify import verify_headers

SEEN_MAX = 65_536  # commit parcels of which the place is remembered


class BadCommit(Refused):
    """A commit parcel that lies."""

    reason = "bad-commit"


@dataclass(frozen=True)
class Written:
    """Consecutive parcels that count, by name; their bodies are still to be fetched and held to the names."""

    partition: int
    first: int
    names: tuple[bytes, ...]
    sizes: tuple[int, ...]  # bytes of each parcel, as its header says
    anchor: AnchorRow


class Commits:
    """Resolves the commit parcels of one topic."""

    def __init__(
        self,
        supplier: Supplier,
        fetch: Callable[[int, int, int, int], Fetched],
        asks_for: Callable[[Header], bool],
    ) -> None:
        """`fetch(partition, offset, end, size)` brings headers; `asks_for` says what is wanted by its labels."""
        self._supplier, self._fetch, self._asks_for = supplier, fetch, asks_for
        self._topic, self._view, self._token = supplier.topic, supplier.view, supplier.topic.token
        self._seen: OrderedDict[tuple[bytes, bytes, int], tuple[int, int]] = OrderedDict()

    def resolve(self, commit: Placed[V], content: bytes) -> list[Written]:
        """The parcels that this commit parcel makes count and that are wanted, in order of their places.
        Raises `BadCommit`, or `Withheld` where the node does not show what was anchored."""
        header, publisher = commit.verified.header, commit.verified.publisher
        try:
            listed = CommitList.decode(content)
        except Malformed as error:
            raise BadCommit(f"{describe(header)}: {error}") from error
        self._check_list(listed, header, publisher)
        self._check_first(listed, header, publisher, (commit.partition, commit.offset))
        anchors = self._anchors(listed, header)
        fronts = dict(self._fronts(listed, anchors))
        self._supplier.learn(one.header for one in fronts.values())
        for run in listed.runs:
            self._check_run(run, [fronts[run.partition, offset] for offset in run.places()], header, publisher)
        wanted = {place: one for place, one in fronts.items() if self._asks_for(one.header)}
        found = []
        for where, first, end in _joined((where, offset, 1) for where, offset in wanted):
            named = [wanted[where, offset] for offset in range(first, end)]
            names, sizes = tuple(one.hash for one in named), tuple(one.header.size_bytes for one in named)
            found.append(Written(where, first, names, sizes, anchors[where]))
        return found

    def _check_list(self, listed: CommitList, header: Header, publisher: bytes) -> None:
        """(a, b)"""
        if listed.token != self._token or (listed.write, listed.batch) != header.write:
            raise BadCommit(f"{describe(header)}: its list is of another topic, write or batch")
        won = self._view.row(WRITES(publisher, ledger_write(listed.write), listed.batch))
        if won is None:
            raise BadCommit(f"{describe(header)}: the ledger has no list for batch {listed.batch} of its write")
        if won.hash != listed.hash:
            raise BadCommit(f"{describe(header)}: the ledger has another list for batch {listed.batch} of its write")

    def _check_first(self, listed: CommitList, header: Header, publisher: bytes, place: tuple[int, int]) -> None:
        """Met at another place, the list was delivered there."""
        first = self._seen.setdefault((publisher, listed.write, listed.batch), place)
        if first != place:
            where = f"partition {first[0]}, offset {first[1]}"
            raise BadCommit(f"{describe(header)}: its batch was committed before, at {where}")
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)

    def _anchors(self, listed: CommitList, header: Header) -> dict[int, AnchorRow]:
        """(c)"""
        anchors: dict[int, AnchorRow] = {}
        for run in listed.runs:
            if run.partition != lane_partition(run.lane, self._topic.partitions):
                raise BadCommit(f"{describe(header)}: lane {run.lane.hex()[:8]} is not of partition {run.partition}")
            if run.partition not in anchors:
                anchor = self._view.row(ANCHORS(self._token, run.partition))
                anchors[run.partition] = AnchorRow(0, b"", 0, 0, b"") if anchor is None else anchor
            size, last = anchors[run.partition].size, sum(run.offsets[-1]) - 1
            if last >= size:
                raise BadCommit(
                    f"{describe(header)}: names offset {last} of partition {run.partition}, anchored are {size}"
                )
        return anchors

    def _fronts(self, listed: CommitList, anchors: dict[int, AnchorRow]) -> Iterator[tuple[tuple[int, int], Parcel]]:
        """(d): the header at each place that is named."""
        named = ((run.partition, *pair) for run in listed.runs for pair in run.offsets)
        for partition, first, end in _joined(named):
            anchor = anchors[partition]
            while first < end:
                parcels = parse(FRONTS, self._fetch(partition, first, end, anchor.size), partition, first, anchor)
                if not 0 < len(parcels) <= end - first:
                    message = f"offsets {first} to {end} were asked for, {len(parcels)} parcels came"
                    raise withheld(partition, message)
                for offset, parcel in enumerate(parcels, first):
                    if isinstance(parcel, Void):
                        raise BadCommit(f"offset {offset} of partition {partition} holds no parcel to open")
                    yield (partition, offset), parcel
                first += len(parcels)

    def _check_run(self, run: WrittenRun, parcels: list[Parcel], commit: Header, publisher: bytes) -> None:
        """(e)"""
        first, last = parcels[0].header, parcels[-1]
        head = (run.first - 1, first.previous) if run.first else None
        name = f"{describe(commit)}: lane {run.lane.hex()[:8]}"
        try:
            verified = verify_headers(parcels, self._topic.instance, self._token, self._topic.book, head)
        except Refused as error:
            raise BadCommit(f"{name}: {error}") from error
        if first.lane != run.lane or last.hash != run.last:
            raise BadCommit(f"{name}: another lane, or another last parcel, lies where its list points")
        for one in verified:
            if one.publisher != publisher:
                raise BadCommit(f"{name}: was sealed by another publisher")
            if one.header.kind is not ParcelKind.DATA or one.header.write != commit.write:
                raise BadCommit(f"{name}: {describe(one.header)} is not pending for this write and batch")
        if last.header.checkpoint is not None:
            self._view.check_seen(*last.header.checkpoint)


def _joined(places: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Places (partition, first, count) as ranges (partition, first, end) that are as long as can be."""
    ranges: list[tuple[int, int, int]] = []
    for partition, first, count in sorted(places):
        if ranges and ranges[-1][::2] == (partition, first):
            ranges[-1] = (partition, ranges[-1][1], first + count)
        else:
            ranges.append((partition, first, first + count))
    return ranges
