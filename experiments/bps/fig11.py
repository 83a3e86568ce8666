"""BPS, Fig. 11: messages produced a second, by the number of messages.

Claim (section 5.5): "93 % of Kafka when the message number is 2 million, and … 99.4 % … when message number reaches 10
million"; growth eases after 8 million.

The paper's contradictions: "the produce operation still performs better than the fetch operation in terms of
throughput", and two sentences on "the throughput of the fetch operation is significantly larger than the produce
operation". Section 5.4 (producing takes longer) agrees with the second. And see fig09 on 99.4 % against 0.19 %.

Expected band, at the paper's scale (`--full`; arms and machine: transfer.py):

    at every point    at least 0.93 of Kafka's throughput, the paper's worst

`python -m experiments.bps.fig11 [--small | --full]` writes build/experiments/bps/fig11.csv and .png.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.bps.transfer import PAPER, Figure, Row, held, ratios

LEAST = 0.93


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    found = ratios(rows, "produce", "per_second") if held(rows) else {}
    return [f"{count} messages: {ratio:.2f} of Kafka's rate" for count, ratio in found.items() if ratio < LEAST]


FIGURE = Figure("fig11", "produce", "per_second", "Producing: throughput", {PAPER[0]: LEAST, PAPER[-1]: 0.994}, misses)

if __name__ == "__main__":
    sys.exit(FIGURE.main())
