"""Measuring against a peer on a machine that is not quiet.

Two arms are compared only within a round: ours and the peer's run one after the other in one process, in turns first,
and the ratio that counts is the median of the rounds' ratios. A machine that slows down slows both. Work that only
computes is measured by the process's own processor time, which neighbours on the same cores do not enter; work that
waits for disks or peers (`waits`) by the clock on the wall. Where there is no peer, the median of the rounds is
reported, for orientation.

A suite is made of subjects (`sealing`, `ledger`, …), modules with an iterable of cases. Results go to
`build/bench/<suite>.json` as a list of {name, ours, peer, unit, ratio, target, runs, met, date, load, spread,
extrapolated, commit, machine}; a ratio above one is better. `spread` has the quartiles of the rounds' ratios, or of our
own value where there is no peer: what lies within it is noise. A result replaces an older one of the same name and
leaves the others, so that one subject may be run alone. `pages.py` brings them onto the pages.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tallystick.record import leaves

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "bench"
ROUNDS = 15
FLAGS = ("sha_ni", "avx2", "avx512f", "vaes")  # what the hot loops can use

Work = Callable[[], object]
Row = dict[str, Any]  # a result as it stands in a file


@dataclass(frozen=True)
class Case:
    """`ours` and `peer` each do `amount` units of work a call; the time of one unit, in ns, is compared."""

    name: str
    ours: Work
    peer: Work | None = None
    amount: int = 1
    unit: str = "ns/record"
    target: float | None = None  # of the ratio
    waits: bool = False
    before: Work | None = None  # done before each arm's turn, and not timed
    rounds_max: int = ROUNDS
    turns: int = 1  # a round's number of turns: many short ones, where a small difference is asked for
    scale: float = 1e9  # units of time in a second: 1e9 for ns


@dataclass(frozen=True)
class Rate:
    """Work reported as units a second, of ours or of both; on one core unless it waits."""

    name: str
    ours: Work
    amount: int = 1
    unit: str = "parcels/s"
    waits: bool = False
    peer: Work | None = None
    peer_amount: int = 1
    before: Work | None = None
    rounds_max: int = ROUNDS
    target: float | None = None  # of our own rate


@dataclass(frozen=True)
class Figure:
    """Something counted, not timed, such as bytes a record; smaller than the peer's is better."""

    name: str
    ours: float
    peer: float | None
    unit: str
    target: float | None = None
    extrapolated: str = ""  # from which row, if it was worked out and not measured


@cache
def commit(root: Path = ROOT) -> str:
    """The commit that is measured, with a plus if files differ from it that can change a number; empty outside git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!*.md", ":!benchmarks/results")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


@dataclass(frozen=True)
class Result:
    name: str
    ours: float
    peer: float | None
    unit: str
    ratio: float | None
    target: float | None
    runs: int
    met: bool | None = None
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 1))
    spread: tuple[float, float] | None = None  # None: counted, or measured once
    extrapolated: str = ""
    commit: str = field(default_factory=commit)
    machine: str = field(default_factory=lambda: machine_text())


def run(cases: Iterable[Case | Rate | Figure | Result], rounds: int = ROUNDS) -> list[Result]:
    """Every case, one after the other, each with its arms in turns; a line for each as soon as it is done. A `Result`
    is of a suite that measured it by itself."""
    commit()  # of the code that is loaded by now, whatever is committed while it runs
    print(f"{'':<32}{'ours':>12}{'peer':>12}  {'unit':<14}{'ratio':>7}{'target':>9}", flush=True)
    results = []
    for case in cases:
        results.append(case if isinstance(case, Result) else _measure(case, rounds))
        print(_line(results[-1]), flush=True)
    return results


def _measure(case: Case | Rate | Figure, rounds: int) -> Result:
    if isinstance(case, Figure):
        return _judged(case, case.ours, case.peer, None if case.peer is None else case.peer / case.ours, 1)
    arms = [case.ours] if case.peer is None else [case.ours, case.peer]
    rounds = min(rounds, case.rounds_max) * (case.turns if isinstance(case, Case) else 1)
    clock = time.perf_counter if case.waits else time.process_time
    times = _in_turns(arms, rounds, clock, case.before)
    amounts = (case.amount, case.peer_amount if isinstance(case, Rate) else case.amount)
    each = [[seconds / amount for seconds in arm] for arm, amount in zip(times, amounts, strict=False)]
    shown = [[1 / one if isinstance(case, Rate) else case.scale * one for one in arm] for arm in each]
    ratios = [theirs / our for our, theirs in zip(*each, strict=True)] if case.peer else None
    medians = [statistics.median(arm) for arm in shown]
    ratio = statistics.median(ratios) if ratios else None
    return _judged(case, medians[0], medians[1] if case.peer else None, ratio, rounds, _spread(ratios or shown[0]))


def _judged(
    case: Case | Rate | Figure,
    ours: float,
    peer: float | None,
    ratio: float | None,
    rounds: int,
    spread: tuple[float, float] | None = None,
) -> Result:
    reached = ours if isinstance(case, Rate) else ratio
    met = None if case.target is None else reached is not None and reached >= case.target
    extrapolated = case.extrapolated if isinstance(case, Figure) else ""
    return Result(
        *(case.name, ours, peer, case.unit, ratio, case.target, rounds, met), spread=spread, extrapolated=extrapolated
    )


def _spread(values: Sequence[float]) -> tuple[float, float] | None:
    """The quartiles; None of a single value, of which nobody knows how it varies."""
    if len(values) < 2:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def compare(
    name: str, ours: Sequence[float], peer: Sequence[float] | None, unit: str, target: float | None = None
) -> Result:
    """A result of runs that were measured already, ours and the peer's in turns; smaller is better."""
    ratios, ratio, median = None, None, None
    if peer is not None:  # a counter too coarse to see either arm sees no difference
        ratios = [their / our if our else 1.0 for our, their in zip(ours, peer, strict=True)]
        ratio, median = statistics.median(ratios), statistics.median(peer)
    met = None if target is None or ratio is None else ratio >= target
    spread = _spread(ratios or ours)
    return Result(name, statistics.median(ours), median, unit, ratio, target, len(ours), met, spread=spread)


