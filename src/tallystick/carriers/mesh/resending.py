"""What one end of a link has to say to the other, until the other end has it: cut into pieces, sent, sent again.

Invariant: a message leaves only when all of its pieces are acknowledged, or when it is given up and returned to whoever
put it in, who so knows that it may not have come. Both the bytes that wait and the cells on their way are bounded.

Threat: ends or lines that are slower than a resend. What goes again has another number, so an answer to the first one
would count for nothing, and if all answers are late, everything would go again for ever, the more of it the slower it
gets. So late answers count as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tallystick.carriers.mesh.cells import (
    ACKNOWLEDGED,
    HEADER,
    MESSAGES_OPEN_MAX,
    PIECE,
    PIECE_BYTES,
    PLAIN_BYTES,
    Cell,
    Piece,
)
from tallystick.errors import Malformed

RESEND_BEATS = 2  # the other end's beat lies between two of ours, so the second finds its answer
LATE_MAX = 4 * ACKNOWLEDGED  # cells that went again, whose answers still count
OVERTAKEN = 96  # a cell that so many overtook is lost


@dataclass
class _Outgoing:
    data: bytes
    begun: int  # the beat in which it was put in
    urgent: bool
    missing: set[int] = field(default_factory=set)  # pieces that are not acknowledged

    @property
    def count(self) -> int:
        return max(1, -(-len(self.data) // PIECE_BYTES))

    def piece(self, number: int, index: int) -> Piece:
        return Piece(number, index, self.count, self.data[index * PIECE_BYTES : (index + 1) * PIECE_BYTES])


_Named = tuple[int, int]  # a piece: message and index


def _two_queues() -> dict[bool, deque[Any]]:
    return {True: deque(), False: deque()}


@dataclass
class CellsOut:
    """What one end of a link has to say to the other, the urgent first. `waiting_bytes_max` bounds it."""

    waiting_bytes_max: int
    held_bytes: int = 0
    _number: int = 0  # of the last cell
    _next: int = 1  # message
    _waiting: dict[bool, deque[_Outgoing]] = field(default_factory=_two_queues)  # of which nothing was sent
    _messages: dict[int, _Outgoing] = field(default_factory=dict)  # the others
    _pieces: dict[bool, deque[_Named]] = field(default_factory=_two_queues)  # of these, to be sent
    _sent: dict[int, tuple[int, list[_Named]]] = field(default_factory=dict)  # beat and pieces, by cell
    _late: dict[int, list[_Named]] = field(default_factory=dict)  # the same of cells whose pieces went again

    def put(self, data: bytes, beat: int, *, urgent: bool = False) -> bool:
        """Take a message to bring over. False if there is no room for it."""
        if self.held_bytes + len(data) > self.waiting_bytes_max:
            return False
        self._waiting[urgent].append(_Outgoing(data, beat, urgent))
        self.held_bytes += len(data)
        return True

    @property
    def oldest(self) -> int:
        return next(iter(self._messages), self._next)

    def has_more(self, *, urgent_only: bool = False) -> bool:
        """Whether a cell made now would carry anything."""
        return self._is_open() and any(self._ready(urgent) for urgent in {True, urgent_only})

    def cell(self, beat: int, highest: int, came: int) -> Cell:
        """The next cell, with as much as fits into it, and nothing if there is nothing."""
        chosen = tuple(self._choose()) if self._is_open() else ()
        self._number += 1
        if chosen:
            self._sent[self._number] = (beat, [(piece.message, piece.part) for piece in chosen])
        return Cell(self._number, self.oldest, highest, came, chosen)

    def acknowledge(self, highest: int, came: int) -> None:
        """Take the other end's word for what came. Raises `Malformed` for what was never sent."""
        if highest > self._number:
            raise Malformed("cell: it acknowledges what was never sent")
        for number in list(self._sent):
            below = highest - 1 - number
            if _is_told(below, came):
                self._finish_all(self._sent.pop(number)[1])
            elif below >= OVERTAKEN:
                self._again(number)
        for number in list(self._late):
            below = highest - 1 - number
            if _is_told(below, came) or below >= ACKNOWLEDGED:
                self._take_late(number, is_told=below < ACKNOWLEDGED)

    def expire(self, beat: int, beats_max: int) -> list[bytes]:
        """Send again what was not acknowledged in time. Returns the messages that are given up, tried for too long."""
        for number, (sent, _) in list(self._sent.items()):
            if sent <= beat - RESEND_BEATS:
                self._again(number)
        old = [number for number, one in self._messages.items() if one.begun < beat - beats_max]
        given_up = [self._drop(number) for number in old]
        for queue in self._waiting.values():
            while queue and queue[0].begun < beat - beats_max:
                given_up.append(self._uncount(queue.popleft()))
        return given_up

    def restart(self) -> None:
        """The other end forgot everything: begin every message anew."""
        self._sent.clear()
        self._late.clear()
        self._pieces = _two_queues()
        for number, one in self._messages.items():
            self._begin(number, one)

    def drop_all(self) -> list[bytes]:
        """Give everything up. Returns the messages that may not have come."""
        waiting = [self._uncount(one) for queue in self._waiting.values() for one in queue]
        self._waiting = _two_queues()
        return [self._drop(number) for number in list(self._messages)] + waiting

    def _choose(self) -> Iterator[Piece]:
        room = PLAIN_BYTES - HEADER.size
        for urgent, queue in self._pieces.items():
            while self._ready(urgent):
                number, index = queue[0]
                piece = self._messages[number].piece(number, index)
                room -= PIECE.size + len(piece.data)
                if room < 0:
                    return
                queue.popleft()
                yield piece

    def _ready(self, urgent: bool) -> bool:
        """Whether there is a piece to send; if need be, of a message that waited."""
        queue, waiting = self._pieces[urgent], self._waiting[urgent]
        while queue and not self._is_missing(*queue[0]):
            queue.popleft()
        if not queue and waiting and self._next < self.oldest + MESSAGES_OPEN_MAX:
            self._messages[self._next] = waiting.popleft()
            self._begin(self._next, self._messages[self._next])
            self._next += 1
        return bool(queue)

    def _begin(self, number: int, one: _Outgoing) -> None:
        one.missing = set(range(one.count))
        self._pieces[one.urgent].extend((number, index) for index in range(one.count))

    def _is_open(self) -> bool:
        """Whether one more cell leaves those on their way within what can be acknowledged."""
        return not self._sent or self._number - next(iter(self._sent)) < ACKNOWLEDGED - 1

    def _is_missing(self, message: int, index: int) -> bool:
        return message in self._messages and index in self._messages[message].missing

    def _again(self, number: int) -> None:
        self._late[number] = self._sent.pop(number)[1]
        if len(self._late) > LATE_MAX:
            del self._late[next(iter(self._late))]
        for message, index in reversed(self._late[number]):
            if self._is_missing(message, index):
                self._pieces[self._messages[message].urgent].appendleft((message, index))

    def _take_late(self, number: int, *, is_told: bool) -> None:
        """An answer to a cell whose pieces went again meanwhile; none comes any more where it is not told of."""
        pieces = self._late.pop(number)
        if is_told:
            self._finish_all(pieces)

    def _finish_all(self, pieces: list[_Named]) -> None:
        for message, index in pieces:
            if self._is_missing(message, index):
                self._messages[message].missing.discard(index)
                if not self._messages[message].missing:
                    self._drop(message)

    def _drop(self, number: int) -> bytes:
        return self._uncount(self._messages.pop(number))

    def _uncount(self, one: _Outgoing) -> bytes:
        self.held_bytes -= len(one.data)
        return one.data


def _is_told(below: int, came: int) -> bool:
    """Whether a cell so far below the highest that came is said to have come."""
    return below == -1 or (below >= 0 and bool(came >> below & 1))
