"""BPS, Fig. 10: how long fetching takes, by the number of messages.

Claim (section 5.4): the gap to Kafka is close to 0.6 s at 2 million messages and at most about 0.3 s at 10 million;
fetching takes less time than producing.

The paper's values here are differences, not ratios, and it names no time of Kafka's own; so they are drawn on top of
ours of Kafka. A gap that halves while the work grows fivefold means that BPS pays for something once, at the start.

Expected band, at the paper's scale (`--full`; arms and machine: transfer.py):

    at every point    no longer than Kafka, whose consumer parses JSON, though every parcel is verified and opened
    growth            ten million take at most 6.5 times as long as two

`python -m experiments.bps.fig10 [--small | --full]` writes build/experiments/bps/fig10.csv and .png.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.bps.fig09 import GROWTH
from experiments.bps.transfer import PAPER, Figure, Row, held, means, ratios

GAP_S = {PAPER[0]: 0.6, PAPER[-1]: 0.3}


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    if not held(rows):
        return []
    missed = [
        f"{count} messages: {ratio:.2f} of Kafka's time"
        for count, ratio in ratios(rows, "fetch", "seconds").items()
        if ratio > 1
    ]
    times = means(rows, "fetch", "seconds")["tallystick"]
    if times[-1][1] > GROWTH * times[0][1]:
        missed.append(f"the last point takes {times[-1][1] / times[0][1]:.1f} times as long as the first")
    return missed


FIGURE = Figure("fig10", "fetch", "seconds", "Fetching: job completion time", {}, misses, GAP_S)

if __name__ == "__main__":
    sys.exit(FIGURE.main())
