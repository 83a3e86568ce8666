"""Kafka as a storage: parcels lie there, and their headers, voids and trees in the notary's index beside the node.

What the guards take is written to Kafka with the gateway's passage, and stored when all replicas have it. The index
holds it only once the notary has anchored it; until then this gateway remembers where it lies. A parcel that another
gateway took may thus come twice: Kafka then holds it twice, and readers skip it.

Headers, proofs and blobs come from the index, bodies from Kafka. What Kafka changed or lost is shown as it is: the
reader holds it to the anchor and names it. The index grows only behind the ledger, so nothing in it is ever taken back;
after a crash the rest is read from Kafka again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tallystick.carriers.accounts import Deposits
from tallystick.carriers.carrier import is_void
from tallystick.carriers.kafka.client import KafkaClient, outgoing
from tallystick.carriers.kafka.passage import PASSAGE, Passage
from tallystick.carriers.kafka.reconcile import KafkaTopics
from tallystick.carriers.kafka.shared import Shared
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Damaged, Entry, Place, Taken, headers_of
from tallystick.errors import Misuse, Refused, TallystickError, Unavailable
from tallystick.guards.publish import Lanes
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel, front_bytes
from tallystick.runtime.disk import Disk

FRONT_BYTES = 4 << 20  # of headers in one answer with bodies


class KafkaIndex(LogStore):
    """What lies at each anchored offset of Kafka: a log of headers and voids without bodies, with the heads of lanes in
    each partition. Single-threaded by the front's lock, but for reads."""

    def __init__(self, disk: Disk, lanes_max: int) -> None:
        super().__init__(disk)
        self._lanes_max = lanes_max
        self._lanes: dict[Place, Lanes] = {}
        self._bytes: Counter[Place] = Counter()
        principal_of = Deposits(self.blobs).principal_of
        for place in self.places():
            for entry in headers_of(self, place, 0, self.end(place)):
                header = Parcel.decode_front(entry.header).header
                self.learn(place, principal_of(header), header)

    def lanes(self, place: Place) -> Lanes:
        return self._lanes.setdefault(place, Lanes(self._lanes_max))

    def bytes_stored(self, place: Place) -> int:
        """Of headers and bodies, in Kafka."""
        return self._bytes[place]

    def grow(self, place: Place, shown: Sequence[tuple[bytes, bytes]], now_ms: int) -> None:
        """Take in consecutive offsets, each as its hash and what is kept of it."""
        for parcel_hash, header in shown:
            self.stage([place], parcel_hash, header, b"", now_ms)
        self.sync()

    def learn(self, place: Place, principal: bytes, header: Header) -> None:
        """A parcel that readers shall open lies there."""
        lanes = self.lanes(place)
        head = lanes.head(principal, header.lane)
        if head is None or header.sequence > head.sequence:
            lanes.advance(principal, header)
        self._bytes[place] += len(header.encoded) + header.body_bytes


class KafkaStorage:
    """As thread-safe as the front that uses it; the notary's work goes on beside."""

    notes_publishers = True

    def __init__(
        self,
        kafka: KafkaClient,
        index: KafkaIndex,
        sealed: KafkaTopics,
        shared: Shared,
        passages: Callable[[Sequence[bytes]], list[Passage]],
    ) -> None:
        """`passages` are the node's word for parcels of these hashes."""
        self._kafka, self._sealed, self._shared, self._passages = kafka, sealed, shared, passages
        self._index, self.disk, self.blobs = index, index.disk, index.blobs
        self.deposit, self.sync, self.statistics = index.deposit, index.sync, index.statistics
        self.places, self.end, self.tree, self.bytes_stored = index.places, index.end, index.tree, index.bytes_stored
        self._passed: dict[bytes, Taken] = {}  # parcels by hash that the index does not hold yet

    # Writing.

    def carry(self, parcels: Sequence[Taken]) -> None:
        """To Kafka. What one partition does not take keeps no parcel of another from its place."""
        for one in parcels:
            one.error = next(filter(None, map(self._sealed.trouble, one.places)), None)
        leaving = [one for one in parcels if one.error is None]
        if not leaving:
            return
        try:
            passages = self._passages([one.parcel.hash for one in leaving])
            records = [
                outgoing(one.parcel, one.principal, one.places, (PASSAGE, passage.encode()))
                for one, passage in zip(leaving, passages, strict=True)
            ]
            sent = self._kafka.store(records, self._sealed.trouble)
        except TallystickError as error:
            for one in leaving:
                one.error = _ours(error)
            return
        for one, stored in zip(leaving, sent, strict=True):
            for record in stored:
                if record.offset is not None and record.offset < self.end(record.place):
                    record.error = self._sealed.replaced(record.place.token)  # Kafka counts from 0 again
            one.error = next((_ours(record.error) for record in stored if record.error is not None), None)
            one.offsets = tuple(record.offset or 0 for record in stored)

    def store(self, taken: Taken) -> None:
        """It is there already."""
        self._passed[taken.parcel.hash] = taken

    def share(self, blobs: Mapping[bytes, bytes]) -> None:
        if self._sealed.away is not None:
            raise self._sealed.away  # to whoever brought them, and will again
        self._shared.put(blobs)

    def indexed(self, parcel: Parcel) -> None:
        """The notary has it in the index."""
        self._passed.pop(parcel.hash, None)

    # Reading.

    def read(
        self, place: Place, offset: int, bytes_max: int, headers_only: bool = False, *, below: int | None = None
    ) -> list[Entry]:
        fronts = self._index.read(place, offset, bytes_max if headers_only else FRONT_BYTES, True, below=below)
        if headers_only:
            return fronts
        if not fronts:
            return []
        records = self._kafka.read(place, offset, fronts[-1].offset + 1, bytes_max)
        values = {record.offset: record.value for record in records}
        found: list[Entry] = []
        for front in fronts:
            value = values.get(front.offset)
            if is_void(front.header):
                found.append(front._replace(body=b""))
            elif value is not None:
                cut = _front_end(value)
                found.append(front._replace(header=value[:cut], body=value[cut:]))
            elif not found or (records and front.offset < records[-1].offset):
                raise Damaged(f"{place}: kafka holds nothing at offset {front.offset}")
            else:
                break
        return found

    def underway(self, place: Place, parcel: bytes) -> int | None:
        passed = self._passed.get(parcel)
        return passed.offsets[passed.places.index(place)] if passed is not None and place in passed.places else None

    def promised(self, place: Place, offset: int) -> None:
        """By this gateway alone."""

    def retirable(self, place: Place, limit: int) -> int:
        return 0  # Kafka's retention is off on sealed topics, and whatever an owner lets go stays there

    def retire(self, place: Place, below: int) -> None:
        raise Misuse("parcels on Kafka are not retired")

    def close(self) -> None:
        self._shared.close()
        self._kafka.close()
        self._index.close()


def _ours(error: TallystickError) -> Unavailable:
    """To clients, a mistake in this gateway's settings is a gateway that is away."""
    return error if isinstance(error, Unavailable) else Unavailable(str(error), hint=error.hint)


def _front_end(value: bytes) -> int:
    """Where the body of a record begins; a record that is no parcel any more has no body."""
    try:
        return min(front_bytes(value), len(value))
    except Refused:
        return len(value)
