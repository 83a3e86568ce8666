"""`make bench-spark`: a topic read in Spark, against the same rows as JSON files.

Telemetry of the fleet simulator, in the shape of `data.SCHEMA`, lies in a topic (parcels of 4,096 rows, a node in a
process of its own) and as JSON lines on the disk. `read_full_3` and `read_full_all` aggregate three columns and all of
them with full verification, `read_fast_…` without recomputing leaves; the peer is `spark.read.json`, and with the
suffix `_from_json` text with `from_json`. `stream` is the first query over micro-batches, against the JSON file source;
`sink` writes the rows of a parquet folder onto a topic, exactly once, against `write.json`.

Each arm has a Spark session, so a JVM, of its own: `from_json` in the same JVM makes `read.json` look slower. Node and
authority run on the same cores as our arm, and their work counts as ours.

`rows_10x`, `partitions_8` and `memory_…` compare us with ourselves: ten times the rows, eight partitions, and the peak
memory at ten times the rows; there a ratio of one is what is hoped for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import data
import harness
import node
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tallystick.fleet.vehicles import Fleet

ROWS = 4_194_304
VEHICLES = 2_000
FILES = 32  # of JSON; a stream takes two of them, and as many rows of ours, a micro-batch
BATCHES = 16
PARCEL_ROWS = 4_096
ROUNDS = 5
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
        settings = {"lanes": partitions, "key": "vin"} if partitions > 1 else {}
        with self.car.publisher(name, batch_rows_max=PARCEL_ROWS, acks="anchored", **settings) as publisher:
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


class Arm:
    """A Spark session in a process of its own, with these jars."""

    def __init__(self, stack: ExitStack, jars: Sequence[Path] = ()) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("spark_arm.py")), *map(str, jars)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        stack.callback(self._end)
        self._answer()
        self.peaks: dict[str, int] = {}

    def run(self, source: str, query: str, options: dict[str, str]) -> list[Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"source": source, "query": query, "options": options}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.peaks = answer["peaks"]
        return list(answer["answer"])

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def cases(rows: int, only: str) -> Iterator[harness.Case | harness.Figure]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        topics = stack.enter_context(Topics(Path(folder) / "ours"))
        batches = list(telemetry(rows))
        whole = topics.fill("whole", batches)
        files = Path(folder) / "json"
        write_json(files, batches)
        ours, peer = Arm(stack), Arm(stack)
        yield from _reads(rows, whole, str(files), only, ours, {"json": peer, "from_json": Arm(stack)})
        if only in "stream":
            yield _stream(rows, whole, str(files), ours, peer)
        if only in "sink":
            yield _sink(rows, topics, batches, Path(folder), ours, peer)
        if only in "scaling":
            yield from _scaling(rows, topics, batches, whole, stack)


def _reads(
    rows: int, topic: dict[str, str], files: str, only: str, ours: Arm, arms: dict[str, Arm]
) -> Iterator[harness.Case]:
    def case(name: str, query: str, verify: str, peer: str) -> Iterator[harness.Case]:
        if only not in name:
            return
        _check_same(ours.run("tally", query, topic), arms[peer].run(peer, query, {"path": files}))
        yield harness.Case(
            name,
            lambda: ours.run("tally", query, {**topic, "verify": verify}),
            lambda: arms[peer].run(peer, query, {"path": files}),
            rows,
            target=TARGETS.get(name),
            waits=True,
            rounds_max=ROUNDS,
        )

    for peer, suffix in (("json", ""), ("from_json", "_from_json")):
        for verify in ("full", "fast"):
            yield from case(f"read_{verify}_3{suffix}", "three", verify, peer)
            yield from case(f"read_{verify}_all{suffix}", "everything", verify, peer)


def _stream(rows: int, topic: dict[str, str], files: str, ours: Arm, peer: Arm) -> harness.Case:
    mine = {**topic, "maxParcelsPerTrigger": str(-(-rows // PARCEL_ROWS // BATCHES))}
    theirs = {"path": files, "maxFilesPerTrigger": str(FILES // BATCHES)}
    return harness.Case(
        "stream",
        lambda: ours.run("tally", "stream", mine),
        lambda: peer.run("json", "stream", theirs),
        rows,
        target=TARGETS["stream"],
        waits=True,
        rounds_max=ROUNDS,
    )


def _sink(rows: int, topics: Topics, batches: list[pa.RecordBatch], folder: Path, ours: Arm, peer: Arm) -> harness.Case:
    parquet = str(folder / "parquet")
    pq.write_to_dataset(pa.Table.from_batches(batches), parquet, max_rows_per_file=-(-rows // 8))
    topics.create("sunk")
    mine = {"parquet": parquet, "home": str(topics.car.identity.home), "topic": "sunk"}
    return harness.Case(
        "sink",
        lambda: ours.run("tally", "sink", mine),
        lambda: peer.run("json", "sink", {"parquet": parquet, "path": str(folder / "written")}),
        rows,
        waits=True,
        rounds_max=ROUNDS,
    )


def _check_same(ours: list[Any], theirs: list[Any]) -> None:
    if any(abs(a - b) > 1e-6 * abs(b) for a, b in zip(ours, theirs, strict=True)):
        raise RuntimeError(f"the arms disagree: {ours} and {theirs}")


def _scaling(
    rows: int, topics: Topics, batches: list[pa.RecordBatch], whole: dict[str, str], stack: ExitStack
) -> Iterator[harness.Case | harness.Figure]:
    tenth = topics.fill("tenth", pa.Table.from_batches(batches).slice(0, rows // 10).to_batches())
    wide = topics.fill("wide", batches, partitions=8)
    many, few = Arm(stack), Arm(stack)
    for name, ours, peer, share in (("rows_10x", whole, tenth, 10), ("partitions_8", wide, whole, 1)):

        def repeated(peer: dict[str, str] = peer, share: int = share) -> None:
            for _ in range(share):  # the same number of rows
                few.run("tally", "everything", peer)

        yield harness.Case(
            name,
            lambda ours=ours: many.run("tally", "everything", ours),
            repeated,
            rows,
            waits=True,
            rounds_max=ROUNDS,
        )
        if share > 1:
            for kind in ("worker", "jvm"):
                yield harness.Figure(f"memory_{kind}_10x", many.peaks[kind] / 1e6, few.peaks[kind] / 1e6, "MB")


def main() -> None:
    parser = argparse.ArgumentParser(description="benchmarks of the Spark data source")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="cases whose name holds this, or scaling")
    parser.add_argument("--table", action="store_true", help="run nothing, print the results as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print(harness.table("spark"))
        return
    print(", ".join(f"{name} {value}" for name, value in harness.machine().items()))
    harness.keep("spark", harness.run(cases(arguments.rows, arguments.only), arguments.rounds))


if __name__ == "__main__":
    main()
