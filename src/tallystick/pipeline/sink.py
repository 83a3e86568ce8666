"""The sink `tally`: `df.write.format("tally")` and `df.writeStream.format("tally")` seal a frame's rows onto a topic.

A write is one job, or one streaming query; its batches are numbered. Each task attempt seals its rows, marked pending,
into the lane of a folder that it alone holds, and returns where they lie; the driver makes what the attempts sealed
that Spark took count, all at once (client/writes.py). What others sealed, failed, killed or speculative, never does.

A streaming query is named by its identifier, which lies in its checkpoint and which tasks are told, so a query that is
started again goes on with its batches, and another query in the same folder is another write. A job is a write of its
own, unless it is given a name: a job that is run again under that name finishes what was begun, or finds it done.

What Spark logs and shows are options, a schema and places. In `local[n]` each process opens its own session as the
identity in `home`; signing and lane keys stay there. On a cluster `home` stays with the driver, and a loan goes with
the write (`loan`), once the channel was found fit for it (`session`): lanes then lie on the executors' own disks.
"""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tallystick.client.fetching import check_tenant
from tallystick.client.session import Session
from tallystick.client.ties import Ties
from tallystick.client.writes import Committer, PartWriter, held
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Misuse, Unavailable
from tallystick.parcel.commit import CommitList, WrittenRun
from tallystick.pipeline.access import telling_mistakes
from tallystick.pipeline.checkpoint import local_folder
from tallystick.pipeline.columns import DoesNotFit, spark_schema
from tallystick.pipeline.explain import explained
from tallystick.pipeline.loan import BorrowedWriter, WritingLoan, lend_writing
from tallystick.pipeline.options import CommonOptions, named, option
from tallystick.pipeline.session import Channel
from tallystick.record.schema import Schema
from tallystick.runtime.sources import SystemEntropy
from tallystick.trust.permit import Operation

NAMES = ("home", "topic", "write", "writes", "lanes", "keys", "channel")
_FOLDER = "spark"  # in the identity's folder
_SLOTS_MAX = 1_024  # processes of one identity that write to one topic from one machine at once
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # what Spark tells a task


@dataclass(frozen=True)
class SinkOptions(CommonOptions):
    write: str | None = option("write")  # a job's name
    writes: str | None = option("writes")  # the folder of lists
    lanes: str | None = option("lanes")  # the folder of lanes on an executor that has no `home`

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        return cls.read(named(given, NAMES, ("checkpointLocation",), " to the sink"))

    def folder(self, part: str) -> Path:
        """The identity's own folder for what writes to this topic need."""
        name = named_hash("tallystick spark topic 1", self.topic.encode()).hex()[:16]
        return Path(self.home) / _FOLDER / part / name

    def lent(self, place: str) -> Path:
        """An executor's own folder for what it seals with what was lent: Spark's, which goes with the executor."""
        given = self.lanes or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
        return Path(given) / "tallystick" / place

    def lists(self) -> Path:
        """Where the driver's lists lie: they must be there again when the query is started again."""
        if self.writes is not None:
            return Path(self.writes)
        if self.checkpoint is None:
            return self.folder("writes")
        folder = local_folder(self.checkpoint)
        if folder is None:
            hint = "name one that outlives the driver: .option('writes', …)"
            raise Misuse(f"checkpointLocation {self.checkpoint} is not a folder of this machine", hint=hint)
        return folder / "tally"


@dataclass(frozen=True)
class SealedShare(WriterCommitMessage):
    """What a task attempt has sealed, pending."""

    write: bytes
    batch: int
    runs: tuple[WrittenRun, ...]


