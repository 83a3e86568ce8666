"""Protocol buffers as Go writes them: vectors by hand, properties, and what is no message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.abci import messages as m
from tallystick.abci.protobuf import Message, int64, octets, read_varint, sfixed64, text, uint64, write_varint
from tallystick.errors import Malformed


class Sample(Message):
    number: int = int64(1)
    fixed: int = sfixed64(2)
    name: str = text(3)
    numbers: tuple[int, ...] = uint64(16, repeated=True)


# Written out by the standard's rules (developers.google.com/protocol-buffers/docs/encoding).
@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        (Sample(), ""),
        (Sample(number=150), "08 96 01"),
        (Sample(number=-1), "08 ff ff ff ff ff ff ff ff ff 01"),
        (Sample(fixed=-2), "11 fe ff ff ff ff ff ff ff"),
        (Sample(name="testing"), "1a 07 74 65 73 74 69 6e 67"),
        (Sample(numbers=(3, 270, 86942)), "82 01 06 03 8e 02 9e a7 05"),
        (m.VoteInfo(), "0a 00"),  # not nullable in Go: written though empty
        (m.VoteInfo(m.Validator(b"ab", 7), 2), "0a 06 0a 02 61 62 18 07 18 02"),
    ],
)
def test_a_message_has_the_standard_s_bytes(message: Message, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert message.encode() == data
    assert type(message).decode(data).encode() == data


def test_what_the_standard_allows_is_read() -> None:
    unknown = bytes.fromhex("a0 06 01") + bytes.fromhex("aa 06 02 68 69") + bytes.fromhex("b5 06 00 00 00 00")
    assert Sample.decode(unknown + bytes.fromhex("08 01 08 02")) == Sample(number=2), "unknown fields; the last counts"
    assert Sample.decode(bytes.fromhex("80 01 03 80 01 04")) == Sample(numbers=(3, 4)), "not packed"


@pytest.mark.parametrize(
    "encoded",
    [
        "08",  # no number
        "08 ff ff ff ff ff ff ff ff ff ff 01",  # eleven bytes
        "1a 05 61",  # shorter than it says
        "1a 01 ff",  # no UTF-8
        "0b",  # a group
        "09 00 00 00 00 00 00 00 00",  # a number as eight bytes
        "12 01 00",  # eight bytes as a string
    ],
)
def test_what_is_no_message_is_malformed(encoded: str) -> None:
    with pytest.raises(Malformed):
        Sample.decode(bytes.fromhex(encoded))


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_numbers_come_back(number: int) -> None:
    data = write_varint(number)
    assert read_varint(memoryview(data), 0) == (number % (1 << 64), len(data))


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    for _, kind, _ in m.METHODS.values():
        try:
            found = kind.decode(data)
        except Malformed:
            continue
        assert kind.decode(found.encode()).encode() == found.encode()


class Block(Message):
    content: bytes = octets(1)


def test_a_large_field_is_copied_once() -> None:
    content = bytes(1 << 20)
    assert Block.decode(Block(content).encode()).content == content
