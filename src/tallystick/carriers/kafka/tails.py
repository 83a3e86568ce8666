"""New records as they come: of many partitions, or of the topic that gateways share. For one thread each."""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.carriers.kafka.administration import ASK_S
from tallystick.carriers.kafka.client import POLL_RECORDS, KafkaClient, Record, is_end, record_of
from tallystick.carriers.kafka.failures import library, translated
from tallystick.carriers.log.segments import Place


class Tail:
    """New records of many partitions, in order within each; for one thread."""

    def __init__(self, client: KafkaClient) -> None:
        self._consumer = client.consumer()
        self._next: dict[Place, int] = {}

    def follow(self, places: Mapping[Place, int]) -> None:
        """Go on with exactly these partitions, each from its offset."""
        if dict(places) == self._next:
            return
        partition = library().TopicPartition
        with translated("follow partitions"):
            self._consumer.assign([partition(p.token.hex(), p.partition, at) for p, at in places.items()])
        self._next = dict(places)

    def poll(self, timeout_s: float) -> dict[Place, list[Record]]:
        """What came, at most `POLL_RECORDS` of it."""
        found: dict[Place, list[Record]] = {}
        with translated("read new records"):
            messages = self._consumer.consume(POLL_RECORDS, timeout_s) if self._next else []
            for message in messages:
                if not is_end(message):
                    place = Place(bytes.fromhex(message.topic()), message.partition())
                    found.setdefault(place, []).append(record_of(message))
                    self._next[place] = message.offset() + 1
        return found

    def close(self) -> None:
        self._consumer.close()


class SharedTail:
    """All records of a shared topic from its beginning, in order; for one thread."""

    def __init__(self, client: KafkaClient, name: str) -> None:
        self._consumer, self._partition, self._next = client.consumer(), library().TopicPartition(name, 0, 0), 0
        with translated(f"follow {name}"):
            self._consumer.assign([self._partition])

    def is_behind(self, end: int) -> bool:
        return self._next < end

    def end(self) -> int:
        """How many records are there now."""
        with translated("read shared objects"):
            return int(self._consumer.get_watermark_offsets(self._partition, ASK_S)[1])

    def poll(self, timeout_s: float = 0.0) -> list[tuple[bytes, bytes]]:
        """Key and value of each record that came."""
        with translated("read shared objects"):
            found = [one for one in self._consumer.consume(POLL_RECORDS, timeout_s) if not is_end(one)]
        if found:
            self._next = found[-1].offset() + 1
        return [(message.key() or b"", message.value() or b"") for message in found]

    def close(self) -> None:
        self._consumer.close()
