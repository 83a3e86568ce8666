"""*Map and trips*: what the tables say and no more, bounded, with a sentence for whatever else a warehouse can be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from console_contents import START, TOKEN, trip
from parts_world import HOSTILE, PartsWorld, put, visit_of

from tallystick.console.pages import trips
from tallystick.console.viewer import Viewer
from tallystick.errors import Misuse
from tallystick.pipeline.jobs.rows import TIME, TableRows

_EVENTS = pa.list_(pa.struct([("start_ts", TIME), ("end_ts", TIME), *trips._EVENT[1:]]))
TRIPS = pa.schema([one if one.name != "events" else pa.field("events", _EVENTS) for one in trips._TRIP])
SIGNALS = pa.schema([("ts", TIME), ("vehicle_id", pa.string()), *trips._ORIGIN])


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    with PartsWorld(tmp_path_factory.mktemp("trips")).viewing() as viewer:
        yield viewer


@pytest.fixture
def warehouse(viewer: Viewer, tmp_path: Path) -> Path:
    viewer.warehouse = tmp_path / "warehouse"
    viewer.warehouse.mkdir()
    whose = {"format": 1, "instance": viewer.identity.instance.hex(), "topic": "telemetry", "token": TOKEN}
    (viewer.warehouse / "warehouse.json").write_text(json.dumps(whose))
    return viewer.warehouse


@pytest.fixture
def shown(viewer: Viewer) -> Callable[..., str]:
    return lambda **query: trips.show_trips(visit_of(viewer, "trips", **query))


def one(viewer: Viewer, batch: object, row: object) -> str:
    return trips.show_trip(visit_of(viewer, f"trips/{batch}/{row}", {"batch": str(batch), "row": str(row)}))


def test_trips_are_told_newest_first_and_filtered_by_the_address(warehouse: Path, shown: Callable[..., str]) -> None:
    put(warehouse, "trips", [trip(0), trip(2, "car-2")], TRIPS)
    put(warehouse, "trips", [trip(1, "car-3")], TRIPS, batch=1)
    page = shown()
    assert "told by the warehouse&#x27;s tables" in page
    assert page.index("car-2</a>") < page.index("car-3</a>") < page.index("car-1</a>")
    assert "trips/1/0" in page
    assert "car-2</a>" not in shown(vehicle_id="car-1")
    assert "1 trip of topic" in shown(vehicle_id="car-1")
    assert "car-1</a>" not in shown(**{"from": "2026-11-14 07:00"})
    assert "car-2</a>" not in shown(to="2026-11-14T08:00+00:00")
    with pytest.raises(Misuse, match="a time expected"):
        shown(to="yesterday")
    with pytest.raises(Misuse, match="skip: a number expected"):
        shown(skip="²")


def test_a_trip_names_the_records_that_it_came_from(warehouse: Path, viewer: Viewer) -> None:
    put(warehouse, "trips", [trip(0, events=1)], TRIPS)
    where = {"vehicle_id": "car-1", "_partition": 2, "_publisher": "0c" * 16}
    rows = [{**where, "ts": START + timedelta(minutes=n), "_offset": n // 10, "_leaf": n % 10} for n in range(40)]
    rows.append({**rows[3], "vehicle_id": "car-9", "_offset": 77})
    put(warehouse, "signals", rows, SIGNALS)
    page = one(viewer, 0, 0)
    assert f"topics/{TOKEN}/records/2/0/0" in page
    assert f"topics/{TOKEN}/records/2/2/0" in page, "the row at its end belongs to it"
    assert "records/2/3" not in page
    assert "records/2/77" not in page
    assert "harsh braking" in page


def test_open_trips_are_marked(warehouse: Path, viewer: Viewer, shown: Callable[..., str]) -> None:
    place = put(warehouse, "trips", [trip(0)], TRIPS)
    put(place, "_open", [trip(5, "car-5")], TRIPS)
    os.rename(place / "_open" / "batch=0" / "part.parquet", place / "_open" / "part.parquet")
    assert "trips/open/0" in shown()
    assert "not yet ended" in shown()
    assert "not ended yet" in one(viewer, "open", 0)


def test_names_are_escaped_and_a_page_is_bounded(warehouse: Path, viewer: Viewer, shown: Callable[..., str]) -> None:
    put(warehouse, "trips", [trip(n, "&" * 40, points=200, events=3) for n in range(trips.TRACKS_MAX + 9)], TRIPS)
    page = shown()
    assert len(page) < 140_000
    assert f"{trips.TRACKS_MAX} of {trips.TRACKS_MAX + 9} tracks" in page
    assert "one point in 12" in page
    assert "100 of 450 harsh events as dots" in page
    assert "skip=50" in page
    put(warehouse, "trips", [trip(999, HOSTILE + "x" * 1_000_000, cut="<script>" * 100_000)], TRIPS, batch=1)
    for page in (shown(), one(viewer, 1, 0)):
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert" in page
        assert len(page) < 150_000


@pytest.mark.parametrize(
    "odd",
    [
        {"line": "LINESTRING (13 52, 14)"},
        {"line": "<script>"},
        {"line": "LINESTRING (999999 52, 13 1e999)"},
        {"line": "LINESTRING (nan nan, nan nan)"},
        {"line": None, "events": None, "distance_km": float("nan"), "duration_s": float("nan"), "vehicle_id": None},
        {"start_ts": None, "end_ts": None, "duration_s": float("inf"), "rows": None},
        {"start_ts": (1 << 63) - 1, "end_ts": -(1 << 62)},
        {"duration_s": -1.0, "distance_km": 1e300, "events": [{"latitude": float("nan"), "longitude": 200.0}]},
    ],
)
def test_odd_values_are_shown_as_they_are(
    odd: dict[str, Any], warehouse: Path, viewer: Viewer, shown: Callable[..., str]
) -> None:
    put(warehouse, "trips", [trip(0, events=1) | odd], TRIPS)
    put(warehouse, "signals", [], SIGNALS)
    assert "Map and trips" in shown()
    assert "Trip of" in one(viewer, 0, 0)


def test_what_is_wrong_with_a_warehouse_is_a_sentence(
    warehouse: Path, viewer: Viewer, shown: Callable[..., str]
) -> None:
    assert "tally pipeline run trips" in shown()
    assert trips.PAGES[0].is_there(visit_of(viewer, "trips")), "it says what is to be run"
    place = put(warehouse, "trips", [trip(0), trip(1)], TRIPS)
    part, facts = place / "part.parquet", place / "_batch.json"
    whole = part.read_bytes()

    part.write_bytes(whole[:-9])
    with pytest.raises(Misuse, match="a table is damaged"):
        shown()
    part.write_bytes(whole[:200] + bytes(400) + whole[600:])
    with pytest.raises(Misuse, match=r"damaged|not what its job writes"):
        shown()
    part.unlink()
    with pytest.raises(Misuse, match="2 rows were written, 0 are there"):
        shown()
    part.write_bytes(whole)
    for text in ("", "[]", "{}", '{"rows": "2"}', '{"rows": 3}'):
        facts.write_text(text)
        with pytest.raises(Misuse):
            shown()
    shutil.rmtree(place)
    put(warehouse, "trips", [{"vehicle_id": "car-1"}], pa.schema([("vehicle_id", pa.string())]))
    with pytest.raises(Misuse, match="not what its job writes"):
        shown()
    shutil.rmtree(place)
    put(
        warehouse,
        "trips",
        [{"vehicle_id": "x"} | dict.fromkeys(TRIPS.names, "x")],
        pa.schema([(n, pa.string()) for n in TRIPS.names]),
    )
    with pytest.raises(Misuse, match="not what its job writes"):
        shown()
    shutil.rmtree(place)
    put(warehouse, "trips", [trip(0)], TRIPS, batch=4)
    with pytest.raises(Misuse, match="batch 0 is missing"):
        TableRows(warehouse, viewer.identity.instance).read("trips", trips._LIST)


def test_a_warehouse_of_others_is_not_shown(warehouse: Path, viewer: Viewer, shown: Callable[..., str]) -> None:
    put(warehouse, "trips", [trip(0)], TRIPS)
    for row in ("1", "-1", "²", "9" * 19, "x"):
        with pytest.raises(Misuse, match="no row"):
            one(viewer, 0, row)
    with pytest.raises(Misuse, match="no row"):
        one(viewer, "../0", 0)
    (warehouse / "warehouse.json").write_text(json.dumps({"format": 1, "instance": "ff" * 32}))
    with pytest.raises(Misuse, match="the warehouse of another instance"):
        shown()
    (warehouse / "warehouse.json").unlink()
    with pytest.raises(Misuse, match="no warehouse"):
        shown()
    viewer.warehouse = None
    assert "No warehouse was given" in shown()
    assert not any(page.is_there(visit_of(viewer, "trips")) for page in trips.PAGES if page.in_menu)
