"""The loop of a soak: one run after the other, each a function of its seed, for so many seeds or minutes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable


def soak(run: Callable[[int], object], again: str, description: str | None) -> None:
    """Run seeds as the command line says. It ends with the first that fails, and says how to run that alone: `again`,
    with the seed in place of the braces."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    began, done = time.monotonic(), 0
    while done < arguments.count if arguments.count else time.monotonic() - began < 60 * arguments.minutes:
        seed = arguments.seed + done
        try:
            run(seed)
        except BaseException:
            sys.stderr.write(f"seed {seed} failed: {again.format(seed)}\n")
            raise
        done += 1
        if done % 100 == 0:
            sys.stdout.write(f"{done} so far, {time.monotonic() - began:.0f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"{done} held, {time.monotonic() - began:.0f} s\n")
