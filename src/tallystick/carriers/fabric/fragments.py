"""Fragments: a parcel as frames carry it, sealed whole, with nothing outside that lasts.

Threat: switches, and whoever reads their memory or their lines, who look for topics, lanes, permits and principals;
switches and hosts that alter, invent or repeat frames. A parcel's header has all of these names. So the parcel travels
under the topic's carrier key, together with the permits and locks that a carrier that stores nothing has to bring
along, as on the mesh, and unlike there not even a pseudonym or a publisher's key stands outside: a frame shows a handle
that was drawn for this parcel, numbers, and lengths. Each fragment is encrypted under a key of its own and has a tag,
so that who lacks the carrier key starts no reassembly.

Invariant: no two different plaintexts under one key. A fragment's key comes from the carrier key, its kind, handle and
index, and the handle from entropy and from all that the parcel's fragments say. What goes again goes as the same bytes.

What is cut into fragments, all of one length:

    flow (16) ‖ previous (16) ‖ front, body and tail bytes (4 each) ‖ front ‖ block hashes ‖ body ‖ tail ‖ 0x80 ‖ zeros

`flow` says along which label a repair is asked for, and `previous` is the handle before this one on the same flow, so
that one that was lost whole is missed. The front, with
the signed header, fits the first fragment for a parcel of one topic and group. Block hashes are the leaves of the
header's `body_root`: each block of 16 KiB verifies when it is complete (`reassembly.py`). The tail is wire [permits,
locks]. The whole is padded (Padmé), so lengths tell sizes within some per cent.

Parity: fragment i belongs to group i mod `groups`, and each group has one fragment more, the sum (XOR) of the others.
One loss in a group costs nothing, nor do as many losses in a row as there are groups. Left out: a code that mends
several losses in a group; those are asked for (`repair.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from typing import NamedTuple

from tallystick import wire
from tallystick.carriers.carrier import Pushed
from tallystick.crypto.blocks import block_hashes
from tallystick.crypto.symmetric import TAG_BYTES, decrypt, derive, encrypt
from tallystick.errors import CannotOpen, Malformed, Misuse
from tallystick.parcel.padding import padme
from tallystick.parcel.parcel import PARCEL_BYTES_MAX, front_bytes

VERSION = 1
HANDLE_BYTES = 16
COUNT_MAX = 8_192  # fragments of one parcel, without parity: 4 MiB at the smallest MTU
GROUP_MAX = 8  # fragments to one of parity, where there are up to 255 groups
GROUPS_MAX = 255
PAYLOAD_BYTES_MIN = 128  # what a frame must at least carry behind its route header
SEALED_BYTES_MAX = 8 * 1024 * 1024  # of all fragments together; each host has its own bound below it

_HEAD = struct.Struct("!BBH16sHHBB")
_LENGTHS = struct.Struct("!16s16sIII")
OVERHEAD_BYTES = _HEAD.size + TAG_BYTES
PREFIX_BYTES = _LENGTHS.size


class FragmentKind(IntEnum):
    PIECE = 1  # of a parcel
    REPAIR = 2  # a subscriber's word on which it lacks


@dataclass(frozen=True, slots=True)
class FragmentHead:
    """What stands outside, in the clear."""

    kind: FragmentKind
    handle: bytes
    index: int = 0
    count: int = 1  # fragments without parity
    groups: int = 0
    epoch: int = 0  # the last byte of the carrier key's epoch: the same for all topics

    def encode(self, sealed_bytes: int) -> bytes:
        numbers = self.index, self.count, self.groups, self.epoch
        return _HEAD.pack(VERSION, self.kind, sealed_bytes, self.handle, *numbers)

    @classmethod
    def decode(cls, payload: bytes) -> tuple[FragmentHead, int]:
        """The head, and how many sealed bytes follow it. Raises `Malformed`."""
        if len(payload) < OVERHEAD_BYTES:
            raise Malformed(f"fragment: {len(payload)} bytes, at least {OVERHEAD_BYTES} expected")
        version, kind, length, handle, index, count, groups, epoch = _HEAD.unpack_from(payload)
        if version != VERSION or kind not in (1, 2):
            raise Malformed(f"fragment: version {version}, kind {kind}")
        if not TAG_BYTES < length <= len(payload) - _HEAD.size:
            raise Malformed(f"fragment: {length} sealed bytes in a payload of {len(payload)}")
        if not 1 <= count <= COUNT_MAX or groups > count or index >= count + groups:
            raise Malformed(f"fragment: number {index} of {count} in {groups} groups")
        if count * (length - TAG_BYTES) > SEALED_BYTES_MAX:
            raise Malformed(f"fragment: {count} of {length} bytes")
        return cls(FragmentKind(kind), handle, index, count, groups, epoch), length


@dataclass(frozen=True)
class FabricKey:
    """The carrier key of a topic in one of the authority's epochs (trust/mesh.py). It opens envelopes, never bodies."""

    secret: bytes = field(repr=False)
    epoch: int

    @classmethod
    def of_mesh(cls, secret: bytes, epoch: int) -> FabricKey:
        """From what the authority gives members for carriers; a mesh's pseudonyms and envelopes are none of ours."""
        return cls(derive(secret, "tallystick fabric key 1", epoch), epoch)

    @property
    def sign(self) -> int:
        """How fragments name the epoch."""
        return self.epoch & 0xFF

    def seal(self, head: FragmentHead, plaintext: bytes) -> bytes:
        clear = head.encode(len(plaintext) + TAG_BYTES)
        return clear + encrypt(self._key(head), plaintext, clear)

    def open(self, payload: bytes) -> tuple[FragmentHead, bytes]:
        """What stood in a fragment; what a network put behind it is left out. Raises `Malformed` or `CannotOpen`."""
        head, length = FragmentHead.decode(payload)
        if head.epoch != self.sign:
            raise CannotOpen
        clear = payload[: _HEAD.size]
        return head, decrypt(self._key(head), payload[_HEAD.size : _HEAD.size + length], clear)

    def _key(self, head: FragmentHead) -> bytes:
        return derive(self.secret, "tallystick fabric fragment 1", int(head.kind), head.handle, head.index)


