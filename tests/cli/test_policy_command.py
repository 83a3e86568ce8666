"""`tally policy`: check and explain."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import done, refused, tally

ACME = """
namespace = "acme"
[role]
kind = "category"
values = ["city", "garage", "insurer", "police"]
[region]
kind = "category"
values = ["EU", "KR"]
[clearance]
kind = "integer"
bits = 32
[since]
kind = "date"
"""
DRIVES = """
[speed]
kind = "real"
[road]
kind = "category"
values = ["motorway", "street"]
"""


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    file = tmp_path / "acme.toml"
    file.write_text(ACME)
    return file


@pytest.fixture
def drives(tmp_path: Path) -> Path:
    file = tmp_path / "drives.toml"
    file.write_text(DRIVES)
    return file


def test_check_prints_the_canonical_form_and_who_satisfies_it(acme: Path) -> None:
    policy = "clearance > 2 and role == insurer"
    assert done("policy", "check", policy, "--space", acme).out == "acme.role::insurer && acme.clearance >= 3\n"
    held = '{"role": "insurer", "clearance": 3, "since": "2026-01-31"}'
    assert done("policy", "check", policy, "--space", acme, "--attributes", held).out.endswith("\nsatisfied\n")
    said = done("policy", "check", policy, "--space", acme, "--attributes", '{"role": "city"}', "--json").json
    assert said["satisfied"] is False


def test_explain_says_words_and_costs(acme: Path) -> None:
    said = done("policy", "explain", "role::insurer && region::EU", "--space", acme).out.splitlines()
    assert said == [
        "acme.role::insurer && acme.region::EU",
        "all of these:",
        "  acme.role is insurer",
        "  acme.region is EU",
        said[4],
        said[5],
    ]
    assert said[4].startswith("comparisons 2, bytes ")
    assert said[5].startswith("lock and key (as declared): rows 1, pairings at most 3, bytes ")
    told = done("policy", "explain", "clearance >= 305419896", "--space", acme, "--json").json
    costs = {cost["encoding"]: (cost["rows"], cost["key_traits"]) for cost in told["encodings"]}
    assert costs == {"lock and key": (9, 122), "bits": (25, 32), "prefix": (18, 33), "radix16": (9, 122)}


def test_interests_are_over_content(drives: Path) -> None:
    said = done("policy", "explain", "speed > 120 && road::motorway", "--space", drives, "--interest")
    assert said.out.splitlines()[0] == "road::motorway && speed > 120"


def test_mistakes_are_named_with_place_and_remedy(acme: Path, drives: Path) -> None:
    error, hint = refused(2, "policy", "check", "rol::insurer", "--space", acme)
    assert error == 'error: policy, position 1: unknown attribute "rol"'
    assert hint == 'hint: did you mean "role"?'
    error, *_ = refused(2, "policy", "check", "role::city && role::garage", "--space", acme)
    assert error == "error: policy: the formula cannot be satisfied: its comparisons exclude one another"
    error, hint = refused(2, "policy", "check", "clearance >= 0", "--space", acme)
    assert error == "error: the formula holds for everybody who has its attributes at all"
    error, *_ = refused(2, "policy", "check", "speed > 120", "--space", drives)
    assert "keys are made for whole ones" in error
    error, *_ = refused(2, "policy", "check", "role::city", "--space", acme, "--attributes", "[1]")
    assert "expected an object" in error
    assert tally("policy", "check", "role::city", "--space", acme.parent / "none.toml").code == 2
