"""Attributes: their kinds, their values, and the order among values.

Inside, every ordered value is an ordinal from 0 to 2**bits - 1: an integer less its `least`, a date as days since 1970,
a real number through the order-preserving image of IEEE 754 doubles. Comparisons are intervals of ordinals, and `>` is
`>=` of the next one, for reals too.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

from tallystick.errors import Malformed, Misuse

NAME_MAX = 128  # characters of a full name
VALUES_MAX = 1024  # values of one category
VALUE_MAX = 256  # characters of one value
DATE_BITS = 16  # days, to 6 June 2149

_PART = r"[A-Za-z_][A-Za-z0-9_]*"
_NAME = re.compile(rf"{_PART}(?:\.{_PART})*")
_RESERVED = frozenset({"and", "or", "not", "in", "of"})
_FIRST_DAY = date(1970, 1, 1)

Value = str | int | float | date | bool


class AttributeKind(IntEnum):
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


_TEXTS = frozenset({AttributeKind.FLAG, AttributeKind.CATEGORY, AttributeKind.STRING})


@dataclass(frozen=True)
class Attribute:
    """One declared attribute; make it with `flag`, `category`, `string`, `integer`, `day` or `real`."""

    name: str
    kind: AttributeKind
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
        if self.kind in (AttributeKind.FLAG, AttributeKind.CATEGORY):
            self._check_values()
        elif self.values:
            raise Misuse(f'attribute "{self.name}": only a category lists its values')
        if self.many and self.kind not in (AttributeKind.CATEGORY, AttributeKind.STRING):
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
        """The tenant whose attribute it is, empty for content."""
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
        return self.kind is not AttributeKind.REAL

    def text(self, value: Value) -> str:
        """`value` as one of a text attribute's values. Raises `Misuse`."""
        if self.kind is AttributeKind.FLAG and isinstance(value, bool):
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
        """`value` as the ordinal of an ordered attribute. Raises `Misuse` if it is out of range."""
        if self.kind is AttributeKind.REAL and isinstance(value, int | float) and not isinstance(value, bool):
            return _real_ordinal(self.name, value)
        if self.kind is AttributeKind.DATE:
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
        if self.kind is AttributeKind.REAL:
            return repr(real_of(ordinal)).removesuffix(".0")
        if self.kind is AttributeKind.DATE:
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
            made = cls(
                name, AttributeKind(kind), tuple(values), many, bits, least, Encoding(encoding or Encoding.PREFIX)
            )
        except (Misuse, ValueError) as error:
            raise Malformed(f"attribute: {error}") from error
        if made.fields() != fields:
            raise Malformed(f'attribute "{name}": not in its one form')
        return made


def flag(name: str) -> Attribute:
    return Attribute(name, AttributeKind.FLAG, ("false", "true"))


def category(name: str, values: Iterable[str], *, many: bool = False) -> Attribute:
    return Attribute(name, AttributeKind.CATEGORY, tuple(sorted(set(values))), many)


def string(name: str, *, many: bool = False) -> Attribute:
    return Attribute(name, AttributeKind.STRING, many=many)


def integer(name: str, bits: int, *, least: int = 0, encoding: Encoding | None = None) -> Attribute:
    return Attribute(name, AttributeKind.INTEGER, bits=bits, least=least, encoding=encoding or usual_encoding(bits))


def day(name: str, *, encoding: Encoding | None = None) -> Attribute:
    return Attribute(name, AttributeKind.DATE, bits=DATE_BITS, encoding=encoding or usual_encoding(DATE_BITS))


def real(name: str) -> Attribute:
    return Attribute(name, AttributeKind.REAL, bits=64)


def usual_encoding(bits: int) -> Encoding:
    """Prefixes while a key has few traits anyway; beyond 16 bits radix 16, whose locks are far smaller."""
    return Encoding.PREFIX if bits <= 16 else Encoding.RADIX16


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
