"""What figures share: rows to CSV, lines to a plot, and the command line."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import mean
from typing import Any

from tallystick.errors import Unavailable

OUT = Path(__file__).resolve().parents[1] / "build" / "experiments"


@dataclass(frozen=True)
class Plot:
    """Lines of (x, y). A line may have several points at one x, a point for each run: it then goes through their mean,
    and a bar shows the least and the greatest."""

    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]
    logarithmic: bool = False
    beside: Plot | None = None  # drawn to the right of it
    told: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # the paper's values, as crosses


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The mean of the runs, and beside it the least and the greatest where there are several."""
    around = f" ({min(values):{form}}–{max(values):{form}})" if len(values) > 1 else ""
    return f"{mean(values):{form}}{around}"


def lines(rows: Iterable[Any], label: str, x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    """A plot's lines from two fields of the rows; `label` names other fields in braces, and tells the lines apart."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        found.setdefault(label.format(**asdict(row)), []).append((getattr(row, x), getattr(row, y)))
    return found


def write_csv(rows: Sequence[Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [column.name for column in fields(rows[0])], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def draw(plot: Plot, path: Path) -> None:
    """Raises `Unavailable` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unavailable("no plot: matplotlib is not installed", hint="pip install matplotlib") from error
    plots = [plot] if plot.beside is None else [plot, plot.beside]
    figure = Figure(figsize=(8.5 * len(plots), 4.5 + 0.7 * (len(plots) - 1)), layout="constrained")
    for one, axes in zip(plots, figure.subplots(1, len(plots), squeeze=False)[0], strict=True):
        for label, points in one.lines.items():
            at: dict[float, list[float]] = {}
            for x, y in sorted(points):
                at.setdefault(x, []).append(y)
            middle = [mean(runs) for runs in at.values()]
            beyond = [[y - min(runs) for y, runs in zip(middle, at.values(), strict=True)]]
            beyond += [[max(runs) - y for y, runs in zip(middle, at.values(), strict=True)]]
            axes.errorbar(list(at), middle, beyond, marker=".", capsize=3, label=label)
        for label, points in one.told.items():
            axes.plot(*zip(*points, strict=True), linestyle="", marker="X", markersize=9, label=label, zorder=3)
        if one.logarithmic:
            axes.set_yscale("log")
        axes.set(title=one.title, xlabel=one.x, ylabel=one.y)
        if len(plots) > 1:
            axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    if len(plots) == 1:
        figure.legend(loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=110)


def command(
    paper: str,
    name: str,
    run: Callable[[int, bool], Iterable[Any]],
    plot: Callable[[Sequence[Any]], Plot],
    misses: Callable[[Sequence[Any]], list[str]],
    arguments: Sequence[str] | None = None,
) -> int:
    """`python -m experiments.<paper>.<name> [--seed N] [--small] [--out DIR]`: CSV, plot, and what left the band."""
    parser = make_parser(paper, name)
    parser.add_argument("--seed", type=int, default=4)
    options = parser.parse_args(arguments)
    return report(name, list(run(options.seed, options.small)), plot, misses, options.out)


def make_parser(paper: str, name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{paper}.{name}")
    parser.add_argument("--small", action="store_true", help="the shrunken run of the test suite")
    parser.add_argument("--out", type=Path, default=OUT / paper, help="folder of the results")
    return parser


def report(
    name: str,
    rows: Sequence[Any],
    plot: Callable[[Sequence[Any]], Plot],
    misses: Callable[[Sequence[Any]], list[str]],
    out: Path,
) -> int:
    """Write CSV and plot, and say what left the band; the process's exit status."""
    write_csv(rows, out / f"{name}.csv")
    print(out / f"{name}.csv")
    try:
        draw(plot(rows), out / f"{name}.png")
        print(out / f"{name}.png")
    except Unavailable as error:
        print(f"{error}\nhint: {error.hint}", file=sys.stderr)
    missed = misses(rows)
    for text in missed:
        print(f"outside the expected band: {text}", file=sys.stderr)
    return 1 if missed else 0
