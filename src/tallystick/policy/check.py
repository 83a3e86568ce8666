"""What is wrong with a formula although it is well written: nobody satisfies it, everybody does, no key can be made.

Whether a threshold formula over single-valued attributes can be satisfied is a hard question in general. The search
below is exact and bounded: it chooses one attribute after the other among the cells into which the formula's own
comparisons cut it, stops as soon as the formula is decided, and gives up after `STEPS_MAX` steps. A formula on which it
gives up is refused too: nobody could say whom it admits.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tallystick.errors import Misuse
from tallystick.policy.formula import Formula, Interval, Leaf, OneOf, decide, leaves

STEPS_MAX = 1_000_000  # comparisons evaluated; a second or so

Cell = str | Interval | None  # a value, an interval that no comparison cuts, or none of the values named


def can_be_satisfied(formula: Formula) -> bool:
    """False only if it is certain that nothing satisfies the formula."""
    try:
        return _Search(formula, sought=True).found()
    except Misuse:
        return True


def check_interest(formula: Formula) -> None:
    """Raises `Misuse` if no event can satisfy it."""
    if not _Search(formula, sought=True).found():
        raise Misuse("the formula cannot be satisfied: its comparisons exclude one another")


def check_policy(formula: Formula) -> None:
    """Raises `Misuse` if nobody can satisfy it, everybody does who has its attributes, or no key can be made."""
    for attribute in formula.space.attributes:
        if not attribute.can_lock:
            raise Misuse(
                f'attribute "{attribute.name}" is a real number, and keys are made for whole ones',
                hint="declare it as an integer in a smaller unit",
            )
    check_interest(formula)
    if not _Search(formula, sought=False).found():
        raise Misuse(
            "the formula holds for everybody who has its attributes at all",
            hint="leave the policy away, or say what is asked of them",
        )


class _Search:
    """For a choice of one cell per attribute under which the formula comes out as `sought`."""

    def __init__(self, formula: Formula, *, sought: bool) -> None:
        self._root, self._sought, self._steps = formula.root, sought, 0
        self._size = sum(1 for _ in leaves(formula.root))
        named: dict[str, list[Leaf]] = {}
        for leaf in leaves(formula.root):
            named.setdefault(leaf.attribute, []).append(leaf)
        # Of an attribute with many values all can be held at once, and to falsify, one alone: no cells to choose.
        self._free = {name for name in named if sought and formula.space[name].many}
        self._cells = {
            name: _cells(found, formula.space[name].values, formula.space[name].top)
            for name, found in named.items()
            if name not in self._free
        }

    def found(self) -> bool:
        return self._extend({}, sorted(self._cells, key=lambda name: len(self._cells[name])))

    def _extend(self, chosen: dict[str, Cell], rest: list[str]) -> bool:
        self._steps += self._size
        if self._steps > STEPS_MAX:
            raise Misuse(
                f"whether anybody can satisfy the formula could not be told in {STEPS_MAX} steps",
                hint="name fewer attributes in more than one place",
            )
        decided = decide(self._root, lambda leaf: self._value(leaf, chosen))
        if decided is not None:
            return decided == self._sought
        return any(self._extend({**chosen, rest[0]: cell}, rest[1:]) for cell in self._cells[rest[0]])

    def _value(self, leaf: Leaf, chosen: Mapping[str, Cell]) -> bool | None:
        """True, False, or None while its attribute is not yet chosen."""
        if leaf.attribute in self._free:
            return True
        if leaf.attribute not in chosen:
            return None
        cell = chosen[leaf.attribute]
        if isinstance(leaf, OneOf):
            return cell in leaf.values
        assert isinstance(cell, tuple)
        return any(low <= cell[0] and cell[1] <= high for low, high in leaf.intervals)


def _cells(found: list[Leaf], domain: tuple[str, ...], top: int) -> list[Cell]:
    """What the leaves over one attribute can tell apart."""
    named: set[str] = set()
    cuts = {0, top + 1}
    for leaf in found:
        if isinstance(leaf, OneOf):
            named.update(leaf.values)
        else:
            cuts.update(end for low, high in leaf.intervals for end in (low, high + 1))
    if named:
        other: list[Cell] = [None] if not domain or len(named) < len(domain) else []
        return [*sorted(named), *other]
    return [(low, high - 1) for low, high in pairwise(sorted(cuts))]
