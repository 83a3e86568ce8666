"""From attributes and formulas to traits, the only thing that CP-ABE knows.

A key holds traits, a lock asks for them. A text attribute has one trait for each value. A number has traits for what
can be said of it, in one of three encodings that trade the size of keys against the size of locks; for 32 bits and one
comparison:

    encoding   traits of a key       rows of a lock       how
    bits       32                    up to 32             a trait for each bit (Bethencourt, Sahai and Waters 4.3)
    prefix     33                    up to 32, 16 usual   a trait for each prefix; an interval is a cover of prefixes
    radix16    122                   up to 8              at each hexadecimal digit, under the digits before it,
                                                          a trait for each bound that the digit keeps

An equality is one row in all of them. A trait is the deterministic encoding of [name, kind, …], so that no two
attributes, values or positions share one.

A formula of few bytes can ask for very many traits (every interval of a 64-bit number up to 126), and whoever opens a
lock makes the tree before it knows whether it can. So a tree is given up at `TREE_TRAITS_MAX`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tallystick import wire
from tallystick.errors import Misuse
from tallystick.policy.attribute import Attribute, Encoding
from tallystick.policy.formula import Formula, FormulaGate, Node, OneOf
from tallystick.policy.space import AttributeSet, AttributeSpace

TREE_TRAITS_MAX = 16_384  # of one formula, each as often as it occurs: twice what a key can hold; 50 ms

_VALUE, _BIT, _PREFIX, _AT_LEAST, _AT_MOST, _EXACT, _PRESENT = range(7)


@dataclass(frozen=True)
class TraitGate:
    need: int
    parts: tuple[TraitTree, ...]


TraitTree = bytes | TraitGate


def traits_of(attributes: AttributeSet, space: AttributeSpace) -> frozenset[bytes]:
    """Every trait that a key for these attributes holds."""
    found: set[bytes] = set()
    for name, value in attributes.values:
        if isinstance(value, tuple):
            found.update(wire.encode([name, _VALUE, text]) for text in value)
        else:
            found.update(number_traits(space[name], value))
    return frozenset(found)


def trait_tree(formula: Formula) -> TraitTree:
    """The formula over traits. Raises `Misuse` if one of its attributes can have none, or if they are too many."""
    return _Trees(formula.space).tree(formula.root)


def with_encoding(formula: Formula, encoding: Encoding) -> Formula:
    """The same formula, all its numbers in one encoding: to compare what each would cost."""
    attributes = tuple(one if one.is_text else replace(one, encoding=encoding) for one in formula.space.attributes)
    return Formula(AttributeSpace(formula.space.namespace, attributes), formula.root)


def number_traits(attribute: Attribute, ordinal: int) -> Iterator[bytes]:
    """The traits of one number."""
    return _ENCODED[attribute.encoding][0](attribute, ordinal)


class _Trees:
    """Makes the trees of one formula's nodes, and counts their traits."""

    def __init__(self, space: AttributeSpace) -> None:
        self._space, self._left = space, TREE_TRAITS_MAX

    def tree(self, node: Node) -> TraitTree:
        if isinstance(node, FormulaGate):
            return TraitGate(node.need, tuple(self.tree(part) for part in node.parts))
        if isinstance(node, OneOf):
            return _any(self._counted(wire.encode([node.attribute, _VALUE, value])) for value in node.values)
        attribute = self._space[node.attribute]
        if not attribute.can_lock:
            raise Misuse(f'attribute "{attribute.name}" is a real number, and keys are made for whole ones')
        _, make = _ENCODED[attribute.encoding]
        return _any(self._counted(make(attribute, low, high)) for low, high in node.intervals)

    def _counted(self, tree: TraitTree) -> TraitTree:
        self._left -= _size(tree)
        if self._left < 0:
            raise Misuse(
                f"the policy asks for more than {TREE_TRAITS_MAX} traits",
                hint="give the group of principals an attribute of its own, or the number another encoding",
            )
        return tree


def _size(tree: TraitTree) -> int:
    return 1 if isinstance(tree, bytes) else sum(map(_size, tree.parts))


def _any(parts: Iterable[TraitTree]) -> TraitTree:
    found = tuple(parts)
    return found[0] if len(found) == 1 else TraitGate(1, found)


def _all(parts: Iterable[TraitTree]) -> TraitTree:
    found = tuple(parts)
    return found[0] if len(found) == 1 else TraitGate(len(found), found)


# Bits.


def _bit_traits(attribute: Attribute, ordinal: int) -> Iterator[bytes]:
    for place in range(attribute.bits):
        yield _bit(attribute, place, ordinal >> place & 1)


