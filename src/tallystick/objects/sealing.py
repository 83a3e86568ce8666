"""Chunks: sealing them one after the other, and opening one with its slip.

Threat: a bomb, a few bytes that claim or become far more. Invariant: a slip bounds what a chunk may become, the layout
bounds what a slip may say, and the decompressor is given room for exactly that; what does not fill it is refused. That
is the author's doing, or that of somebody with another key: what a server sends has been held to its slip before.
"""

from __future__ import annotations

from typing import Any

from blake3 import blake3

from tallystick.crypto.symmetric import Buffer
from tallystick.errors import CannotOpen
from tallystick.later import pa
from tallystick.objects.layout import ObjectKey, Slip

LEVEL = 3  # of zstd; who seals once for a fleet may take 19


class ChunkSealer:
    """Seals the chunks of one object, in order. A level of 0 compresses nothing."""

    def __init__(self, key: ObjectKey, level: int = LEVEL) -> None:
        self._key, self._cipher = key, key.cipher()
        self._codec: Any = pa.Codec("zstd", level) if level else None
        self.count = self.plain_length = self.sealed_length = 0
        self.slips = bytearray()

    def seal(self, plain: Buffer) -> bytes:
        """The next chunk, sealed; its slip is added to `slips`."""
        packed: Buffer = plain
        if self._codec is not None and len(plain):
            shorter = self._codec.compress(plain, asbytes=True)
            packed = shorter if len(shorter) < len(plain) else plain
        sealed = self._cipher.seal(self.count, packed)
        slip = Slip(blake3(sealed).digest(), len(sealed), len(plain), self._key.plain_hash(plain))
        self.slips += slip.encode()
        self.count += 1
        self.plain_length += len(plain)
        self.sealed_length += len(sealed)
        return sealed


class ChunkOpener:
    """Opens the chunks of one object, in any order."""

    def __init__(self, key: ObjectKey) -> None:
        self._key, self._cipher = key, key.cipher()

    def open(self, number: int, slip: Slip, sealed: Buffer, what: str = "") -> bytes:
        """The plain chunk. Raises `CannotOpen`, which is the author's doing or the key's: whoever got `sealed` from a
        server has held it to its slip before (`Slip.check`), and named the sender."""
        what = what or f"chunk {number}"
        try:
            plain = self._cipher.open(number, sealed)
            if slip.compressed:
                plain = pa.Codec("zstd").decompress(plain, slip.plain_length, asbytes=True)
        except (CannotOpen, pa.ArrowException, OSError, ValueError):
            raise CannotOpen(f"{what}: cannot open") from None
        if len(plain) != slip.plain_length or self._key.plain_hash(plain) != slip.plain_hash:
            raise CannotOpen(f"{what}: cannot open")
        return plain
