"""`python -m tallystick.fleet.detect.warm`: compile the checks once, so that the first frames do not wait for it."""

from __future__ import annotations

import sys

from tallystick.fleet.bus import simulate_bus
from tallystick.fleet.detect import checks, network
from tallystick.fleet.detect.profile import learn


def warm() -> None:
    """Compile, or load from the cache, the simulated bus, what learns a profile, and what holds frames to it."""
    frames = simulate_bus(0, 0.2)
    profile = learn([frames])
    checks.step(profile, checks.begin(profile), frames)
    network.features(profile, network.begin(profile), frames)


if __name__ == "__main__":
    print("compiling detection (once, about 30 s) …", end=" ", file=sys.stderr, flush=True)
    warm()
    print("done", file=sys.stderr)
