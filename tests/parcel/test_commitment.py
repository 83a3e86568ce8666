"""Two contents in one ciphertext: AES-GCM alone allows it, the commitment in the header does not.

GCM's tag is linear in the ciphertext blocks, so for two keys one free block can be chosen such that one ciphertext
and tag are authentic under both (the attack behind "message franking" and "partitioning oracles").
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from makers import INSTANCE, SCHEMA, World, entropy, rows, seed
from makers import token as token_of

from tallystick.crypto import symmetric
from tallystick.crypto.blocks import body_root
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import CannotOpen
from tallystick.parcel.header import SIGNATURE_CONTEXT
from tallystick.parcel.keys import LaneKey, ParcelKeys
from tallystick.parcel.locks import TopicLock, lock_hash
from tallystick.parcel.open import open_batch
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.verify import verify_one

POLYNOMIAL = 0xE1 << 120


def multiply(x: int, y: int) -> int:
    """In GF(2^128) with GCM's bit order (NIST SP 800-38D, algorithm 1)."""
    product = 0
    for i in range(127, -1, -1):
        if (x >> i) & 1:
            product ^= y
        y = (y >> 1) ^ POLYNOMIAL if y & 1 else y >> 1
    return product


def power(x: int, exponent: int) -> int:
    result = 1 << 127  # one
    while exponent:
        if exponent & 1:
            result = multiply(result, x)
        x, exponent = multiply(x, x), exponent >> 1
    return result


def ecb(key: bytes, block: bytes) -> int:
    return int.from_bytes(Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block), "big")


def two_faced(key_a: bytes, key_b: bytes, blocks: int) -> bytes:
    """A ciphertext with a tag that verifies under both keys (nonce zero, no associated data)."""
    pre_counter = bytes(12) + b"\0\0\0\1"
    body = [int.from_bytes(seed(f"block {i}")[:16], "big") for i in range(blocks)]
    body[-1] = 0  # the free block
    length = blocks * 128

    def tag(key: bytes, last: int) -> int:
        h, ghash = ecb(key, bytes(16)), 0
        for block in [*body[:-1], last, length]:
            ghash = multiply(ghash ^ block, h)
        return ghash ^ ecb(key, pre_counter)

    difference = tag(key_a, 0) ^ tag(key_b, 0)
    factor = power(ecb(key_a, bytes(16)), 2) ^ power(ecb(key_b, bytes(16)), 2)
    last = multiply(difference, power(factor, (1 << 128) - 2))
    assert tag(key_a, last) == tag(key_b, last)
    ciphertext = b"".join(block.to_bytes(16, "big") for block in [*body[:-1], last])
    return ciphertext + tag(key_a, last).to_bytes(16, "big")


def test_without_a_commitment_one_ciphertext_has_two_contents() -> None:
    sealed = two_faced(seed("a"), seed("b"), 4)
    assert symmetric.decrypt(seed("a"), sealed) != symmetric.decrypt(seed("b"), sealed)  # both authentic


def test_the_commitment_refuses_the_second_key() -> None:
    """A hostile publisher locks a lane to two topics with two different secrets: each group of readers would see its
    own content. The lock is well-formed; the header commits to one of the two lane keys, and the others refuse."""
    world = World()
    lane = world.lane(topics=("brakes", "tyres"))
    honest = lane.seal(rows(0, 3), now_ms=1, entropy=entropy(0))
    tokens = [topic.token for topic in lane.topics]
    epochs = {name: world.topic_key(name).public for name in ("brakes", "tyres")}
    by_token = {token_of(name): public for name, public in epochs.items()}
    wraps: list[tuple[bytes, int, bytes]] = []
    for number, token in enumerate(tokens):
        secret = seed(f"secret {number}")
        wraps += TopicLock.seal(secret, INSTANCE, lane.lane, {token: (1, by_token[token])}).wraps
    lock = TopicLock(INSTANCE, lane.lane, tuple(wraps)).encode()
    name = lock_hash(lock)
    world.locks[name] = lock

    def keys(number: int) -> ParcelKeys:
        permits = [topic.permit for topic in lane.topics]
        lane_key = LaneKey.of(
            [seed(f"secret {number}")], [name], instance=INSTANCE, lane=lane.lane, group=0, permits=permits
        )
        return ParcelKeys.of(lane_key, 0, honest.header.identifier)

    body = two_faced(keys(0).body_key, keys(1).body_key, 64)
    group = replace(honest.header.groups[0], locks=(name,), commitment=keys(0).commitment, section_bytes=len(body))
    header = replace(honest.header, groups=(group,), body_bytes=len(body), body_root=body_root(body))
    signature = SigningKey.from_seed(seed("car")).sign(SIGNATURE_CONTEXT, header.encoded)
    verified = verify_one(Parcel.decode(Parcel(header, signature, body).encode()), INSTANCE, world.book())

    symmetric.decrypt(keys(1).body_key, body)  # without the commitment the second topic's readers would get this far
    second = "brakes" if tokens[1] == token_of("brakes") else "tyres"
    with pytest.raises(CannotOpen):
        open_batch(verified, world.ring(second), SCHEMA)
