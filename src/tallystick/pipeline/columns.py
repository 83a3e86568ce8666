"""Columns: a topic's schema as Spark's, and opened batches as what the query asked for.

Spark has no unsigned numbers and one resolution of time: unsigned ones become the next wider signed type (64 bits a
decimal), times become microseconds (nanoseconds are cut). The Python data source API tells a reader no list of needed
columns, so the schema that the user gives is the projection: only its columns are opened, kept and sent to the JVM.

The query's schema is fixed when it starts. Rows of older versions of the topic get nulls for what came later; rows of
newer ones are narrowed to what the query knows, and a value that does not fit is found, not cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from tallystick.errors import Misuse, Refused
from tallystick.record.schema import Schema

PROVENANCE = StructType(
    [
        StructField("_parcel", T.StringType(), False),  # the parcel's hash, hex
        StructField("_leaf", T.IntegerType(), False),  # the row's number in it
        StructField("_partition", T.IntegerType(), False),
        StructField("_offset", T.LongType(), False),
        StructField("_height", T.LongType(), False),  # anchored at or before; with read=stored null where it is not yet
        StructField("_publisher", T.StringType(), False),  # the principal's identifier, hex
        StructField("_time", T.TimestampType(), True),  # of sealing: the publisher's claim, absent on padded topics
        StructField("_late", T.BooleanType(), False),
        StructField("_suspect", T.BooleanType(), False),
    ]
)
_OF_ANCHOR = ("_height", "_late")
_UNSIGNED: dict[Any, DataType] = {
    pa.uint8(): T.ShortType(),
    pa.uint16(): T.IntegerType(),
    pa.uint32(): T.LongType(),
    pa.uint64(): T.DecimalType(20, 0),
}


class DoesNotFit(Refused):
    """A value of a newer schema version that the query's older type cannot hold."""

    reason = "does-not-fit"


def spark_schema(schema: Schema, provenance: bool, closable: bool = False, stored: bool = False) -> StructType:
    """The topic's columns, and the provenance columns where they are wanted. Where columns are `closable` each may be
    null, whatever the topic says: a row whose columns are all closed is none. Where rows are read that are only
    `stored`, what their anchor would say may be null."""
    closed = closable and len(schema.groups) > 1
    fields = [StructField(one.name, _spark_type(one.type), one.nullable or closed) for one in schema.arrow]
    if not provenance:
        return StructType(fields)
    taken = set(schema.arrow.names) & set(PROVENANCE.names)
    if taken:
        raise Misuse(f'column "{min(taken)}" is the topic\'s own', hint="read without provenance")
    provenance_fields = [
        StructField(one.name, one.dataType, one.nullable or (stored and one.name in _OF_ANCHOR))
        for one in PROVENANCE.fields
    ]
    return StructType([*fields, *provenance_fields])


def _spark_type(type_: Any) -> DataType:
    if type_ in _UNSIGNED:
        return _UNSIGNED[type_]
    if pa.types.is_list(type_):
        return T.ArrayType(_spark_type(type_.value_type), type_.value_field.nullable)
    if pa.types.is_struct(type_):
        return StructType([StructField(field.name, _spark_type(field.type), field.nullable) for field in type_])
    return from_arrow_type(type_)


def check_wanted(wanted: StructType, schemas: Sequence[Schema], provenance: bool) -> None:
    """Raise `Misuse` unless every column wanted is one of the topic's, of a type that it has or had."""
    known: dict[str, list[DataType]] = {}
    for schema in schemas:
        for field in spark_schema(schema, provenance).fields:
            known.setdefault(field.name, []).append(field.dataType)
    for field in wanted.fields:
        if field.name not in known:
            hint = 'set provenance to "true"' if field.name in PROVENANCE.names else f"it has {', '.join(known)}"
            raise Misuse(f'column "{field.name}" is not in the topic', hint=hint)
        # Compared without nullability, which users leave out.
        types, found = [type_.simpleString() for type_ in known[field.name]], field.dataType.simpleString()
        if found not in types:
            hint = "read the topic's type and cast the column"
            raise Misuse(f'column "{field.name}": {types[-1]} expected, found {found}', hint=hint)


class Projection:
    """Opened batches, cut and cast to the columns that a query wants, and to the rows of interest."""

    def __init__(self, wanted: StructType) -> None:
        self._names = wanted.fieldNames()
        self._arrow = to_arrow_schema(wanted, timezone="UTC")
        self.columns = len(self._names)

    def groups(self, schema: Schema, needed: Iterable[str] = ()) -> tuple[int, ...]:
        """The column groups that must be opened, for the columns wanted and those `needed` beside them; at least one,
        whose rows count."""
        wanted = {*self._names, *needed}
        found = tuple(i for i, group in enumerate(schema.groups) if wanted & set(group))
        return found or (0,)

    def apply(self, batch: Any, facts: Mapping[str, Any], mask: Any | None = None) -> Any:
        """`batch` (a `pa.RecordBatch`) as the query wants it; `facts` are values of provenance columns, `mask` says
        which rows are of interest."""
        columns = []
        for field in self._arrow:
            index = batch.schema.get_field_index(field.name)
            if index >= 0:
                columns.append(_cast(batch.column(index), field))
            elif field.name == "_leaf":
                columns.append(pa.array(np.arange(batch.num_rows, dtype=np.int32)))
            elif field.name in facts:
                columns.append(pa.repeat(pa.scalar(facts[field.name], field.type), batch.num_rows))
            elif field.nullable:
                columns.append(pa.nulls(batch.num_rows, field.type))
            else:  # closed, since older versions of the topic lack nullable columns only
                raise DoesNotFit(
                    f'column "{field.name}" is closed to this identity, and the query wants a value in every row',
                    hint="read it as nullable",
                )
        if not columns:  # count(*) over a user's schema without columns
            return batch.select([]) if mask is None else batch.filter(mask).select([])
        projected = pa.RecordBatch.from_arrays(columns, schema=self._arrow)
        return projected if mask is None else projected.filter(mask)


def _cast(array: Any, field: Any) -> Any:
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type, safe=not _is_finer_than_spark(array.type))
    except pa.ArrowInvalid as error:
        raise DoesNotFit(
            f'column "{field.name}": a value of type {array.type} does not fit {field.type}',
            hint="the topic's schema grew: start the query anew with the newest version",
        ) from error


def _is_finer_than_spark(type_: Any) -> bool:
    if pa.types.is_timestamp(type_):
        return bool(type_.unit == "ns")
    return any(_is_finer_than_spark(type_.field(i).type) for i in range(type_.num_fields))