def _bit(attribute: Attribute, place: int, bit: int) -> bytes:
    return wire.encode([attribute.name, _BIT, place, bit])


def _bit_tree(attribute: Attribute, low: int, high: int) -> TraitTree:
    if low == high:
        return _all(_bit_traits(attribute, low))
    bounds = [_bit_bound(attribute, low, 1)] if low > 0 else []
    bounds += [_bit_bound(attribute, high, 0)] if high < attribute.top else []
    return _all(bounds) if bounds else _any(_bit(attribute, 0, bit) for bit in (0, 1))


def _bit_bound(attribute: Attribute, bound: int, bit: int) -> TraitTree:
    """At least `bound` (bit 1) or at most (bit 0), from the last bit to the first.

    Where the bound has the bit itself, the value must have it and keep the bound below; where it has not, having it
    decides.
    """
    tree: TraitTree | None = None  # what the lower bits must keep; None: nothing
    for place in range(attribute.bits):
        here = _bit(attribute, place, bit)
        if bound >> place & 1 == bit:
            tree = here if tree is None else TraitGate(2, (here, tree))
        elif tree is not None:
            tree = TraitGate(1, (here, tree))
    assert tree is not None
    return tree


# Prefixes.


def _prefix_traits(attribute: Attribute, ordinal: int) -> Iterator[bytes]:
    for length in range(attribute.bits + 1):
        yield _prefix(attribute, length, ordinal >> attribute.bits - length)


def _prefix(attribute: Attribute, length: int, prefix: int) -> bytes:
    return wire.encode([attribute.name, _PREFIX, length, prefix])


def _prefix_tree(attribute: Attribute, low: int, high: int) -> TraitTree:
    return _any(_prefix(attribute, length, prefix) for length, prefix in cover(low, high, attribute.bits))


def cover(low: int, high: int, bits: int) -> Iterator[tuple[int, int]]:
    """The fewest prefixes (length, value) whose numbers of `bits` bits are those from `low` to `high`."""
    while low <= high:
        free = (low & -low).bit_length() - 1 if low else bits
        free = min(free, (high - low + 1).bit_length() - 1)
        yield bits - free, low >> free
        low += 1 << free


# Radix 16.


def _digits(attribute: Attribute, ordinal: int) -> Iterator[tuple[int, int, int]]:
    """(position, the digits before it, digit), the most significant first."""
    count = (attribute.bits + 3) // 4
    for position in range(count):
        shift = 4 * (count - 1 - position)
        yield position, ordinal >> shift + 4, ordinal >> shift & 15


def _radix16_traits(attribute: Attribute, ordinal: int) -> Iterator[bytes]:
    yield wire.encode([attribute.name, _PRESENT])
    yield wire.encode([attribute.name, _EXACT, ordinal])
    for position, before, digit in _digits(attribute, ordinal):
        for bound in range(1, digit + 1):
            yield wire.encode([attribute.name, _AT_LEAST, position, before, bound])
        for bound in range(digit, 15):
            yield wire.encode([attribute.name, _AT_MOST, position, before, bound])


def _radix16_tree(attribute: Attribute, low: int, high: int) -> TraitTree:
    if low == high:
        return wire.encode([attribute.name, _EXACT, low])
    bounds = [_radix16_bound(attribute, low, _AT_LEAST)] if low > 0 else []
    bounds += [_radix16_bound(attribute, high, _AT_MOST)] if high < attribute.top else []
    return _all(bounds) if bounds else wire.encode([attribute.name, _PRESENT])


def _radix16_bound(attribute: Attribute, bound: int, kind: int) -> TraitTree:
    """One row for each digit at which a number can leave the bound's digits for the better, and one to keep them."""
    digits = list(_digits(attribute, bound))
    idle, step = (0, 1) if kind == _AT_LEAST else (15, -1)
    while digits[-1][2] == idle:
        digits.pop()
    rows = [
        wire.encode([attribute.name, kind, position, before, digit + step])
        for position, before, digit in digits[:-1]
        if 0 <= digit + step <= 15
    ]
    position, before, digit = digits[-1]
    return _any([*rows, wire.encode([attribute.name, kind, position, before, digit])])


_Traits = Callable[[Attribute, int], Iterator[bytes]]
_Tree = Callable[[Attribute, int, int], TraitTree]
_ENCODED: dict[Encoding, tuple[_Traits, _Tree]] = {
    Encoding.BITS: (_bit_traits, _bit_tree),
    Encoding.PREFIX: (_prefix_traits, _prefix_tree),
    Encoding.RADIX16: (_radix16_traits, _radix16_tree),
}
