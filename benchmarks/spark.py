"""`make bench-spark`: a topic read in Spark, against the same rows as JSON files.

Telemetry of the fleet simulator, in the shape of `data.SCHEMA`, lies in a topic (parcels of 4,096 rows, a node in a
process of its own) and as JSON lines on the disk. `read_full_3` and `read_full_all` aggregate three columns and all of
them with full verification, `read_fast_…` without recomputing leaves; the peer is `spark.read.json`, and with the
suffix `_from_json` text with `from_json`. `stream` is the first query over sixteen micro-batches, `stream_4` over four
of the same rows, against the JSON file source: together they tell what a micro-batch costs whatever it holds. `sink`
writes the rows of a parquet folder onto a topic, exactly once, against `write.json`.

Each arm has a Spark session, so a JVM, of its own, for its cases alone: `from_json` in the same JVM makes `read.json`
look slower. Node and authority run on the same cores as our arm, and their work counts as ours. Arms that are compared
run in turns, after `WARMUPS` runs that do not count: until then the JVM compiles more than it reads.

`cost_…` is where the time of a read or a stream goes: processor time a row of each kind of process, ours beside the
peer's. It tells more than the clock on a machine that is not quiet.

`rows_10x`, `partitions_8` and `memory_…` compare us with ourselves: ten times the rows, eight partitions, and the peak
memory at ten times the rows; there a ratio of one is what is hoped for.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import data
import harness
import node
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from arm import Arm, Ran

from tallystick.fleet.vehicles import Fleet

ROWS = 3_145_728
VEHICLES = 2_000
FILES = 32  # of JSON; a stream takes two of them, or eight, and as many rows of ours, a micro-batch
BATCHES = {"stream": 16, "stream_4": 4}
PARCEL_ROWS = 4_096
PARCEL_BYTES_MAX = 900 << 10
WARMUPS = 2
ROUNDS = 5
ROUNDS_SLOW = 3  # of what takes ten seconds and more
TARGETS = {"read_full_3": 2.5, "read_full_all": 2.0, "stream": 2.0}


def telemetry(rows: int) -> Iterator[pa.RecordBatch]:
    """So many rows of the simulator, with the precision that sensors have."""
    done = 0
    for batch in Fleet(VEHICLES, 4 * rows / VEHICLES + 600, seed=data.SEED).batches():
        batch = batch.slice(0, rows - done)
        yield _report(batch, done)
        done += batch.num_rows
        if done == rows:
            return
    raise RuntimeError(f"the simulation ended after {done} rows")


def _report(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    def rounded(name: str, digits: int) -> Any:
        return np.asarray(batch.column(name)).astype(np.float64).round(digits)

    values = {
        "vin": batch.column("vin"),
        "ts": batch.column("ts").cast(pa.int64()),
        "seq": pa.array(np.arange(first, first + batch.num_rows)),
        "lat": rounded("latitude", 6),
        "lon": rounded("longitude", 6),
        "odo": rounded("odometer_km", 1),
        "speed": rounded("speed_kmh", 1).astype(np.float32),
        "soc": rounded("fuel_level_pct", 1).astype(np.float32),
        "temp": rounded("coolant_c", 1).astype(np.float32),
        "heading": rounded("heading_deg", 0).astype(np.int16),
        "brake": rounded("acceleration_ms2", 1) < -1.0,
    }
    columns = [pa.array(values[field.name], field.type) for field in data.SCHEMA.arrow]
    return pa.RecordBatch.from_arrays(columns, schema=data.SCHEMA.arrow)


class Topics(node.Ours):
    """A node with topics of telemetry."""

    def fill(self, name: str, batches: list[pa.RecordBatch], *, partitions: int = 1) -> dict[str, str]:
        """A topic that holds the rows; what a query says to read it."""
        self.create(name, partitions)
        settings: dict[str, Any] = {"lanes": partitions, "key": "vin"} if partitions > 1 else {}
        # A batch is cut first and dealt to the lanes then: this makes parcels of equal size, however many there are.
        settings |= {"batch_rows_max": PARCEL_ROWS * partitions, "parcel_bytes_max": PARCEL_BYTES_MAX * partitions}
        with self.car.publisher(name, acks="anchored", heartbeat_s=3600.0, **settings) as publisher:
            for batch in batches:
                publisher.send(batch)
            if left := publisher.flush(300):
                raise RuntimeError(f"{left} parcels were not anchored")
        return {"home": str(self.reader.identity.home), "topic": name}


def write_json(folder: Path, batches: list[pa.RecordBatch]) -> None:
    folder.mkdir()
    whole = pa.Table.from_batches(batches)
    step = -(-len(whole) // FILES)
    for number in range(FILES):
        part = whole.slice(number * step, step).combine_chunks().to_batches()[0]
        lines = b"\n".join(orjson.dumps(row) for row in data.dicts(part))
        (folder / f"part-{number:02}.json").write_bytes(lines + b"\n")


# ── Turns ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Turn(NamedTuple):
    """A query on an arm."""

    arm: Arm
    source: str
    query: str
    options: Mapping[str, str]

    def run(self) -> Ran:
        return self.arm.time(self.source, self.query, self.options)


def in_turns(turns: Mapping[str, Turn], rounds: int) -> dict[str, list[Ran]]:
    """Each in its turn, `rounds` times after the warm-ups; every other round backwards: nobody is always last."""
    found: dict[str, list[Ran]] = {name: [] for name in turns}
    for number in range(-WARMUPS, rounds):
        for name in turns if number % 2 else reversed(turns):
            ran = turns[name].run()
            note(f"{'warm-up' if number < 0 else f'round {number + 1} of {rounds}'}: {name} {ran.seconds:.2f} s")
            if number >= 0:
                found[name].append(ran)
    return found


def compare(name: str, ours: Sequence[Ran], peer: Sequence[Ran], rows: int) -> harness.Result:
    return harness.compare(name, _each(ours, rows), _each(peer, rows), "ns/record", TARGETS.get(name))


def _each(runs: Sequence[Ran], rows: int) -> list[float]:
    return [1e9 * one.seconds / rows for one in runs]


def note(line: str) -> None:
    """Progress, for people."""
    print(f"  {line}", file=sys.stderr, flush=True)


# ── Subjects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Suite:
    """What all subjects read, and the subjects; each ends its arms before the next begins."""

    def __init__(self, rows: int, rounds: int, folder: Path, topics: Topics) -> None:
        self._rows, self._rounds, self._folder, self._topics = rows, rounds, folder, topics
        note(f"{rows} rows are made, published and written as JSON")
        self._batches = list(telemetry(rows))
        self._whole = topics.fill("whole", self._batches)
        self._files = {"path": str(folder / "json")}
        write_json(folder / "json", self._batches)

    def reads(self, query: str, suffix: str) -> Iterator[harness.Result]:
        with ExitStack() as stack:
            ours, json_, text = (Arm(stack, name=name) for name in ("tally", "json", "from_json"))
            turns = {
                "full": Turn(ours, "tally", query, {**self._whole, "verify": "full"}),
                "fast": Turn(ours, "tally", query, {**self._whole, "verify": "fast"}),
                "json": Turn(json_, "json", query, self._files),
                "from_json": Turn(text, "from_json", query, self._files),
            }
            _check_same([turn.run().answer for turn in turns.values()])
            node = _node_seconds(self._topics.pid)
            runs = in_turns(turns, self._rounds)
            node = (_node_seconds(self._topics.pid) - node) / (2 * (self._rounds + WARMUPS))  # two of ours a round
        for peer, end in (("json", ""), ("from_json", "_from_json")):
            for verify in ("full", "fast"):
                yield compare(f"read_{verify}_{suffix}{end}", runs[verify], runs[peer], self._rows)
        yield from self._costs(suffix, runs["full"], runs["json"])
        yield harness.compare(f"cost_node_{suffix}", [1e9 * node / self._rows], None, "ns/record")

    def _costs(self, suffix: str, ours: Sequence[Ran], peer: Sequence[Ran]) -> Iterator[harness.Result]:
        for kind in ("tasks", "compilers", "jvm", "python"):
            spent = ([1e9 * one.spent[kind] / self._rows for one in runs] for runs in (ours, peer))
            yield harness.compare(f"cost_{kind}_{suffix}", *spent, "ns/record")

    def stream(self) -> Iterator[harness.Result]:
        parcels = -(-self._rows // PARCEL_ROWS) + 1  # the last one closes the lane: alone it would be one more batch
        for name, batches in BATCHES.items():
            mine = {**self._whole, "maxParcelsPerTrigger": str(-(-parcels // batches))}
            theirs = {**self._files, "maxFilesPerTrigger": str(FILES // batches)}
            runs = self._pair("stream", mine, theirs)
            _check_same([run.answer for each in runs for run in each])  # as many rows in as many batches
            yield compare(name, *runs, self._rows)
            yield from self._costs(name, *runs)

    def sink(self) -> Iterator[harness.Result]:
        parquet = self._folder / "parquet"
        parquet.mkdir()
        whole, each = pa.Table.from_batches(self._batches), -(-self._rows // 8)
        for number in range(8):
            pq.write_table(whole.slice(number * each, each), parquet / f"{number}.parquet")
        self._topics.create("sunk")
        mine = {"parquet": str(parquet), "home": str(self._topics.car.identity.home), "topic": "sunk"}
        theirs = {"parquet": str(parquet), "path": str(self._folder / "written")}
        yield compare("sink", *self._pair("sink", mine, theirs), self._rows)

    def _pair(self, query: str, mine: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[list[Ran], list[Ran]]:
        with ExitStack() as stack:
            ours, peer = Arm(stack, name="tally"), Arm(stack, name="json")
            turns = {"tally": Turn(ours, "tally", query, mine), "json": Turn(peer, "json", query, theirs)}
            runs = in_turns(turns, min(self._rounds, ROUNDS_SLOW))
        return runs["tally"], runs["json"]

    def scaling(self) -> Iterator[harness.Result]:
        rows = self._rows // 10
        tenth = self._topics.fill("tenth", pa.Table.from_batches(self._batches).slice(0, rows).to_batches())
        wide = self._topics.fill("wide", self._batches, partitions=8)
        rounds = min(self._rounds, ROUNDS_SLOW)
        with ExitStack() as stack:
            many, few = Arm(stack, name="all rows"), Arm(stack, name="a tenth")
            turns = {
                "all rows": Turn(many, "tally", "everything", self._whole),
                "a tenth": Turn(few, "tally", "everything", tenth),
            }
            runs = in_turns(turns, rounds)
            yield harness.compare(
                "rows_10x", _each(runs["all rows"], self._rows), _each(runs["a tenth"], rows), "ns/record"
            )
            for kind in ("worker", "jvm"):
                peak = [[arm.peaks[kind] / 1e6] for arm in (many, few)]
                yield harness.compare(f"memory_{kind}_10x", *peak, "MB")
            turns = {
                "eight": Turn(many, "tally", "everything", wide),
                "one": Turn(many, "tally", "everything", self._whole),
            }
            runs = in_turns(turns, rounds)
            yield compare("partitions_8", runs["eight"], runs["one"], self._rows)


def _check_same(answers: Sequence[list[Any]]) -> None:
    for answer in answers[1:]:
        if any(abs(a - b) > 1e-6 * abs(b) for a, b in zip(answers[0], answer, strict=True)):
            raise RuntimeError(f"the arms disagree: {answers[0]} and {answer}")


def _node_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def results(rows: int, rounds: int, only: str) -> Iterator[harness.Result]:
    """Of every subject whose name holds `only`; one that fails is told, and the others run."""
    failed = []
    with tempfile.TemporaryDirectory() as folder, Topics(Path(folder) / "ours") as topics:
        suite = Suite(rows, rounds, Path(folder), topics)
        subjects = {
            "read_3": lambda: suite.reads("three", "3"),
            "read_all": lambda: suite.reads("everything", "all"),
            "stream": suite.stream,
            "sink": suite.sink,
            "scaling": suite.scaling,
        }
        for name, subject in subjects.items():
            if only not in name:
                continue
            note(name)
            try:
                yield from subject()
            except Exception as error:  # an arm's, or of what it is fed
                failed.append(name)
                note(f"{name} FAILED: {error}")
    if failed:
        raise SystemExit(f"error: {', '.join(failed)}: no result, see above")


def kept(found: Iterator[harness.Result]) -> Iterator[harness.Result]:
    """Written down one by one: a run may be ended, or a later subject fail."""
    for one in found:
        harness.keep("spark", [one])
        yield one


def main() -> None:
    parser = argparse.ArgumentParser(description="benchmarks of the Spark data source")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="read_3, read_all, stream, sink or scaling, or a part of a name")
    parser.add_argument("--table", action="store_true", help="run nothing, print the results as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print(harness.table(harness.read(harness.RESULTS, "spark")))
        return
    print(", ".join(f"{name} {value}" for name, value in harness.machine().items()))
    started = time.monotonic()
    harness.run(kept(results(arguments.rows, arguments.rounds, arguments.only)))
    note(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
