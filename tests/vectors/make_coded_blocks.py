"""Writes coded_blocks.json beside itself: `python tests/vectors/make_coded_blocks.py`.

Coded bodies (docs/formats/overlay.md, "Coded blocks"): good ones with their header's numbers and all their blocks, bad
blocks with the error and words of the refusal. Nothing is random, so a second run writes the same file.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from tallystick import wire
from tallystick.crypto.blocks import body_root
from tallystick.crypto.coding import CodedBody, encode

PATH = Path(__file__).parent / "coded_blocks.json"
PARCEL = sha256(b"parcel").digest()
GOOD = {
    "two of three": (b"a sealed body", 2, 3),
    "three of five": (bytes(range(30)), 3, 5),
    "a body shorter than its blocks are many": (b"\xff", 4, 6),
    "copies": (b"small", 1, 3),
    "pieces alone": (b"no block to spare", 3, 3),
}


def bad() -> dict[str, tuple[bytes, str, str]]:
    """Each a change of block 2 of "two of three": its bytes, the error, words of it."""
    block = encode(*GOOD["two of three"]).block(PARCEL, 2)

    def changed(at: int, value: Any) -> bytes:
        fields = [1, PARCEL, 2, block.data, list(block.path)]
        fields[at] = value
        return wire.encode(fields)

    flipped = bytes([block.data[0] ^ 1]) + block.data[1:]
    return {
        "another version": (changed(0, 2), "Malformed", "version 1 expected"),
        "a short name": (changed(1, PARCEL[:31]), "Malformed", "expected 32 bytes"),
        "an index beyond all": (changed(2, 64), "Malformed", "an integer from 0 to 63"),
        "a path beyond all": (changed(4, [PARCEL] * 7), "Malformed", "an array of 0 to 6"),
        "a short hash": (changed(4, [PARCEL[:31]]), "Malformed", "expected 32 bytes"),
        "a byte behind it": (block.encoded + b"\x00", "Malformed", "coded block"),
        "one bit": (changed(3, flipped), "Forged", "coded block 2 of 3"),
        "one byte less": (changed(3, block.data[:-1]), "Forged", "coded block 2 of 3: expected 7 bytes"),
        "another index": (changed(2, 1), "Forged", "leaf 1 in a tree of 3"),
        "an index beyond its own": (changed(2, 3), "Forged", "leaf 3 in a tree of 3"),
        "no path": (changed(4, []), "Forged", "hashes too few"),
        "a hash too many": (changed(4, [*block.path, PARCEL]), "Forged", "hashes too many"),
    }


def shown(body: bytes, coded: CodedBody) -> dict[str, Any]:
    numbers = coded.coding
    return {
        "body": body.hex(),
        "body_root": body_root(body).hex(),
        "coding": [numbers.code, numbers.needed, numbers.total, numbers.block_bytes, numbers.root.hex()],
        "blocks": [coded.block(PARCEL, index).encoded.hex() for index in range(numbers.total)],
    }


def main() -> None:
    made = {
        "good": {name: shown(case[0], encode(*case)) for name, case in GOOD.items()},
        "bad": {
            name: {"block": data.hex(), "error": error, "words": words} for name, (data, error, words) in bad().items()
        },
    }
    PATH.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
