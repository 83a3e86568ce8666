"""What a broker does to a topic, as Spark finds it: by name, or as a row of the quarantine, and never as fewer rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from actors import Hand, stored
from lake import Lake, Topic, edited, fails, first_row, rows, seqs
from stack import WRITE
from without import without

from tallystick.carriers.carrier import Fetched, LaneFront
from tallystick.demo.disk import altered, rewritten

Lie = Callable[[Fetched], Fetched]


@pytest.fixture(scope="module")
def topic(lake: Lake) -> Topic:
    """Six rows, a parcel each, and the closing parcel."""
    topic = lake.topic("attacked")
    topic.publish_parcels(range(6))
    return topic


def flipped(fetched: Fetched, offset: int, position: int) -> Fetched:
    """One byte of the parcel at `offset`, if it is among these, is another."""
    at = offset - fetched.first
    if not 0 <= at < len(fetched.parcels):
        return fetched
    changed = bytearray(fetched.parcels[at])
    changed[position] ^= 1
    return replace(fetched, parcels=(*fetched.parcels[:at], bytes(changed), *fetched.parcels[at + 1 :]))


def lacking(fetched: Fetched, offset: int) -> Fetched:
    at = offset - fetched.first
    if not 0 <= at < len(fetched.parcels):
        return fetched
    return replace(fetched, parcels=fetched.parcels[:at] + fetched.parcels[at + 1 :])


def only(which: bool, lie: Lie) -> Callable[[Fetched, bool], Fetched]:
    """The lie told where headers are fetched (by the driver), or parcels (by the executors)."""
    return lambda fetched, headers: lie(fetched) if headers is which else fetched


LIES: dict[str, tuple[str, Lie]] = {
    "one is altered": ("altered", lambda f: flipped(f, 2, 200)),
    "one is dropped": ("altered", lambda f: lacking(f, 2)),
    "the tail is cut": ("missing", lambda f: replace(f, parcels=())),
}


@pytest.mark.parametrize(("reason", "lie"), LIES.values(), ids=LIES)
def test_a_lie_to_the_driver_is_named(lake: Lake, topic: Topic, reason: str, lie: Lie) -> None:
    with lake.lying(only(True, lie)):
        assert f"{reason}: " in fails(topic.read())


def test_a_lie_to_the_executors_is_named(lake: Lake, topic: Topic) -> None:
    lies: list[tuple[str, Lie]] = [
        ("altered: ", lambda f: flipped(f, 2, -1)),  # a body
        ("altered: ", lambda f: lacking(f, 2)),
        ("missing: ", lambda f: replace(f, parcels=())),
    ]
    for expected, lie in lies:
        with lake.lying(only(False, lie)):
            assert expected in fails(topic.read())
    assert seqs(topic.read()) == list(range(6))


def test_quarantine_has_a_row_for_each_bad_parcel_and_the_rest_is_read(
    lake: Lake, topic: Topic, tmp_path: Path
) -> None:
    def both(fetched: Fetched, headers: bool) -> Fetched:
        fetched = flipped(fetched, 1, 200)  # the driver finds it, in the header
        return fetched if headers else flipped(fetched, 4, -1)  # an executor finds it, in the body

    place = str(tmp_path / "bad")
    for _ in range(2):  # again is once
        with lake.lying(both):
            assert seqs(topic.read(onBad="quarantine", quarantinePath=place)) == [0, 2, 3, 5]
        found = {(row["offset"], row["reason"]) for row in lake.spark.read.parquet(place).collect()}
        assert found == {(1, "altered"), (2, "missing"), (4, "altered")}  # 2: what it follows is not there
        assert lake.spark.read.parquet(place).count() == 3
    row = first_row(lake.spark.read.parquet(place).where("offset = 4"))
    assert (row["token"], row["partition"]) == (topic.token.hex(), 0)
    assert row["publisher"] == lake.car.identity.principal.hex()
    assert "body does not match" in row["message"]
    assert len(row["evidence"]) == 2


def test_a_lane_met_in_the_middle_is_joined_to_its_head(lake: Lake, topic: Topic, tmp_path: Path) -> None:
    middle = {"startingOffsets": '{"0": 3}', "heads": str(tmp_path / "heads")}
    carrier = lake.stack.node.carrier
    honest, asked = carrier.lane_front, list[Any]()

    def lane_front(*args: Any) -> LaneFront | None:
        asked.append(args)
        return honest(*args) if len(asked) > 1 else None

    carrier.lane_front = lane_front  # type: ignore[assignment]
    try:
        assert "missing: " in fails(topic.read(**middle))
        assert seqs(topic.read(**middle, endingOffsets='{"0": 4}')) == [3]
        assert len(asked) == 2
        heads = {**middle, "startingOffsets": '{"0": 4}'}
        assert seqs(topic.read(**heads)) == [4, 5]  # the cache knows the head at offset 4
        assert len(asked) == 2
        for file in (tmp_path / "heads").iterdir():
            file.write_bytes(b"junk")
        assert seqs(topic.read(**heads)) == [4, 5]
        assert len(asked) == 3
    finally:
        carrier.lane_front = honest


# --- on the disk ---


def test_what_was_edited_on_the_disk_is_named(lake: Lake, topic: Topic, tmp_path: Path) -> None:
    with edited(lake, topic, lambda whole: rewritten(whole, altered(0))):
        assert "altered: partition 0, offset 0" in fails(topic.read())
        place = str(tmp_path / "bad")
        assert seqs(topic.read(onBad="quarantine", quarantinePath=place)) == [1, 2, 3, 4, 5]
        assert [row["reason"] for row in lake.spark.read.parquet(place).collect()] == ["altered"]
    assert seqs(topic.read()) == list(range(6))


# --- what is no attack ---


def test_what_a_revoked_key_sealed_is_shown_as_suspect_from_then_on(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("suspected")
    victim = lake.member("victim", topic, WRITE)
    topic.publish(rows(range(3)), by=victim)
    thief = Hand(victim, topic.name)
    parcel = thief.seal(3)
    lake.revoke(victim)
    with without("the guard of publishing", permit=thief.permit):
        stored(lake.car.node.publish(topic.token, [parcel.encode()])[0])
    topic.publish(rows([4]))
    place = str(tmp_path / "told")
    frame = topic.read(provenance="true", onBad="quarantine", quarantinePath=place)
    marks = {row["seq"]: row["_suspect"] for row in frame.collect()}
    assert marks == {0: False, 1: False, 2: False, 3: True, 4: False}
    assert {row["reason"] for row in lake.spark.read.parquet(place).collect()} == {"suspect"}
