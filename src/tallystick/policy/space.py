"""The attribute space: which attributes there are, of which type, and whose they are.

A formula is typed by a space, so that a misspelt attribute or a number out of range is an error where it is written and
not a lock that nobody opens. An attribute of a tenant carries the tenant's namespace (`acme.role`), and only that
tenant grants it; attributes without a namespace are the columns of a topic, which interests speak of.

Inside, every ordered value is an ordinal from 0 to 2**bits - 1: an integer less its `least`, a date as days since 1970,
a real number through the order-preserving image of IEEE 754 doubles. Comparisons are intervals of ordinals, and `>` is
`>=` of the next one, for reals too.
"""

from __future__ import annotations

import math
import re
import struct
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

from tallystick import wire
from tallystick.errors import Malformed, Misuse, Refused

NAME_MAX = 128  # characters of a full name
VALUES_MAX = 1024  # values of one category
VALUE_MAX = 256  # characters of one value
ATTRIBUTES_MAX = 1024  # attributes of one space
DATE_BITS = 16  # days, to 6 June 2149

_PART = r"[A-Za-z_][A-Za-z0-9_]*"
_NAME = re.compile(rf"{_PART}(?:\.{_PART})*")
_RESERVED = frozenset({"and", "or", "not", "in", "of"})
_FIRST_DAY = date(1970, 1, 1)

Value = str | int | float | date | bool


class Kind(IntEnum):
    FLAG = 1  # true or false
    CATEGORY = 2  # one of a closed list
    STRING = 3  # any text
    INTEGER = 4  # of 1 to 64 bits
    DATE = 5
    REAL = 6  # content only


class Encoding(IntEnum):
    """How a number becomes traits; see `tallystick.policy.traits` for what each costs."""

    BITS = 1
    PREFIX = 2
    RADIX16 = 3


_TEXTS = frozenset({Kind.FLAG, Kind.CATEGORY, Kind.STRING})


