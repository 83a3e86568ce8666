"""SYNAPSE, Algorithms 1 and 2 and network coding: what one liar in each virtual node can do to a key on its way.

Claims: Algorithm 1 "has a serious limitation", network coding "can also fail", and under Algorithm 2 liars "cannot
receive a sufficient number of secret shares to reconstruct the original secret" (Theorems 1 to 3).

    printed    Algorithm 1, line 6 being `if t < k`: nothing ends the loop over receivers, so each share goes to every
               receiver that has fewer than k, and each receiver ends with k shares though nobody misbehaves
    repaired   what the text around it wants, "each broker in V2 should receive just one share": line 6 is `if t < 1`,
               and a share that was sent is not sent again
    coding     repaired, with n coded blocks that are all needed (a Reed-Solomon code of the key's n pieces)
    iterative  Algorithm 2: every broker splits every share it holds, again (k, n), for the next virtual node

    none       nobody lies
    drop       a liar forwards nothing
    pool       liars follow the protocol, and put together what they have seen
    misroute   a liar waits for the others, then sends all that it holds to the next virtual node's liar; the last one
               keeps it (the paper's Figs 5 and 6)

Expected band, at (2, 3), with the liars at all places in turn. Printed: from the second virtual node on a broker opens
the key without any attack, and liars cannot cut it off. Repaired: one virtual node is safe; from two on `drop` cuts the
key off, and `pool` and `misroute` open it, unless all liars have the same place. Coding: `drop` cuts off at once;
`pool` and `misroute` open from three virtual nodes on, where the liars have three places. Iterative: no attack opens
the key or cuts it off, wherever the liars are.

Seed 4. `python -m experiments.synapse.propagation [--seed N] [--small]` writes propagation.csv and .png to
build/experiments/synapse.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from random import Random

from experiments import results
from experiments.results import Plot
from tallystick.crypto.shamir import combine, split

K, N = 2, 3
PLACES = range(1, N + 1)
LIES, COLLUDES = ("drop", "misroute"), ("pool", "misroute")
Held = dict[int, set[int]]  # a broker's place: the numbers of the shares it has
Outcome = tuple[bool, bool, bool]  # a broker opens, the liars open, the subscriber opens
Path = tuple[int, ...]  # of a share of Algorithm 2: its holders' places, from the first virtual node on


@dataclass(frozen=True)
class Row:
    scheme: str
    attack: str
    nodes: int  # virtual nodes between publisher and subscriber
    placements: int  # of the liars
    broker_opens: int  # placements where some single broker can open the key
    liars_open: int
    subscriber_opens: int


def forward(held: Held, printed: bool, attack: str, liar: int, next_liar: int) -> Held:
    """Run Algorithm 1 from one virtual node to the next. A liar comes last, having waited."""
    received: Held = {place: set() for place in PLACES}
    lies = attack in LIES
    for sender in sorted(held, key=lambda place: (lies and place == liar, place)):
        if lies and sender == liar:
            received[next_liar] |= held[sender] if attack == "misroute" else set()
            continue
        for share in sorted(held[sender]):
            receivers = [place for place in PLACES if len(received[place]) < (K if printed else 1)]
            for receiver in receivers if printed else receivers[:1]:
                received[receiver].add(share)
    return received


def send_once(scheme: str, attack: str, liars: Sequence[int], key: bytes, random: Random) -> Outcome:
    """Send shares or blocks that are split once. The liars are named by their places, one in each virtual node."""
    if scheme == "coding":
        pieces = {place: key[place - 1 :: N] for place in PLACES}
        shares, needed = {number: combine(pieces, at=N + number) for number in PLACES}, N
    else:
        shares, needed = split(key, K, N, random.randbytes(32)), K

    def opens(numbers: Iterable[int]) -> bool:
        some = {number: shares[number] for number in sorted(numbers)[:needed]}
        if len(some) < needed or scheme != "coding":
            return len(some) == needed and combine(some) == key
        blocks = {N + number: block for number, block in some.items()}
        return all(combine(blocks, at=place) == pieces[place] for place in PLACES)

    levels: list[Held] = [{place: {place} for place in PLACES}]
    for liar, next_liar in pairwise(liars):
        levels.append(forward(levels[-1], scheme == "printed", attack, liar, next_liar))
    seen = set[int]().union(*(held[liar] for held, liar in zip(levels, liars, strict=True)))
    silent = liars[-1] if attack in LIES else None
    arrived = set[int]().union(*(numbers for place, numbers in levels[-1].items() if place != silent))
    a_broker = any(opens(numbers) for held in levels for numbers in held.values())
    return a_broker, attack in COLLUDES and opens(seen), opens(arrived)


def split_iteratively(key: bytes, nodes: int, random: Random, k: int = K, n: int = N) -> dict[Path, bytes]:
    """Run Algorithm 2, and return every share that exists anywhere; its holder is the last place of its path."""
    shares: dict[Path, bytes] = {}
    level: dict[Path, bytes] = {(): key}
    for _ in range(nodes):
        level = {
            (*path, x): part
            for path, share in level.items()
            for x, part in split(share, k, n, random.randbytes(32)).items()
        }
        shares |= level
    return shares


def rebuild(known: Mapping[Path, bytes], nodes: int, path: Path = (), k: int = K, n: int = N) -> bytes | None:
    """Return the share at `path`, from itself or from any k of those it was split into."""
    if path in known or len(path) == nodes:
        return known.get(path)
    below = {x: rebuild(known, nodes, (*path, x), k, n) for x in range(1, n + 1)}
    found = {x: share for x, share in below.items() if share is not None}
    return combine(dict(list(found.items())[:k])) if len(found) >= k else None


def arriving(paths: Iterable[Path], liars: Sequence[set[int]]) -> list[Path]:
    """The shares that reach the subscriber where liars forward nothing."""
    return [p for p in paths if len(p) == len(liars) and not any(x in bad for x, bad in zip(p, liars, strict=True))]


def send_iteratively(attack: str, liars: Sequence[int], key: bytes, random: Random) -> Outcome:
    nodes, shares = len(liars), split_iteratively(key, len(liars), random)

    def opens(paths: Iterable[Path]) -> bool:
        return rebuild({path: shares[path] for path in paths}, nodes) == key

    seen = [path for path in shares if path[-1] == liars[len(path) - 1]]
    silent = [{liar} if attack in LIES else set[int]() for liar in liars]
    brokers = product(range(1, nodes + 1), PLACES)
    a_broker = any(opens(p for p in shares if (len(p), p[-1]) == broker) for broker in brokers)
    return a_broker, attack in COLLUDES and opens(seen), opens(arriving(shares, silent))


def run(seed: int, small: bool = False) -> Iterator[Row]:
    random = Random(f"{seed}/propagation")  # noqa: S311 (an experiment's keys)
    schemes, attacks = ("printed", "repaired", "coding", "iterative"), ("none", "drop", "pool", "misroute")
    for scheme, attack, nodes in product(schemes, attacks, range(1, 4 if small else 5)):
        key = random.randbytes(24)
        tried = [
            send_iteratively(attack, liars, key, random)
            if scheme == "iterative"
            else send_once(scheme, attack, liars, key, random)
            for liars in product(PLACES, repeat=nodes)
        ]
        yield Row(scheme, attack, nodes, len(tried), *(sum(one) for one in zip(*tried, strict=True)))


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    opens_from = {"printed": 2, "repaired": 2, "coding": 3, "iterative": 99}  # virtual nodes
    cut_from = {"printed": 99, "repaired": 2, "coding": 1, "iterative": 99}

    def expected(row: Row) -> Outcome:
        opens = row.nodes >= opens_from[row.scheme]
        cut = row.attack in LIES and row.nodes >= cut_from[row.scheme]
        a_broker = opens and (row.scheme == "printed" or row.attack == "misroute")
        return a_broker, opens and row.attack in COLLUDES, not cut

    return [
        str(row)
        for row in rows
        if (row.broker_opens > 0, row.liars_open > 0, row.subscriber_opens == row.placements) != expected(row)
    ]


def plot(rows: Sequence[Row]) -> Plot:
    lines = results.lines([row for row in rows if row.attack == "pool"], "{scheme}", "nodes", "liars_open")
    return Plot("Keys opened by one liar in each virtual node", "virtual nodes", "placements", lines)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("synapse", "propagation", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
