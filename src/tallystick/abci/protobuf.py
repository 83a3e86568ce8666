"""As much of protocol buffers (proto3) as ABCI and CometBFT's hashes need: messages as frozen dataclasses whose fields
carry their number and kind.

    class VoteInfo(Message):
        validator: Validator | None = nested(1, Validator)
        block_id_flag: int = int64(3)

Encoding is the one that Go's generated code writes (fields in order of their numbers, defaults left out, repeated
numbers packed), because headers and votes are hashed and signed in it. Decoding takes what the standard allows: any
order, unknown fields, the last of several. Everything is bounded by the length of the input. Left out: groups, maps,
and unions (of a union's members all but one are None).
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Self, dataclass_transform

from tallystick.errors import Malformed

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types
_WRAP = 1 << 64
VARINT_BYTES_MAX = 10


class Kind(Enum):
    """How a single value is written: its wire type, and a name for what is in it."""

    UINT64 = _VARINT, "unsigned"
    INT64 = _VARINT, "signed"
    BOOLEAN = _VARINT, "boolean"
    SFIXED64 = _FIXED64, "signed"
    OCTETS = _LENGTH, "octets"
    TEXT = _LENGTH, "text"
    NESTED = _LENGTH, "message"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One field of a message."""

    kind: Kind
    number: int
    of: type[Message] | None = None
    always: bool = False  # written even where it is empty: Go's "nullable = false"
    repeated: bool = False
    name: str = ""  # as its class calls it

    @property
    def wire_type(self) -> int:
        return self.kind.value[0]


def _field(
    kind: Kind, empty: Any, number: int, of: type[Message] | None = None, always: bool = False, repeated: bool = False
) -> Any:
    described = {"descriptor": Descriptor(kind, number, of, always, repeated)}
    return dataclasses.field(default=() if repeated else empty, metadata=described)


uint64 = partial(_field, Kind.UINT64, 0)
int64 = partial(_field, Kind.INT64, 0)
boolean = partial(_field, Kind.BOOLEAN, False)
sfixed64 = partial(_field, Kind.SFIXED64, 0)
octets = partial(_field, Kind.OCTETS, b"")
text = partial(_field, Kind.TEXT, "")
nested = partial(_field, Kind.NESTED, None)


@dataclass_transform(frozen_default=True)
class Message:
    """A message; its subclasses become frozen dataclasses of the fields above."""

    descriptors: ClassVar[dict[int, Descriptor]]  # in the order of their numbers

    def __init_subclass__(cls) -> None:
        found = [
            dataclasses.replace(field.metadata["descriptor"], name=field.name)
            for field in dataclasses.fields(dataclass(frozen=True)(cls))  # type: ignore[arg-type]
        ]
        cls.descriptors = {one.number: one for one in sorted(found, key=lambda descriptor: descriptor.number)}

    def encode(self) -> bytes:
        out = bytearray()
        for descriptor in self.descriptors.values():
            value = getattr(self, descriptor.name)
            if descriptor.repeated:
                _write_each(out, descriptor, value)
            elif value:
                _write_one(out, descriptor, value)
            elif descriptor.always:
                _write_tag(out, descriptor, b"")
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Raises `Malformed`."""
        view = memoryview(data)
        values: dict[str, Any] = {}
        position, end = 0, len(view)
        while position < end:
            tag, position = read_varint(view, position)
            number, wire_type = tag >> 3, tag & 7
            raw, position = _read_raw(view, position, wire_type)
            descriptor = cls.descriptors.get(number)
            if descriptor is None:
                continue
            if descriptor.repeated:
                values.setdefault(descriptor.name, []).extend(_read_each(descriptor, wire_type, raw))
            else:
                values[descriptor.name] = _read_one(descriptor, wire_type, raw)
        return cls(**{name: tuple(value) if type(value) is list else value for name, value in values.items()})


def write_varint(number: int) -> bytes:
    """An unsigned varint; a negative number as its two's complement in 64 bits, as Go writes it."""
    number %= _WRAP
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """The number at `position`, and where it ends. Raises `Malformed`."""
    number = 0
    for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
        if position >= len(view):
            raise Malformed("protobuf: a number is cut off")
        byte = view[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number % _WRAP, position
    raise Malformed(f"protobuf: a number takes more than {VARINT_BYTES_MAX} bytes")


def _write_tag(out: bytearray, descriptor: Descriptor, content: bytes) -> None:
    out += write_varint(descriptor.number << 3 | _LENGTH)
    out += write_varint(len(content))
    out += content


def _write_one(out: bytearray, descriptor: Descriptor, value: Any) -> None:
    if descriptor.kind in (Kind.NESTED, Kind.TEXT):
        _write_tag(out, descriptor, value.encode())
    elif descriptor.kind is Kind.OCTETS:
        _write_tag(out, descriptor, value)
    else:
        out += write_varint(descriptor.number << 3 | descriptor.wire_type)
        out += struct.pack("<q", value) if descriptor.kind is Kind.SFIXED64 else write_varint(int(value))


def _write_each(out: bytearray, descriptor: Descriptor, values: tuple[Any, ...]) -> None:
    if descriptor.wire_type == _LENGTH:
        for value in values:
            _write_one(out, descriptor, value)
    elif values:
        _write_tag(out, descriptor, b"".join(write_varint(value) for value in values))


def _read_raw(view: memoryview, position: int, wire_type: int) -> tuple[int | memoryview, int]:
    """The number or the bytes of a field, and where it ends."""
    if wire_type == _VARINT:
        return read_varint(view, position)
    if wire_type == _LENGTH:
        size, position = read_varint(view, position)
    elif wire_type in (_FIXED64, _FIXED32):
        size = 8 if wire_type == _FIXED64 else 4
    else:
        raise Malformed(f"protobuf: wire type {wire_type} is not expected")
    if size > len(view) - position:
        raise Malformed("protobuf: a field is longer than its message")
    return view[position : position + size], position + size


def _read_each(descriptor: Descriptor, wire_type: int, raw: int | memoryview) -> list[Any]:
    if descriptor.wire_type == _VARINT and isinstance(raw, memoryview):
        values, position = [], 0
        while position < len(raw):
            value, position = read_varint(raw, position)
            values.append(value)
        return values
    return [_read_one(descriptor, wire_type, raw)]


def _read_one(descriptor: Descriptor, wire_type: int, raw: int | memoryview) -> Any:
    if wire_type != descriptor.wire_type:
        raise Malformed(f"protobuf: field {descriptor.name} has wire type {wire_type}")
    if isinstance(raw, int):
        if descriptor.kind is Kind.BOOLEAN:
            return raw != 0
        return raw - _WRAP if descriptor.kind is Kind.INT64 and raw >= _WRAP // 2 else raw
    if descriptor.of is not None:
        return descriptor.of.decode(raw)
    if descriptor.kind is Kind.SFIXED64:
        return struct.unpack("<q", raw)[0]
    if descriptor.kind is Kind.TEXT:
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"protobuf: field {descriptor.name} is not UTF-8") from error
    return bytes(raw)
