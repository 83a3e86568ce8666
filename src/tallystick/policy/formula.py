"""Formulas: monotone trees of thresholds over leaves, in one canonical form.

A leaf says that an attribute has one of some values (`OneOf`) or lies in one of some intervals (`Within`); a gate asks
for `need` of its parts, so that AND needs all and OR needs one. Nothing negates: who lacks an attribute satisfies no
leaf over it, and whoever gains one never loses what it could open. That is what CP-ABE can enforce, and it makes nulls
simple in columns.

Canonical form: gates of one kind flattened, leaves over one attribute merged, parts absorbed by others dropped, the
rest in the order of their encodings. Texts that differ in order, nesting or spelling of comparisons have equal bytes;
formulas that are only logically equal (a distributed OR, say) may still differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from tallystick import wire
from tallystick.errors import Malformed, Misuse
from tallystick.policy.attribute import Attribute
from tallystick.policy.space import AttributeSpace, decode_versioned

LEAVES_MAX = 512
ALTERNATIVES_MAX = 4096  # values and intervals of all leaves together
DEPTH_MAX = 32
FORMULA_BYTES_MAX = 48 * 1024  # a lock carries it, and has 64 KiB in all

Interval = tuple[int, int]  # both ends belong to it


@dataclass(frozen=True, slots=True)
class OneOf:
    attribute: str
    values: tuple[str, ...]  # sorted


@dataclass(frozen=True, slots=True)
class Within:
    attribute: str
    intervals: tuple[Interval, ...]  # sorted, with gaps between them


@dataclass(frozen=True, slots=True)
class FormulaGate:
    need: int
    parts: tuple[Node, ...]


Leaf = OneOf | Within
Node = OneOf | Within | FormulaGate

NEVER = FormulaGate(1, ())
ALWAYS = FormulaGate(0, ())


def all_of(parts: Sequence[Node]) -> FormulaGate:
    return FormulaGate(len(parts), tuple(parts))


def any_of(parts: Sequence[Node]) -> FormulaGate:
    return FormulaGate(1, tuple(parts))


@dataclass(frozen=True)
class Formula:
    """A formula and the declarations of the attributes it names: complete in itself, equal if its bytes are."""

    space: AttributeSpace
    root: Node

    @classmethod
    def of(cls, root: Node, space: AttributeSpace) -> Formula:
        """The canonical form of `root`. Raises `Misuse` if nothing can satisfy it."""
        check_size(root)
        root = canonical(root, space)
        if root == NEVER:
            raise Misuse("the formula cannot be satisfied: its comparisons exclude one another")
        declared = AttributeSpace("", space.only(leaf.attribute for leaf in leaves(root)).attributes)
        formula = cls(declared, root)
        if len(formula.encode()) > FORMULA_BYTES_MAX:
            raise Misuse(f"the formula takes {len(formula.encode())} bytes, at most {FORMULA_BYTES_MAX} expected")
        return formula

    @cached_property
    def _encoded(self) -> bytes:
        names = [attribute.name for attribute in self.space.attributes]
        return wire.encode([1, [one.fields() for one in self.space.attributes], list(_postfix(self.root, names))])

    def encode(self) -> bytes:
        return self._encoded

    @classmethod
    def decode(cls, data: bytes) -> Formula:
        """Raises `Malformed` for anything but the bytes of a formula in canonical form."""
        if len(data) > FORMULA_BYTES_MAX:
            raise Malformed(f"formula: {len(data)} bytes, at most {FORMULA_BYTES_MAX} expected")
        attributes, steps = decode_versioned(data, "formula", 3)
        if type(attributes) is not list or type(steps) is not list or len(steps) > 2 * LEAVES_MAX:
            raise Malformed("formula: expected [version, attributes, steps]")
        try:
            space = AttributeSpace("", tuple(Attribute.of_fields(item) for item in attributes))
            formula = cls.of(_from_postfix(steps, space), space)
        except Misuse as error:
            raise Malformed(f"formula: {error}") from error
        if formula.encode() != data:
            raise Malformed("formula: not in canonical form")
        return formula

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formula) and self.encode() == other.encode()

    def __hash__(self) -> int:
        return hash(self.encode())


def leaves(node: Node) -> Iterator[Leaf]:
    """From left to right, each as often as it occurs."""
    if isinstance(node, FormulaGate):
        for part in node.parts:
            yield from leaves(part)
    else:
        yield node


def decide(node: Node, decide_leaf: Callable[[Leaf], bool | None]) -> bool | None:
    """Whether a node holds, or None while that hangs on leaves of which `decide_leaf` says None."""
    if not isinstance(node, FormulaGate):
        return decide_leaf(node)
    values = [decide(part, decide_leaf) for part in node.parts]
    if values.count(True) >= node.need:
        return True
    return False if len(values) - values.count(False) < node.need else None


def check_size(root: Node) -> None:
    """Raises `Misuse` beyond the bounds."""
    count = alternatives = 0
    waiting = [(root, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > DEPTH_MAX:
            raise Misuse(f"the formula is nested deeper than {DEPTH_MAX} levels")
        if isinstance(node, FormulaGate):
            waiting += [(part, depth + 1) for part in node.parts]
            continue
        count += 1
        alternatives += len(node.values if isinstance(node, OneOf) else node.intervals)
        if count > LEAVES_MAX or alternatives > ALTERNATIVES_MAX:
            raise Misuse(
                f"the formula has more than {LEAVES_MAX} comparisons or {ALTERNATIVES_MAX} alternatives",
                hint="give the group of principals an attribute of its own",
            )


# Canonical form.


def canonical(node: Node, space: AttributeSpace) -> Node:
    """The one form of `node`; `NEVER` or `ALWAYS` where nothing is left to ask."""
    if isinstance(node, OneOf):
        return OneOf(node.attribute, tuple(sorted(set(node.values)))) if node.values else NEVER
    if isinstance(node, Within):
        united = unite(node.intervals)
        return Within(node.attribute, united) if united else NEVER
    parts = [canonical(part, space) for part in node.parts]
    need = node.need - parts.count(ALWAYS)
    parts = [part for part in parts if part not in (ALWAYS, NEVER)]
    if need <= 0:
        return ALWAYS
    if need > len(parts):
        return NEVER
    if need in (1, len(parts)):
        return _canonical_gate(parts, space, any_kind=need == 1)
    return FormulaGate(need, tuple(sorted(parts, key=_order)))


def _canonical_gate(parts: Iterable[Node], space: AttributeSpace, *, any_kind: bool) -> Node:
    merged: dict[str, Leaf] = {}
    rest: list[Node] = []
    for part in _flattened(parts, any_kind=any_kind):
        # Of an attribute with many values two can be held at once, so that two leaves are not one.
        if isinstance(part, FormulaGate) or (not any_kind and space[part.attribute].many):
            rest.append(part)
            continue
        known = merged.get(part.attribute)
        both = part if known is None else _union(known, part) if any_kind else intersection(known, part)
        if both is None:
            return NEVER
        merged[part.attribute] = both
    return _gate([*merged.values(), *rest], any_kind=any_kind)


def _flattened(parts: Iterable[Node], *, any_kind: bool) -> Iterator[Node]:
    for part in parts:
        if isinstance(part, FormulaGate) and part.need == (1 if any_kind else len(part.parts)):
            yield from part.parts
        else:
            yield part


def _gate(parts: list[Node], *, any_kind: bool) -> Node:
    """An AND or OR without repetitions and without parts that another part makes idle (a || a && b)."""
    different = {_order(part): part for part in parts}
    inner = {order: _factors(order, part, any_kind) for order, part in different.items()}
    kept = [
        different[order]
        for order in sorted(different)
        if len(inner[order]) == 1 or not any(inner[other] < inner[order] for other in different)
    ]
    if len(kept) == 1:
        return kept[0]
    return FormulaGate(1 if any_kind else len(kept), tuple(kept))


def _factors(order: bytes, part: Node, any_kind: bool) -> frozenset[bytes]:
    """What a part of an OR is an AND of, and the other way round; itself if it is neither."""
    if isinstance(part, FormulaGate) and part.need == (len(part.parts) if any_kind else 1):
        return frozenset(_order(one) for one in part.parts)
    return frozenset((order,))


def unite(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sorted, with neighbours and overlaps joined; empty ones vanish."""
    united: list[Interval] = []
    for low, high in sorted(interval for interval in intervals if interval[0] <= interval[1]):
        if united and low <= united[-1][1] + 1:
            united[-1] = (united[-1][0], max(united[-1][1], high))
        else:
            united.append((low, high))
    return tuple(united)


