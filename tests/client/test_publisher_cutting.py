"""How a publisher cuts batches to parcels: whatever the rows, each part fits, and together they are the batch."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tallystick.client.publish import _cut
from tallystick.errors import Misuse


def batch(sizes: list[int]) -> pa.RecordBatch:
    texts = pa.array(["x" * size for size in sizes], pa.string())
    return pa.record_batch({"number": pa.array(range(len(sizes)), pa.int64()), "text": texts})


@pytest.mark.parametrize("seed", range(20))
def test_each_part_fits_and_together_they_are_the_batch(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice((0, 1, 40, 900)) for _ in range(chance.randrange(1, 500))]
    rows_max, bytes_max = chance.choice((1, 7, 64, 1_000)), chance.choice((1_000, 5_000, 100_000))
    whole = batch(sizes)
    pieces = _cut(whole, rows_max, bytes_max)
    assert pa.Table.from_batches([piece for piece, _ in pieces]).equals(pa.Table.from_batches([whole]))
    assert all(piece.num_rows <= rows_max and piece.nbytes <= bytes_max for piece, _ in pieces)
    assert 0.5 * whole.nbytes < sum(size for _, size in pieces) < 1.5 * whole.nbytes


def test_parcels_are_full_where_bytes_do_not_bound_them() -> None:
    pieces = _cut(batch([10] * 1_000), 64, 3_000)
    assert [piece.num_rows for piece, _ in pieces] == [64] * 15 + [40]


def test_a_record_that_fits_no_parcel_is_told_with_its_size() -> None:
    with pytest.raises(Misuse, match="does not fit a parcel of 1000") as error:
        _cut(batch([1, 1, 5_000, 1]), 64, 1_000)
    assert "tally object put" in (error.value.hint or "")
