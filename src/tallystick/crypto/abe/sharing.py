"""Linear secret sharing over a tree of traits: rows, shares, and the coefficients that put the secret together.

A row belongs to a set of traits, all of which a key must hold to use it: the traits directly below one AND share a row
(docs/decisions/0012-one-row-for-an-and.md says why that is as safe as a row each, and the tests check it by linear
algebra). AND splits a secret into a sum, OR repeats it, a threshold evaluates a polynomial at 1, 2, 3, …: so the
coefficients of AND and OR are all one, and those of thresholds small fractions.

Invariant, on which the scheme's security hangs: two rows with a trait in common have different *occurrences* (the
paper's ρ, its greatest value τ), and every occurrence has randomness of its own. Without it the quotient of two rows of
one trait shows a difference of shares to everybody, and `(A || P) && (A || Q)` opens with P alone.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tallystick.errors import Misuse
from tallystick.policy.traits import TraitGate, TraitTree

TRAITS_MAX = 8192  # of one key: sixty 32-bit numbers
ORDER = 52435875175126190479447740508185965837690552500527637822603658699938581184513  # of the groups
ROWS_MAX = 768  # 48 bytes each, of the 64 KiB that a lock may take
OCCURRENCES_MAX = 64  # an opener may need a pairing for each
_PAIRING_ROWS = 8  # what a pairing costs, in rows parsed

Traits = frozenset[bytes]


@dataclass(frozen=True)
class ShareRow:
    traits: Traits
    occurrence: int


@dataclass(frozen=True)
class _Gate:
    need: int
    parts: tuple[_Gate | int, ...]  # an integer is a row


@dataclass(frozen=True)
class Program:
    """The rows of a tree in order, and the tree over their numbers."""

    rows: tuple[ShareRow, ...]
    root: _Gate | int

    @property
    def occurrences(self) -> int:
        return max(row.occurrence for row in self.rows) + 1


def program_of(tree: TraitTree) -> Program:
    """The same program for the same tree, on both sides. Raises `Misuse` if they are too many."""
    found: list[Traits] = []
    root = _numbered(tree, found)
    return Program(tuple(_bounded(_with_occurrences(found))), root)


def shares(program: Program, secret: int, randoms: Iterator[int]) -> list[int]:
    """The share of every row."""
    found = [0] * len(program.rows)
    _share(program.root, secret % ORDER, randoms, found)
    return found


def coefficients(program: Program, held: Container[bytes]) -> dict[int, Fraction] | None:
    """{row: coefficient} such that the shares times these sum up to the secret, or None if `held` does not satisfy it.

    Of several ways it takes one that asks for few rows and few occurrences (each of which costs a pairing).
    """
    prices = {
        number: 1 + _PAIRING_ROWS * (row.occurrence > 0)
        for number, row in enumerate(program.rows)
        if all(trait in held for trait in row.traits)
    }
    chosen = _choose(program.root, prices)
    if chosen is None:
        return None
    found: dict[int, Fraction] = {}
    _weigh(chosen[1], Fraction(1), found)
    return found


def _flat(tree: TraitGate) -> Iterator[TraitTree]:
    is_all = tree.need == len(tree.parts)
    for part in tree.parts:
        if isinstance(part, TraitGate) and part.need == (len(part.parts) if is_all else 1):
            yield from _flat(part)
        else:
            yield part


def _numbered(tree: TraitTree, found: list[Traits]) -> _Gate | int:
    """The tree over row numbers: ANDs and ORs flattened, the traits directly below an AND in one row."""
    if isinstance(tree, bytes):
        return _new_row(frozenset((tree,)), found)
    if tree.need not in (1, len(tree.parts)):
        return _Gate(tree.need, tuple(_numbered(part, found) for part in tree.parts))
    parts = list(_flat(tree))
    nodes: list[_Gate | int] = []
    is_all = tree.need == len(tree.parts)
    if is_all and (traits := frozenset(part for part in parts if isinstance(part, bytes))):
        nodes.append(_new_row(traits, found))
    nodes += [_numbered(part, found) for part in parts if not (is_all and isinstance(part, bytes))]
    return nodes[0] if len(nodes) == 1 else _Gate(len(nodes) if is_all else 1, tuple(nodes))


def _new_row(traits: Traits, found: list[Traits]) -> int:
    if len(found) == ROWS_MAX:
        raise Misuse(
            f"the policy takes more than {ROWS_MAX} rows",
            hint="give the group of principals an attribute of its own, or the number another encoding",
        )
    found.append(traits)
    return len(found) - 1


def _with_occurrences(found: Sequence[Traits]) -> Iterator[ShareRow]:
    """Each row gets the first occurrence at which none of its traits was used before."""
    used: list[set[bytes]] = []
    for traits in found:
        occurrence = next((number for number, one in enumerate(used) if one.isdisjoint(traits)), len(used))
        if occurrence == len(used):
            used.append(set())
        used[occurrence] |= traits
        yield ShareRow(traits, occurrence)


def _bounded(rows: Iterable[ShareRow]) -> Iterator[ShareRow]:
    """Given up at the first row too many: each is compared with all occurrences before it."""
    for row in rows:
        if row.occurrence >= OCCURRENCES_MAX:
            raise Misuse(
                f"the policy repeats one comparison more than {OCCURRENCES_MAX} times",
                hint="name it once, outside of what differs",
            )
        yield row


def _share(node: _Gate | int, secret: int, randoms: Iterator[int], found: list[int]) -> None:
    if isinstance(node, int):
        found[node] = secret
    elif node.need == 1:
        for part in node.parts:
            _share(part, secret, randoms, found)
    elif node.need == len(node.parts):
        split = [next(randoms) for _ in node.parts[1:]]
        for part, share in zip(node.parts, [(secret - sum(split)) % ORDER, *split], strict=True):
            _share(part, share, randoms, found)
    else:
        polynomial = [secret, *(next(randoms) for _ in range(node.need - 1))]
        for point, part in enumerate(node.parts, 1):
            value = 0
            for coefficient in reversed(polynomial):
                value = (value * point + coefficient) % ORDER
            _share(part, value, randoms, found)


_Chosen = tuple[int, object]  # (price, row | [(weight, chosen)])


def _choose(node: _Gate | int, prices: Mapping[int, int]) -> _Chosen | None:
    if isinstance(node, int):
        return (prices[node], node) if node in prices else None
    options = [(point, _choose(part, prices)) for point, part in enumerate(node.parts, 1)]
    good = sorted(((one[0], point, one[1]) for point, one in options if one is not None), key=lambda one: one[:2])
    if len(good) < node.need:
        return None
    taken = good[: node.need]
    if node.need in (1, len(node.parts)):
        weights = [Fraction(1)] * node.need
    else:
        weights = _lagrange([point for _, point, _ in taken])
    inner = [(weight, chosen) for weight, (_, _, chosen) in zip(weights, taken, strict=True)]
    return sum(price for price, _, _ in taken), inner


def _weigh(chosen: object, weight: Fraction, found: dict[int, Fraction]) -> None:
    if isinstance(chosen, int):
        found[chosen] = weight
        return
    assert isinstance(chosen, list)
    for factor, inner in chosen:
        _weigh(inner, weight * factor, found)


def _lagrange(points: Sequence[int]) -> list[Fraction]:
    """The weights that give a polynomial's value at zero from its values at `points`."""
    weights = []
    for point in points:
        weight = Fraction(1)
        for other in points:
            if other != point:
                weight *= Fraction(other, other - point)
        weights.append(weight)
    return weights
