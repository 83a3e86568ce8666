"""SYNAPSE, Figs 11 and 12: shares of an interaction on trees of 400 brokers, and their traffic in a month.

Claims, with three replicas (2, 3) at every node. Fan-out 2: with α = .5 a median of about 80,000 shares, a mean of 5
million and 10 hops; with α = 2 a mean of 860 and 2.6 hops. Fan-out 5, α = .5: a mean of 939, and for 1.4 million
interactions of 1 MB (1.3 TB) 144 GB of shares, which one key for ten messages makes 39 GB ("79 %", which is 73 %). Out
of band "could be significantly reduced".

The paper does not say whether a path has as many hops as links, or as virtual nodes, one more. Both are reported. A
share has 117 bytes: 144 GB ÷ (1.4 million × 939). Traffic is counted by links, the closer reading at fan-out 5. A tenth
of the keys is not a tenth of the traffic, because a pair that writes fewer than ten messages needs a key all the same.
Out of band means three shares put into three repositories with each key, and three fetched.

Expected band, complete trees and the trace `even`: hops, read as virtual nodes, within a quarter; shares and traffic
within a factor of two (a hop is a factor of three), read as virtual nodes at fan-out 2 and as links at fan-out 5; the
median 3¹⁰ or 3¹¹, between which 80,000 lies; refresh keeps 25 % to 29 % of the traffic, to which the trace is fitted.
By virtual nodes the shares of fan-out 5 are four times the paper's: no single reading of ours meets all of its numbers.
Shown beside, and not judged: other traces, where a few busy people decide by their places; drawn trees, where a few
long paths make the mean, so that one tree has forty times the shares of another.

Seed 4. `python -m experiments.synapse.fig11 [--seed N] [--small]` writes build/experiments/synapse/fig11.csv and .png.
Real traces are left out, with a sentence, where `../shared/data/social` is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb
from statistics import mean

import numpy as np

from experiments import results
from experiments.results import Plot
from experiments.synapse import overlay
from experiments.synapse.overlay import BROKERS, MONTH, Numbers

K, N = 2, 3
GIGABYTES = MONTH * 117 / 2**30  # of a month with one share an interaction
PAPER = (  # fan-out, α, what, the paper's, the factor that we allow
    (2, 0.5, "nodes", 10, 1.25),
    (2, 0.5, "median_nodes", 80_000, 2.25),
    (2, 0.5, "mean_nodes", 5_000_000, 2),
    (2, 2.0, "nodes", 2.6, 1.25),
    (2, 2.0, "mean_nodes", 860, 2),
    (5, 0.5, "mean_links", 939, 2),
    (5, 0.5, "in_band_gb", 144, 2),
)


@dataclass(frozen=True)
class Row:
    tree: str  # complete, drawn
    trace: str
    fanout: int
    alpha: float
    messages_a_key: int
    placement: int
    nodes: float  # on the path, mean; links are one fewer
    median_nodes: int  # shares at the subscriber
    mean_nodes: float
    mean_links: float
    redistributed: float
    in_band_gb: float
    out_of_band_gb: float


def run(seed: int, small: bool = False) -> Iterator[Row]:
    random = np.random.default_rng([seed, 11])
    traces = [overlay.drawn_trace(random, kind, 600_000 if small else MONTH) for kind in ("even", "hubs")]
    real = overlay.social_traces()
    if not real:
        print("no real traces: neither TALLY_DATA nor ../shared/data has the folder social", file=sys.stderr)
    places = {one.name: _places_in_pair(one.senders * one.people + one.receivers) for one in traces + real}
    for placement in range(3 if small else 10):
        for tree in ("complete", "drawn"):
            for fanout, alpha in ((2, 0.5), (2, 2.0), (5, 0.5)):
                parents = overlay.grow_tree(fanout, random if tree == "drawn" else None)
                nodes = overlay.along_paths(parents, np.ones(BROKERS, dtype=int))
                for trace in traces + real:
                    at = overlay.zipf(random, alpha, trace.people)
                    path = nodes[at[trace.senders], at[trace.receivers]]
                    for messages in (1, 2, 5, 10) if fanout == 5 else (1,):
                        scene = (tree, trace.name, fanout, alpha, messages, placement)
                        yield Row(*scene, *_count(path, places[trace.name] % messages == 0))


def _places_in_pair(pairs: Numbers) -> Numbers:
    """For each message, how many its pair exchanged before."""
    order = np.argsort(pairs, kind="stable")
    places = np.empty_like(pairs)
    places[order] = np.arange(len(pairs)) - np.searchsorted(pairs[order], pairs[order])
    return places


def _count(path: Numbers, fresh: Numbers) -> tuple[float, int, float, float, float, float, float]:
    """The last fields of a row, from the virtual nodes on each message's path and whether it takes a fresh key."""
    shares = float(N) ** path
    total = float(shares.mean())
    redistributed = float(np.where(path > 1, N * comb(N, K), N).mean())
    in_band = float((shares * fresh).mean()) / N * GIGABYTES
    out_of_band = 2 * N * float(fresh.mean()) * GIGABYTES
    return float(path.mean()), int(np.median(shares)), total, total / N, redistributed, in_band, out_of_band


def value(rows: Sequence[Row], name: str, trace: str, fanout: int, alpha: float, messages: int = 1) -> float:
    """On complete trees, the mean over all placements of people."""
    scene = ("complete", trace, fanout, alpha, messages)
    return mean(
        float(getattr(row, name))
        for row in rows
        if (row.tree, row.trace, row.fanout, row.alpha, row.messages_a_key) == scene
    )


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    missed = []
    for fanout, alpha, name, paper, factor in PAPER:
        found = value(rows, name, "even", fanout, alpha)
        if not paper / factor <= found <= paper * factor:
            missed.append(f"fan-out {fanout}, α {alpha}: {name} {found:,.1f}, the paper's is {paper:,}")
    kept = value(rows, "in_band_gb", "even", 5, 0.5, 10) / value(rows, "in_band_gb", "even", 5, 0.5)
    return missed if 0.25 <= kept <= 0.29 else [*missed, f"one key for ten messages keeps {kept:.2f} of the traffic"]


def plot(rows: Sequence[Row]) -> Plot:
    once = [row for row in rows if row.messages_a_key == 1]
    fives = [r for r in rows if (r.tree, r.fanout) == ("complete", 5)]
    shares = results.lines(once, "{tree}, fan-out {fanout}, α {alpha}", "nodes", "mean_nodes")
    keys = results.lines(fives, "{trace}, in band", "messages_a_key", "in_band_gb")
    keys |= results.lines(fives, "{trace}, out of band", "messages_a_key", "out_of_band_gb")
    beside = Plot("Shares in a month, fan-out 5", "messages to a key", "GB", keys, logarithmic=True)
    return Plot("Shares of an interaction", "virtual nodes, mean", "shares, mean", shares, True, beside)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("synapse", "fig11", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
