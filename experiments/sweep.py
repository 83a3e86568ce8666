"""A figure over many seeds, on Spark.

`python -m experiments.sweep synapse.fig11 --seeds 0-29 [--small] [--master URL] [--by COLUMN …]`

Each seed is a task: it runs the figure's `run(seed, small)` where there is a core for it, and what comes back is its
rows with the seed beside them. The order of tasks does not matter, since a row is a function of its seed. The package
`experiments` travels to the executors; tallystick and numpy are there already, as for any job.

Writes build/experiments/<paper>/<figure>-sweep.csv, and for each number of the figure's rows its mean, least and
greatest over the seeds, by the columns that tell its lines apart (`--by`), to <figure>-sweep-summary.csv.
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
from statistics import mean
from typing import TYPE_CHECKING, Any

from experiments.results import OUT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]


def run_seed(figure: str, seed: int, small: bool) -> Rows:
    """The rows of one seed: what a task does."""
    made = import_module(f"experiments.{figure}").run(seed, small)
    return [{"seed": seed, **asdict(row)} for row in made]


def sweep(spark: SparkSession, figure: str, seeds: Sequence[int], small: bool = False) -> Rows:
    """The rows of all seeds, in the order of seeds."""
    with tempfile.TemporaryDirectory(prefix="tally-sweep-") as folder:
        root = Path(__file__).resolve().parents[1]
        archive = shutil.make_archive(str(Path(folder) / "experiments"), "zip", root, "experiments")
        context = spark.sparkContext
        context.addPyFile(archive)
        tasks = context.parallelize(seeds, len(seeds))
        found: Rows = tasks.flatMap(lambda seed: run_seed(figure, seed, small)).collect()
    return found


def summary(rows: Iterable[dict[str, Any]], by: Sequence[str]) -> Rows:
    """Mean, least and greatest of every number over the seeds, for each value of the columns `by`."""
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    found = []
    for key, group in groups.items():
        told: dict[str, Any] = dict(zip(by, key, strict=True)) | {"seeds": len({row["seed"] for row in group})}
        for name, value in group[0].items():
            if name not in (*by, "seed") and isinstance(value, int | float):
                values = [float(row[name]) for row in group]
                told |= {f"{name}_mean": mean(values), f"{name}_least": min(values), f"{name}_most": max(values)}
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


def main(arguments: Sequence[str] | None = None) -> None:
    from pyspark.sql import SparkSession

    parser = argparse.ArgumentParser(prog="python -m experiments.sweep")
    parser.add_argument("figure", help="of experiments/, such as synapse.fig11")
    parser.add_argument("--seeds", type=_seeds, default=_seeds("0-9"), help="the first and the last: 0-29")
    parser.add_argument("--small", action="store_true", help="the shrunken run of the test suite")
    parser.add_argument("--by", nargs="*", default=[], help="columns that tell lines apart")
    parser.add_argument("--master", default="local[*]", help="where to run: local[*], or a cluster's URL")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args(arguments)
    paper, _, name = options.figure.partition(".")
    out = options.out or OUT / paper
    if options.master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master(options.master).appName(f"sweep of {options.figure}").getOrCreate()
    try:
        rows = sweep(spark, options.figure, options.seeds, options.small)
    finally:
        spark.stop()
    write(rows, out / f"{name}-sweep.csv")
    write(summary(rows, options.by), out / f"{name}-sweep-summary.csv")


if __name__ == "__main__":
    main()
