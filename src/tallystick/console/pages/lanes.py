"""*Lanes*: to which lanes the newest parcels of a topic belong. The ledger knows none: headers are read, when the
viewer asks for it as for records, and held to their anchor, permits, signatures and the parcels before them.
"""

from __future__ import annotations

from tallystick.client.fetching import Fetcher
from tallystick.client.grants import without_right
from tallystick.client.reader import FRONTS, Finding, PartitionReader, Placed, withheld
from tallystick.console.layout import heading, lines
from tallystick.console.marks import checked, short, soft
from tallystick.console.page import Page
from tallystick.console.pages import records
from tallystick.console.visit import LINES, Visit
from tallystick.errors import Refused
from tallystick.page.html import Html, join, tag
from tallystick.parcel.header import ParcelKind
from tallystick.parcel.parcel import VerifiedHeader

PARCELS_MAX = 256  # headers of a partition: 30 ms, where each is another lane's
PARTITIONS_MAX = 8  # of a page: each is asked for by itself

PlacedHeader = Placed[VerifiedHeader]


def show_lanes(visit: Visit) -> Html:
    topic = records.require_topic(visit)
    end = min(visit.skip + PARTITIONS_MAX, topic.row.partitions)
    which = f"each partition from {visit.skip} to {end - 1}" if end - 1 > visit.skip else f"partition {visit.skip}"
    of = f", by the newest {PARCELS_MAX} parcels of {which}."
    top = heading("Lanes", join("Of topic ", visit.topic(topic.token), of))
    if not visit.query.get("read"):
        asking = tag("p", records.asking(visit, "Looking for lanes", "headers of parcels and verifies"))
        return join(top, asking, records.button(visit, visit.path, "look for lanes"))
    every = [records.kept_offsets(visit, topic, number) for number in range(visit.skip, end)]
    found: list[PlacedHeader | Finding] = []
    trouble = None
    with records.reading(visit, topic) as session:
        try:
            held, fetcher = records.fetcher_of(session, topic)
            for kept in filter(None, every):
                found += _newest(visit, fetcher, held.permit.identifier, kept)
        except Refused as error:
            if without_right(error):
                raise
            trouble = error
    of_lane: dict[tuple[bytes, bytes], list[PlacedHeader]] = {}
    for one in found:
        if not isinstance(one, Finding):
            of_lane.setdefault((one.verified.publisher, one.verified.header.lane), []).append(one)
    rows = [_row(visit, topic.token, parcels) for parcels in of_lane.values()]
    columns = ["lane", "publisher", "partition", "parcels here", "its newest", "sealed", "known by"]
    shown = lines(columns, rows[:LINES], "Nothing was anchored here yet.", numbers=(2, 3), more=len(rows) - LINES)
    findings = records.show_findings(visit, [one for one in found if isinstance(one, Finding)], trouble)
    older = {"skip": end} if end < topic.row.partitions else None
    return join(top, findings, shown, visit.pager(None, older))


def _newest(visit: Visit, fetcher: Fetcher, permit: bytes, kept: records.KeptOffsets) -> list[PlacedHeader | Finding]:
    """The last headers of a partition, verified, and what does not hold of them."""
    first, size = max(kept.first, kept.end - PARCELS_MAX), kept.end
    reader = PartitionReader(FRONTS, fetcher.topic, kept.partition, fetcher.supplier.view.check_seen, first)
    found: list[PlacedHeader | Finding] = []
    while reader.offset < size:
        fetched = fetcher.headers(kept.partition, reader.offset, size, size)
        if not fetched.parcels:
            raise withheld(kept.partition, f"{size} parcels are anchored, and none is shown from {reader.offset} on")
        found += fetcher.supplier.take(reader, fetched, kept.anchor, permit, visit.viewer.now_ms)
    return found


def _row(visit: Visit, token: bytes, parcels: list[PlacedHeader]) -> list[object]:
    newest = parcels[-1]
    header, place = newest.verified.header, {"partition": newest.partition, "start": newest.offset}
    where = visit.link(f"parcel {header.sequence}", f"topics/{token.hex()}/records", **place)
    at = [where, f", offset {newest.offset}", soft(", closed") if header.kind is ParcelKind.CLOSE else None]
    who, sealed = visit.principal(newest.verified.publisher), records.sealed(header.time_ms)
    return [short(header.lane), who, newest.partition, len(parcels), at, sealed, checked("its chain")]


PAGES = (Page("topics/{token}/lanes", "Lanes", show_lanes, live=False),)
