"""A subscriber's way to the carrier: ranges of partitions, held to the anchors on the ledger as they come.

Threat: a node that shows less than was anchored, calls retired what was not, or confirms nothing of what it showed
before its anchor. Whatever the carrier answers is taken by a `ParcelReader`, which proves it. Under a permit with
labels the node may leave out the bodies of parcels that share none; which those are is decided here, by the same rule.

A reader is also brought what it lacks (`Supplier`): permits, fronts of lanes and proofs of the ledger, asked for
together. A range of ten thousand publishers takes as many permits, as many fronts, and the proofs of the checkpoints
that they name; few requests bring all of it. Nothing is believed for having come in company: the reader checks each as
if it had come alone. Where one answer of many is refused, each is asked for alone, and the refusal is that one's.

A finding accuses somebody, so no node's lack is one. A node that was just restored, or has yet to catch up, knows
neither our subscription nor the permits of what others show. So each node is asked, by itself; while one of them cannot
be asked, nothing is known. That a permit was never issued is the ledger's to say.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from tallystick.carriers.carrier import Fetch, Fetched, LaneFront, LaneSought, Matched
from tallystick.carriers.remote import RemoteNode
from tallystick.client.grants import Held
from tallystick.client.reader import (
    Brought,
    Finding,
    Lane,
    ParcelReader,
    PartitionReader,
    Placed,
    PlacedParcel,
    ReadTopic,
    V,
    is_suspect,
    parse,
    received,
    withheld,
)
from tallystick.client.settings import SubscriberSettings
from tallystick.client.ties import Ties, View
from tallystick.crypto import merkle
from tallystick.errors import Forged, Refused, Unavailable, Withheld
from tallystick.ledger.contracts.anchors import ANCHORS, RETIRED, AnchorRow
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.permits import PERMITS
from tallystick.ledger.contracts.retention import lets_go
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.parcel.header import Header
from tallystick.parcel.labels import Wanted
from tallystick.parcel.parcel import Parcel, VerifiedParcel
from tallystick.parcel.verify import PermitBook
from tallystick.runtime.http1 import RefusedByPeer
from tallystick.runtime.sources import Clock
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.receipt import stands_below

log = logging.getLogger(__name__)

UNANCHORED_S = 1.0  # for which it is believed that a publisher of what has no anchor yet was not revoked

_Asked = tuple[bytes, int, int, int | None]  # the permit, the partition, the first offset, the anchored size


def check_tenant(view: View, permit: Permit) -> None:
    """Hold the tenant that a permit names to the topic's row on the ledger, as guards do. Raises `Forged`."""
    row = view.wait_for(TOPICS(permit.token), lambda row: row is not None)
    if row is None or row.tenant != permit.tenant:
        raise Forged(f"topic {permit.token.hex()} is another tenant's than the permit's", reason="wrong-tenant")


