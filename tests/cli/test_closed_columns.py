"""`tally publish --policy`, and what `tally subscribe` and `tally inspect` say of columns under policies."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Fleet, done, refused, tally
from formulas import ACME
from policy_world import EPOCH, PolicyWorld
from test_attribute_commands import SPACE

pytest.importorskip("pymcl", reason="extra policy")

from tallystick.policy.parse import parse

SCHEMA = "vin string not null, lat float64 not null, lon float64, fuel float32"
ROW = b'{"vin": "A", "lat": 52.5, "lon": 13.5, "fuel": 7.5}\n'


@pytest.fixture
def drives(fleet: Fleet, tmp_path: Path) -> Fleet:
    file = tmp_path / "acme.toml"
    file.write_text(SPACE)
    done("attribute", "declare", file, "--home", fleet.owner)
    return fleet


def test_columns_are_closed_by_the_publisher_and_named_to_the_reader(drives: Fleet) -> None:
    name = drives.topic("closed-drives", SCHEMA, "--group", "lat,lon", "--group", "fuel")
    done("attribute", "grant", "reader", "role=insurer", "--home", drives.owner)
    publish = ("publish", name, "--format", "jsonl", "--home", drives.car)
    policies = ("--column-policy", "lat", "role::city", "--column-policy", "fuel", "role::insurer")
    done(*publish, *policies, stdin=ROW)
    done(*publish, "--policy", "role::garage", "--hide-policy", stdin=ROW)
    read = ("subscribe", name, "--home", drives.reader)
    said = done(*read)
    assert said.rows == [{"vin": "A", "fuel": 7.5}]
    assert said.err.splitlines() == [
        "closed to this identity's attributes: lat, lon",
        "1 parcel passed over: no column of them opens with this identity's attributes",
    ]
    assert done(*read, "--format", "csv").out.splitlines() == ['"vin","lat","lon","fuel"', '"A",,,7.5']
    stopped = tally(*read, "--closed", "error")
    assert stopped.code == 3
    assert "do not satisfy the policy" in stopped.err
    assert "tally attribute grant" in stopped.err


def test_a_policy_that_cannot_be_is_refused_before_a_row_is_read(drives: Fleet) -> None:
    name = drives.topic("refused-drives", SCHEMA, "--group", "lat,lon", "--group", "fuel")
    publish = ("publish", name, "--format", "jsonl", "--home", drives.car)
    assert "garrage" in refused(2, *publish, "--policy", "role::garrage", stdin=ROW)[0]
    assert refused(2, *publish, "--policy", "trained", "--column-policy", "lat", "trained", stdin=ROW) == [
        "error: --policy and --column-policy exclude each other"
    ]
    assert 'no column "alt"' in refused(2, *publish, "--column-policy", "alt", "trained", stdin=ROW)[0]


def test_inspect_shows_the_policy_of_a_lock_unless_it_is_hidden(tmp_path: Path) -> None:
    """A topic's policy is in no lock; a publisher's own is, in the clear or hidden."""
    text = "role::insurer && clearance >= 3"
    shown = {}
    for name, options in {
        "topic": {"of_topic": {0: text}},
        "own": {"own": {0: text}},
        "hidden": {"own": {0: text}, "hide": True},
    }.items():
        world = PolicyWorld()
        lane = world.closed_lane(**options)  # type: ignore[arg-type]
        (tmp_path / name).write_bytes(world.locks[lane.keys[0].locks[-1]])
        shown[name] = done("inspect", tmp_path / name, "--json").json
        assert (shown[name]["kind"], shown[name]["lane"]) == ("lock", lane.lane.hex())
    place = {name: shown["topic"][name] for name in ("group", "policy_version", "attribute_epoch")}
    assert place == {"group": 0, "policy_version": 1, "attribute_epoch": EPOCH}
    assert "policy" not in shown["topic"]
    assert parse(shown["own"]["policy"], ACME) == parse(text, ACME)
    assert shown["own"]["attribute_epoch"] == EPOCH
    assert shown["hidden"]["policy"] == "hidden under the topic lock"
    assert "attribute_epoch" not in shown["hidden"]
    assert "insurer" not in done("inspect", tmp_path / "hidden").out
    assert "insurer" in done("inspect", tmp_path / "own").out
