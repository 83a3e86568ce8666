"""Which of many interests does one event satisfy?

Every clause is filed once, under the test that the fewest events can be expected to pass: text tests in a hash map from
(attribute, value), interval tests in an interval structure (thesis, Fig. 19). An event looks up its own values, which
gives few candidates; their other tests are made in columns, and formulas that no clause says exactly are asked
themselves. The thesis keeps (subscriber, random number) so that two interests of one subscriber are not mixed; here
every interest has a number of its own, and a clause belongs to one interest.

The interval structure: the bounds of all intervals cut an attribute into cells; an interval of n cells is filed under
the two or three blocks of 2**level cells, 2**level <= n, that cover it; a value looks up the block it is in at each
level. At most three blocks for an interval and one look-up for a level, and only values within an interval's length
find it.

Exact: what comes out satisfies the interest, and nothing that does is missing. Additions are kept aside and asked one
by one until they are worth filing; removals leave a mark until then.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tallystick.errors import Misuse
from tallystick.policy.clauses import Array, Columns, Gatherer, clauses_of, spans
from tallystick.policy.evaluate import node_holds
from tallystick.policy.formula import Formula, Node
from tallystick.policy.space import AttributeSet

FRESH_MIN = 1024  # additions kept aside at the least
_LEVEL_SHIFT, _ATTRIBUTE_SHIFT = 40, 48  # of the keys of blocks, below the mark that tells them from values
_BLOCK = 1 << 63
_UNREACHED = 1 << 62  # under this key are clauses without a test: every event finds them


@dataclass(frozen=True)
class InterestStatistics:
    interests: int
    clauses: int  # filed, each under up to three blocks or as many values as its set has
    fresh: int  # not filed yet
    bytes_count: int  # of the filed columns; the formulas themselves come on top


class InterestIndex:
    """Interests by name; `match` is exact."""

    def __init__(self) -> None:
        self._fresh: dict[Hashable, Formula] = {}
        self._formulas: dict[Hashable, Formula] = {}
        self._filed = _Filed([], Gatherer())
        self._removed = 0

    def add(self, name: Hashable, interest: Formula) -> None:
        """Raises `Misuse` for a name that is there."""
        if name in self._formulas:
            raise Misuse(f"interest {name!r} is in the index already")
        self._formulas[name] = self._fresh[name] = interest

    def remove(self, name: Hashable) -> None:
        """Raises `Misuse` for a name that is not there."""
        if self._formulas.pop(name, None) is None:
            raise Misuse(f"interest {name!r} is not in the index")
        if self._fresh.pop(name, None) is None:
            self._filed.remove(name)
            self._removed += 1

    def match(self, event: AttributeSet) -> list[Hashable]:
        """The names of all interests that `event` satisfies, in the order in which they came."""
        if len(self._fresh) + self._removed > max(FRESH_MIN, len(self._formulas) // 8):
            self.file()
        held = dict(event.values)
        fresh = [name for name, interest in self._fresh.items() if node_holds(interest.root, held)]
        return self._filed.match(held) + fresh

    def file(self) -> None:
        """File every interest anew."""
        gatherer, names = Gatherer(), []
        inexact: dict[int, Node] = {}
        for number, (name, formula) in enumerate(self._formulas.items()):
            clauses, exact = clauses_of(formula)
            gatherer.add(number, clauses)
            names.append(name)
            if not exact:
                inexact[number] = formula.root
        self._filed = _Filed(names, gatherer, inexact)
        self._fresh, self._removed = {}, 0

    def statistics(self) -> InterestStatistics:
        return InterestStatistics(len(self._formulas), self._filed.count, len(self._fresh), self._filed.bytes_count())


class _Filed:
    """Clauses under the keys of their access tests, the tests of each in the order of their selectivity."""

    def __init__(self, names: Sequence[Hashable], gatherer: Gatherer, inexact: dict[int, Node] | None = None) -> None:
        self._names = np.empty(len(names), object)
        self._names[:] = names
        self._attributes, self._inexact = gatherer.names, inexact or {}
        self._numbers: dict[Hashable, int] | None = None  # by name; made when one is removed
        self._plain = np.ones(len(names), bool)  # neither removed nor in need of being asked itself
        self._plain[list(self._inexact)] = False
        self._texts = np.array(gatherer.texts, bool)
        self._columns = gatherer.columns()
        self._values: dict[tuple[int, str], int] = {}
        self._value_sets: dict[tuple[int, str], list[int]] = {}
        for (attribute, values), number in gatherer.sets.items():
            for value in values:
                self._values.setdefault((attribute, value), len(self._values))
                self._value_sets.setdefault((attribute, value), []).append(number)
        self._set_count = len(gatherer.sets)
        self._cuts = self._all_cuts()
        self._levels: dict[int, list[int]] = {}
        self._keys, self._bounds = self._file(list(gatherer.sets))

    @property
    def count(self) -> int:
        return self._columns.count

    def bytes_count(self) -> int:
        others = (self._keys, self._bounds, *self._access)
        return self._columns.bytes_count() + sum(one.nbytes for one in others)

    # Filing.

    def _all_cuts(self) -> dict[int, Array]:
        """For each attribute with intervals the sorted places at which one begins, or the next after one ends."""
        columns, cuts = self._columns, {}
        for attribute in np.flatnonzero(~self._texts):
            tests = columns.attributes == attribute
            ends = columns.highs[tests]
            after = ends[ends < np.uint64((1 << 64) - 1)] + np.uint64(1)
            cuts[int(attribute)] = np.unique(np.concatenate((columns.lows[tests], after)))
        return cuts

    def _file(self, sets: list[tuple[int, tuple[str, ...]]]) -> tuple[Array, Array]:
        self._sort_tests(sets)
        columns = self._columns
        firsts, lasts = self._cells()
        with_test = np.flatnonzero(np.diff(columns.starts))
        tests = columns.starts[with_test]
        is_text = self._texts[columns.attributes[tests]] if len(tests) else np.zeros(0, bool)
        filed = [self._text_keys(with_test[is_text], columns.lows[tests[is_text]], sets)]
        ordered, cells = with_test[~is_text], tests[~is_text]
        for step in range(3):
            found, mine = self._block_keys(columns.attributes[cells], firsts[cells], lasts[cells], step)
            filed.append((found, ordered[mine]))
        without = np.flatnonzero(np.diff(columns.starts) == 0)
        filed.append((np.full(len(without), _UNREACHED, np.uint64), without))
        keys = np.concatenate([found for found, _ in filed])
        clauses = np.concatenate([found for _, found in filed])
        order = np.argsort(keys, kind="stable")
        different, begins = np.unique(keys[order], return_index=True)
        self._access = _access(columns, clauses[order])
        self._columns = _copied(columns, clauses[order])
        return different, np.append(begins, len(order)).astype(np.int64)

    def _cells(self) -> tuple[Array, Array]:
        """Of every interval test the first and last cell."""
        columns = self._columns
        firsts, lasts = np.zeros(len(columns.attributes), np.int64), np.zeros(len(columns.attributes), np.int64)
        for attribute, cuts in self._cuts.items():
            tests = np.flatnonzero(columns.attributes == attribute)
            firsts[tests] = np.searchsorted(cuts, columns.lows[tests], "right")
            lasts[tests] = np.searchsorted(cuts, columns.highs[tests], "right")
        return firsts, lasts

    def _sort_tests(self, sets: list[tuple[int, tuple[str, ...]]]) -> None:
        """Within every clause, the test that looks the most selective first."""
        columns = self._columns
        firsts, lasts = self._cells()
        shares = np.ones(len(columns.attributes))
        for attribute, cuts in self._cuts.items():
            tests = np.flatnonzero(columns.attributes == attribute)
            shares[tests] = (lasts[tests] - firsts[tests] + 1) / (len(cuts) + 1)
        distinct = np.zeros(max(len(self._texts), 1))
        for attribute, _value in self._values:
            distinct[attribute] += 1
        sizes = np.array([len(values) / distinct[attribute] for attribute, values in sets] or [1.0])
        texts = np.flatnonzero(self._texts[columns.attributes]) if len(self._texts) else np.zeros(0, np.int64)
        shares[texts] = sizes[columns.lows[texts].astype(np.int64)]
        order = np.lexsort((shares, np.repeat(np.arange(columns.count), np.diff(columns.starts))))
        self._columns = replace(
            columns,
            attributes=columns.attributes[order],
            lows=columns.lows[order],
            highs=columns.highs[order],
        )

    def _text_keys(
        self, clauses: Array, numbers: Array, sets: list[tuple[int, tuple[str, ...]]]
    ) -> tuple[Array, Array]:
        """A key for each value of each clause's set."""
        values = [[self._values[attribute, value] for value in found] for attribute, found in sets]
        lengths = np.array([len(found) for found in values] or [0], np.int64)
        begins = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        flat = np.array([value for found in values for value in found], np.uint64)
        index = numbers.astype(np.int64)
        return flat[spans(begins[index], lengths[index])], np.repeat(clauses, lengths[index])

    def _block_keys(self, attributes: Array, firsts: Array, lasts: Array, step: int) -> tuple[Array, Array]:
        """The key of the block `step` places after the one in which each interval begins, where it reaches that far."""
        levels = np.frexp((lasts - firsts + 1).astype(np.float64))[1].astype(np.int64) - 1
        for attribute in np.unique(attributes) if step == 0 else ():
            self._levels[int(attribute)] = [int(one) for one in np.unique(levels[attributes == attribute])]
        blocks = (firsts >> levels) + step
        mine = np.flatnonzero(blocks <= lasts >> levels)
        return _block_key(attributes[mine], levels[mine], blocks[mine]), mine

    # Matching.

    def match(self, held: Mapping[str, int | tuple[str, ...]]) -> list[Hashable]:
        if not len(self._keys):
            return []
        met = np.zeros(len(self._names), bool)
        met[self._columns.owners[self._passed(self._candidates(held), held)]] = True
        for number in np.flatnonzero(met & ~self._plain).tolist():
            met[number] = number in self._inexact and node_holds(self._inexact[number], held)
        found: list[Hashable] = self._names[np.flatnonzero(met)].tolist()
        return found

    def remove(self, name: Hashable) -> None:
        if self._numbers is None:
            self._numbers = {one: number for number, one in enumerate(self._names.tolist())}
        number = self._numbers[name]
        self._plain[number] = False
        self._inexact.pop(number, None)

    def _candidates(self, held: Mapping[str, int | tuple[str, ...]]) -> Array:
        """Where clauses are filed whose access test the event passes."""
        looked_up = list(self._look_up(held))
        wanted = np.array([key for key, _ in looked_up], np.uint64)
        places = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        lows, highs = self._access
        found = []
        for number in np.flatnonzero(self._keys[places] == wanted).tolist():
            value = looked_up[number][1]
            first, end = self._bounds[places[number]], self._bounds[places[number] + 1]
            if value is None:
                found.append(np.arange(first, end))
            else:
                inside = (lows[first:end] <= value) & (value <= highs[first:end])
                found.append(np.flatnonzero(inside) + first)
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _look_up(self, held: Mapping[str, int | tuple[str, ...]]) -> Iterator[tuple[int, np.uint64 | None]]:
        """(key, ordinal to compare with what is filed there)."""
        yield _UNREACHED, None
        for name, value in held.items():
            attribute = self._attributes.get(name)
            if attribute is None or isinstance(value, tuple) != self._texts[attribute]:
                continue
            if isinstance(value, tuple):
                for one in value:
                    if (attribute, one) in self._values:
                        yield self._values[attribute, one], None
                continue
            ordinal = np.uint64(value)
            cell = int(np.searchsorted(self._cuts[attribute], ordinal, "right"))
            for level in self._levels.get(attribute, ()):
                yield _BLOCK | attribute << _ATTRIBUTE_SHIFT | level << _LEVEL_SHIFT | cell >> level, ordinal

    def _passed(self, clauses: Array, held: Mapping[str, int | tuple[str, ...]]) -> Array:
        """Of some clauses those all of whose tests the event passes, one test after the other."""
        columns, kept = self._columns, []
        values, present, good = self._event(held)
        tests, ends = columns.starts[clauses], columns.starts[clauses + 1]
        while len(clauses):
            is_done = tests >= ends
            kept.append(clauses[is_done])
            clauses, tests, ends = clauses[~is_done], tests[~is_done], ends[~is_done]
            attributes, lows = columns.attributes[tests], columns.lows[tests]
            value = values[attributes]
            inside = present[attributes] & (lows <= value) & (value <= columns.highs[tests])
            is_text = self._texts[attributes]
            inside[is_text] = good[lows[is_text].astype(np.int64)]
            clauses, tests, ends = clauses[inside], tests[inside] + 1, ends[inside]
        return np.concatenate(kept) if kept else clauses

    def _event(self, held: Mapping[str, int | tuple[str, ...]]) -> tuple[Array, Array, Array]:
        values = np.zeros(len(self._texts), np.uint64)
        present = np.zeros(len(self._texts), bool)
        good = np.zeros(max(self._set_count, 1), bool)
        for name, value in held.items():
            attribute = self._attributes.get(name)
            if attribute is None or isinstance(value, tuple) != self._texts[attribute]:
                continue
            if isinstance(value, tuple):
                for one in value:
                    good[self._value_sets.get((attribute, one), [])] = True
            else:
                values[attribute], present[attribute] = value, True
        return values, present, good


def _access(columns: Columns, clauses: Array) -> tuple[Array, Array]:
    """The interval of the first test of each clause; of no meaning where that is a set of values, or none is."""
    first = np.minimum(columns.starts[clauses], max(len(columns.lows) - 1, 0))
    return (columns.lows[first], columns.highs[first]) if len(columns.lows) else (columns.lows, columns.highs)


def _copied(columns: Columns, clauses: Array) -> Columns:
    """A clause for each place where one is filed, side by side with those filed there too, less its first test."""
    begins = np.minimum(columns.starts[clauses] + 1, columns.starts[clauses + 1])
    lengths = columns.starts[clauses + 1] - begins
    tests = spans(begins, lengths)
    return Columns(
        columns.owners[clauses],
        np.concatenate(([0], np.cumsum(lengths))),
        columns.attributes[tests],
        columns.lows[tests],
        columns.highs[tests],
    )


def _block_key(attributes: Array, levels: Array, blocks: Array) -> Array:
    parts = attributes.astype(np.uint64) << np.uint64(_ATTRIBUTE_SHIFT) | levels.astype(np.uint64) << np.uint64(
        _LEVEL_SHIFT
    )
    return parts | blocks.astype(np.uint64) | np.uint64(_BLOCK)
