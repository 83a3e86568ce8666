"""A client's own way to Kafka: parcels go to the brokers and come from them, everything else goes to the notary.

Nothing here is trusted: Kafka's word that a record is stored is only that, so a publisher keeps its copy until the
anchor; bodies from Kafka are held to the headers and voids that the notary proves. Asking the notary for them is also
the reader's signed statement of what it reads, which becomes an operation on the ledger. Who reads from Kafka without
asking is not detected by us.

How Kafka knows this client stands in `kafka.json` in the identity's folder (`tally principal kafka`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tallystick.carriers.carrier import Can, Fetch, Fetched, NotStored, Outcome, Sharing, Stored, is_void
from tallystick.carriers.kafka import FILE as FILE
from tallystick.carriers.kafka.client import KafkaClient, outgoing
from tallystick.carriers.registry import Wayfarer
from tallystick.carriers.remote import RemoteNode
from tallystick.carriers.storage import Place
from tallystick.errors import Unavailable, Withheld
from tallystick.parcel.parcel import Parcel

CAN = Can.ANCHOR | Can.LOCKS  # nobody stands in front of Kafka


class DirectKafka:
    """A `Carrier` for `principal`: the brokers for parcels, the notary's node for the rest."""

    anchors = True

    def __init__(self, kafka: KafkaClient, node: RemoteNode, principal: bytes) -> None:
        self._kafka, self._node, self._principal = kafka, node, principal
        self._partitions: dict[bytes, int] = {}
        self._parcel_bytes = 64 << 10  # of those that came last
        # What the notary keeps is asked of it.
        self.advertise, self.subscribe, self.undo = node.advertise, node.subscribe, node.undo
        self.put_locks, self.lock, self.permit = node.put_locks, node.lock, node.permit
        self.lane_front, self.inclusion, self.verdict = node.lane_front, node.inclusion, node.verdict
        self.ask_another = node.ask_another
        self.sharing: Sharing | None = None

    def publish(self, token: bytes, parcels: Sequence[bytes]) -> list[Outcome]:
        """Each is stored when all replicas have it; what the notary makes of it the anchor will tell."""
        decoded = [Parcel.decode(data) for data in parcels]
        sent = self._kafka.store([outgoing(parcel, self._principal, self._places(parcel)) for parcel in decoded])
        for one in (one for records in sent for one in records):
            if isinstance(one.error, Unavailable):
                raise one.error
        return [
            next((NotStored("kafka", str(one.error)) for one in records if one.error is not None), None)
            or Stored((), offsets=tuple((*one.place, one.offset or 0) for one in records))
            for records in sent
        ]

    def fetch(self, wanted: Fetch) -> Fetched:
        end = wanted.end
        if not wanted.headers:  # no more headers than bodies will come
            limit = wanted.offset + max(1, wanted.bytes_max // self._parcel_bytes)
            end = limit if end is None else min(end, limit)
        told = self._node.fetch(replace(wanted, headers=True, end=end))
        if wanted.headers or not told.parcels:
            return told
        place, last = Place(wanted.token, wanted.partition), told.first + len(told.parcels)
        records = self._kafka.read(place, told.first, last, 2 * wanted.bytes_max)
        values = {record.offset: record.value for record in records}
        if values:
            self._parcel_bytes = max(1, sum(map(len, values.values())) // len(values))
        found: list[bytes | memoryview] = []
        for at, front in enumerate(told.parcels, told.first):
            if is_void(front):
                found.append(front)
            elif at in values:
                found.append(values[at])
            elif any(later > at for later in values) or not values:
                raise Withheld(f"{place}: kafka holds nothing at offset {at}", reason="missing")
            else:
                break
        if len(found) < len(told.parcels):  # parcels grew: fewer came, and only these are to be proved
            end = told.first + len(found)
            shorter = replace(wanted, wait_ms=0, stored=False, headers=True, size=told.anchored, end=end)
            told = self._node.fetch(shorter)
        return replace(told, parcels=tuple(found[: len(told.parcels)]))

    def _places(self, parcel: Parcel) -> list[Place]:
        found = []
        for topic in parcel.header.topics:
            if topic.token not in self._partitions:
                self._partitions |= self._kafka.topics()
            if topic.token not in self._partitions:
                raise Unavailable(f"kafka: topic {topic.token.hex()} is not there yet", retry_after_s=1.0)
            found.append(Place(topic.token, parcel.header.partition(self._partitions[topic.token])))
        return found

    def close(self) -> None:
        self._kafka.close()


def reach(settings: Mapping[str, str], who: Wayfarer) -> DirectKafka:
    kafka = KafkaClient(dict(settings), transactions=who.principal.hex())
    return DirectKafka(kafka, who.node, who.principal)
