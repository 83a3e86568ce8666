"""The data source `tally`: `spark.read.format("tally")` and `spark.readStream.format("tally")`.

Spark runs its parts in different processes: schema and planning on the driver (`plan`), reading on the executors
(`task`). Nothing but the options, the schema and slices of plain values goes from one to the other; each
process opens its own session as the identity in `home`. On a cluster the identity stays with the driver, and a loan
goes with each share (`loan`), once the channel was found fit for it (`session`). Of an exception Spark passes on the
text alone, so the text names the reason and the remedy.

A stream's offset is a small dict, `{"topic": token, "0": offset, "1": offset, …}`; it moves only to offsets below a
proved anchor (with `read=stored`, to those that the carrier shows), and a micro-batch is exactly the parcels between
two of them, however often it is planned. With a sink that is keyed by batch id every row arrives once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from json import JSONDecodeError
from typing import Any

from pyspark.sql import datasource
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming import datasource as limits
from pyspark.sql.types import StructType

from tallystick.errors import Misuse
from tallystick.pipeline import checkpoint, sink, task
from tallystick.pipeline.access import Access, admit
from tallystick.pipeline.columns import Projection, check_wanted, spark_schema
from tallystick.pipeline.explain import explained
from tallystick.pipeline.loan import Loan
from tallystick.pipeline.options import Edge, Options
from tallystick.pipeline.plan import DAMAGED, Planner, Slice, check_offsets
from tallystick.pipeline.session import Channel
from tallystick.policy.content import read_interest
from tallystick.record.schema import Schema

_PATIENCE_S = 0.5  # Spark asks an idle stream about ninety times a second: the answer waits for news


class TallyDataSource(datasource.DataSource):
    """Reads a topic; the options are those of `options.NAMES`. Writes to one (`sink`), with options of its own."""

    channel: Channel | None = None

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = dict(options)

    @classmethod
    def over(cls, channel: Channel) -> type[TallyDataSource]:
        """The source for a session: where it plans, nothing but the class and the options is at hand."""
        return type(cls.__name__, (cls,), {"channel": channel})

    @classmethod
    def name(cls) -> str:
        return "tally"

    def schema(self) -> StructType:
        with explained():
            options = Options.parse(self._given)
            checkpoint.check(options.checkpoint)  # here too: Spark reads some of it before it asks for a reader
            with closing(admit(options.home, options.topic, options.interest)) as access:
                pinned, stored = _pinned(access, options), bool(options.on(access.session.anchors).stored)
                return spark_schema(pinned, options.provenance, options.nulls_for_closed, stored)

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        with explained():
            options = Options.parse(self._given).over(self.channel)
            if options.checkpoint is not None:
                raise Misuse("a batch has no checkpoint", hint="leave out checkpointLocation, or read a stream")
            return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:
        with explained():
            options = Options.parse(self._given).over(self.channel)
            if options.end != Edge(rest="latest"):
                raise Misuse("a stream has no end", hint="leave out ending…, or read in batch")
            checkpoint.check(options.checkpoint)
            return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        return sink.batch_sink(self._given, schema, overwrite, self.channel)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:
        return sink.stream_sink(self._given, schema, overwrite, self.channel)


def _pinned(access: Access, options: Options) -> Schema:
    for schema in access.schemas:
        if schema.version == (options.schema_version or access.schemas[-1].version):
            return schema
    hint = f"it has 1 to {access.schemas[-1].version}"
    raise Misuse(f'topic "{options.topic}" has no schema version {options.schema_version}', hint=hint)


class Share(InputPartition):
    """The slices of one task, and what it needs to open them where it has no `home`."""

    def __init__(self, slices: tuple[Slice, ...], loan: Loan | None) -> None:
        super().__init__(slices)
        self.loan = loan


class _Reader:
    """What both readers do: check and deal out on the driver, read on the executors."""

    def __init__(self, options: Options, wanted: StructType) -> None:
        self._options, self._wanted = options, wanted

    def _check(self, access: Access) -> None:
        """Raise `Misuse` where the columns or the interest make no sense for the topic."""
        check_wanted(self._wanted, access.schemas, self._options.provenance)
        if self._options.interest:
            read_interest(self._options.interest, _pinned(access, self._options).arrow)

    def _shares(self, work: Sequence[tuple[Slice, ...]], access: Access) -> list[Share]:
        loan = access.loan() if self._options.keys == "driver" else None
        return [Share(slices, loan) for slices in work]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Share)
        with explained():
            yield from task.read(partition.value, self._options, Projection(self._wanted), partition.loan)


class BatchReader(_Reader, datasource.DataSourceReader):
    """Takes no filters: Spark would go on with them in queries that have none (docs/decisions/0026)."""

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with explained(), closing(admit(options.home, options.topic, options.interest)) as access:
            self._check(access)
            planner = Planner(options, access)
            anchors = planner.anchors()
            planner.check_some(planner.ends(anchors))
            return self._shares(planner.plan(*planner.edges(anchors), anchors) or [()], access)


class StreamReader(_Reader, datasource.DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """On the driver it lives as long as the query and keeps the lanes joined; on executors only `read` is called."""

    def __init__(self, options: Options, wanted: StructType) -> None:
        super().__init__(options, wanted)
        self._access: Access | None = None
        self._planned: Planner | None = None
        self._available: dict[int, int] | None = None  # where a run of what is available now ends

    def initialOffset(self) -> dict[str, Any]:
        with explained():
            return self._offset(self._planner.edges(self._planner.anchors())[0])

    def latestOffset(self, start: dict[str, Any], limit: limits.ReadLimit) -> dict[str, Any]:
        with explained():
            first = self._offsets(start)
            ends = self._planner.wait(first, _PATIENCE_S) if self._available is None else self._available
            self._planner.check_reached(first, ends)
            end = {**first, **ends}
            return self._offset(end if isinstance(limit, limits.ReadAllAvailable) else self._planner.cut(first, end))

    def getDefaultReadLimit(self) -> limits.ReadLimit:
        """That there is a limit: Spark hands it back, or `ReadAllAvailable` where a trigger wants all at once."""
        parcels, size = self._options.parcels_max, self._options.bytes_max
        if parcels is not None:
            return limits.ReadMaxFiles(parcels)
        return limits.ReadAllAvailable() if size is None else limits.ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:
        with explained():
            self._available = self._planner.ends(self._planner.anchors())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with explained():
            first, until = self._offsets(start), self._offsets(end)
            self._open().update()  # tasks drop keys that were destroyed since
            anchors = self._planner.anchors()
            self._planner.check_reached(until, self._planner.ends(anchors))
            return self._shares(self._planner.plan(self._planner.left(first, until), until, anchors), self._open())

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's checkpoint holds the offset; there is nothing to keep here."""

    def stop(self) -> None:
        if self._access is not None:
            self._access.close()
            self._access = self._planned = None
        if isinstance(sys.exception(), JSONDecodeError):  # Spark parses an offset of its log before we see it
            with explained():
                raise Misuse("the query's checkpoint holds an offset that is not JSON", hint=DAMAGED)

    def _open(self) -> Access:
        if self._access is None:
            self._access = admit(self._options.home, self._options.topic, self._options.interest)
            self._check(self._access)
        return self._access

    @property
    def _planner(self) -> Planner:
        if self._planned is None:
            self._planned = Planner(self._options, self._open())
        return self._planned

    def _offset(self, offsets: Mapping[int, int]) -> dict[str, Any]:
        return {"topic": self._open().token.hex(), **{str(p): offset for p, offset in sorted(offsets.items())}}

    def _offsets(self, offset: object) -> dict[int, int]:
        access = self._open()
        return check_offsets(offset, access.token, access.partitions)
