"""Trips of one vehicle: against the simulator's truth, rule by rule, and in any pieces the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tallystick.errors import Malformed
from tallystick.fleet.vehicles import Fleet
from tallystick.pipeline.jobs import lines
from tallystick.pipeline.jobs.cutting import FIELDS, Columns, cut
from tallystick.pipeline.jobs.registry import TripSettings

SETTINGS = TripSettings()
S = 1_000_000


def columns(**given: Any) -> Columns:
    """Rows with what is given; `at` is in seconds."""
    at = np.asarray(given.pop("at"), np.float64)
    rows = {name: np.full(len(at), np.nan) for name in FIELDS}
    rows |= {name: np.asarray(values, np.float64) for name, values in given.items()}
    rows["us"] = (at * S).astype(np.int64)
    rows["offset"] = np.arange(len(at), dtype=np.float64)
    return rows


def of_fleet(fleet: Fleet) -> dict[str, Columns]:
    table = pa.Table.from_batches(list(fleet.batches())).to_pandas()
    names = ("speed_kmh", "odometer_km", "fuel_rate_lh", "latitude", "longitude")
    return {
        vin: columns(
            at=own.ts.astype("int64") / 1000, running=own.ignition, **{name: own[name].to_numpy() for name in names}
        )
        for vin, own in table.groupby("vin")
    }


@pytest.fixture(scope="module")
def fleet() -> tuple[Fleet, dict[str, Columns]]:
    fleet = Fleet(25, 2400, seed=3)
    return fleet, of_fleet(fleet)


def test_trips_are_those_that_really_happened(fleet: tuple[Fleet, dict[str, Columns]]) -> None:
    """Distance within a millimetre; idle time and fuel exactly the truth's, whose last row of an open trip counts."""
    simulated, vehicles = fleet
    truth = {(trip.vin, trip.start_ms * 1000): trip for trip in simulated.truth.trips}
    harsh = {(event.vin, event.start_ms * 1000): event.acceleration_ms2 for event in simulated.truth.harsh}
    closed = 0
    for vin, rows in vehicles.items():
        for trip in cut(rows, SETTINGS)[0]:
            really = truth.pop((vin, trip["start_us"]))
            assert trip["distance_km"] == pytest.approx(really.distance_km, abs=1e-6)
            for event in trip["events"]:
                assert event["acceleration_ms2"] == pytest.approx(harsh.pop((vin, event["start_us"])), abs=1e-4)
            if really.end_ms is not None:
                assert trip["end_us"] == really.end_ms * 1000
                assert trip["cut"] == "ignition"
                assert trip["idle_s"] == pytest.approx(really.idle_s, abs=1e-6)
                assert trip["fuel_l"] == pytest.approx(really.fuel_l, abs=1e-6)
                closed += not trip["is_open"]
    assert closed > 20
    assert (truth, harsh) == ({}, {})


def in_pieces(rows: Columns, pieces: int, rng: np.random.Generator, late_s: float) -> tuple[list[Any], list[Any], int]:
    """The closed and the open trips when rows come in so many pieces, out of order by up to `late_s`."""
    order = np.argsort(rows["us"] + rng.uniform(0, late_s * S, len(rows["us"])), kind="stable")
    cuts = np.sort(rng.integers(0, len(order), pieces - 1))
    kept: Columns = {name: values[:0] for name, values in rows.items()}
    closed, opened, late = [], [], 0
    for piece in np.split(order, cuts):
        if len(piece) + len(kept["us"]):
            trips, kept, lost = cut({name: np.append(kept[name], rows[name][piece]) for name in rows}, SETTINGS)
            closed += [trip for trip in trips if not trip["is_open"]]
            opened, late = [trip for trip in trips if trip["is_open"]], late + lost
    return closed, opened, late


