"""Blocks: `[1, height, time ms, first transaction, transactions, tree size, tree root, state root, previous hash]`.

A block names the block before it, so the newest one vouches for all; its time never falls. Block 0 holds no
transaction: its state root is that of the genesis, which is the first trust file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tallystick import wire
from tallystick.crypto.hashes import named_hash
from tallystick.trust.signed import Fields

NO_PREVIOUS = bytes(32)


@dataclass(frozen=True)
class Block:
    height: int
    time_ms: int
    first: int  # number in the tree of its first transaction
    count: int  # its transactions
    size: int  # of the tree after it
    root: bytes
    state_root: bytes
    previous: bytes  # hash of the block before

    @cached_property
    def encoded(self) -> bytes:
        return wire.encode(
            [
                *(1, self.height, self.time_ms, self.first, self.count, self.size),
                *(self.root, self.state_root, self.previous),
            ]
        )

    @cached_property
    def hash(self) -> bytes:
        return named_hash("tallystick block 1", self.encoded)

    @classmethod
    def decode(cls, data: bytes) -> Block:
        """Raises `Malformed`."""
        fields = Fields.parse(data, "block", 9)
        fields.version(1)
        height, time_ms, first, count, size = (fields.number() for _ in range(5))
        return cls(height, time_ms, first, count, size, fields.octets(32), fields.octets(32), fields.octets(32))
