"""What an object looks like: chunks, the slips that name them, the docket and the reference. docs/formats/object.md.

    plain bytes ─ cut ─► chunks ─ zstd, if that is shorter ─ AES-256-GCM, the number its nonce ─► sealed chunks
    sealed chunk ─► slip ─ BLAKE3 ─► leaf ─ tree of crypto/blocks.py ─► root

Threat: a server that holds neither key nor trust, and may send anything. Invariant: from the root alone, which comes
from signed metadata or a sealed record and never from a server, follow the uncle layer, from it the slips, from a slip
the sealed chunk, and from the key the plain one; each step is checked before the next is taken, and an error says which
uncle layer, slips or chunk it was. The number of leaves needs no word of its own under the root, since leaves and nodes
are hashed under different first bytes.

GCM opens one ciphertext under two keys. Here the slip holds a keyed hash of the plain chunk, under a key that comes
from the object's: two keys for one root would be a collision. The hash is keyed so that a server cannot try whether an
object is one that it knows, and knows nothing of a chunk's place, so that a holder of the key finds chunks that it has
already in an older image (000, "OTA business": patches).

Bounds: a chunk, a count and a length that nobody of ours would write are refused before anything is fetched for them.
An object has at least one chunk; that of an empty object is empty.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from blake3 import blake3

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.blocks import block_hash, blocks_root
from tallystick.crypto.symmetric import KEY_BYTES, TAG_BYTES, Buffer, NumberedCipher, derive
from tallystick.errors import Forged, Malformed, Misuse

FIXED, GEAR = 0, 1  # how the bytes were cut
PLAIN, ZSTD = 0, 1  # whether chunks were compressed

TARGET_MIN, TARGET_MAX = 4 * 1024, 128 * 1024  # bytes of a chunk on average
TARGET = 64 * 1024
SPREAD = 4  # a chunk that a gear hash cut has from a quarter to four times the target
CHUNK_BYTES_MIN = TARGET_MIN // SPREAD  # of every chunk but the last, so that a length bounds the count
CHUNK_BYTES_MAX = TARGET_MAX * SPREAD  # what is held in memory for one; sealed it fits into a request of 1 MiB
COUNT_MAX = 1 << 20  # chunks: 64 GiB of them, and 72 MiB of slips
LENGTH_MAX = COUNT_MAX * CHUNK_BYTES_MAX
DOCKET_BYTES_MAX = 200

_SLIP = struct.Struct(">32sII32s")
SLIP_BYTES = _SLIP.size  # 72


class Slip(NamedTuple):
    """A leaf: what a sealed chunk hashes to, and what is inside, for whoever has the key."""

    sealed_hash: bytes
    sealed_length: int
    plain_length: int
    plain_hash: bytes

    def encode(self) -> bytes:
        return _SLIP.pack(*self)

    @classmethod
    def decode(cls, data: Buffer, what: str = "slip") -> Slip:
        """Raises `Malformed`, also for lengths that no chunk has."""
        if len(data) != SLIP_BYTES:
            raise Malformed(f"{what}: expected {SLIP_BYTES} bytes, found {len(data)}")
        slip = cls(*_SLIP.unpack(data))
        if slip.plain_length > CHUNK_BYTES_MAX:
            raise Malformed(f"{what}: a chunk of {slip.plain_length} bytes, at most {CHUNK_BYTES_MAX} are allowed")
        if not TAG_BYTES <= slip.sealed_length <= slip.plain_length + TAG_BYTES:
            raise Malformed(f"{what}: {slip.sealed_length} sealed bytes for {slip.plain_length} plain ones")
        return slip

    @property
    def compressed(self) -> bool:
        """A chunk is compressed if, and only if, that makes it shorter: nothing else says so."""
        return self.sealed_length < self.plain_length + TAG_BYTES

    def check(self, sealed: Buffer, what: str) -> None:
        """Raise `Forged` unless this is the sealed chunk."""
        if len(sealed) != self.sealed_length:
            raise Forged(f"{what}: expected {self.sealed_length} sealed bytes, found {len(sealed)}")
        if blake3(sealed).digest() != self.sealed_hash:
            raise Forged(f"{what}: not the sealed chunk that its slip names")


class Slips(Sequence[Slip]):
    """Slips from number `first` on, and where each chunk begins, plain and sealed; behind the last, the lengths.

    They are kept as they came: an object of 2 GB has 33,000.
    """

    def __init__(self, data: Buffer, first: int = 0, docket: Docket | None = None) -> None:
        """Raises `Malformed`, naming the one, also for lengths that the docket, or none, allows. Without a docket they
        are all slips of an object."""
        self._data, self._first = memoryview(data).cast("B"), first
        if len(self._data) % SLIP_BYTES:
            raise Malformed(f"slips from {first} on: {len(self._data)} bytes are not a multiple of {SLIP_BYTES}")
        least, most = (docket.chunk_bytes_min, docket.chunk_bytes_max) if docket else (CHUNK_BYTES_MIN, LENGTH_MAX)
        last = docket.count - 1 if docket else len(self) - 1
        self.plain, self.sealed = array("Q", [0]), array("Q", [0])
        for number, slip in enumerate(self, first):
            if not (least if number < last else 0) <= slip.plain_length <= most:
                raise Malformed(f"slip {number}: a chunk of {slip.plain_length} bytes, which is not allowed there")
            self.plain.append(self.plain[-1] + slip.plain_length)
            self.sealed.append(self.sealed[-1] + slip.sealed_length)

    def __len__(self) -> int:
        return len(self._data) // SLIP_BYTES

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < len(self):
            raise IndexError(place)
        return Slip.decode(self._data[place * SLIP_BYTES : (place + 1) * SLIP_BYTES], f"slip {self._first + place}")


def slips_root(data: Buffer) -> bytes:
    """The root over encoded slips: of a whole object, or of a subtree, which makes it an uncle."""
    view = memoryview(data).cast("B")
    return blocks_root([block_hash(view[at : at + SLIP_BYTES]) for at in range(0, len(view), SLIP_BYTES)])


@dataclass(frozen=True)
class Docket:
    """What signed metadata says of an object: enough to fetch and check it from anybody, and no key."""

    cut: Annotated[int, wire.number(GEAR)]
    target_bytes: Annotated[int, wire.number(TARGET_MAX, TARGET_MIN)]
    compression: Annotated[int, wire.number(ZSTD)]
    count: Annotated[int, wire.number(COUNT_MAX, 1)]
    plain_length: Annotated[int, wire.number(LENGTH_MAX)]
    sealed_length: Annotated[int, wire.number(LENGTH_MAX + COUNT_MAX * TAG_BYTES)]
    root: wire.Octets32

    def __post_init__(self) -> None:
        """Raises `Malformed` where the numbers contradict one another."""
        if self.target_bytes & (self.target_bytes - 1):
            raise Malformed(f"docket: chunks of {self.target_bytes} bytes, a power of two is expected")
        # All chunks but the last have their least length, and the last has a byte, unless it is the only one.
        least = (self.count - 1) * self.chunk_bytes_min + (self.count > 1)
        if not least <= self.plain_length <= self.count * self.chunk_bytes_max:
            raise Malformed(f"docket: {self.plain_length} bytes are not {self.count} chunks")
        most = self.plain_length + self.count * TAG_BYTES
        if not (self.count * TAG_BYTES if self.compression else most) <= self.sealed_length <= most:
            raise Malformed(f"docket: {self.sealed_length} sealed bytes for {self.plain_length} plain ones")

    @property
    def chunk_bytes_min(self) -> int:
        """Of every chunk but the last."""
        return self.target_bytes // SPREAD if self.cut == GEAR else self.target_bytes

    @property
    def chunk_bytes_max(self) -> int:
        return self.target_bytes * SPREAD if self.cut == GEAR else self.target_bytes

    def encode(self) -> bytes:
        return wire.encode([1, *wire.listed(self)])

    @classmethod
    def decode(cls, data: bytes) -> Docket:
        """Raises `Malformed`."""
        if len(data) > DOCKET_BYTES_MAX:
            raise Malformed(f"docket: {len(data)} bytes, at most {DOCKET_BYTES_MAX} are allowed")
        return wire.read_as(cls, data, "docket")

    def check_uncles(self, depth: int, uncles: Sequence[bytes]) -> list[tuple[int, int]]:
        """The subtrees at this depth, as ranges of chunks. Raises `Forged` unless these are all their roots.

        Folding the layer pair by pair gives the root, whatever the size: a left child is complete, so its part of
        the layer is a power of two in length, and not shorter than the right one's.
        """
        subtrees = merkle.cut(self.count, depth)
        if len(uncles) != len(subtrees) or any(len(one) != len(self.root) for one in uncles):
            raise Forged(f"uncle layer: expected {len(subtrees)} hashes, found {len(uncles)}, or not hashes")
        if blocks_root(uncles) != self.root:
            raise Forged("uncle layer: gives another root")
        return subtrees

    def check_slips(self, first: int, end: int, uncle: bytes, data: Buffer) -> Slips:
        """The slips of the subtree `[first, end)`. Raises `Forged` unless `uncle` is their root.

        Raises `Malformed` where the object's own author wrote lengths that its docket does not allow.
        """
        if len(data) != (end - first) * SLIP_BYTES:
            raise Forged(f"slips {first} to {end - 1}: expected {(end - first) * SLIP_BYTES} bytes, found {len(data)}")
        if slips_root(data) != uncle:
            raise Forged(f"slips {first} to {end - 1}: not those of the subtree")
        return Slips(data, first, self)

    def check_lengths(self, slips: Slips) -> None:
        """Raise `Malformed` unless the slips of the whole object add up to what the docket says."""
        plain, sealed = slips.plain[-1], slips.sealed[-1]
        if (len(slips), plain, sealed) != (self.count, self.plain_length, self.sealed_length):
            raise Malformed(f"slips: {len(slips)} chunks of {plain} bytes, {sealed} sealed; the docket says otherwise")


@dataclass(frozen=True, repr=False)
class ObjectKey:
    """The key of one object. From it come the key of the cipher and that of the plain chunks' hashes."""

    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise Malformed(f"object key: expected {KEY_BYTES} bytes, found {len(self.key)}")

    @classmethod
    def draw(cls, secret: bytes, entropy: bytes, content: bytes, cut: int, target_bytes: int, level: int) -> ObjectKey:
        """A key for these chunks and no others, as parcels get their identifiers: a random source that repeats itself
        repeats a key only for the same content, cut and compressed in the same way, and then seals the same bytes.
        `content` is the hash of all of it, `level` that of zstd, or 0."""
        if len(entropy) < KEY_BYTES:
            raise Misuse(f"an object's key needs {KEY_BYTES} bytes of entropy, found {len(entropy)}")
        return cls(derive(secret, "tallystick object key 1", entropy, content, cut, target_bytes, level))

    @cached_property
    def _hash_key(self) -> bytes:
        return derive(self.key, "tallystick chunk hash 1")

    def cipher(self) -> NumberedCipher:
        return NumberedCipher(derive(self.key, "tallystick chunk key 1"))

    def plain_hash(self, plain: Buffer) -> bytes:
        """What the slip says of a plain chunk."""
        return bytes(blake3(plain, key=self._hash_key).digest())


