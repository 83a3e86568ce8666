"""`make bench-overlay`: what secrets and parcels cost on their way through virtual nodes, and whether they arrive.

    hop_plain, hop_iterative, hop_redistribution    lane keys a second through three virtual nodes (2, 3) on real links,
    hop_…_latency                                   and milliseconds a hop; see overlay_hops.py
    wire_replicas, wire_retransmit, wire_coded      content over bytes on the wire with one relay of three failing, and
    shares_10, reconstruct_10                       shares at a subscriber, and putting them together; overlay_counts.py
    survive                                         delivered over published while a third of the relays fail, in
                                                    processes; overlay_survive.py
    survive_2_bad                                   the same with two of three, which is more than is promised: only
                                                    with `--only beyond`

Not measured yet: `attach_pause` and `detach_pause`, the longest wait of a message while a relay joins or leaves a
virtual node under load. They need relays that route, and will be a subject of their own here.

Results go to `build/bench/overlay.json`. `--only NAME` runs one subject and leaves the other rows; `--quick` is one
short round, to see that it works.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import harness
import overlay_counts
import overlay_hops
import overlay_survive

SUITE = "overlay"


def hop_rows(quick: bool, rounds: int | None) -> Iterable[harness.Row]:
    sizes = overlay_hops.QUICK if quick else overlay_hops.Sizes()
    return overlay_hops.rows(replace(sizes, rounds=rounds or sizes.rounds))


def wire_rows(quick: bool, rounds: int | None) -> Iterable[harness.Row]:
    return overlay_counts.wire_rows(*((2, 512) if quick else ()))


def share_rows(quick: bool, rounds: int | None) -> Iterator[harness.Row]:
    yield from overlay_counts.reconstruct_row(rounds or (1 if quick else harness.ROUNDS), 100 if quick else 2000)
    yield from overlay_counts.share_rows()


def survive_rows(quick: bool, rounds: int | None, bad: int = 1) -> Iterable[harness.Row]:
    load = overlay_survive.QUICK if quick else overlay_survive.Load()
    return overlay_survive.rows(replace(load, rounds=rounds or load.rounds), bad)


SUBJECTS: dict[str, Callable[[bool, int | None], Iterable[harness.Row]]] = {
    "hops": hop_rows,
    "wire": wire_rows,
    "shares": share_rows,
    "survive": survive_rows,
    "beyond": partial(survive_rows, bad=2),
}
ALL = ("hops", "wire", "shares", "survive")


def main() -> None:
    parser = argparse.ArgumentParser(description="benchmarks of the overlay")
    parser.add_argument("--only", choices=SUBJECTS, action="append", help="a subject; without it all of them")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    parser.add_argument("--rounds", type=int, help="how many, where there are rounds")
    parser.add_argument("--into", type=Path, default=harness.RESULTS, help="the folder for overlay.json")
    arguments = parser.parse_args()
    harness.commit()  # of the code that is loaded by now
    print(", ".join(f"{name} {value}" for name, value in harness.machine().items()))
    for name in arguments.only or ALL:
        began = time.monotonic()
        print(f"\n{name} (load {os.getloadavg()[0]:.1f})", flush=True)
        rows = list(SUBJECTS[name](arguments.quick, arguments.rounds))
        harness.merge(arguments.into, SUITE, rows)
        print(harness.table(rows))
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
