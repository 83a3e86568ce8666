"""Byte planes: exactly invertible for any batch, and no list of regions from outside reaches beyond the data."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches

from tallystick.errors import Malformed
from tallystick.kernels.demand import OnDemand
from tallystick.record import planes
from tallystick.record.batch import Batch, open_batch, to_message
from tallystick.record.codec import LZ4, PLANES, compress, decompress
from tallystick.record.planes import REGIONS_MAX, check_regions, gather, regions_of, scatter
from tallystick.record.schema import Schema

TELEMETRY = Schema.parse(
    "vin string, ts timestamp[ms], lat float64, speed float32, heading int16, amount decimal128(9, 2)"
)


def telemetry(count: int) -> Batch:
    columns = {
        "vin": [f"WVWZZZ1JZ{i % 7:08}" for i in range(count)],
        "ts": [1_760_000_000_000 + 10 * i for i in range(count)],
        "lat": [52 + i / 1e6 for i in range(count)],
        "speed": [i % 90 / 10 for i in range(count)],
        "heading": [i % 360 for i in range(count)],
        "amount": [None] * count,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in TELEMETRY.arrow]
    return Batch.of(TELEMETRY, pa.RecordBatch.from_arrays(arrays, schema=TELEMETRY.arrow))


def view(message: pa.Buffer) -> memoryview:
    return memoryview(message).cast("B")


@given(batch=batches())
def test_every_batch_comes_back_byte_for_byte(batch: Batch) -> None:
    message = to_message(batch.data)
    regions = regions_of(view(message), batch.schema)
    packed = compress(message, PLANES, regions)
    assert bytes(decompress(packed, PLANES, message.size)) == bytes(message)


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[bytes, list[planes.Region]]:
    regions, end = [], 0
    for _ in range(draw(st.integers(0, 4))):
        start = (end + 8 * draw(st.integers(0, 3)) + 7) // 8 * 8
        values, width = draw(st.integers(0, 2_100)), draw(st.sampled_from(planes.WIDTHS))
        regions.append((start, values, width, draw(st.integers(0, 1))))
        end = start + values * width
    size = end + draw(st.integers(0, 20))
    return np.random.default_rng(draw(st.integers(0, 99))).bytes(size), regions


@given(laid_out())
def test_compiled_and_reference_give_the_same_bytes(case: tuple[bytes, list[planes.Region]]) -> None:
    data, regions = case
    check_regions(regions, len(data))
    assert planes.load() is not None
    there = scatter(data, regions)
    assert bytes(gather(there, regions)) == data
    source, expected = np.frombuffer(data, np.uint8), np.empty(len(data), np.uint8)
    table = np.array(regions, np.int64).reshape(-1, 4)
    planes._reference(source, expected, table, True)
    assert bytes(there) == expected.tobytes()
    back = np.empty(len(data), np.uint8)
    planes._reference(expected, back, table, False)
    assert back.tobytes() == data


def test_where_numba_is_missing_the_reference_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    message = to_message(telemetry(3_000).data)
    regions = regions_of(view(message), TELEMETRY)
    compiled = bytes(compress(message, PLANES, regions))
    monkeypatch.setattr(planes, "_kernel", OnDemand(lambda: None, 0))
    assert bytes(compress(message, PLANES, regions)) == compiled
    assert bytes(decompress(compiled, PLANES, message.size)) == bytes(message)


def test_planes_are_smaller_than_the_values_as_they_lie() -> None:
    message = to_message(telemetry(4_096).data)
    packed = compress(message, PLANES, regions_of(view(message), TELEMETRY))
    assert len(packed) < 0.7 * len(compress(message, LZ4))
    assert open_batch(decompress(packed, PLANES, message.size), TELEMETRY, 4_096).data.equals(telemetry(4_096).data)


BAD_REGIONS = {
    "beyond the end": [(0, 126, 8, 0)],
    "far beyond the end": [(0, 0xFFFFFFFF, 8, 1)],
    "start beyond the end": [(0xFFFFFFF8, 0, 8, 0)],
    "overlapping": [(0, 10, 8, 0), (72, 1, 8, 0)],
    "out of order": [(80, 1, 8, 0), (0, 1, 8, 0)],
    "not aligned": [(4, 1, 8, 0)],
    "width zero": [(0, 10, 0, 0)],
    "width one": [(0, 10, 1, 0)],
    "width three": [(0, 10, 3, 0)],
    "width sixteen": [(0, 10, 16, 0)],
    "unknown delta": [(0, 10, 8, 2)],
}


def packed_by_hand(regions: list[planes.Region], count: int | None = None) -> bytes:
    front = struct.pack("<I", len(regions) if count is None else count)
    return front + b"".join(struct.pack("<IIHH", *region) for region in regions) + bytes(compress(bytes(1000), LZ4))


@pytest.mark.parametrize("regions", BAD_REGIONS.values(), ids=BAD_REGIONS)
def test_regions_that_reach_elsewhere_are_refused(regions: list[planes.Region]) -> None:
    with pytest.raises(Malformed, match="planes"):
        decompress(packed_by_hand(regions), PLANES, 1000)


@pytest.mark.parametrize("count", [1, 2, REGIONS_MAX, REGIONS_MAX + 1, 0xFFFFFFFF])
def test_a_list_longer_than_the_content_is_refused(count: int) -> None:
    with pytest.raises(Malformed):
        decompress(packed_by_hand([], count), PLANES, 1000)


def test_a_list_longer_than_any_schema_is_refused() -> None:
    with pytest.raises(Malformed, match="more regions"):
        decompress(packed_by_hand([(0, 0, 8, 0)] * (REGIONS_MAX + 1)), PLANES, 1000)


@given(st.binary(max_size=64), st.integers(0, 2_000))
def test_noise_is_malformed_or_of_the_size_declared(data: bytes, size: int) -> None:
    with contextlib.suppress(Malformed):
        assert decompress(data, PLANES, size).size == size
