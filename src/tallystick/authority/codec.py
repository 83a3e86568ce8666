"""Requests and answers of the authority as dataclasses whose fields say how they travel.

A field says its bounds once, where it is declared, as `Annotated[type, spec]`; from that follow what is read and
written, the OpenAPI document and the tables in docs/formats/authority.md. Bodies are wire arrays of the fields in
order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_type_hints

from tallystick import wire
from tallystick.authority.settings import AuthorityLimits
from tallystick.crypto.signatures import SIGNED_BYTES_MAX
from tallystick.wire import Fields

Bound = int | str  # a number, or the name of one of the authority's limits

BYTES, TEXT, NUMBER, LIST = "bytes", "text", "integer", "array"
ITEMS_MAX = 1 << 20
SEALED_BYTES_MAX = 64 << 20  # as much as a client takes at all
SEALED = "sealed to the caller's enrolled key for this request"


class Spec(NamedTuple):
    kind: str
    about: str
    read: Callable[[Fields, AuthorityLimits], Any]
    is_sealed: bool = False


def octets(length: int | None = None, about: str = "", *, at_most: Bound = SIGNED_BYTES_MAX) -> Spec:
    about = about or (f"{length} bytes" if length else "")
    return Spec(BYTES, about, lambda found, limits: found.octets(length, at_most=_bound(at_most, limits)))


def sealed(about: str = "{}") -> Spec:
    """Bytes that only the caller opens; the authority seals what the request is served with."""
    return octets(about=about.format(SEALED), at_most=SEALED_BYTES_MAX)._replace(is_sealed=True)


def text(about: str = "", *, at_most: Bound = "name_characters_max") -> Spec:
    return Spec(TEXT, about, lambda found, limits: found.text(_bound(at_most, limits)))


def number(about: str = "", *, at_most: int = (1 << 63) - 1, at_least: int = 0) -> Spec:
    return Spec(NUMBER, about, lambda found, _: found.number(at_most, at_least))


def items(one: Spec, about: str = "", *, at_most: Bound = ITEMS_MAX) -> Spec:
    """A tuple of whatever `one` is."""

    def read(found: Fields, limits: AuthorityLimits) -> tuple[Any, ...]:
        return tuple(one.read(item, limits) for item in found.each(_bound(at_most, limits)))

    return Spec(LIST, about, read)


def row(*parts: Spec) -> Spec:
    """A tuple of these, in order."""

    def read(found: Fields, limits: AuthorityLimits) -> tuple[Any, ...]:
        inner = found.array(len(parts))
        return tuple(part.read(inner, limits) for part in parts)

    return Spec(LIST, "", read)


def record(kind: type, *, optional: bool = False) -> Spec:
    """A dataclass whose fields say how they travel, or null where it is optional."""

    def read(found: Fields, limits: AuthorityLimits) -> Any:
        length = len(specs(kind))
        inner = found.optional(length) if optional else found.array(length)
        return None if inner is None else kind(*read_all(kind, inner, limits))

    return Spec(LIST, "", read)


Octets = Annotated[bytes, octets()]
Identifier = Annotated[bytes, octets(16)]
Number = Annotated[int, number()]


class Versioned:
    """A dataclass that travels by itself: wire [1, its fields in order]."""

    what: ClassVar[str]

    def encode(self) -> bytes:
        return wire.encode([1, *plain(self)])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `Malformed`."""
        found = Fields.parse(data, cls.what, 1 + len(specs(cls)))
        found.version(1)
        return cls(*read_all(cls, found))


def answered(**named: Spec) -> Mapping[str, Spec]:
    """The fields of an answer, in order."""
    return MappingProxyType(named)


def specs(described: type | Mapping[str, Spec]) -> Mapping[str, Spec]:
    """The fields of a dataclass, or of an answer, in order."""
    return described if isinstance(described, Mapping) else _annotated(described)


@cache
def _annotated(kind: type) -> Mapping[str, Spec]:
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: hints[one.name].__metadata__[0] for one in fields(kind)}


def read_all(
    described: type | Mapping[str, Spec], found: Fields, limits: AuthorityLimits = AuthorityLimits()
) -> list[Any]:
    return [spec.read(found, limits) for spec in specs(described).values()]


def read_opened(spec: Spec, data: bytes, what: str) -> Any:
    """What was sealed. Raises `Malformed`."""
    return spec.read(Fields([wire.decode(data, what)], what, 1), AuthorityLimits())


def plain(value: Any) -> Any:
    """A value as it travels: arrays for tuples and dataclasses."""
    if is_dataclass(value):
        return [plain(getattr(value, one.name)) for one in fields(value)]
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def _bound(bound: Bound, limits: AuthorityLimits) -> int:
    return bound if isinstance(bound, int) else int(getattr(limits, bound))
