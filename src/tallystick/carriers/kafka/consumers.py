"""Consumers of Kafka's library: ranges of a partition, one after the other, and new records as they come.

The library fetches ahead while what came before is opened: whoever reads on where the last range ended finds the next
records here already. Kept is only what is worth it: a consumer that has reached the end of its partition rests without
asking the broker for more, and one that nobody came back to for `KEPT_S` is placed anew, because what it heard
meanwhile may be old news.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import methodcaller
from typing import Any, NamedTuple

from tallystick.carriers.kafka.failures import explain, library, translated
from tallystick.carriers.kafka.passage import PASSAGE
from tallystick.carriers.storage import Place
from tallystick.errors import TallystickError

log = logging.getLogger(__name__)

POLL_RECORDS = 1_000
KEPT_S = 5.0
KEPT_MAX = 4  # consumers that fetch ahead, each up to the library's own limit
WAIT_S = 0.05
LOST_S = 10.0  # before a partition that could not be read is tried again
END_S = 3.0  # for the end of a client, which takes a moment


class Record(NamedTuple):
    """What a partition holds at an offset."""

    offset: int
    value: bytes
    passage: bytes | None


def record_of(message: Any) -> Record:
    return Record(message.offset(), message.value() or b"", passage_of(message))


# The library returns a list although it failed. A caller in C notices that and raises; the interpreter's own quick
# calls do not, and the error comes up anywhere.
read_headers = methodcaller("headers")


def passage_of(message: Any) -> bytes | None:
    """The passage among a record's headers, if they can be read.

    Threat: whoever may write to Kafka itself names a header in bytes that are not UTF-8. The library fails over them
    with an error of the interpreter, and one such record would keep the notary from all partitions, for ever. It is
    judged as one without a passage. The library's list is not touched again: a name is missing in it.
    """
    try:
        headers = read_headers(message) or ()
    except (SystemError, UnicodeDecodeError):
        return None
    return dict(headers).get(PASSAGE)


def is_end(message: Any) -> bool:
    """Whether it is no record but only tells that the partition ends here. Raises what any other error means."""
    error = message.error()
    if error is None:
        return False
    if error.name() in ("_PARTITION_EOF", "GROUP_AUTHORIZATION_FAILED"):  # nor does anybody join a group here
        return True
    raise explain(error, f"read {message.topic()}")


def put_away(held: list[Any]) -> None:
    """End the consumers in a list, and let go of whatever else of the library it holds. Nobody else may hold them.

    Where brokers went away and came back, the library may wait for ever in the end of a client (librdkafka#4674 and
    #4131): a broker that restarts would keep a notary from reading on, and a process from ending. So each has a thread
    of its own, for which this waits a while. One that stands still is left alone, and ends with the process.
    """
    deadline, threads = time.monotonic() + END_S, list[threading.Thread]()
    while held:
        thread = threading.Thread(target=_end, args=([held.pop()],), name="kafka end", daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        log.warning("kafka: a client of the library does not come to its end; it is left to the end of this process")


def _end(held: list[Any]) -> None:
    if hasattr(held[0], "assign"):
        with suppress(library().KafkaException):
            held[0].close()
    held.clear()  # the last hold on it: what the library waits for then, it waits for here


class RangeReader:
    """A consumer, where it stands, and what it was handed and nobody has asked for yet; for one thread at a time."""

    def __init__(self, consumer: Any) -> None:
        self.consumer: Any = consumer
        self.at = 0
        self._place: Place | None = None
        self._ahead: deque[Record] = deque()
        self._left_at = 0.0

    @property
    def is_free(self) -> bool:
        """Whether it fetches nothing, or nothing that anybody came back for."""
        return self._place is None or time.monotonic() - self._left_at >= KEPT_S

    @property
    def has_next(self) -> bool:
        """Whether the next record is here and waits to be accepted."""
        return bool(self._ahead)

    def is_at(self, place: Place, first: int) -> bool:
        """Whether it goes on from there by itself."""
        return (self._place, self.at) == (place, first) and time.monotonic() - self._left_at < KEPT_S

    def go_to(self, place: Place, first: int) -> None:
        if self.is_at(place, first):
            return
        self._ahead.clear()
        self.consumer.assign([partition_at(place, first)])
        self._place, self.at = place, first

    def next(self, count_max: int, accept: Callable[[Record], bool]) -> Record | None:
        """The next record if it has come, or comes within a moment, and is acceptable; else it stays the next."""
        if not self._ahead:
            messages = self.consumer.consume(count_max, WAIT_S)
            self._ahead.extend(record_of(message) for message in messages if not is_end(message))
            # Behind the last record there may be offsets without one: the position tells, and only then.
            self.at = self._ahead[0].offset if self._ahead else max(self.at, self._position)
        if not self._ahead or not accept(self._ahead[0]):
            return None
        record = self._ahead.popleft()
        self.at = record.offset + 1
        return record

    def leave(self) -> None:
        """The range is read: fetch on where more lies ahead."""
        assert self._place is not None
        _, end = self.consumer.get_watermark_offsets(partition_at(self._place, 0), cached=True)
        if self._ahead or self.at < end:
            self._left_at = time.monotonic()
        else:
            self.consumer.unassign()
            self._place = None

    def close(self) -> None:
        held, self.consumer = [self.consumer], None
        put_away(held)

    @property
    def _position(self) -> int:
        assert self._place is not None
        return int(max(0, self.consumer.position([partition_at(self._place, 0)])[0].offset))


def choose(readers: list[RangeReader], place: Place, first: int) -> RangeReader | None:
    """Take out of `readers` who is there already, or else who is free. Returns None to ask for a new one."""
    there = [one for one in readers if one.is_at(place, first)] or [one for one in readers if one.is_free]
    if not there and len(readers) >= KEPT_MAX:
        there = readers[:1]  # the one that was left first
    if not there:
        return None
    readers.remove(there[0])
    return there[0]


class Tail:
    """New records of many partitions, in order within each; for one thread."""

    def __init__(self, consumer: Any) -> None:
        self._consumer: Any = consumer
        self._next: dict[Place, int] = {}
        self._lost: dict[Place, float] = {}  # partitions that cannot be read, and until when they are left alone

    def follow(self, places: Mapping[Place, int]) -> None:
        """Go on with exactly these partitions, each from its offset."""
        now = time.monotonic()
        wanted = {place: at for place, at in places.items() if self._lost.get(place, now) <= now}
        if wanted == self._next:
            return
        with translated("follow partitions"):
            self._consumer.assign([partition_at(place, at) for place, at in wanted.items()])
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
        held, self._consumer = [self._consumer], None
        put_away(held)


def partition_at(place: Place, offset: int) -> Any:
    return library().TopicPartition(place.token.hex(), place.partition, offset)
