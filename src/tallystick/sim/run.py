"""Many seeds, two cores, one line each; a failure comes with the one command that replays it."""

from __future__ import annotations

import logging
import multiprocessing
import traceback
from collections.abc import Iterable, Iterator
from functools import partial

from tallystick.sim.world import Outcome, simulate

STEPS = 80


def replay(seed: int, steps: int) -> str:
    """The command that runs this seed again."""
    return f"python -m tallystick.sim --seed {seed} --steps {steps}"


def run_one(seed: int, steps: int = STEPS) -> Outcome:
    """One seed; what a part raised where it should not is a violation as well."""
    try:
        return simulate(seed, steps)
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        return Outcome(seed, "", 0, 0, 0, 0, f"{type(error).__name__}: {error}\n{told}")


def run_many(seeds: Iterable[int], steps: int = STEPS, processes: int = 2) -> Iterator[Outcome]:
    """The outcomes of many seeds, in order."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, initializer=_quiet) as pool:
        yield from pool.imap(partial(run_one, steps=steps), seeds, chunksize=4)


def _quiet() -> None:
    logging.disable(logging.CRITICAL)  # warnings of a world full of faults say nothing
