"""docs/formats/object.md as bytes: the vectors, read by our code and, in part, by a second hand that knows the page."""

from __future__ import annotations

import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tallystick import wire
from tallystick.errors import Malformed
from tallystick.objects.cutting import cut_chunks, gear_table
from tallystick.objects.layout import (
    SLIP_BYTES,
    Docket,
    ObjectKey,
    Slip,
    Slips,
    slips_root,
)
from tallystick.objects.ranges import Seed
from tallystick.objects.sealing import ChunkOpener, ChunkSealer
from tallystick.objects.serving import make_seed

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "objects.json").read_text())


def content(vector: dict[str, Any]) -> bytes:
    return bytes(blake3(vector["content"].encode()).digest(length=vector["length"]))


@pytest.mark.parametrize("vector", VECTORS["cuts"], ids=lambda one: f"{one['cut']}-{one['target']}")
def test_content_is_cut_where_it_was(vector: dict[str, Any]) -> None:
    found, at = [], 0
    for chunk in cut_chunks([content(vector)], vector["cut"], vector["target"]):
        at += len(chunk)
        found.append(at)
    assert found == vector["ends"]


def test_content_is_cut_by_the_page_alone() -> None:
    """The rule of the page, byte by byte."""
    table = blake3(b"tallystick gear 1").digest(length=2048)
    gear = [int.from_bytes(table[at : at + 8], "little") for at in range(0, 2048, 8)]
    assert blake3(gear_table().astype("<u8").tobytes()).hexdigest() == VECTORS["gear table blake3"]
    (vector,) = [one for one in VECTORS["cuts"] if (one["cut"], one["target"]) == (1, 4096)]
    data, ends, start, value = content(vector), [], 0, 0
    for place, octet in enumerate(data, 1):
        value = (2 * value + gear[octet]) % (1 << 64)
        length = place - start
        bits = 13 if length < 4096 else 11
        if length == 16_384 or (length >= 1024 and value >> (64 - bits) == 0) or place == len(data):
            ends.append(place)
            start = place
    assert ends == vector["ends"]


@pytest.mark.parametrize("vector", VECTORS["sealed"], ids=lambda one: one["content"])
def test_what_is_sealed_is_what_it_was(vector: dict[str, Any]) -> None:
    data, docket = content(vector), Docket.decode(bytes.fromhex(vector["docket"]))
    secret, entropy = bytes.fromhex(VECTORS["secret"]), bytes.fromhex(VECTORS["entropy"])
    key = ObjectKey.draw(secret, entropy, blake3(data).digest(), docket.cut, docket.target_bytes, 0)
    assert key.key.hex() == vector["key"]
    sealer = ChunkSealer(key, 0)
    chunks = b"".join(sealer.seal(chunk) for chunk in cut_chunks([data], docket.cut, docket.target_bytes))
    assert bytes(sealer.slips).hex() == vector["slips"]
    assert blake3(chunks).hexdigest() == vector["chunks blake3"]
    assert slips_root(sealer.slips).hex() == vector["root"] == docket.root.hex()
    docket.check_lengths(Slips(sealer.slips))
    for depth, uncles in vector["uncles"].items():
        for (first, end), uncle in zip(
            docket.check_uncles(int(depth), [bytes.fromhex(one) for one in uncles]), uncles, strict=True
        ):
            part = sealer.slips[first * SLIP_BYTES : end * SLIP_BYTES]
            assert len(docket.check_slips(first, end, bytes.fromhex(uncle), part)) == end - first


def test_a_chunk_is_opened_by_the_page_alone() -> None:
    vector = VECTORS["opened"]
    key, slips, chunks = (bytes.fromhex(vector[name]) for name in ("key", "slips", "chunks"))
    info = {name: wire.encode([name]) + b"\x01" for name in ("tallystick chunk key 1", "tallystick chunk hash 1")}
    cipher, hash_key = (hmac.digest(key, told, "sha256") for told in info.values())
    second, begin = slips[72:], int.from_bytes(slips[32:36], "big")
    plain = AESGCM(cipher).decrypt((1).to_bytes(12, "big"), chunks[begin:], None)
    assert plain == blake3(b"short").digest(length=100)
    assert second == blake3(chunks[begin:]).digest() + b"\0\0\0\x74\0\0\0\x64" + blake3(plain, key=hash_key).digest()
    leaves = [blake3(b"\x00" + slips[at : at + 72]).digest() for at in (0, 72)]
    assert blake3(b"\x01" + leaves[0] + leaves[1]).hexdigest() == vector["root"]


def test_compressed_chunks_open() -> None:
    vector = VECTORS["opened"]
    chunks, opener, plain, at = (
        bytes.fromhex(vector["chunks"]),
        ChunkOpener(ObjectKey(bytes.fromhex(vector["key"]))),
        b"",
        0,
    )
    slips = Slips(bytes.fromhex(vector["slips"]))
    for number, slip in enumerate(slips):
        plain += opener.open(number, slip, chunks[at : at + slip.sealed_length])
        at += slip.sealed_length
    assert [slip.compressed for slip in slips] == [True, False]
    assert blake3(plain).hexdigest() == vector["plain blake3"]


@pytest.mark.parametrize("vector", VECTORS["bad dockets"], ids=lambda one: one["name"])
def test_a_bad_docket_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match=vector["refusal"]):
        Docket.decode(bytes.fromhex(vector["docket"]))


@pytest.mark.parametrize("vector", VECTORS["bad slips"], ids=lambda one: one["name"])
def test_a_bad_slip_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match=vector["refusal"]):
        Slip.decode(bytes.fromhex(vector["slip"]))


@pytest.mark.parametrize("vector", VECTORS["sealed"], ids=lambda one: one["content"])
def test_a_seed_is_what_it_was(vector: dict[str, Any]) -> None:
    seed, docket = Seed.decode(bytes.fromhex(vector["seed"])), Docket.decode(bytes.fromhex(vector["docket"]))
    assert make_seed(docket, bytes.fromhex(vector["slips"]), seed.servers, seed.fence) == seed
    assert [one.hex() for one in seed.uncles] == vector["uncles"][str(seed.depth)]
    assert seed.root == docket.root


@pytest.mark.parametrize("vector", VECTORS["bad seeds"], ids=lambda one: one["name"])
def test_a_bad_seed_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match=vector["refusal"]):
        Seed.decode(bytes.fromhex(vector["seed"]))
