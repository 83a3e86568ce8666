"""SYNAPSE, Figs 9 and 10: shares by replicas and path, split at every hop or redistributed; what one split costs.

Claims: a subscriber receives at most p·rʰ shares and at least p·rʰ − p(r−f)ʰ; they increase exponentially with path and
fan-out (9A, B); traffic is "approximately 10 times less when keys are refreshed every 1GB as oppose to … every 200MB"
(9C, D); at 3 to 10 shares splitting takes "well under 1ms" and reconstruction more, 5.2 ms at ten (10); "latency does
not grow with the number of replicas at every virtual hop, because the secret splitting is done concurrently".

Every count is of a run whose subscriber opens the key. Redistribution: a broker splits each share once for the next
virtual node, where each contributor set of k senders becomes one new share, so that a broker never holds more than C(r,
k). `series_…` is how many shares one broker after the other must split along the path, which is what a subscriber waits
for. The threshold is (⌊r/2⌋+1, r); before Fig. 10 it is misprinted as n = ⌊k/2⌋+1, which is less than k.

Expected band: rʰ and (r−f)ʰ shares for p = 1. The printed least is right nowhere; without liars it would be nought.
Redistribution: r·C(r, k) at the subscriber from two virtual nodes on, no fewer than splitting on two and fewer from
three on. Refresh: 5 times, by arithmetic, not 10. Latency: the paper is right for two virtual nodes and wrong beyond,
where a broker splits r times as many shares as the one before it. Redistribution takes C(r, k) at each further hop, so
that with seven replicas it is the slower one up to four virtual nodes. CPU time is shown and not judged; in GF(256)
reconstructing costs less than splitting, with k products a byte against r(k−1).

Seed 4. `python -m experiments.synapse.fig09 [--seed N] [--small]` writes build/experiments/synapse/fig09.csv and .png.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from random import Random
from time import process_time

from experiments import results
from experiments.results import Plot
from experiments.synapse.propagation import arriving, rebuild, split_iteratively
from tallystick.crypto.shamir import combine, split

LONGEST = {3: 7, 4: 4, 5: 4, 6: 3, 7: 3, 8: 1, 9: 1, 10: 1}  # replicas: virtual nodes
SMALL = {3: 4, 5: 3, 10: 1}
Lineage = tuple[tuple[int, ...], ...]  # the contributor sets that a share came through


@dataclass(frozen=True)
class Row:
    replicas: int
    nodes: int  # virtual nodes on the path
    most: int  # shares at the subscriber, nobody lying
    least: int  # f in each virtual node forward nothing
    least_printed: int
    redistributed: int
    series_iterative: int
    series_redistributed: int
    opened: bool  # by the subscriber, in every way
    refresh_200mb: int  # shares for a terabyte of content, with a fresh key for every 200 MB
    refresh_1gb: int
    split_ms: float  # CPU time, a key of 256 bits
    reconstruct_ms: float


def redistribute(key: bytes, nodes: int, k: int, n: int, random: Random) -> list[dict[Lineage, dict[int, bytes]]]:
    """Return for each virtual node its shares, by lineage and place."""
    levels: list[dict[Lineage, dict[int, bytes]]] = [{(): split(key, k, n, random.randbytes(32))}]
    for _ in range(nodes - 1):
        before = min(levels[-1])  # this lineage goes on; the others stand by for liars
        parts = {sender: split(share, k, n, random.randbytes(32)) for sender, share in levels[-1][before].items()}
        levels.append(
            {
                (*before, senders): {at: combine({one: parts[one][at] for one in senders}) for at in parts}
                for senders in combinations(parts, k)
            }
        )
    return levels


def run(seed: int, small: bool = False) -> Iterator[Row]:
    random = Random(f"{seed}/fig09")  # noqa: S311 (an experiment's keys)
    for n, longest in (SMALL if small else LONGEST).items():
        for nodes in range(1, longest + 1):
            yield _row(n, nodes, random)


def _row(n: int, nodes: int, random: Random) -> Row:
    k = n // 2 + 1
    f = n - k
    key = random.randbytes(32)
    shares = split_iteratively(key, nodes, random, k, n)
    most = arriving(shares, [set()] * nodes)
    least = arriving(shares, [set(random.sample(range(1, n + 1), f)) for _ in range(nodes)])
    levels = redistribute(key, nodes, k, n, random)
    opened = [rebuild({path: shares[path] for path in paths}, nodes, (), k, n) for paths in (most, least)]
    opened += [combine(dict(list(one.items())[-k:])) for one in levels[-1].values()]
    start = process_time()
    first = [split(key, k, n, random.randbytes(32)) for _ in range(20)]
    middle = process_time()
    opened += [combine(dict(list(one.items())[-k:])) for one in first]
    return Row(
        replicas=n,
        nodes=nodes,
        most=len(most),
        least=len(least),
        least_printed=n**nodes - (n - f) ** nodes,
        redistributed=sum(len(one) for one in levels[-1].values()),
        series_iterative=sum(n**node for node in range(nodes - 1)),
        series_redistributed=sum(len(one) for one in levels[:-1]),
        opened=all(one == key for one in opened),
        refresh_200mb=10**6 // 200 * len(most),
        refresh_1gb=10**6 // 1000 * len(most),
        split_ms=(middle - start) * 1000 / len(first),
        reconstruct_ms=(process_time() - middle) * 1000 / len(first),
    )


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""

    def expected(row: Row) -> bool:
        n, k, f = row.replicas, row.replicas // 2 + 1, (row.replicas - 1) // 2
        counts = (row.most, row.least) == (n**row.nodes, (n - f) ** row.nodes) and row.least_printed != row.least
        constant = row.redistributed == (n * comb(n, k) if row.nodes > 1 else n)
        return row.opened and counts and constant and row.refresh_200mb == 5 * row.refresh_1gb

    return [str(row) for row in rows if not expected(row)]


def plot(rows: Sequence[Row]) -> Plot:
    shares: dict[str, list[tuple[float, float]]] = {}
    for name in ("most", "least", "redistributed"):
        shares |= results.lines(rows, f"{name}, {{replicas}} replicas", "nodes", name)
    once = [row for row in rows if row.nodes == 1]
    times = {
        name: [(float(row.replicas), float(getattr(row, name))) for row in once]
        for name in ("split_ms", "reconstruct_ms")
    }
    beside = Plot("One split, one reconstruction", "shares", "CPU ms", times)
    return Plot("Shares at the subscriber", "virtual nodes", "shares", shares, True, beside)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("synapse", "fig09", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
