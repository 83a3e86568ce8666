"""The report: what the tables say and nothing else, whatever things are called; without Spark, without scripts."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from without import without

from tallystick.cli import main
from tallystick.errors import Misuse
from tallystick.fleet.schemas import schema
from tallystick.page.html import tag
from tallystick.page.svg import amount, curves, step_s
from tallystick.pipeline.jobs import audit_findings, audit_ledger, audit_parcels, campaign, ecu_health
from tallystick.pipeline.jobs.report_data import Tables
from tallystick.pipeline.jobs.warehouse import Warehouse

START = datetime(2026, 11, 14, 6, 0, tzinfo=UTC)
NODE, TOKEN, CAR, SPY = "9f" * 16, "b1" * 16, "0c" * 16, "66" * 16
HOSTILE = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>"
_TIME = pa.timestamp("us", "UTC")
TRIPS = pa.schema(
    [
        *(("vehicle_id", pa.string()), ("start_ts", _TIME), ("end_ts", _TIME), ("distance_km", pa.float64())),
        *(("idle_s", pa.float64()), ("fuel_l", pa.float64()), ("line", pa.string())),
        *(("harsh_braking", pa.int32()), ("harsh_acceleration", pa.int32())),
        (
            "events",
            pa.list_(
                pa.struct([("acceleration_ms2", pa.float64()), ("latitude", pa.float64()), ("longitude", pa.float64())])
            ),
        ),
    ]
)


def put(folder: Path, name: str, rows: list[dict[str, Any]], schema: pa.Schema, **facts: Any) -> None:
    place = folder / name / "batch=0"
    place.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), place / "part.parquet")
    (place / "_batch.json").write_text(json.dumps({"batch": 0, "rows": len(rows), **facts}))


def fill(folder: Path, name: str = "telemetry", vehicle: str = "car-1") -> None:
    """Ten minutes: a parcel of five rows each minute, anchored 7 s after sealing and read 3 s later."""
    folder.mkdir(parents=True, exist_ok=True)
    whose = {"format": 1, "instance": "1b" * 32, "topic": name, "token": TOKEN}
    (folder / "warehouse.json").write_text(json.dumps(whose))
    ledger, parcels = [], []
    for minute in range(10):
        time = START + timedelta(minutes=minute)
        entry = {"height": minute + 1, "time": time, "author": NODE, "token": TOKEN, "partition": 0, "count": 1}
        act = {**entry, "kind": "operation", "bytes": 98, "principal": CAR, "host": name}
        ledger += [
            {**entry, "index": 0, "kind": "anchor", "bytes": 61, "end": minute + 1},
            {**act, "index": 1, "operation": "write", "first": minute, "end": minute + 1, "acted": time},
            {
                **act,
                "index": 2,
                "operation": "read",
                "first": minute,
                "end": minute + 1,
                "acted": time + timedelta(seconds=3),
            },
        ]
        sealed = {"sealed": time - timedelta(seconds=7), "lane": "aa" * 16, "sequence": minute, "kind": "data"}
        place = {"token": TOKEN, "partition": 0, "offset": minute, "publisher": CAR}
        parcels.append({**place, **sealed, "rows": 5, "bytes": 1000})
    refused = {
        "kind": "operation",
        "bytes": 341,
        "principal": SPY,
        "operation": "write",
        "reason": name[:32],
        "count": 12,
    }
    ledger.append({**ledger[0], **refused, "index": 3, "first": 0, "end": 0})
    put(folder, "ledger", ledger, audit_ledger.SCHEMA)
    put(folder, "parcels", parcels, audit_parcels.SCHEMA)
    names = [
        {"identifier": TOKEN, "kind": "topic", "name": name},
        {"identifier": CAR, "kind": "principal", "name": vehicle},
    ]
    put(folder, "names", names, pa.schema([(field, pa.string()) for field in ("identifier", "kind", "name")]))
    finding = {
        "rule": "unauthorised",
        "severity": "warning",
        "principal": SPY,
        "name": vehicle,
        "token": TOKEN,
        "topic": name,
        "partition": 0,
        "first_time": START,
        "last_time": START + timedelta(minutes=1),
        "count": 12,
        "evidence": [{"height": 1, "index": 3}],
        "message": name,
        "next": vehicle,
    }
    head = {"height": 10, "time_ms": 1_800_000_000_000, "transactions": 31, "root": "5c" * 32}
    vouch = {"cosigners": [name], "vouched_by": f"witnesses cosigned this history: {name}"}
    put(folder, "findings", [finding], audit_findings.SCHEMA, **head, **vouch)
    trip = {
        "vehicle_id": vehicle,
        "start_ts": START,
        "end_ts": START + timedelta(minutes=9),
        "distance_km": 12.5,
        "idle_s": 60.0,
        "fuel_l": 1.0,
        "harsh_braking": 1,
        "harsh_acceleration": 0,
        "events": [{"acceleration_ms2": -4.0, "latitude": 30.28, "longitude": -97.74}],
        "line": "LINESTRING (-97.75 30.27, -97.74 30.28, -97.73 30.27)",
    }
    put(folder, "trips", [trip], TRIPS)


def fill_updates(folder: Path, name: str = "acme/brake-mk2/2.0") -> None:
    """Two releases, a campaign whose report holds and one whose does not, three ECUs of two vehicles."""
    images = {"1a" * 32: name, "2b" * 32: f"{name}, withdrawn"}
    released = [{"image": image, "target": target, "height": 7} for image, target in images.items()]
    released[0]["withdrawn"], released[1]["withdrawn"] = 0, 9
    put(folder, "releases", released, campaign.RELEASE_COLUMNS)
    told = {"images": [name], "phase": 1, "phases": 2, "told_succeeded": 4, "told_failed": 0}
    counts = [{"succeeded": 4, "failed": 0, "agrees": True}, {"succeeded": 1, "failed": 3, "agrees": False}]
    states = [("c1" * 16, "done", counts[0]), ("c2" * 16, "running", counts[1])]
    rows = [{"campaign": one, "status": status, **told, **count} for one, status, count in states]
    put(folder, "campaigns", rows, campaign.CAMPAIGN_COLUMNS)
    runs = [("aa" * 16, "brakes", "1a" * 32), ("bb" * 16, "brakes", "3c" * 32), ("bb" * 16, "door", None)]
    ecus = [{"vehicle": one, "ecu": ecu, "image": image, "hardware": name} for one, ecu, image in runs]
    put(folder, "ecus", ecus, ecu_health.EXAMINED)
    lie = {"rule": "campaign-miscounted", "severity": "alarm", "count": 6, "evidence": [{"height": 44, "index": 0}]}
    put(folder, "campaign_findings", [{**lie, "message": name, "next": name}], audit_findings.SCHEMA)
    ill = {"rule": "image-unreleased", "severity": "alarm", "count": 1, "evidence": []}
    put(folder, "ecu_findings", [{**ill, "message": name, "next": name}], audit_findings.SCHEMA)


class Seen(HTMLParser):
    """A page as a browser reads it: elements, attributes, text; and whether it closes what it opens."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def report(warehouse: Path, out: Path) -> Seen:
    assert main.run(["pipeline", "run", "report", "--warehouse", str(warehouse), "--out", str(out)]) == 0
    return Seen(out.read_text(encoding="utf-8"))


