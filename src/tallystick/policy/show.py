"""From formula to text: what `parse` reads back to the same formula, and the same in words."""

from __future__ import annotations

import re

from tallystick.policy.attribute import Attribute, AttributeKind, real_of, real_ordinal
from tallystick.policy.formula import Formula, FormulaGate, Interval, Leaf, Node, OneOf
from tallystick.policy.space import AttributeSpace

_BARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


def show(formula: Formula) -> str:
    """The formula as text, with full names; `parse(show(f), space) == f` for every space that declares its names."""
    return _text(formula.root, formula.space)


def in_words(formula: Formula) -> list[str]:
    """The formula as lines of prose, indented by depth."""
    return list(_lines(formula.root, formula.space, ""))


def _text(node: Node, space: AttributeSpace) -> str:
    if not isinstance(node, FormulaGate):
        return " || ".join(_terms(node, space))
    if node.need == 1:
        return " || ".join(_text(part, space) for part in node.parts)
    if node.need == len(node.parts):
        return " && ".join(_enclosed(part, space) for part in node.parts)
    return f"{node.need} of ({', '.join(_text(part, space) for part in node.parts)})"


def _enclosed(node: Node, space: AttributeSpace) -> str:
    text = _text(node, space)
    is_any = node.need == 1 if isinstance(node, FormulaGate) else len(_terms(node, space)) > 1
    return f"({text})" if is_any else text


def _terms(leaf: Leaf, space: AttributeSpace) -> list[str]:
    attribute = space[leaf.attribute]
    if isinstance(leaf, OneOf):
        if attribute.kind is AttributeKind.FLAG and leaf.values == ("true",):
            return [leaf.attribute]
        values = [_quoted(value) for value in leaf.values]
        return [f"{leaf.attribute}::{values[0]}" if len(values) == 1 else f"{leaf.attribute} in ({', '.join(values)})"]
    if attribute.kind is AttributeKind.REAL and leaf.intervals == ((0, attribute.top),):
        return [f"{leaf.attribute} < 0", f"{leaf.attribute} >= 0"]  # no literal names the ends
    return [_interval(attribute, interval) for interval in leaf.intervals]


def _interval(attribute: Attribute, interval: Interval) -> str:
    name, (low, high) = attribute.name, interval
    if low == high and _is_literal(attribute, low):
        return f"{name} == {attribute.show(low)}"
    bounds = [_bound(attribute, low, ">", -1)] if low > 0 else []
    bounds += [_bound(attribute, high, "<", 1)] if high < attribute.top else []
    if not bounds:
        return f"{name} >= {attribute.show(0)}"
    if len(bounds) == 2 and all(bound[1] == "=" for bound in bounds):
        return f"{name} in {attribute.show(low)}..{attribute.show(high)}"
    if len(bounds) == 2:
        return f"({name} {bounds[0]} && {name} {bounds[1]})"
    return f"{name} {bounds[0]}"


def _bound(attribute: Attribute, ordinal: int, sign: str, beyond: int) -> str:
    """`>= 3`, or for reals `> 120` where the bound is the double next to 120."""
    inclusive, exclusive = f"{sign}= {attribute.show(ordinal)}", f"{sign} {attribute.show(ordinal + beyond)}"
    if attribute.kind is AttributeKind.REAL and _is_literal(attribute, ordinal + beyond):
        return min(exclusive, inclusive, key=len) if _is_literal(attribute, ordinal) else exclusive
    return inclusive


def _is_literal(attribute: Attribute, ordinal: int) -> bool:
    """Minus zero, infinities and NaN have a place among the doubles but no literal."""
    if attribute.kind is not AttributeKind.REAL:
        return True
    value = real_of(ordinal)
    return value - value == 0 and real_ordinal(value) == ordinal


def _quoted(value: str) -> str:
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _lines(node: Node, space: AttributeSpace, indent: str) -> list[str]:
    if not isinstance(node, FormulaGate):
        return [indent + _phrase(node, space)]
    if node.need == len(node.parts):
        head = "all of these:"
    else:
        head = "one of these:" if node.need == 1 else f"at least {node.need} of these {len(node.parts)}:"
    return [indent + head, *(line for part in node.parts for line in _lines(part, space, indent + "  "))]


def _phrase(leaf: Leaf, space: AttributeSpace) -> str:
    attribute = space[leaf.attribute]
    if isinstance(leaf, OneOf):
        verb = "includes" if attribute.many else "is"
        return f"{leaf.attribute} {verb} {' or '.join(leaf.values)}"
    return f"{leaf.attribute} {' or '.join(_span(attribute, interval) for interval in leaf.intervals)}"


def _span(attribute: Attribute, interval: Interval) -> str:
    low, high = interval
    if low == high:
        return f"is {attribute.show(low)}"
    if low == 0:
        return "has any value" if high == attribute.top else f"is at most {attribute.show(high)}"
    if high == attribute.top:
        return f"is at least {attribute.show(low)}"
    return f"lies from {attribute.show(low)} to {attribute.show(high)}"
