"""A signed object: wire [body, signature], where body is the wire encoding of a fixed array.

Each kind has a context string of its own, so a signature under one kind is worth nothing under another. The body's
bytes are kept as they came: hashes and signatures are over them, never over a second encoding.
"""

from __future__ import annotations

from typing import Any, Protocol

from tallystick import wire
from tallystick.errors import Malformed

SIGNED_BYTES_MAX = 16 * 1024  # what one key signed; a principal's certificate has a 1,216-byte sealing key


class Signer(Protocol):
    def sign(self, context: str, message: bytes) -> bytes: ...


class Verifier(Protocol):
    def verify(self, context: str, signature: bytes, message: bytes) -> None: ...


def sign_fields(context: str, fields: list[Any], signer: Signer) -> bytes:
    """The signed object of these fields."""
    body = wire.encode(fields)
    return wire.encode([body, signer.sign(context, body)])


def split_signed(data: bytes, what: str, at_most: int = SIGNED_BYTES_MAX) -> tuple[bytes, bytes]:
    """Body and signature of a signed object, not yet verified."""
    if len(data) > at_most:
        raise Malformed(f"{what}: {len(data)} bytes, at most {at_most} expected")
    parts = wire.decode(data, what)
    if not (isinstance(parts, list) and len(parts) == 2 and all(isinstance(p, bytes) for p in parts)):
        raise Malformed(f"{what}: expected [body, signature]")
    return parts[0], parts[1]


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
        self._what = what

    @classmethod
    def parse(cls, body: bytes, what: str, length: int) -> Fields:
        return cls(wire.decode(body, what), what, length)

    def version(self, expected: int) -> int:
        found = next(self._values)
        if found != expected or type(found) is not int:
            raise Malformed(f"{self._what}: version {expected} expected, found {found!r}", reason="version")
        return expected

    def octets(self, length: int | None = None, at_most: int = SIGNED_BYTES_MAX) -> bytes:
        value = next(self._values)
        if type(value) is not bytes or len(value) > at_most or (length is not None and len(value) != length):
            raise Malformed(f"{self._what}: expected {length if length is not None else 'some'} bytes")
        return value

    def number(self, at_most: int = (1 << 63) - 1, at_least: int = 0) -> int:
        value = next(self._values)
        if type(value) is not int or not at_least <= value <= at_most:
            raise Malformed(f"{self._what}: expected an integer from {at_least} to {at_most}")
        return value

    def text(self, at_most: int = 256) -> str:
        value = next(self._values)
        if type(value) is not str or len(value) > at_most:
            raise Malformed(f"{self._what}: expected text of at most {at_most} characters")
        return value

    def items(self, at_most: int, at_least: int = 0) -> list[Any]:
        value = next(self._values)
        if type(value) is not list or not at_least <= len(value) <= at_most:
            raise Malformed(f"{self._what}: expected an array of {at_least} to {at_most} items")
        return value

    def each(self, at_most: int, at_least: int = 0) -> list[Fields]:
        """The items of an array, each to be read as a field by itself."""
        return [Fields([item], self._what, 1) for item in self.items(at_most, at_least)]

    def array(self, length: int) -> Fields:
        """An array of `length` fields."""
        return Fields(next(self._values), self._what, length)

    def optional(self, length: int) -> Fields | None:
        """An array of `length` fields, or null."""
        value = next(self._values)
        return None if value is None else Fields(value, self._what, length)
