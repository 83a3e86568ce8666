"""`make bench-compare BASE=<commit>`: two commits in turns on one machine, and every row that moved beyond its noise.

Base is a commit, head is the working tree as `git stash create` sees it: untracked files are left out until they are
added. Both are unpacked under `build/bench-compare`, by the hash of the tree, each with an environment of its own that
has the source of its side and the packages of this one, so that every process a benchmark starts runs its side's
source. Then they take turns: base, head, head, base, …. A pass is one run of the suite; its value of a row is our own,
not the ratio, for the peer of some rows is made of our parts too. A machine that slows down slows both sides' passes.

A row has moved if the ranges of the two sides' passes do not overlap, and their medians are further apart than the
wider range and than `MOVED`. Where nothing changed, ranges of n passes each lie apart by chance in 2 n! n! / (2n)! of
the rows: one in ten for three, one in 126 for five. With fewer than `PASSES_MIN` nothing is judged.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import harness
from harness import Row, number

ROOT = Path.cwd()  # the checkout whose working tree is compared
MOVED = 0.05
PASSES, PASSES_MIN = 5, 3
WARM = ("tallystick.record.warm", "tallystick.ledger.block")  # as `make warm`: nobody pays for compiling
LARGER_IS_BETTER = ("/s", "/request")  # ends of units; of all others (ns, bytes, MiB) less is better


@dataclass(frozen=True)
class Verdict:
    """What the passes of both sides say about a row."""

    name: str
    unit: str
    base: list[float]
    head: list[float]
    ratio: float  # head by base, by the medians
    noise: float  # the wider of the two ranges, by its median
    told: str  # better, worse, the same, or unknown: too few passes


def judge(name: str, unit: str, base: Sequence[float], head: Sequence[float]) -> Verdict:
    before, after = statistics.median(base), statistics.median(head)
    ratio = after / before if before else 1.0 if not after else float("inf")
    noise = max((max(side) - min(side)) / abs(statistics.median(side) or 1.0) for side in (base, head))
    told = "the same"
    if min(len(base), len(head)) < PASSES_MIN:
        told = "unknown"
    elif (max(base) < min(head) or max(head) < min(base)) and abs(after - before) > max(noise, MOVED) * min(
        before, after
    ):
        told = "better" if (after > before) == unit.endswith(LARGER_IS_BETTER) else "worse"
    return Verdict(name, unit, list(base), list(head), ratio, noise, told)


Passes = Sequence[Mapping[str, Row]]  # of one side: rows by name


def verdicts(base: Passes, head: Passes) -> tuple[list[Verdict], list[str], list[str]]:
    """Of the rows that all passes of both sides have; and the names that only base, and that only head has."""
    common, names = set(base[0]).intersection(*base, *head), [set().union(*side) for side in (base, head)]
    judged = [
        judge(name, row["unit"], *([one[name]["ours"] for one in side] for side in (base, head)))
        for name, row in head[0].items()
        if name in common and not row.get("extrapolated")
    ]
    return judged, sorted(names[0] - names[1]), sorted(names[1] - names[0])


def report(found: Sequence[Verdict]) -> str:
    lines = [f"{'':<32}{'base':>12}{'head':>12}  {'unit':<16}{'head/base':>10}{'noise':>9}"]
    for one in found:
        values = (number(statistics.median(side)) for side in (one.base, one.head))
        mark = "" if one.told == "the same" else f"  {one.told}"
        lines.append(
            f"{one.name:<32}{next(values):>12}{next(values):>12}  {one.unit:<16}"
            f"{one.ratio:>10.3f}{100 * one.noise:>7.0f} %{mark}"
        )
    return "\n".join(lines)


def in_a_line(found: Sequence[Verdict], base: str, head: str, passes: int) -> str:
    """For the message of the commit."""
    moved = [one for one in found if one.told in ("better", "worse")]
    changes = [
        f"{one.name} {100 * (one.ratio - 1):+.0f} % ({one.told}, noise {100 * one.noise:.0f} %)" for one in moved
    ]
    judged = f"of {len(found)} rows {'none' if not moved else len(moved)} moved"
    if passes < PASSES_MIN:
        judged = f"{len(found)} rows, not judged: fewer than {PASSES_MIN} passes"
    return f"bench-compare {base}..{head}, {passes} passes: {judged}{': ' if changes else ''}{', '.join(changes)}"


# ── Trees and runs ───────────────────────────────────────────────────────────────────────────────────────────────────


def git(*arguments: str) -> str:
    nobody = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")  # for `stash create`, which makes a commit
    done = subprocess.run(["git", *nobody, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


class Side:
    """A commit, unpacked, with an interpreter that finds its source first."""

    def __init__(self, commit: str, name: str = "") -> None:
        self.name = name or git("rev-parse", "--short", f"{commit}^{{commit}}")
        self.hash = git("rev-parse", "--short", f"{commit}^{{tree}}")
        self.tree = ROOT / "build" / "bench-compare" / self.hash
        environment = self.tree / ".venv"
        self._python = environment / "bin" / "python"
        paths = Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)})) / "side.pth"
        if not paths.exists():  # it is written last
            self.tree.mkdir(parents=True, exist_ok=True)
            archive = subprocess.run(["git", "archive", self.hash], cwd=ROOT, capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", str(self.tree)], input=archive, check=True)
            venv.create(environment, symlinks=True)
            # The packages come as a plain folder: the note in it that leads to this checkout's source is not read.
            paths.write_text(f"{self.tree / 'src'}\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")
        for module in WARM:
            self._run("-m", module, check=False)

    def measure(self, suite: str, arguments: Sequence[str]) -> dict[str, Row]:
        """One pass: the rows that the suite wrote."""
        written = self.tree / "build" / "bench"
        (written / f"{suite}.json").unlink(missing_ok=True)
        self._run(f"benchmarks/{suite}.py", *arguments)
        return {row["name"]: row for row in harness.read(written, suite)}

    def read(self, name: str) -> str:
        path = self.tree / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def _run(self, *arguments: str, check: bool = True) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(self._python), *arguments]
        done = subprocess.run(command, cwd=self.tree, env=environment, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise SystemExit(f"error: {self.name}: {' '.join(arguments)} failed\n{done.stdout}{done.stderr}")


def differences(base: Side, head: Side) -> list[str]:
    """What besides the source may have moved a row."""
    found = []
    if any(base.read(name) != head.read(name) for name in ("pyproject.toml", "constraints.txt")):
        found.append("pyproject.toml or constraints.txt differ: both sides ran with the packages of this environment")
    changed = git("diff", "--name-only", base.hash, head.hash, "--", "benchmarks/*.py", "tests/makers.py")
    if changed:
        found.append(f"benchmarks differ, each side ran its own: {', '.join(changed.split())}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="a commit; head is the working tree")
    parser.add_argument("--suite", default="spine", help="spine, abe, chain, spark or kafka")
    parser.add_argument("--passes", type=int, default=PASSES, help="of each side")
    parser.add_argument("--strict", action="store_true", help="end with code 1 if a row got worse")
    arguments, for_suite = parser.parse_known_args()  # the rest is the suite's: --only sealing --rounds 5
    changed = git("stash", "create")
    base = Side(arguments.base)
    head = Side(changed, f"{git('rev-parse', '--short', 'HEAD')}+") if changed else Side("HEAD")
    passes: dict[Side, list[dict[str, Row]]] = {base: [], head: []}
    for turn in range(arguments.passes):
        for side in (base, head) if turn % 2 == 0 else (head, base):
            started, load = time.monotonic(), os.getloadavg()[0]
            passes[side].append(side.measure(arguments.suite, for_suite))
            took = f"{time.monotonic() - started:.0f} s, load {load:.1f}"
            print(f"pass {turn + 1} of {arguments.passes}, {side.name}: {took}", file=sys.stderr, flush=True)
    found, gone, new = verdicts(passes[base], passes[head])
    print(report(found))
    for text, names in (("only in base", gone), ("only in head", new)):
        if names:
            print(f"{text}: {', '.join(names)}")
    notes = differences(base, head)
    for note in notes:
        print(f"note: {note}")
    told = in_a_line(found, base.name, head.name, arguments.passes)
    print(told)
    kept = {"told": told, "notes": notes, "machine": harness.machine_text(), "date": time.strftime("%Y-%m-%d")}
    kept |= {"only_in_base": gone, "only_in_head": new, "rows": [asdict(one) for one in found]}
    results = ROOT / "build" / "bench"
    results.mkdir(parents=True, exist_ok=True)
    (results / "compare.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if arguments.strict and any(one.told == "worse" for one in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
