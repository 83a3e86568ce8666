"""Opening: a verified parcel becomes records again.

Threat: the publisher itself. A signed parcel may hold a hostile plaintext (a decompression bomb, forged Arrow
offsets, another schema than the topic's, rows that do not hash to their leaves, a second content behind another key),
so everything is checked before it is touched: the commitment before decryption, declared sizes before decompression
(their ratio, and their sum against the reader's `Room`),
Arrow's full validation before any access, and the leaves against the root in the signed header.

To an outsider every failure is the one `CannotOpen`; its cause, for the local log, hangs on it.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

import pyarrow as pa

from tallystick.crypto.merkle import leaf_hash
from tallystick.crypto.symmetric import TAG_BYTES, decrypt_into
from tallystick.errors import CannotOpen, Malformed, Misuse, TallystickError, Unavailable
from tallystick.parcel.commit import LIST_BYTES_MAX
from tallystick.parcel.header import ParcelKind
from tallystick.parcel.keys import LaneKeys, ParcelKeys
from tallystick.parcel.locks import MissingKey, MissingShare, NotEntitled
from tallystick.parcel.parcel import NoRoom, Oversized, Room, Section, VerifiedParcel, decode_section, describe
from tallystick.record.batch import Batch
from tallystick.record.batch import open_batch as read_batch
from tallystick.record.leaves import leaf_root
from tallystick.record.schema import Schema


@dataclass(frozen=True)
class OpenedGroup:
    """One column group of a parcel, opened: its records, and what proving one of them takes."""

    batch: Batch
    time_ms: int
    salts: bytes


def open_batch(
    verified: VerifiedParcel,
    ring: LaneKeys,
    schema: Schema,
    *,
    groups: tuple[int, ...] | None = None,
    fast: bool = False,
    room: Room | None = None,
) -> Batch:
    """The records of a data parcel, with the columns of the given groups (all by default).

    `schema` is the version named in the header. `fast` skips recomputing the leaves and nothing else: the body's hash
    in the signed header already says that these are the publisher's bytes. Raises `MissingKey` if the ring lacks a
    key, `NotEntitled` if a policy asks for attributes that it does not hold, `Unavailable` if a lock cannot be fetched,
    `Oversized` if it opens to absurdly much, `NoRoom` if to more than `room` has left, `CannotOpen` for everything
    else.
    """
    wanted = tuple(range(len(schema.groups))) if groups is None else groups
    opened = {group: open_group(verified, ring, schema, group, fast=fast, room=room) for group in wanted}
    return _joined(verified, schema, opened)


def open_columns(
    verified: VerifiedParcel,
    ring: LaneKeys,
    schema: Schema,
    *,
    groups: tuple[int, ...] | None = None,
    fast: bool = False,
    room: Room | None = None,
) -> tuple[Batch | None, tuple[int, ...]]:
    """As `open_batch`, without the groups that are closed to the ring's attributes, and which these are; no batch where
    all are. Each group is verified in full on its own, so what is left away makes the rest no less certain."""
    wanted = tuple(range(len(schema.groups))) if groups is None else groups
    opened, closed = {}, []
    for group in wanted:
        try:
            opened[group] = open_group(verified, ring, schema, group, fast=fast, room=room)
        except NotEntitled:
            closed.append(group)
    return (_joined(verified, schema, opened) if opened else None), tuple(closed)


def _joined(verified: VerifiedParcel, schema: Schema, opened: dict[int, OpenedGroup]) -> Batch:
    parts = [one.batch for one in opened.values()]
    if len(parts) == 1:
        return parts[0]
    try:
        return Batch.join(schema.only(*opened), parts)
    except Misuse as error:  # groups of unequal length: the publisher's doing
        raise CannotOpen(f"{describe(verified.header)}: cannot open") from error


def open_group(
    verified: VerifiedParcel,
    ring: LaneKeys,
    schema: Schema,
    group: int,
    *,
    fast: bool = False,
    room: Room | None = None,
) -> OpenedGroup:
    """One column group of a data parcel, verified in full on its own."""
    header = verified.header
    if header.kind is not ParcelKind.DATA:
        raise Misuse(f"{describe(header)}: holds no records")
    if header.schema_hash != schema.hash or len(header.groups) != len(schema.groups):
        raise CannotOpen(f"{describe(header)}: cannot open", hint="its schema is not the one given")
    try:
        keys, section = _open_section(verified, ring, group, room)
        batch = read_batch(section.content, schema.only(group), section.count)
        salts = keys.salts(section.count)
        if not fast and leaf_root(batch, salts) != header.groups[group].root:
            raise Malformed("leaves do not match the root", reason="wrong-leaves")
    except (
        MissingKey,
        MissingShare,
        NotEntitled,
        Unavailable,
        Oversized,
        NoRoom,
    ):  # local news: no key or room for now
        raise
    except TallystickError as error:
        raise CannotOpen(f"{describe(header)}: cannot open") from error
    return OpenedGroup(batch, section.time_ms, salts)


def open_content(verified: VerifiedParcel, ring: LaneKeys) -> bytes:
    """The wire object inside a gap or commit parcel, from whichever group opens: all of them hold it. `NotEntitled`
    where none does for want of attributes."""
    header = verified.header
    if header.kind not in (ParcelKind.GAP, ParcelKind.COMMIT):
        raise Misuse(f"{describe(header)}: holds no content")
    for group in range(len(header.groups)):
        try:
            return _open_content(verified, ring, group)
        except NotEntitled as error:
            refusal = error
    raise refusal


def _open_content(verified: VerifiedParcel, ring: LaneKeys, group: int) -> bytes:
    try:
        keys, section = _open_section(verified, ring, group, Room(LIST_BYTES_MAX))  # a gap is shorter
        content = bytes(section.content)
        if leaf_hash(keys.salts(1) + content) != verified.header.groups[group].root:
            raise Malformed("content does not match the root", reason="wrong-leaves")
    except (MissingKey, MissingShare, NotEntitled, Unavailable, Oversized):
        raise
    except NoRoom as error:
        raise Oversized(str(error)) from error
    except TallystickError as error:
        raise CannotOpen(f"{describe(verified.header)}: cannot open") from error
    return content


def _open_section(
    verified: VerifiedParcel, ring: LaneKeys, group: int, room: Room | None
) -> tuple[ParcelKeys, Section]:
    header = verified.header
    keys = ParcelKeys.of(ring.lane_key(header, group), header.sequence, header.identifier)
    if not hmac.compare_digest(keys.commitment, header.groups[group].commitment):
        raise CannotOpen
    first = sum(before.section_bytes for before in header.groups[:group])
    sealed = memoryview(verified.parcel.body)[first : first + header.groups[group].section_bytes]
    # Arrow's allocator aligns to 64 bytes, so the batch that is read from the plaintext needs no copy.
    plaintext = memoryview(pa.allocate_buffer(len(sealed) - TAG_BYTES)).cast("B")
    decrypt_into(keys.body_key, sealed, plaintext)
    try:
        section = decode_section(plaintext, room)
    except (Oversized, NoRoom) as error:
        raise type(error)(f"{describe(header)}: {error}") from None
    if not header.padded and (section.count, section.time_ms) != (header.count, header.time_ms):
        raise Malformed("count or time differ between header and body")
    return keys, section
