"""Strict CBOR: the one encoding of everything that is signed, hashed or stored.

Every object is an array of fixed order, made of unsigned and negative integers, byte strings, text, arrays,
booleans and null; no maps, floats, tags or indefinite lengths. There is exactly one encoding of a value (RFC 8949,
section 4.2, core deterministic), and `decode` holds its input to it by encoding again and comparing: what is
accepted under a hash or a signature has no second form. Work is bounded by the input's length and `DEPTH_MAX`: tags
are refused while reading, not afterwards, since the tags for shared values and repeated strings let a few hundred
bytes stand for a structure that no walk over it, and no second encoding, ever finishes.

`is_number` and `check_no_identifier` hold text from outside to what it is taken for; `show_time` says a time in words.

`Fields` reads such an array field by field. A dataclass whose annotations say how its fields are read, in the order of
the array, needs no code of its own: `listed` gives the array and `read_as` the object; a `WireObject` has both as its
`encode` and `decode`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from functools import cache
from io import BytesIO
from typing import Annotated, Any, ClassVar, NoReturn, Self, TypeVar, get_type_hints

import cbor2

from tallystick.errors import Malformed, Misuse

DEPTH_MAX = 16  # the deepest of our objects has six levels
OCTETS_MAX = 16 * 1024  # of a byte string, unless its reader says otherwise

Value = int | bytes | str | bool | None | list["Value"]


def is_number(text: str) -> bool:
    """Whether `int` reads this text, and nobody reads it otherwise. Python's `isdigit` takes `²`, which `int` does not,
    and `isdecimal` the digits of every script; beyond some thousand digits `int` refuses them all."""
    return text.isascii() and text.isdigit() and len(text) <= 20


def is_identifier(text: str) -> bool:
    """Whether it looks like the identifier of a principal or the token of a topic."""
    return _IDENTIFIER.fullmatch(text) is not None


def check_no_identifier(name: str, what: str) -> None:
    """Raise `Misuse` if a name looks like an identifier: whoever reads it would take it for another's."""
    if is_identifier(name.lower()):
        raise Misuse(f'{what} name "{name}": looks like an identifier', hint="choose a name that is not 32 hex digits")


def show_time(time_ms: int) -> str:
    """A time for people, in UTC.

    A stranger may have written it: where no calendar has such a year, the number itself is shown.
    """
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return f"{time_ms} ms after 1970"


_IDENTIFIER = re.compile(r"[0-9a-f]{32}")


def _refuse(*_: Any) -> NoReturn:
    raise Malformed("tags and maps are not allowed")


# The tags that cbor2 reads by itself (256 opens a scope for 25 and does nothing alone); `tag_hook` meets all others.
_TAGS = dict.fromkeys((*range(6), 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 258, 260, 261, 1004, 43000, 55799), _refuse)
# For those who read maps and floats too, with cbor2 itself: work stays bounded by the input's length.
BOUNDED: dict[str, Any] = {
    "semantic_decoders": _TAGS,
    "tag_hook": _refuse,
    "max_depth": DEPTH_MAX,
    "allow_indefinite": False,
}
_STRICT: dict[str, Any] = {**BOUNDED, "object_hook": _refuse}

_PLAIN = frozenset({bytes, str, bool, type(None)})


def encode(value: Any) -> bytes:
    """The deterministic encoding of `value`."""
    return cbor2.dumps(value)


def decode(data: bytes | memoryview, what: str = "object") -> Any:
    """The value whose one encoding is `data`. Raises `Malformed`, naming `what`, for anything else."""
    data = bytes(data)
    try:
        value = cbor2.loads(data, **_STRICT)
        _check_types(value)
        same = cbor2.dumps(value) == data
    except Malformed:
        raise
    except Exception as error:  # cbor2 raises a whole family, and ValueError and OverflowError besides
        raise Malformed(f"{what}: not valid CBOR") from error
    if not same:
        raise Malformed(f"{what}: not the deterministic encoding")
    return value


