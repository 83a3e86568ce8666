"""Seeds that once fell, and in the long tier a hundred and eighty more; `make soak` has as many as one likes.

A seed that falls in a soak or anywhere else is mended at its cause and stays here, with a word on what it was. What it
showed has a test of its own beside the part that was wrong: a later change lets a seed take another course, so it is
kept for what it may find again, not as the proof that the fault is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pytest

from tallystick.sim.run import replay, run_one

# (seed, steps): what fell
FALLEN = {
    (114, 80): "the mended world needed more leases of a group, one after the other, than it was given rounds",
    (229, 80): "a member's number was refused again and again by one in a block that was not shown yet",
    (323, 80): "the group that a member met lay in a block that the node's fall took along",
    (777000898, 120): "as 229, in a block that stayed open longer than the attempts lasted: the member died of it",
    (880000895, 120): "a transaction came from the journal by a clock that went back: all behind it were refused",
    (880001208, 120): "keys of an epoch that had begun were not given out before the authority's next round of work",
    (880001447, 120): "as 880001208",
}
STEPS = 120
SLICE = 30  # seeds of one test, half a minute or so: progress is seen, and processes share them
FIRST = [first + n * SLICE for first in (1_000, 31_000_000) for n in range(3)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # a world full of faults has much to warn of
    yield
    logging.disable(logging.NOTSET)


def failures(seeds: Iterable[int], steps: int) -> str:
    """What the seeds violated, each below the command that replays it."""
    fell = [one for one in (run_one(seed, steps) for seed in seeds) if one.violation is not None]
    return "\n\n".join(f"{replay(one.seed, steps)}\n{one.violation}" for one in fell)


@pytest.mark.parametrize(("seed", "steps"), FALLEN)
def test_a_seed_that_once_fell_stands(seed: int, steps: int) -> None:
    assert not (told := failures([seed], steps)), told


@pytest.mark.long
@pytest.mark.parametrize("first", FIRST)
def test_more_seeds_stand(first: int) -> None:
    assert not (told := failures(range(first, first + SLICE), STEPS)), told