class _Sink(ABC):
    """What both writers do; on the driver made anew for each batch, on executors unpickled."""

    def __init__(self, options: SinkOptions, token: bytes, loan: WritingLoan | None) -> None:
        self._options, self._token, self._loan = options, token, loan

    @abstractmethod
    def _batch(self) -> tuple[bytes, int]:
        """The write, and the number of its batch that this task works on."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SealedShare:
        with explained():
            write = self._batch()
            filled = (batch for batch in iterator if batch.num_rows)
            first = next(filled, None)
            if first is None:
                return SealedShare(*write, ())
            with self._ties() as (ties, lanes), _slot(lanes) as folder:
                writer = PartWriter(ties, self._options.topic, folder)
                return SealedShare(*write, writer.write(write, chain([first], filled), _fitted))

    @contextmanager
    def _ties(self) -> Iterator[tuple[Ties, Path]]:
        """What a task seals with, and where its lanes lie."""
        options, loan = self._options, self._loan
        if loan is None:
            with Session.open(options.home, topic=options.topic) as session:
                yield session, options.folder("lanes")
        else:
            folder = options.lent(loan.place)
            with closing(BorrowedWriter(loan, folder)) as borrowed:
                yield borrowed, folder / "lanes"

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        sealed = [message for message in messages if isinstance(message, SealedShare)]
        runs = tuple(run for one in sealed for run in one.runs)
        if not runs:  # nothing to make count; the next batch has another number
            return
        with explained():
            write, batch = sealed[0].write, sealed[0].batch
            if any((one.write, one.batch) != (write, batch) for one in sealed):
                raise Misuse("the tasks of one batch sealed for different writes")
            with Session.open(self._options.home, topic=self._options.topic) as session:
                committer = Committer(session, self._options.topic, self._options.lists())
                committer.commit(CommitList(self._token, write, batch, runs))


class BatchSink(_Sink, DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, token: bytes, loan: WritingLoan | None) -> None:
        super().__init__(options, token, loan)
        name = options.write
        self._write = SystemEntropy().bytes(32) if name is None else _write_id(token, "job", name)

    def _batch(self) -> tuple[bytes, int]:
        return self._write, 0


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    def _batch(self) -> tuple[bytes, int]:
        return _write_id(self._token, "query", _told(_QUERY)), int(_told(_BATCH))


def batch_sink(given: Mapping[str, str], schema: StructType, overwrite: bool, channel: Channel | None) -> BatchSink:
    """The writer of a job."""
    with explained():
        options = SinkOptions.parse(given).over(channel)
        return BatchSink(options, *_checked(options, schema, overwrite))


def stream_sink(given: Mapping[str, str], schema: StructType, overwrite: bool, channel: Channel | None) -> StreamSink:
    """The writer of a streaming query's batch."""
    with explained():
        options = SinkOptions.parse(given).over(channel)
        if options.write is not None:
            raise Misuse("a streaming query is named by its checkpoint", hint="leave out write")
        if options.checkpoint is None and options.writes is None:
            raise Misuse(
                "the sink must know the query's checkpoint: it is set for the session, not for the query",
                hint=".option('checkpointLocation', …)",
            )
        options.lists()
        return StreamSink(options, *_checked(options, schema, overwrite))


def _checked(options: SinkOptions, schema: StructType, overwrite: bool) -> tuple[bytes, WritingLoan | None]:
    """The topic's token and what tasks borrow, if the frame can be sealed onto it."""
    if overwrite:
        hint = 'use mode "append" (in streams the output mode "append" or "update"), or create another topic'
        raise Misuse("a topic cannot be overwritten: what was anchored stays", hint=hint)
    with Session.open(options.home, topic=options.topic) as session:
        if not session.anchors:
            hint = "a write counts once its commit parcel is anchored; use a Publisher"
            raise Misuse(f'topic "{options.topic}": the mesh anchors nothing', hint=hint)
        with telling_mistakes(options.topic):
            granted = session.grants.obtain(Operation.ADVERTISE, options.topic)
        check_tenant(session.view, granted.permit)
        check_columns(schema, granted.schemas[-1])
        return granted.grant.token, lend_writing(session, granted) if options.keys == "driver" else None


def check_columns(given: StructType, schema: Schema) -> None:
    """Raise `Misuse` unless rows of the frame's schema are rows of the topic's."""
    expected = {field.name: field for field in spark_schema(schema, False).fields}
    for field in given.fields:
        if field.name not in expected:
            raise Misuse(f'column "{field.name}" is not in the topic', hint=f"it has {', '.join(expected)}")
        wanted, found = (one.simpleString() for one in (expected[field.name].dataType, field.dataType))
        if wanted != found:
            hint = f'cast it: .withColumn("{field.name}", col("{field.name}").cast("{wanted}"))'
            raise Misuse(f'column "{field.name}": {wanted} expected, found {found}', hint=hint)
    for name, field in expected.items():
        if not field.nullable and name not in given.names:
            raise Misuse(f'column "{name}" is missing, and the topic allows no null there')


def _fitted(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """The batch in the topic's types, which may be narrower than Spark's."""
    fields = [schema.arrow.field(name) for name in batch.schema.names]
    try:
        columns = [column.cast(field.type) for column, field in zip(batch.columns, fields, strict=True)]
    except pa.ArrowInvalid as error:
        raise DoesNotFit(f"a value does not fit the topic: {error}", hint="round or clip the column") from error
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


@contextmanager
def _slot(lanes: Path) -> Iterator[Path]:
    """A folder with a lane that no other process writes to now: the first that is free."""
    for number in range(_SLOTS_MAX):
        with held(lanes / str(number), wait=False) as is_free:
            if is_free:
                yield lanes / str(number)
                return
    raise Unavailable(f"{lanes}: {_SLOTS_MAX} processes write to this topic at once", hint="write fewer partitions")


def _told(name: str) -> str:
    context = TaskContext.get()
    value = None if context is None else context.getLocalProperty(name)
    if value is None:
        raise Misuse(f"Spark does not tell its tasks {name}", hint="this sink is written for Spark 4.2 to 4.3")
    return value


def _write_id(token: bytes, kind: str, name: str) -> bytes:
    return named_hash("tallystick write 1", b"\x00".join([token, kind.encode(), name.encode()]))
