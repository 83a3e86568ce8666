"""What Figs 9 to 12 share: the same messages through plain Kafka and through ours, on one Kafka, produced and fetched.

Two arms, those of `make bench-kafka`: plain Kafka writes each message as JSON and reads it back with a parse; ours
seals, signs, spools and sends, while the notary judges and anchors beside it, and reads back with full verification
into Arrow. Job completion time (Figs 9 and 10) and throughput (Figs 11 and 12) are one measurement: the second is the
number of messages by the first. Arms take turns within each point, so that a slow minute strikes both; the notary is
done before the next one starts. Before a fetch is timed, each arm has fetched the same messages once.

Each message of the paper is one record of `benchmarks/data.py`, 167 bytes as JSON; 4,096 of them make a parcel.

`python -m experiments.bps.transfer [--small | --full] [--runs N]` draws all four figures from one run; each alone:
`fig09` to `fig12`. It starts a Kafka of its own (`make engines`). Default: a hundredth of the paper's messages, once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import data
from kafka_arms import Arm, Direct, Plain, Sealed

from experiments import results
from experiments.results import Plot
from tallystick.engines.kafka import KafkaCluster

CHUNK = 262_144  # messages made at once, and flushed
PAPER = (2_000_000, 4_000_000, 6_000_000, 8_000_000, 10_000_000)


@dataclass(frozen=True)
class Scale:
    messages: Sequence[int]
    runs: int = 1
    parcel: int = 4_096  # records


DEFAULT = Scale([count // 100 for count in PAPER])
SMALL = Scale((512, 1_024), parcel=256)
FULL = Scale(PAPER, runs=5)


@dataclass(frozen=True)
class Row:
    arm: str  # kafka or tallystick
    operation: str  # produce or fetch
    messages: int
    run: int
    seconds: float
    per_second: float


def measure(cluster: KafkaCluster, folder: Path, scale: Scale) -> Iterator[Row]:
    rows = data.dicts(data.columns(min(CHUNK, max(scale.messages))))
    with ExitStack() as stack:
        sealed = Sealed(stack.enter_context(Direct(folder / "ours", cluster)), "messages", scale.parcel)
        arms: dict[str, Arm] = {"kafka": Plain(cluster, "plain-messages"), "tallystick": sealed}
        for arm in arms.values():
            stack.callback(arm.close)
            arm.send(rows[:1])  # connections, topics, rights
        for run in range(scale.runs):
            for messages in scale.messages:
                for name, arm in arms.items():
                    yield _row(name, "produce", messages, run, lambda arm=arm, n=messages: in_chunks(arm.send, rows, n))
                    arm.settle()
                for name, arm in arms.items():
                    arm.fetch(messages)
                    yield _row(name, "fetch", messages, run, lambda arm=arm, n=messages: arm.fetch(n))


def in_chunks(produce: Callable[[Any], None], rows: list[dict[str, Any]], messages: int) -> None:
    """So many messages, of the same rows again and again."""
    while messages:
        chunk = rows[: min(len(rows), messages)]
        produce(chunk)
        messages -= len(chunk)


def _row(arm: str, operation: str, messages: int, run: int, work: Callable[[], None]) -> Row:
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return Row(arm, operation, messages, run, seconds, messages / seconds)


def means(rows: Sequence[Row], operation: str, value: str) -> dict[str, list[tuple[float, float]]]:
    """For each arm (messages, mean of the runs)."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if row.operation == operation:
            found.setdefault(row.arm, {}).setdefault(row.messages, []).append(getattr(row, value))
    return {arm: [(count, mean(values)) for count, values in sorted(points.items())] for arm, points in found.items()}


def ratios(rows: Sequence[Row], operation: str, value: str) -> dict[int, float]:
    """Ours by Kafka's, at each number of messages."""
    found = means(rows, operation, value)
    kafka = dict(found["kafka"])
    return {int(count): ours / kafka[count] for count, ours in found["tallystick"]}


def ratios_of_runs(rows: Sequence[Row], operation: str, value: str) -> dict[int, list[float]]:
    """The same for each run by itself."""
    of_runs = [
        ratios([row for row in rows if row.run == run], operation, value) for run in sorted({r.run for r in rows})
    ]
    return {count: [one[count] for one in of_runs] for count in of_runs[0]}


def held(rows: Sequence[Row]) -> bool:
    """Whether the run has the paper's scale: below it, what a start costs rules, and no band is meant."""
    return min(row.messages for row in rows) >= PAPER[0]


@dataclass(frozen=True)
class Figure:
    """One of the four, drawn from rows of both operations."""

    name: str
    operation: str
    value: str  # seconds or per_second
    title: str
    paper: Mapping[int, float]  # what the paper's prose says, as ours by Kafka's
    misses: Callable[[Sequence[Row]], list[str]]
    gap: Mapping[int, float] = field(default_factory=dict)  # or as ours less Kafka's

    def plot(self, rows: Sequence[Row]) -> Plot:
        kafka = dict(means(rows, self.operation, self.value)["kafka"])
        own = [row for row in rows if row.operation == self.operation]
        lines: dict[str, list[tuple[float, float]]] = {
            label: [(row.messages, getattr(row, self.value)) for row in own if row.arm == arm]
            for arm, label in (("kafka", "plain Kafka"), ("tallystick", "Tallystick"))
        }
        points = [(count, kafka[count] * ratio) for count, ratio in self.paper.items() if count in kafka]
        points += [(count, kafka[count] + gap) for count, gap in self.gap.items() if count in kafka]
        if points:
            lines["where BPS would be, by its own words"] = points
        return Plot(self.title, "messages", self.unit, lines)

    @property
    def unit(self) -> str:
        return "s" if self.value == "seconds" else "messages/s"

    def report(self, rows: Sequence[Row], out: Path) -> int:
        own = [row for row in rows if row.operation == self.operation]
        for count, ratio in ratios_of_runs(own, self.operation, self.value).items():
            ours = [getattr(row, self.value) for row in own if (row.arm, row.messages) == ("tallystick", count)]
            each = results.spread(ours, ".1f" if self.value == "seconds" else ",.0f")
            print(f"{self.name}: {count} messages: {each} {self.unit}, by Kafka's {results.spread(ratio)}")
        return results.report(self.name, own, self.plot, self.misses, out)

    def main(self, arguments: Sequence[str] | None = None) -> int:
        return command(self.name, [self], arguments)


def command(name: str, figures: Sequence[Figure], arguments: Sequence[str] | None) -> int:
    parser = results.make_parser("bps", name)
    add_scale(parser)
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="tally-bps-") as folder,
        KafkaCluster.create(Path(folder) / "kafka") as cluster,
    ):
        rows = list(measure(cluster, Path(folder), scale_of(options)))
    return max(figure.report(rows, options.out) for figure in figures)


def add_scale(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="five runs of 2 to 10 million messages")
    parser.add_argument("--runs", type=int, help="another number of runs")


def scale_of(options: argparse.Namespace) -> Scale:
    scale = FULL if options.full else SMALL if options.small else DEFAULT
    return scale if options.runs is None else replace(scale, runs=options.runs)


def figures() -> list[Figure]:
    from experiments.bps import fig09, fig10, fig11, fig12

    return [one.FIGURE for one in (fig09, fig10, fig11, fig12)]


def main(arguments: Sequence[str] | None = None) -> int:
    return command("transfer", figures(), arguments)


if __name__ == "__main__":
    sys.exit(main())
