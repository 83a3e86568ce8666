"""The attribute space of a topic's content: what an interest may say of its columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tallystick.errors import Misuse
from tallystick.policy.attribute import Attribute, category, day, flag, integer, real, string
from tallystick.policy.space import AttributeSpace


def content_space(schema: Any, names: dict[str, list[str]] | None = None) -> AttributeSpace:
    """The space of an Arrow schema's columns: numbers, texts, flags and days; `names` lists the values of categories.

    Columns of other types (lists, timestamps, …), and those whose name is no word, cannot be spoken of and are left
    out. Raises `Misuse` for values of a column that is no text.
    """
    closed = dict(names or {})
    found = [_attribute(field.name, field.type, closed.pop(field.name, None)) for field in schema]
    if closed:
        raise Misuse(f'column "{min(closed)}" is not in the schema')
    return AttributeSpace.of("", *(one for one in found if one is not None))


def _attribute(name: str, kind: Any, values: list[str] | None) -> Attribute | None:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if values is not None and not is_text:
        raise Misuse(f'column "{name}": only text has a list of values, found {kind}')
    if "." in name:
        return None  # that would be a tenant's attribute
    try:
        if is_text:
            return string(name) if values is None else category(name, values)
        return _ordered(name, kind)
    except Misuse:
        if values is not None:
            raise
        return None


def _ordered(name: str, kind: Any) -> Attribute | None:
    if pa.types.is_boolean(kind):
        return flag(name)
    if pa.types.is_integer(kind):
        width = kind.bit_width
        return integer(name, width, least=-(1 << width - 1) if pa.types.is_signed_integer(kind) else 0)
    if pa.types.is_floating(kind):
        return real(name)
    return day(name) if pa.types.is_date32(kind) else None
