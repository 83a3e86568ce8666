"""`make bench-abe`: attribute-based encapsulation against BSW07 on the same curve, and matching a million interests.

Both schemes run in one process with the same library, the same cached hashes of traits and the same tables of the
generators, made before the clock starts: an authority and a publisher that have been busy for a while. Keys are for N
attributes and one epoch, formulas are joined with the epoch. Results go to `build/bench/abe.json`.

    keygen_N                    a key for N attributes
    refresh                     one principal with ten attributes taken to the next epoch
    keygen_N_bare               the same without tables, in either scheme
    encapsulate_N[_or, _mixed]  under the AND of N attributes, their OR, and an AND of ORs of two
    decapsulate_N[_or, _mixed]  by a key that holds all of them, capsule and key being read already
    decapsulate_N_bytes         the same from the capsule's bytes
    …_int32[_encoding]          one 32-bit comparison; the peer has a bag of bits, as the paper
    capsule_N_bytes, key_N_bytes
    policy_lock…                a policy lock against a topic lock, see abe_locks.py
    authority…                  what an attribute epoch costs the authority, see abe_authority.py
    labels…                     what labels spare a subscriber with an interest, see abe_labels.py
    match_million               one event against a million interests; the peer is the loop over all of them
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness
from abe_authority import authority_cases
from abe_labels import label_cases
from abe_locks import lock_cases

from experiments.bsw07 import scheme as bsw07
from tallystick.crypto.abe import group
from tallystick.crypto.abe.capsule import Capsule, decapsulate, encapsulate
from tallystick.crypto.abe.keys import AttributeMasterKey, epoch_trait
from tallystick.policy.attribute import Encoding, category, integer, real, string
from tallystick.policy.evaluate import node_holds
from tallystick.policy.formula import Formula, OneOf, Within, all_of, any_of
from tallystick.policy.matching import InterestIndex
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.policy.traits import TraitGate, trait_tree, traits_of, with_encoding

COUNTS = (5, 10, 20, 50, 100)
TARGETS = {"keygen_50": 3.0, "encapsulate_50": 2.0, "decapsulate_50": 30.0}
EPOCH = 7
ENTROPY = bytes(range(32))
ROUNDS = 9

SPACE = AttributeSpace.of("acme", *(category(f"a{number:03}", ["x", "y"]) for number in range(max(COUNTS))))
NUMBER = AttributeSpace.of("acme", integer("n", 32))
BOUND, HELD = 0x1234_5678, 0x9ABC_DEF0


def texts(count: int) -> dict[str, str]:
    names = [f"a{number:03}::x" for number in range(count)]
    pairs = [f"({' || '.join(names[start : start + 2])})" for start in range(0, count, 2)]
    return {"": " && ".join(names), "_or": " || ".join(names), "_mixed": " && ".join(pairs)}


class Bench:
    """Both authorities, and keys of both."""

    def __init__(self) -> None:
        self.master = AttributeMasterKey.generate(bytes(32))
        self.peer = bsw07.setup(b"peer")

    def keygen(self, name: str, traits: frozenset[bytes], peer_traits: frozenset[bytes]) -> harness.Case:
        theirs = [*peer_traits, epoch_trait(EPOCH)]
        return _case(
            name,
            lambda: self.master.issue(b"holder", traits, [EPOCH]),
            lambda: bsw07.keygen(self.peer, theirs, b"holder"),
        )

    def schemes(
        self, tag: str, formula: Formula, peer_formula: Formula, traits: frozenset[bytes], peer_traits: frozenset[bytes]
    ) -> Iterator[harness.Case | harness.Figure]:
        tree = TraitGate(2, (epoch_trait(EPOCH), trait_tree(peer_formula)))
        capsule, secret = encapsulate(self.master.public, formula, EPOCH, b"", ENTROPY)
        key = self.master.issue(b"holder", traits, [EPOCH])
        theirs, their_secret = bsw07.encapsulate(self.peer, tree, b"seed")
        their_key = bsw07.keygen(self.peer, [*peer_traits, epoch_trait(EPOCH)], b"holder")
        assert decapsulate(key, capsule, b"") == secret
        assert bsw07.decapsulate(their_key, theirs) == their_secret
        data, points, leaves = capsule.encode(), theirs.encode(), [trait for trait, _, _ in theirs.leaves]
        yield _case(
            f"encapsulate_{tag}",
            lambda: encapsulate(self.master.public, formula, EPOCH, b"", ENTROPY),
            lambda: bsw07.encapsulate(self.peer, tree, b"seed"),
        )
        yield _case(
            f"decapsulate_{tag}", lambda: decapsulate(key, capsule, b""), lambda: bsw07.decapsulate(their_key, theirs)
        )
        yield _case(
            f"decapsulate_{tag}_bytes",
            lambda: decapsulate(key, Capsule.decode(data), b""),
            lambda: bsw07.decapsulate(their_key, bsw07.Ciphertext.decode(tree, leaves, points)),
        )
        policy = len(peer_formula.encode())  # the peer would have to name its formula too
        yield harness.Figure(f"capsule_{tag}_bytes", len(data), sum(map(len, points)) + policy, "bytes")


def bare_cases() -> Iterator[harness.Case | harness.Figure]:
    """First of all, before any table is made; the bound keeps it so."""
    group.TABLE_USES = 1 << 60
    bench = Bench()
    for count in COUNTS:
        traits = traits_of(SPACE.values({f"a{number:03}": "x" for number in range(count)}), SPACE)
        yield bench.keygen(f"keygen_{count}_bare", traits, traits)


def scheme_cases() -> Iterator[harness.Case | harness.Rate | harness.Figure]:
    group.TABLE_USES = 0
    bench = Bench()
    ten = traits_of(SPACE.values({f"a{number:03}": "x" for number in range(10)}), SPACE)
    yield harness.Rate("refresh", lambda: bench.master.refresh(b"holder", ten, EPOCH + 1), unit="principals/s")
    for count in COUNTS:
        traits = traits_of(SPACE.values({f"a{number:03}": "x" for number in range(count)}), SPACE)
        yield bench.keygen(f"keygen_{count}", traits, traits)
        yield _key_size(bench, count, traits)
        for kind, text in texts(count).items():
            formula = parse(text, SPACE)
            yield from bench.schemes(f"{count}{kind}", formula, formula, traits, traits)


def number_cases() -> Iterator[harness.Case | harness.Figure]:
    group.TABLE_USES = 0
    bench = Bench()
    plain = with_encoding(parse(f"n >= {BOUND}", NUMBER), Encoding.BITS)
    bits = traits_of(NUMBER.values({"n": HELD}), plain.space)
    for encoding in Encoding:
        formula = with_encoding(plain, encoding)
        traits = traits_of(NUMBER.values({"n": HELD}), formula.space)
        name = f"int32_{encoding.name.lower()}"
        yield bench.keygen(f"keygen_{name}", traits, bits)
        yield from bench.schemes(name, formula, plain, traits, bits)


MILLION = 1_000_000
DRIVES = AttributeSpace.of(
    "",
    category("road", ["lane", "motorway", "ring", "street"]),
    string("city"),
    real("speed"),
    integer("hour", 5),
    integer("fuel", 7),
)


def million_interests() -> Iterator[Formula]:
    """Two to four comparisons, a third of the longer ones with an alternative; leaves are shared, to save memory."""
    random = Random(7)
    roads = [OneOf("road", (value,)) for value in DRIVES["road"].values]
    cities = [OneOf("city", (f"city {number}",)) for number in range(500)]
    speed = DRIVES["speed"].ordinal
    speeds = [Within("speed", ((speed(low), speed(low + wide)),)) for low in range(0, 200, 5) for wide in (5, 20, 60)]
    hours = [Within("hour", ((low, low + wide),)) for low in range(24) for wide in (0, 3, 7)]
    fuels = [Within("fuel", ((0, high),)) for high in range(5, 100, 5)]
    pools = (roads, cities, speeds, hours, fuels)
    for _ in range(MILLION):
        parts = [random.choice(pool) for pool in random.sample(pools, random.randint(2, 4))]
        if len(parts) > 2 and random.random() < 1 / 3:
            parts = [parts[0], any_of(parts[1:])]
        yield Formula(DRIVES, parts[0] if len(parts) == 1 else all_of(parts))


def match_cases() -> Iterator[harness.Case | harness.Figure]:
    """The peer asks every interest in turn; three events, of which each finds thousands."""
    index = InterestIndex()
    roots = []
    for number, interest in enumerate(million_interests()):
        index.add(number, interest)
        roots.append(interest.root)
    started = time.process_time()
    index.file()
    filed_s = time.process_time() - started
    events = [
        DRIVES.values({"road": "motorway", "city": "city 7", "speed": 131.5, "hour": 8, "fuel": 40}),
        DRIVES.values({"road": "street", "city": "city 42", "speed": 48.0, "hour": 17, "fuel": 71}),
        DRIVES.values({"road": "lane", "city": "elsewhere", "speed": 20.0, "hour": 3}),
    ]

    def ours() -> list[list[object]]:
        return [index.match(event) for event in events]  # type: ignore[misc]

    def loop() -> list[list[object]]:
        held = [dict(event.values) for event in events]
        return [[number for number, root in enumerate(roots) if node_holds(root, one)] for one in held]

    assert ours() == loop()
    yield harness.Case(
        "match_million", ours, loop, amount=len(events), unit="ms/event", scale=1e3, target=100.0, rounds_max=3
    )
    statistics = index.statistics()
    yield harness.Figure("match_million_bytes", statistics.bytes_count / MILLION, None, "bytes/interest")
    yield harness.Figure("match_million_filing", 1e6 * filed_s / MILLION, None, "us/interest")


def _key_size(bench: Bench, count: int, traits: frozenset[bytes]) -> harness.Figure:
    ours = len(bench.master.issue(b"holder", traits, [EPOCH]).encode())
    theirs = group.G1_BYTES + (count + 1) * (group.G1_BYTES + group.G2_BYTES) + sum(map(len, traits))
    return harness.Figure(f"key_{count}_bytes", ours, theirs, "bytes")


def _case(name: str, ours: harness.Work, peer: harness.Work) -> harness.Case:
    return harness.Case(name, ours, peer, unit="ms", scale=1e3, target=TARGETS.get(name), rounds_max=ROUNDS)


SUBJECTS = {
    "bare": bare_cases,
    "schemes": scheme_cases,
    "numbers": number_cases,
    "locks": lock_cases,
    "labels": label_cases,
    "authority": authority_cases,
    "matching": match_cases,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="benchmarks of attribute-based encapsulation and of matching")
    parser.add_argument("--only", choices=SUBJECTS, action="append")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--table", action="store_true", help="run nothing, print the results as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print(harness.table(harness.read(harness.RESULTS, "abe")))
        return
    print(", ".join(f"{name} {value}" for name, value in harness.machine().items()))
    for name in arguments.only or SUBJECTS:
        print(f"\n{name} (load {os.getloadavg()[0]:.1f})")
        harness.keep("abe", harness.run(SUBJECTS[name](), arguments.rounds))


if __name__ == "__main__":
    main()
