"""Which of many advertisements does an interest overlap?

An advertisement is a formula over what will be published, an interest one over what is wanted; they overlap if some
event satisfies both. Two clauses exclude one another exactly if an attribute that both test has no value for both, so
the tests of all advertisements over one attribute are compared with the interest's in one go. Where clauses say less
than the formulas, the pair that is left is decided by the search of `tallystick.policy.check`. Exact, but for pairs on
which that search gives up, which count as overlapping: a match too many is filtered later, one too few is lost.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import numpy as np

from tallystick.policy.check import can_be_satisfied
from tallystick.policy.clauses import Array, Clause, Gatherer, clauses_of
from tallystick.policy.formula import NEVER, Formula, OneOf, all_of, canonical
from tallystick.policy.space import AttributeSpace


class AdvertisementIndex:
    """Made once from (name, advertisement) of all publishers; immutable."""

    def __init__(self, advertisements: Iterable[tuple[Hashable, Formula]]) -> None:
        self._names: list[Hashable] = []
        self._formulas: list[Formula] = []
        self._exact: list[bool] = []
        gatherer = Gatherer()
        for number, (name, formula) in enumerate(advertisements):
            clauses, exact = clauses_of(formula)
            gatherer.add(number, clauses)
            self._names.append(name)
            self._formulas.append(formula)
            self._exact.append(exact)
        self._attributes, self._sets = gatherer.names, gatherer.sets
        self._many = {one.name for formula in self._formulas for one in formula.space.attributes if one.many}
        self._columns = gatherer.columns()
        self._clauses = np.repeat(np.arange(self._columns.count), np.diff(self._columns.starts))

    def overlapping(self, interest: Formula) -> list[Hashable]:
        """The names of all advertisements that `interest` overlaps, in the order in which they were given."""
        clauses, exact = clauses_of(interest)
        possible = np.zeros(len(self._names), bool)
        for clause in clauses:
            possible[self._columns.owners[self._compatible(clause)]] = True
        return [
            self._names[number]
            for number in np.flatnonzero(possible).tolist()
            if (exact and self._exact[number]) or _overlap(interest, self._formulas[number])
        ]

    def _compatible(self, clause: Clause) -> Array:
        """For every clause of ours whether it and `clause` can hold together."""
        columns = self._columns
        good = np.ones(columns.count, bool)
        for name, leaf in clause.items():
            attribute = self._attributes.get(name)
            if attribute is None or name in self._many:
                continue
            tests = np.flatnonzero(columns.attributes == attribute)
            if isinstance(leaf, OneOf):
                common = _sets_with(self._sets, attribute, leaf.values)
                excluded = ~common[columns.lows[tests].astype(np.int64)]
            else:
                low, high = np.uint64(leaf.intervals[0][0]), np.uint64(leaf.intervals[-1][1])
                excluded = (columns.highs[tests] < low) | (high < columns.lows[tests])
            good[self._clauses[tests[excluded]]] = False
        return good


def _overlap(interest: Formula, advertisement: Formula) -> bool:
    space = AttributeSpace("", interest.space.joined(advertisement.space).attributes)
    root = canonical(all_of([interest.root, advertisement.root]), space)
    return root != NEVER and can_be_satisfied(Formula(space, root))


def _sets_with(sets: Mapping[tuple[int, tuple[str, ...]], int], attribute: int, values: tuple[str, ...]) -> Array:
    """For every set whether it belongs to the attribute and has one of the values."""
    wanted = set(values)
    return np.array([number == attribute and not wanted.isdisjoint(held) for number, held in sets], bool)
