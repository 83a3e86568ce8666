"""`tally mesh keys`."""

from __future__ import annotations

from commands import Fleet, done, refused


def test_keys_are_asked_for_kept_and_shown_without_a_secret(fleet: Fleet) -> None:
    assert "no mesh keys are kept" in done("mesh", "keys", "--home", fleet.reader).err
    told = done("mesh", "keys", "brakes", "--json", "--home", fleet.reader).json
    assert [(one["topic"], one["for"]) for one in told["topics"]] == [("brakes", "reading")]
    assert told["node_until"].endswith("00:00:00 UTC")
    said = done("mesh", "keys", "brakes", "--publish", "--home", fleet.car)
    assert said.out.startswith("brakes  publishing  ")
    assert "the node's certificate ends" in said.err
    assert done("mesh", "keys", "--json", "--home", fleet.reader).json == told


def test_who_has_no_right_is_told_by_the_topics_name(fleet: Fleet) -> None:
    lines = refused(3, "mesh", "keys", "brakes", "--publish", "--home", fleet.reader)
    assert lines[0] == 'error: no right to publish on topic "brakes"'
    assert "of which topic?" in refused(2, "mesh", "keys", "--publish", "--home", fleet.reader)[0]