def decode_each(parts: Sequence[bytes], what: str = "object") -> Iterator[Any]:
    """The value of each part, not held to the one encoding. Raises `Malformed` at the first that is none.

    For what is named by the hash of its bytes as they came, so that a second form of it means nothing, and where
    encoding again would cost more than all else; the caller holds every field to its exact type.
    """
    stream = BytesIO(b"".join(parts))
    read, tell = cbor2.CBORDecoder(stream, **_STRICT).decode, stream.tell
    end = 0
    for part in parts:
        try:
            value = read()
        except Malformed:
            raise
        except Exception as error:
            raise Malformed(f"{what}: not valid CBOR") from error
        end += len(part)
        if tell() != end:
            raise Malformed(f"{what}: not one whole value")
        yield value


def _check_types(value: Any) -> None:
    """Nothing but our types, and no array too deep: the reader takes one more where that is empty."""
    level: Sequence[Any] = [value]
    for _ in range(DEPTH_MAX + 1):
        arrays = []
        for item in level:
            kind = type(item)
            if kind in _PLAIN:
                continue
            if kind is list:
                arrays.append(item)
            elif kind is not int:
                raise Malformed(f"type {kind.__name__} is not allowed")
            elif not -(1 << 63) <= item < 1 << 64:
                raise Malformed("integer out of range")
        if not arrays:
            return
        level = [item for array in arrays for item in array]
    raise Malformed(f"more than {DEPTH_MAX} arrays within one another")


class Fields:
    """Reads a fixed array field by field, holding each to its type and bounds.

    >>> fields = Fields([1, b"0123456789abcdef"], "thing", 2)
    >>> fields.version(1), fields.octets(16)
    (1, b'0123456789abcdef')
    """

    def __init__(self, value: Any, what: str, length: int) -> None:
        if not isinstance(value, list) or len(value) != length:
            raise Malformed(f"{what}: expected an array of {length} fields")
        self._values = iter(value)
        self.what = what

    @classmethod
    def parse(cls, body: bytes, what: str, length: int) -> Fields:
        return cls(decode(body, what), what, length)

    def version(self, expected: int) -> int:
        found = next(self._values)
        if found != expected or type(found) is not int:
            raise Malformed(f"{self.what}: version {expected} expected, found {found!r}", reason="version")
        return expected

    def octets(self, length: int | None = None, at_most: int = OCTETS_MAX) -> bytes:
        value = next(self._values)
        if type(value) is not bytes or len(value) > at_most or (length is not None and len(value) != length):
            raise Malformed(f"{self.what}: expected {length if length is not None else 'some'} bytes")
        return value

    def number(self, at_most: int = (1 << 63) - 1, at_least: int = 0) -> int:
        value = next(self._values)
        if type(value) is not int or not at_least <= value <= at_most:
            raise Malformed(f"{self.what}: expected an integer from {at_least} to {at_most}")
        return value

    def text(self, at_most: int = 256) -> str:
        value = next(self._values)
        if type(value) is not str or len(value) > at_most:
            raise Malformed(f"{self.what}: expected text of at most {at_most} characters")
        return value

    def items(self, at_most: int, at_least: int = 0) -> list[Any]:
        value = next(self._values)
        if type(value) is not list or not at_least <= len(value) <= at_most:
            raise Malformed(f"{self.what}: expected an array of {at_least} to {at_most} items")
        return value

    def each(self, at_most: int, at_least: int = 0) -> list[Fields]:
        """The items of an array, each to be read as a field by itself."""
        return [Fields([item], self.what, 1) for item in self.items(at_most, at_least)]

    def array(self, length: int) -> Fields:
        """An array of `length` fields."""
        return Fields(next(self._values), self.what, length)

    def optional(self, length: int) -> Fields | None:
        """An array of `length` fields, or null."""
        value = next(self._values)
        return None if value is None else Fields(value, self.what, length)

    def optional_octets(self, at_most: int) -> bytes | None:
        """A byte string, or null."""
        value = next(self._values)
        return None if value is None else Fields([value], self.what, 1).octets(at_most=at_most)


