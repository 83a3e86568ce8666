"""`make bench-mesh`: what anonymity costs on the mesh, and whether its strongest promise holds on real sockets.

    notify, hop_ms                          notifications a second and node, and milliseconds a hop, against plain UDP
                                            flooding of the same bytes over the same links; mesh_rates.py
    bytes_off, bytes_padded, bytes_constant content delivered over bytes sent, by the dial; mesh_bytes.py
    timing_off, timing_padded,              base rate over the precision of an attacker who sees all datagrams and knows
    timing_constant                         when topics publish; mesh_timing.py
    sim_100000                              what a node costs the simulator of `experiments/anonpubsub` at 1,000 nodes,
                                            over the same at 100,000

Results go to `build/bench/mesh.json`. `--only NAME` runs one subject and leaves the other rows; `--quick` is one short
round, to see that it works.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace

import harness
import mesh_bytes
import mesh_rates
import mesh_timing

SUITE = "mesh"
FEW, MANY, TARGET = 1_000, 100_000, 0.8


def rate_rows(quick: bool, rounds: int | None) -> Iterable[harness.Row]:
    amount = mesh_rates.QUICK if quick else mesh_rates.Amount()
    return mesh_rates.rows(replace(amount, rounds=rounds or amount.rounds))


def byte_rows(quick: bool, rounds: int | None) -> Iterable[harness.Row]:
    span = mesh_bytes.QUICK if quick else mesh_bytes.Time()
    return mesh_bytes.rows(replace(span, rounds=rounds or span.rounds))


def timing_rows(quick: bool, rounds: int | None) -> Iterable[harness.Row]:
    watched = mesh_timing.QUICK if quick else mesh_timing.Watch()
    shape = mesh_timing.SMALL if quick else mesh_timing.SHAPE
    return mesh_timing.rows(replace(watched, rounds=rounds or watched.rounds), shape)


def sim_rows(quick: bool, rounds: int | None) -> Iterator[harness.Row]:
    """In turns; a thousand nodes are drawn often enough for the processor's clock to see them."""
    sys.path.append(str(harness.ROOT))
    from experiments.anonpubsub.scale import cost_per_node_us

    few: list[float] = []
    many: list[float] = []
    cost_per_node_us(FEW, 0)
    for seed in range(rounds or (1 if quick else 5)):
        times = 3 if quick else 20
        few.append(sum(cost_per_node_us(FEW, 100 * seed + one) for one in range(times)) / times)
        many.append(cost_per_node_us(MANY // (10 if quick else 1), seed))
    yield asdict(harness.compare("sim_100000", many, few, "µs/node", TARGET))


SUBJECTS: dict[str, Callable[[bool, int | None], Iterable[harness.Row]]] = {
    "rates": rate_rows,
    "bytes": byte_rows,
    "timing": timing_rows,
    "sim": sim_rows,
}


if __name__ == "__main__":
    harness.run_subjects(SUITE, SUBJECTS)
