"""Named hashes: SHA-256 with the kind of thing in front, so that no hash of one kind passes for another."""

from __future__ import annotations

from hashlib import sha256


def named_hash(name: str, data: bytes) -> bytes:
    """SHA-256(name ‖ 0x00 ‖ data); `name` is ASCII without a zero byte, so no two (name, data) collide."""
    return sha256(name.encode("ascii") + b"\x00" + data).digest()
