"""Whether a formula holds: for one attribute set, and for columns row by row.

A null, a missing column value and a NaN satisfy no leaf, as an attribute that a principal lacks satisfies none; since
nothing negates, that is the whole rule, and the result has no nulls.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, TypeAlias

from tallystick.errors import Misuse
from tallystick.later import np, pa, pc
from tallystick.policy.attribute import Attribute, AttributeKind, real_of
from tallystick.policy.formula import Formula, FormulaGate, Leaf, Node, OneOf, leaves
from tallystick.policy.space import AttributeSet

Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


def holds(formula: Formula, attributes: AttributeSet) -> bool:
    """Whether one attribute set (or one event) satisfies the formula."""
    return node_holds(formula.root, dict(attributes.values))


def node_holds(node: Node, held: Mapping[str, int | tuple[str, ...]]) -> bool:
    if isinstance(node, FormulaGate):
        met = 0
        for part in node.parts:
            met += node_holds(part, held)
            if met >= node.need:
                return True
        return False
    value = held.get(node.attribute)
    if value is None:
        return False
    if isinstance(node, OneOf):
        return isinstance(value, tuple) and not set(value).isdisjoint(node.values)
    return isinstance(value, int) and any(low <= value <= high for low, high in node.intervals)


def mask(formula: Formula, columns: Mapping[str, Any]) -> Mask:
    """For each row whether it satisfies the formula.

    `columns` maps the attributes' names to Arrow arrays or numpy arrays of one length. Raises `Misuse` for a missing
    column or one of another type than the space declares.
    """
    found: dict[Leaf, Mask] = {}
    for leaf in leaves(formula.root):
        if leaf.attribute not in columns:
            raise Misuse(f'the formula speaks of "{leaf.attribute}", and there is no such column')
        if leaf not in found:
            found[leaf] = _leaf_mask(leaf, formula.space[leaf.attribute], _arrow(columns[leaf.attribute]))
    return _combined(formula.root, found)


def _combined(node: Node, found: Mapping[Leaf, Mask]) -> Mask:
    if not isinstance(node, FormulaGate):
        return found[node]
    masks = [_combined(part, found) for part in node.parts]
    if node.need == 1:
        return np.logical_or.reduce(masks)  # type: ignore[no-any-return]
    if node.need == len(masks):
        return np.logical_and.reduce(masks)  # type: ignore[no-any-return]
    return np.asarray(np.sum(masks, axis=0, dtype=np.int32) >= node.need)


def _arrow(column: Any) -> Any:
    return column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)


def _leaf_mask(leaf: Leaf, attribute: Attribute, column: Any) -> Mask:
    if isinstance(leaf, OneOf):
        met = _text_mask(leaf, attribute, column)
    else:
        column = _ordered(attribute, column)
        met = reduce(pc.or_, [_interval_mask(attribute, column, low, high) for low, high in leaf.intervals])
    filled = pc.fill_null(met, False)
    flat = filled.combine_chunks() if isinstance(filled, pa.ChunkedArray) else filled
    result: Mask = flat.to_numpy(zero_copy_only=False)
    return result


def _text_mask(leaf: OneOf, attribute: Attribute, column: Any) -> Any:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if attribute.kind is AttributeKind.FLAG and pa.types.is_boolean(kind):
        return pc.is_in(column, value_set=pa.array([value == "true" for value in leaf.values]))
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise _wrong_type(attribute, column, "text")
    if pa.types.is_dictionary(column.type):
        column = column.cast(kind)
    return pc.is_in(column, value_set=pa.array(leaf.values, kind))


def _ordered(attribute: Attribute, column: Any) -> Any:
    """The column as numbers that compare as the attribute's values do."""
    if attribute.kind is AttributeKind.DATE:
        if not pa.types.is_date32(column.type):
            raise _wrong_type(attribute, column, "date32")
        return column.cast(pa.int32())
    if attribute.kind is AttributeKind.REAL:
        exact = pa.types.is_integer(column.type) and column.type.bit_width <= 32
        if not (pa.types.is_floating(column.type) or exact):
            raise _wrong_type(attribute, column, "numbers that a double holds exactly")
        return column.cast(pa.float64())
    if not pa.types.is_integer(column.type):
        raise _wrong_type(attribute, column, "whole numbers")
    return column


def _interval_mask(attribute: Attribute, column: Any, low: int, high: int) -> Any:
    if attribute.kind is AttributeKind.REAL:
        # The ends of the range mean no bound at all; between them the ordinals of NaN are never reached.
        floor = -np.inf if low == 0 else real_of(low)
        ceiling = np.inf if high == attribute.top else real_of(high)
    else:
        # Bounds beyond the column's type are cut to it, so that Arrow compares in the column's own type.
        least = 0 if attribute.kind is AttributeKind.DATE else attribute.least
        ends = np.iinfo(column.type.to_pandas_dtype())
        low, high = max(low + least, int(ends.min)), min(high + least, int(ends.max))
        if low > high:
            return pc.and_(pc.is_valid(column), False)
        floor, ceiling = pa.scalar(low, column.type), pa.scalar(high, column.type)
    return pc.and_(pc.greater_equal(column, floor), pc.less_equal(column, ceiling))


def _wrong_type(attribute: Attribute, column: Any, expected: str) -> Misuse:
    return Misuse(
        f'column "{attribute.name}": expected {expected}, found {column.type}',
        hint=f"the space declares it as {attribute.kind.name.lower()}",
    )