def test_the_page_says_what_the_tables_say(tmp_path: Path) -> None:
    fill(tmp_path / "tables")
    seen = report(tmp_path / "tables", tmp_path / "report.html")
    for told in (
        *("50", "rows sealed", "9.8 KiB", "in 10 parcels", "12.5 km", "1 trip of 1 vehicle", "31 entries"),
        *("unauthorised", "car-1", "1/3", "0 alarms, 1 warning, 0 notices", "witnesses cosigned this history"),
        *("harsh braking", "sealed to anchored", "7 s", "3 s", "5c5c"),
    ):
        assert told in seen.text, told
    assert "svg" in seen.elements
    assert {"polyline", "circle", "rect"} <= set(seen.elements)


def test_updates_have_a_section_where_their_jobs_were_run(tmp_path: Path) -> None:
    fill(tmp_path / "tables")
    assert "Updates" not in report(tmp_path / "tables", tmp_path / "report.html").text
    fill_updates(tmp_path / "tables")
    seen = report(tmp_path / "tables", tmp_path / "report.html")
    for told in (
        *("2 releases, 2 campaigns; 3 ECUs of 2 vehicles; 2 findings about them", "1 succeeded, 3 failed", "disagree"),
        *(
            "withdrawn at 9",
            "3c3c3c3c3c3c3c3c…, no release",
            "an ECU never heard",
            "campaign-miscounted",
            "image-unreleased",
        ),
        *("2 alarms, 1 warning, 0 notices", "44/0"),
    ):
        assert told in seen.text, told


