"""`python -m tallystick.record.warm`: compile the kernels once, so that the first batch does not wait for it."""

from __future__ import annotations

import sys

from tallystick.record import leaves


def warm() -> str:
    """Compile, or load from the cache, everything that hashes leaves; returns the engine in use."""
    return leaves.engine()


if __name__ == "__main__":
    print("compiling the hashing kernels (once, about 10 s) …", end=" ", file=sys.stderr, flush=True)
    print(warm(), file=sys.stderr)