T = TypeVar("T")
Read = Callable[[Fields], Any]


def octets(length: int | None = None, at_most: int = OCTETS_MAX) -> Read:
    """For an annotation: `Annotated[bytes, octets(32)]`."""
    return lambda fields: fields.octets(length, at_most)


def number(at_most: int = (1 << 63) - 1, at_least: int = 0) -> Read:
    """For an annotation: `Annotated[int, number(255)]`."""
    return lambda fields: fields.number(at_most, at_least)


def text(at_most: int = 256) -> Read:
    """For an annotation: `Annotated[str, text(64)]`."""
    return lambda fields: fields.text(at_most)


def chosen(kind: type[IntEnum]) -> Read:
    """For an annotation: one of a few, by its number."""

    def read(fields: Fields) -> IntEnum:
        try:
            return kind(fields.number())
        except ValueError as error:
            raise Malformed(f"{fields.what}: one of {', '.join(map(str, kind))} expected") from error

    return read


def row(*parts: Read) -> Read:
    """For an annotation: an array of these, as a tuple."""

    def read(fields: Fields) -> tuple[Any, ...]:
        found = fields.array(len(parts))
        return tuple(part(found) for part in parts)

    return read


def several(one: Read, at_most: int) -> Read:
    """For an annotation: an array of some of the same kind, as a tuple."""
    return lambda fields: tuple(one(item) for item in fields.each(at_most))


def distinct(one: Read, at_most: int) -> Read:
    """For an annotation: a frozenset, which travels as an array in order, each once."""

    def read(fields: Fields) -> frozenset[Any]:
        found = [one(item) for item in fields.each(at_most)]
        if found != sorted(set(found)):
            raise Malformed(f"{fields.what}: in order expected, each once")
        return frozenset(found)

    return read


def inside(decode: Callable[[bytes], Any], at_most: int = OCTETS_MAX) -> Read:
    """For an annotation: another object, as its bytes. `Annotated[Card, inside(Card.decode)]`."""
    return lambda fields: decode(fields.octets(at_most=at_most))


Octets16 = Annotated[bytes, octets(16)]
Octets32 = Annotated[bytes, octets(32)]
Number = Annotated[int, number()]


@cache
def _readers(kind: Callable[..., object]) -> dict[str, Read]:
    """How each field of a dataclass is read, for those whose annotations say so."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


def listed(value: object) -> list[Any]:
    """The fields of a dataclass that travel, in order."""
    kind: Callable[..., object] = type(value)
    return [_travelling(getattr(value, name)) for name in _readers(kind)]


def _travelling(field: Any) -> Any:
    """A set travels in order, an object inside another as its bytes."""
    if hasattr(field, "encode") and not isinstance(field, str):
        return field.encode()
    return sorted(field) if isinstance(field, frozenset) else field


def read_fields(kind: Callable[..., T], fields: Fields, **others: object) -> T:
    """A dataclass from the next fields, and those that do not travel from `others`. Raises `Malformed`."""
    return kind(**{name: read(fields) for name, read in _readers(kind).items()}, **others)


def read_as(kind: Callable[..., T], data: bytes, what: str, **others: object) -> T:
    """The dataclass whose encoding is `data`: its fields behind the version, which is 1. Raises `Malformed`."""
    fields = Fields.parse(data, what, 1 + len(_readers(kind)))
    fields.version(1)
    return read_fields(kind, fields, **others)


class WireObject:
    """A dataclass whose annotations say how its fields travel, behind the version, which is 1."""

    __slots__ = ()
    what: ClassVar[str]
    bytes_max: ClassVar[int] = 1 << 20

    def encode(self) -> bytes:
        return encode([1, *listed(self)])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `Malformed`."""
        if len(data) > cls.bytes_max:
            raise Malformed(f"{cls.what}: {len(data)} bytes, at most {cls.bytes_max} expected")
        return read_as(cls, data, cls.what)
