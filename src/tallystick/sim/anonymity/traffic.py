"""Timing, sizes and statistical disclosure: observers of datagrams, simulated or recorded from links.

    source    who sends without having received anything shortly before is a publisher
    flow      from the publisher on it follows: what a node sends shortly after it received belongs together
    disclose  it knows when the topic publishes (its content is public, say) and not where. It compares what each node
              does in rounds with and without a publication, and names |V_a| nodes with the greatest difference
    regress   the same, knowing when every topic publishes, and by several traits of a node at once, such as the number
              and the lateness of its cells

Links are encrypted in pairs, so that contents do not tell, and all of this is what the dial is for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tallystick.sim.anonymity.graph import Numbers
from tallystick.sim.anonymity.measures import top

PASS_S = 0.04  # how long a node takes to pass a notification on, at most, which the observer knows


@dataclass(frozen=True)
class LinkTraffic:
    """Notifications seen on links, by the time of sending."""

    sent_s: Numbers
    received_s: Numbers
    ends: Numbers  # sender and receiver, names in G
    size: Numbers  # in cells or bytes: equal ones cannot be told apart


def sources(traffic: LinkTraffic) -> Numbers:
    """Who sends, at some time, without having received shortly before."""
    order = np.lexsort((traffic.received_s, traffic.ends[:, 1]))
    key = traffic.ends[order, 1] * 1e6 + traffic.received_s[order]
    wanted = traffic.ends[:, 0] * 1e6 + traffic.sent_s
    before = np.searchsorted(key, wanted, "right") - 1
    heard = (before >= 0) & (wanted - key[np.maximum(before, 0)] <= PASS_S + 1e-6)
    return np.unique(traffic.ends[~heard, 0])


def follow(traffic: LinkTraffic, publisher: int, start_s: float, by_size: bool) -> set[int]:
    """Whom the notification seems to reach."""
    order = np.argsort(traffic.sent_s)
    reached, size = {publisher: [start_s]}, None
    for sent, received, (sender, receiver), cells in zip(
        traffic.sent_s[order].tolist(),
        traffic.received_s[order].tolist(),
        traffic.ends[order].tolist(),
        traffic.size[order].tolist(),
        strict=True,
    ):
        if size is None and sender == publisher and sent >= start_s - 1e-9:
            size = cells
        if by_size and cells != size:
            continue
        if any(at - 1e-9 <= sent <= at + PASS_S + 1e-9 for at in reached.get(sender, ())):
            reached.setdefault(receiver, []).append(received)
    return set(reached)


def disclose(active: Numbers, published: Numbers, count: int, random: np.random.Generator) -> Numbers:
    """Name the nodes that are more active when the topic publishes than when it does not (statistical disclosure)."""
    with_it, without = active[published], active[~published]
    if not len(with_it) or not len(without):
        return top(np.zeros(active.shape[1]), count, random)
    return top(with_it.mean(axis=0) - without.mean(axis=0), count, random)


def regress(traits: Numbers, published: Numbers) -> Numbers:
    """How much each topic shows in each node, for who knows when every topic publishes: the least squares that explain
    a node's traits (rounds × nodes × traits) by publications (rounds × topics), each measured by what they leave
    unexplained. Returns topics × nodes."""
    rounds, topics = published.shape
    known = np.column_stack([np.ones(rounds), published])
    inverse = np.linalg.pinv(known)
    flat = traits.reshape(rounds, -1)
    effect = inverse @ flat
    left = ((flat - known @ effect) ** 2).sum(axis=0) / max(rounds - topics - 1, 1)
    spread = (inverse**2).sum(axis=1)[:, None] * np.maximum(left, 1e-12)[None, :]
    shown = (effect**2 / spread)[1:].reshape(topics, *traits.shape[1:])
    found: Numbers = shown.sum(axis=2)
    return found