def test_intrusions_have_a_section_where_detect_was_run(tmp_path: Path) -> None:
    fill(tmp_path / "tables")
    assert "Intrusions" not in report(tmp_path / "tables", tmp_path / "report.html").text
    times = {"ts_first": START, "ts_last": START + timedelta(seconds=2)}
    about = {"vin": "WTALLY1", "can_id": 0x2A4, "check": "jump", "signal": "Vehicle.Speed", "profile": "ab" * 32}
    band = {"seen": 240.0, "low": 10.0, "high": None, "strength": 7.25}
    alert = {**times, **about, **band, "frames": 41, "first_frame": 7, "last_frame": 99}
    counts = {"frames": 12_000, "late": 3, "unscored": 500, "open": 0, "named": {"unscored": ["<b>WTALLY2"]}}
    put(tmp_path / "tables", "alerts", [alert], schema("alerts").arrow, **counts)
    seen = report(tmp_path / "tables", tmp_path / "report.html").text
    for told in (
        "1 alert on 1 vehicle, in 12 k frames",
        "500 frames of vehicles without",
        "(<b>WTALLY2)",
        "3 that came late",
    ):
        assert told in seen, told
    for told in ("WTALLY1", "2a4", "Vehicle.Speed", "jump", "240", "10 to –", "7.2", "41"):
        assert told in seen, told


def test_lag_and_traffic_are_counted_right(tmp_path: Path) -> None:
    fill(tmp_path / "tables")
    tables = Tables(Warehouse(tmp_path / "tables"))
    lag, traffic, ledger = tables.lag(), tables.traffic(), tables.ledger()
    assert lag is not None
    assert traffic is not None
    assert ledger is not None
    assert [(count, median, most) for _, count, median, _, most in lag.steps] == [(10, 7.0, 7.0), (10, 3.0, 3.0)]
    assert (traffic.rows, traffic.parcels, traffic.bytes, traffic.publishers) == (50, 10, 10_000, 1)
    assert sum(traffic.bins.values["rows"]) == 50
    assert (ledger.growth.values["entries"][-1], ledger.growth.values["bytes"][-1]) == (31, ledger.bytes)
    assert ledger.topics == [("telemetry", 10.0)]
    assert ledger.reasons == [("telemetry", 12.0)]


def test_a_hostile_name_stays_a_name(tmp_path: Path) -> None:
    """Topic, vehicle, reason, message, witness: all of them are called like an attack."""
    fill(tmp_path / "plain")
    fill_updates(tmp_path / "plain")
    fill(tmp_path / "tables", HOSTILE, HOSTILE)
    fill_updates(tmp_path / "tables", HOSTILE)
    plain = report(tmp_path / "plain", tmp_path / "plain.html")
    seen = report(tmp_path / "tables", tmp_path / "report.html")
    assert HOSTILE in seen.text
    assert set(seen.elements) == set(plain.elements)
    assert len(seen.elements) == len(plain.elements)
    assert {name for name, _ in seen.attributes} == {name for name, _ in plain.attributes}
    assert not [name for name, _ in seen.attributes if name.startswith("on")]


def test_without_escaping_the_name_would_run(tmp_path: Path) -> None:
    fill(tmp_path / "tables", HOSTILE, HOSTILE)
    out = tmp_path / "report.html"
    with without("escaping in the report"):
        assert main.run(["pipeline", "run", "report", "--warehouse", str(tmp_path / "tables"), "--out", str(out)]) == 0
    assert "<script>alert('x')</script>" in out.read_text()
    assert "script-src" not in out.read_text()  # and yet the policy's default lets none run
    assert "default-src 'none'" in out.read_text()


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    fill(tmp_path / "tables")
    seen = report(tmp_path / "tables", tmp_path / "report.html")
    assert not {"script", "link", "img", "iframe", "object"} & set(seen.elements)
    assert not [value for name, value in seen.attributes if name in ("src", "href") and not value.startswith("#")]
    assert "url(" not in (tmp_path / "report.html").read_text()


