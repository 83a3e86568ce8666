"""Compile the numba functions into the cache, so that nobody's first parcel waits for it.

Compilation takes 12–15 s on a cold cache and nothing on a warm one. `make` runs this after installing.
"""

from __future__ import annotations

import importlib.util
import sys
import time


def main() -> int:
    if importlib.util.find_spec("tallystick.record.leaves") is None:
        return 0
    print("warming the numba cache (a quarter of a minute when cold) …", file=sys.stderr, flush=True)
    started = time.monotonic()
    from tallystick.record import leaves

    print(f"leaf hashing: {leaves.engine()} ({time.monotonic() - started:.1f} s)", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
