"""Vehicles that obey physics and the road, rows that depend on the seed alone, and a truth that fits the rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tallystick.errors import Misuse
from tallystick.fleet.city import Sensors
from tallystick.fleet.motion import COMFORTABLE_MS2, HARSH_MS2, Motion
from tallystick.fleet.routes import (
    BLOCK_M,
    LEG,
    LEGS,
    LINES,
    METRES_PER_DEGREE,
    MOTORWAY_KMH,
    ORIGIN_LATITUDE,
    ORIGIN_LONGITUDE,
    city,
    is_red,
    plan,
    to_degrees,
)
from tallystick.fleet.schemas import schema
from tallystick.fleet.signals import SIGNALS
from tallystick.fleet.vehicles import GPS_SIGMA_M, GPS_SIGMAS_MAX, Fleet, HarshEvent, Truth, simulate
from tallystick.record.batch import Batch

VEHICLES, SECONDS, SEED = 40, 1500, 11


@cache
def drive(step_s: float = 1.0) -> tuple[pd.DataFrame, Truth]:
    fleet = Fleet(VEHICLES, SECONDS * step_s, step_s=step_s, seed=SEED)
    frame = pa.Table.from_batches(list(fleet.batches())).to_pandas()
    return frame, fleet.truth


def to_metres(latitude: Any, longitude: Any) -> tuple[Any, Any]:
    """The inverse of `to_degrees`."""
    east_m = (longitude - ORIGIN_LONGITUDE) * METRES_PER_DEGREE * np.cos(np.radians(ORIGIN_LATITUDE))
    return east_m, (latitude - ORIGIN_LATITUDE) * METRES_PER_DEGREE


@pytest.fixture(params=[1.0, 0.2], ids=["1 s", "200 ms"])
def step_s(request: pytest.FixtureRequest) -> float:
    return float(request.param)


# --- the road ---


def test_speeds_keep_to_the_limit_of_the_road_they_are_driven_on() -> None:
    track = Motion(200, 1.0, np.random.default_rng(3)).advance(900)
    driven = track.limit_ms > 0
    assert driven.mean() > 0.5
    assert (track.speed_ms[driven] <= track.limit_ms[driven] + 1e-9).all()
    assert (track.speed_ms[~driven] == 0).all()
    fast = track.speed_ms.max() * 3.6
    assert 0.9 * MOTORWAY_KMH < fast <= MOTORWAY_KMH
    # Every road is used, and so are both axes.
    assert {round(limit * 3.6) for limit in np.unique(track.limit_ms[driven])} == {40, 60, 100}
    assert set(np.unique(track.heading_deg)) == {0.0, 90.0, 180.0, 270.0}


def test_vehicles_stay_on_the_roads() -> None:
    track = Motion(100, 0.5, np.random.default_rng(4)).advance(1500)
    off_east = np.abs(track.east_m / BLOCK_M - np.rint(track.east_m / BLOCK_M)) * BLOCK_M
    off_north = np.abs(track.north_m / BLOCK_M - np.rint(track.north_m / BLOCK_M)) * BLOCK_M
    assert np.minimum(off_east, off_north).max() < 1e-6
    for place in (track.east_m, track.north_m):
        assert place.min() > -5.0
        assert place.max() < (LINES - 1) * BLOCK_M + 5.0


def test_nobody_who_could_stop_passes_a_red_light() -> None:
    """Whoever is about to pass a crossing at red was too fast to stop when it turned red."""
    step_s = 0.5
    track = Motion(60, step_s, np.random.default_rng(5)).advance(2400)
    lights = city()
    stopped_at_red = ran = 0
    for vehicle in range(60):
        east, north, speed = track.east_m[:, vehicle], track.north_m[:, vehicle], track.speed_ms[:, vehicle]
        heading = track.heading_deg[:, vehicle]
        for row in range(1, len(east)):
            if heading[row] != heading[row - 1] or heading[row] not in (90.0, 270.0) or speed[row] == 0:
                continue
            before, after = np.floor(east[row - 1] / BLOCK_M), np.floor(east[row] / BLOCK_M)
            crossed, line = int(max(before, after)), int(np.rint(north[row] / BLOCK_M))
            if before == after or abs(east[row - 1] - crossed * BLOCK_M) < 1.0:  # not passing it, but leaving it
                continue
            red = [is_red(lights, 0, line, crossed, (row - back) * step_s) for back in range(40)]
            since_s = red.index(False) * step_s if False in red else 20.0
            ran += red[0]
            # To stop from 60 km/h with 1.8 m/s² takes 77 m: passed after less than 6 s.
            assert since_s < 8.0
        stopped_at_red += int(((speed[1:] == 0) & (speed[:-1] > 0)).sum())
    assert stopped_at_red > 100
    assert ran < stopped_at_red


def test_a_route_connects_two_crossings_by_perpendicular_legs() -> None:
    generator = np.random.default_rng(6)
    for _ in range(200):
        east_line, north_line = (int(number) for number in generator.integers(0, LINES, 2))
        legs = np.zeros(LEGS, dtype=LEG)
        goal = plan(generator, legs, east_line, north_line)
        at = {"east": north_line * BLOCK_M, "north": east_line * BLOCK_M}
        for leg in legs:
            along, across = ("east", "north") if leg["axis"] == 0 else ("north", "east")
            assert at[along] == leg["start_m"]
            assert at[across] == leg["line"] * BLOCK_M
            at[along] += leg["direction"] * leg["length_m"]
        assert at == {"east": goal[1] * BLOCK_M, "north": goal[0] * BLOCK_M}
        assert legs["axis"][0] != legs["axis"][1] != legs["axis"][2]
        assert legs["length_m"][1] > 0


def test_degrees_and_metres_are_inverse() -> None:
    east, north = np.array([0.0, 8000.0, 1234.5]), np.array([8000.0, 0.0, 777.0])
    back = to_metres(*to_degrees(east, north))
    assert np.allclose(back, (east, north), atol=1e-6)


# --- the rows ---


def test_batches_are_of_the_schema_and_every_signal_is_a_column_of_it() -> None:
    telemetry = schema("telemetry")
    for batch in simulate(5, 120, seed=1):
        assert Batch.of(telemetry, batch).rows == batch.num_rows
    assert [signal.column for signal in SIGNALS] == telemetry.arrow.names[1:]
    assert len({signal.path for signal in SIGNALS}) == len(SIGNALS)


def test_rows_come_in_order_of_time_once_per_vehicle(step_s: float) -> None:
    frame, truth = drive(step_s)
    assert len(frame) == truth.rows
    assert frame.ts.is_monotonic_increasing
    assert not frame.duplicated(["ts", "vin"]).any()
    assert frame.vin.nunique() == VEHICLES
    assert (frame.vin.str.len() == 17).all()


def test_distance_is_the_integral_of_speed_and_the_odometer_never_falls(step_s: float) -> None:
    frame, _ = drive(step_s)
    for _, car in frame.groupby("vin"):
        assert (car.odometer_km.diff().dropna() >= 0).all()
        gap_s = car.ts.diff().dt.total_seconds()
        speed_ms = car.speed_kmh / 3.6
        moved_km = ((speed_ms + speed_ms.shift()) / 2 * gap_s).sum() / 1000
        assert moved_km == pytest.approx(car.odometer_km.iloc[-1] - car.odometer_km.iloc[0], abs=1e-3)


def test_acceleration_is_the_change_of_speed_and_within_bounds(step_s: float) -> None:
    frame, truth = drive(step_s)
    for _, car in frame.groupby("vin"):
        gap_s = car.ts.diff().dt.total_seconds()
        change = (car.speed_kmh.diff() / 3.6 / gap_s)[gap_s <= step_s + 1e-6]
        assert np.allclose(change, car.acceleration_ms2[change.index], atol=2e-3)
    harsh = {(event.vin, ms) for event in truth.harsh for ms in _rows_ms(event, step_s)}
    calm = frame[[key not in harsh for key in zip(frame.vin, frame.ts.map(_ms), strict=True)]]
    assert calm.acceleration_ms2.between(-COMFORTABLE_MS2 - 1e-5, 2.2 + 1e-5).all()
    assert frame.acceleration_ms2.between(-7.0, 4.5).all()


def test_fuel_burns_while_the_engine_runs_and_only_then() -> None:
    frame, truth = drive()
    running = frame[frame.ignition]
    assert (running.fuel_rate_lh > 0.1).all()
    assert (frame[~frame.ignition].fuel_rate_lh == 0).all()
    idle = running[(running.speed_kmh == 0)]
    assert idle.fuel_rate_lh.between(0.5, 1.5).all()
    litres_per_100_km = 100 * sum(trip.fuel_l for trip in truth.trips) / sum(trip.distance_km for trip in truth.trips)
    assert 5 < litres_per_100_km < 15
    assert frame.fuel_level_pct.between(0, 100).all()


def test_engine_signals_are_plausible() -> None:
    frame, _ = drive()
    running, off = frame[frame.ignition], frame[~frame.ignition]
    assert running.engine_rpm.between(700, 4500).all()
    assert (off.engine_rpm == 0).all()
    assert frame.gear.between(0, 5).all()
    assert (running[running.speed_kmh > 90].gear == 5).all()
    assert running.battery_v.between(13.3, 14.5).all()
    assert off.battery_v.between(12.2, 12.8).all()
    assert frame.engine_load_pct.between(0, 100).all()
    assert frame.throttle_pct.between(0, 100).all()
    assert frame.coolant_c.between(0, 90).all()
    first = running.groupby("vin").coolant_c.first()
    assert first.max() < 20  # cold in the morning
    assert (running.groupby("vin").coolant_c.max() > 70).mean() > 0.8  # and warm after a drive


def test_gps_is_near_a_road() -> None:
    frame, _ = drive()
    east, north = to_metres(frame.latitude, frame.longitude)
    off = np.minimum(
        np.abs(east - np.rint(east / BLOCK_M) * BLOCK_M), np.abs(north - np.rint(north / BLOCK_M) * BLOCK_M)
    )
    assert off.max() <= GPS_SIGMA_M * GPS_SIGMAS_MAX + 1e-3
    assert off.mean() > 0.5  # there is noise


# --- the truth ---


def test_trips_of_the_truth_are_those_that_the_rows_show(step_s: float) -> None:
    frame, truth = drive(step_s)
    expected = {}
    for vin, car in frame.groupby("vin"):
        trip = (car.ignition & ~car.ignition.shift(fill_value=False)).cumsum()
        for _, rows in car[trip > 0].groupby(trip[trip > 0]):
            on = rows[rows.ignition]
            ended = rows[~rows.ignition]
            last = ended.iloc[0] if len(ended) else on.iloc[-1]
            expected[vin, _ms(on.ts.iloc[0])] = (
                _ms(last.ts) if len(ended) else None,
                last.odometer_km - on.odometer_km.iloc[0],
                (on.speed_kmh == 0).sum() * step_s,
                on.fuel_rate_lh.sum() * step_s / 3600,
            )
    assert len(truth.trips) == len(expected) > VEHICLES / 2
    for trip in truth.trips:
        end_ms, distance_km, idle_s, fuel_l = expected[trip.vin, trip.start_ms]
        assert trip.end_ms == end_ms
        assert trip.distance_km == pytest.approx(distance_km, abs=1e-6)
        assert trip.idle_s == pytest.approx(idle_s)
        assert trip.fuel_l == pytest.approx(fuel_l, rel=1e-5)


def test_harsh_events_of_the_truth_are_those_that_the_rows_show(step_s: float) -> None:
    frame, truth = drive(step_s)
    shown = {(row.vin, _ms(row.ts)) for row in frame[frame.acceleration_ms2.abs() >= HARSH_MS2].itertuples()}
    step_ms = round(step_s * 1000)
    for event in truth.harsh:
        assert (event.vin, event.start_ms + step_ms) in shown
    assert shown <= {(event.vin, ms) for event in truth.harsh for ms in _rows_ms(event, step_s)}
    assert len(truth.harsh) > (20 if step_s == 1.0 else 2)
    if step_s == 1.0:
        assert {event.is_braking for event in truth.harsh} == {True, False}


def test_the_summary_adds_up() -> None:
    _, truth = drive()
    plain = truth.plain()
    assert plain["trip_count"] == len(plain["trips"])
    assert plain["harsh_braking"] + plain["harsh_acceleration"] == len(plain["harsh"])
    assert plain["distance_km"] == pytest.approx(sum(trip["distance_km"] for trip in plain["trips"]), abs=1e-5)


# --- the seed ---


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    first, again, other = (_bytes(simulate(7, 200, seed=seed)) for seed in (5, 5, 6))
    assert first == again
    assert first != other


@pytest.mark.parametrize("chunk_rows", [1, 97, 1000, 10**6])
def test_rows_are_the_same_however_they_are_cut(chunk_rows: int) -> None:
    whole = pa.Table.from_batches(list(simulate(30, 300, seed=2)))
    cut = list(simulate(30, 300, seed=2, chunk_rows=chunk_rows))
    assert pa.Table.from_batches(cut).equals(whole)
    assert {batch.num_rows for batch in cut[:-1]} <= {chunk_rows}


def test_a_longer_simulation_begins_like_a_shorter_one() -> None:
    short = pa.Table.from_batches(list(simulate(30, 200, seed=2)))
    long = pa.Table.from_batches(list(simulate(30, 900, seed=2)))
    assert long.slice(0, short.num_rows).equals(short)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"vehicles": 0, "seconds": 1}, "vehicles"),
        ({"vehicles": 1, "seconds": 0}, "seconds"),
        ({"vehicles": 1, "seconds": 1, "step_s": 2.0}, "step_s"),
        ({"vehicles": 1, "seconds": 1, "seed": -1}, "seed"),
        ({"vehicles": 1, "seconds": 1, "chunk_rows": 0}, "chunk"),
    ],
)
def test_wrong_numbers_are_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(Misuse, match=named):
        list(simulate(**arguments))


def test_a_simulation_runs_once() -> None:
    for source in (Fleet(1, 10), Sensors("home", 1, 10)):
        assert sum(batch.num_rows for batch in source.batches())
        with pytest.raises(Misuse, match="once"):
            source.batches()


def _bytes(batches: Any) -> list[bytes]:
    return [batch.serialize().to_pybytes() for batch in batches]


def _ms(time: pd.Timestamp) -> int:
    return round(float(time.timestamp()) * 1000)


def _rows_ms(event: HarshEvent, step_s: float) -> range:
    """The times of the rows that show the event: the first changed speed is one step after its start."""
    step_ms = round(step_s * 1000)
    return range(event.start_ms + step_ms, event.end_ms + 1, step_ms)
