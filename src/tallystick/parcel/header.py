"""The header of a parcel: the one thing that is signed, and it holds the hash of everything immutable.

A parcel is named by the hash of its header. Each header holds the hash of the lane's previous header, so one
signature vouches for the whole run before it. The clear header says little: token, permit, lane, sequence, sizes.
The order of the fields, their bounds and their meaning are specified in docs/formats/parcel.md.

Everything later carriers need has its place already (routing labels, relay plan, erasure coding, the write of a
Spark sink), so that none of them asks for a version 2; whatever still comes goes into `extensions`, and a critical
extension that a reader does not know is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from hashlib import sha256
from typing import Any

from tallystick import wire
from tallystick.crypto.blocks import Coding as Coding
from tallystick.crypto.signatures import VerifyKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed
from tallystick.wire import Fields

SIGNATURE_CONTEXT = "tallystick parcel 1"
HEADER_BYTES_MAX = 16 * 1024  # a one-topic, one-group header with its signature stays under 1,024
TOPICS_MAX = 16
GROUPS_MAX = 32
LOCKS_MAX = 8
LABELS_MAX = 64
EXTENSIONS_MAX = 16
COUNT_MAX = 1 << 20  # records a parcel
BODY_BYTES_MAX = 64 * 1024 * 1024
NO_PREVIOUS = bytes(32)

SUITE_1 = 1  # AES-256-GCM, HKDF-SHA-256, SHA-256 leaves, BLAKE3 body blocks, Ed25519
FLAG_PADDED = 1


class ParcelKind(IntEnum):
    DATA = 0
    HEARTBEAT = 1
    GAP = 2
    CLOSE = 3
    COMMIT = 4


@dataclass(frozen=True)
class TopicRef:
    """One topic of the lane: its token, the advertise permit used, and the epoch of its key."""

    token: bytes
    permit: bytes
    epoch: int


@dataclass(frozen=True)
class LaneRef:
    """The last head of an older lane, where this one goes on."""

    lane: bytes
    sequence: int
    parcel: bytes


@dataclass(frozen=True)
class Group:
    """One column group: root of its leaves, commitment to its key, locks in order, bytes of its body section."""

    root: bytes
    commitment: bytes
    locks: tuple[bytes, ...]
    section_bytes: int


@dataclass(frozen=True)
class Header:
    instance: bytes
    kind: ParcelKind
    topics: tuple[TopicRef, ...]
    lane: bytes
    sequence: int
    previous: bytes
    schema_version: int
    schema_hash: bytes
    identifier: bytes
    time_ms: int
    count: int
    groups: tuple[Group, ...]
    body_bytes: int
    body_root: bytes
    padded: bool = False
    continues: LaneRef | None = None
    coding: Coding | None = None
    checkpoint: tuple[int, bytes] | None = None
    plan: tuple[int, bytes] | None = None
    labels: tuple[bytes, ...] = ()
    write: tuple[bytes, int] | None = None  # the pending mark: (write, batch)
    extensions: tuple[tuple[int, bool, bytes], ...] = ()
    suite: int = SUITE_1

    @cached_property
    def encoded(self) -> bytes:
        return wire.encode(
            [
                1,
                self.suite,
                int(self.kind),
                FLAG_PADDED if self.padded else 0,
                self.instance,
                [[topic.token, topic.permit, topic.epoch] for topic in self.topics],
                self.lane,
                self.sequence,
                self.previous,
                _or_null(self.continues, lambda c: [c.lane, c.sequence, c.parcel]),
                [self.schema_version, self.schema_hash],
                self.identifier,
                self.time_ms,
                self.count,
                [[g.root, g.commitment, list(g.locks), g.section_bytes] for g in self.groups],
                [self.body_bytes, self.body_root],
                _or_null(self.coding, lambda c: [c.code, c.needed, c.total, c.block_bytes, c.root]),
                _or_null(self.checkpoint, list),
                _or_null(self.plan, list),
                list(self.labels),
                _or_null(self.write, list),
                [list(extension) for extension in self.extensions],
            ]
        )

    @cached_property
    def hash(self) -> bytes:
        """The name of the parcel: tree leaf, previous hash, receipt, duplicate."""
        return parcel_hash(self.encoded)

    @property
    def pending(self) -> bool:
        """Data that counts only once the commit parcel of its write lists its lane."""
        return self.write is not None and self.kind is not ParcelKind.COMMIT

    @property
    def size_bytes(self) -> int:
        """What the parcel takes to fetch, nearly."""
        return self.body_bytes + len(self.encoded)

    @property
    def label_place(self) -> tuple[int, int] | None:
        """The epoch and the version of the code under which the header was labelled, or None where it was not."""
        return (self.topics[0].epoch, self.labels[0][0]) if self.labels and len(self.topics) == 1 else None

    def partition(self, partitions: int) -> int:
        return lane_partition(self.lane, partitions)

    def topic(self, token: bytes) -> TopicRef:
        for topic in self.topics:
            if topic.token == token:
                return topic
        raise Malformed("header: not a parcel of this topic", reason="wrong-topic")

    @classmethod
    def decode(cls, data: bytes) -> Header:
        if len(data) > HEADER_BYTES_MAX:
            raise Malformed(f"header: {len(data)} bytes, at most {HEADER_BYTES_MAX} expected")
        fields = Fields.parse(data, "header", 22)
        fields.version(1)
        if (suite := fields.number()) != SUITE_1:
            raise Malformed(f"header: unknown suite {suite}", reason="version")
        if (kind := fields.number()) > max(ParcelKind):
            raise Malformed(f"header: unknown kind {kind}", reason="version")
        if (flags := fields.number()) & ~FLAG_PADDED:
            raise Malformed(f"header: unknown flags {flags:#x}", reason="version")
        instance = fields.octets(32)
        topics = tuple(_topic(item) for item in fields.items(TOPICS_MAX, at_least=1))
        lane, sequence, previous = fields.octets(16), fields.number(), fields.octets(32)
        continues = fields.optional(3)
        schema = Fields(fields.items(2), "header", 2)
        identifier, time_ms, count = fields.octets(16), fields.number(), fields.number(COUNT_MAX)
        groups = tuple(_group(item) for item in fields.items(GROUPS_MAX))
        body = Fields(fields.items(2), "header", 2)
        coding, checkpoint, plan = fields.optional(5), fields.optional(2), fields.optional(2)
        labels = tuple(fields.items(LABELS_MAX))
        write = fields.optional(2)
        extensions = tuple(_extension(item) for item in fields.items(EXTENSIONS_MAX))
        header = cls(
            instance=instance,
            kind=ParcelKind(kind),
            topics=topics,
            lane=lane,
            sequence=sequence,
            previous=previous,
            continues=None if continues is None else _lane_ref(continues),
            schema_version=schema.number(1 << 31),
            schema_hash=schema.octets(32),
            identifier=identifier,
            time_ms=time_ms,
            count=count,
            groups=groups,
            body_bytes=body.number(BODY_BYTES_MAX),
            body_root=body.octets(32),
            padded=bool(flags & FLAG_PADDED),
            coding=None if coding is None else _coding(coding),
            checkpoint=None if checkpoint is None else (checkpoint.number(), checkpoint.octets(32)),
            plan=None if plan is None else (plan.number(), plan.octets(32)),
            labels=labels,
            write=None if write is None else (write.octets(32), write.number()),
            extensions=extensions,
        )
        header.__dict__["encoded"] = bytes(data)  # decode has compared it with the only encoding
        header._check()
        return header

    def _check(self) -> None:
        """What no well-formed header may break, beyond the types of its fields."""
        tokens = [topic.token for topic in self.topics]
        if tokens != sorted(set(tokens)):
            raise Malformed("header: tokens are sorted and differ")
        if (self.sequence == 0) != (self.previous == NO_PREVIOUS):
            raise Malformed("header: only the first parcel of a lane has no previous hash")
        if self.continues and self.sequence != 0:
            raise Malformed("header: only the first parcel of a lane continues another")
        if self.body_bytes != sum(group.section_bytes for group in self.groups):
            raise Malformed("header: body size differs from the sum of its sections")
        carries = self.kind in (ParcelKind.DATA, ParcelKind.GAP, ParcelKind.COMMIT)
        if carries != bool(self.groups):
            raise Malformed(f"header: a {self.kind.name.lower()} parcel {'needs' if carries else 'has no'} groups")
        if self.kind is not ParcelKind.DATA and self.count:
            raise Malformed("header: only a data parcel has records")
        if self.padded and (self.count or self.time_ms):
            raise Malformed("header: with padding on, count and time are inside the body")
        if self.kind is ParcelKind.COMMIT and self.write is None:
            raise Malformed("header: a commit parcel names its write")
        if len({len(label) for label in self.labels if type(label) is bytes}) > 1 or any(
            type(label) is not bytes or not 1 <= len(label) <= 32 for label in self.labels
        ):
            raise Malformed("header: labels are byte strings of one length, at most 32")
        numbers = [number for number, _, _ in self.extensions]
        if numbers != sorted(set(numbers)):
            raise Malformed("header: extensions are sorted and differ")
        if unknown := [number for number, critical, _ in self.extensions if critical]:
            raise Malformed(f"header: unknown critical extension {unknown[0]}", reason="version")


def parcel_hash(header_bytes: bytes) -> bytes:
    """The name of the parcel with this header."""
    return named_hash("tallystick parcel 1", header_bytes)


def lane_partition(lane: bytes, partitions: int) -> int:
    """The partition in which a lane lies whole, in each of its topics."""
    return int.from_bytes(sha256(lane).digest()[:8], "big") % partitions


def check_equivocation(
    header_a: bytes, signature_a: bytes, header_b: bytes, signature_b: bytes, key: VerifyKey
) -> tuple[bytes, int]:
    """The lane and sequence at which `key` signed two different headers. Raises `Forged` if it did not."""
    a, b = Header.decode(header_a), Header.decode(header_b)
    if (a.lane, a.sequence, a.instance) != (b.lane, b.sequence, b.instance) or a.hash == b.hash:
        raise Forged("equivocation: not two headers of one lane and sequence")
    key.verify(SIGNATURE_CONTEXT, signature_a, header_a)
    key.verify(SIGNATURE_CONTEXT, signature_b, header_b)
    return a.lane, a.sequence


def _or_null(value: Any, encode: Any) -> Any:
    return None if value is None else encode(value)


def _topic(item: Any) -> TopicRef:
    fields = Fields(item, "header", 3)
    return TopicRef(fields.octets(16), fields.octets(16), fields.number((1 << 32) - 1))


def _lane_ref(fields: Fields) -> LaneRef:
    return LaneRef(fields.octets(16), fields.number(), fields.octets(32))


def _group(item: Any) -> Group:
    fields = Fields(item, "header", 4)
    root, commitment, locks = fields.octets(32), fields.octets(32), fields.items(LOCKS_MAX, at_least=1)
    if any(type(lock) is not bytes or len(lock) != 32 for lock in locks):
        raise Malformed("header: a lock is named by 32 bytes")
    return Group(root, commitment, tuple(locks), fields.number(BODY_BYTES_MAX, at_least=16))


def _coding(fields: Fields) -> Coding:
    return Coding(fields.number(255), fields.number(255), fields.number(255), fields.number(1 << 24), fields.octets(32))


def _extension(item: Any) -> tuple[int, bool, bytes]:
    if not (isinstance(item, list) and len(item) == 3 and type(item[0]) is int and type(item[1]) is bool):
        raise Malformed("header: an extension is [number, critical, bytes]")
    if not 0 <= item[0] < 1 << 16 or type(item[2]) is not bytes:
        raise Malformed("header: an extension is [number, critical, bytes]")
    return item[0], item[1], item[2]
