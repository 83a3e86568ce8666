"""Formulas as alternatives of plain conjunctions, in columns: what the indexes are made of.

A formula becomes clauses, each a conjunction with at most one leaf per attribute. Where it can be said exactly in few
clauses it is; otherwise the clauses say something weaker, the formula is marked, and who uses them asks the formula
itself in the end. Weaker, never stronger: nothing that satisfies a formula is lost.

The leaves of many formulas are few different ones, so each is kept once: what a question decides of every leaf is
looked up for every test of every clause, a column at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product, takewhile
from typing import Any

import numpy as np

from tallystick.errors import Misuse
from tallystick.policy.formula import Formula, FormulaGate, Leaf, Node, OneOf, Within, intersection
from tallystick.policy.space import AttributeSpace

CLAUSES_MAX = 16  # of one formula; beyond that it is asked itself

Array = np.ndarray[Any, np.dtype[Any]]
Clause = dict[str, Leaf]


def clauses_of(formula: Formula) -> tuple[list[Clause], bool]:
    """(clauses, whether they say exactly what the formula says)."""
    found = _expand(formula.root)
    alternatives = [_certain(formula.root)] if found is None else found
    merged = [_merged(leaves, formula.space) for leaves in alternatives]
    exact = found is not None and all(plain for _, plain in merged)
    return [clause for clause, _ in merged if clause is not None], exact


def _expand(node: Node) -> list[tuple[Leaf, ...]] | None:
    """The alternatives of a node, or None if they are too many."""
    if not isinstance(node, FormulaGate):
        return [(node,)]
    known = [alternatives for part in node.parts if (alternatives := _expand(part)) is not None]
    if len(known) < len(node.parts):
        return None
    found: list[tuple[Leaf, ...]] = []
    for chosen in combinations(known, node.need):
        for joined in product(*chosen):
            found.append(tuple(leaf for leaves in joined for leaf in leaves))
            if len(found) > CLAUSES_MAX:
                return None
    return found


def _certain(node: Node) -> tuple[Leaf, ...]:
    """Leaves without which a node cannot hold."""
    if not isinstance(node, FormulaGate):
        return (node,)
    if node.need < len(node.parts):
        return ()
    return tuple(leaf for part in node.parts for leaf in _certain(part))


def _merged(leaves: Sequence[Leaf], space: AttributeSpace) -> tuple[Clause | None, bool]:
    """One leaf per attribute (None: they exclude one another), and whether nothing was lost in merging."""
    clause: Clause = {}
    plain = True
    for leaf in leaves:
        known = clause.get(leaf.attribute)
        if known is not None and space[leaf.attribute].many:
            plain = False  # both values must be there; one is tested here
            continue
        both = leaf if known is None else intersection(known, leaf)
        if both is None:
            return None, plain
        clause[leaf.attribute] = both
    return clause, plain


class ClauseTable:
    """The clauses of many formulas, and which formulas a question leaves possible."""

    def __init__(self, formulas: Iterable[Formula]) -> None:
        """Raises `Misuse` for an attribute that is text in one formula and a number in another."""
        self._leaves: dict[Leaf | None, int] = {None: 0}  # their numbers; None always holds, for clauses without a test
        exact, found = [], []
        for number, formula in enumerate(formulas):
            clauses, is_exact = clauses_of(formula)
            exact.append(is_exact)
            for clause in clauses:
                found.append((number, [self._number(leaf) for leaf in clause.values() or [None]]))
        found.sort(key=lambda one: len(one[1]), reverse=True)  # the longest first, as `_column` expects
        self.exact = np.array(exact, bool)  # of each formula: whether its clauses say all of it
        self._owners = np.array([owner for owner, _ in found], np.intp)  # of each clause: the number of its formula
        tests = [numbers for _, numbers in found]
        self._tests = [_column(tests, place) for place in range(len(tests[0]) if tests else 0)]
        self._texts, self._intervals = _by_attribute(self._leaves)

    def _number(self, leaf: Leaf | None) -> int:
        return self._leaves.setdefault(leaf, len(self._leaves))

    @property
    def count(self) -> int:
        return len(self._owners)

    @property
    def bytes_count(self) -> int:
        columns = [column for columns in self._intervals.values() for column in columns]
        return sum(one.nbytes for one in (self.exact, self._owners, *self._tests, *columns))

    def possible(self, question: Iterable[Leaf], otherwise: bool) -> Array:
        """For every formula whether one of its clauses shares a value with `question` for each attribute it tests;
        `otherwise` says what holds of attributes that the question does not name."""
        good = np.full(len(self._leaves), otherwise)
        for leaf in question:
            if isinstance(leaf, OneOf) and leaf.attribute in self._texts:
                holders = self._texts[leaf.attribute]
                for value in holders.keys() - set(leaf.values) if otherwise else ():
                    good[holders[value]] = False
                for value in leaf.values:
                    good[holders.get(value, [])] = True
            elif isinstance(leaf, Within) and leaf.attribute in self._intervals:
                numbers, lows, highs = self._intervals[leaf.attribute]
                good[numbers] = False
                for low, high in leaf.intervals:
                    good[numbers[(lows <= np.uint64(high)) & (np.uint64(low) <= highs)]] = True
        good[0] = True
        whole, possible = np.ones(self.count, bool), np.zeros(len(self.exact), bool)
        for tests in self._tests:
            whole[: len(tests)] &= good.take(tests)
        possible[self._owners[whole]] = True
        return possible


def _column(tests: Sequence[Sequence[int]], place: int) -> Array:
    """The test at that place in every clause which is so long; the longest come first."""
    return np.array([one[place] for one in takewhile(lambda one: place < len(one), tests)], np.intp)


def _by_attribute(
    leaves: Mapping[Leaf | None, int],
) -> tuple[dict[str, dict[str, list[int]]], dict[str, tuple[Array, Array, Array]]]:
    """By attribute the leaves that name each value; and of each interval its leaf, its low end and its high end."""
    texts: dict[str, dict[str, list[int]]] = {}
    intervals: dict[str, list[tuple[int, int, int]]] = {}
    for leaf, number in leaves.items():
        if isinstance(leaf, OneOf):
            for value in leaf.values:
                texts.setdefault(leaf.attribute, {}).setdefault(value, []).append(number)
        elif leaf is not None:
            intervals.setdefault(leaf.attribute, []).extend((number, low, high) for low, high in leaf.intervals)
    for name in texts.keys() & intervals.keys():
        raise Misuse(f'attribute "{name}" is text in one formula and a number in another')
    columns = {name: np.array(rows, np.uint64).T for name, rows in intervals.items()}
    return texts, {name: (numbers.astype(np.int64), lows, highs) for name, (numbers, lows, highs) in columns.items()}
