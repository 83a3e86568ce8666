"""`make bench-fabric`: publications through switches.

    ebpf_…, afpacket_…, packet_200, packet_whole_200,
    flooding_200, topic_group_200                                    packets through one switch; see fabric_packets.py
    rules, counters                                                  flow rules over P4Runtime, written and asked for
    controller_…                                                     the configurator's time; see fabric_controller.py
    row_latency                                                      from publish() to an opened row; fabric_rows.py

Results go to `build/bench/fabric.json`. `--only NAME` runs one subject and leaves the other rows; `--quick` is one
short round, to see that it works. It needs root, or `unshare -Urn` for all but eBPF.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial

import fabric_controller
import fabric_packets
import fabric_rows
import harness

SUITE = "fabric"


def measured(
    cases: Callable[[bool, int | None], Iterable[harness.Result | harness.Case]], quick: bool, rounds: int | None
) -> Iterator[harness.Row]:
    return map(asdict, harness.run(cases(quick, rounds)))


SUBJECTS: dict[str, Callable[[bool, int | None], Iterable[harness.Row]]] = {
    "packets": partial(measured, fabric_packets.rows),
    "controller": partial(measured, fabric_controller.rows),
    "rows": partial(measured, fabric_rows.rows),
}


if __name__ == "__main__":
    harness.run_subjects(SUITE, SUBJECTS)
