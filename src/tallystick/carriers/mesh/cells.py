"""Cells: what a link carries, all of one size. A message is cut into pieces, and the other end joins them again.

Threat: lengths that tell messages apart; a neighbour that begins messages and never ends them, announces lengths that
it never sends, repeats or renumbers; a network that loses, repeats and reorders. Invariant: what one end puts in comes
out at the other at most once and unchanged, whatever is lost, repeated or overtaken; what may not have come out is
known to the sender (`resending.py`). Messages may overtake each other. Memory is bounded at both ends: at most
`MESSAGES_OPEN_MAX` messages are begun and not finished, and their bytes are bounded too.

Each cell has a number, says up to which number cells came in and which of the 256 below it, and names the oldest
message that its sender still tries to bring. A piece whose cell is not acknowledged goes again, in a cell of another
number. What the receiver has no room for, it does not acknowledge; so it comes again later.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick.errors import Malformed

CELL_BYTES = 1200  # on the wire: below every path's limit, with IP and UDP in front
OVERHEAD_BYTES = 48  # nonce and tag
PLAIN_BYTES = CELL_BYTES - OVERHEAD_BYTES
ACKNOWLEDGED = 256  # cells of which one cell says whether they came
MESSAGES_OPEN_MAX = 1024  # from the oldest that is not acknowledged whole to the newest of which a piece was sent

HEADER = struct.Struct("<QQQ32s")  # number, oldest message, highest number that came, which came below it
PIECE = struct.Struct("<QHHH")  # message, part, of how many parts, length
PIECE_BYTES = PLAIN_BYTES - HEADER.size - PIECE.size


class Piece(NamedTuple):
    message: int
    part: int
    parts: int  # at least 1, so that zeros are padding
    data: bytes


class Cell(NamedTuple):
    number: int
    oldest: int
    highest: int  # 0: none came; numbers begin with 1
    came: int  # bit i: cell `highest - 1 - i` came
    pieces: tuple[Piece, ...] = ()

    def encode(self, *, padded: bool = True) -> bytes:
        parts = [HEADER.pack(self.number, self.oldest, self.highest, self.came.to_bytes(32, "little"))]
        for message, index, count, data in self.pieces:
            parts += PIECE.pack(message, index, count, len(data)), data
        plain = b"".join(parts)
        return plain + bytes(PLAIN_BYTES - len(plain)) if padded else plain

    @classmethod
    def decode(cls, plain: bytes) -> Cell:
        """Raises `Malformed`."""
        if not HEADER.size <= len(plain) <= PLAIN_BYTES:
            raise Malformed("cell: of another length")
        number, oldest, highest, came = HEADER.unpack_from(plain)
        return cls(number, oldest, highest, int.from_bytes(came, "little"), tuple(_pieces(plain, HEADER.size)))


def _pieces(plain: bytes, at: int) -> Iterator[Piece]:
    while at + PIECE.size <= len(plain):
        message, index, count, length = PIECE.unpack_from(plain, at)
        if count == 0:
            break
        at += PIECE.size
        if index >= count or at + length > len(plain) or (length != PIECE_BYTES and index < count - 1):
            raise Malformed("cell: a piece that nobody cuts")
        yield Piece(message, index, count, plain[at : at + length])
        at += length
    if any(plain[at:]):
        raise Malformed("cell: padding that is not zero")


@dataclass
class _Incoming:
    count: int
    pieces: dict[int, bytes] = field(default_factory=dict)


@dataclass
class CellsIn:
    """What came from the other end of a link, and is not whole yet."""

    message_bytes_max: int
    unfinished_bytes_max: int
    held_bytes: int = 0
    highest: int = 0
    came: int = 0
    _oldest: int = 1
    _messages: dict[int, _Incoming] = field(default_factory=dict)
    _done: set[int] = field(default_factory=set)

    def receive(self, cell: Cell) -> list[bytes]:
        """The messages that this cell makes whole. Raises `Malformed` for what no honest end sends.

        A cell that came before, or is too old to tell, gives nothing.
        """
        if self._knows(cell.number):
            return []
        self._forget(cell.oldest)
        whole: list[bytes] = []
        is_kept = True
        for piece in cell.pieces:
            if self._check(piece) and not self._has_room(piece):
                is_kept = False  # what is kept of the cell stays, and all of it comes again
                continue
            whole += self._join(piece)
        if is_kept:
            self._remember(cell.number)
        return whole

    def _knows(self, number: int) -> bool:
        below = self.highest - 1 - number
        return number == 0 or below == -1 or below >= ACKNOWLEDGED or (below >= 0 and bool(self.came >> below & 1))

    def _remember(self, number: int) -> None:
        ahead = number - self.highest
        if ahead > ACKNOWLEDGED:  # a hostile number must not make us shift by billions of bits
            self.highest, self.came = number, 0
        elif ahead > 0:
            self.came = (self.came << ahead | (self.highest > 0) << (ahead - 1)) & ((1 << ACKNOWLEDGED) - 1)
            self.highest = number
        else:
            self.came |= 1 << (self.highest - 1 - number)

    def _forget(self, oldest: int) -> None:
        """Let go of what the sender no longer tries to bring."""
        if oldest > self._oldest:
            self._oldest = oldest
            self._done = {number for number in self._done if number >= oldest}
            for number in [number for number in self._messages if number < oldest]:
                self._drop(number)

    def _check(self, piece: Piece) -> bool:
        """Whether it is new. Raises `Malformed` for one that cannot be."""
        begun = self._messages.get(piece.message)
        if piece.message >= self._oldest + MESSAGES_OPEN_MAX or (begun is not None and begun.count != piece.parts):
            raise Malformed("cell: a piece of no message of ours")
        if (piece.parts - 1) * PIECE_BYTES > self.message_bytes_max:
            raise Malformed(f"cell: a message of more than {self.message_bytes_max} bytes")
        is_over = piece.message < self._oldest or piece.message in self._done
        return not is_over and (begun is None or piece.part not in begun.pieces)

    def _has_room(self, piece: Piece) -> bool:
        """The oldest message has room always, so that there is an end to it."""
        is_first = piece.message <= min(self._messages, default=piece.message)
        return self.held_bytes + len(piece.data) <= self.unfinished_bytes_max + is_first * self.message_bytes_max

    def _join(self, piece: Piece) -> Iterable[bytes]:
        if piece.message < self._oldest or piece.message in self._done:
            return
        one = self._messages.setdefault(piece.message, _Incoming(piece.parts))
        if piece.part not in one.pieces:
            one.pieces[piece.part] = piece.data
            self.held_bytes += len(piece.data)
        if len(one.pieces) == one.count:
            self._drop(piece.message)
            self._done.add(piece.message)
            yield b"".join(one.pieces[index] for index in range(one.count))

    def _drop(self, number: int) -> None:
        self.held_bytes -= sum(map(len, self._messages.pop(number).pieces.values()))
