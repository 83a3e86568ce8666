"""BPS, Fig. 12: messages fetched a second, by the number of messages.

Claim (introduction and section 5.5): "at least 4.5 % loss in Fetch throughput"; the gap shrinks as messages grow.
Which of producing and fetching is faster the paper says both ways (fig11).

Expected band, at the paper's scale (`--full`; arms and machine: transfer.py):

    at every point    at least 0.955 of Kafka's throughput, the paper's best

`python -m experiments.bps.fig12 [--small | --full]` writes build/experiments/bps/fig12.csv and .png.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.bps.transfer import PAPER, Figure, Row, held, ratios

LEAST = 0.955


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    found = ratios(rows, "fetch", "per_second") if held(rows) else {}
    return [f"{count} messages: {ratio:.2f} of Kafka's rate" for count, ratio in found.items() if ratio < LEAST]


FIGURE = Figure("fig12", "fetch", "per_second", "Fetching: throughput", {PAPER[-1]: LEAST}, misses)

if __name__ == "__main__":
    sys.exit(FIGURE.main())
