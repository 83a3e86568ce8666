"""Which of many: the interests that an event satisfies, the advertisements that an interest overlaps, the principals
that satisfy a policy.

Interests and advertisements are filed as clauses (`tallystick.policy.clauses`). Every different comparison in them is
made once for a question, and the clauses are looked at a column at a time, all of them: for a million interests that
was measured to be as quick as looking up candidates in an interval structure, as the thesis does (Fig. 19), in less
than half of the memory. Formulas that no clauses say exactly are asked themselves. Exact: nothing comes out that does
not satisfy, and nothing that does is missing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from tallystick.errors import Misuse
from tallystick.policy.check import can_be_satisfied
from tallystick.policy.clauses import Array, ClauseTable, clauses_of
from tallystick.policy.evaluate import node_holds
from tallystick.policy.formula import NEVER, Formula, FormulaGate, Leaf, Node, OneOf, Within, all_of, canonical
from tallystick.policy.space import AttributeSet, AttributeSpace

FRESH_MIN = 1024  # additions kept aside at the least
POLICIES_MAX = 1_024  # whose principals a book remembers


@dataclass(frozen=True)
class InterestStatistics:
    interests: int
    clauses: int  # filed
    fresh: int  # not filed yet
    bytes_count: int  # of the filed columns; the formulas themselves come on top


class InterestIndex:
    """Which of many interests does one event satisfy?

    A clause all of whose comparisons hold meets its interest. The thesis (Fig. 19) keeps (subscriber, random number) so
    that two interests of one subscriber are not mixed; here every interest has a name of its own. Additions are kept
    aside and asked one by one until they are worth filing; removals leave a mark until then.
    """

    def __init__(self, fresh_min: int = FRESH_MIN) -> None:
        self._fresh_min = fresh_min
        self._formulas: dict[Hashable, Formula] = {}
        self.file()

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
            self._present[self._numbers.pop(name)] = False

    def match(self, event: AttributeSet) -> list[Hashable]:
        """The names of all interests that `event` satisfies, in the order in which they came."""
        removed = len(self._present) - len(self._numbers)
        if len(self._fresh) + removed > max(self._fresh_min, len(self._formulas) // 8):
            self.file()
        held = dict(event.values)
        met = self._table.possible([_leaf(*one) for one in event.values], otherwise=False) & self._present
        for number in np.flatnonzero(met & ~self._table.exact).tolist():
            met[number] = node_holds(self._formulas[self._names[number]].root, held)
        fresh = [name for name, interest in self._fresh.items() if node_holds(interest.root, held)]
        filed: list[Hashable] = self._names[met].tolist()
        return filed + fresh

    def file(self) -> None:
        """File every interest anew."""
        self._table = ClauseTable(self._formulas.values())
        self._names = np.empty(len(self._formulas), object)
        self._names[:] = list(self._formulas)
        self._numbers = {name: number for number, name in enumerate(self._formulas)}
        self._present = np.ones(len(self._formulas), bool)
        self._fresh: dict[Hashable, Formula] = {}

    def statistics(self) -> InterestStatistics:
        return InterestStatistics(len(self._formulas), self._table.count, len(self._fresh), self._table.bytes_count)


def _leaf(name: str, value: int | tuple[str, ...]) -> Leaf:
    """What an event says of one attribute."""
    return OneOf(name, value) if isinstance(value, tuple) else Within(name, ((value, value),))


class AdvertisementIndex:
    """Which of many advertisements does an interest overlap? Made once of (name, advertisement); immutable.

    An advertisement is a formula over what will be published, an interest one over what is wanted; they overlap if some
    event satisfies both. Two clauses exclude one another exactly if an attribute that both test has no value for both.
    Where clauses say less than the formulas, the pair that is left is decided by the search of
    `tallystick.policy.check`, and counts as overlapping where that search gives up: a match too many is filtered later,
    one too few is lost.
    """

    def __init__(self, advertisements: Iterable[tuple[Hashable, Formula]]) -> None:
        self._advertisements = list(advertisements)
        formulas = [formula for _, formula in self._advertisements]
        self._table = ClauseTable(formulas)
        self._many = {one.name for formula in formulas for one in formula.space.attributes if one.many}

    def overlapping(self, interest: Formula) -> list[Hashable]:
        """The names of all advertisements that `interest` overlaps, in the order in which they were given."""
        clauses, exact = clauses_of(interest)
        possible = np.zeros(len(self._advertisements), bool)
        for clause in clauses:
            single = [leaf for leaf in clause.values() if leaf.attribute not in self._many]
            possible |= self._table.possible(single, otherwise=True)
        return [
            name
            for number, (name, advertisement) in enumerate(self._advertisements)
            if possible[number] and ((exact and self._table.exact[number]) or _overlap(interest, advertisement))
        ]


def _overlap(interest: Formula, advertisement: Formula) -> bool:
    space = AttributeSpace("", interest.space.joined(advertisement.space).attributes)
    root = canonical(all_of([interest.root, advertisement.root]), space)
    return root != NEVER and can_be_satisfied(Formula(space, root))


class PrincipalIndex:
    """Which of many principals satisfy a policy? Made once of (name, attributes); immutable.

    The attributes are kept in columns: for every (attribute, value) the numbers of those who hold it, for every ordered
    attribute its ordinals and their holders. A formula is then set algebra over masks.
    """

    def __init__(self, principals: Iterable[tuple[Hashable, AttributeSet]]) -> None:
        self._names: list[Hashable] = []
        texts: dict[tuple[str, str], list[int]] = {}
        numbers: dict[str, list[tuple[int, int]]] = {}
        for number, (name, held) in enumerate(principals):
            self._names.append(name)
            for attribute, value in held.values:
                if isinstance(value, int):
                    numbers.setdefault(attribute, []).append((value, number))
                else:
                    for one in value:
                        texts.setdefault((attribute, one), []).append(number)
        self._texts = {key: np.array(holders, np.intp) for key, holders in texts.items()}
        self._numbers = {attribute: np.array(held, np.uint64).T for attribute, held in numbers.items()}

    def __len__(self) -> int:
        return len(self._names)

    def satisfying(self, policy: Formula) -> list[Hashable]:
        """The names of all principals that satisfy `policy`, in the order in which they were given."""
        return [self._names[number] for number in np.flatnonzero(self._mask(policy.root)).tolist()]

    def count(self, policy: Formula) -> int:
        return int(np.count_nonzero(self._mask(policy.root)))

    def change(self, old: Formula | None, new: Formula | None) -> tuple[list[Hashable], list[Hashable]]:
        """Whom `new` in the place of `old` admits, and whom it shuts out; None asks nothing of anybody."""
        before, after = (
            np.ones(len(self), bool) if policy is None else self._mask(policy.root) for policy in (old, new)
        )
        admitted, shut_out = (np.flatnonzero(mask).tolist() for mask in (after & ~before, before & ~after))
        return [self._names[number] for number in admitted], [self._names[number] for number in shut_out]

    def _mask(self, node: Node) -> Array:
        if isinstance(node, FormulaGate):
            met: Array = np.sum([self._mask(part) for part in node.parts], axis=0)
            return np.greater_equal(met, node.need)
        mask = np.zeros(len(self._names), bool)
        if isinstance(node, OneOf):
            for value in node.values:
                mask[self._texts.get((node.attribute, value), [])] = True
        elif node.attribute in self._numbers:
            ordinals, holders = self._numbers[node.attribute]
            for low, high in node.intervals:
                mask[holders[(np.uint64(low) <= ordinals) & (ordinals <= np.uint64(high))]] = True
        return mask


class OverlapIndex:
    """Which of many formulas does another overlap? As `AdvertisementIndex`, for formulas that come and go.

    Indexes of one size are joined into one of twice the size, so that n additions cost n log n, and a question asks
    log n of them.
    """

    def __init__(self) -> None:
        self._formulas: dict[Hashable, Formula] = {}
        self._levels: list[tuple[int, AdvertisementIndex]] = []
        self._names: list[Hashable] = []  # in the order of the levels
        self._gone = 0

    def add(self, name: Hashable, formula: Formula) -> None:
        self._formulas[name] = formula
        self._names.append(name)
        size = 1
        while self._levels and self._levels[-1][0] == size:
            size += self._levels.pop()[0]
        self._levels.append((size, self._index(self._names[-size:])))

    def remove(self, name: Hashable) -> None:
        if self._formulas.pop(name, None) is None:
            return
        self._gone += 1
        if self._gone * 2 > len(self._names):
            self._names, self._gone = list(self._formulas), 0
            self._levels = [(len(self._names), self._index(self._names))] if self._names else []

    def overlapping(self, formula: Formula) -> list[Hashable]:
        found = (name for _, index in self._levels for name in index.overlapping(formula))
        return [name for name in dict.fromkeys(found) if name in self._formulas]

    def _index(self, names: Iterable[Hashable]) -> AdvertisementIndex:
        return AdvertisementIndex((name, self._formulas[name]) for name in names if name in self._formulas)


class PolicyBook:
    """Who satisfies a policy, asked again and again. Who is not known satisfies none."""

    def __init__(self) -> None:
        self._principals = PrincipalIndex(())
        self._known: OrderedDict[bytes, frozenset[Hashable]] = OrderedDict()

    def set_principals(self, principals: Iterable[tuple[bytes, AttributeSet]]) -> None:
        self._principals = PrincipalIndex(principals)
        self._known.clear()

    def admits(self, policy: Formula | None, principal: bytes) -> bool:
        if policy is None:
            return True
        key = policy.encode()
        if key not in self._known:
            self._known[key] = frozenset(self._principals.satisfying(policy))
            if len(self._known) > POLICIES_MAX:
                self._known.popitem(last=False)
        return principal in self._known[key]
