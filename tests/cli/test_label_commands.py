"""`tally topic labels` and `tally subscribe --interest`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Fleet, done, refused
from makers import World, entropy, rows

from tallystick.trust.permit import Operation


@pytest.fixture(scope="module")
def topic(fleet: Fleet) -> str:
    name = fleet.topic("labelled-drives", "vin string, seq int64, speed float32")
    values = [{"vin": "V", "seq": number, "speed": 20.0 + 100 * (number % 2)} for number in range(600)]
    said = done("topic", "labels", name, "speed:4:0..160", "--number", 5, "--home", fleet.owner)
    assert said.out == "version 1: speed:4:0..160, joint, 5 labels a parcel\n"
    lines = "\n".join(json.dumps(row) for row in values)
    done("publish", name, "-", "--acks", "anchored", "--home", fleet.car, stdin=lines.encode())
    return name


def test_interests_are_exact_and_rows_keep_their_places(fleet: Fleet, topic: str) -> None:
    interest = ("--interest", "speed > 100 && seq in 40..60")
    said = done("subscribe", topic, *interest, "--origin", "--home", fleet.reader)
    assert sorted(row["seq"] for row in said.rows) == list(range(41, 60, 2))
    one = said.rows[3]
    place = ("--partition", one["_partition"], "--offset", one["_offset"], "--row", one["_row"])
    proof = fleet.folder / "proof"
    done("prove", topic, *place, "--output", proof, "--home", fleet.reader)
    shown = done("verify", proof, "--trust", fleet.trust, "--json").json
    assert shown["row"]["seq"] == one["seq"]


def test_what_came_in_vain_is_counted(fleet: Fleet, topic: str) -> None:
    said = done("subscribe", topic, "--interest", "seq > 100000", "--home", fleet.reader)
    assert said.out == ""
    assert "came in vain: nothing in them is of interest" in said.err


def test_mistakes_in_interests_are_said_with_their_position(fleet: Fleet, topic: str) -> None:
    lines = refused(2, "subscribe", topic, "--interest", "sped > 100", "--home", fleet.reader)
    assert lines[0].startswith('error: interest, position 1: unknown attribute "sped"')
    assert 'did you mean "speed"?' in lines[1]


def test_codes_are_shown_declared_and_lifted(fleet: Fleet) -> None:
    name = fleet.topic("gears", "vin string, gear int8")
    assert "have no labels" in done("topic", "labels", name, "--home", fleet.owner).err
    declare = ("topic", "labels", name, "gear:3:0..7", "vin:4", "--each", "--json", "--home", fleet.owner)
    assert done(*declare).json == {"version": 1, "columns": ["gear:3:0..7", "vin:4"], "each": True, "number": 24}
    assert done("topic", "labels", name, "--json", "--home", fleet.reader).json["version"] == 1
    assert "have no labels" in done("topic", "labels", name, "--none", "--home", fleet.owner).err
    lines = refused(3, "topic", "labels", name, "gear:3:0..7", "--home", fleet.reader)
    assert "does not exist" in lines[0]
    assert "is not column:bits" in refused(2, "topic", "labels", name, "gear", "--home", fleet.owner)[0]
    assert "either columns or --none" in refused(2, "topic", "labels", name, "gear:3", "--none")[0]


def test_inspect_shows_the_labels_of_parcels_and_permits(tmp_path: Path) -> None:
    world, labels = World(), (b"label--1", b"label--2")
    parcel = world.lane().seal(rows(0, 3), now_ms=1, entropy=entropy(0), labels=labels)
    permit = world.permit("reader", "brakes", Operation.SUBSCRIBE, labels=labels)
    for data in (parcel.encode(), permit.encode()):
        (tmp_path / "file").write_bytes(data)
        shown = done("inspect", tmp_path / "file", "--json").json
        assert shown["labels"] == [label.hex() for label in labels]
    assert "not after: 1125899906842624 ms after 1970" in done("inspect", tmp_path / "file").out
