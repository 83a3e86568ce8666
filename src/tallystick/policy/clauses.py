"""Formulas as alternatives of plain conjunctions, in columns: what the indexes are made of.

A formula becomes clauses, each a conjunction with at most one test per attribute: an interval, or a set of values.
Where it can be said exactly in few clauses it is; otherwise the clauses say something weaker, the formula is marked,
and who uses them asks the formula itself in the end. Weaker, never stronger: nothing that satisfies a formula is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import numpy as np

from tallystick.errors import Misuse
from tallystick.policy.formula import Formula, FormulaGate, Leaf, Node, OneOf, intersection
from tallystick.policy.space import AttributeSpace

CLAUSES_MAX = 16  # of one formula; beyond that it is asked itself

Array = np.ndarray[Any, np.dtype[Any]]
Clause = dict[str, Leaf]


def clauses_of(formula: Formula) -> tuple[list[Clause], bool]:
    """(clauses, whether they say exactly what the formula says)."""
    found = _expand(formula.root)
    exact = found is not None
    if found is None:
        found = [_certain(formula.root)]
    clauses = []
    for leaves in found:
        clause, plain = _merged(leaves, formula.space)
        exact = exact and plain
        if clause is not None:
            clauses.append(clause)
    return clauses, exact


def _expand(node: Node) -> list[tuple[Leaf, ...]] | None:
    """The alternatives of a node, or None if they are too many."""
    if not isinstance(node, FormulaGate):
        return [(node,)]
    parts = [_expand(part) for part in node.parts]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
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
    """One test per attribute (None: they exclude one another), and whether nothing was lost in merging."""
    clause: Clause = {}
    plain = True
    for leaf in leaves:
        known = clause.get(leaf.attribute)
        if known is None:
            clause[leaf.attribute] = leaf
        elif space[leaf.attribute].many:
            plain = False  # both values must be there; one is tested here
        else:
            both = intersection(known, leaf)
            if both is None:
                return None, plain
            clause[leaf.attribute] = both
    plain = plain and all(isinstance(leaf, OneOf) or len(leaf.intervals) == 1 for leaf in clause.values())
    return clause, plain


@dataclass(frozen=True)
class Columns:
    """The tests of many clauses, sorted by clause: clause `c` has those from `starts[c]` to `starts[c + 1]`."""

    owners: Array  # of each clause: the number of its formula
    starts: Array
    attributes: Array  # of each test: the number of its attribute
    lows: Array  # of an interval; of a set of values its number
    highs: Array

    @property
    def count(self) -> int:
        return len(self.owners)

    def bytes_count(self) -> int:
        columns = (self.owners, self.starts, self.attributes, self.lows, self.highs)
        return sum(column.nbytes for column in columns)


@dataclass
class Gatherer:
    """Collects clauses and numbers what they name."""

    names: dict[str, int] = field(default_factory=dict)
    texts: list[bool] = field(default_factory=list)  # of each attribute: whether it holds text
    sets: dict[tuple[int, tuple[str, ...]], int] = field(default_factory=dict)
    _owners: list[int] = field(default_factory=list)
    _lengths: list[int] = field(default_factory=list)
    _tests: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, owner: int, clauses: Sequence[Clause]) -> None:
        for clause in clauses:
            self._owners.append(owner)
            self._lengths.append(len(clause))
            for leaf in clause.values():
                self._tests.append(self._test(leaf))

    def _test(self, leaf: Leaf) -> tuple[int, int, int]:
        is_text = isinstance(leaf, OneOf)
        number = self.names.get(leaf.attribute)
        if number is None:
            number = self.names[leaf.attribute] = len(self.names)
            self.texts.append(is_text)
        if self.texts[number] != is_text:
            raise Misuse(f'attribute "{leaf.attribute}" is text in one formula and a number in another')
        if isinstance(leaf, OneOf):
            return number, self.sets.setdefault((number, leaf.values), len(self.sets)), 0
        return number, leaf.intervals[0][0], leaf.intervals[-1][1]

    def columns(self) -> Columns:
        tests = np.array(self._tests, np.uint64).reshape(-1, 3)
        starts = np.concatenate(([0], np.cumsum(np.array(self._lengths, np.int64))))
        return Columns(
            np.array(self._owners, np.int32),
            starts.astype(np.int64),
            tests[:, 0].astype(np.int16),
            np.ascontiguousarray(tests[:, 1]),
            np.ascontiguousarray(tests[:, 2]),
        )


def spans(starts: Array, lengths: Array) -> Array:
    """The numbers from each start on, as many as its length, one after the other."""
    total = int(lengths.sum())
    shift = np.repeat(starts - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
    found: Array = np.arange(total, dtype=np.int64) + shift
    return found
