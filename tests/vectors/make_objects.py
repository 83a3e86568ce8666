"""Writes objects.json beside itself: `PYTHONPATH=src python tests/vectors/make_objects.py`.

Large objects (docs/formats/object.md): where content is cut, what is sealed, dockets and references; and what is
refused, with words of the refusal. Content is the first bytes of BLAKE3's output for a name. Nothing is random, so a
second run writes the same file, as long as zstd compresses as it did: only `opened` depends on that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blake3 import blake3

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.objects.cutting import cut_chunks, gear_table
from tallystick.objects.layout import (
    FIXED,
    GEAR,
    PLAIN,
    SLIP_BYTES,
    ZSTD,
    Docket,
    ObjectKey,
    Slip,
    slips_root,
)
from tallystick.objects.ranges import Seed
from tallystick.objects.sealing import ChunkSealer
from tallystick.objects.serving import make_seed

PATH = Path(__file__).parent / "objects.json"
SECRET, ENTROPY = b"a publisher's own secret, 32 byt", b"entropy of thirty-two bytes here"
DEPTHS = (0, 1, 2, 3)
SERVERS, FENCE = ("aa" * 16, "bb" * 16, "cc" * 16), 7
WORDS = b"zero trust, " * 400


def content(name: str, length: int) -> bytes:
    return blake3(name.encode()).digest(length=length)


def ends(data: bytes, cut: int, target: int) -> list[int]:
    found, at = [], 0
    for chunk in cut_chunks([data], cut, target):
        at += len(chunk)
        found.append(at)
    return found


def uncles(slips: bytes, depth: int) -> list[bytes]:
    count = len(slips) // SLIP_BYTES
    return [slips_root(slips[low * SLIP_BYTES : high * SLIP_BYTES]) for low, high in merkle.cut(count, depth)]


def sealed(name: str, length: int, cut: int) -> dict[str, Any]:
    data = content(name, length)
    key = ObjectKey.draw(SECRET, ENTROPY, blake3(data).digest(), cut, 4096, 0)
    sealer = ChunkSealer(key, 0)
    chunks = b"".join(sealer.seal(chunk) for chunk in cut_chunks([data], cut, 4096))
    lengths = sealer.count, sealer.plain_length, sealer.sealed_length
    docket = Docket(cut, 4096, PLAIN, *lengths, slips_root(sealer.slips))
    return {
        "content": name,
        "length": length,
        "key": key.key.hex(),
        "docket": docket.encode().hex(),
        "root": docket.root.hex(),
        "slips": bytes(sealer.slips).hex(),
        "chunks blake3": blake3(chunks).hexdigest(),
        "seed": make_seed(docket, sealer.slips, SERVERS, FENCE).encode().hex(),
        "uncles": {str(depth): [one.hex() for one in uncles(bytes(sealer.slips), depth)] for depth in DEPTHS},
    }


def opened() -> dict[str, Any]:
    """One chunk that zstd made shorter, and one that it did not."""
    key = ObjectKey(content("key", 32))
    sealer = ChunkSealer(key)
    chunks = sealer.seal(WORDS) + sealer.seal(content("short", 100))
    return {
        "key": key.key.hex(),
        "slips": bytes(sealer.slips).hex(),
        "chunks": chunks.hex(),
        "root": slips_root(sealer.slips).hex(),
        "plain blake3": blake3(WORDS + content("short", 100)).hexdigest(),
    }


DOCKET = Docket(GEAR, 4096, ZSTD, 3, 10_000, 9_000, content("root", 32))
SLIP = Slip(content("sealed", 32), 4112, 4096, content("plain", 32))


def bad_dockets() -> dict[str, tuple[bytes, str]]:
    def changed(change: Callable[[list[Any]], object]) -> bytes:
        value = wire.decode(DOCKET.encode(), "docket")
        change(value)
        return wire.encode(value)

    def put(place: int, value: object) -> bytes:
        return changed(lambda fields: fields.__setitem__(place, value))

    return {
        "another version": (put(0, 2), "version 1 expected"),
        "a cut that is none": (put(1, 2), "an integer from 0 to 1"),
        "chunks of no power of two": (put(2, 5000), "a power of two"),
        "chunks too small": (put(2, 2048), "an integer from 4096"),
        "no chunk": (put(4, 0), "an integer from 1"),
        "too many chunks": (put(4, (1 << 20) + 1), "an integer from 1"),
        "bytes for fewer chunks": (put(5, 2048), "are not 3 chunks"),
        "bytes for more chunks": (put(5, 3 * 16_384 + 1), "are not 3 chunks"),
        "more sealed than plain and tags": (put(6, 10_049), "sealed bytes for"),
        "less sealed than tags": (put(6, 47), "sealed bytes for"),
        "a short root": (put(7, bytes(31)), "expected 32 bytes"),
        "a field more": (changed(lambda fields: fields.append(0)), "an array of 8 fields"),
        "a byte behind it": (DOCKET.encode() + b"\x00", "docket"),
        "longer than any": (bytes(201), "at most 200"),
    }


def bad_slips() -> dict[str, tuple[bytes, str]]:
    return {
        "a byte short": (SLIP.encode()[:-1], "expected 72 bytes"),
        "a chunk larger than any": (SLIP._replace(plain_length=(512 << 10) + 1).encode(), "at most 524288"),
        "less sealed than a tag": (SLIP._replace(sealed_length=15).encode(), "sealed bytes for"),
        "more sealed than plain and tag": (SLIP._replace(sealed_length=4113).encode(), "sealed bytes for"),
    }


def bad_seeds() -> dict[str, tuple[bytes, str]]:
    root, layer, servers = content("root", 32), content("uncles", 96), ["a", "b"]

    def seed(*fields: object) -> bytes:
        return wire.encode([1, *fields])

    assert Seed.decode(seed(root, 7, 2, layer, servers, b"\0\1\0")).fence == 7
    return {
        "another version": (wire.encode([2, root, 7, 2, layer, servers, b"\0\1\0"]), "version 1 expected"),
        "a short root": (seed(root[:-1], 7, 2, layer, servers, b"\0\1\0"), "expected 32 bytes"),
        "too deep": (seed(root, 7, 11, layer, servers, b"\0\1\0"), "an integer from 0 to 10"),
        "a piece of an uncle": (seed(root, 7, 2, layer + b"x", servers, b"\0\1\0"), "not one server for each uncle"),
        "an uncle without a server": (seed(root, 7, 2, layer, servers, b"\0\1"), "not one server for each uncle"),
        "a server that is not there": (seed(root, 7, 2, layer, servers, b"\0\1\2"), "not one server for each uncle"),
        "no server": (seed(root, 7, 2, b"", [], b""), "an array of 1 to 64 items"),
        "too many servers": (seed(root, 7, 2, layer, ["a"] * 65, b"\0\1\0"), "an array of 1 to 64 items"),
        "a fence below any": (seed(root, -1, 2, layer, servers, b"\0\1\0"), "an integer from 0"),
        "longer than any": (bytes(65_537), "at most 65536"),
    }


def main() -> None:
    cuts = [("cutting", 100_000, cut, target) for cut in (FIXED, GEAR) for target in (4096, 16_384)]
    made = {
        "about": "large objects, format version 1: docs/formats/object.md; content is BLAKE3's output for a name",
        "gear table blake3": blake3(gear_table().astype("<u8").tobytes()).hexdigest(),
        "cuts": [
            {
                "content": name,
                "length": length,
                "cut": cut,
                "target": target,
                "ends": ends(content(name, length), cut, target),
            }
            for name, length, cut, target in cuts
        ],
        "secret": SECRET.hex(),
        "entropy": ENTROPY.hex(),
        "sealed": [sealed("empty", 0, FIXED), sealed("one chunk", 100, GEAR), sealed("image", 45_000, GEAR)],
        "opened": opened(),
        "bad dockets": [
            {"name": name, "docket": data.hex(), "refusal": words} for name, (data, words) in bad_dockets().items()
        ],
        "bad slips": [
            {"name": name, "slip": data.hex(), "refusal": words} for name, (data, words) in bad_slips().items()
        ],
        "bad seeds": [
            {"name": name, "seed": data.hex(), "refusal": words} for name, (data, words) in bad_seeds().items()
        ],
    }
    PATH.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
