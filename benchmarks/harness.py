"""Measuring against a peer on a machine that is not quiet.

Two arms are compared only within a round: ours and the peer's run one after the other in one process, in turns first,
and the ratio that counts is the median of the rounds' ratios. A machine that slows down slows both. Work that only
computes is measured by the process's own processor time, which neighbours on the same cores do not enter; work that
waits for disks or peers (`waits`) by the clock on the wall. Where there is no peer, the median of the rounds is
reported, for orientation.

A suite is a list of cases; a module of cases is one subject (`sealing`, …), and `spine` runs them all. Results go to
`build/bench/<suite>.json` as a list of {name, ours, peer, unit, ratio, target, runs}; a ratio above one is better.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tallystick.record import leaves

RESULTS = Path(__file__).resolve().parent.parent / "build" / "bench"
ROUNDS = 15
FLAGS = ("sha_ni", "avx2", "avx512f", "vaes")  # what the hot loops can use

Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """`ours` and `peer` each do `amount` units of work a call; the time of one unit, in ns, is compared."""

    name: str
    ours: Work
    peer: Work | None = None
    amount: int = 1
    unit: str = "ns/record"
    target: float | None = None
    waits: bool = False


@dataclass(frozen=True)
class Rate:
    """Work of ours without a peer, reported as units a second on one core."""

    name: str
    ours: Work
    amount: int = 1
    unit: str = "parcels/s"
    waits: bool = False


@dataclass(frozen=True)
class Figure:
    """Something counted, not timed, such as bytes a record; `smaller` than the peer's is better."""

    name: str
    ours: float
    peer: float | None
    unit: str
    target: float | None = None


@dataclass(frozen=True)
class Result:
    name: str
    ours: float
    peer: float | None
    unit: str
    ratio: float | None
    target: float | None
    runs: int

    @property
    def met(self) -> bool:
        return self.target is None or (self.ratio is not None and self.ratio >= self.target)


def run(cases: Iterable[Case | Rate | Figure], rounds: int = ROUNDS) -> list[Result]:
    """Every case, one after the other, each with its arms in turns."""
    return [_measure(case, rounds) for case in cases]


def _measure(case: Case | Rate | Figure, rounds: int) -> Result:
    if isinstance(case, Figure):
        ratio = None if case.peer is None else case.peer / case.ours
        return Result(case.name, case.ours, case.peer, case.unit, ratio, case.target, 1)
    peer = case.peer if isinstance(case, Case) else None
    arms = [case.ours] if peer is None else [case.ours, peer]
    times = _in_turns(arms, rounds, time.perf_counter if case.waits else time.process_time)
    ours = [seconds / case.amount for seconds in times[0]]
    if isinstance(case, Rate):
        return Result(case.name, 1 / statistics.median(ours), None, case.unit, None, None, rounds)
    if peer is None:
        return Result(case.name, 1e9 * statistics.median(ours), None, case.unit, None, None, rounds)
    peers = [seconds / case.amount for seconds in times[1]]
    ratio = statistics.median(theirs / our for our, theirs in zip(ours, peers, strict=True))
    medians = 1e9 * statistics.median(ours), 1e9 * statistics.median(peers)
    return Result(case.name, *medians, case.unit, ratio, case.target, rounds)


def _in_turns(arms: list[Work], rounds: int, clock: Callable[[], float]) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in arms]
    for arm in arms:  # caches, compiled code, memory: nobody pays for being first
        arm()
    gc.collect()
    gc.freeze()  # the collector runs as it would in an application, but not over our input
    try:
        for turn in range(rounds):
            for number in range(len(arms)) if turn % 2 else reversed(range(len(arms))):
                started = clock()
                arms[number]()
                times[number].append(clock() - started)
    finally:
        gc.unfreeze()
    return times


def machine() -> dict[str, Any]:
    """What the numbers hang on."""
    model, flags = platform.processor() or platform.machine(), ""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            known = dict(line.split(":", 1) for line in file if ":" in line)
        fields = {key.strip(): value.strip() for key, value in known.items()}
        model, flags = fields.get("model name", model), fields.get("flags", "")
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "flags": [flag for flag in FLAGS if flag in flags.split()],
        "leaves": leaves.engine(),
        "python": platform.python_version(),
    }


def report(suite: str, results: list[Result]) -> None:
    """Print the table and write `build/bench/<suite>.json`, what the machine is beside it."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{suite}.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    (RESULTS / "machine.json").write_text(json.dumps(machine(), indent=1) + "\n")
    print(f"{suite}: " + ", ".join(f"{name} {value}" for name, value in machine().items()))
    print(f"{'':<24}{'ours':>12}{'peer':>12}  {'unit':<14}{'ratio':>7}{'target':>8}")
    for result in results:
        print(_line(result))
    sys.stdout.flush()


def _line(result: Result) -> str:
    numbers = f"{result.name:<24}{_number(result.ours):>12}{_number(result.peer):>12}  {result.unit:<14}"
    ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
    if result.target is None:
        return f"{numbers}{ratio:>7}".rstrip()
    return f"{numbers}{ratio:>7}{result.target:>8.2f}  {'met' if result.met else 'MISSED'}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
