"""What gateways of one instance share besides parcels: permits, undo orders and locks, on a Kafka topic of their own.

A client that moves to another gateway finds its advertisement live there, its undo obeyed and its locks known; and a
notary can name the publisher of any parcel it meets. Kafka is not believed: a permit or an order counts under its
authority's signature, a lock by its hash, and what is neither is passed over. Old objects stay: they are small, and
whoever joins later needs them all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum

from tallystick.carriers.accounts import permit_name
from tallystick.carriers.kafka.administration import ASK_S
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.consumers import POLL_RECORDS, is_end, put_away
from tallystick.carriers.kafka.failures import library, translated
from tallystick.errors import Malformed, Refused, Unavailable
from tallystick.guards.rules import Rules
from tallystick.parcel.locks import decode_lock, lock_hash
from tallystick.trust.permit import Permit, UndoOrder

log = logging.getLogger(__name__)

LED_S = 0.1  # before a topic without a leader is asked for again


class What(Enum):
    PERMIT = b"permit"
    UNDO = b"undo"
    LOCK = b"lock"


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
        held, self._consumer = [self._consumer], None
        put_away(held)


Take = Callable[[What, bytes], None]


class Shared:
    """Whoever reads is given every object that others (or this gateway, earlier) put there, once it was checked."""

    def __init__(self, kafka: KafkaClient, rules: Rules) -> None:
        self._kafka, self._rules = kafka, rules
        self._name = f"tallystick-{rules.instance.hex()[:32]}"
        kafka.make_shared_topic(self._name)
        self._tail = SharedTail(kafka, self._name)

    def put(self, blobs: Mapping[bytes, bytes]) -> None:
        """Share objects, which lie under these names; durable in Kafka when it returns."""
        self._kafka.put_shared(self._name, [(_what(name, data).value, data) for name, data in blobs.items()])

    def poll(self, take: Take, timeout_s: float = 0.0) -> int:
        """Take what came. Returns how many there were."""
        found = self._tail.poll(timeout_s)
        for kind, data in found:
            try:
                what = What(kind)
                self._check(what, data)
            except (Refused, ValueError) as error:
                log.warning("a shared object was passed over: %s", error)
                continue
            take(what, data)
        return len(found)

    def catch_up(self, take: Take) -> int:
        """Take everything that is there now. Returns how much there was. Whoever wrote a parcel gave its permit and
        locks to some gateway before: what is there when the parcel was read is enough to judge it."""
        end, taken = self._tail.end(), 0
        while self._tail.is_behind(end):
            taken += self.poll(take, 0.1)
        return taken

    def _check(self, what: What, data: bytes) -> None:
        if what is What.LOCK:
            decode_lock(data)  # named by its hash, and so held to it by whoever asks for it
            return
        signed = Permit.decode(data) if what is What.PERMIT else UndoOrder.decode(data)
        authority = self._rules.authority(signed.authority)
        if authority is None or signed.instance != self._rules.instance:
            raise Refused("of another instance, or of an authority that is not known", reason="unknown-authority")
        signed.verify(authority)

    def close(self) -> None:
        self._tail.close()


def _what(name: bytes, data: bytes) -> What:
    """What kind of object lies under a name."""
    if name == lock_hash(data):
        return What.LOCK
    with suppress(Malformed):
        if name == permit_name(Permit.decode(data).identifier):
            return What.PERMIT
    return What.UNDO
