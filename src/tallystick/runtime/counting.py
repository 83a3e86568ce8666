"""What a service counts of what comes to it: how often, by a label of a closed list, and how long it took.

Threat: a client that invents names. Each label is a series for ever in the store of whoever collects the numbers, so
ten thousand made-up paths or reasons would fill it. Here a label is one of a list that is closed before the first
request; whatever else comes is counted as `other`. What is told of many (`ranked`) is bounded as well, and nobody can
push another tenant's out of it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

OTHER = "other"

# Refusals that somebody can do something about, and are told apart: of requests, parcels and transactions alike.
REASONS = frozenset({
    *("unauthenticated", "stale", "future", "duplicate", "replayed", "malformed", "too-large", "version", "misuse"),
    *("busy", "unavailable", "not-found", "not-served", "over-quota", "quota", "too-many-requests", "damaged"),
    *("no-right", "blacklisted", "revoked", "certificate-expired", "certificate-over", "unknown-principal"),
    *("permit-ended", "permit-expired", "unknown-permit", "wrong-permit", "withdrawn", "not-entitled"),
    *("unknown-topic", "topic-closed", "unknown-partition", "wrong-epoch", "epoch-ended", "epoch-over"),
    *("behind", "broken-chain", "equivocation", "lane-closed", "bad-signature", "not-advertised", "not-subscribed"),
    *("not-carried", "another-node", "not-host", "wrong-instance", "not-operator", "not-owner"),
    *("fenced", "not-holder", "offset-moved"),
})  # fmt: skip

BOUNDS_S = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)  # from a read in memory to a long poll that ends


class Counts:
    """How often something happened, by label; from any thread."""

    def __init__(self, known: Collection[str] = REASONS) -> None:
        self._known, self._lock = known, threading.Lock()
        self._counted: Counter[str] = Counter({OTHER: 0})

    def add(self, label: str, count: int = 1) -> None:
        with self._lock:
            self._counted[label if label in self._known else OTHER] += count

    def snapshot(self) -> dict[str, int]:
        """By label; `other` is always there."""
        with self._lock:
            return dict(self._counted)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many took up to each of `BOUNDS_S`, and at last how many took longer; and all their seconds."""

    counts: tuple[int, ...]
    total_s: float


class Durations:
    """How long something took, by label; from any thread."""

    def __init__(self, known: Collection[str] = ()) -> None:
        """`known` may still grow while nothing is measured."""
        self._known, self._lock = known, threading.Lock()
        self._counts: dict[str, list[int]] = {}
        self._total_s: dict[str, float] = {}

    def note(self, seconds: float, label: str = OTHER) -> None:
        label = label if label in self._known else OTHER
        with self._lock:
            counts = self._counts.setdefault(label, [0] * (len(BOUNDS_S) + 1))
            counts[bisect_left(BOUNDS_S, seconds)] += 1
            self._total_s[label] = self._total_s.get(label, 0.0) + seconds

    @contextmanager
    def timed(self, now: Callable[[], float]) -> Iterator[None]:
        """Note how long the block takes, whether it succeeds or not, by a clock that never goes back."""
        began = now()
        try:
            yield
        finally:
            self.note(now() - began)

    def snapshot(self) -> dict[str, Histogram]:
        with self._lock:
            return {label: Histogram(tuple(each), self._total_s[label]) for label, each in self._counts.items()}

    def whole(self) -> Histogram:
        """Over all labels."""
        found = self.snapshot().values()
        counts = tuple(sum(each) for each in zip(*(one.counts for one in found), strict=True))
        return Histogram(counts or (0,) * (len(BOUNDS_S) + 1), sum(one.total_s for one in found))


def ranked(found: Iterable[tuple[bytes, str, int]], most: int) -> Mapping[str, int]:
    """Values by name, from (tenant, name, value): the largest of each tenant in turn, `most` of them; the rest is one
    sum under `other`."""
    seen: Counter[bytes] = Counter()
    turns: list[tuple[int, int, str]] = []
    for tenant, name, value in sorted(found, key=lambda one: (-one[2], one[1])):
        turns.append((seen[tenant], -value, name))
        seen[tenant] += 1
    turns.sort()
    told = {name: -negative for _, negative, name in turns[:most]}
    return {**told, OTHER: -sum(negative for _, negative, _ in turns[most:])}
