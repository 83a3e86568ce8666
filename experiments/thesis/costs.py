"""Experiments 1 and 2 of the thesis (7.2.2, 7.2.3): key generation, encryption and decryption as attributes are added.

The setup is the thesis's: an attribute is added to the interest (the key) and to the access policy in each step, five
runs, the mean of the CPU time; experiment 1 joins by AND only and by OR only up to 50 attributes, experiment 2 by a mix
of both up to 100, with strings alone and with 32-bit numbers. Two schemes run: BSW07, the thesis's, and ours. The
thesis ran the `cpabe` toolkit, a process for each step; ours are functions on BLS12-381, so shapes are compared, not
times. What a row is judged by no machine changes, and all of it is counted in what the schemes made: the points and the
bytes of the serialised key and capsule, and the pairings that opening took. The time stands beside.

Two deviations. The thesis makes keys from the interest, here they are made from attributes that an authority grants;
the traits are the same. And a capsule of ours is bounded (768 rows, 60 KiB), which a hundred numbers as bags of bits
are beyond: the bounds are the product's, not the scheme's, and are lifted here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from statistics import mean

from experiments.bsw07 import scheme as bsw07
from experiments.results import Plot
from tallystick import wire
from tallystick.crypto.abe import capsule as capsules
from tallystick.crypto.abe import group, sharing
from tallystick.crypto.abe.capsule import decapsulate, encapsulate
from tallystick.crypto.abe.keys import AttributeMasterKey, epoch_trait
from tallystick.policy.attribute import Encoding, category, integer
from tallystick.policy.formula import Formula, Node, OneOf, Within, all_of, any_of
from tallystick.policy.space import AttributeSpace
from tallystick.policy.traits import TraitGate, trait_tree, traits_of, with_encoding

RUNS = 5
EPOCH = 1
MADE = {
    "keygen": "key_points",
    "encapsulate": "capsule_points",
    "decapsulate": "pairings",
}  # what an operation shows by


@dataclass(frozen=True)
class Row:
    scheme: str  # bsw07 or fabeo
    policy: str  # and, or, strings, numbers
    operation: str
    attributes: int
    key_points: int
    capsule_points: int
    key_bytes: int  # of its points
    capsule_bytes: int
    pairings: int  # of opening
    cpu_ms: float  # of the operation, the mean of the runs


@dataclass(frozen=True)
class _Subject:
    """A policy of so many attributes, and a principal that holds them all."""

    policy: str
    attributes: int
    formula: Formula
    traits: frozenset[bytes]


def experiment_1(seed: int, counts: Sequence[int], runs: int = RUNS) -> Iterator[Row]:
    """Strings joined by AND only and by OR only."""
    for count in counts:
        space = _strings(seed, count)
        leaves: list[Node] = [OneOf(one.name, one.values[:1]) for one in space.attributes]
        held = space.values({one.name: one.values[0] for one in space.attributes})
        for policy, root in (("and", all_of(leaves)), ("or", any_of(leaves))):
            yield from _measured(_Subject(policy, count, Formula.of(root, space), traits_of(held, space)), runs)


def experiment_2(seed: int, counts: Sequence[int], *, with_numbers: bool, runs: int = RUNS) -> Iterator[Row]:
    """A mix of AND and OR, drawn by the seed, over strings or over 32-bit numbers (as bags of bits)."""
    for count in counts:
        random = Random(f"{seed}/{count}")  # noqa: S311 (a policy, not a key)
        space = _numbers(count) if with_numbers else _strings(seed, count)
        if with_numbers:
            bound = 1 << 31
            leaves: list[Node] = [Within(one.name, ((random.randrange(bound), one.top),)) for one in space.attributes]
            held = space.values({one.name: random.randrange(bound, 1 << 32) for one in space.attributes})
        else:
            leaves = [OneOf(one.name, one.values[:1]) for one in space.attributes]
            held = space.values({one.name: one.values[0] for one in space.attributes})
        root = leaves[0]
        for leaf in leaves[1:]:
            root = random.choice((all_of, any_of))([root, leaf])
        policy = "numbers" if with_numbers else "strings"
        # Thirty-two levels are our bound for texts; a chain of a hundred joins is made canonical directly.
        formula = with_encoding(Formula(AttributeSpace("", space.attributes), root), Encoding.BITS)
        yield from _measured(_Subject(policy, count, formula, traits_of(held, formula.space)), runs)


def _strings(seed: int, count: int) -> AttributeSpace:
    return AttributeSpace.of("t", *(category(f"a{number:03}", [f"v{seed}", "z"]) for number in range(count)))


def _numbers(count: int) -> AttributeSpace:
    return AttributeSpace.of("t", *(integer(f"n{number:03}", 32, encoding=Encoding.BITS) for number in range(count)))


def _measured(subject: _Subject, runs: int) -> Iterator[Row]:
    tree = TraitGate(2, (epoch_trait(EPOCH), trait_tree(subject.formula)))
    traits = [*subject.traits, epoch_trait(EPOCH)]
    peer, master = bsw07.setup(b"thesis"), AttributeMasterKey.generate(bytes(32))
    with _unbounded():
        peer_key, key = bsw07.keygen(peer, traits, b"key"), master.issue(b"key", subject.traits, [EPOCH])
        ciphertext, peer_secret = bsw07.encapsulate(peer, tree, b"seed")
        capsule, secret = encapsulate(master.public, subject.formula, EPOCH, b"", bytes(32))
        work: dict[tuple[str, str], Callable[[], object]] = {
            ("bsw07", "keygen"): lambda: bsw07.keygen(peer, traits, b"key"),
            ("bsw07", "encapsulate"): lambda: bsw07.encapsulate(peer, tree, b"seed"),
            ("bsw07", "decapsulate"): lambda: bsw07.decapsulate(peer_key, ciphertext),
            ("fabeo", "keygen"): lambda: master.issue(b"key", subject.traits, [EPOCH]),
            ("fabeo", "encapsulate"): lambda: encapsulate(master.public, subject.formula, EPOCH, b"", bytes(32)),
            ("fabeo", "decapsulate"): lambda: decapsulate(key, capsule, b""),
        }
        found: dict[str, tuple[int, ...]] = {}
        for scheme, made, expected in (
            ("bsw07", (peer_key.encode(), ciphertext.encode()), peer_secret),
            ("fabeo", (points_of_key(key.encode()), points_of_capsule(capsule.encode())), secret),
        ):
            with _pairings() as pairings:
                assert work[scheme, "decapsulate"]() == expected
            sizes = [sum(map(len, points)) for points in made]
            found[scheme] = (*(count_points(points) for points in made), *sizes, len(pairings))
        for (scheme, operation), one in work.items():
            cpu_ms = mean(_cpu_ms(one) for _ in range(runs))
            yield Row(scheme, subject.policy, operation, subject.attributes, *found[scheme], cpu_ms)


def points_of_key(encoded: bytes) -> list[bytes]:
    """The points in one of our serialised keys (docs/formats/policy-locks.md)."""
    _, _, secret, randomness, _, parts, epochs = wire.decode(encoded, "attribute key")
    return [secret, randomness, *_split(parts, group.G1_BYTES), *(part for _, part in epochs)]


def points_of_capsule(encoded: bytes) -> list[bytes]:
    """The points in one of our serialised capsules."""
    *_, head, occurrences, rows = wire.decode(encoded, "capsule")
    return [head, *_split(occurrences, group.G2_BYTES), *_split(rows, group.G1_BYTES)]


def _split(points: bytes, length: int) -> list[bytes]:
    return [points[first : first + length] for first in range(0, len(points), length)]


def count_points(points: Iterable[bytes]) -> int:
    """How many there are; raises `Malformed` if one of them is none."""
    read = {group.G1_BYTES: group.decode_g1, group.G2_BYTES: group.decode_g2}
    return len([read[len(one)](one, "what a scheme made") for one in points])


@contextmanager
def _pairings() -> Iterator[list[object]]:
    """One item for every pairing that is computed meanwhile."""
    taken: list[object] = []
    pair = group.pair

    def counted(one: object, other: object) -> object:
        taken.append(one)
        return pair(one, other)

    group.pair = counted
    try:
        yield taken
    finally:
        group.pair = pair


@contextmanager
def _unbounded() -> Iterator[None]:
    """Capsules as large as their formulas."""
    bounds = sharing.ROWS_MAX, capsules.CAPSULE_BYTES_MAX
    sharing.ROWS_MAX, capsules.CAPSULE_BYTES_MAX = 1 << 16, 1 << 24
    try:
        yield
    finally:
        sharing.ROWS_MAX, capsules.CAPSULE_BYTES_MAX = bounds


def _cpu_ms(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return 1e3 * (time.process_time() - started)


def plot(rows: Sequence[Row], operation: str | None, title: str) -> Plot:
    """What one operation made by scheme and policy, or all of them by scheme; and the time beside."""
    made: dict[str, list[tuple[float, float]]] = {}
    times: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if operation in (None, row.operation):
            line = f"{row.scheme}, {row.policy if operation else MADE[row.operation]}"
            made.setdefault(line, []).append((row.attributes, getattr(row, MADE[row.operation])))
            line = f"{row.scheme}, {row.policy if operation else row.operation}"
            times.setdefault(line, []).append((row.attributes, row.cpu_ms))
    beside = Plot("The time beside", "attributes", "CPU time, ms", times)
    return Plot(title, "attributes", MADE[operation] if operation else "count", made, beside=beside)


def growth(rows: Sequence[Row], scheme: str, policy: str, column: str) -> list[int]:
    """A column's values from the fewest attributes to the most."""
    chosen = {row.attributes: getattr(row, column) for row in rows if (row.scheme, row.policy) == (scheme, policy)}
    return [chosen[count] for count in sorted(chosen)]


Steps = dict[tuple[str, str], int]  # (scheme, column): for each attribute


def outside(rows: Sequence[Row], policy: str, exactly: Steps, at_most: Steps | None = None) -> list[str]:
    """What is not three and so many for each attribute, or is more than that."""
    counts, missed = sorted({row.attributes for row in rows}), []
    for steps, is_bound in ((exactly, False), (at_most or {}, True)):
        for (scheme, column), step in steps.items():
            found, band = growth(rows, scheme, policy, column), [3 + step * count for count in counts]
            if found != ([min(pair) for pair in zip(found, band, strict=True)] if is_bound else band):
                missed.append(f"{scheme}, {policy}: {column} {found}, expected {'at most ' * is_bound}{band}")
    return missed