@dataclass(frozen=True)
class SealedParcel:
    handle: bytes
    payloads: tuple[bytes, ...] = field(repr=False)  # by index, those of parity last


class FlowPlace(NamedTuple):
    """Where a parcel stands: on which flow, behind which handle."""

    flow: bytes
    previous: bytes = bytes(HANDLE_BYTES)


def seal_parcel(
    pushed: Pushed, key: FabricKey, place: FlowPlace, entropy: bytes, payload_bytes: int, group: int = GROUP_MAX
) -> SealedParcel:
    """The fragments of a parcel, none longer than `payload_bytes`; `group` 0 leaves parity out. Raises `Misuse`."""
    if payload_bytes < PAYLOAD_BYTES_MIN:
        raise Misuse(f"fragments of {payload_bytes} bytes, at least {PAYLOAD_BYTES_MIN} expected")
    stream = _stream(pushed, place)
    count = -(-len(stream) // (payload_bytes - OVERHEAD_BYTES))
    if count > COUNT_MAX:
        raise Misuse(f"a parcel of {len(stream)} bytes in {count} fragments, at most {COUNT_MAX} expected")
    size = -(-len(stream) // count)
    stream = stream.ljust(count * size, b"\0")
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    groups = min(GROUPS_MAX, -(-count // group)) if group and count > 2 else 0
    pieces += [xor_pieces(pieces[number::groups]) for number in range(groups)]
    handle = derive(key.secret, "tallystick fabric handle 1", entropy, sha256(stream).digest(), size, groups)
    handle = handle[:HANDLE_BYTES]
    heads = (FragmentHead(FragmentKind.PIECE, handle, at, count, groups, key.sign) for at in range(len(pieces)))
    return SealedParcel(handle, tuple(key.seal(*one) for one in zip(heads, pieces, strict=True)))


def xor_pieces(pieces: Sequence[bytes]) -> bytes:
    """The sum of pieces of one length: with it, any one of them follows from the others."""
    total = 0
    for one in pieces:
        total ^= int.from_bytes(one)
    return total.to_bytes(len(pieces[0]))


def _stream(pushed: Pushed, place: FlowPlace) -> bytes:
    front = front_bytes(pushed.parcel)
    body = memoryview(pushed.parcel)[front:]
    tail = wire.encode([list(pushed.permits), list(pushed.locks)])
    lengths = _LENGTHS.pack(*place, front, len(body), len(tail))
    data = b"".join((lengths, pushed.parcel[:front], *block_hashes(body), body, tail, b"\x80"))
    return data.ljust(padme(len(data)), b"\0")


def read_lengths(data: bytes) -> tuple[FlowPlace, int, int, int]:
    """The place, and the lengths of front, body and tail. Raises `Malformed`."""
    flow, previous, front, body, tail = _LENGTHS.unpack_from(data)
    if front + body > PARCEL_BYTES_MAX or tail > SEALED_BYTES_MAX:
        raise Malformed("fragments: a parcel beyond all bounds")
    return FlowPlace(flow, previous), front, body, tail
