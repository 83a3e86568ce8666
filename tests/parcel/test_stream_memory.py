"""A stream ten times longer takes no more memory: nothing of a parcel stays behind once it was sealed, or opened."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pytest
from makers import INSTANCE, SCHEMA, World, entropy, rows, token

from tallystick.parcel.open import open_batch
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.verify import verify_run
from tallystick.record.batch import Batch

RECORDS = 4_096
SHORT, LONG = 12, 120  # parcels
SLACK_BYTES = 256 * 1024  # a small part of what one buffer a parcel would leave behind
RESIDENT_SLACK_BYTES = 2 * 1024 * 1024  # one message a parcel would leave six times as much

STATM = Path("/proc/self/statm")


@cache
def batches() -> list[Batch]:
    return [rows(number, RECORDS) for number in range(4)]


def sealed(world: World, parcels: int) -> Iterator[bytes]:
    """A stream as a publisher makes it: one batch after another, nothing kept."""
    lane = world.lane()
    for number, batch in zip(range(parcels), cycle(batches()), strict=False):
        yield lane.seal(batch, now_ms=number, entropy=entropy(number)).encode()


def flow(parcels: int) -> None:
    """Publish and read a stream, as long as it is, in runs of four parcels."""
    world = World()
    ring, book, head, run = world.ring("brakes"), world.book(), None, []
    for data in sealed(world, parcels):
        run.append(Parcel.decode(data))
        if len(run) < 4:
            continue
        for verified in verify_run(run, INSTANCE, token("brakes"), book, head):
            assert open_batch(verified, ring, SCHEMA).rows == RECORDS
        head, run = (run[-1].header.sequence, run[-1].hash), []


def peak_bytes(parcels: int) -> tuple[int, int]:
    """The most that Python's objects and Arrow's buffers took while a stream flowed."""
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    tracemalloc.reset_peak()
    try:
        flow(parcels)
        gc.collect()
        assert counted.bytes_allocated() == 0
        return tracemalloc.get_traced_memory()[1], counted.max_memory()
    finally:
        pa.set_memory_pool(before)


def peaks() -> tuple[tuple[int, int], tuple[int, int]]:
    """Of a short stream and of a long one."""
    flow(SHORT)  # compiled code, caches and pools are there before anything is counted
    gc.collect()
    tracemalloc.start()
    flow(SHORT)  # what is made once and kept
    return peak_bytes(SHORT), peak_bytes(LONG)


def grown_bytes() -> list[int]:
    """By how much the process grew over long streams. What leaks does so every time, what is taken once is not."""
    flow(SHORT)
    flow(SHORT)
    grown: list[int] = []
    while len(grown) < 3 and min(grown, default=RESIDENT_SLACK_BYTES) >= RESIDENT_SLACK_BYTES:
        before = resident_bytes()
        flow(LONG)
        grown.append(resident_bytes() - before)
    return grown


def resident_bytes() -> int:
    gc.collect()
    return int(STATM.read_text().split()[1]) * 4096


@pytest.fixture
def alone() -> Iterator[ProcessPoolExecutor]:
    """A process that does nothing else: the threads of other tests would be counted too."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield process


def test_a_longer_stream_has_no_higher_peak(alone: ProcessPoolExecutor) -> None:
    short, long = alone.submit(peaks).result(120)
    assert long[0] < short[0] + SLACK_BYTES
    assert long[1] < short[1] + SLACK_BYTES


@pytest.mark.skipif(not STATM.exists(), reason="no /proc here")
def test_nor_does_it_leave_memory_behind_that_nobody_counts(alone: ProcessPoolExecutor) -> None:
    """Buffers of compiled code and of foreign libraries: seen only as pages of the process."""
    assert min(alone.submit(grown_bytes).result(120)) < RESIDENT_SLACK_BYTES
