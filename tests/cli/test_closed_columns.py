"""`tally publish --policy`, and what `tally subscribe` and `tally inspect` say of columns under policies."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Fleet, done, refused, tally
from test_attribute_commands import SPACE

pytest.importorskip("pymcl", reason="extra policy")

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
