"""Experiments 1 and 2 of the thesis (7.2.2, 7.2.3): key generation, encryption and decryption as attributes are added.

The setup is the thesis's: an attribute is added to the interest (the key) and to the access policy in each step, five
runs, the mean of the CPU time; experiment 1 joins by AND only and by OR only up to 50 attributes, experiment 2 by a mix
of both up to 100, with strings alone and with 32-bit numbers. Two schemes run: BSW07, the thesis's, and ours. The
thesis ran the `cpabe` toolkit, a process for each step; ours are functions on BLS12-381, so shapes are compared, not
times. Beside the time each row has what it follows from and what no machine changes: the points of the key and of the
capsule, and the pairings of opening.

One deviation: the thesis makes keys from the interest, here they are made from attributes that an authority grants; the
traits are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean

from experiments.bsw07 import scheme as bsw07
from experiments.results import Plot
from tallystick.crypto.abe.capsule import decapsulate, encapsulate
from tallystick.crypto.abe.keys import MasterKey, epoch_trait
from tallystick.crypto.abe.sharing import coefficients
from tallystick.policy.attribute import Encoding, category, integer
from tallystick.policy.formula import Formula, Node, OneOf, Within, all_of, any_of
from tallystick.policy.space import AttributeSpace
from tallystick.policy.traits import TraitGate, trait_tree, traits_of, with_encoding

RUNS = 5
EPOCH = 1
OPERATIONS = ("keygen", "encapsulate", "decapsulate")


@dataclass(frozen=True)
class Row:
    scheme: str  # bsw07 or fabeo
    policy: str  # and, or, strings, numbers
    operation: str
    attributes: int
    cpu_ms: float  # mean of the runs
    key_points: int
    capsule_points: int
    pairings: int  # of opening


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
    peer, master = bsw07.setup(b"thesis"), MasterKey.generate(bytes(32))
    peer_key, key = bsw07.keygen(peer, traits, b"key"), master.issue(b"key", subject.traits, [EPOCH])
    ciphertext, peer_secret = bsw07.encapsulate(peer, tree, b"seed")
    capsule, secret = encapsulate(master.public, subject.formula, EPOCH, b"", bytes(32))
    assert bsw07.decapsulate(peer_key, ciphertext) == peer_secret
    assert decapsulate(key, capsule, b"") == secret
    work: dict[tuple[str, str], Callable[[], object]] = {
        ("bsw07", "keygen"): lambda: bsw07.keygen(peer, traits, b"key"),
        ("bsw07", "encapsulate"): lambda: bsw07.encapsulate(peer, tree, b"seed"),
        ("bsw07", "decapsulate"): lambda: bsw07.decapsulate(peer_key, ciphertext),
        ("fabeo", "keygen"): lambda: master.issue(b"key", subject.traits, [EPOCH]),
        ("fabeo", "encapsulate"): lambda: encapsulate(master.public, subject.formula, EPOCH, b"", bytes(32)),
        ("fabeo", "decapsulate"): lambda: decapsulate(key, capsule, b""),
    }
    used = coefficients(capsule.program, frozenset(traits))
    assert used is not None
    points = {
        "bsw07": (1 + 2 * len(traits), 1 + 2 * len(ciphertext.leaves), 1 + 2 * bsw07.leaves_used(peer_key, ciphertext)),
        "fabeo": (
            2 + len(traits),
            1 + capsule.program.occurrences + len(capsule.program.rows),
            2 + len({capsule.program.rows[row].occurrence for row in used}),
        ),
    }
    for (scheme, operation), one in work.items():
        cpu_ms = mean(_cpu_ms(one) for _ in range(runs))
        yield Row(scheme, subject.policy, operation, subject.attributes, cpu_ms, *points[scheme])


def _cpu_ms(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return 1e3 * (time.process_time() - started)


def plot(rows: Sequence[Row], operation: str | None, title: str) -> Plot:
    """Lines of time over attributes: for one operation by scheme and policy, or by scheme and operation."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if operation in (None, row.operation):
            line = f"{row.scheme}, {row.policy if operation else row.operation}"
            lines.setdefault(line, []).append((row.attributes, row.cpu_ms))
    return Plot(title, "attributes", "CPU time, ms", lines)


def growth(rows: Sequence[Row], scheme: str, policy: str, column: str) -> list[int]:
    """A column's values from the fewest attributes to the most."""
    chosen = {row.attributes: getattr(row, column) for row in rows if (row.scheme, row.policy) == (scheme, policy)}
    return [chosen[count] for count in sorted(chosen)]
