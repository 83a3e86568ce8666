"""New records as they come: of many partitions, or of the topic that gateways share. For one thread each."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from tallystick.carriers.kafka.administration import ASK_S
from tallystick.carriers.kafka.client import POLL_RECORDS, KafkaClient, Record, is_end, record_of
from tallystick.carriers.kafka.failures import library, translated
from tallystick.carriers.storage import Place
from tallystick.errors import TallystickError, Unavailable

log = logging.getLogger(__name__)

LOST_S = 10.0  # before a partition that could not be read is tried again
LED_S = 0.1  # before a partition without a leader is asked for again


class Tail:
    """New records of many partitions, in order within each; for one thread."""

    def __init__(self, client: KafkaClient) -> None:
        self._consumer = client.consumer()
        self._next: dict[Place, int] = {}
        self._lost: dict[Place, float] = {}  # partitions that cannot be read, and until when they are left alone

    def follow(self, places: Mapping[Place, int]) -> None:
        """Go on with exactly these partitions, each from its offset."""
        now = time.monotonic()
        wanted = {place: at for place, at in places.items() if self._lost.get(place, now) <= now}
        if wanted == self._next:
            return
        partition = library().TopicPartition
        with translated("follow partitions"):
            self._consumer.assign([partition(p.token.hex(), p.partition, at) for p, at in wanted.items()])
        self._next = wanted

    def poll(self, timeout_s: float) -> dict[Place, list[Record]]:
        """What came, at most `POLL_RECORDS` of it. A partition that is lost (its topic deleted, its brokers down) keeps
        no other from going on: it is told in the log, and tried again after a while."""
        found: dict[Place, list[Record]] = {}
        with translated("read new records"):
            messages = self._consumer.consume(POLL_RECORDS, timeout_s) if self._next else []
        for message in messages:
            if message.topic() is None:
                is_end(message)  # of no partition: raises what it means
                continue
            place = Place(bytes.fromhex(message.topic()), message.partition())
            try:
                if is_end(message):
                    continue
            except TallystickError as error:
                log.warning("%s", error)
                self._lost[place] = time.monotonic() + LOST_S
                continue
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
        self._wait_led()

    def _wait_led(self) -> None:
        """A topic that was just made has no leader yet, or none that every broker knows."""
        deadline = time.monotonic() + ASK_S
        while True:
            try:
                self.end()
                return
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LED_S)

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
