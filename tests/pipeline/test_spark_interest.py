"""Option `interest`: exactly the rows that are meant; parcels without one of them are neither fetched nor opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lake import SCHEMA, Lake, Topic, fails, rows, seqs
from streams import arrived_seqs, run

from tallystick.parcel.parcel import Parcel, front_bytes
from tallystick.pipeline.options import Options
from tallystick.pipeline.plan import NAME_BYTES, NO_NAME
from tallystick.pipeline.source import BatchReader
from tallystick.policy.topic_code import TopicCode
from tallystick.record.schema import Schema

pytestmark = pytest.mark.spark

CODE = TopicCode.read(["speed:4:0..160"], Schema.parse(SCHEMA).arrow, number=5)
FAST = "speed > 140 && vin in (V1, V2)"


def meant(count: int = 320) -> list[int]:
    return [row["seq"] for row in rows(range(count)) if row["speed"] > 140 and row["vin"] in ("V1", "V2")]


@pytest.fixture(scope="module")
def labelled(lake: Lake) -> Topic:
    topic = lake.topic("interesting")
    lake.owner.authority.labels(topic.token, CODE.encode())
    topic.publish(rows(range(320)))
    return topic


@pytest.fixture(scope="module")
def plain(lake: Lake) -> Topic:
    topic = lake.topic("uninteresting")
    topic.publish(rows(range(320)))
    return topic


def test_the_same_rows_with_labels_and_without(labelled: Topic, plain: Topic) -> None:
    for topic in (labelled, plain):
        assert seqs(topic.read(interest=FAST)) == meant()
        assert topic.read(interest=FAST).count() == len(meant())
        frame = topic.read(interest=FAST, provenance="true").where("seq < 300")  # with Spark's own filters
        assert sorted(row.seq for row in frame.collect()) == [seq for seq in meant() if seq < 300]


def test_columns_of_the_interest_need_not_be_read(labelled: Topic) -> None:
    assert [row.seq for row in labelled.read("seq bigint", interest=FAST).orderBy("seq").collect()] == meant()


def test_places_stay_those_of_the_parcel(labelled: Topic) -> None:
    every = labelled.read(provenance="true").select("_offset", "_leaf", "seq").collect()
    places = {(row["_offset"], row["_leaf"]): row.seq for row in every}
    some = labelled.read(provenance="true", interest=FAST).select("_offset", "_leaf", "seq").collect()
    assert all(places[row["_offset"], row["_leaf"]] == row.seq for row in some)


def test_what_shares_no_label_is_not_named_to_a_task(labelled: Topic) -> None:
    def named(**options: Any) -> int:
        reader = BatchReader(Options.parse(labelled.options(**options)), labelled.read().schema)
        slices = [slice_ for part in reader.partitions() for slice_ in part.value]
        names = b"".join(slice_.names for slice_ in slices)
        return sum(names[at : at + NAME_BYTES] != NO_NAME for at in range(0, len(names), NAME_BYTES))

    assert 0 < named(interest=FAST) < named()


def test_streams_have_interests_too(labelled: Topic, tmp_path: Path) -> None:
    run(labelled.stream(interest=FAST), tmp_path / "out", tmp_path / "checkpoint")
    assert arrived_seqs(tmp_path / "out") == meant()


@pytest.mark.long
def test_writes_of_a_sink_are_labelled_and_read_by_interest(lake: Lake, labelled: Topic) -> None:
    topic = lake.topic("interesting-again")
    lake.owner.authority.labels(topic.token, CODE.encode())
    home = str(lake.car.identity.home)
    labelled.read().coalesce(1).write.format("tally").option("home", home).mode("append").save(topic.name)
    assert seqs(topic.read(interest=FAST)) == meant()
    with lake.reader.subscriber(topic.name, interest=FAST) as subscriber:
        found = [row["seq"] for _ in range(3) for one in subscriber.poll(1000) for row in one.to_pylist()]
    assert sorted(found) == meant()


def test_a_wanted_parcel_without_its_body_fails_the_query(lake: Lake, labelled: Topic) -> None:
    def keep_back(fetched: Any, headers: bool) -> Any:
        if headers:
            return fetched
        parcels = [bytes(data)[: front_bytes(data)] for data in fetched.parcels]
        assert all(Parcel.decode_front(data).header for data in parcels)
        return replace(fetched, parcels=tuple(parcels))

    with lake.lying(keep_back):
        assert "altered" in fails(labelled.read(interest=FAST))


@pytest.mark.parametrize("interest", ["sped > 3", "speed >"])
def test_mistakes_are_said_with_their_position(labelled: Topic, interest: str) -> None:
    with pytest.raises(Exception, match="interest, position"):
        labelled.read(interest=interest).collect()
