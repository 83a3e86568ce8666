"""Figures over many seeds, on Spark.

`python -m experiments.sweep anonpubsub.fig10 anonpubsub.fig11 --seeds 0-29 [--runs 1] [--small] [--master URL]
[--by COLUMN …]`

Each seed is a task: it runs the figure's `run(seed, small)` where there is a core for it, and what comes back is its
rows with the seed beside them. The order of tasks does not matter, since a row is a function of its seed. Figures that
draw the same rows share them. `--runs`: of a figure that draws several worlds for each point, so many for each seed.
The package `experiments` travels to the executors; tallystick and numpy are there already, as for any job.

Writes build/experiments/<paper>/<figure>-sweep.csv, and for each number of the figure's rows its mean, its deviation,
its least and its greatest over the seeds, by the columns that tell its lines apart (the figure's own `BY`, or `--by`),
to <figure>-sweep-summary.csv. Draws the figure of all seeds to <figure>-sweep.png, and says what left the band.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from statistics import mean, pstdev
from time import perf_counter
from typing import TYPE_CHECKING, Any

from experiments.results import OUT, draw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]


def run_seed(figure: str, seed: int, small: bool, runs: int = 0) -> Rows:
    """The rows of one seed: what a task does."""
    module = import_module(f"experiments.{figure}")
    made = module.run(seed, small, runs) if runs else module.run(seed, small)
    return [{"seed": seed, **asdict(row)} for row in made]


def sweep(spark: SparkSession, figure: str, seeds: Sequence[int], small: bool = False, runs: int = 0) -> Rows:
    """The rows of all seeds, in the order of seeds."""
    with tempfile.TemporaryDirectory(prefix="tally-sweep-") as folder:
        root = Path(__file__).resolve().parents[1]
        archive = shutil.make_archive(str(Path(folder) / "experiments"), "zip", root, "experiments")
        context = spark.sparkContext
        context.addPyFile(archive)
        tasks = context.parallelize(seeds, len(seeds))
        found: Rows = tasks.flatMap(lambda seed: run_seed(figure, seed, small, runs)).collect()
    return found


def summary(rows: Iterable[dict[str, Any]], by: Sequence[str]) -> Rows:
    """Mean, deviation, least and greatest of every number over the seeds, for each value of the columns `by`."""
    rows = list(rows)
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    numbers = [
        name
        for name in rows[0]
        if name not in (*by, "seed") and any(isinstance(row[name], int | float) for row in rows)
    ]
    found = []
    for key, group in groups.items():
        told: dict[str, Any] = dict(zip(by, key, strict=True)) | {"seeds": len({row["seed"] for row in group})}
        for name in numbers:
            values = [float(row[name]) for row in group if row[name] is not None]
            for kind, of in (("mean", mean), ("deviation", pstdev), ("least", min), ("most", max)):
                told[f"{name}_{kind}"] = of(values) if values else None
        found.append(told)
    return found


def write(rows: Rows, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(path)


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def show(figure: str, rows: Rows, by: Sequence[str], out: Path) -> list[str]:
    """Write rows, summary and plot of a figure over all seeds. Returns what left its band."""
    module, name = import_module(f"experiments.{figure}"), figure.partition(".")[2]
    write(rows, out / f"{name}-sweep.csv")
    write(summary(rows, by or getattr(module, "BY", ())), out / f"{name}-sweep-summary.csv")
    if not hasattr(module, "Row"):
        return []
    made = [module.Row(**{column: value for column, value in row.items() if column != "seed"}) for row in rows]
    draw(module.plot(made), out / f"{name}-sweep.png")
    print(out / f"{name}-sweep.png")
    missed: list[str] = module.misses(made)
    return missed


def main(arguments: Sequence[str] | None = None) -> int:
    from pyspark.sql import SparkSession

    parser = argparse.ArgumentParser(prog="python -m experiments.sweep")
    parser.add_argument("figures", nargs="+", help="of experiments/, such as synapse.fig11")
    parser.add_argument("--seeds", type=_seeds, default=_seeds("0-9"), help="the first and the last: 0-29")
    parser.add_argument("--runs", type=int, default=0, help="worlds for each seed, where a figure draws several")
    parser.add_argument("--small", action="store_true", help="the shrunken run of the test suite")
    parser.add_argument("--by", nargs="*", default=[], help="columns that tell lines apart")
    parser.add_argument("--master", default="local[*]", help="where to run: local[*], or a cluster's URL")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args(arguments)
    if options.master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master(options.master).appName("sweep").getOrCreate()
    found: dict[object, Rows] = {}  # by what makes the rows
    missed = []
    try:
        for figure in options.figures:
            made_by = import_module(f"experiments.{figure}").run
            if made_by not in found:
                started = perf_counter()
                found[made_by] = sweep(spark, figure, options.seeds, options.small, options.runs)
                print(f"{figure}: {len(options.seeds)} seeds in {perf_counter() - started:.0f} s", file=sys.stderr)
            out = options.out or OUT / figure.partition(".")[0]
            missed += [f"{figure}: {text}" for text in show(figure, found[made_by], options.by, out)]
    finally:
        spark.stop()
    for text in missed:
        print(f"outside the expected band: {text}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
