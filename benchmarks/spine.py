"""`make bench`: the spine, from records to parcels and back, and later over the ledger and a node.

Each subject is a module with `cases()`, an iterable of the harness's cases. `--only NAME` runs one subject,
`--rounds N` takes more or fewer rounds.
"""

from __future__ import annotations

import argparse

import harness
import sealing

SUBJECTS = {"sealing": sealing.cases}


def main() -> None:
    parser = argparse.ArgumentParser(description="benchmarks of the spine")
    parser.add_argument("--only", choices=SUBJECTS, action="append")
    parser.add_argument("--rounds", type=int, default=harness.ROUNDS)
    arguments = parser.parse_args()
    for name in arguments.only or SUBJECTS:
        harness.report(name, harness.run(SUBJECTS[name](), arguments.rounds))


if __name__ == "__main__":
    main()