class Fetcher:
    """Reads one topic under one permit."""

    def __init__(
        self, ties: Ties, settings: SubscriberSettings, held: Held, pool: ThreadPoolExecutor | None = None
    ) -> None:
        """With a `pool`, the next range is on its way while the last one is opened."""
        self._pool = pool
        self._coming: dict[int, tuple[_Asked, Future[Fetched]]] = {}  # by partition
        self._passed: dict[int, list[Finding]] = {}  # by partition: what was retired, and is yet to be told
        self._carrier, self._view, self._clock, self._settings = ties.carrier, ties.view, ties.clock, settings
        self._anchors = ties.anchors
        self.reading = received(lambda header: self.wanted.asks_for(header))
        self.use(held.permit)
        check_tenant(ties.view, held.permit)
        book = PermitBook(ties.identity.instance, [ties.identity.authority])
        self._token = held.grant.token
        is_part = bool(held.permit.labels) and isinstance(ties.carrier, Matched)
        self.topic = ReadTopic(ties.identity.instance, self._token, held.grant.settings.partitions, book, is_part)
        self.supplier = Supplier(ties.node, ties.view, self.topic)

    def use(self, permit: Permit) -> None:
        """Go on under this permit, which the carrier knows."""
        self._permit, self.wanted = permit.identifier, Wanted(permit.labels)

    def reader(self, partition: int, offset: int) -> ParcelReader:
        return ParcelReader(self.reading, self.topic, partition, self._view.check_seen, offset)

    def read(self, reader: ParcelReader, wait_ms: int) -> list[PlacedParcel | Finding]:
        """The next range of a partition, verified; waits up to `wait_ms` for one. What was retired below it is told
        before it."""
        found = self._read(reader, wait_ms)
        return [*self._passed.pop(reader.partition, []), *found]

    def _read(self, reader: ParcelReader, wait_ms: int) -> list[PlacedParcel | Finding]:
        if self._settings.read == "stored":
            return self._read_stored(reader, wait_ms)
        if not self._has_more(reader):
            if not wait_ms:
                return []
            self._fetch(reader, None, wait_ms)
            if not self._has_more(reader):
                return []
        assert reader.anchor is not None
        found = self.read_anchored(reader, reader.anchor)
        self._fetch_ahead(reader, reader.anchor)
        return found

    def _fetch_ahead(self, reader: ParcelReader, anchor: AnchorRow) -> None:
        """Ask for what will be read next, if the anchor at hand covers it."""
        if self._pool is not None and reader.offset < anchor.size:
            asked = self._asked(reader, anchor.size)
            with suppress(RuntimeError):  # the subscriber was closed meanwhile
                self._coming[reader.partition] = asked, self._pool.submit(self._ask, *asked)

    def _has_more(self, reader: ParcelReader) -> bool:
        """Whether an anchor covers more than was read: the one at hand, which vouches for all below it however old it
        is, or else the newest."""
        if reader.anchor is None or reader.offset >= reader.anchor.size:
            reader.anchor = self.anchor(reader.partition)
        return reader.anchor is not None and reader.offset < reader.anchor.size

    def read_anchored(self, reader: ParcelReader, anchor: AnchorRow) -> list[PlacedParcel | Finding]:
        """The next range below the anchor, which is above the reader's offset."""
        fetched = self._fetch(reader, anchor.size, 0)
        if not fetched.parcels:
            message = f"anchored are {anchor.size} parcels, the node shows none from offset {reader.offset}"
            hint = f"retired below {fetched.retired}" if fetched.retired > reader.offset else None
            raise withheld(reader.partition, message, hint=hint)
        return self._taken(reader, fetched, anchor)

    def _taken(self, reader: ParcelReader, fetched: Fetched, anchor: AnchorRow | None) -> list[PlacedParcel | Finding]:
        """What there is to open in a range, and what was found; fronts have served."""
        found: list[PlacedParcel | Finding] = []
        for item in self.supplier.take(reader, fetched, anchor, self._permit, int(self._clock.now() * 1000)):
            if isinstance(item, Finding):
                found.append(item)
            elif isinstance(item.verified, VerifiedParcel):
                found.append(Placed(item.verified, item.partition, item.offset, item.anchor))
        return found

    def _read_stored(self, reader: ParcelReader, wait_ms: int) -> list[PlacedParcel | Finding]:
        """The next range whether anchored or not; what was read before its anchor is held to it when it comes."""
        if reader.unproved[1] or (reader.offset and reader.anchor is None):
            reader.anchor = self.anchor(reader.partition)
        if reader.anchor is not None:
            confirm(reader, reader.anchor, self.headers)
        fetched = self._fetch(reader, None, wait_ms, stored=True)
        return self._taken(reader, fetched, None) if fetched.parcels else []

    def _fetch(self, reader: ParcelReader, size: int | None, wait_ms: int, *, stored: bool = False) -> Fetched:
        asked = self._asked(reader, size)
        coming = self._coming.pop(reader.partition, None)
        if coming is not None and coming[0] == asked:
            fetched = coming[1].result()
        else:
            fetched = self._ask(*asked, wait_ms=wait_ms, stored=stored)
        if fetched.retired > reader.offset:
            self.check_retired(reader.partition, fetched.retired)
            self._tell_retired(reader, fetched.retired)
            reader.skip_to(fetched.retired)
            return self._fetch(reader, size, wait_ms, stored=stored)
        return fetched

    def _tell_retired(self, reader: ParcelReader, below: int) -> None:
        """Have the next range tell what lay between the reader and the mark."""
        gone = Finding.retired(self._token, reader.partition, reader.offset, below)
        self._passed.setdefault(reader.partition, []).append(gone)

    def _asked(self, reader: ParcelReader, size: int | None) -> _Asked:
        return self._permit, reader.partition, reader.offset, size

    def _ask(
        self,
        permit: bytes,
        partition: int,
        offset: int,
        size: int | None,
        *,
        end: int | None = None,
        wait_ms: int = 0,
        stored: bool = False,
        headers: bool = False,
    ) -> Fetched:
        bytes_max, place = self._settings.fetch_bytes_max, (self._token, partition, permit, offset)
        return self._carrier.fetch(
            Fetch(*place, bytes_max, wait_ms=wait_ms, stored=stored, headers=headers, size=size, end=end)
        )

    def headers(self, partition: int, offset: int, end: int, size: int) -> Fetched:
        """Headers of a range below the anchored size."""
        return self._ask(self._permit, partition, offset, size, end=end, headers=True)

    def parcels(self, partition: int, offset: int, end: int, size: int) -> Fetched:
        """Parcels of a range below the anchored size."""
        return self._ask(self._permit, partition, offset, size, end=end)

    def anchor(self, partition: int) -> AnchorRow | None:
        """The partition's newest anchor, proved under a checkpoint that is young enough. None of a carrier that anchors
        nothing: what the ledger has is of another carrier's log."""
        return self._view.row(ANCHORS(self._token, partition)) if self._anchors else None

    def latest(self, partition: int) -> int:
        """Where what comes from now on begins: behind the anchor, or on the carrier's word at the end of its log."""
        if not self._anchors:
            return self._ask(self._permit, partition, 0, None, end=1, stored=True, headers=True).end
        anchor = self.anchor(partition)
        return 0 if anchor is None else anchor.size

    def check_retired(self, partition: int, below: int) -> None:
        """Returns if the ledger has the mark; a node that claims one that it does not have withholds. Where nothing is
        anchored there are no marks, and the reader's own node is believed, if the topic's owner lets anything go."""
        if not self._anchors and lets_go(self._view.row(TOPICS(self._token))):
            return
        mark = self._view.row(RETIRED(self._token, partition))
        if mark is None or below > mark.below:
            raise withheld(partition, f"the node calls offsets below {below} retired, the ledger does not")


