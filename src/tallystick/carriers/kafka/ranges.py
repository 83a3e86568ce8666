"""Ranges of a partition, one after the other: the library fetches ahead while what came before is opened.

Whoever reads on where the last range ended finds the next records here already. Kept is only what is worth it: a
consumer that has reached the end of its partition rests without asking the broker for more, and one that nobody came
back to for `KEPT_S` is placed anew, because what it heard meanwhile may be old news.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tallystick.carriers.kafka.failures import library
from tallystick.carriers.storage import Place

if TYPE_CHECKING:
    from tallystick.carriers.kafka.client import Record

KEPT_S = 5.0
KEPT_MAX = 4  # consumers that fetch ahead, each up to the library's own limit
WAIT_S = 0.05


class RangeReader:
    """A consumer, where it stands, and what it was handed and nobody has asked for yet; for one thread at a time."""

    def __init__(self, consumer: Any, decode: Callable[[Iterable[Any]], list[Record]]) -> None:
        """`decode` makes records of the library's messages, and raises what is an error among them."""
        self.consumer, self.at, self._decode = consumer, 0, decode
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
        self.consumer.assign([_partition(place, first)])
        self._place, self.at = place, first

    def next(self, count_max: int, accept: Callable[[Record], bool]) -> Record | None:
        """The next record if it has come, or comes within a moment, and is acceptable; else it stays the next."""
        if not self._ahead:
            self._ahead.extend(self._decode(self.consumer.consume(count_max, WAIT_S)))
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
        _, end = self.consumer.get_watermark_offsets(_partition(self._place, 0), cached=True)
        if self._ahead or self.at < end:
            self._left_at = time.monotonic()
        else:
            self.consumer.unassign()
            self._place = None

    @property
    def _position(self) -> int:
        assert self._place is not None
        return int(max(0, self.consumer.position([_partition(self._place, 0)])[0].offset))


def choose(readers: list[RangeReader], place: Place, first: int) -> RangeReader | None:
    """Take out of `readers` who is there already, or else who is free; None asks for a new one."""
    there = [one for one in readers if one.is_at(place, first)] or [one for one in readers if one.is_free]
    if not there and len(readers) >= KEPT_MAX:
        there = readers[:1]  # the one that was left first
    if not there:
        return None
    readers.remove(there[0])
    return there[0]


def _partition(place: Place, offset: int) -> Any:
    return library().TopicPartition(place.token.hex(), place.partition, offset)
