"""The body hash and its block proofs."""

from __future__ import annotations

import pytest
from blake3 import blake3

from tallystick.crypto import blocks
from tallystick.errors import Forged, Misuse

SIZES = [1, 100, 16383, 16384, 16385, 3 * 16384, 5 * 16384 + 7, 8 * 16384]


def body(length: int) -> bytes:
    return bytes(blake3(b"body").digest(length=length))


def naive_root(data: bytes) -> bytes:
    if not data:
        return bytes(blake3(b"").digest())
    if len(data) <= 16384:
        return bytes(blake3(b"\x00" + data).digest())
    split = 16384
    while split * 2 < len(data):
        split *= 2
    return bytes(blake3(b"\x01" + naive_root(data[:split]) + naive_root(data[split:])).digest())


@pytest.mark.parametrize("length", [0, *SIZES])
def test_root_is_the_rfc_6962_shape_with_blake3_inside(length: int) -> None:
    data = body(length)
    assert blocks.body_root(data) == blocks.body_root(memoryview(bytearray(data))) == naive_root(data)


@pytest.mark.parametrize("length", SIZES)
def test_every_block_verifies_alone(length: int) -> None:
    data = body(length)
    hashes, root = blocks.block_hashes(data), blocks.body_root(data)
    assert len(hashes) == blocks.block_count(length)
    for index in range(len(hashes)):
        block = data[index * blocks.BLOCK_BYTES :][: blocks.BLOCK_BYTES]
        proof = blocks.block_proof(hashes, index)
        blocks.verify_block(block, index, length, proof, root)
        for bad in (block[:-1], block + b"\x00", bytes([block[0] ^ 1]) + block[1:]):
            with pytest.raises(Forged):
                blocks.verify_block(bad, index, length, proof, root)
        for other in {index - 1, index + 1, len(hashes)}:
            with pytest.raises(Forged):
                blocks.verify_block(block, other, length, proof, root)
        with pytest.raises(Forged):
            blocks.verify_block(block, index, length + blocks.BLOCK_BYTES * len(hashes), proof, root)


def test_misuse_and_empty_bodies() -> None:
    with pytest.raises(Misuse):
        blocks.block_proof([], 0)
    with pytest.raises(Forged):
        blocks.verify_block(b"", 0, 0, [], blocks.EMPTY_BODY)
