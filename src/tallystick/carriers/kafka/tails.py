"""New records as they come: of many partitions, or of the topic that gateways share. For one thread each."""

from __future__ import annotations

from collections.abc import Mapping

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
        self._consumer, self._partition = client.consumer(), library().TopicPartition(name, 0, 0)
        self.is_at_end = False
        with translated(f"follow {name}"):
            self._consumer.assign([self._partition])

    def poll(self) -> list[tuple[bytes, bytes]]:
        """Key and value of each record that came."""
        with translated("read shared objects"):
            messages = self._consumer.consume(POLL_RECORDS, 0 if self.is_at_end else 0.2)
            found = [message for message in messages if not is_end(message)]
            if len(found) < len(messages):
                self.is_at_end = True
        return [(message.key() or b"", message.value() or b"") for message in found]

    def close(self) -> None:
        self._consumer.close()
