"""Rows as users hold them into one batch of the topic's schema.

`to_batches` takes a list of dicts, or columns: a pyarrow Table or RecordBatch, a pandas or polars DataFrame,
a dict of arrays or lists. `gather_dicts` is the part for dicts: plain rows pass through the compiled loop of
`kernels/gather.py`; whatever it hands back, everything where numba is missing, and few rows, for which it is not worth
loading, through `gather_values`. Both ways give the same batch.

A key or column left out is null. An unknown one, a null in a column that forbids it, and any value that the
column cannot hold exactly is a `Misuse` that names row and column; see `gather_values` and `gather_columns`
for what counts as exact and as null. Nothing comes of a batch of which one row is wrong.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tallystick.errors import Misuse
from tallystick.kernels.demand import OnDemand
from tallystick.later import pc
from tallystick.record.gather_columns import column_of, named_columns
from tallystick.record.gather_values import BadRow, array_of, key_name, misuse

if TYPE_CHECKING:
    from tallystick.kernels.gather import Puller

_PLANS_MAX = 64  # schemas in use at once in one process; more only costs preparing them again

_plans: dict[int, _Plan] = {}


def to_batches(rows: Any, arrow_schema: pa.Schema) -> pa.RecordBatch:
    """One batch with exactly `arrow_schema` from rows (a list of dicts) or columns. Raises `Misuse`.

    >>> to_batches([{"vin": "W1", "speed": 3}], schema.arrow).num_rows
    1
    """
    if isinstance(rows, list | tuple):
        return gather_dicts(rows, arrow_schema)
    if isinstance(rows, pa.RecordBatch) and rows.schema.equals(arrow_schema, check_metadata=True):
        return rows  # nothing to convert; `Batch.of` checks it like any other
    columns = named_columns(rows)
    if columns is None:
        raise Misuse(
            f"expected a list of dicts, or columns, found {type(rows).__name__}",
            hint="columns: a pyarrow Table or RecordBatch, a pandas or polars DataFrame, a dict of arrays",
        )
    for name in columns:
        if arrow_schema.get_field_index(name) < 0:
            raise Misuse(f'column "{name}": the topic has no such column')
    given = {field.name: column_of(columns[field.name], field) for field in arrow_schema if field.name in columns}
    count = _common_length(given)
    return _batch([given.get(field.name) for field in arrow_schema], count, _plan(arrow_schema))


def gather_dicts(rows: list[Any] | tuple[Any, ...], arrow_schema: pa.Schema) -> pa.RecordBatch:
    """One batch with exactly `arrow_schema` from dicts, one a row. Raises `Misuse` naming row and column."""
    plan = _plan(arrow_schema)
    # A list of our own: no other thread changes it, and it keeps every row alive.
    held = list(rows)
    puller = plan.puller_for(len(held))
    arrays = puller.pull(held) if puller is not None else None
    if arrays is None:
        return _from_python(held, plan)
    for c, array in enumerate(arrays):
        if array is None:
            arrays[c] = _column(held, plan.fields[c])
    return _batch(arrays, len(held), plan)


class _Plan:
    """What is prepared once for a schema. It holds the schema, whose address is its key in `_plans`."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.names = frozenset(schema.names)
        self.fields = list(schema)
        self.demanding = [c for c, field in enumerate(self.fields) if not field.nullable]
        self._puller: Puller | None = None

    def puller_for(self, rows: int) -> Puller | None:
        """The compiled loop, where there is one and it is worth loading for `rows` more."""
        if self._puller is None:
            kernel = _kernel.after(rows)
            self._puller = kernel(self.schema) if kernel is not None else None
        return self._puller


def _plan(schema: pa.Schema) -> _Plan:
    plan = _plans.get(id(schema))
    if plan is None:
        if len(_plans) >= _PLANS_MAX:
            _plans.clear()
        plan = _plans[id(schema)] = _Plan(schema)
    return plan


def load() -> type[Puller] | None:
    """The compiled loop, which rows pass from now on, however few, or None where numba is missing."""
    return _kernel.now()


def _load() -> type[Puller] | None:
    try:
        from tallystick.kernels import gather as kernel
    except ImportError:
        return None
    return kernel.Puller if kernel.available() else None


_kernel = OnDemand(_load, enough=4_096)  # rows


def _from_python(rows: list[Any], plan: _Plan) -> pa.RecordBatch:
    plain = set(map(type, rows)) <= {dict} and set(map(type, chain.from_iterable(rows))) <= {str}
    if not (plain and set().union(*rows) <= plan.names):
        rows = [_plain_row(i, row, plan.names) for i, row in enumerate(rows)]
    arrays: list[pa.Array | None] = [_column(rows, field) for field in plan.fields]
    return _batch(arrays, len(rows), plan)


def _plain_row(i: int, row: Any, names: frozenset[str]) -> dict[str, Any]:
    """A dict that runs no foreign code when it is asked for a column."""
    if not issubclass(type(row), dict):
        raise BadRow(i, f": expected a dict, found {type(row).__name__}")
    plain: dict[str, Any] = {}
    for key, value in list(dict.items(row)):
        name = str.__str__(key) if issubclass(type(key), str) else None
        if name is None or name not in names:
            raise BadRow(i, f": the topic has no column for the key {key_name(key)}")
        if name in plain:
            raise BadRow(i, f', column "{name}": given twice')
        plain[name] = value
    return plain


def _column(rows: list[Any], field: pa.Field) -> pa.Array:
    name, get = field.name, dict.get
    return array_of([get(row, name) for row in rows], field)


def _common_length(columns: dict[str, pa.Array]) -> int:
    lengths = {name: len(column) for name, column in columns.items()}
    if not lengths:
        return 0
    first, count = next(iter(lengths.items()))
    for name, length in lengths.items():
        if length != count:
            raise Misuse(f'column "{name}": expected {count} rows as in column "{first}", found {length}')
    return count


def _batch(arrays: list[pa.Array | None], count: int, plan: _Plan) -> pa.RecordBatch:
    """The batch; a missing array is a column of nulls. The one place where forbidden nulls are refused."""
    whole = [
        array if array is not None else pa.nulls(count, field.type)
        for array, field in zip(arrays, plan.fields, strict=True)
    ]
    for c in plan.demanding:
        if whole[c].null_count:
            row = pc.index(whole[c].is_null(), True).as_py()
            raise misuse(row, plan.fields[c], "no value", expected="a value (the column is not nullable)")
    return pa.RecordBatch.from_arrays(whole, schema=plan.schema)
