"""The types that a topic's columns may have: checking, normal form, and the encoding of a tree of fields.

A topic's schema lives for years and is read by Arrow, Spark, pandas and polars, so the list is short and
every type on it has one meaning and one layout in memory. Whatever else Arrow offers (dictionaries, large and
view layouts, unions, maps, metadata) is refused with the remedy. Size is bounded, so that a hostile schema is
cheap to reject.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from tallystick.errors import Malformed, Misuse
from tallystick.later import pa

DEPTH_MAX = 8  # levels of nesting; a column of a plain type has one
FIELDS_MAX = 1024  # columns, nested fields counted too: a reader's tables stay manageable
NAME_BYTES_MAX = 255  # as in most databases and file systems

SIMPLE = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "bool", "string", "binary", "date32"),
)  # as Arrow names them too
UNITS = ("s", "ms", "us", "ns")
ZONE = re.compile(r"[A-Za-z0-9_+\-/:]{1,64}")

# What to do about a type that `pa.types.is_<name>` knows.
_REMEDIES = {
    "dictionary": "decode it: column.dictionary_decode()",
    "large_string": "cast it to string",
    "large_binary": "cast it to binary",
    "large_list": "cast it to list",
    "fixed_size_list": "cast it to list",
    "fixed_size_binary": "cast it to binary",
    "string_view": "cast it to string",
    "binary_view": "cast it to binary",
    "list_view": "cast it to list",
    "large_list_view": "cast it to list",
    "map": "use list<struct<key …, value …>>",
    "union": "use a struct with one nullable field per case",
    "float16": "cast it to float32",
    "date64": "cast it to date32 or timestamp[ms]",
    "decimal32": "cast it to decimal128",
    "decimal64": "cast it to decimal128",
    "decimal256": "cast it to decimal128, or use a string",
    "time": "cast it to int64 and name the unit in the column's name",
    "duration": "cast it to int64 and name the unit in the column's name",
    "interval": "use int64 columns and name the unit in the column's name",
    "null": "give the column a type: a column of nulls only has none",
    "run_end_encoded": "decode it: pyarrow.compute.run_end_decode(column)",
}


@cache
def simple_types() -> dict[str, Any]:
    """The types without parameters, by name."""
    return {name: pa.type_for_alias(name) for name in SIMPLE}


@cache
def simple_names() -> dict[Any, str]:
    return {type_: name for name, type_ in simple_types().items()}


def normal_fields(fields: Iterable[Any]) -> list[Any]:
    """`fields` (`pa.Field`s) in normal form, list elements named `item`. Raises `Misuse` for what a topic may
    not use.
    """
    checked = [_normal_field(field, field.name, 1) for field in fields]
    _check_names(checked, "the schema")
    if not checked:
        raise Misuse("the schema has no columns")
    count = sum(1 for field in checked for _ in walk(field))
    if count > FIELDS_MAX:
        raise Misuse(f"the schema has {count} fields, nested ones included, but at most {FIELDS_MAX} are allowed")
    return checked


def _normal_field(field: Any, where: str, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise Misuse(f'column "{where}": nested deeper than {DEPTH_MAX} levels')
    if field.metadata:
        raise Misuse(
            f'column "{where}": carries metadata, which a topic cannot keep',
            hint="drop it: field.remove_metadata(), or schema.remove_metadata() for the whole schema",
        )
    return pa.field(field.name, _normal_type(field.type, where, depth), nullable=field.nullable)


def _normal_type(type_: Any, where: str, depth: int) -> Any:
    if type_ in simple_names():
        return type_
    if isinstance(type_, pa.BaseExtensionType):
        raise _unsuitable(type_, where)
    if pa.types.is_timestamp(type_):
        if type_.tz is not None and not ZONE.fullmatch(type_.tz):
            raise Misuse(f'column "{where}": time zone "{type_.tz}" is not a name such as UTC or Europe/Berlin')
        return type_
    if pa.types.is_decimal128(type_):
        if not 0 <= type_.scale <= type_.precision:
            raise Misuse(f'column "{where}": scale {type_.scale} of {type_} is not between 0 and {type_.precision}')
        return type_
    if pa.types.is_list(type_):
        element = _normal_field(type_.value_field, f"{where}.item", depth + 1)
        return pa.list_(element.with_name("item"))
    if pa.types.is_struct(type_):
        if type_.num_fields == 0:
            raise Misuse(f'column "{where}": a struct needs at least one field')
        children = [_normal_field(child, f"{where}.{child.name}", depth + 1) for child in type_]
        _check_names(children, f'column "{where}"')
        return pa.struct(children)
    raise _unsuitable(type_, where)


def _unsuitable(type_: Any, where: str) -> Misuse:
    is_extension = isinstance(type_, pa.BaseExtensionType)
    fitting = (text for name, text in _REMEDIES.items() if getattr(pa.types, f"is_{name}")(type_))
    remedy = next(fitting, "use its storage type" if is_extension else None)
    return Misuse(f'column "{where}": a topic cannot hold the type {type_}', hint=remedy)


def _check_names(fields: list[Any], where: str) -> None:
    seen: set[str] = set()
    for field in fields:
        name = field.name
        if not name or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
            raise Misuse(f"{where}: the name {name!r} must have 1 to {NAME_BYTES_MAX} bytes, all printable")
        if name in seen:
            raise Misuse(f'{where}: the name "{name}" occurs twice')
        seen.add(name)


def walk(field: Any) -> Iterator[Any]:
    """`field` and everything nested in it, parents before children."""
    yield field
    for i in range(field.type.num_fields):
        yield from walk(field.type.field(i))


# A tree of fields is encoded as the list of its nodes, parents before children, so that the encoding's own
# depth does not grow with the schema's: [name, type, nullable] and, by type, [unit, zone], [precision, scale]
# or [children].


def encode_fields(fields: Iterable[Any]) -> list[list[Any]]:
    """The nodes of `fields`, which are in normal form, in preorder."""
    return [_encode_node(node) for field in fields for node in walk(field)]


def _encode_node(field: Any) -> list[Any]:
    type_ = field.type
    head = [field.name, kind_name(type_), field.nullable]
    if pa.types.is_timestamp(type_):
        return [*head, type_.unit, type_.tz]
    if pa.types.is_decimal128(type_):
        return [*head, type_.precision, type_.scale]
    if pa.types.is_struct(type_):
        return [*head, type_.num_fields]
    return head


def kind_name(type_: Any) -> str:
    """The name of a type without its parameters."""
    simple = simple_names().get(type_)
    if simple is not None:
        return simple
    if pa.types.is_timestamp(type_):
        return "timestamp"
    if pa.types.is_decimal128(type_):
        return "decimal128"
    return "list" if pa.types.is_list(type_) else "struct"


def decode_fields(nodes: Any) -> list[Any]:
    """The fields whose nodes are `nodes`. Raises `Malformed`. Whoever calls compares a fresh encoding with
    the old.
    """
    if not isinstance(nodes, list) or len(nodes) > FIELDS_MAX:
        raise Malformed(f"schema: expected a list of at most {FIELDS_MAX} fields")
    rest = iter(nodes)
    try:
        fields = []
        while (field := _decode_field(rest, 1)) is not None:
            fields.append(field)
    except (TypeError, ValueError, KeyError, pa.ArrowException) as error:
        raise Malformed("schema: a field is not well-formed") from error
    return fields


def _decode_field(rest: Iterator[Any], depth: int) -> Any:
    node = next(rest, None)
    if node is None:
        if depth > 1:
            raise Malformed("schema: a nested field is missing")
        return None
    if depth > DEPTH_MAX:
        raise Malformed(f"schema: nested deeper than {DEPTH_MAX} levels")
    name, kind, nullable, *parameters = node
    if type(name) is not str or type(kind) is not str or type(nullable) is not bool:
        raise Malformed("schema: a field is not well-formed")
    if kind == "timestamp":
        unit, zone = parameters
        type_ = pa.timestamp(unit, zone)
    elif kind == "decimal128":
        precision, scale = parameters
        type_ = pa.decimal128(precision, scale)
    elif kind == "list":
        type_ = pa.list_(_decode_field(rest, depth + 1))
    elif kind == "struct":
        (count,) = parameters
        if type(count) is not int or not 0 < count <= FIELDS_MAX:
            raise Malformed("schema: a struct's number of fields is out of range")
        type_ = pa.struct([_decode_field(rest, depth + 1) for _ in range(count)])
    else:
        type_ = simple_types()[kind]
    return pa.field(name, type_, nullable=nullable)
