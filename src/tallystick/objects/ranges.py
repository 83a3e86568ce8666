"""What is asked of a server and what it answers: a range of one file, nothing else.

On HTTP an ask is a GET with a byte range, and the answer its body; between roles both are bytes of their own. A server
has two files of an object and, as long as it is the seeder, a third: the seed. It holds the uncle layer, which the root
proves, and who serves which subtree, which is advice: whoever follows it still checks every byte, and asks nobody of
whom it has not heard elsewhere. The fence is the number of the seeder's lease, so that the word of one whose lease
ended does not stand against that of its successor.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from tallystick import wire
from tallystick.crypto.merkle import HASH_BYTES, cut
from tallystick.crypto.symmetric import Buffer
from tallystick.errors import Forged, Malformed
from tallystick.objects.layout import SLIP_BYTES, Docket

ASK_BYTES_MAX = 1 << 20  # all that a server is asked for at a time, so all that a lie can waste
SUBTREE_BYTES_MAX = ASK_BYTES_MAX // 2  # of slips: one request, where two are under way
SERVERS_MAX = 64
DEPTH_MAX = 10  # the largest object has 2**20 slips; a subtree's fit into one request at depth 8
SEED_BYTES_MAX = 64 * 1024  # 2**10 uncles, and the names of all servers

_NAME_MAX = 128
_ANSWER = struct.Struct(">BQ?")  # version, number, whether the server has it


def _name(fields: wire.Fields) -> str:
    return fields.text(_NAME_MAX)


@dataclass(frozen=True)
class RangeAsk:
    """`length` bytes of a file from `first` on; the answer repeats the number."""

    number: wire.Number
    file: Annotated[str, _name]
    first: wire.Number
    length: Annotated[int, wire.number(ASK_BYTES_MAX, at_least=1)]

    def encode(self) -> bytes:
        return wire.encode([1, *wire.listed(self)])

    @classmethod
    def decode(cls, data: Any) -> RangeAsk:
        """Raises `Malformed`."""
        if not isinstance(data, bytes) or len(data) > 256:
            raise Malformed("ask: expected at most 256 bytes")
        return wire.read_as(cls, data, "ask")


class RangeAnswer(NamedTuple):
    """The bytes that were asked for, or None from a server that does not have them."""

    number: int
    data: Buffer | None

    def encode(self) -> bytes:
        head = _ANSWER.pack(1, self.number, self.data is not None)
        return head if self.data is None else b"".join((head, self.data))

    @classmethod
    def decode(cls, data: Any) -> RangeAnswer:
        """Raises `Malformed`. The data are a view into the message, which may be long; a driver that read them off a
        connection may hand the answer over as it is."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, bytes) or not _ANSWER.size <= len(data) <= _ANSWER.size + ASK_BYTES_MAX:
            raise Malformed(f"answer: expected a head and at most {ASK_BYTES_MAX} bytes")
        version, number, has = _ANSWER.unpack_from(data)
        if version != 1 or (not has and len(data) > _ANSWER.size):
            raise Malformed("answer: another version, or bytes where there are none")
        return cls(number, memoryview(data)[_ANSWER.size :] if has else None)


@dataclass(frozen=True)
class Seed:
    """What the seeder says: the uncle layer at a depth, and which server begins with which subtree."""

    root: bytes
    fence: int
    depth: int
    uncles: tuple[bytes, ...]
    servers: tuple[str, ...]
    dealt: bytes  # for each subtree the place of its server among `servers`

    def encode(self) -> bytes:
        return wire.encode(
            [1, self.root, self.fence, self.depth, b"".join(self.uncles), list(self.servers), self.dealt]
        )

    @classmethod
    def decode(cls, data: Buffer) -> Seed:
        """Raises `Malformed`."""
        if len(data) > SEED_BYTES_MAX:
            raise Malformed(f"seed: {len(data)} bytes, at most {SEED_BYTES_MAX} are allowed")
        fields = wire.Fields.parse(bytes(data), "seed", 7)
        fields.version(1)
        root, fence, depth = fields.octets(HASH_BYTES), fields.number(), fields.number(DEPTH_MAX)
        layer = fields.octets(at_most=HASH_BYTES << DEPTH_MAX)
        servers = tuple(_name(one) for one in fields.each(SERVERS_MAX, at_least=1))
        dealt = fields.octets(at_most=1 << DEPTH_MAX)
        uncles = tuple(layer[at : at + HASH_BYTES] for at in range(0, len(layer), HASH_BYTES))
        if len(dealt) != len(uncles) or any(place >= len(servers) for place in dealt):
            raise Malformed("seed: not one server for each uncle")
        return cls(root, fence, depth, uncles, servers, dealt)


def seed_file(root: bytes) -> str:
    return f"{root.hex()}.seed"


def depth_for(docket: Docket, servers: int) -> int:
    """⌈log₂ m⌉ for m servers (000, figure 1), and deeper where the slips of a subtree do not fit into one request."""
    depth = (min(servers, docket.count) - 1).bit_length()
    while max(end - first for first, end in cut(docket.count, depth)) * SLIP_BYTES > SUBTREE_BYTES_MAX:
        depth += 1
    return depth


@contextmanager
def sender_s_fault() -> Iterator[None]:
    """Let bytes without any form be a lie as well: `Forged`."""
    try:
        yield
    except Malformed as error:
        raise Forged(str(error)) from error