def _union(first: Leaf, second: Leaf) -> Leaf:
    if isinstance(first, OneOf) and isinstance(second, OneOf):
        return OneOf(first.attribute, tuple(sorted({*first.values, *second.values})))
    assert isinstance(first, Within)
    assert isinstance(second, Within)
    return Within(first.attribute, unite((*first.intervals, *second.intervals)))


def intersection(first: Leaf, second: Leaf) -> Leaf | None:
    """What satisfies both leaves over one single-valued attribute, or None if nothing does."""
    if isinstance(first, OneOf) and isinstance(second, OneOf):
        values = tuple(value for value in first.values if value in second.values)
        return OneOf(first.attribute, values) if values else None
    assert isinstance(first, Within)
    assert isinstance(second, Within)
    intervals = unite((max(a, c), min(b, d)) for a, b in first.intervals for c, d in second.intervals)
    return Within(first.attribute, intervals) if intervals else None


def _order(node: Node) -> bytes:
    return wire.encode(list(_postfix(node, None)))


# Encoding: a flat list in postfix order, since nesting is bounded there.


def _postfix(node: Node, names: list[str] | None) -> Iterator[list[Any]]:
    if isinstance(node, FormulaGate):
        for part in node.parts:
            yield from _postfix(part, names)
        yield [3, node.need, len(node.parts)]
        return
    which: Any = node.attribute if names is None else names.index(node.attribute)
    if isinstance(node, OneOf):
        yield [1, which, list(node.values)]
    else:
        yield [2, which, [list(interval) for interval in node.intervals]]


