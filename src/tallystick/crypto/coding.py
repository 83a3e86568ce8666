"""The one erasure code: a body as `total` blocks of equal size, any `needed` of which give it back.

Threats: a relay that alters a block, or passes one block off as another; a publisher whose blocks are no code word, so
that two readers would decode two bodies; numbers in a header that ask for more memory or work than the body is worth.
So the signed header holds a tree's root over all coded blocks beside the body's own, and:

    a block       is taken only with its path to the root, at its own index, in the exact size
    a body        is given out only if it has the header's `body_root`, whichever blocks it came from
    a block anew  is given out only if all blocks of that body have the header's root
    the numbers   follow from one another: block bytes are the body's divided by `needed`, rounded up

An assembly keeps `needed` blocks: the body's bytes and less than `needed` bytes of padding. Decoding is at most
`needed` passes over the body. The code is systematic (the first blocks are the body's own bytes) and hides nothing:
bodies are ciphertext already. The arithmetic is that of `zfec`; docs/formats/overlay.md writes it out. Block hashes are
those of `crypto/blocks.py`: BLAKE3 in the shape of RFC 6962.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tallystick import wire
from tallystick.crypto.blocks import Coding, block_hash, block_node, block_proof, blocks_root, body_root
from tallystick.crypto.merkle import HASH_BYTES, fold_inclusion
from tallystick.errors import Forged, Malformed, Misuse, Unavailable

CODE_1 = 1  # Reed–Solomon over GF(256), as zfec computes it
TOTAL_MAX = 64  # nine blocks for each of seven relays; a body of 64 MiB decodes in some seconds
BLOCK_BYTES_MAX = 1 << 24  # as in the header: a body of 64 MiB needs at least four blocks
CODED_BYTES_MAX = 1 << 28  # of all blocks together: a body of 64 MiB grows to four times its size at most
PATH_HASHES_MAX = 6  # in a tree of 64


@dataclass(frozen=True)
class CodedBlock:
    """One block on its way: the parcel's name says under which header to check it, and its path ties it there."""

    parcel: bytes
    index: int
    data: bytes
    path: tuple[bytes, ...]

    @property
    def encoded(self) -> bytes:
        return wire.encode([1, self.parcel, self.index, self.data, list(self.path)])

    @classmethod
    def decode(cls, data: bytes) -> CodedBlock:
        """Raises `Malformed`."""
        if len(data) > BLOCK_BYTES_MAX + 1024:
            raise Malformed(f"coded block: {len(data)} bytes, at most {BLOCK_BYTES_MAX + 1024} expected")
        fields = wire.Fields.parse(data, "coded block", 5)
        fields.version(1)
        parcel, index = fields.octets(32), fields.number(TOTAL_MAX - 1)
        block = fields.octets(at_most=BLOCK_BYTES_MAX)
        return cls(parcel, index, block, tuple(one.octets(HASH_BYTES) for one in fields.each(PATH_HASHES_MAX)))

    def verify(self, coding: Coding) -> None:
        """Raise `Forged` unless this is the block of its index under the header's root."""
        what = f"coded block {self.index} of {coding.total}"
        if len(self.data) != coding.block_bytes:
            raise Forged(f"{what}: expected {coding.block_bytes} bytes, found {len(self.data)}")
        leaf = block_hash(self.data)
        if fold_inclusion(leaf, self.index, coding.total, self.path, block_node) != coding.root:
            raise Forged(f"{what}: not the block that the publisher signed")


@dataclass(frozen=True)
class CodedBody:
    """All blocks of a body, and the field `coding` of its header."""

    coding: Coding
    blocks: tuple[bytes, ...]
    hashes: tuple[bytes, ...]

    def block(self, parcel: bytes, index: int) -> CodedBlock:
        return CodedBlock(parcel, index, self.blocks[index], tuple(block_proof(self.hashes, index)))


