"""`detect`: the table `alerts` of the CAN frames in bronze: who added frames, silenced a sender or spoke in its name.

Frames first become chunks, one for each vehicle in a parcel, so that a shuffle moves hundreds of rows and not millions;
chunks go to the watch of their vehicle (fleet/detect/edge.py, the same code as in the car). Out come alerts, which are
the batch, and beside it the watches and the alerts that are still open: one rename (`warehouse`), as in `trips`.

Threat: whoever may write to the topic puts frames under another's vehicle number, to be heard or to spoil its watch. So
a watch belongs to a vehicle *and* to who published its frames, and every alert says who that was. Whoever brings a
profile of his own would make an attack usual: profiles count by their signature, and a vehicle without a good one gets
no score, by name.

Order is the ledger's: height, partition, offset, row. It is the bus's own order, since a vehicle's frames lie in one
lane, and what a clock does there the checks tell. A vehicle that goes on in a lane of another partition goes on in its
watch; what that lane has from before the last frame is late: counted, named, not scored.

Memory: Spark sorts chunks, on disk if need be, and hands them on in batches (`arrow.maxBytesPerBatch`), so a vehicle's
millions of frames never lie in one place. All profiles go to every worker; a fleet of many thousand wants many runs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tallystick import wire
from tallystick.crypto.signatures import VerifyKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.fleet.dbc import Dbc
from tallystick.fleet.detect.alerts import LATE_US, Alert
from tallystick.fleet.detect.edge import STATE_BYTES_MAX, BusWatch
from tallystick.fleet.detect.frames import LENGTH_MAX, Frames, frames_of
from tallystick.fleet.detect.model import ANY_VEHICLE, BYTES_MAX, MODEL, PROFILE, IssueMemory, open_file, unpack
from tallystick.fleet.detect.network import BusNetwork
from tallystick.fleet.detect.profile import Profile
from tallystick.fleet.schemas import schema
from tallystick.pipeline.columns import spark_schema
from tallystick.pipeline.explain import explained
from tallystick.pipeline.jobs import run as jobs
from tallystick.pipeline.jobs.ingest import BRONZE
from tallystick.pipeline.jobs.refine import dbc_text
from tallystick.pipeline.jobs.run import JobRun, follow

ALERTS, OPEN = "alerts", "open"
_WATCHES, _ISSUES = "watches", "issues.json"
_NAMED_MAX = 8  # vehicles in a line
_READ = ("ts", "vin", "bus", "can_id", "payload", "_height", "_partition", "_offset", "_leaf", "_publisher")
FRAME = np.dtype([("ts", "<i8"), ("word", "<u8"), ("can_id", "<u4"), ("leaf", "<i4"), ("length", "u1")])
_STATE = -1  # in place of a height: its frames are the state of a watch
_TEXT, _COUNT, _BYTES = pa.string(), pa.int64(), pa.binary()
_PLACE = [("partition", pa.int32()), ("offset", _COUNT), ("leaf", pa.int32())]
_KEYS = [("vin", _TEXT), ("publisher", _TEXT)]
CHUNK = pa.schema([*_KEYS, ("height", _COUNT), *_PLACE, ("frames", _BYTES)])  # with the leaf of its first frame
_ENDS = [(f"{end}_{name}", kind) for end in ("", "_last") for name, kind in _PLACE]  # of the first and the last frame
_ALERT = pa.struct([*to_arrow_schema(spark_schema(schema("alerts"), False), timezone="UTC"), *starmap(pa.field, _ENDS)])
_COUNTS = [(name, _COUNT) for name in ("frames", "late", "unscored")]
FOUND = pa.schema([*_KEYS, ("alert", _ALERT), ("is_open", pa.bool_()), ("state", _BYTES), *_COUNTS])


def run(run: JobRun) -> dict[str, Any]:
    """Watch what bronze has and alerts lacks."""
    source, target, work = run.warehouse.table(BRONZE), run.warehouse.table(ALERTS), _Work(run)
    if source.batches():
        _ = work.watcher  # what is wrong with files is told before a JVM is started
    if target.batches():
        with jobs.explained():
            work.publish(len(target.batches()) - 1)  # a run may have been killed before it did
    summary = follow(run, "detect", source, target, work.add)
    return {**summary, "open": target.last().get("open", 0), **work.counts}


class Watcher:
    """What the executors are told: the content and hash of each vehicle's profile, a model's content, a DBC."""

    def __init__(self, profiles: dict[str, tuple[bytes, bytes]], model: bytes = b"", dbc: str | None = None) -> None:
        self.profiles, self._model, self._dbc = profiles, model, dbc

    def watch(self, vin: str) -> BusWatch:
        content, known = self.profiles[vin]
        network = _network(self._model) if self._model else None
        return BusWatch(vin, Profile.decode(content), known, network=network, dbc=_dbc(self._dbc))


@lru_cache(1)
def _network(content: bytes) -> BusNetwork:
    return BusNetwork(unpack(content))


@lru_cache(1)
def _dbc(text: str | None) -> Dbc | None:
    return None if text is None else Dbc.parse(text)


def _believed(run: JobRun) -> Watcher:
    """The files that are signed as they must be. Others are named; their vehicles get no score."""
    folder, given, model = (run.options.get(name) for name in ("profiles", "signed_by", "model"))
    if folder is None or not folder.is_dir() or given is None:
        raise Misuse("nobody says what is usual on these buses", hint="--profiles FOLDER --signed-by KEY")
    try:
        texts = [Path(one).read_text(encoding="utf-8") if Path(one).is_file() else one for one in given.split(",")]
        keys = [VerifyKey(bytes.fromhex(text.strip())) for text in texts]
    except (ValueError, Malformed) as error:
        hint = "64 hex digits, or the .pub file that tally detect calibrate wrote beside its key"
        raise Misuse(f"--signed-by: not a key: {error}", hint=hint) from error
    issues, profiles = IssueMemory(run.warehouse.folder / _ISSUES), dict[str, tuple[bytes, bytes]]()
    for path in sorted(folder.glob("*.cbor")):
        try:
            found = open_file(_read(path), PROFILE, path.stem, keys)
            Profile.decode(found.content)
            issues.hold(found)
            profiles[path.stem] = found.content, found.hash
        except Refused as error:
            run.tell(f"warning: {path}: {error}")
    network = b""
    if model is not None:
        issues.hold(trained := open_file(_read(model), MODEL, ANY_VEHICLE, keys))
        network = trained.content if _network(trained.content).enabled else b""
        if not network:
            run.tell(f"warning: {model}: whoever trained this network switched it off, so it is not asked")
    return Watcher(profiles, network, dbc_text(run.options.get("dbc")))


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(BYTES_MAX + 1)
    except OSError as error:
        raise Misuse(f"{path}: cannot be read: {error.strerror}") from error


class _Work:
    """The batches of one run, and what they came to."""

    def __init__(self, run: JobRun) -> None:
        self._run, self._target = run, run.warehouse.table(ALERTS)
        self.counts = dict.fromkeys(("alerts", "late", "unscored"), 0)

    @cached_property
    def watcher(self) -> Watcher:
        return _believed(self._run)

    def add(self, bronze: DataFrame, facts: dict[str, Any]) -> dict[str, Any]:
        run, before = self._run, self._target.read_beside(self._run.spark, _WATCHES)
        found = watched(bronze, before, self.watcher, run.options.get("bus", 0)).persist()
        try:
            sums: Any = found.agg(F.sum("frames"), F.sum("late"), F.sum("unscored"), F.count_if("is_open")).first()
            counts = dict(zip(("frames", "late", "unscored", OPEN), (one or 0 for one in sums), strict=True))
            told = {name: _names(found.where(f"{name} > 0")) for name in ("late", "unscored") if counts[name]}
            shown, state = _shown(found), F.col("state").alias("frames")
            ended, opened = shown.where("not is_open").drop("is_open"), self._target.read_beside(run.spark, OPEN)
            if opened is not None:  # a watch whose profile is another now began anew: what it had to tell stays told
                hashes = [known.hex() for _, known in self.watcher.profiles.values()]
                ended = ended.unionByName(opened.where(~F.col("profile").isin(hashes)))
            written = self._target.write(
                ended.coalesce(1),
                {**facts, **counts, "named": told},
                beside={
                    OPEN: shown.where("is_open").drop("is_open").coalesce(1),
                    _WATCHES: found.where("state is not null").select("vin", "publisher", state).coalesce(1),
                },
            )
        finally:
            found.unpersist()
        for name, why in (("late", "came too late for their watch"), ("unscored", "have no profile that is believed")):
            if counts[name]:
                run.tell(f"warning: {counts[name]} frames {why}: of {', '.join(told[name])}")
            self.counts[name] += counts[name]
        self.counts["alerts"] += written["rows"]
        self.publish(written["batch"])
        return written

    def publish(self, number: int) -> None:
        """The alerts of the newest batch onto a topic, once: a write is named by its batch, and found done if it is."""
        topic, home = self._run.options.get("to"), self._run.options.get("identity")
        if topic is None or not self._target.facts(number)["rows"]:
            return
        if home is None:
            raise Misuse(f'nobody is said to publish to topic "{topic}"', hint="name the identity with --identity")
        facts = self._target.facts(number)
        name = named_hash("tallystick alerts 1", f"{facts['after']} {facts['batch']}".encode()).hex()
        rows = self._target.read(self._run.spark, [number]).select(*schema("alerts").arrow.names)
        rows.write.format("tally").options(home=str(home), topic=topic, write=name).mode("append").save()


def _names(rows: DataFrame) -> list[str]:
    found = [row[0] for row in rows.select("vin").distinct().orderBy("vin").limit(_NAMED_MAX + 1).collect()]
    return found if len(found) <= _NAMED_MAX else [*found[:_NAMED_MAX], "…"]


def _shown(found: DataFrame) -> DataFrame:
    return found.where("alert is not null").select("alert.*", F.col("publisher").alias("_publisher"), "is_open")


def watched(bronze: DataFrame, before: DataFrame | None, watcher: Watcher, bus: int = 0) -> DataFrame:
    """For each watch rows that are an alert each, and one with its state and counts."""
    missing = [name for name in _READ if name not in bronze.columns]
    if missing:
        hint = "detect wants CAN frames with their provenance: a topic of tally fleet schema can, ingested"
        raise Misuse(f"the rows have no column {missing[0]}", hint=hint)
    chunks = bronze.where(F.col("bus") == bus).select(*_READ).mapInArrow(_pack, from_arrow_schema(CHUNK))
    if before is not None:
        place = [
            F.lit(_STATE if name == "height" else 0).cast(chunks.schema[name].dataType).alias(name)
            for name in CHUNK.names[2:-1]
        ]
        chunks = chunks.unionByName(before.select("*", *place))
    keys = ("vin", "publisher")
    order = chunks.repartition(*keys).sortWithinPartitions(*keys, "height", *dict(_PLACE))
    return order.groupBy(*keys).applyInArrow(_looker(watcher), from_arrow_schema(FOUND))


# --- on the executors ---


def _pack(batches: Iterator[Any]) -> Iterator[Any]:
    """Rows of frames to a row for each vehicle's frames of a parcel."""
    for batch in batches:
        payload = pc.binary_slice(batch.column("payload"), 0, LENGTH_MAX)  # longer is no frame: *unknown* tells it
        batch = batch.set_column(batch.schema.get_field_index("payload"), "payload", payload)
        frames, packed = frames_of(batch), np.empty(batch.num_rows, FRAME)
        for name in ("ts", "word", "can_id", "length"):
            packed[name] = getattr(frames, name)
        packed["leaf"] = batch.column("_leaf").to_numpy()
        keys = [batch.column(name).to_numpy() for name in ("_offset", "_partition")]
        keys += [batch.column(name).dictionary_encode().indices.to_numpy() for name in ("_publisher", "vin")]
        order = np.lexsort([packed["leaf"], *keys])
        starts = np.flatnonzero(np.any([np.diff(key[order], prepend=-1) for key in keys], axis=0))
        ends = pa.py_buffer((np.append(starts, len(order)) * FRAME.itemsize).astype(np.int32))
        body = pa.py_buffer(packed[order].tobytes())
        first = batch.select(["vin", "_publisher", "_height", "_partition", "_offset", "_leaf"])
        first = first.take(pa.array(order[starts]))
        bodies = pa.Array.from_buffers(pa.binary(), len(starts), [None, ends, body])
        yield pa.RecordBatch.from_arrays([*first.columns, bodies], schema=CHUNK)


