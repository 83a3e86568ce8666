"""Which of many principals satisfy a policy?

The attributes of all principals in columns: for every (attribute, value) the numbers of those who hold it, for every
ordered attribute the principals sorted by it, so that an interval is a slice. A formula is then set algebra over masks.
Exact; used by the authority to say whom a policy admits before it is declared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from tallystick.policy.clauses import Array
from tallystick.policy.formula import Formula, FormulaGate, Leaf, Node, OneOf
from tallystick.policy.space import AttributeSet


class PrincipalIndex:
    """Made once from (name, attributes) of all principals; immutable."""

    def __init__(self, principals: Iterable[tuple[Hashable, AttributeSet]]) -> None:
        self._names: list[Hashable] = []
        texts: dict[tuple[str, str], list[int]] = {}
        numbers: dict[str, tuple[list[int], list[int]]] = {}
        for number, (name, held) in enumerate(principals):
            self._names.append(name)
            for attribute, value in held.values:
                if isinstance(value, tuple):
                    for one in value:
                        texts.setdefault((attribute, one), []).append(number)
                else:
                    ordinals, holders = numbers.setdefault(attribute, ([], []))
                    ordinals.append(value)
                    holders.append(number)
        self._texts = {key: np.array(found, np.int64) for key, found in texts.items()}
        self._numbers = {attribute: _sorted(*found) for attribute, found in numbers.items()}

    def __len__(self) -> int:
        return len(self._names)

    def satisfying(self, policy: Formula) -> list[Hashable]:
        """The names of all principals that satisfy `policy`, in the order in which they were given."""
        return [self._names[number] for number in np.flatnonzero(self._mask(policy.root)).tolist()]

    def count(self, policy: Formula) -> int:
        return int(np.count_nonzero(self._mask(policy.root)))

    def _mask(self, node: Node) -> Array:
        if not isinstance(node, FormulaGate):
            mask = np.zeros(len(self._names), bool)
            for holders in self._holders(node):
                mask[holders] = True
            return mask
        met = np.zeros(len(self._names), np.int32)
        for part in node.parts:
            met += self._mask(part)
        return np.greater_equal(met, node.need)

    def _holders(self, leaf: Leaf) -> Iterable[Array]:
        if isinstance(leaf, OneOf):
            nobody = np.zeros(0, np.int64)
            return [self._texts.get((leaf.attribute, value), nobody) for value in leaf.values]
        if leaf.attribute not in self._numbers:
            return []
        ordinals, holders = self._numbers[leaf.attribute]
        ends = np.array(leaf.intervals, np.uint64)
        firsts = np.searchsorted(ordinals, ends[:, 0], "left").tolist()
        lasts = np.searchsorted(ordinals, ends[:, 1], "right").tolist()
        return [holders[first:last] for first, last in zip(firsts, lasts, strict=True)]


def _sorted(ordinals: list[int], holders: list[int]) -> tuple[Array, Array]:
    found = np.array(ordinals, np.uint64)
    order = np.argsort(found, kind="stable")
    return found[order], np.array(holders, np.int64)[order]
