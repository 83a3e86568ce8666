"""*Alerts*: what detect found as `tally detect explain` tells it, drawn from the frames, with the records beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from console_contents import CAR, FACTS, START, TOKEN, alert
from parts_world import HOSTILE, PartsWorld, put, visit_of

from tallystick.console.pages import alerts
from tallystick.console.viewer import Viewer
from tallystick.errors import Misuse

FRAMES = pa.schema([*alerts._FRAME, ("vin", pa.string()), ("_publisher", pa.string())])


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    with PartsWorld(tmp_path_factory.mktemp("alerts")).viewing() as viewer:
        yield viewer


@pytest.fixture
def warehouse(viewer: Viewer, tmp_path: Path) -> Path:
    viewer.warehouse = tmp_path
    whose = {"format": 1, "instance": viewer.identity.instance.hex(), "topic": "can", "token": TOKEN}
    (tmp_path / "warehouse.json").write_text(json.dumps(whose))
    return tmp_path


@pytest.fixture
def shown(viewer: Viewer) -> Callable[..., str]:
    return lambda **query: alerts.show_alerts(visit_of(viewer, "alerts", **query))


def one(viewer: Viewer, row: object = 0) -> str:
    return alerts.show_alert(visit_of(viewer, f"alerts/0/{row}", {"batch": "0", "row": str(row)}))


def test_alerts_are_filtered_by_vehicle_check_and_signal(warehouse: Path, shown: Callable[..., str]) -> None:
    rows = [alert(), alert(1, vin="WVW43", check="jump"), alert(2, signal="Vehicle.Speed", check="silence")]
    put(warehouse, "alerts", rows, alerts._ALERT, **FACTS)
    assert "3 alerts in 5,000 frames" in shown()
    assert shown().index("Vehicle.Speed") < shown().index("WVW43") < shown().index("alerts/0/0")
    assert "1 alert in" in shown(vin="WVW43")
    assert "1 alert in" in shown(check="jump")
    assert "1 alert in" in shown(signal="Vehicle.Speed")
    assert "No alerts fit." in shown(check="jump", signal="Vehicle.Speed")
    assert 'value="silence"' in shown(check="jump"), "another check can be chosen"


def test_frames_that_nobody_scored_are_said(warehouse: Path, shown: Callable[..., str]) -> None:
    put(warehouse, "alerts", [], alerts._ALERT, **FACTS | {"late": 3, "unscored": 70})
    assert "70 of vehicles without a profile, 3 too late" in shown()


def test_one_alert_in_words_with_its_records_and_the_command(warehouse: Path, viewer: Viewer) -> None:
    put(warehouse, "alerts", [alert(n, check="rate") for n in range(3)], alerts._ALERT, **FACTS)
    page = one(viewer, 2)
    assert "more frames in a tenth of a second than ever" in page
    assert "seen 31 frames, expected at most 12" in page
    assert f"topics/{TOKEN}/records/0/7/3" in page
    assert f"topics/{TOKEN}/records/0/8/1" in page
    assert "tally detect explain 3 --alerts" in page
    assert "told by the warehouse" in page
    assert "bronze has" not in page


@pytest.mark.parametrize(
    ("check", "drawn"),
    [
        ("rate", "expected at most"),
        ("silence", "us between frames"),
        ("schedule", "us between frames"),
        ("unknown", "frames in a tenth of a second"),
        ("jump", "frames in a tenth of a second"),
    ],
)
def test_the_frames_around_an_alert_are_drawn(check: str, drawn: str, warehouse: Path, viewer: Viewer) -> None:
    put(warehouse, "alerts", [alert(check=check)], alerts._ALERT, **FACTS)
    frame = {"vin": "WVW42", "can_id": 0x1A0, "bus": 1, "_publisher": CAR, "_partition": 0, "_offset": 7}
    frames = [{**frame, "ts": START + timedelta(milliseconds=20 * n), "_leaf": n} for n in range(100)]
    others = [{**one, "bus": 2, "_leaf": 100 + n} for n, one in enumerate(frames)]
    strangers = [{**one, "_publisher": "66" * 16} for one in frames]
    put(warehouse, "bronze", [*frames, *others, *strangers], FRAMES)
    page = one(viewer)
    assert drawn in page
    assert "<polyline" in page
    if check in ("jump", "unknown"):
        assert "<span>5</span>" in page, "of one bus, and of one publisher"


def test_hostile_rows_are_escaped_and_cut(warehouse: Path, viewer: Viewer, shown: Callable[..., str]) -> None:
    named: dict[str, Any] = dict.fromkeys(("vin", "signal", "profile", "_publisher"), HOSTILE + "x" * 100_000)
    put(warehouse, "alerts", [alert(**named), alert(check=HOSTILE + "x" * 100_000)], alerts._ALERT, **FACTS)
    for page in (shown(), one(viewer)):
        assert "<script>alert" not in page
        assert "&lt;script&gt;" in page
        assert len(page) < 50_000
    with pytest.raises(Misuse, match="is unknown here"):
        one(viewer, 1)


@pytest.mark.parametrize(
    "odd", [{"ts_first": (1 << 63) - 1}, {"ts_last": -(1 << 62)}, {"vin": None}, {"check": None}, {"can_id": None}]
)
def test_rows_that_are_no_alert_are_named(
    odd: dict[str, Any], warehouse: Path, viewer: Viewer, shown: Callable[..., str]
) -> None:
    put(warehouse, "alerts", [alert(**odd)], alerts._ALERT, **FACTS)
    assert "1 alert in" in shown()
    with pytest.raises(Misuse):
        one(viewer)


def test_nan_and_nothing_are_shown(warehouse: Path, viewer: Viewer, shown: Callable[..., str]) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("seen", "low", "high", "_partition", "_offset", "_leaf", "_publisher"))
    row = alert(**nothing, strength=float("nan"), can_id=-1)
    put(warehouse, "alerts", [row], alerts._ALERT, **FACTS)
    put(warehouse, "bronze", [], FRAMES)
    assert "nan" in shown()
    assert "not known" in one(viewer)


def test_a_warehouse_without_alerts_and_one_that_is_damaged(
    warehouse: Path, viewer: Viewer, shown: Callable[..., str]
) -> None:
    [menu] = [page for page in alerts.PAGES if page.in_menu]
    assert "tally pipeline run detect" in shown()
    assert not menu.is_there(visit_of(viewer, "alerts"))
    place = put(warehouse, "alerts", [alert()], alerts._ALERT)  # without counts
    assert menu.is_there(visit_of(viewer, "alerts"))
    with pytest.raises(Misuse, match="not what its job writes"):
        shown()
    shutil.rmtree(place)
    place.mkdir()
    with pytest.raises(Misuse, match="damaged"):
        shown()
    viewer.warehouse = None
    assert "tally console --warehouse" in shown()