def test_what_is_missing_is_said_with_the_command_that_makes_it(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "warehouse.json").write_text(json.dumps({"format": 1, "instance": "1b" * 32}))
    seen = report(folder, tmp_path / "report.html")
    assert seen.text.count("tally pipeline run audit") == 5
    assert "tally pipeline run trips" in seen.text
    assert main.run(["pipeline", "run", "report", "--warehouse", str(tmp_path / "nowhere")]) == 2


def test_no_plot_is_empty_without_a_word(tmp_path: Path) -> None:
    """A padded topic says neither times nor rows; a topic may hold no trip; a single value is a dash, not nothing."""
    folder = tmp_path / "tables"
    fill(folder)
    for name in ("parcels", "trips"):
        shutil.rmtree(folder / name)
    place = {"token": TOKEN, "partition": 0, "offset": 0, "publisher": CAR, "lane": "aa" * 16, "sequence": 0}
    put(folder, "parcels", [{**place, "kind": "data", "bytes": 1000}], audit_parcels.SCHEMA)
    put(folder, "trips", [], TRIPS)
    seen = report(folder, tmp_path / "report.html")
    assert "The topic is padded" in seen.text
    assert "Sealed bytes" not in seen.text
    assert "hold no trip yet" in seen.text
    assert 'points="0.0,0.0 24.0,0.0"' in curves([0.0], {"x": [100.0]})


def test_an_unbelievable_ledger_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    fill(folder)
    facts = folder / "findings" / "batch=0" / "_batch.json"
    facts.write_text(json.dumps({"batch": 0, "rows": 1}))
    assert "did not believe the ledger" in report(folder, tmp_path / "report.html").text


def test_a_damaged_table_is_named_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Zero bytes, as after a power cut, and half a file."""
    folder = tmp_path / "tables"
    fill(folder)
    part = folder / "trips" / "batch=0" / "part.parquet"
    whole = part.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2]):
        part.write_bytes(damaged)
        for command in (["run", "report"], ["export", "--out", str(tmp_path / "trips.geojson")]):
            assert main.run(["pipeline", *command, "--warehouse", str(folder)]) == 2
            shown = capsys.readouterr().err
            assert "a table is damaged: " in shown
            assert str(part) in shown
            assert "hint: restore the batch from a copy" in shown
            assert len(shown.splitlines()) == 2


def test_a_batch_that_lost_a_part_is_not_fewer_rows(tmp_path: Path) -> None:
    """Which Spark would make of it: it passes over files of no bytes."""
    fill(tmp_path)
    table = Warehouse(tmp_path).table("trips")
    table.check(0)
    part = table.place(0) / "part.parquet"
    part.write_bytes(b"")
    with pytest.raises(Misuse, match="a table is damaged"):
        table.read(None)  # type: ignore[arg-type]
    part.unlink()
    with pytest.raises(Misuse, match="1 rows were written, 0 are there"):
        table.read(None)  # type: ignore[arg-type]


def test_numbers_for_people() -> None:
    shown = [amount(value) for value in (0, 999, 1234, 12_345, 1_234_567)]
    assert shown == ["0", "999", "1,234", "12.3 k", "1.2 M"]
    assert [amount(value, "bytes") for value in (10, 2048, 5 << 20)] == ["10 B", "2 KiB", "5 MiB"]
    assert [amount(value, "seconds") for value in (0.25, 47, 180, 9000)] == ["0.25 s", "47 s", "3 min", "2.5 h"]
    assert (step_s(0, 30), step_s(0, 3600), step_s(0, 86_400 * 3)) == (1, 120, 7200)


def test_tags_escape_what_is_no_markup() -> None:
    assert tag("b", "<i>", tag("i", "&"), title='"') == '<b title="&quot;">&lt;i&gt;<i>&amp;</i></b>'
