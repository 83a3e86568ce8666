"""`tally attribute` and `tally topic policy`: what they do, and what they say when they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Fleet, done, refused

pytest.importorskip("pymcl", reason="extra policy")

from tallystick.identity.folder import Identity

SPACE = """
namespace = "acme"
[role]
kind = "category"
values = ["city", "garage", "insurer"]
[region]
kind = "category"
values = ["EU", "KR"]
many = true
[clearance]
kind = "integer"
bits = 8
[hired]
kind = "date"
[trained]
kind = "flag"
"""


@pytest.fixture
def declared(fleet: Fleet, tmp_path: Path) -> Fleet:
    file = tmp_path / "acme.toml"
    file.write_text(SPACE)
    assert done("attribute", "declare", file, "--home", fleet.owner).out == "declared 5 attributes of acme\n"
    return fleet


def held(fleet: Fleet, home: Path) -> dict[str, list[str]]:
    return {one["name"]: one["values"] for one in done("attribute", "list", "--home", home, "--json").json}


def test_attributes_are_granted_listed_and_revoked(declared: Fleet) -> None:
    fleet = declared
    said = done(
        *("attribute", "grant", "reader", "role=insurer", "region=KR,EU", "clearance=3", "hired=2025-01-31"),
        *("trained=true", "--until", "2098-12-31", "--home", fleet.owner),
    )
    assert said.out.endswith("to reader until 2099-01-01 00:00:00 UTC\n")
    assert held(fleet, fleet.reader) == {
        "acme.role": ["insurer"],
        "acme.region": ["EU", "KR"],
        "acme.clearance": ["3"],
        "acme.hired": ["2025-01-31"],
        "acme.trained": ["true"],
    }
    assert "reader  acme.clearance  3" in done("attribute", "list", "reader", "--home", fleet.owner).out
    assert held(fleet, fleet.car) == {}
    done("attribute", "grant", "reader", "clearance=4", "--home", fleet.owner)
    done("attribute", "revoke", "reader", "role", "acme.region", "hired", "trained", "--home", fleet.owner)
    assert held(fleet, fleet.reader) == {"acme.clearance": ["4"]}
    done("attribute", "revoke", "reader", "clearance", "--home", fleet.owner)


def test_what_another_tenant_granted_is_shown_dropped_and_refused(declared: Fleet, tmp_path: Path) -> None:
    rival, reader = tmp_path / "rival", Identity.load(declared.reader).principal.hex()
    invitation = done("tenant", "create", "rival", declared.folder).out
    done("principal", "enrol", "-", "--home", rival, stdin=invitation.encode())
    file = tmp_path / "rival.toml"
    file.write_text(SPACE.replace('"acme"', '"rival"'))
    done("attribute", "declare", file, "--home", rival)
    done("attribute", "grant", reader, "role=insurer", "clearance=3", "--home", rival)
    mine = ("--home", declared.reader)
    shown = done("attribute", "held", "reader", "--home", declared.owner).out
    tenant = Identity.load(rival).tenant.hex()
    assert f"rival.clearance  3        {tenant}  without end" in shown
    assert done("attribute", "drop", "rival.role", *mine).out == "dropped rival.role\n"
    done("attribute", "drop", "rival.clearance", "--of", "reader", "--home", declared.owner)
    assert done("attribute", "held", *mine, "--json").json == []
    assert refused(2, "attribute", "drop", "rival.role", *mine) == [
        'error: the principal holds no attribute "rival.role"',
        "hint: names in full, as tally attribute held shows them",
    ]
    assert refused(2, "attribute", "refuse", "rival", *mine)[1].startswith("hint: tally attribute held")
    done("attribute", "refuse", tenant, "--home", declared.owner)
    again = ("attribute", "grant", reader, "role=insurer", "--home", rival)
    assert "takes no attributes of this tenant" in refused(3, *again)[0]
    done("attribute", "refuse", tenant, "--again", "--home", declared.owner)
    done(*again)
    assert done("attribute", "refuse", "rival", *mine).out == "refuses attributes of rival\n"
    done("attribute", "drop", "rival.role", *mine)


def test_mistakes_are_told_with_what_to_do(declared: Fleet, tmp_path: Path) -> None:
    grant = ("attribute", "grant", "reader")
    owner = ("--home", declared.owner)
    assert refused(2, *grant, "rolle=insurer", *owner) == [
        'error: unknown attribute "rolle"',
        'hint: did you mean "role"?',
    ]
    assert refused(2, *grant, "role=insure", *owner)[1] == 'hint: did you mean "insurer"?'
    assert refused(2, *grant, "clearance=300", *owner)[0].endswith("300 is out of range")
    assert refused(2, *grant, "clearance", *owner)[0] == 'error: "clearance": expected NAME=VALUE'
    assert refused(2, *grant, "clearance=3", "--until", "soon", *owner)[1].startswith("hint: 2027-06-30")
    assert refused(2, "attribute", "grant", "nobody", "role=city", *owner)[0].startswith('error: principal "nobody"')
    assert "has no such attribute" in refused(3, "attribute", "revoke", "car", "role", *owner)[0]
    own = ("attribute", "grant", "car", "role=city", "--home", declared.car)
    assert refused(3, *own)[0].startswith("error: only the owner")
    file = tmp_path / "other.toml"
    file.write_text(SPACE.replace('"acme"', '"city"'))
    assert refused(3, "attribute", "declare", file, *owner)[1].endswith('namespace = "acme"')
    file.write_text(SPACE.replace("bits = 8", "bits = 16"))
    assert refused(2, "attribute", "declare", file, *owner)[0].startswith('error: attribute "acme.clearance" was')


def test_a_topic_s_policy_is_set_shown_changed_and_lifted(declared: Fleet) -> None:
    owner = ("--home", declared.owner)
    name = declared.topic("drives", "vin string, speed float32, lat float64, lon float64", "--group", "lat,lon")
    policy = ("topic", "policy", name)
    assert done(*policy, *owner).err == "note: the topic has no policy\n"
    said = done(*policy, "clearance > 2 && role::insurer", "--columns", "lon,lat", *owner)
    assert said.out == "lat, lon  version 1  acme.role::insurer && acme.clearance >= 3\n"
    shown = done(*policy, "trained", *owner, "--json").json
    assert [(one["columns"], one["version"]) for one in shown] == [(["vin", "speed"], 1), (["lat", "lon"], 2)]
    assert refused(3, *policy, "--home", declared.car)[0].startswith('error: topic "drives" does not exist')
    done(*policy, "--columns", "lat,lon", "--none", *owner)
    assert [one["group"] for one in done(*policy, *owner, "--json").json] == [0]
    assert refused(2, *policy, "--columns", "lat,lon", "--none", *owner)[0].endswith("have no policy to lift")


def test_an_owner_is_told_who_satisfies_a_policy_and_whom_a_change_admits(declared: Fleet) -> None:
    owner = ("--home", declared.owner)
    name = declared.topic("told-drives", "vin string, speed float32, lat float64, lon float64", "--group", "lat,lon")
    done("attribute", "grant", "car", "role=garage", "clearance=9", "region=EU,KR", "hired=2026-01-02", *owner)
    done("attribute", "grant", "reader", "role=garage", "clearance=4", *owner)
    explain = ("policy", "explain")
    people = len(done("principal", "list", *owner, "--json").json)  # of other tests, too
    lines = done(*explain, "role::garage && clearance > 5", *owner).out.splitlines()
    assert lines[-1] == f"satisfied by 1 of {people} principals: car"
    assert done(*explain, "region::KR && hired > 2025-12-31", *owner, "--json").json["satisfied_by"] == ["car"]
    lines = done(*explain, "role::garage && clearance > 5", "--topic", name, *owner).out.splitlines()
    assert lines[-1].startswith(f"lat, lon: shuts out {people - 1}: ")
    notes = done("topic", "policy", name, "role::garage && clearance > 5", "--columns", "lat,lon", *owner).err
    assert f"lat, lon: shuts out {people - 1}: " in notes
    told = done(*explain, "role::garage && clearance < 9", "--topic", name, *owner, "--json").json
    assert [(one["columns"], one["admits"]) for one in told["changes"]] == [
        (["vin", "speed"], []),
        (["lat", "lon"], ["reader"]),
    ]
    assert told["changes"][1]["shuts_out"] == ["car"]
    notes = done("topic", "policy", name, "role::garage", "--columns", "lat,lon", *owner).err
    assert notes.endswith("lat, lon: admits 1: reader\n")
    notes = done("topic", "policy", name, "--columns", "lat,lon", "--none", *owner).err
    assert f"lat, lon: admits {people - 2}: " in notes
    assert refused(2, *explain, "speed > 1", "--interest", *owner)[0] == (
        "error: --interest needs --space: no tenant declares content"
    )
    done("attribute", "revoke", "car", "role", "clearance", "region", "hired", *owner)
    done("attribute", "revoke", "reader", "role", "clearance", *owner)


def test_who_holds_what_is_told_to_the_owner_alone(declared: Fleet) -> None:
    said = done("policy", "explain", "trained", "--home", declared.reader).out.splitlines()
    assert said[-1].startswith("who satisfies it is not known here")
    assert "satisfied_by" not in done("policy", "explain", "trained", "--home", declared.reader, "--json").json


def test_a_policy_is_for_whole_groups_and_for_somebody(declared: Fleet) -> None:
    owner = ("--home", declared.owner)
    name = declared.topic("grouped-trips", "vin string, lat float64, lon float64", "--group", "lat,lon")
    policy = ("topic", "policy", name)
    assert (
        refused(2, *policy, "trained", "--columns", "lat", *owner)[0] == 'error: column "lon" is in one group with them'
    )
    assert refused(2, *policy, "trained", "--columns", "alt", *owner)[0] == 'error: column "alt" does not exist'
    assert "cannot be satisfied" in refused(2, *policy, "role::city && role::garage", *owner)[0]
    assert refused(2, *policy, "traind", *owner)[1] == 'hint: did you mean "trained"?'
    assert refused(2, *policy, "trained", "--none", *owner)[0] == "error: either a formula or --none"
