"""Cells: messages cut and joined over channels that lose, repeat and reorder; hostile ends fill nothing."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from without import without

from tallystick.carriers.mesh.cells import (
    MESSAGES_OPEN_MAX,
    PIECE_BYTES,
    PLAIN_BYTES,
    Cell,
    CellsIn,
    Piece,
)
from tallystick.carriers.mesh.resending import LATE_MAX, CellsOut
from tallystick.errors import Malformed

ROOM = 1 << 20


def pair(unfinished: int = ROOM) -> tuple[CellsOut, CellsIn]:
    return CellsOut(ROOM), CellsIn(ROOM, unfinished)


def brought(out: CellsOut, into: CellsIn, random: Random, loss: float = 0.0, beats: int = 60) -> list[bytes]:
    """What comes out of a channel that loses, repeats and reorders, four cells a beat."""
    came, late = [], []
    for beat in range(beats):
        assert out.expire(beat, 1000) == []
        late += [out.cell(beat, 0, 0).encode() for _ in range(4)]
        random.shuffle(late)
        keep = random.randrange(3)
        for data in late[keep:]:
            for _ in range(random.choice([1, 1, 2])):
                if random.random() >= loss:
                    came += into.receive(Cell.decode(data))
        late = late[:keep]
        if random.random() >= loss:
            out.acknowledge(into.highest, into.came)
    return came


def test_every_message_comes_once_whatever_the_channel_does(seed: int) -> None:
    random = Random(seed)
    messages = [random.randbytes(random.choice([0, 1, 50, 400, PIECE_BYTES, PIECE_BYTES + 1, 9000])) for _ in range(40)]
    out, into = pair()
    for number, message in enumerate(messages):
        assert out.put(message, 0, urgent=number % 3 == 0)
    came = brought(out, into, random, loss=0.3, beats=300)
    assert sorted(came) == sorted(messages)
    assert (out.held_bytes, into.held_bytes) == (0, 0)
    assert not out.has_more()


def test_small_messages_share_a_cell_and_all_cells_have_one_length() -> None:
    out, into = pair()
    for number in range(10):
        out.put(bytes([number]) * 80, 0)
    cell = out.cell(0, 0, 0)
    assert len(cell.encode()) == PLAIN_BYTES == len(out.cell(0, 0, 0).encode())
    assert len(into.receive(cell)) == 10
    assert len(cell.encode(padded=False)) < PLAIN_BYTES


def test_what_is_urgent_goes_first_whatever_waits() -> None:
    out, into = pair()
    for _ in range(MESSAGES_OPEN_MAX + 50):
        out.put(bytes(PIECE_BYTES), 0)
    out.cell(0, 0, 0)
    out.put(b"urgent", 0, urgent=True)
    assert out.has_more(urgent_only=True)
    assert into.receive(out.cell(0, 0, 0)) == [b"urgent"]
    assert not out.has_more(urgent_only=True)


def test_a_message_that_is_tried_for_too_long_is_given_up_and_known() -> None:
    out, into = pair()
    out.put(bytes(5000), 0)
    out.put(b"later", 9)
    into.receive(out.cell(9, 0, 0))
    assert into.held_bytes > 0
    assert out.expire(11, 10) == [bytes(5000)]
    assert into.receive(out.cell(11, 0, 0)) == [b"later"]  # and the receiver lets go of what it had
    assert into.held_bytes == 0
    assert out.drop_all() == [b"later"]
    assert out.held_bytes == 0


def test_there_is_no_room_for_more_than_may_wait() -> None:
    out = CellsOut(100)
    assert [out.put(bytes(60), 0) for _ in range(3)] == [True, False, False]


def test_an_end_that_forgot_everything_gets_every_message_anew() -> None:
    out, into = pair()
    out.put(bytes(3 * PIECE_BYTES), 0)
    for _ in range(2):
        into.receive(out.cell(0, 0, 0))
    out.acknowledge(into.highest, into.came)
    out.restart()
    again = CellsIn(ROOM, ROOM)
    assert [message for _ in range(3) for message in again.receive(out.cell(0, 0, 0))] == [bytes(3 * PIECE_BYTES)]


def test_a_cell_that_many_overtook_goes_again_at_once() -> None:
    out, into = pair()
    for number in range(110):
        out.put(bytes([number]) * PIECE_BYTES, 0)
    out.cell(0, 0, 0)  # lost
    for _ in range(109):
        into.receive(out.cell(0, 0, 0))
    assert not out.has_more()
    out.acknowledge(into.highest, into.came)
    assert [message[0] for message in into.receive(out.cell(0, 0, 0))] == [0]


def test_no_more_cells_are_on_their_way_than_can_be_acknowledged() -> None:
    out, into = CellsOut(10 * ROOM), CellsIn(ROOM, ROOM)
    for _ in range(400):
        out.put(bytes(PIECE_BYTES), 0)
    cells = 0
    while out.has_more():
        assert len(into.receive(out.cell(0, 0, 0))) == 1
        cells += 1
    assert cells == 256
    out.acknowledge(into.highest, into.came)
    assert out.has_more()
    assert out.held_bytes == 144 * PIECE_BYTES


def slowly(beats: int, way: int) -> tuple[int, int]:
    """A message in each beat over a channel on which answers take `way` beats: pieces that were sent, and bytes that
    still wait in the end."""
    out, into = pair()
    pieces, answers = 0, []
    for beat in range(beats + 2 * way):
        assert out.expire(beat, 1000) == []
        if beat < beats:
            out.put(bytes(PIECE_BYTES), beat)
        while out.has_more():
            cell = out.cell(beat, 0, 0)
            pieces += len(cell.pieces)
            into.receive(cell)
        answers.append((into.highest, into.came))
        if beat >= way:
            out.acknowledge(*answers[beat - way])
    return pieces, out.held_bytes


def test_answers_that_are_later_than_a_resend_count_so_that_a_slow_link_does_not_drown_in_its_own_cells() -> None:
    assert slowly(60, 1) == (60, 0)
    pieces, waiting = slowly(60, 6)
    assert pieces < 5 * 60
    assert waiting == 0
    with without("late answers on a link"):
        pieces, waiting = slowly(60, 6)
    assert pieces > 10 * 60
    assert waiting == 60 * PIECE_BYTES


# --- hostile ends ---


def test_messages_that_never_end_fill_no_more_than_their_room() -> None:
    def flooded() -> int:
        into, most = CellsIn(20_000, 50_000), 0
        for number in range(1, 2000):
            piece = Piece(1 + number % MESSAGES_OPEN_MAX, number % 16, 17, bytes(PIECE_BYTES))
            into.receive(Cell(number, 1, 0, 0, (piece,)))
            most = max(most, into.held_bytes)
        return most

    assert flooded() <= 70_000
    with without("the room for unfinished messages"):
        assert flooded() > 1_000_000


def test_what_there_is_no_room_for_is_not_acknowledged_and_comes_again() -> None:
    out, into = CellsOut(ROOM), CellsIn(4 * PIECE_BYTES, 6 * PIECE_BYTES)
    for number in range(8):
        out.put(bytes([number]) * 4 * PIECE_BYTES, 0)
    came = brought(out, into, Random(5), loss=0.4, beats=200)
    assert sorted(message[0] for message in came) == list(range(8))


@pytest.mark.parametrize(
    "piece",
    [
        Piece(1 + MESSAGES_OPEN_MAX, 0, 1, b"x"),  # beyond the window
        Piece(1, 0, 3, bytes(PIECE_BYTES)),  # begun with another count
        Piece(2, 0, 60_000, bytes(PIECE_BYTES)),  # longer than any may be
    ],
)
def test_pieces_that_no_honest_end_sends_are_malformed(piece: Piece) -> None:
    into = CellsIn(ROOM, ROOM)
    into.receive(Cell(1, 1, 0, 0, (Piece(1, 0, 2, bytes(PIECE_BYTES)),)))
    with pytest.raises(Malformed):
        into.receive(Cell(2, 1, 0, 0, (piece,)))


def test_an_end_that_never_answers_fills_nothing_with_what_went_again() -> None:
    out, _ = pair()
    for beat in range(40):
        out.expire(beat, 1000)
        for _ in range(256):
            out.put(bytes(PIECE_BYTES), beat)
            out.cell(beat, 0, 0)
    assert len(out._late) == LATE_MAX


def test_huge_numbers_cost_nothing() -> None:
    into = CellsIn(ROOM, ROOM)
    for number in (1, 3, 2**63, 2**64 - 1):
        into.receive(Cell(number, number, 0, 0))
    assert (into.highest, into.came) == (2**64 - 1, 0)


def test_who_acknowledges_what_was_never_sent_is_malformed() -> None:
    out = CellsOut(ROOM)
    out.cell(0, 0, 0)
    with pytest.raises(Malformed):
        out.acknowledge(2, 0)


def test_cells_are_read_as_they_were_written() -> None:
    cell = Cell(7, 3, 9, 5, (Piece(3, 0, 2, bytes(PIECE_BYTES)),))
    assert Cell.decode(cell.encode()) == cell == Cell.decode(cell.encode(padded=False))
    short = cell._replace(pieces=(Piece(3, 0, 1, b"ab"),))
    data = short.encode()
    for bad in (
        data[:40],
        data + b"\x00",
        data[:-1] + b"\x01",
        short._replace(pieces=(Piece(3, 0, 2, b"a"),)).encode(),
    ):
        with pytest.raises(Malformed):
            Cell.decode(bad)


@given(st.binary(min_size=56, max_size=300))
def test_junk_fills_nothing(data: bytes) -> None:
    out, into = CellsOut(1000), CellsIn(1000, 1000)
    try:
        cell = Cell.decode(data)
        into.receive(cell)
        out.acknowledge(cell.highest, cell.came)
    except Malformed:
        pass
    assert into.held_bytes <= 2000
