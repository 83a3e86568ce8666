"""Findings: what readers, checkpoints and an audit left, how each is known, and what is wrong with what was kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from console_contents import audited
from console_stack import Browser, ConsoleStack, way
from stack import wait_until

from tallystick import wire
from tallystick.client.inspect import look
from tallystick.client.reader import Finding
from tallystick.console.viewer import Viewer
from tallystick.errors import Malformed
from tallystick.pipeline.jobs.audit_findings import SCHEMA

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def home(viewer: Viewer) -> Iterator[Path]:
    """The reader's, whose evidence is gone when the test ends."""
    home = viewer.identity.home
    yield home
    for file in [*home.glob("evidence/*"), *home.glob("ledger/evidence-*")]:
        file.unlink()


@pytest.fixture
def warehouse(tmp_path: Path, viewer: Viewer) -> Iterator[Path]:
    viewer.warehouse = tmp_path / "tables"
    yield viewer.warehouse
    viewer.warehouse = None


def write(warehouse: Path, instance: bytes, *rows: dict[str, Any]) -> Path:
    """A warehouse with these findings, as the audit writes them. Returns the file of rows."""
    batch = warehouse / "findings" / "batch=0"
    batch.mkdir(parents=True)
    (warehouse / "warehouse.json").write_text(json.dumps({"format": 1, "instance": instance.hex()}))
    (batch / "_batch.json").write_text(json.dumps({"batch": 0, "rows": len(rows)}))
    pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), batch / "part.parquet")
    return batch / "part.parquet"


def test_what_a_reader_kept_is_told_and_its_evidence_is_in_words(
    console: Browser, world: ConsoleStack, home: Path
) -> None:
    header = b"\x01" * 70
    kept = Finding("altered", "body does not match", world.token, 0, 2, b"\x07" * 16, evidence=(header,)).keep(home)
    listed = console.get("findings").text
    assert "body does not match" in listed
    assert "partition 0, offset 2" in listed
    assert f"topics/{world.token.hex()}" in listed
    assert 'class="mark alarm"' in listed
    assert "a reader of this identity" in listed
    address = listed.partition("findings/home-")[2].partition('"')[0]
    page = console.get(f"findings/home-{address}").text
    assert "70 bytes" in page
    assert f"tally inspect {kept}" in page
    said = console.get(f"findings/home-{address}/file")
    assert said.body == kept.read_bytes()
    assert "attachment" in said.headers["content-disposition"]


def test_filters_choose_by_severity_reason_and_topic(console: Browser, world: ConsoleStack, home: Path) -> None:
    Finding("altered", "a grave one", world.token, 0, 2).keep(home)
    Finding("gap", "an open one", bytes(16), 0, 2).keep(home)
    both = console.get("findings").text
    assert both.index("a grave one") < both.index("an open one")
    queries: list[dict[str, Any]] = [{"severity": "alarm"}, {"reason": "altered"}, {"topic": "brakes"}]
    for query in [*queries, {"topic": world.token.hex()}]:
        text = console.get("findings", **query).text
        assert ("a grave one" in text, "an open one" in text) == (True, False), query
    assert "No finding fits" in console.get("findings", severity="warning").text
    assert console.get("findings", skip="x").status == 400


def test_contradictions_of_checkpoints_count_as_checked_where_both_signatures_hold(
    console: Browser, viewer: Viewer, home: Path
) -> None:
    head, there = viewer.mirror.at.head, home / "ledger" / "evidence-00"
    assert head is not None
    wait_until(lambda: viewer.mirror.follow(way(viewer.session)))
    newer = viewer.mirror.at.head
    assert newer is not None
    there.write_bytes(wire.encode(["rollback", newer.note, head.note]))
    listed = console.get("findings").text
    assert "both signatures hold" in listed
    address = listed.partition("findings/memory-")[2].partition('"')[0]
    assert "contradiction of checkpoints" in console.get(f"findings/memory-{address}").text
    for other in (b"x" * 300, head.note):  # no checkpoint, and no other one
        there.write_bytes(wire.encode(["rollback", head.note, other]))
        listed = console.get("findings").text
        assert "rollback" in listed
        assert "both signatures hold" not in listed


def test_the_audit_is_told_by_the_warehouse_and_leads_to_the_ledger(
    console: Browser, world: ConsoleStack, warehouse: Path
) -> None:
    places = [{"height": 3, "index": 0}, {"height": 4, "index": None}]
    found = audited(token=world.token.hex(), principal=world.car.identity.principal.hex(), evidence=places)
    write(warehouse, world.reader.identity.instance, found)
    listed = console.get("findings").text
    assert "sent again, 3 times" in listed
    assert "ledger/entries/3/0" in listed
    assert "ledger/blocks/4" in listed
    assert "the word of the warehouse" in listed
    assert "2026-05-17 00:00:00 UTC" in listed
    assert "not all is here" not in listed
    address = listed.partition("findings/audit-")[2].partition('"')[0]
    assert "look" in console.get(f"findings/audit-{address}").text
    said = console.get(f"findings/audit-{address}/file")
    assert (said.status, "no file" in said.text) == (400, True)


