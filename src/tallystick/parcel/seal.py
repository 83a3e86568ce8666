"""Sealing: a batch becomes a parcel, the next of its lane.

Threat: a carrier that reads, alters, reorders or drops what it carries; a snapshot or clone that repeats the
publisher's random state. Invariant: whatever leaves `Lane.seal` is signed, hangs by its previous hash on everything
sealed before in the lane, and is encrypted under a key that serves once. Time and entropy are handed in.

A lane belongs to one publisher process and is not thread-safe; a publisher that wants more opens more lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tallystick import wire
from tallystick.crypto.blocks import Coding, body_root
from tallystick.crypto.merkle import leaf_hash
from tallystick.crypto.signatures import SigningKey
from tallystick.crypto.symmetric import encrypt
from tallystick.errors import Misuse
from tallystick.parcel.header import (
    COUNT_MAX,
    NO_PREVIOUS,
    SIGNATURE_CONTEXT,
    Group,
    Header,
    LaneRef,
    ParcelKind,
    TopicRef,
)
from tallystick.parcel.keys import IdentifierKeys, LaneKey, ParcelKeys
from tallystick.parcel.parcel import Oversized, Parcel, check_ratio, encode_section
from tallystick.record.batch import Batch, to_message
from tallystick.record.codec import LZ4, NONE, PLANES, compress_parts
from tallystick.record.codec import NAMES as CODECS
from tallystick.record.leaves import leaf_root
from tallystick.record.planes import regions_of
from tallystick.record.schema import Schema
from tallystick.wire import Number

PLANES_BYTES_MIN = 16 * 1024  # a smaller message goes as plain lz4: the list of regions would eat what planes save


@dataclass(frozen=True)
class Gap(wire.WireObject):
    """The rows a publisher had to drop, sealed into a gap parcel."""

    what = "gap"
    rows: Number
    from_ms: Number
    to_ms: Number
    reason: Annotated[str, wire.text()]


@dataclass(frozen=True, repr=False)
class Packed:
    """A batch with its columns laid out and compressed, by column group: the part of sealing that needs no lane."""

    batch: Batch
    groups: tuple[tuple[Batch, int, int, tuple[Any, ...]], ...]  # records, codec, bytes before it, compressed


def pack(batch: Batch, codec: str) -> Packed:
    """Lay out and compress a batch; safe in any thread."""
    parts = (batch.only(group) for group in range(len(batch.schema.groups)))
    return Packed(batch, tuple((part, *_compressed(part, CODECS[codec])) for part in parts))


def _compressed(part: Batch, codec: int) -> tuple[int, int, tuple[Any, ...]]:
    message = to_message(part.data)
    if codec == PLANES and message.size < PLANES_BYTES_MIN:
        codec = LZ4
    regions = regions_of(memoryview(message).cast("B"), part.schema) if codec == PLANES else ()
    parts = compress_parts(message, codec, regions)
    try:
        check_ratio(message.size, sum(map(len, parts)))
    except Oversized:  # large and all alike, so that zstd went beyond what readers open
        codec, parts = LZ4, compress_parts(message, LZ4)
    return codec, message.size, parts


@dataclass(repr=False)
class Lane:
    """One publisher process's own chain of parcels for one fixed set of topics."""

    instance: bytes
    lane: bytes
    topics: tuple[TopicRef, ...]
    schema: Schema
    keys: tuple[LaneKey, ...]  # one per column group
    signing_key: SigningKey
    identifier_secret: bytes
    padded: bool = False
    codec: str = "planes"
    continues: LaneRef | None = None
    sequence: int = 0  # of the next parcel
    previous: bytes = NO_PREVIOUS
    code: Callable[[bytes], Coding | None] = lambda body: None  # how a body is coded into blocks, if it is

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise Misuse(f'compression "{self.codec}" is unknown, expected one of {", ".join(CODECS)}')
        self._identifiers = IdentifierKeys.of(self.identifier_secret)
        self.refresh(self.topics, self.keys)

    def refresh(self, topics: Sequence[TopicRef], keys: Sequence[LaneKey]) -> None:
        """Go on with new lane keys (a new epoch, or enough parcels under the old); the set of topics stays."""
        if len(keys) != len(self.schema.groups):
            raise Misuse(f"lane: {len(self.schema.groups)} lane keys expected, one per group, found {len(keys)}")
        if [topic.token for topic in topics] != [topic.token for topic in self.topics]:
            raise Misuse("lane: its set of topics is fixed", hint="open another lane for another set")
        self.topics = tuple(sorted(topics, key=lambda topic: topic.token))
        self.keys = tuple(keys)

    def change_schema(self, schema: Schema) -> None:
        """Go on with a newer version of the topic's schema."""
        if len(schema.groups) != len(self.schema.groups):
            raise Misuse("lane: a new schema version keeps its column groups")
        self.schema = schema

    def seal(
        self,
        batch: Batch | Packed,
        *,
        now_ms: int,
        entropy: bytes,
        checkpoint: tuple[int, bytes] | None = None,
        labels: tuple[bytes, ...] = (),
        write: tuple[bytes, int] | None = None,
    ) -> Parcel:
        """Seal a batch of the lane's schema, packed already or not, into the next data parcel."""
        packed = batch if isinstance(batch, Packed) else pack(batch, self.codec)
        if packed.batch.schema.hash != self.schema.hash:
            raise Misuse(f"lane: a batch of schema version {self.schema.version} expected")
        rows = packed.batch.rows
        if not 0 < rows <= COUNT_MAX:
            raise Misuse(f"lane: 1 to {COUNT_MAX} records a parcel, found {rows}")
        frames = [
            encode_section(codec, rows, now_ms, size, content, self.padded) for _, codec, size, content in packed.groups
        ]

        def root(group: int, salts: bytes) -> bytes:
            return leaf_root(packed.groups[group][0], salts)

        return self._seal(
            ParcelKind.DATA, frames, root, rows, now_ms, entropy, checkpoint=checkpoint, labels=labels, write=write
        )

    def seal_gap(self, gap: Gap, *, now_ms: int, entropy: bytes, checkpoint: tuple[int, bytes] | None = None) -> Parcel:
        """Say that rows were dropped, and which, so that nobody takes their absence for silence."""
        return self._seal_content(ParcelKind.GAP, gap.encode(), now_ms, entropy, checkpoint)

    def seal_commit(
        self,
        content: bytes,
        *,
        now_ms: int,
        entropy: bytes,
        write: tuple[bytes, int],
        checkpoint: tuple[int, bytes] | None = None,
    ) -> Parcel:
        """The commit parcel of a write: `content` lists the lanes that count."""
        return self._seal_content(ParcelKind.COMMIT, content, now_ms, entropy, checkpoint, write)

    def seal_heartbeat(self, *, now_ms: int, entropy: bytes, checkpoint: tuple[int, bytes] | None = None) -> Parcel:
        """Nothing to say, and still here."""
        return self._seal_content(ParcelKind.HEARTBEAT, None, now_ms, entropy, checkpoint)

    def seal_close(self, *, now_ms: int, entropy: bytes, checkpoint: tuple[int, bytes] | None = None) -> Parcel:
        """Nothing will follow in this lane."""
        return self._seal_content(ParcelKind.CLOSE, None, now_ms, entropy, checkpoint)

    def _seal_content(
        self,
        kind: ParcelKind,
        content: bytes | None,
        now_ms: int,
        entropy: bytes,
        checkpoint: tuple[int, bytes] | None,
        write: tuple[bytes, int] | None = None,
    ) -> Parcel:
        """A parcel without records: each of its groups holds the content, and without one it has no groups."""
        held = content or b""
        frame = encode_section(NONE, 0, now_ms, len(held), [held], self.padded)
        frames = [frame] * len(self.schema.groups) if content is not None else []

        def root(group: int, salts: bytes) -> bytes:
            return leaf_hash(salts + held)

        return self._seal(kind, frames, root, 0, now_ms, entropy, checkpoint=checkpoint, write=write)

    def _seal(
        self,
        kind: ParcelKind,
        frames: list[bytes],
        root: Callable[[int, bytes], bytes],
        rows: int,
        now_ms: int,
        entropy: bytes,
        *,
        checkpoint: tuple[int, bytes] | None = None,
        labels: tuple[bytes, ...] = (),
        write: tuple[bytes, int] | None = None,
    ) -> Parcel:
        if len(entropy) < 32:
            raise Misuse("lane: 32 bytes of entropy a parcel expected")
        identifier = self._identifiers.identifier(entropy, self.lane, self.sequence, frames)
        groups, sections = [], []
        for number, frame in enumerate(frames):
            keys = ParcelKeys.of(self.keys[number], self.sequence, identifier)
            section = encrypt(keys.body_key, frame)
            group_root = root(number, keys.salts(max(rows, 1)))
            groups.append(Group(group_root, keys.commitment, self.keys[number].locks, len(section)))
            sections.append(section)
        body = sections[0] if len(sections) == 1 else b"".join(sections)
        header = Header(
            instance=self.instance,
            kind=kind,
            topics=self.topics,
            lane=self.lane,
            sequence=self.sequence,
            previous=self.previous,
            continues=self.continues if self.sequence == 0 else None,
            schema_version=self.schema.version,
            schema_hash=self.schema.hash,
            identifier=identifier,
            time_ms=0 if self.padded else now_ms,
            count=0 if self.padded else rows,
            groups=tuple(groups),
            body_bytes=len(body),
            body_root=body_root(body),
            coding=self.code(body),
            padded=self.padded,
            checkpoint=checkpoint,
            labels=labels,
            write=write,
        )
        header._check()
        parcel = Parcel(header, self.signing_key.sign(SIGNATURE_CONTEXT, header.encoded), body)
        self.sequence += 1
        self.previous = header.hash
        return parcel
