"""Requests and answers of the authority as dataclasses whose fields say how they travel.

A field says its bounds once, where it is declared; from that follow what is read and written, the OpenAPI document and
the tables in docs/formats/authority.md. Bodies are wire arrays of the fields in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from tallystick.authority.settings import AuthorityLimits
from tallystick.crypto.signatures import SIGNED_BYTES_MAX
from tallystick.errors import Malformed
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


def octets(length: int | None = None, about: str = "", *, at_most: Bound = SIGNED_BYTES_MAX) -> Any:
    about = about or (f"{length} bytes" if length else "")
    return _field(BYTES, about, lambda found, limits: found.octets(length, at_most=_bound(at_most, limits)))


def sealed(about: str = "{}") -> Any:
    """Bytes that only the caller opens."""
    return octets(about=about.format(SEALED), at_most=SEALED_BYTES_MAX)


def text(about: str = "", *, at_most: Bound = "name_characters_max") -> Any:
    return _field(TEXT, about, lambda found, limits: found.text(_bound(at_most, limits)))


def number(about: str = "", *, at_most: int = (1 << 63) - 1, at_least: int = 0) -> Any:
    return _field(NUMBER, about, lambda found, _: found.number(at_most, at_least))


def items(kind: type, about: str = "", *, at_most: Bound = ITEMS_MAX) -> Any:
    """A tuple of bytes, texts or numbers."""

    def read(found: Fields, limits: AuthorityLimits) -> tuple[Any, ...]:
        values = found.items(_bound(at_most, limits))
        if not all(type(value) is kind for value in values):
            raise Malformed(f"expected an array of {kind.__name__}")
        return tuple(values)

    return _field(LIST, about, read)


def pairs(about: str = "") -> Any:
    """A tuple of (identifier, number)."""

    def read(found: Fields, _: AuthorityLimits) -> tuple[tuple[bytes, int], ...]:
        parts = [Fields(value, "pair", 2) for value in found.items(ITEMS_MAX)]
        return tuple((part.octets(16), part.number()) for part in parts)

    return _field(LIST, about, read)


def answered(**named: Any) -> Mapping[str, Any]:
    """The fields of an answer, in order."""
    return MappingProxyType(named)


def _field(kind: str, about: str, read: Callable[[Fields, AuthorityLimits], Any]) -> Any:
    return field(metadata={"spec": Spec(kind, about, read)})


def _bound(bound: Bound, limits: AuthorityLimits) -> int:
    return bound if isinstance(bound, int) else int(getattr(limits, bound))


def specs(asked: Any) -> dict[str, Any]:
    """The fields of a request, in order."""
    return {one.name: one for one in fields(asked)}


def spec_of(one: Any) -> Spec:
    found: Spec = one.metadata["spec"]
    return found


def read(named: Mapping[str, Any], found: Fields, limits: AuthorityLimits) -> list[Any]:
    return [spec_of(one).read(found, limits) for one in named.values()]


def listed(value: Any, named: Mapping[str, Any]) -> list[Any]:
    """A value for each name, as it travels: of a dataclass, of several values in order, or of one alone."""
    if not named:
        return []
    if is_dataclass(value):
        return [_plain(getattr(value, name)) for name in named]
    return [_plain(value)] if len(named) == 1 else [_plain(one) for one in value]


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
