"""`python -m tallystick.record.warm`: compile the kernels once, so that the first batch does not wait for it."""

from __future__ import annotations

import sys

import numpy as np

from tallystick.kernels.gear import gear_ends
from tallystick.record import gather, leaves, planes
from tallystick.record.codec import PLANES, compress
from tallystick.record.schema import Schema


def warm() -> str:
    """Compile, or load from the cache, what gathers rows, rearranges columns, hashes leaves and cuts objects.

    Returns the engine of the hashing."""
    gather.load()
    gather.gather_dicts([{"n": 1}], Schema.parse("n int64").arrow)
    planes.load()
    compress(bytes(8), PLANES)
    gear_ends(np.zeros(4, np.uint8), np.zeros(256, np.uint64), 1024, 4096, 16_384, 13, 11)
    return leaves.engine()


if __name__ == "__main__":
    print("compiling the kernels (once, about 15 s) …", end=" ", file=sys.stderr, flush=True)
    print(warm(), file=sys.stderr)
