"""Schemas as people write them: `vin string, ts timestamp[ms, UTC] not null, tags list<string>`.

    schema    = column {"," column}
    column    = name type ["not" "null"]
    type      = simple | "timestamp" "[" unit ["," zone] "]" | "decimal128" "(" precision "," scale ")"
              | "list" "<" type ["not" "null"] ">" | "struct" "<" column {"," column} ">"
    name      = letters, digits and underscores, or anything printable in double quotes ("" for a quote
    inside)

`show` prints what `read` reads. A mistake is reported with its position and, where there is one, a
suggestion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from tallystick.errors import Misuse
from tallystick.later import pa
from tallystick.record.types import DEPTH_MAX, SIMPLE, UNITS, simple_names, simple_types
from tallystick.wire import is_number

_TOKEN = re.compile(r'\s*(?:("(?:[^"]|"")*")|([A-Za-z0-9_+\-/:]+)|([<>\[\](),])|(\S))')
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USUAL = {
    "int": "int64",
    "integer": "int32",
    "bigint": "int64",
    "long": "int64",
    "short": "int16",
    "byte": "int8",
    "float": "float32",
    "double": "float64",
    "real": "float32",
    "boolean": "bool",
    "str": "string",
    "text": "string",
    "varchar": "string",
    "utf8": "string",
    "bytes": "binary",
    "blob": "binary",
    "date": "date32",
    "datetime": "timestamp[us]",
    "decimal": "decimal128(18, 4)",
    "numeric": "decimal128(18, 4)",
    "array": "list<…>",
    "record": "struct<…>",
    "map": "list<struct<key …, value …>>",
}
_TYPE_WORDS = [*SIMPLE, "timestamp", "decimal128", "list", "struct"]


def read(text: str) -> list[Any]:
    """The columns (`pa.Field`s) that `text` describes. Raises `Misuse` with the position of the mistake."""
    reader = _Reader(text)
    columns = reader.columns(1)
    reader.expect_end()
    return columns


def show(fields: Iterable[Any]) -> str:
    """The text form of `fields`, which are in normal form."""
    return ", ".join(_show_field(field) for field in fields)


def show_type(type_: Any) -> str:
    """The text form of one type."""
    simple = simple_names().get(type_)
    if simple is not None:
        return simple
    if pa.types.is_timestamp(type_):
        return f"timestamp[{type_.unit}, {type_.tz}]" if type_.tz else f"timestamp[{type_.unit}]"
    if pa.types.is_decimal128(type_):
        return f"decimal128({type_.precision}, {type_.scale})"
    if pa.types.is_list(type_):
        element = type_.value_field
        return f"list<{show_type(element.type)}{'' if element.nullable else ' not null'}>"
    return f"struct<{show(type_)}>"


def _show_field(field: Any) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else '"' + field.name.replace('"', '""') + '"'
    return f"{name} {show_type(field.type)}{'' if field.nullable else ' not null'}"


class _Reader:
    """A recursive-descent reader over the tokens, one ahead."""

    def __init__(self, text: str) -> None:
        self._tokens = [
            (match.lastindex, match[match.lastindex], match.start(match.lastindex))
            for match in _TOKEN.finditer(text)
            if match.lastindex
        ]
        self._tokens.append((0, "", len(text)))
        self._at = 0

    def columns(self, depth: int) -> list[Any]:
        columns = [self._column(depth)]
        while self._take(","):
            columns.append(self._column(depth))
        return columns

    def expect_end(self) -> None:
        if self._tokens[self._at][0] != 0:
            raise self._wrong("a comma or the end")

    def _column(self, depth: int) -> Any:
        kind, text, _ = self._tokens[self._at]
        if kind == 1 and len(text) > 2:
            name = text[1:-1].replace('""', '"')
        elif kind == 2 and _PLAIN_NAME.fullmatch(text):
            name = text
        else:
            raise self._wrong("a column's name")
        self._at += 1
        type_ = self._type(depth)
        return pa.field(name, type_, nullable=not self._not_null())

    def _not_null(self) -> bool:
        if not self._take("not"):
            return False
        self._expect("null", '"null" after "not"')
        return True

    def _type(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._wrong(f"at most {DEPTH_MAX} levels of nesting")
        kind, word, at = self._tokens[self._at]
        if kind != 2:
            raise self._wrong("a type")
        self._at += 1
        if word in SIMPLE:
            return simple_types()[word]
        if word == "timestamp":
            return self._timestamp()
        if word == "decimal128":
            return self._decimal(at)
        if word == "list":
            self._expect("<", '"<" and the type of the elements')
            element = self._type(depth + 1)
            nullable = not self._not_null()
            self._expect(">", '">" to close the list')
            return pa.list_(pa.field("item", element, nullable=nullable))
        if word == "struct":
            self._expect("<", '"<" and the fields of the struct')
            children = self.columns(depth + 1)
            self._expect(">", 'a comma or ">" to close the struct')
            return pa.struct(children)
        raise Misuse(f'schema, position {at + 1}: unknown type "{word}"', hint=_suggest(word))

    def _timestamp(self) -> Any:
        self._expect("[", '"[" and a unit, as in timestamp[ms, UTC]')
        unit = self._tokens[self._at][1]
        if unit not in UNITS:
            raise self._wrong("a unit: s, ms, us or ns")
        self._at += 1
        zone = None
        if self._take(","):
            kind, zone, _ = self._tokens[self._at]
            if kind != 2:
                raise self._wrong("a time zone such as UTC")
            self._at += 1
        self._expect("]", '"]" to close the timestamp')
        return pa.timestamp(unit, zone)

    def _decimal(self, at: int) -> Any:
        self._expect("(", '"(", precision and scale, as in decimal128(18, 4)')
        precision = self._number("the precision, 1 to 38")
        self._expect(",", "a comma and the scale")
        scale = self._number("the scale")
        self._expect(")", '")" to close the decimal')
        if not 1 <= precision <= 38 or scale > precision:
            raise Misuse(
                f"schema, position {at + 1}: decimal128({precision}, {scale}) needs a precision of 1 to 38"
                " and a scale not above it"
            )
        return pa.decimal128(precision, scale)

    def _number(self, what: str) -> int:
        text = self._tokens[self._at][1]
        if not is_number(text) or len(text) > 3:
            raise self._wrong(what)
        self._at += 1
        return int(text)

    def _take(self, text: str) -> bool:
        if self._tokens[self._at][0] == 1 or self._tokens[self._at][1] != text:
            return False
        self._at += 1
        return True

    def _expect(self, text: str, what: str) -> None:
        if not self._take(text):
            raise self._wrong(what)

    def _wrong(self, expected: str) -> Misuse:
        kind, text, at = self._tokens[self._at]
        found = "the end" if kind == 0 else text if kind == 1 else f'"{text}"'
        return Misuse(f"schema, position {at + 1}: expected {expected}, found {found}")


def _suggest(word: str) -> str | None:
    usual = _USUAL.get(word.lower())
    if usual is None:
        close = get_close_matches(word.lower(), _TYPE_WORDS, 1)
        usual = close[0] if close else None
    return f"did you mean {usual}?" if usual else f"types: {', '.join(_TYPE_WORDS)}"