@dataclass(frozen=True)
class Attribute:
    """One declared attribute; make it with `flag`, `category`, `string`, `integer`, `day` or `real`."""

    name: str
    kind: Kind
    values: tuple[str, ...] = ()  # of a flag or category, sorted
    many: bool = False  # a principal may hold several values at once
    bits: int = 0
    least: int = 0
    encoding: Encoding = Encoding.PREFIX

    def __post_init__(self) -> None:
        if len(self.name) > NAME_MAX or not _NAME.fullmatch(self.name) or self.name in _RESERVED:
            raise Misuse(
                f'attribute "{self.name[:NAME_MAX]}": not a name',
                hint="letters, digits and underscores, after a tenant's name and a dot where it is a tenant's",
            )
        if self.kind in (Kind.FLAG, Kind.CATEGORY):
            self._check_values()
        elif self.values:
            raise Misuse(f'attribute "{self.name}": only a category lists its values')
        if self.many and self.kind not in (Kind.CATEGORY, Kind.STRING):
            raise Misuse(f'attribute "{self.name}": only categories and strings may hold many values')
        if self.is_text != (self.bits == 0) or not 0 <= self.bits <= 64:
            raise Misuse(f'attribute "{self.name}": expected 1 to 64 bits, found {self.bits}')
        if self.least < -(1 << 63) or self.least + (1 << self.bits) > 1 << 64:
            raise Misuse(f'attribute "{self.name}": integers lie between -2**63 and 2**64 - 1')

    def _check_values(self) -> None:
        if not 1 <= len(self.values) <= VALUES_MAX:
            raise Misuse(f'attribute "{self.name}": expected 1 to {VALUES_MAX} values, found {len(self.values)}')
        if list(self.values) != sorted(set(self.values)):
            raise Misuse(f'attribute "{self.name}": values must be sorted and different')
        for value in self.values:
            _check_text(self.name, value)

    @property
    def namespace(self) -> str:
        """The tenant whose attribute it is; empty for content."""
        return self.name.partition(".")[0] if "." in self.name else ""

    @property
    def is_text(self) -> bool:
        return self.kind in _TEXTS

    @property
    def top(self) -> int:
        """The greatest ordinal."""
        return (1 << self.bits) - 1

    @property
    def can_lock(self) -> bool:
        """Whether keys can be made for it."""
        return self.kind is not Kind.REAL

    def text(self, value: Value) -> str:
        """`value` as one of a text attribute's values; raises `Misuse`."""
        if self.kind is Kind.FLAG and isinstance(value, bool):
            value = "true" if value else "false"
        if not isinstance(value, str):
            raise Misuse(f'attribute "{self.name}": expected text, found {value!r}')
        if self.values and value not in self.values:
            raise Misuse(
                f'attribute "{self.name}" has no value "{value[:VALUE_MAX]}"', hint=suggestion(value, self.values)
            )
        _check_text(self.name, value)
        return value

    def ordinal(self, value: Value) -> int:
        """`value` as the ordinal of an ordered attribute; raises `Misuse` if it is out of range."""
        if self.kind is Kind.REAL and isinstance(value, int | float) and not isinstance(value, bool):
            return _real_ordinal(self.name, value)
        if self.kind is Kind.DATE:
            value = _day(value) if isinstance(value, str) else value
            if not isinstance(value, date):
                raise Misuse(f'attribute "{self.name}": expected a date such as 2026-01-31, found {value!r}')
            ordinal = (value - _FIRST_DAY).days
        elif isinstance(value, int) and not isinstance(value, bool):
            ordinal = value - self.least
        else:
            raise Misuse(f'attribute "{self.name}": expected a whole number, found {value!r}')
        if not 0 <= ordinal <= self.top:
            raise Misuse(
                f'attribute "{self.name}": {value} is out of range',
                hint=f"it reaches from {self.show(0)} to {self.show(self.top)}",
            )
        return ordinal

    def show(self, ordinal: int) -> str:
        """The literal of an ordinal."""
        if self.kind is Kind.REAL:
            return repr(real_of(ordinal)).removesuffix(".0")
        if self.kind is Kind.DATE:
            return (_FIRST_DAY + timedelta(days=ordinal)).isoformat()
        return str(ordinal + self.least)

    def fields(self) -> list[Any]:
        return [
            self.name,
            int(self.kind),
            list(self.values),
            self.many,
            self.bits,
            self.least,
            0 if self.is_text else int(self.encoding),
        ]

    @classmethod
    def of_fields(cls, fields: Any) -> Attribute:
        """Raises `Malformed`."""
        types = [str, int, list, bool, int, int, int]
        if not isinstance(fields, list) or [type(field) for field in fields] != types:
            raise Malformed("attribute: expected [name, kind, values, many, bits, least, encoding]")
        name, kind, values, many, bits, least, encoding = fields
        if any(type(value) is not str for value in values):
            raise Malformed("attribute: values are text")
        try:
            made = cls(name, Kind(kind), tuple(values), many, bits, least, Encoding(encoding or Encoding.PREFIX))
        except (Misuse, ValueError) as error:
            raise Malformed(f"attribute: {error}") from error
        if made.fields() != fields:
            raise Malformed(f'attribute "{name}": not in its one form')
        return made


def flag(name: str) -> Attribute:
    return Attribute(name, Kind.FLAG, ("false", "true"))


def category(name: str, values: Iterable[str], *, many: bool = False) -> Attribute:
    return Attribute(name, Kind.CATEGORY, tuple(sorted(set(values))), many)


def string(name: str, *, many: bool = False) -> Attribute:
    return Attribute(name, Kind.STRING, many=many)


def integer(name: str, bits: int, *, least: int = 0, encoding: Encoding | None = None) -> Attribute:
    return Attribute(name, Kind.INTEGER, bits=bits, least=least, encoding=encoding or usual_encoding(bits))


def day(name: str, *, encoding: Encoding | None = None) -> Attribute:
    return Attribute(name, Kind.DATE, bits=DATE_BITS, encoding=encoding or usual_encoding(DATE_BITS))


def real(name: str) -> Attribute:
    return Attribute(name, Kind.REAL, bits=64)


def usual_encoding(bits: int) -> Encoding:
    """Prefixes while a key has few traits anyway; beyond 16 bits radix 16, whose locks are far smaller."""
    return Encoding.PREFIX if bits <= 16 else Encoding.RADIX16


