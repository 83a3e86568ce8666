"""Salted leaf hashes of a batch's records, and the Merkle root over them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import Misuse
from tallystick.record.batch import Batch
from tallystick.record.rows import encode_rows

SALT_BYTES = 16
EMPTY_ROOT = hashlib.sha256(b"").digest()  # RFC 6962, section 2.1


def leaf_hashes(batch: Batch, salts: Any) -> NDArray[np.uint8]:
    """Leaf i = SHA-256(0x00 ‖ salt i ‖ row i), as an array of (rows, 32) bytes; `salts` is a buffer of 16 ·
    rows bytes.
    """
    return np.frombuffer(b"".join(_leaves(batch, salts)), np.uint8).reshape(-1, 32)


def leaf_root(batch: Batch, salts: Any) -> bytes:
    """The RFC 6962 root over the batch's leaf hashes."""
    return _root(_leaves(batch, salts))


def engine() -> str:
    """Which engine hashes leaves on this machine."""
    return "hashlib"


def _leaves(batch: Batch, salts: Any) -> list[bytes]:
    view = memoryview(salts).cast("B")
    if len(view) != SALT_BYTES * batch.rows:
        raise Misuse(f"{batch.rows} records need {SALT_BYTES * batch.rows} bytes of salts, found {len(view)}")
    return [
        hashlib.sha256(b"\0" + bytes(view[SALT_BYTES * i : SALT_BYTES * (i + 1)]) + row).digest()
        for i, row in enumerate(encode_rows(batch.data))
    ]


def _root(level: list[bytes]) -> bytes:
    """Pairs from the left, an odd one carried up unchanged: the same tree as RFC 6962's split at powers of
    two.
    """
    if not level:
        return EMPTY_ROOT
    while len(level) > 1:
        odd = level[len(level) & ~1 :]
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [hashlib.sha256(b"\1" + left + right).digest() for left, right in pairs] + odd
    return level[0]