def _looker(watcher: Watcher) -> Callable[..., Iterator[pa.RecordBatch]]:
    """What runs on the executors: the chunks of one vehicle in, its alerts and its watch out."""

    def look(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        vin, publisher = (one.as_py() for one in key)
        columns = ([batch.column(name) for name in ("height", "partition", "offset", "frames")] for batch in batches)
        chunks = (tuple(one.as_py() for one in row) for batch in columns for row in zip(*batch, strict=True))
        with explained():
            if vin in watcher.profiles:
                rows = _TracedWatch(watcher.watch(vin)).rows(chunks)
            else:
                frames = sum(len(data) for height, *_, data in chunks if height != _STATE) // FRAME.itemsize
                rows = [{"frames": frames, "late": 0, "unscored": frames}]
        yield pa.RecordBatch.from_pylist([{"vin": vin, "publisher": publisher, **row} for row in rows], schema=FOUND)

    return look


class _TracedWatch:
    """A watch that knows where the frames of its alerts lie: of the last seconds and of open alerts it keeps number,
    time, partition, offset and leaf of each."""

    def __init__(self, watch: BusWatch) -> None:
        self._watch, self._places = watch, np.zeros((0, 5), np.int64)
        self._partition, self._now_us, self._late = -1, 0, 0

    def rows(self, chunks: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
        """The alerts of these chunks, the first of which may be a state, and the state after them with the counts."""
        told, frames = list[dict[str, Any]](), 0
        for height, partition, offset, data in chunks:
            if height == _STATE:
                self._resume(data)
                continue
            packed = np.frombuffer(data, FRAME)
            frames += len(packed)
            told += self._traced(self._look(partition, offset, packed), is_open=False)
            named = [number for one in self._watch.open() for number in (one.first_frame, one.last_frame)]
            recent = self._places[:, 1] > self._now_us - LATE_US
            self._places = self._places[recent | np.isin(self._places[:, 0], named)]
        told += self._traced(self._watch.open(), is_open=True)
        return [*told, {"state": self._to_bytes(), "frames": frames, "late": self._late, "unscored": 0}]

    def _look(self, partition: int, offset: int, packed: npt.NDArray[np.void]) -> list[Alert]:
        if self._partition not in (-1, partition):
            is_late = packed["ts"] < self._now_us
            packed, self._late = packed[~is_late], self._late + int(is_late.sum())
        if not len(packed):
            return []
        self._partition, self._now_us = partition, int(packed["ts"][-1])
        places = np.empty((len(packed), 5), np.int64)
        places[:, 0] = self._watch.frames + np.arange(len(packed))
        places[:, 1], places[:, 2], places[:, 3], places[:, 4] = packed["ts"], partition, offset, packed["leaf"]
        self._places = np.concatenate([self._places, places])
        return self._watch.look(Frames(*(packed[name].copy() for name in ("ts", "can_id", "length", "word"))))

    def _traced(self, alerts: list[Alert], *, is_open: bool) -> Iterator[dict[str, Any]]:
        for row in self._watch.rows(alerts).to_pylist() if alerts else ():
            numbers = (row["first_frame"], row["last_frame"])
            found = [self._places[self._places[:, 0] == number, 2:].ravel().tolist() for number in numbers]
            places: list[int | None] = [place for one in found for place in one or (None,) * len(_PLACE)]
            yield {"alert": {**row, **dict(zip(dict(_ENDS), places, strict=True))}, "is_open": is_open}

    def _to_bytes(self) -> bytes:
        steps = zlib.compress(np.diff(self._places, axis=0, prepend=0).tobytes("F"), 1)  # mostly equal numbers
        return wire.encode([self._partition + 1, self._now_us, self._watch.to_bytes(), steps])

    def _resume(self, data: bytes) -> None:
        fields = wire.Fields.parse(data, "state of a traced watch", 4)
        partition, now_us = fields.number() - 1, fields.number(at_least=-(1 << 63))
        watch, steps = fields.octets(at_most=STATE_BYTES_MAX), fields.octets(at_most=STATE_BYTES_MAX)
        try:
            self._watch.resume(watch)
        except Malformed as error:
            if error.reason != "other-profile":
                raise
            return  # the vehicle has a new profile: the watch begins anew
        self._partition, self._now_us = partition, now_us
        steps = zlib.decompressobj().decompress(steps, STATE_BYTES_MAX)
        self._places = np.cumsum(np.frombuffer(steps, np.int64).reshape(5, -1).T, axis=0)
