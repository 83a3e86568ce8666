"""The attribute space: which attributes there are, of which type, and whose they are.

A formula is typed by a space, so that a misspelt attribute or a number out of range is an error where it is written and
not a lock that nobody opens. An attribute of a tenant carries the tenant's namespace (`acme.role`), and only that
tenant grants it; attributes without a namespace are the columns of a topic, which interests speak of.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tallystick import wire
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.policy.attribute import (
    Attribute,
    AttributeKind,
    Encoding,
    Value,
    category,
    day,
    flag,
    integer,
    real,
    string,
    suggestion,
)

ATTRIBUTES_MAX = 1024  # attributes of one space


@dataclass(frozen=True)
class AttributeSet:
    """What a principal holds, or one event: (full name, ordinal or sorted values) in the order of names."""

    values: tuple[tuple[str, int | tuple[str, ...]], ...]

    def encode(self) -> bytes:
        return wire.encode([1, [[name, list(v) if isinstance(v, tuple) else v] for name, v in self.values]])

    @classmethod
    def decode(cls, data: bytes) -> AttributeSet:
        """Raises `Malformed`; whether a space has such attributes and values is asked of `AttributeSpace.check`."""
        (items,) = decode_versioned(data, "attribute set", 2)
        if type(items) is not list or len(items) > ATTRIBUTES_MAX:
            raise Malformed(f"attribute set: expected at most {ATTRIBUTES_MAX} attributes")
        found = tuple(_held(item) for item in items)
        names = [name for name, _ in found]
        if names != sorted(set(names)):
            raise Malformed("attribute set: attributes must be sorted by name and different")
        return cls(found)


@dataclass(frozen=True)
class AttributeSpace:
    """The attributes that a text may speak of; bare names mean those of `namespace`."""

    namespace: str
    attributes: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        names = [attribute.name for attribute in self.attributes]
        if len(names) > ATTRIBUTES_MAX:
            raise Misuse(f"attribute space: {len(names)} attributes, at most {ATTRIBUTES_MAX} expected")
        if names != sorted(set(names)):
            raise Misuse("attribute space: attributes must be sorted by name and different")

    @cached_property
    def _by_name(self) -> dict[str, Attribute]:
        return {attribute.name: attribute for attribute in self.attributes}

    @classmethod
    def of(cls, namespace: str, *attributes: Attribute) -> AttributeSpace:
        """The space of a tenant (or, with an empty namespace, of content); names are given bare."""
        named = [replace(one, name=f"{namespace}.{one.name}") if namespace else one for one in attributes]
        return cls(namespace, tuple(sorted(named, key=lambda one: one.name)))

    def joined(self, other: AttributeSpace) -> AttributeSpace:
        """This space and another tenant's, whose attributes are named in full."""
        both = {one.name: one for one in (*other.attributes, *self.attributes)}
        return AttributeSpace(self.namespace, tuple(both[name] for name in sorted(both)))

    def only(self, names: Iterable[str]) -> AttributeSpace:
        return AttributeSpace(self.namespace, tuple(self[name] for name in sorted(set(names))))

    def __getitem__(self, name: str) -> Attribute:
        """By its full name."""
        return self._by_name[name]

    def resolve(self, name: str) -> Attribute:
        """By its full name, or bare within the namespace. Raises `Misuse` with a suggestion."""
        found = self._by_name.get(f"{self.namespace}.{name}") or self._by_name.get(name)
        if found is None:
            raise Misuse(f'unknown attribute "{name}"', hint=suggestion(name, self.names()))
        return found

    def names(self) -> list[str]:
        """Every name as a person would write it here: bare in the own namespace, else in full."""
        own = f"{self.namespace}."
        return [one.name.removeprefix(own) if self.namespace else one.name for one in self.attributes]

    def values(self, held: Mapping[str, Value | Iterable[Value]]) -> AttributeSet:
        """The typed set of `held`, by full or bare names. Raises `Misuse`."""
        typed: dict[str, int | tuple[str, ...]] = {}
        for name, value in held.items():
            attribute = self.resolve(name)
            if attribute.is_text:
                several = [value] if isinstance(value, str | bool) else list(value)  # type: ignore[arg-type]
                if len(several) != 1 and not attribute.many:
                    raise Misuse(f'attribute "{attribute.name}" holds one value, found {len(several)}')
                typed[attribute.name] = tuple(sorted({attribute.text(one) for one in several}))
            else:
                typed[attribute.name] = attribute.ordinal(value)  # type: ignore[arg-type]
        return AttributeSet(tuple(sorted(typed.items())))

    def check(self, held: AttributeSet) -> None:
        """Raises `Misuse` unless every attribute is declared here and has a value of its type."""
        for name, value in held.values:
            attribute = self.resolve(name)
            if attribute.name != name or attribute.is_text != isinstance(value, tuple):
                raise Misuse(f'attribute "{name}": not in full, or not of its type')
            if isinstance(value, int):
                if value > attribute.top:
                    raise Misuse(f'attribute "{name}": ordinal {value} is out of range')
            elif len(value) != 1 and not attribute.many:
                raise Misuse(f'attribute "{name}" holds one value, found {len(value)}')
            else:
                for one in value:
                    attribute.text(one)

    def grant(self, held: Mapping[str, Value | Iterable[Value]]) -> AttributeSet:
        """As `values`, for attributes that this namespace may grant. Raises `Refused` for another's."""
        granted = self.values(held)
        for name, _ in granted.values:
            if self[name].namespace != self.namespace or not self.namespace:
                raise Refused(
                    f'attribute "{name}" is outside the namespace "{self.namespace}"',
                    reason="namespace",
                    hint="a tenant grants only its own attributes",
                )
        return granted

    def encode(self) -> bytes:
        return wire.encode([1, self.namespace, [attribute.fields() for attribute in self.attributes]])

    @classmethod
    def decode(cls, data: bytes) -> AttributeSpace:
        """Raises `Malformed`."""
        namespace, attributes = decode_versioned(data, "attribute space", 3)
        if type(namespace) is not str or type(attributes) is not list:
            raise Malformed("attribute space: expected [version, namespace, attributes]")
        try:
            return cls(namespace, tuple(Attribute.of_fields(item) for item in attributes))
        except Misuse as error:
            raise Malformed(str(error)) from error

    @classmethod
    def read(cls, text: str) -> AttributeSpace:
        """The space that a TOML text declares: `namespace`, and a table for each attribute. Raises `Misuse`.

        [clearance]
        kind = "integer"
        bits = 8
        """
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise Misuse(f"attribute space: {error}", hint="it is a TOML file") from error
        namespace = tables.pop("namespace", "")
        if not isinstance(namespace, str):
            raise Misuse("attribute space: namespace is text")
        return cls.of(namespace, *(_declared(name, table) for name, table in tables.items()))


