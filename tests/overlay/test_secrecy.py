"""k−1 colluders in every virtual node learn nothing: the secret is not in the span of all that they see.

Every quantity of a redistribution is linear in what honest hands drew: the secret, its blind, the coefficients of
every relay's polynomials. A view is a list of such rows: the shares that colluders hold and were sent, their own
polynomials, and all commitments, each as the equation value + η·blind = known. That is what an adversary gets out of
a point who can take logarithms, and η is H's. If the secret's row is no combination of the view's, every secret fits
the view as well as any other.

More is redistributed here than the protocol does: from every contributor set *every* lineage, so that what liars can
bring about by leaving lineages away is covered. Computed modulo a prime of 31 bits, so that numpy holds the products.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product

import numpy as np
import pytest

PRIME = 2**31 - 1
ETA = 1_234_567_891
COUNT, NEED = 3, 2

Row = np.ndarray
Pair = tuple[Row, Row]  # value and blind
Node = tuple[int, ...]


class World:
    """Three relays, two of whom are needed, in each of a tree of virtual nodes; everything as rows over what was drawn.

    A virtual node is named by the branches that lead to it from the publisher's edge, which is `()`.
    """

    def __init__(self, hops: int, branches: int = 1) -> None:
        splits = [COUNT * 3**hop * branches ** (hop + 1) for hop in range(hops)]  # each relay holds 3**hop lineages
        self._drawn = 0
        self._size = 2 * NEED + 2 * (NEED - 1) * sum(splits)
        secret = self._draw()
        self.public: list[Row] = []  # the equations of commitments
        self.seen: dict[tuple[Node, int], list[Row]] = {}  # what a relay receives, holds and draws
        first = self._split(secret, (), None)
        self._grow({index: [share] for index, share in first.items()}, (), hops, branches)
        self.nodes = sorted({node for node, _ in self.seen})
        self._known = reduced(np.array(self.public))[0]

    def _grow(self, held: dict[int, list[Pair]], node: Node, hops: int, branches: int) -> None:
        if len(node) < hops:
            for branch in range(branches):
                child = (*node, branch)
                self._grow(self._hop(held, child), child, hops, branches)

    def _draw(self) -> Pair:
        """Two new columns, from the last one back: the secret is drawn first."""
        pair = np.zeros((2, self._size), np.int64)
        pair[0, -1 - self._drawn], pair[1, -2 - self._drawn] = 1, 1
        self._drawn += 2
        return pair[0], pair[1]

    def _split(self, constant: Pair, node: Node, sender: int | None) -> dict[int, Pair]:
        """Shares by index in `node`, which sees them. The commitments become public, the sender sees what it drew."""
        coefficients = [constant, *(self._draw() for _ in range(NEED - 1))]
        for value, blind in coefficients:
            self.public.append((value + ETA * blind) % PRIME)
            if sender is not None:
                self.seen.setdefault((node[:-1], sender), []).extend((value, blind))
        shares = {}
        for index in range(1, COUNT + 1):
            value = sum(one[0] * index**power for power, one in enumerate(coefficients)) % PRIME
            blind = sum(one[1] * index**power for power, one in enumerate(coefficients)) % PRIME
            self.seen.setdefault((node, index), []).extend((value, blind))
            shares[index] = (value, blind)
        return shares

    def _hop(self, held: dict[int, list[Pair]], node: Node) -> dict[int, list[Pair]]:
        sent = {index: [self._split(share, node, index) for share in shares] for index, shares in held.items()}
        new: dict[int, list[Pair]] = {index: [] for index in range(1, COUNT + 1)}
        for receiver in new:
            for contributors in combinations(sent, NEED):
                weights = np.array(weights_at_zero(contributors))[:, None, None]
                for lineage in range(len(held[1])):
                    pairs = np.array([sent[sender][lineage][receiver] for sender in contributors])
                    new[receiver].append(tuple((pairs * weights % PRIME).sum(axis=0) % PRIME))
        return new

    def view(self, colluders: Iterable[tuple[Node, int]]) -> Row:
        return np.vstack([self._known, *(row for at in colluders for row in self.seen[at])])


def weights_at_zero(indices: tuple[int, ...]) -> list[int]:
    weights = []
    for index in indices:
        weight = 1
        for other in indices:
            if other != index:
                weight = weight * other * pow(other - index, -1, PRIME) % PRIME
        weights.append(weight)
    return weights


def reduced(rows: Row) -> tuple[Row, int]:
    """The rows in echelon form, without those that were combinations of others, and the last column that led one."""
    rows = rows.copy() % PRIME
    found, last = 0, -1
    for column in range(rows.shape[1]):
        pivots = np.flatnonzero(rows[found:, column])
        if not len(pivots):
            continue
        rows[[found, found + pivots[0]]] = rows[[found + pivots[0], found]]
        rows[found] = rows[found] * pow(int(rows[found, column]), -1, PRIME) % PRIME
        others = found + pivots[pivots > 0]  # the one that came down in exchange has no part in this column, or is here
        rows[others] = (rows[others] - rows[others, column, None] * rows[found]) % PRIME
        found, last = found + 1, column
    return rows[:found], last


def knows(view: Row) -> bool:
    """Whether the secret, which stands in the last column, is a combination of rows: then one is left with it alone."""
    return reduced(view)[1] == len(view[0]) - 1


@pytest.mark.parametrize(("hops", "branches"), [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3)])
def test_k_less_one_colluders_in_every_virtual_node_learn_nothing(hops: int, branches: int) -> None:
    world = World(hops, branches)
    for indices in product(range(1, COUNT + 1), repeat=len(world.nodes)):
        assert not knows(world.view(zip(world.nodes, indices, strict=True))), indices


@pytest.mark.parametrize("hops", [1, 2])
def test_k_colluders_in_one_virtual_node_have_the_secret(hops: int) -> None:
    """The negative control: the check sees a secret that is in a view."""
    world = World(hops)
    for node in world.nodes:
        for pair in combinations(range(1, COUNT + 1), NEED):
            assert knows(world.view((node, index) for index in pair))


def test_feldmans_commitments_give_the_secret_to_whoever_takes_logarithms() -> None:
    """Why commitments are blinded: without the blinding polynomials each is an equation in the values alone."""
    world = World(1)
    bare = np.array(world.public)
    bare[:, 0::2] = 0
    assert knows(bare)
    assert not knows(world.view([]))
