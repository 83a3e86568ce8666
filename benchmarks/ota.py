"""`make bench-ota`: large objects, and updates over the air.

    fetch_three, fetch_one                  an object of 256 MB against one plain GET, SHA-256 and write; ota_fetch.py
    fetch_limit                             hashing, opening and writing alone: what a fetch could be at best
    fetch_faults, resume, overhead          bytes; ota_fetch.py
    delta_…                                 an update of 59 MB as a patch, and otherwise; ota_delta.py
    memory_2g                               the peak of a fetch; ota_fetch.py
    campaign                                vehicles a second through Director and ledger; ota_campaign.py

Results go to `build/bench/ota.json`. `--only NAME` runs one subject and leaves the other rows; `--quick` is one short
round of short objects, to see that it works. `delta` needs the network once, for two wheels that stay in the cache, and
the program zstd; without them it says so, and its rows stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial

import harness
import ota_campaign
import ota_delta
import ota_fetch

SUITE = "ota"

Cases = Callable[[bool, int | None], Iterable[harness.Result | harness.Rate | harness.Figure]]


def measured(cases: Cases, quick: bool, rounds: int | None) -> Iterator[harness.Row]:
    return map(asdict, harness.run(cases(quick, rounds), rounds or harness.ROUNDS))


SUBJECTS: dict[str, Callable[[bool, int | None], Iterable[harness.Row]]] = {
    "fetch": partial(measured, ota_fetch.rows),
    "faults": partial(measured, ota_fetch.fault_rows),
    "memory": partial(measured, ota_fetch.memory_rows),
    "delta": partial(measured, ota_delta.rows),
    "campaign": partial(measured, ota_campaign.rows),
}


if __name__ == "__main__":
    harness.run_subjects(SUITE, SUBJECTS)