def confirm(reader: PartitionReader[V], anchor: AnchorRow, headers: Callable[[int, int, int, int], Fetched]) -> None:
    """Hold what was read before its anchor to this one, as far as it reaches; `headers` fetches those of a range."""
    start, waiting = reader.unproved
    while waiting and anchor.size > start:
        end = start + min(waiting, anchor.size - start)
        shown = headers(reader.partition, start, end, anchor.size)
        # Fewer may come, for lack of room; none, or more than we asked for, would leave it unconfirmed for ever.
        if not 0 < len(shown.parcels) <= end - start:
            message = f"{len(shown.parcels)} parcels came to confirm {start} to {end}"
            raise withheld(reader.partition, message, "altered")
        reader.confirm(len(shown.parcels), shown.proof, anchor)
        start, waiting = reader.unproved


class Revocations:
    """Which publishers of a topic were revoked, and what of theirs stands all the same.

    Threat: the thief of a key that was revoked since, and a node that stores what the thief seals. What is read under
    an anchor below the height of the revocation stands, and so does what an older anchor covers, if the node proves
    that it came before the revocation and that the tree which is read continues its tree. A node that shows an older
    anchor than the last, another one, or none, makes more suspect and never less.

    What is read before its anchor has no height to be held to: of its publisher the ledger is asked again after
    `UNANCHORED_S`, not for every row. Until then its rows may pass, as they may while the newest block is under way.
    """

    def __init__(self, node: RemoteNode, view: View, token: bytes, clock: Clock) -> None:
        self._node, self._view, self._token, self._clock = node, view, token, clock
        # By publisher: the height of the revocation, or 0; up to which height that is known, and since when.
        self._known: dict[bytes, tuple[int, int, float]] = {}
        # By publisher and partition: the offset below which it stands, in the tree of which size.
        self._found: dict[tuple[bytes, int], tuple[int, int]] = {}

    def learn(self, read: Iterable[tuple[bytes, AnchorRow | None]]) -> None:
        """Ask together for all publishers of what is read, each under its anchor, of whom too little is known."""
        lacking = sorted({publisher for publisher, anchor in read if not self._is_known(publisher, anchor)})
        if lacking:
            asked = self._clock.monotonic()
            rows = self._view.rows_at([IDENTITIES(publisher) for publisher in lacking], self._node.states)
            for publisher, (row, head) in zip(lacking, rows, strict=True):
                self._known[publisher] = 0 if row is None else row.revoked, head.height, asked

    def _is_known(self, publisher: bytes, anchor: AnchorRow | None) -> bool:
        revoked, height, asked = self._known.get(publisher, (0, -1, -math.inf))
        is_young = self._clock.monotonic() - asked < UNANCHORED_S
        return bool(revoked) or (is_young if anchor is None else anchor.height <= height)

    def stands_below(self, publisher: bytes, partition: int, first: int, anchor: AnchorRow | None) -> int:
        """The offset below which what is read of a publisher that was learned of stands, from `first` on."""
        if not is_suspect(self._known[publisher][0], None if anchor is None else anchor.height):
            return merkle.SIZE_MAX
        if anchor is None:
            return 0
        below, size = self._found.get((publisher, partition), (first + 1, -1))
        if below > first and size != anchor.size:
            below = self._ask(publisher, partition, anchor)
            self._found[publisher, partition] = below, anchor.size
        return below

    def _ask(self, publisher: bytes, partition: int, anchor: AnchorRow) -> int:
        try:
            found = self._node.anchored_before(self._token, partition, publisher, anchor.size)
            if found is None:
                return 0
            proved = self._view.entry(found.revocation), self._view.entry(found.anchor)
            return stands_below(publisher, (self._token, partition), *proved, (anchor.size, anchor.root), found.path)
        except Refused as error:
            log.warning("partition %d: nothing that a revoked publisher sealed stands: %s", partition, error)
            return 0