@dataclass(frozen=True)
class AttributeSet:
    """What a principal holds, or one event: (full name, ordinal or sorted values) in the order of names."""

    values: tuple[tuple[str, int | tuple[str, ...]], ...]

    def get(self, name: str) -> int | tuple[str, ...] | None:
        return dict(self.values).get(name)

    def encode(self) -> bytes:
        return wire.encode([1, [[name, list(v) if isinstance(v, tuple) else v] for name, v in self.values]])


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
        object.__setattr__(self, "_by_name", dict(zip(names, self.attributes, strict=True)))

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
        found: Attribute = self._by_name[name]  # type: ignore[attr-defined]
        return found

    def resolve(self, name: str) -> Attribute:
        """By its full name, or bare within the namespace; raises `Misuse` with a suggestion."""
        known: Mapping[str, Attribute] = self._by_name  # type: ignore[attr-defined]
        found = known.get(f"{self.namespace}.{name}") or known.get(name)
        if found is None:
            raise Misuse(f'unknown attribute "{name}"', hint=suggestion(name, self.names()))
        return found

    def names(self) -> list[str]:
        """Every name as a person would write it here: bare in the own namespace, else in full."""
        own = f"{self.namespace}."
        return [one.name.removeprefix(own) if self.namespace else one.name for one in self.attributes]

    def values(self, held: Mapping[str, Value | Iterable[Value]]) -> AttributeSet:
        """The typed set of `held`, by full or bare names; raises `Misuse`."""
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

    def grant(self, held: Mapping[str, Value | Iterable[Value]]) -> AttributeSet:
        """As `values`, for attributes that this namespace may grant; raises `Refused` for another's."""
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
        value = wire.decode(data, "attribute space")
        if not (isinstance(value, list) and len(value) == 3 and value[0] == 1 and type(value[0]) is int):
            raise Malformed("attribute space: version 1 expected", reason="version")
        if type(value[1]) is not str or type(value[2]) is not list:
            raise Malformed("attribute space: expected [version, namespace, attributes]")
        try:
            return cls(value[1], tuple(Attribute.of_fields(item) for item in value[2]))
        except Misuse as error:
            raise Malformed(str(error)) from error

    @classmethod
    def read(cls, text: str) -> AttributeSpace:
        """The space that a TOML text declares: `namespace`, and a table for each attribute; raises `Misuse`.

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


_KINDS = {kind.name.lower(): kind for kind in Kind}
_ENCODINGS = {encoding.name.lower(): encoding for encoding in Encoding}
_KEYS = {
    Kind.FLAG: {"kind"},
    Kind.CATEGORY: {"kind", "values", "many"},
    Kind.STRING: {"kind", "many"},
    Kind.INTEGER: {"kind", "bits", "least", "encoding"},
    Kind.DATE: {"kind", "encoding"},
    Kind.REAL: {"kind"},
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


def _made(name: str, kind: Kind, table: dict[str, Any], encoding: Encoding | None) -> Attribute:
    if kind is Kind.CATEGORY:
        return category(name, table["values"], many=bool(table.get("many", False)))
    if kind is Kind.STRING:
        return string(name, many=bool(table.get("many", False)))
    if kind is Kind.INTEGER:
        return integer(name, table["bits"], least=table.get("least", 0), encoding=encoding)
    if kind is Kind.DATE:
        return day(name, encoding=encoding)
    return flag(name) if kind is Kind.FLAG else real(name)


def suggestion(found: str, known: Iterable[str]) -> str:
    """The hint for a name that is not known."""
    choices = sorted(known)
    close = get_close_matches(found[:NAME_MAX], choices, 1, 0.5)
    if close:
        return f'did you mean "{close[0]}"?'
    shown = ", ".join(choices[:12]) + (", …" if len(choices) > 12 else "")
    return f"known: {shown}"


def _day(text: str) -> date | str:
    """The date that an ISO text means, as JSON has it; the text itself if it means none."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text


def _check_text(name: str, value: str) -> None:
    if not value or len(value) > VALUE_MAX or not value.isprintable():
        raise Misuse(f'attribute "{name}": a value is printable text of 1 to {VALUE_MAX} characters')


def _real_ordinal(name: str, value: float) -> int:
    try:
        exact = float(value)
    except OverflowError:
        exact = math.inf
    if not math.isfinite(exact) or exact != value:
        raise Misuse(f'attribute "{name}": {value} is not a finite double')
    return real_ordinal(exact)


def real_ordinal(value: float) -> int:
    """The place of a double among all doubles; equal for 0.0 and -0.0."""
    bits: int = struct.unpack("<Q", struct.pack("<d", value + 0.0))[0]
    return bits ^ ((1 << 64) - 1) if bits >> 63 else bits | 1 << 63


def real_of(ordinal: int) -> float:
    """The double at a place."""
    bits = ordinal & ((1 << 63) - 1) if ordinal >> 63 else ordinal ^ ((1 << 64) - 1)
    found: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return found