def _from_postfix(steps: list[Any], space: AttributeSpace) -> Node:
    stack: list[Node] = []
    for step in steps:
        if not (isinstance(step, list) and len(step) == 3 and all(type(item) is int for item in step[:2])):
            raise Malformed("formula: a step is [kind, number, …]")
        kind, number, content = step
        if kind == 3:
            if type(content) is not int or not 1 <= number <= content <= len(stack):
                raise Malformed("formula: a gate takes parts that are there")
            parts = tuple(stack[-content:])
            del stack[-content:]
            stack.append(FormulaGate(number, parts))
        else:
            stack.append(_leaf(kind, number, content, space))
    if len(stack) != 1:
        raise Malformed("formula: the steps make more than one formula, or none")
    return stack[0]


def _leaf(kind: int, number: int, content: Any, space: AttributeSpace) -> Leaf:
    if not 0 <= number < len(space.attributes) or type(content) is not list or not content:
        raise Malformed("formula: a leaf names an attribute and its values")
    attribute = space.attributes[number]
    if kind == 1 and attribute.is_text and all(type(value) is str for value in content):
        return OneOf(attribute.name, tuple(attribute.text(value) for value in content))
    if kind == 2 and not attribute.is_text and all(_is_interval(item, attribute) for item in content):
        intervals = tuple((low, high) for low, high in content)
        if all(high + 1 < low for (_, high), (low, _) in pairwise(intervals)):
            return Within(attribute.name, intervals)
    raise Malformed(f'formula: not a leaf over attribute "{attribute.name}"')


def _is_interval(item: Any, attribute: Attribute) -> bool:
    return (
        isinstance(item, list)
        and [type(end) for end in item] == [int, int]
        and 0 <= item[0] <= item[1] <= attribute.top
    )
