"""Objects inside Spark: a column of references becomes a column of what is behind them, on the executors.

clips = spark.read.format("tally").options(home="reader", topic="crashes").load()
read_objects(clips, "clip", "video", ["https://clips.example/fleet"]).select("vin", "video")

Threat: places that lie, and objects that fill an executor. Every byte is verified against its reference before it is in
a row (`objects.reading`), a place that sent another is named in the log and left, and an object that is longer than
`bytes_max` is refused before anything of it is fetched. The reference goes no further than this step, and with it the
key. A plan holds names of columns and places, no keys.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tallystick.client.objects import source_of
from tallystick.errors import Misuse, Refused, TallystickError
from tallystick.objects.layout import ObjectReference
from tallystick.objects.reading import ObjectReader
from tallystick.objects.sources import Source
from tallystick.runtime.sources import SystemClock, SystemEntropy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

BYTES_MAX = 256 << 20  # of one object in a row; Spark's own bound on a value is 2 GiB
_BATCH_BYTES = 16 << 20  # of objects that are handed on at once

Read = Callable[[ObjectReader], bytes]


def read_objects(
    frame: DataFrame,
    column: str,
    into: str,
    places: Sequence[str],
    *,
    read: Read = ObjectReader.readall,
    bytes_max: int = BYTES_MAX,
) -> DataFrame:
    """The rows with what `read` makes of each object in a binary column `into`, in the place of the references in
    `column`. A row without a reference has null there. `places` are URLs and folders, as the executors see them."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    if column not in frame.columns:
        raise Misuse(f'column "{column}" is not in the table', hint=f"it has {', '.join(frame.columns)}")
    others = [field for field in frame.schema.fields if field.name != column]
    schema = StructType([*others, StructField(into, BinaryType())])
    return frame.mapInArrow(OpenedReferences(column, into, tuple(places), read, bytes_max), schema)


@dataclass(frozen=True)
class OpenedReferences:
    """What `mapInArrow` calls for each partition."""

    column: str
    into: str
    places: tuple[str, ...]
    read: Read
    bytes_max: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ExitStack() as opened:
            sources = [source_of(place, SystemClock(), SystemEntropy()) for place in self.places]
            for source in sources:
                opened.callback(source.close)
            for batch in batches:
                yield from self._open(batch, sources)

    def _open(self, batch: pa.RecordBatch, sources: Sequence[Source]) -> Iterator[pa.RecordBatch]:
        others = [name for name in batch.schema.names if name != self.column]
        references, first, held = batch.column(self.column), 0, list[bytes | None]()
        for row in range(batch.num_rows):
            held.append(self._object(references[row].as_py(), sources))
            if row == batch.num_rows - 1 or sum(len(one or b"") for one in held) >= _BATCH_BYTES:
                part = batch.slice(first, len(held)).select(others)
                yield part.append_column(self.into, pa.array(held, pa.binary()))
                first, held = row + 1, []

    def _object(self, row: Any, sources: Sequence[Source]) -> bytes | None:
        if row is None:
            return None
        reference = ObjectReference.of_row(row)
        if reference.length > self.bytes_max:
            raise Refused(f"object {reference.name}: {reference.length} bytes, at most {self.bytes_max} are taken")
        with ObjectReader(reference, sources, _warn, closes=False) as reader:
            return self.read(reader)


def _warn(place: str, error: TallystickError) -> None:
    log.warning("%s: %s", place, error)