def _in_turns(arms: list[Work], rounds: int, clock: Callable[[], float], before: Work | None) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in arms]
    for arm in arms:  # caches, compiled code, memory: nobody pays for being first
        if before is not None:
            before()
        arm()
    gc.collect()
    gc.freeze()  # the collector runs as it would in an application, but not over our input
    try:
        for turn in range(rounds):
            for number in range(len(arms)) if turn % 2 else reversed(range(len(arms))):
                if before is not None:
                    before()
                started = clock()
                arms[number]()
                times[number].append(clock() - started)
    finally:
        gc.unfreeze()
    return times


@cache
def machine_text() -> str:
    """The same in a line."""
    known = machine()
    flags = f" ({', '.join(known['flags'])})" if known["flags"] else ""
    return f"{known['cores']} cores of {known['cpu']}{flags}, Python {known['python']}"


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


def keep(suite: str, results: list[Result], folder: Path = RESULTS) -> None:
    """Put the results into `build/bench/<suite>.json`, and what the machine is beside it."""
    merge(folder, suite, [asdict(result) for result in results])
    (folder / "machine.json").write_text(json.dumps(machine(), indent=1) + "\n")


def merge(folder: Path, suite: str, rows: Iterable[Row]) -> None:
    """Put rows into a folder's file of the suite: each in the place of an older one of its name, or at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = {row["name"]: row for row in rows}
    in_place = [fresh.pop(row["name"], row) for row in read(folder, suite)]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in [*in_place, *fresh.values()])
    (folder / f"{suite}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def read(folder: Path, suite: str) -> list[Row]:
    """What a folder has of a suite."""
    path = folder / f"{suite}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def table(rows: Iterable[Row]) -> str:
    """Results as Markdown; columns in which nothing stands are left out."""
    cells = [("name", "ours", "peer", "unit", "ratio", "quartiles", "target", " ")]
    for one in rows:
        spread = " to ".join(number(value) for value in one.get("spread") or ())
        told = f"extrapolated from {one['extrapolated']}" if one.get("extrapolated") else judged(one)
        values = (number(one["ours"]), number(one["peer"]), one["unit"], number(one["ratio"]), spread)
        cells.append((one["name"], *values, number(one["target"]), told))
    columns = [column for column in zip(*cells, strict=True) if any(column[1:])]
    lines = [f"| {' | '.join(line)} |" for line in zip(*columns, strict=True)]
    sides = "|".join("---" if column[0] in ("name", "unit", " ") else "--:" for column in columns)
    return "\n".join([lines[0], f"|{sides}|", *lines[1:]])


def judged(row: Row) -> str:
    return {None: "", True: "met", False: "**missed**"}[row["met"]]


def _line(result: Result) -> str:
    numbers = f"{result.name:<32}{number(result.ours):>12}{number(result.peer):>12}  {result.unit:<14}"
    ratio = number(result.ratio)
    if result.target is None:
        return f"{numbers}{ratio:>7}".rstrip()
    return f"{numbers}{ratio:>7}{number(result.target):>9}  {'met' if result.met else 'MISSED'}"


def number(value: float | None) -> str:
    """For people: three digits that count, or all before the point."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


Subjects = Mapping[str, Callable[[bool, int | None], Iterable[Row]]]


def run_subjects(suite: str, subjects: Subjects, usual: Iterable[str] = ()) -> None:
    """The command of a suite whose rows come from several subjects; without `--only` the `usual` ones, or all."""
    parser = argparse.ArgumentParser(description=f"benchmarks of the {suite}")
    parser.add_argument("--only", choices=subjects, action="append", help="a subject; without it all of them")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    parser.add_argument("--rounds", type=int, help="how many, where there are rounds")
    parser.add_argument("--into", type=Path, default=RESULTS, help=f"the folder for {suite}.json")
    arguments = parser.parse_args()
    commit()  # of the code that is loaded by now
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    for name in arguments.only or usual or subjects:
        began = time.monotonic()
        print(f"\n{name} (load {os.getloadavg()[0]:.1f})", flush=True)
        rows = list(subjects[name](arguments.quick, arguments.rounds))
        merge(arguments.into, suite, rows)
        print(table(rows))
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
