"""A hostile publisher: enrolled, permitted, with good keys and a good signature, and whatever it likes inside.

Everything that it seals passes the guards, so what stands between it and its readers is parcel/open.py alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from makers import seed

from tallystick import wire
from tallystick.crypto import symmetric
from tallystick.crypto.blocks import body_root
from tallystick.crypto.signatures import SigningKey
from tallystick.parcel.header import SIGNATURE_CONTEXT, Group, Header, ParcelKind
from tallystick.parcel.keys import ParcelKeys
from tallystick.parcel.parcel import MAGIC, Parcel
from tallystick.parcel.seal import Lane

IDENTIFIER = b"identifier------"


def frame(
    content: bytes,
    *,
    codec: int = 0,
    count: int = 1,
    time_ms: int = 0,
    raw_bytes: int | None = None,
    content_bytes: int | None = None,
    padding: bytes = b"",
) -> bytes:
    """A section's plaintext whose fields may all lie."""
    raw_bytes = len(content) if raw_bytes is None else raw_bytes
    content_bytes = len(content) if content_bytes is None else content_bytes
    return struct.pack("<IIQII", codec, count, time_ms, raw_bytes, content_bytes) + content + padding


def seal_sections(lane: Lane, plaintexts: Sequence[bytes], root: bytes = bytes(32), **changes: Any) -> Parcel:
    """The plaintexts, one for each column group, as a well-signed data parcel of `lane` that opens to them."""
    sections, groups = [], []
    for number, plaintext in enumerate(plaintexts):
        keys = ParcelKeys.of(lane.keys[number], 0, IDENTIFIER)
        sections.append(symmetric.encrypt(keys.body_key, plaintext))
        groups.append(Group(root, keys.commitment, lane.keys[number].locks, len(sections[-1])))
    body = b"".join(sections)
    values: dict[str, Any] = {
        "instance": lane.instance,
        "kind": ParcelKind.DATA,
        "topics": lane.topics,
        "lane": lane.lane,
        "sequence": 0,
        "previous": bytes(32),
        "schema_version": lane.schema.version,
        "schema_hash": lane.schema.hash,
        "identifier": IDENTIFIER,
        "time_ms": 0,
        "count": 1,
        "groups": tuple(groups),
        "body_bytes": len(body),
        "body_root": body_root(body),
    }
    header = Header(**{**values, **changes})
    return Parcel(header, sign(header.encoded), body)


def sign(header: bytes, who: str = "car") -> bytes:
    return SigningKey.from_seed(seed(who)).sign(SIGNATURE_CONTEXT, header)


def assemble(header: bytes, signature: bytes, body: bytes, marks: bytes = b"") -> bytes:
    """A parcel's bytes around any header at all."""
    return MAGIC + struct.pack("<HH", len(header), len(marks)) + header + signature + marks + body


def alter_header(parcel: Parcel, change: Callable[[list[Any]], None]) -> bytes:
    """The parcel with its header's fields changed in place, and signed again."""
    fields = wire.decode(parcel.header.encoded)
    change(fields)
    header = wire.encode(fields)
    return assemble(header, sign(header), bytes(parcel.body))


def resign(parcel: Parcel, **changes: Any) -> Parcel:
    """The parcel with a header that differs, and signed again."""
    header = replace(parcel.header, **changes)
    return Parcel(header, sign(header.encoded), parcel.body)


def compressed_message(data: Any) -> bytes:
    """A record-batch message whose buffers are compressed inside, which Arrow would read without being asked."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(data)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return bytes(messages[1].serialize())
