"""Kafka as a storage: parcels lie there, and their headers, voids and trees in the notary's index beside the node.

What the guards take is written to Kafka with the gateway's passage, and stored when all replicas have it. The index
holds it only once the notary has anchored it; until then this gateway remembers where it lies. A parcel that another
gateway took may thus come twice: Kafka then holds it twice, and readers skip it.

Headers, proofs and blobs come from the index, bodies from Kafka. What Kafka changed or lost is shown as it is: the
reader holds it to the anchor and names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tallystick.carriers.carrier import is_void
from tallystick.carriers.kafka.client import PASSAGE, KafkaClient, Outgoing, describe
from tallystick.carriers.kafka.index import KafkaIndex
from tallystick.carriers.kafka.passage import Passage
from tallystick.carriers.kafka.shared import Shared
from tallystick.carriers.kafka.topics import KafkaTopics
from tallystick.carriers.log.report import Damaged
from tallystick.carriers.log.store import LogStatistics
from tallystick.carriers.storage import Entry, PartitionTree, Place, Taken
from tallystick.errors import Misuse, Refused, TallystickError, Unavailable
from tallystick.parcel.parcel import Parcel, front_bytes

FRONT_BYTES = 4 << 20  # of headers in one answer with bodies


class KafkaStorage:
    """As thread-safe as the front that uses it; the notary's work goes on beside."""

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
        self._index, self._log = index, index.log
        self.disk, self.blobs = index.log.disk, index.log.blobs
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
            sent = self._kafka.store(self._records(leaving), self._sealed.trouble)
        except TallystickError as error:
            for one in leaving:
                one.error = _ours(error)
            return
        for one, records in zip(leaving, sent, strict=True):
            for record in records:
                if record.offset is not None and record.offset < self.end(record.place):
                    record.error = self._sealed.replaced(record.place.token)  # Kafka counts from 0 again
            one.error = next((_ours(record.error) for record in records if record.error is not None), None)
            one.offsets = tuple(record.offset or 0 for record in records)

    def _records(self, parcels: Sequence[Taken]) -> list[list[Outgoing]]:
        passages = self._passages([one.parcel.hash for one in parcels])
        records: list[list[Outgoing]] = []
        for one, passage in zip(parcels, passages, strict=True):
            key = one.principal + one.parcel.header.lane
            headers = [*describe(one.parcel), (PASSAGE, passage.encode())]
            records.append([Outgoing(place, key, one.parcel.encode(), headers) for place in one.places])
        return records

    def store(self, taken: Taken) -> None:
        """It is there already."""
        self._passed[taken.parcel.hash] = taken

    def share(self, blobs: Mapping[bytes, bytes]) -> None:
        if self._sealed.away is not None:
            raise self._sealed.away  # to whoever brought them, and will again
        self._shared.put(blobs)

    def deposit(self, name: bytes, data: bytes) -> None:
        self._log.deposit(name, data)

    def sync(self) -> None:
        self._log.sync()

    def indexed(self, parcel: Parcel) -> None:
        """The notary has it in the index."""
        self._passed.pop(parcel.hash, None)

    # Reading.

    def places(self) -> list[Place]:
        return self._log.places()

    def end(self, place: Place) -> int:
        return self._index.end(place)

    def read(self, place: Place, offset: int, end: int, bytes_max: int, headers: bool) -> list[Entry]:
        if headers:
            return self._log.read(place, offset, end, bytes_max, headers)
        fronts = self._log.read(place, offset, end, FRONT_BYTES, headers=True)
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

    def find(self, place: Place, parcel: bytes) -> int | None:
        passed = self._passed.get(parcel)
        if passed is not None and place in passed.places:
            return passed.offsets[passed.places.index(place)]
        return self._log.find(place, parcel)

    def tree(self, place: Place) -> PartitionTree:
        return self._log.tree(place)

    def bytes_stored(self, place: Place) -> int:
        return self._index.bytes_stored(place)

    def retirable(self, place: Place, now_ms: int, bytes_max: int | None, age_max_ms: int | None) -> int:
        return 0  # Kafka's retention is off on sealed topics

    def retire(self, place: Place, below: int) -> None:
        raise Misuse("parcels on Kafka are not retired")

    def statistics(self) -> LogStatistics:
        return self._log.statistics()

    def close(self) -> None:
        self._shared.close()
        self._kafka.close()
        self._log.close()


def _ours(error: TallystickError) -> Unavailable:
    """To clients, a mistake in this gateway's settings is a gateway that is away."""
    return error if isinstance(error, Unavailable) else Unavailable(str(error), hint=error.hint)


def _front_end(value: bytes) -> int:
    """Where the body of a record begins; a record that is no parcel any more has no body."""
    try:
        return min(front_bytes(value), len(value))
    except Refused:
        return len(value)
