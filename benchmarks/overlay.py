"""`make bench-overlay`: what secrets and parcels cost on their way through virtual nodes, and whether they arrive.

    hop_plain, hop_iterative, hop_redistribution    lane keys a second through three virtual nodes (2, 3) on real links,
    hop_…_latency                                   and milliseconds a hop; see overlay_hops.py
    wire_replicas, wire_retransmit, wire_coded      content over bytes on the wire with one relay of three failing, and
    shares_10, reconstruct_10                       shares at a subscriber, and putting them together; overlay_counts.py
    survive                                         delivered over published while a third of the relays fail, in
                                                    processes; overlay_survive.py
    survive_2_bad                                   the same with two of three, which is more than is promised: only
                                                    with `--only beyond`
    attach_pause, attach_pause_late, detach_pause   the longest wait of a message while a relay comes or goes;
                                                    overlay_pauses.py
    carrier_publish, carrier_fetch                  an overlay of one virtual node against the log carrier, in
                                                    processes on one chain; overlay_carrier.py

Results go to `build/bench/overlay.json`. `--only NAME` runs one subject and leaves the other rows; `--quick` is one
short round, to see that it works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import harness
import overlay_carrier
import overlay_counts
import overlay_hops
import overlay_pauses
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


def pause_rows(quick: bool, rounds: int | None) -> Iterable[harness.Row]:
    load = overlay_pauses.QUICK if quick else overlay_pauses.Changing()
    return overlay_pauses.rows(replace(load, rounds=rounds or load.rounds))


def carrier_rows(quick: bool, rounds: int | None) -> Iterable[harness.Row]:
    amount = overlay_carrier.QUICK if quick else overlay_carrier.Amount()
    return overlay_carrier.rows(replace(amount, rounds=rounds or amount.rounds))


SUBJECTS: dict[str, Callable[[bool, int | None], Iterable[harness.Row]]] = {
    "hops": hop_rows,
    "wire": wire_rows,
    "shares": share_rows,
    "survive": survive_rows,
    "pauses": pause_rows,
    "carrier": carrier_rows,
    "beyond": partial(survive_rows, bad=2),
}
ALL = ("hops", "wire", "shares", "survive", "pauses", "carrier")


if __name__ == "__main__":
    harness.run_subjects(SUITE, SUBJECTS, ALL)
