"""A warehouse: a folder of tables that belong to one instance and, once a topic was ingested, to that topic.

    warehouse.json           whose it is
    bronze/batch=0/          a table: folders of parquet, one for each batch, in order
    quarantine/              what did not hold
    scratch/                 Spark's; may be removed whenever no job runs

A batch is written beside its place and moved there in one step, with `_batch.json`: the facts from which the next batch
goes on (how far the input was read). Whether a batch is in the table, and what was read for it, is thus one fact, on
the disk before the move: a job that is killed at any point, or loses its power, begins again after the last batch that
is there, and no row comes twice or not at all. A batch that is there never changes.

Left out: file systems without an atomic rename of folders (object stores).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tallystick.errors import Misuse, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 1
_RESTORE = "restore the batch from a copy, or remove the table and run its job anew"
_FACTS = "_batch.json"  # Spark and Arrow pass over names that begin with an underscore or a dot


class Warehouse:
    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def claim(self, instance: bytes, topic: str | None = None, token: bytes | None = None) -> None:
        """Say whose it is, or raise `Misuse` where it is another's."""
        mine = {"format": FORMAT, "instance": instance.hex()}
        if topic is not None and token is not None:
            mine |= {"topic": topic, "token": token.hex()}
        found = self.facts()
        for name in ("format", "instance", "token"):
            if name in found and name in mine and found[name] != mine[name]:
                of = f'topic "{found["topic"]}"' if name == "token" else f"another {name}"
                raise Misuse(f"{self.folder}: the warehouse of {of}", hint="choose another folder with --warehouse")
        if not found:
            self._check_fresh()
        if found | mine != found:
            _make(self.folder)
            _write(self.folder / "warehouse.json", {**found, **mine})

    def facts(self) -> dict[str, Any]:
        """Whose it is, empty where it is not one yet."""
        path = self.folder / "warehouse.json"
        return _read(path) if path.exists() else {}

    def _check_fresh(self) -> None:
        if self.folder.is_dir() and {path.name for path in self.folder.iterdir()} <= {"scratch"}:
            return  # a job waits there for the table of another
        if self.folder.exists():
            raise Misuse(f"{self.folder}: neither empty nor a warehouse", hint="choose another folder with --warehouse")

    def table(self, name: str) -> WarehouseTable:
        return WarehouseTable(self.folder / name)

    @contextmanager
    def writing(self, job: str) -> Iterator[None]:
        """Held by one process at a time: two runs of a job would write the same batches."""
        _make(self.folder / "scratch")
        with open(self.folder / "scratch" / f"{job}.lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                told = f"{self.folder}: another run of {job} is at work"
                raise Unavailable(told, hint="wait for it, or stop it") from error
            yield

    @property
    def log(self) -> Path:
        """Where Spark writes what it has to say."""
        _make(self.folder / "scratch")
        return self.folder / "scratch" / "spark.log"

    def scratch(self, job: str) -> Path:
        """An empty folder of the job's, for this run alone."""
        folder = self.folder / "scratch" / job
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder)
        return folder