# A reference as a column of a topic, as `Schema.parse` reads it: "vin string, clip " + REFERENCE_TYPE.
REFERENCE_TYPE = "struct<root binary not null, key binary not null, length int64 not null>"


@dataclass(frozen=True, repr=False)
class ObjectReference:
    """All that a reader needs: which object, its key and its length. It is as secret as the object."""

    root: bytes
    key: bytes
    length: int

    def __post_init__(self) -> None:
        if len(self.root) != 32 or len(self.key) != KEY_BYTES or not 0 <= self.length <= LENGTH_MAX:
            raise Malformed("reference: expected a root, a key of 32 bytes and a length")

    @property
    def name(self) -> str:
        """What servers know the object by."""
        return self.root.hex()

    def row(self) -> dict[str, bytes | int]:
        """The reference as a value of a struct column, whose type is `REFERENCE_TYPE`."""
        return {"root": self.root, "key": self.key, "length": self.length}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> ObjectReference:
        """Raises `Malformed`."""
        match [row.get(name) for name in ("root", "key", "length")]:
            case [bytes() | bytearray() as root, bytes() | bytearray() as key, int(length)]:
                return cls(bytes(root), bytes(key), length)
        raise Malformed("reference: expected a root, a key and a length")


def slips_file(root: bytes) -> str:
    return f"{root.hex()}.slips"


def chunks_file(root: bytes) -> str:
    return f"{root.hex()}.chunks"