def encode(body: bytes, needed: int, total: int) -> CodedBody:
    """Code a body. Raises `Misuse` for numbers that `check` would refuse."""
    block_bytes = -(-len(body) // max(needed, 1))
    if wrong := _wrong(len(body), needed, total, block_bytes):
        raise Misuse(f"coding: {wrong}")
    padded = body.ljust(needed * block_bytes, b"\0")
    pieces = [padded[at : at + block_bytes] for at in range(0, len(padded), block_bytes)]
    blocks = tuple(map(bytes, _zfec().Encoder(needed, total).encode(pieces)))
    hashes = tuple(map(block_hash, blocks))
    return CodedBody(Coding(CODE_1, needed, total, block_bytes, blocks_root(hashes)), blocks, hashes)


def check(coding: Coding, body_bytes: int) -> None:
    """Raise `Malformed` for a header's numbers that no honest publisher writes, before any memory is spent on them."""
    if coding.code != CODE_1:
        raise Malformed(f"coding: unknown code {coding.code}", reason="version")
    if wrong := _wrong(body_bytes, coding.needed, coding.total, coding.block_bytes):
        raise Malformed(f"coding: {wrong}")


class Assembly:
    """Verified blocks of one parcel, until there are enough of them."""

    def __init__(self, coding: Coding, body_bytes: int, root: bytes) -> None:
        """`body_bytes` and `root` are the header's own, of the body. Raises `Malformed`."""
        check(coding, body_bytes)
        self._coding, self._body_bytes, self._body_root = coding, body_bytes, root
        self._held: dict[int, bytes] = {}

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._held)

    @property
    def enough(self) -> bool:
        return len(self._held) >= self._coding.needed

    def add(self, block: CodedBlock) -> bool:
        """Take a block and return whether there are enough. Ignores one that is there already or comes too late. Raises
        `Forged`, naming the block."""
        if block.index not in self._held and not self.enough:
            block.verify(self._coding)
            self._held[block.index] = block.data
        return self.enough

    def body(self) -> bytes:
        """The body, whichever blocks are here. Raises `Unavailable` while there are too few, and `Forged` where the
        publisher signed blocks of something else."""
        coding, held = self._coding, self._held
        if not self.enough:
            raise Unavailable(f"coded body: {len(held)} blocks of {coding.needed} that are needed")
        pieces = _zfec().Decoder(coding.needed, coding.total).decode([*held.values()], [*held])
        body = b"".join(pieces)[: self._body_bytes]
        if body_root(body) != self._body_root:
            raise Forged("coded body: its blocks are as signed, and give another body than the one signed")
        return body

    def coded(self) -> CodedBody:
        """All blocks anew, for a relay whose own did not come. Raises as `body` does, and `Forged` where the signed
        blocks are no code word."""
        coded = encode(self.body(), self._coding.needed, self._coding.total)
        if coded.coding != self._coding:
            raise Forged("coded body: the signed blocks are not those of the signed body")
        return coded


def _wrong(body_bytes: int, needed: int, total: int, block_bytes: int) -> str:
    """What is wrong with these numbers, or nothing."""
    if not 1 <= needed <= total <= TOTAL_MAX:
        return f"{needed} of {total} blocks, expected 1 ≤ needed ≤ total ≤ {TOTAL_MAX}"
    if body_bytes < 1 or block_bytes != -(-body_bytes // needed):
        return f"{block_bytes} bytes a block, which is not a body of {body_bytes} over {needed}"
    if block_bytes > BLOCK_BYTES_MAX or total * block_bytes > CODED_BYTES_MAX:
        return f"{total} blocks of {block_bytes} bytes, at most {BLOCK_BYTES_MAX} each and {CODED_BYTES_MAX} in all"
    return ""


def _zfec() -> Any:
    """The library, on first use: who carries nothing coded need not have it."""
    try:
        import zfec
    except ImportError as error:
        raise Misuse("coded blocks need the library zfec", hint="pip install 'tallystick[overlay]'") from error
    return zfec