_KINDS = {kind.name.lower(): kind for kind in AttributeKind}
_ENCODINGS = {encoding.name.lower(): encoding for encoding in Encoding}
_KEYS = {
    AttributeKind.FLAG: {"kind"},
    AttributeKind.CATEGORY: {"kind", "values", "many"},
    AttributeKind.STRING: {"kind", "many"},
    AttributeKind.INTEGER: {"kind", "bits", "least", "encoding"},
    AttributeKind.DATE: {"kind", "encoding"},
    AttributeKind.REAL: {"kind"},
}


def _declared(name: str, table: Any) -> Attribute:
    if not isinstance(table, dict) or table.get("kind") not in _KINDS:
        found = table.get("kind") if isinstance(table, dict) else table
        raise Misuse(f'attribute "{name}": unknown kind {found!r}', hint=suggestion(str(found), list(_KINDS)))
    kind = _KINDS[table["kind"]]
    for key in table.keys() - _KEYS[kind]:
        hint = suggestion(key, sorted(_KEYS[kind]))
        raise Misuse(f'attribute "{name}": {kind.name.lower()} has no setting "{key}"', hint=hint)
    encoding = table.get("encoding")
    if encoding is not None and encoding not in _ENCODINGS:
        raise Misuse(
            f'attribute "{name}": unknown encoding {encoding!r}', hint=suggestion(str(encoding), [*_ENCODINGS])
        )
    try:
        return _made(name, kind, table, None if encoding is None else _ENCODINGS[encoding])
    except (TypeError, KeyError) as error:
        raise Misuse(f'attribute "{name}": a setting is missing or of the wrong type ({error})') from error


def _made(name: str, kind: AttributeKind, table: dict[str, Any], encoding: Encoding | None) -> Attribute:
    if kind is AttributeKind.CATEGORY:
        return category(name, table["values"], many=bool(table.get("many", False)))
    if kind is AttributeKind.STRING:
        return string(name, many=bool(table.get("many", False)))
    if kind is AttributeKind.INTEGER:
        return integer(name, table["bits"], least=table.get("least", 0), encoding=encoding)
    if kind is AttributeKind.DATE:
        return day(name, encoding=encoding)
    return flag(name) if kind is AttributeKind.FLAG else real(name)


def decode_versioned(data: bytes, what: str, length: int) -> list[Any]:
    """The fields behind the version of an array of `length` fields. Raises `Malformed` for another version than 1."""
    value = wire.decode(data, what)
    if not (isinstance(value, list) and len(value) == length and type(value[0]) is int and value[0] == 1):
        raise Malformed(f"{what}: version 1 expected", reason="version")
    return value[1:]


def _held(item: Any) -> tuple[str, int | tuple[str, ...]]:
    if isinstance(item, list) and len(item) == 2 and type(item[0]) is str:
        name, value = item
        if type(value) is int and 0 <= value < 1 << 64:
            return name, value
        if type(value) is list and value and all(type(one) is str for one in value) and value == sorted(set(value)):
            return name, tuple(value)
    raise Malformed("attribute set: expected [name, ordinal or sorted values]")