def sparse(rows: Columns, rng: np.random.Generator) -> Columns:
    """Rows as a bus sends them: each says something else; and silences."""
    count = len(rows["us"])
    kind = rng.integers(0, 3, count)
    told = {"running": kind == 0, "speed_kmh": kind == 1, "odometer_km": kind == 1, "latitude": kind == 2}
    rows = {name: np.where(told[name], values, np.nan) if name in told else values for name, values in rows.items()}
    heard = (np.arange(count) // 400) % 5 != 4  # 400 s of 2,000 are silent
    return {name: values[heard] for name, values in rows.items()}


def test_in_pieces_and_late_the_trips_are_the_same(fleet: tuple[Fleet, dict[str, Columns]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for vin, whole in list(fleet[1].items())[:12]:
        for rows in (whole, sparse(whole, rng)):
            trips = cut(rows, SETTINGS)[0]
            closed, opened, late = in_pieces(rows, int(rng.integers(2, 12)), rng, SETTINGS.late_s)
            assert closed == [trip for trip in trips if not trip["is_open"]], vin
            assert opened == [trip for trip in trips if trip["is_open"]], vin
            assert late == 0


def test_what_comes_behind_the_watermark_is_counted_and_changes_nothing() -> None:
    rows = columns(at=[0, 10, 20, 500, 510], running=[1, 1, 0, 0, 0], speed_kmh=[0, 36, 0, 0, 0])
    (trip,), kept, late = cut(rows, SETTINGS)
    assert (trip["is_open"], trip["duration_s"], late) == (False, 20.0, 0)
    assert kept["us"].tolist() == [20 * S, 500 * S, 510 * S]
    again = columns(at=[15, 20, 511], running=[1, 1, 1], speed_kmh=[90, 90, 90])
    trips, _, late = cut({name: np.append(kept[name], again[name]) for name in kept}, SETTINGS)
    assert (trips, late) == ([], 2)  # one row is no trip yet


def test_a_silence_ends_a_trip_and_the_engine_does_and_a_day() -> None:
    rows = columns(at=[0, 300, 601, 700, 2000], speed_kmh=[36.0] * 5)
    first, second = cut(rows, SETTINGS)[0]
    assert [(trip["cut"], trip["start_us"] // S, trip["end_us"] // S, trip["is_open"]) for trip in (first, second)] == [
        ("gap", 0, 300, False),
        ("gap", 601, 700, False),
    ]
    assert (first["distance_km"], first["distance_by"]) == (pytest.approx(3.0), "speed")
    assert first["fuel_l"] is None
    assert first["line"] is None
    hours = columns(at=np.arange(0, 60 * 3600, 60), running=np.ones(3600))
    trips, kept, _ = cut(hours, SETTINGS)
    assert [(trip["cut"], trip["duration_s"], trip["is_open"]) for trip in trips[:2]] == [
        ("length", 24 * 3600 - 60, False)
    ] * 2
    assert len(kept["us"]) == 12 * 60 + 1
    assert trips[-1]["is_open"]


def test_an_open_trip_is_kept_whole_and_a_parked_vehicle_costs_a_row_or_two() -> None:
    at = np.arange(0, 4000, 10)
    _, kept, _ = cut(columns(at=at, running=np.ones(len(at))), SETTINGS)
    assert len(kept["us"]) == len(at)
    _, kept, _ = cut(columns(at=at, running=np.zeros(len(at))), SETTINGS)
    assert len(kept["us"]) == SETTINGS.late_s / 10 + 2


def test_harsh_events_are_runs_one_way_and_far_apart_rows_tell_nothing() -> None:
    speed = np.array([50, 50, 30, 10, 10, 30, 10, 10, 90.0])
    rows = columns(at=[0, 1, 2, 3, 4, 5, 6, 7, 17], running=np.ones(9), speed_kmh=speed)
    (trip,) = cut(rows, SETTINGS)[0]
    told = [
        (event["start_us"] // S, event["end_us"] // S, np.sign(event["acceleration_ms2"])) for event in trip["events"]
    ]
    assert told == [(1, 3, -1), (4, 5, 1), (5, 6, -1)]
    assert (trip["harsh_braking"], trip["harsh_acceleration"]) == (2, 1)
    assert trip["speed_max_kmh"] == 90.0


# --- lines ---


def test_a_degree_on_the_equator_is_111_195_metres() -> None:
    assert lines.steps_m(np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])) == pytest.approx([111_195.08] * 2, abs=0.01)


def test_a_simplified_line_keeps_ends_and_corners_within_the_tolerance() -> None:
    rng = np.random.default_rng(2)
    east = np.column_stack([np.linspace(0, 0.01, 200), np.zeros(200)])
    north = np.column_stack([np.full(200, 0.01), np.linspace(0, 0.01, 200)])
    points = np.vstack([east, north]) + rng.normal(0, 1e-5, (400, 2))  # about a metre
    found = lines.simplified(points, 10.0)
    assert 3 <= len(found) <= 5
    assert found[0].tolist() == points[0].tolist()
    assert found[-1].tolist() == points[-1].tolist()
    assert lines.simplified(points, 0.0).tolist() == points.tolist()
    same = np.zeros((5, 2))
    assert lines.simplified(same, 1.0).tolist() == same[:2].tolist()


def test_a_line_is_written_as_maps_read_it() -> None:
    text = lines.wkt(np.array([[-97.75, 30.25], [-97.7412345678, 30.2]]))
    assert text == "LINESTRING (-97.75 30.25, -97.741235 30.2)"
    assert lines.geometry(text) == {"type": "LineString", "coordinates": [[-97.75, 30.25], [-97.741235, 30.2]]}
    assert (lines.wkt(np.zeros((1, 2))), lines.geometry(None)) == (None, None)
    with pytest.raises(Malformed, match="POINT"):
        lines.geometry("POINT (1 2)")
