"""`python -m tallystick.sim --seed N`: replay one seed, or run many from it on.

    python -m tallystick.sim --seed 4711                one seed, with its log if it fails
    python -m tallystick.sim --seed 0 --count 1000      a thousand, two at a time
    python -m tallystick.sim --seed 0 --minutes 30      as many as half an hour takes

One line per seed: trace, rows produced, acknowledged and delivered, crashes of the node. The exit status is 1 if a seed
failed; its line is followed by what was violated and by the command that replays it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator

from tallystick.runtime.sources import SystemClock
from tallystick.sim.run import STEPS, replay, run_many, run_one
from tallystick.sim.world import Outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tallystick.sim", description="seeded simulation of the spine")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each run")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--minutes", type=float, default=0.0, help="run on for so long, whatever the count")
    chosen = parser.parse_args()
    failures = 0
    for outcome in _outcomes(chosen.seed, chosen.steps, chosen.count, chosen.minutes):
        print(_line(outcome), flush=True)
        if outcome.violation is not None:
            failures += 1
            print(f"  {outcome.violation}\n  replay: {replay(outcome.seed, chosen.steps)}", flush=True)
    if failures:
        print(f"error: {failures} seeds failed", file=sys.stderr)
    return 1 if failures else 0


def _outcomes(first: int, steps: int, count: int, minutes: float) -> Iterator[Outcome]:
    if count == 1 and not minutes:
        yield run_one(first, steps)
        return
    clock = SystemClock()
    end = clock.monotonic() + minutes * 60
    seeds = iter(itertools.count(first) if minutes else range(first, first + count))
    while batch := list(itertools.islice(seeds, 256)):
        yield from run_many(batch, steps)
        if minutes and clock.monotonic() > end:
            return


def _line(outcome: Outcome) -> str:
    verdict = "ok" if outcome.violation is None else "FAILED"
    counts = f"{outcome.produced:4} {outcome.acknowledged:4} {outcome.delivered:4} {outcome.crashes:3}"
    return f"seed {outcome.seed:6}  {outcome.trace or '-':16} {counts}  {verdict}"


if __name__ == "__main__":
    sys.exit(main())