@pytest.mark.parametrize("what", ["rows", "columns", "facts", "whose", "nothing", "no audit"])
def test_a_damaged_warehouse_is_a_sentence_and_the_rest_of_the_page_stays(
    console: Browser, world: ConsoleStack, home: Path, warehouse: Path, what: str
) -> None:
    Finding("altered", "still there", world.token, 0, 2).keep(home)
    if what != "nothing":
        file = write(warehouse, world.reader.identity.instance, audited())
        facts = warehouse / "warehouse.json"
        match what:
            case "rows":
                file.write_text("junk")
            case "columns":
                pq.write_table(pa.table({"rule": [7]}), file)
            case "facts":
                facts.write_text("junk")
            case "whose":
                facts.write_text('{"format": 1, "instance": "00"}')
            case "no audit":
                shutil.rmtree(warehouse / "findings")
    said = console.get("findings")
    assert said.status == 200
    assert "still there" in said.text
    told = {"whose": "another instance", "nothing": "no warehouse", "no audit": "no audit"}
    assert told.get(what, "damaged") in said.text
    assert "not all is here" in said.text


def test_a_damaged_file_of_evidence_is_named(console: Browser, home: Path) -> None:
    (home / "evidence").mkdir(exist_ok=True)
    (home / "evidence" / "altered-0").write_bytes(b"junk")
    said = console.get("findings")
    assert (said.status, "altered-0 is damaged" in said.text) == (200, True)


def test_hostile_words_are_escaped(console: Browser, world: ConsoleStack, home: Path, warehouse: Path) -> None:
    Finding("altered", EVIL, world.token, 0, 2, evidence=(EVIL.encode(),)).keep(home)
    write(
        warehouse,
        world.reader.identity.instance,
        audited(rule=EVIL, severity=EVIL, message=EVIL, next=EVIL, name=EVIL, topic=EVIL, token=EVIL, principal=EVIL),
    )
    listed = console.get("findings").text
    assert "<script>" not in listed.replace('<script src="', "")
    assert "&lt;script&gt;" in listed
    for source in ("home", "audit"):
        address = listed.partition(f"findings/{source}-")[2].partition('"')[0]
        assert "<script>alert" not in console.get(f"findings/{source}-{address}").text


def test_a_page_is_bounded_however_much_was_found(console: Browser, world: ConsoleStack, home: Path) -> None:
    for offset in range(120):
        Finding("altered", "long " * 2000, world.token, 0, offset).keep(home)
    first = console.get("findings")
    assert len(first.body) < 150_000
    assert "skip=50" in first.text
    last = console.get("findings", skip=100).text
    assert last.count('class="mark alarm"') == 20
    assert "skip=50" in last


def test_what_is_not_there_is_a_sentence(console: Browser) -> None:
    said = console.get("findings/home-0000")
    assert (said.status, "No finding" in said.text) == (400, True)


@pytest.mark.parametrize(
    "finding",
    [
        Finding("altered", "it was", b"\x01" * 16, 0, 2, b"\x02" * 16, b"\x03" * 16, 4, (b"one", b"two")),
        Finding("silent", "nobody spoke", b"\x01" * 16, 0),
        Finding.retired(b"\x01" * 16, 0, 3, 9),
    ],
)
def test_a_kept_finding_is_read_as_it_was(finding: Finding) -> None:
    assert Finding.decode(finding.encode()) == finding


@pytest.mark.parametrize("wrong", [[], [2], [1, "a", "b", b"c", 0, None, b"", b"", None, ["no bytes"]], "junk"])
def test_what_is_no_finding_is_malformed(wrong: object) -> None:
    with pytest.raises(Malformed):
        Finding.decode(wire.encode(wrong))


def test_a_stranger_may_look_at_a_contradiction(viewer: Viewer) -> None:
    head = viewer.mirror.at.head
    assert head is not None
    kind, facts = look(wire.encode(["split-view", head.note, head.note]))
    assert (kind, facts["reason"], facts["shown"]["size"]) == ("contradiction of checkpoints", "split-view", head.size)
    assert look(wire.encode(["split-view", head.note, 7, b"\x01" * 32]))[1]["somebody_was_shown"]["size"] == 7
    with pytest.raises(Malformed):
        look(wire.encode(["split-view", b"junk", b"junk"]))
