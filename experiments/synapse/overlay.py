"""Trees of brokers, people on them, and who writes to whom. What the paper does not tell is assumed here.

A broker has exactly the fan-out's number of children, level by level; a `drawn` tree has one fewer to one more. Brokers
are ranked from the root downwards, and a person sits at rank i with a probability proportional to 1/i^α. We tried eight
kinds of tree, three rankings and six ways to count shares against the paper's six numbers; this is the simplest of the
three best. In a drawn trace a pair writes 3.9 messages a month on average (geometric), fitted to 39 GB of 144 GB, and
there are as many people as pairs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BROKERS = 400
MONTH = 1_400_000  # interactions
MESSAGES_A_PAIR = 3.9
Numbers = NDArray[Any]


class Trace(NamedTuple):
    """Message by message: the numbers of sender and receiver."""

    name: str
    people: int
    senders: Numbers
    receivers: Numbers


def grow_tree(fanout: int, random: np.random.Generator | None = None) -> list[int]:
    """Return each broker's parent, level by level; the root's is itself. With `random` the tree is drawn."""
    parents = [0]
    for broker in range(BROKERS):
        parents += [broker] * (int(random.integers(fanout - 1, fanout + 2)) if random else fanout)
    return parents[:BROKERS]


def along_paths(parents: list[int], weights: Numbers) -> Numbers:
    """Return for each pair of brokers the sum of the weights on the path between them, both ends included."""
    total = np.diag(weights)
    for broker in range(1, len(parents)):
        total[broker, :broker] = total[parents[broker], :broker] + weights[broker]
        total[:broker, broker] = total[broker, :broker]
    return total


def zipf(random: np.random.Generator, alpha: float, count: int, places: int = BROKERS) -> Numbers:
    weights = np.arange(1, places + 1, dtype=float) ** -alpha
    return random.choice(places, count, p=weights / weights.sum())


def drawn_trace(random: np.random.Generator, kind: str, interactions: int) -> Trace:
    """`even`: all people write alike. `hubs`: who writes and who is written to follows Zipf's law."""
    pairs = people = round(interactions / MESSAGES_A_PAIR)
    ends = zipf(random, 0.0 if kind == "even" else 1.0, 2 * pairs, people).reshape(2, pairs)
    senders, receivers = np.repeat(ends, random.geometric(1 / MESSAGES_A_PAIR, pairs), axis=1)
    return Trace(kind, people, senders, receivers)


def social_traces() -> list[Trace]:
    """CollegeMsg's messages, and one each way along Facebook's friendships. Return none where the data is absent."""
    folder = Path(os.environ.get("TALLY_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "social"
    if not folder.is_dir():
        return []
    messages = np.loadtxt(folder / "CollegeMsg.txt.xz", dtype=int, usecols=(0, 1))
    friends = np.loadtxt(folder / "facebook_combined.txt.xz", dtype=int, skiprows=1)
    both_ways = np.concatenate([friends, friends[:, ::-1]])
    return [
        Trace(name, int(ends.max()) + 1, ends[:, 0], ends[:, 1])
        for name, ends in (("CollegeMsg", messages), ("facebook", both_ways))
    ]
