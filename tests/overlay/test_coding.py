"""Coded blocks: any `needed` of them give the body back, each verifies alone, and hostile numbers cost nothing."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from tallystick import errors
from tallystick.crypto import coding
from tallystick.crypto.blocks import Coding, block_hash, blocks_root, body_root
from tallystick.crypto.coding import Assembly, CodedBlock, CodedBody, encode
from tallystick.errors import Forged, Malformed, Misuse, Unavailable
from tallystick.parcel import header

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "coded_blocks.json").read_text())
PARCEL = bytes(32)


def body_of(length: int) -> bytes:
    return bytes(blake3(b"body").digest(length=length))


def assembled(coded: CodedBody, body: bytes, indexes: Any) -> Assembly:
    assembly = Assembly(coded.coding, len(body), body_root(body))
    for index in indexes:
        assembly.add(CodedBlock.decode(coded.block(PARCEL, index).encoded))
    return assembly


@pytest.mark.parametrize(("needed", "total"), [(1, 1), (1, 3), (2, 3), (3, 3), (3, 5), (4, 7)])
@pytest.mark.parametrize("length", [1, 2, 3, 11, 4096, 70_001])
def test_any_blocks_that_are_enough_give_the_body_back(needed: int, total: int, length: int) -> None:
    body = body_of(length)
    coded = encode(body, needed, total)
    for chosen in combinations(range(total), needed):
        assert assembled(coded, body, reversed(chosen)).body() == body


@given(body=st.binary(min_size=1, max_size=300), numbers=st.tuples(st.integers(1, 64), st.integers(0, 63)))
def test_the_last_blocks_do_as_well_as_the_first(body: bytes, numbers: tuple[int, int]) -> None:
    needed = numbers[0]
    total = min(64, needed + numbers[1])
    coded = encode(body, needed, total)
    assert b"".join(coded.blocks[:needed])[: len(body)] == body  # systematic
    assert assembled(coded, body, range(total - needed, total)).body() == body
    assert assembled(coded, body, range(total - needed, total)).coded() == coded


def test_too_few_blocks_are_no_body_and_copies_of_one_are_one() -> None:
    body = body_of(100)
    coded = encode(body, 3, 5)
    assembly = assembled(coded, body, [4, 4, 1])
    assert (sorted(assembly.held), assembly.enough) == ([1, 4], False)
    with pytest.raises(Unavailable, match="2 blocks of 3"):
        assembly.body()
    assert assembly.add(coded.block(PARCEL, 0))
    assert assembly.add(coded.block(PARCEL, 2))
    assert assembly.held == {0, 1, 4}  # one that comes too late takes no memory


def test_an_altered_block_is_refused_by_name_and_the_others_still_do() -> None:
    body = body_of(1000)
    coded = encode(body, 2, 3)
    assembly = Assembly(coded.coding, len(body), body_root(body))
    true = coded.block(PARCEL, 1)
    with pytest.raises(Forged, match="coded block 1 of 3: not the block that the publisher signed"):
        assembly.add(replace(true, data=bytes(500)))
    with pytest.raises(Forged, match="coded block 2 of 3"):
        assembly.add(replace(coded.block(PARCEL, 0), index=2, path=coded.block(PARCEL, 2).path))
    assert assembly.held == frozenset()
    assert assembly.add(true) is False
    assert assembly.add(coded.block(PARCEL, 2))
    assert assembly.body() == body


def signed_by_a_liar(blocks: list[bytes], needed: int) -> CodedBody:
    hashes = tuple(map(block_hash, blocks))
    return CodedBody(Coding(1, needed, len(blocks), len(blocks[0]), blocks_root(hashes)), tuple(blocks), hashes)


def test_a_publisher_whose_blocks_are_no_code_word_gives_no_two_bodies() -> None:
    body = body_of(20)
    lying = signed_by_a_liar([*encode(body, 2, 3).blocks[:2], bytes(10)], 2)
    assert assembled(lying, body, [0, 1]).body() == body  # what the header's body root says, and nothing else
    for chosen in ([0, 2], [1, 2]):
        with pytest.raises(Forged, match="another body than the one signed"):
            assembled(lying, body, chosen).body()
    with pytest.raises(Forged, match="not those of the signed body"):
        assembled(lying, body, [0, 1]).coded()


@pytest.mark.parametrize(
    ("numbers", "body_bytes", "words"),
    [
        ((2, 2, 3, 50), 100, "unknown code 2"),
        ((1, 0, 3, 50), 100, "0 of 3 blocks"),
        ((1, 4, 3, 25), 100, "4 of 3 blocks"),
        ((1, 2, 255, 50), 100, "2 of 255 blocks"),
        ((1, 2, 3, 51), 100, "51 bytes a block"),
        ((1, 2, 3, 49), 100, "49 bytes a block"),
        ((1, 2, 3, 0), 0, "0 bytes a block"),
        ((1, 2, 3, 1 << 25), 1 << 26, "at most 16777216 each"),
        ((1, 4, 64, 1 << 24), 1 << 26, "268435456 in all"),
    ],
)
def test_numbers_that_no_publisher_writes_are_refused_before_any_block(
    numbers: tuple[int, int, int, int], body_bytes: int, words: str
) -> None:
    with pytest.raises(Malformed, match=words):
        Assembly(Coding(*numbers, bytes(32)), body_bytes, bytes(32))


@pytest.mark.parametrize(("needed", "total"), [(0, 1), (2, 1), (1, 65), (-1, 3)])
def test_nobody_codes_by_numbers_that_others_refuse(needed: int, total: int) -> None:
    with pytest.raises(Misuse, match="blocks, expected"):
        encode(b"body", needed, total)
    with pytest.raises(Misuse, match="a body of 0"):
        encode(b"", 1, 1)


def test_a_block_of_any_size_is_bounded_before_it_is_read() -> None:
    with pytest.raises(Malformed, match="at most"):
        CodedBlock.decode(bytes(coding.BLOCK_BYTES_MAX + 2000))


def test_the_header_keeps_the_numbers_and_the_root() -> None:
    """The place that format 1 reserved."""
    assert header.Coding is Coding
    topic = header.TopicRef(bytes(16), bytes(16), 1)
    made = header.Header(
        instance=bytes(32),
        kind=header.ParcelKind.DATA,
        topics=(topic,),
        lane=bytes(16),
        sequence=0,
        previous=bytes(32),
        schema_version=1,
        schema_hash=bytes(32),
        identifier=bytes(16),
        time_ms=1,
        count=1,
        groups=(header.Group(bytes(32), bytes(32), (bytes(32),), 20),),
        body_bytes=20,
        body_root=body_root(body_of(20)),
        coding=encode(body_of(20), 2, 3).coding,
    )
    assert header.Header.decode(made.encoded).coding == made.coding


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zfec", None)
    with pytest.raises(Misuse, match="zfec") as refused:
        encode(b"body", 1, 2)
    assert "tallystick[overlay]" in str(refused.value.hint)


# --- vectors, and the arithmetic as the format page tells it ---


@pytest.mark.parametrize("name", VECTORS["good"])
def test_good_vectors(name: str) -> None:
    case = VECTORS["good"][name]
    body, (code, needed, total, block_bytes, root) = bytes.fromhex(case["body"]), case["coding"]
    coded = encode(body, needed, total)
    assert coded.coding == Coding(code, needed, total, block_bytes, bytes.fromhex(root))
    blocks = [CodedBlock.decode(bytes.fromhex(block)) for block in case["blocks"]]
    assert [coded.block(one.parcel, one.index) for one in blocks] == blocks
    assembly = Assembly(coded.coding, len(body), bytes.fromhex(case["body_root"]))
    assert [assembly.add(one) for one in blocks[::-1]][-1]
    assert assembly.body() == body
    assert [one.data for one in blocks] == by_the_page(body, needed, total)


@pytest.mark.parametrize("name", VECTORS["bad"])
def test_bad_vectors(name: str) -> None:
    case, good = VECTORS["bad"][name], VECTORS["good"]["two of three"]
    code, needed, total, block_bytes, root = good["coding"]
    signed = Coding(code, needed, total, block_bytes, bytes.fromhex(root))
    with pytest.raises(getattr(errors, case["error"]), match=case["words"]):
        CodedBlock.decode(bytes.fromhex(case["block"])).verify(signed)


POWERS = [1]
for _ in range(254):
    POWERS.append(POWERS[-1] << 1 ^ (0x11D if POWERS[-1] & 0x80 else 0))


def times(a: int, b: int) -> int:
    return POWERS[(POWERS.index(a) + POWERS.index(b)) % 255] if a and b else 0


def by_the_page(body: bytes, needed: int, total: int) -> list[bytes]:
    """Lagrange: block i is the value, at point i, of the polynomial that has the pieces at the first points."""
    size = -(-len(body) // needed)
    padded = body.ljust(size * needed, b"\0")
    pieces = [padded[at * size : (at + 1) * size] for at in range(needed)]
    points = [0, *POWERS[: total - 1]]
    made = []
    for point in points:
        factors = []
        for own in points[:needed]:
            factor = 1
            for other in points[:needed]:
                if other != own:
                    factor = times(factor, times(point ^ other, POWERS[-POWERS.index(own ^ other) % 255]))
            factors.append(factor)
        block = bytearray(size)
        for factor, piece in zip(factors, pieces, strict=True):
            for at, byte in enumerate(piece):
                block[at] ^= times(factor, byte)
        made.append(bytes(block))
    return made


@pytest.mark.parametrize(("needed", "total"), [(2, 3), (3, 5), (5, 9), (20, 40)])
def test_the_format_page_is_enough_to_write_the_code_anew(needed: int, total: int) -> None:
    body = body_of(90)
    assert list(encode(body, needed, total).blocks) == by_the_page(body, needed, total)
