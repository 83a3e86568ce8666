"""The simulated bus: its times, its payloads as cantools reads them, and that a seed repeats it."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from tallystick.errors import Misuse
from tallystick.fleet import bus
from tallystick.fleet.dbc import EXTENDED, Dbc
from tallystick.fleet.detect.frames import Frames


@pytest.fixture(scope="module", params=bus.LAYOUTS)
def drive(request: pytest.FixtureRequest) -> tuple[int, Frames]:
    return request.param, bus.simulate_bus(request.param, 2.5, seed=5, start_us=10**15)


def _same(one: Frames, other: Frames) -> bool:
    return all(np.array_equal(getattr(one, column.name), getattr(other, column.name)) for column in fields(Frames))


def _of(drive: tuple[int, Frames], name: str) -> tuple[bus.BusMessage, Frames]:
    message = next(one for one in bus.bus_messages(drive[0]) if one.name == name)
    return message, drive[1][drive[1].can_id == message.can_id]


def test_frames_are_in_order_none_overlaps_and_the_bus_is_half_full(drive: tuple[int, Frames]) -> None:
    frames = drive[1]
    takes = bus.BIT_US * (47 + 8 * frames.length.astype(np.int64))  # without a stuffed bit
    assert (np.diff(frames.ts) >= takes[1:]).all()
    assert 1_500 < len(frames) / 150 < 2_500
    assert frames.ts[0] >= 10**15
    assert frames.ts[-1] <= 10**15 + 150 * 10**6
    assert len(np.unique(frames.can_id)) >= 50


def test_of_the_frames_that_wait_the_lowest_identifier_goes_first() -> None:
    due = np.array([0, 10, 20, 30, 5_000])
    can_id = np.array([9 << 18 | EXTENDED, 7, 9, 3, 1], np.uint32)
    order, done = bus._arbitrate(due, bus._urgency(can_id), np.full(5, 8, np.uint8), 0)
    assert can_id[order].tolist() == [9 << 18 | EXTENDED, 3, 7, 9, 1]
    assert done[-1] > 5_000
    assert bus._urgency(can_id)[0] > bus._urgency(can_id)[2]  # a long identifier loses to the short one it begins with


def test_periods_hold_within_some_per_cent_while_events_have_none(drive: tuple[int, Frames]) -> None:
    for message in bus.bus_messages(drive[0]):
        times = drive[1].ts[drive[1].can_id == message.can_id]
        if message.period_us:
            assert np.mean(np.diff(times)) == pytest.approx(message.period_us, rel=1e-3), message.name
            assert np.std(np.diff(times)) < 0.02 * message.period_us + 600, message.name
    assert {one.sent_by for one in bus.bus_messages(0)} == {"", "Gear", "Blink", "Headlights", "chance"}


def test_counters_count_and_checksums_hold(drive: tuple[int, Frames]) -> None:
    message, frames = _of(drive, "EngineSpeed")
    place = {field.name: field for field in message.fields}
    word = frames.word if message.is_big else frames.word.byteswap()
    counter, crc = (place[name].decode(word).astype(int) for name in ("Counter", "Checksum"))
    assert set(np.diff(counter) % 16) == {1}
    rest = word & ~np.uint64(0xFF << place["Checksum"].first_bit)
    polynomial = bus.POLYNOMIALS[drive[0]]
    assert np.array_equal(bus._checksum(rest, message.can_id & 0xFF, polynomial), crc)
    assert len(set(crc)) > 200


def test_cantools_reads_every_message_and_redundant_signals_agree(drive: tuple[int, Frames]) -> None:
    cantools = pytest.importorskip("cantools", reason="cantools is not installed: pip install 'tallystick[fleet]'")
    layout, frames = drive
    database = cantools.database.load_string(bus.dbc_of(layout), "dbc")
    assert len(database.messages) == len(bus.bus_messages(layout))
    payloads = frames.to_batch("TLY").column("payload")
    decoded = {one.name: one for one in Dbc.parse(bus.dbc_of(layout)).decode(frames.can_id, payloads)}
    assert not any(one.problems for one in decoded.values())
    for message in bus.bus_messages(layout):
        if not message.period_us:  # an event that may not have happened
            continue
        found = decoded[message.name]
        theirs = database.decode_message(message.name, payloads[int(found.rows[0])].as_py())
        for number, (name, ours) in enumerate(zip(theirs, found.values.values(), strict=True)):
            assert float(theirs[name]) == pytest.approx(ours[0][0], abs=1e-6), (message.name, number)
    keys = {key for one in decoded.values() for key in one.values}
    assert {"Vehicle.Speed", "Vehicle.Powertrain.Transmission.CurrentGear"} <= keys
    speeds = [
        np.interp(np.arange(10, 140) * 1e6, frames.ts[one.rows] - 1e15, value)
        for one in decoded.values()
        for key, (value, _) in one.values.items()
        if key == "Vehicle.Speed" or (key.endswith(".Speed") and not key.startswith("Vehicle."))
    ]
    assert len(speeds) > 6
    assert max(np.abs(one - speeds[0]).mean() for one in speeds) < 2.0


def test_a_seed_repeats_and_another_differs() -> None:
    assert _same(bus.simulate_bus(1, 0.2, seed=3), bus.simulate_bus(1, 0.2, seed=3))
    assert not _same(bus.simulate_bus(1, 0.2, seed=3), bus.simulate_bus(1, 0.2, seed=4))
    assert set(bus.simulate_bus(0, 0.1).can_id) != set(bus.simulate_bus(1, 0.1).can_id)


@pytest.mark.parametrize(("layout", "minutes", "seed"), [(3, 1, 0), (0, 0, 0), (0, float("nan"), 0), (0, 1, -1)])
def test_what_cannot_be_simulated_is_refused(layout: int, minutes: float, seed: int) -> None:
    with pytest.raises(Misuse, match="expected"):
        bus.simulate_bus(layout, minutes, seed)