K = TypeVar("K")
A = TypeVar("A")


class Supplier:
    """Asks the node on behalf of a topic's readers."""

    def __init__(self, node: RemoteNode, view: View, topic: ReadTopic) -> None:
        self._node, self.view, self.topic = node, view, topic

    def take(
        self, reader: PartitionReader[V], fetched: Fetched, anchor: AnchorRow | None, permit: bytes, now_ms: int
    ) -> list[Placed[V] | Finding]:
        """Let the reader verify a range that was fetched under this permit, and its anchor if it has one, with all that
        it lacks to judge it."""
        parcels = parse(reader.reading, fetched, reader.partition, reader.offset, anchor)
        headers = [parcel.header for parcel in parcels if isinstance(parcel, Parcel)]
        refused = self.learn(headers)
        lanes, below, size, checkpoints = reader.lacks(headers, anchor, refused)
        place = self.topic.token, reader.partition, permit
        fronts = self._fronts({lane: LaneSought(*place, *lane, below, size) for lane in lanes})
        node, head = self._node, self.view.head
        newest = 0 if head is None else head.size
        proofs = _each(
            [old for old in checkpoints if old <= newest],
            lambda sizes: node.consistencies(sizes, newest),
            lambda size: node.consistency(size, newest),
        )
        return reader.take(parcels, anchor, Brought(refused, fronts, head, proofs), now_ms)

    def learn(self, headers: Iterable[Header]) -> dict[bytes, Refused]:
        """Enter the permits that headers name in the topic's book. Returns those that are none, with the reason. Raises
        `Unavailable` or `Withheld` where one was issued, and no node shows it."""
        book, refused = self.topic.book, dict[bytes, Refused]()
        named = {topic.permit: topic.token for header in headers for topic in header.topics}
        permits = [identifier for identifier in named if identifier not in book]
        if len(permits) > 1:
            for data in self._node.permits(permits):
                with suppress(Refused):
                    book.add(data)
        for identifier in permits:
            if identifier not in book:
                try:
                    self._of_any(partial(self._add_permit, identifier))
                except (Refused, Unavailable) as error:
                    refused[identifier] = self._judge(identifier, named[identifier], error)
        return refused

    def _add_permit(self, identifier: bytes, node: RemoteNode) -> Permit:
        self.topic.book.add(node.permit(identifier))
        if identifier not in self.topic.book:
            raise Forged("permit: another one was sent than was asked for", reason="unknown-permit")
        return self.topic.book.get(identifier)

    def _judge(self, identifier: bytes, token: bytes, error: Refused | Unavailable) -> Refused:
        """What is wrong with a permit that no node shows, if the ledger does not vouch for it."""
        row = self.view.row(PERMITS(identifier))
        if row is None or (row.operation, row.token) != (Operation.ADVERTISE, token):
            return error if isinstance(error, Refused) else Forged("permit: never issued", reason="unknown-permit")
        if isinstance(error, RefusedByPeer):
            message = f"permit {identifier.hex()[:8]} stands on the ledger, and no node shows it: {error}"
            raise Withheld(message, reason="missing") from error
        if isinstance(error, Unavailable):
            raise error
        return error

    def _fronts(self, sought: Mapping[Lane, LaneSought]) -> dict[Lane, LaneFront | None]:
        found: dict[Lane, LaneFront | None] = dict.fromkeys(sought)
        if len(sought) > 1:
            with suppress(Refused):
                found = dict(zip(sought, self._node.lane_fronts([*sought.values()]), strict=True))
        for lane in [lane for lane, front in found.items() if front is None]:
            found[lane] = self._of_any(partial(_lane_front, sought[lane]))
        return found

    def _of_any(self, ask: Callable[[RemoteNode], A | None]) -> A | None:
        """What the node at hand has, or else another; None where all say that there is none. Raises `Unavailable` where
        one that may have it cannot be asked, or else the refusal."""
        failures: list[Refused | Unavailable] = []
        for node in self._nodes():
            try:
                found = ask(node)
            except (Refused, Unavailable) as error:
                failures.append(error)
            else:
                if found is not None:
                    return found
        if failures:
            raise min(failures, key=lambda error: isinstance(error, Refused))
        return None

    def _nodes(self) -> Iterator[RemoteNode]:
        """The node at hand, and for whoever goes on each of several by itself."""
        yield self._node
        if self._node.ask_another() > 1:
            yield from self._node.each().values()


def _lane_front(sought: LaneSought, node: RemoteNode) -> LaneFront | None:
    return node.lane_front(sought)


def _each(
    keys: Sequence[K], ask_all: Callable[[Sequence[K]], Sequence[A]], ask: Callable[[K], A]
) -> dict[K, A | Refused]:
    """The answer for each key, or its refusal."""
    if len(keys) > 1:
        with suppress(Refused):
            return dict(zip(keys, ask_all(keys), strict=True))
    found: dict[K, A | Refused] = {}
    for key in keys:
        try:
            found[key] = ask(key)
        except Refused as refusal:
            found[key] = refusal
    return found