class WarehouseTable:
    """A table of batches; one process writes it, any may read it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name

    def batches(self) -> list[int]:
        """The numbers of its batches, from 0 on."""
        numbers = sorted(int(path.name.removeprefix("batch=")) for path in self.folder.glob("batch=*"))
        if numbers != list(range(len(numbers))):
            missing = min(set(range(numbers[-1])) - set(numbers))
            hint = f"restore it, or remove the folder {self.name} and run its job anew"
            raise Misuse(f"{self.folder}: batch {missing} is missing", hint=hint)
        return numbers

    def facts(self, number: int) -> dict[str, Any]:
        """What was written down with a batch."""
        return _read(self.place(number) / _FACTS)

    def last(self) -> dict[str, Any]:
        """The facts of the newest batch, empty where there is none yet."""
        numbers = self.batches()
        return self.facts(numbers[-1]) if numbers else {}

    def read(self, spark: SparkSession, numbers: Sequence[int] | None = None) -> DataFrame:
        """The rows of some batches, or of all. Raises `Misuse` where there is none."""
        chosen = self.batches() if numbers is None else list(numbers)
        if not chosen:
            raise Misuse(f"{self.folder}: the table has no batch yet", hint=f"run the job that writes {self.name}")
        for number in chosen:
            self.check(number)
        places = [str(self.place(number)) for number in chosen]
        return spark.read.option("mergeSchema", "true").parquet(*places)  # columns may have been added since

    def check(self, number: int) -> None:
        """Raise `Misuse` where a batch has lost rows since: Spark passes over files that are empty or gone."""
        with reading(self.folder):
            found, rows = _count(self.place(number)), self.facts(number)["rows"]
        if found != rows:
            raise Misuse(f"{self.place(number)}: {rows} rows were written, {found} are there", hint=_RESTORE)

    def write(
        self,
        frame: DataFrame,
        facts: Mapping[str, Any],
        *,
        empty: bool = True,
        beside: Mapping[str, DataFrame] | None = None,
    ) -> dict[str, Any]:
        """Add the next batch: all of it with its facts, or nothing. Returns the facts, with number and rows.

        With `empty` false a frame without rows makes no batch, and there are no facts. `beside` are frames that the
        next batch is made with, such as a job's state: they come and go with the newest batch and are no rows of the
        table.
        """
        number = len(self.batches())
        _make(self.folder)
        for left in self.folder.glob(".batch=*"):  # of a run that was killed
            shutil.rmtree(left)
        hidden = self.folder / f".batch={number}"
        frame.write.parquet(str(hidden))
        rows = _count(hidden)
        if not rows and not empty:
            return {}
        for name, other in (beside or {}).items():
            other.write.parquet(str(hidden / f"_{name}"))
        whole = {"batch": number, "rows": rows, **facts}
        _write(hidden / _FACTS, whole)
        for path in [*hidden.rglob("*"), hidden]:
            _sync(path)
        hidden.rename(self.place(number))
        _sync(self.folder)
        for name in beside or {}:
            shutil.rmtree(self.place(number - 1) / f"_{name}", ignore_errors=True)
        return whole

    def write_rows(
        self, spark: SparkSession, rows: Sequence[Mapping[str, Any]], schema: pa.Schema, facts: Mapping[str, Any]
    ) -> None:
        """Add rows that are at hand as the next batch."""
        self.write(spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema)).coalesce(1), facts)

    def files(self, *, newest: bool = False, beside: str = "") -> list[str]:
        """The parquet files of its rows, of those of the newest batch, or of what was written beside that one."""
        numbers = self.batches()[-1 if newest or beside else 0 :]
        places = [self.place(number) / (f"_{beside}" if beside else "") for number in numbers]
        return [str(path) for place in places for path in sorted(place.glob("*.parquet"))]

    def read_beside(self, spark: SparkSession, name: str) -> DataFrame | None:
        """What was written beside the newest batch, or None where there is no batch yet."""
        numbers = self.batches()
        return spark.read.parquet(str(self.place(numbers[-1]) / f"_{name}")) if numbers else None

    def place(self, number: int) -> Path:
        return self.folder / f"batch={number}"


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """A parquet file of the table in `folder`, or of one below it, that cannot be read is told with the remedy."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise Misuse(f"{folder}: a table is damaged: {error}", hint=_RESTORE) from error


def _count(folder: Path) -> int:
    return sum(pq.read_metadata(part).num_rows for part in folder.glob("*.parquet"))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"{folder}: cannot be made: {error.strerror}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        hint = f"restore {path.parent} from a copy, or remove the table and run its job anew"
        raise Misuse(f"{path}: damaged: {error}", hint=hint) from error
    if not isinstance(found, dict):
        raise Misuse(f"{path}: an object expected, found {type(found).__name__}")
    return found


def _write(path: Path, value: Mapping[str, Any]) -> None:
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.write_text(json.dumps(value) + "\n", encoding="utf-8")
    _sync(hidden)
    hidden.replace(path)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
