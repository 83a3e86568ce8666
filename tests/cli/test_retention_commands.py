"""`tally topic retain` and `tally topic release`: what is kept is the owner's to say."""

from __future__ import annotations

import json

import pytest
from commands import Fleet, done, refused


@pytest.fixture(scope="module")
def topic(fleet: Fleet) -> str:
    name = fleet.topic("kept-rows")
    lines = "\n".join(json.dumps({"vin": "V", "seq": number}) for number in range(4))
    done("publish", name, "-", "--acks", "anchored", "--home", fleet.car, stdin=lines.encode())
    return name


def shown(fleet: Fleet, topic: str) -> dict[str, object]:
    found: dict[str, object] = done("topic", "show", topic, "--json", "--home", fleet.owner).json
    return found


def test_retention_changes_for_the_future_and_what_is_there_can_be_released(fleet: Fleet, topic: str) -> None:
    assert (shown(fleet, topic)["keep"], shown(fleet, topic)["kept_before"]) == ("forever", [])
    said = done("topic", "retain", topic, "--keep", "30d", "--home", fleet.owner)
    assert said.out == f'topic "{topic}" keeps 30d\n'
    assert "what is there keeps its promise (forever for what was anchored by " in said.err
    assert f"signing retain: topic {topic}, keep " in said.err
    assert f"tally topic release {topic} PARTITION lets it go" in said.err
    found = shown(fleet, topic)
    assert (found["keep"], found["retired"]) == ("30d", [0])
    release = ("topic", "release", topic, 0, "--home", fleet.owner)
    lines = refused(130, *release, stdin=b"n\n")
    assert "may be deleted" in lines[0]
    said = done(*release, stdin=b"y\n")
    assert said.out.startswith("released below offset ")
    assert f"signing release: topic {topic}, partition 0, below " in said.err
    assert "expected, found" in refused(3, *release, "--yes")[-1]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("retain", "TOPIC", "--keep", "a while"), 2, "neither a time nor a number"),
        (("retain", "TOPIC", "--keep", "²"), 2, "neither a time nor a number"),
        (("release", "TOPIC", 7, "--yes"), 2, "holds nothing that is anchored"),
        (("release", "TOPIC", 0, "--below", 1_000, "--yes"), 3, "only what was anchored is released"),
    ],
)
def test_mistakes_are_said(fleet: Fleet, topic: str, arguments: tuple[object, ...], code: int, told: str) -> None:
    given = [topic if one == "TOPIC" else one for one in arguments]
    assert told in "\n".join(refused(code, "topic", *given, "--home", fleet.owner))


def test_only_the_owner_decides(fleet: Fleet, topic: str) -> None:
    assert "error: " in refused(3, "topic", "retain", topic, "--keep", "1", "--home", fleet.reader)[0]
