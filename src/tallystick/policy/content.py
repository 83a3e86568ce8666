"""The attribute space of a topic's content: what an interest may say of its columns, and which rows it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tallystick.errors import Misuse
from tallystick.later import pa
from tallystick.policy.attribute import Attribute, AttributeKind, category, day, flag, integer, real, string
from tallystick.policy.check import check_interest
from tallystick.policy.evaluate import Mask, mask
from tallystick.policy.formula import Formula, leaves
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSet, AttributeSpace

# A type that an absent column of each kind may have: its values are null.
_ARROW = {
    AttributeKind.FLAG: "bool",
    AttributeKind.CATEGORY: "string",
    AttributeKind.STRING: "string",
    AttributeKind.INTEGER: "int64",
    AttributeKind.DATE: "date32",
    AttributeKind.REAL: "float64",
}


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


def read_interest(text: str, schema: Any) -> Formula:
    """The interest that a text means over an Arrow schema's columns. Raises `Misuse` with what is wrong where."""
    interest = parse(text, content_space(schema), "interest")
    check_interest(interest)
    return interest


def read_content(said: str | Mapping[str, Any], schema: Any) -> Formula | AttributeSet:
    """What a publisher says that it will publish: a formula over an Arrow schema's columns, or values of some of them.
    Raises `Misuse`."""
    return read_interest(said, schema) if isinstance(said, str) else content_space(schema).values(said)


def wanted_rows(interest: Formula, batch: Any) -> Mask:
    """Which rows of an Arrow batch the interest means; what is said of a column that is not there holds for none."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name in {leaf.attribute for leaf in leaves(interest.root)} - set(columns):
        columns[name] = pa.nulls(batch.num_rows, pa.type_for_alias(_ARROW[interest.space[name].kind]))
    return mask(interest, columns)


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
