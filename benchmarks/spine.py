"""`make bench`: the spine, from records to parcels and back, over the ledger and through a node.

Each subject is a module with `cases()`, an iterable of the harness's cases. `--only NAME` runs one subject (and keeps
the other results that are there), `--rounds N` takes fewer rounds. Everything goes to `build/bench/spine.json`;
`--table` prints it as the table of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import time

import growth
import harness
import ledger_bench
import node
import sealing

SUBJECTS = {"sealing": sealing.cases, "ledger": ledger_bench.cases, "node": node.cases, "memory": growth.cases}


def main() -> None:
    parser = argparse.ArgumentParser(description="benchmarks of the spine")
    parser.add_argument("--only", choices=SUBJECTS, action="append")
    parser.add_argument("--rounds", type=int, default=harness.ROUNDS)
    parser.add_argument("--table", action="store_true", help="run nothing, print the results as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print(harness.table(harness.read(harness.RESULTS, "spine")))
        return
    print(", ".join(f"{name} {value}" for name, value in harness.machine().items()))
    for name in arguments.only or SUBJECTS:
        started = time.monotonic()
        print(f"\n{name} (load {os.getloadavg()[0]:.1f})")
        harness.keep("spine", harness.run(SUBJECTS[name](), arguments.rounds))
        print(f"{name}: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
