"""Reading a topic as a table: every type, every option, every mistake by name."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from contextlib import closing
from decimal import Decimal
from typing import Any

import pytest
from actors import row_of
from lake import SCHEMA, Lake, Topic, fails, first_row, rows, seqs
from stack import wait_until

from tallystick.client.grants import Held, _name
from tallystick.client.session import HEAD_AGE_MAX_S
from tallystick.client.ties import View
from tallystick.errors import Withheld
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.permits import PERMITS
from tallystick.parcel.prove import verify_proof
from tallystick.pipeline import plan, task
from tallystick.pipeline.access import admit
from tallystick.pipeline.columns import Projection
from tallystick.pipeline.options import Options
from tallystick.pipeline.plan import Planner
from tallystick.pipeline.source import BatchReader
from tallystick.runtime.sources import ManualClock
from tallystick.trust.permit import Operation
from tallystick.trust.right import Right

TYPES = (
    "i8 int8, i64 int64 not null, u8 uint8, u32 uint32, u64 uint64, f32 float32, f64 float64, flag bool, text string,"
    " raw binary, day date32, money decimal128(12,2), s timestamp[s], ms timestamp[ms, UTC], us timestamp[us,"
    " Europe/Berlin], ns timestamp[ns], many list<int32>, deep list<struct<a int16, b string>>,"
    " one struct<x float64, when timestamp[ms]>"
)
NOON = dt.datetime(2026, 5, 1, 12, 0, 1)
FULL = {
    "i8": -5,
    "i64": 2**62,
    "u8": 255,
    "u32": 2**32 - 1,
    "u64": 2**64 - 1,
    "f32": 0.5,
    "f64": 1e300,
    "flag": True,
    "text": "Ü☃",
    "raw": b"\x00\xff",
    "day": dt.date(1969, 7, 20),
    "money": Decimal("-1234567890.12"),
    "s": NOON,
    "ms": NOON.replace(tzinfo=dt.UTC),
    "us": NOON.replace(tzinfo=dt.UTC),
    "ns": NOON,
    "many": [1, None, 3],
    "deep": [{"a": 1, "b": "x"}, {"a": None, "b": None}],
    "one": {"x": 2.5, "when": NOON},
}


@pytest.fixture(scope="module")
def brakes(lake: Lake) -> Topic:
    """A thousand rows in eight lanes over three partitions."""
    topic = lake.topic("brakes", partitions=3)
    topic.publish(rows(range(1000)), batch_rows_max=50, lanes=8, key="vin")
    return topic


@pytest.fixture(scope="module")
def steps(lake: Lake) -> Topic:
    """Ten rows, a parcel each: offset and number are the same; the closing parcel is offset 10."""
    topic = lake.topic("steps")
    topic.publish_parcels(range(10))
    return topic


def test_every_type_arrives_as_it_was_published(lake: Lake) -> None:
    topic = lake.topic("types", TYPES)
    nothing = dict.fromkeys(FULL) | {"i64": 0, "many": [], "deep": None}
    topic.publish([FULL, nothing])
    full, empty = sorted((row.asDict(True) for row in topic.read().collect()), key=lambda row: -row["i64"])
    # Spark shows an instant as a naive time of the session's zone, which is UTC.
    local = {name: full[name] for name in ("ms", "us")}
    assert local == {"ms": NOON, "us": NOON} or all(value.astimezone(dt.UTC) == FULL["ms"] for value in local.values())
    assert {**full, **{name: FULL[name] for name in local}} == {**FULL, "u64": Decimal(2**64 - 1)}
    assert empty == nothing


def test_slices_together_are_the_topic_however_many(brakes: Topic) -> None:
    assert seqs(brakes.read()) == list(range(1000))
    for most in (1, 5, 256):
        options = Options.parse(brakes.options(partitionsMax=str(most)))
        with closing(admit(options.home, options.topic)) as access:
            planner = Planner(options, access, slice_bytes_max=1000)
            anchors = planner.anchors()
            tasks = planner.plan(*planner.edges(anchors), anchors)
        assert (len(tasks) == most) if most < 256 else (5 < len(tasks) < 256)
        covered = sorted((one.partition, one.first, one.end) for share in tasks for one in share)
        for partition in range(3):
            mine = [(first, end) for of, first, end in covered if of == partition]
            assert [first for first, _ in mine] == [0, *(end for _, end in mine)][: len(mine)]
            assert sum(end - first for first, end in mine) == brakes.size(partition)


def test_the_next_slice_comes_while_one_is_opened(lake: Lake, steps: Topic) -> None:
    options, schema = Options.parse(steps.options()), steps.read().schema
    (share,) = BatchReader(options, schema).partitions()
    (whole,) = share.value
    names, publishers = 5 * plan.NAME_BYTES, 5 * plan.PUBLISHER_BYTES
    slices = (
        whole._replace(end=5, names=whole.names[:names], publishers=whole.publishers[:publishers]),
        whole._replace(first=5, names=whole.names[names:], publishers=whole.publishers[publishers:]),
    )
    shown: list[int] = []
    with lake.lying(lambda fetched, _: shown.append(fetched.first) or fetched):
        batches = task.read(slices, options, Projection(schema), rows_min=1)  # a parcel at a time
        found = next(batches)["seq"].to_pylist()
        wait_until(lambda: shown == [0, 5])  # while nobody asks for the second row
        found += [seq for batch in batches for seq in batch["seq"].to_pylist()]
    assert found == list(range(10))
    assert shown == [0, 5]


def test_the_users_schema_is_the_projection(brakes: Topic) -> None:
    frame = brakes.read("speed float, seq long")
    assert frame.columns == ["speed", "seq"]
    assert first_row(frame.groupBy().sum("speed"))[0] == sum(number / 2 for number in range(1000))
    assert "it has vin, seq, speed" in fails(brakes.read("colour string"))
    assert "float expected, found double" in fails(brakes.read("speed double"))
    assert "set provenance" in fails(brakes.read("_offset long"))


def test_fast_reads_the_same_rows(brakes: Topic) -> None:
    assert seqs(brakes.read(verify="fast")) == list(range(1000))


def test_start_and_end_by_offset(steps: Topic, brakes: Topic) -> None:
    def between(first: Any, end: Any) -> list[int]:
        return seqs(steps.read(startingOffsets=first, endingOffsets=end))

    assert between('{"0": 3}', '{"0": 6}') == [3, 4, 5]
    assert between("latest", "latest") == []
    filled = next(partition for partition in range(3) if brakes.size(partition))
    some = brakes.read(startingOffsets=json.dumps({str(filled): brakes.size(filled)}))  # the other partitions whole
    others = brakes.read(provenance="true").where(f"_partition != {filled}")  # by chance there may be none
    assert some.count() == others.count() < 1000
    assert "begins behind its end" in fails(steps.read(startingOffsets="latest", endingOffsets='{"0": 2}'))
    assert "there is no partition 7" in fails(steps.read(startingOffsets='{"7": 0}'))
    assert "11 parcels are anchored" in fails(steps.read(endingOffsets='{"0": 12}'))


def test_start_and_end_by_height_and_block_time(lake: Lake) -> None:
    topic = lake.topic("times")
    edges = []
    for part in range(3):
        topic.publish(rows(range(part * 10, part * 10 + 10)))
        anchor = row_of(lake.reader.view, ANCHORS(topic.token, 0))
        edges.append((anchor.height + 1, anchor.time_ms + 1))  # just after the part's last anchor
    heights, times = zip(*edges, strict=True)
    middle = list(range(10, 20))
    assert seqs(topic.read(startingHeight=heights[0], endingHeight=heights[1])) == middle
    assert seqs(topic.read(startingTime=times[0], endingTime=times[1])) == middle
    text = dt.datetime.fromtimestamp(times[1] / 1000, dt.UTC).isoformat(timespec="milliseconds")
    assert seqs(topic.read(startingTime=text)) == list(range(20, 30))


def test_provenance_leads_back_to_the_sealed_row(lake: Lake, brakes: Topic) -> None:
    found = brakes.read(provenance="true").collect()
    assert sorted(row["seq"] for row in found) == list(range(1000))
    places = {(row["_partition"], row["_offset"], row["_leaf"]) for row in found}
    assert len(places) == 1000
    row = next(row for row in found if row["seq"] == 517)
    proof = lake.reader.prove("brakes", row["_partition"], row["_offset"], row["_leaf"])
    assert verify_proof(proof.encode(), lake.stack.node.trust).row["seq"] == 517
    assert row["_publisher"] == lake.car.identity.principal.hex()
    assert (row["_late"], row["_suspect"]) == (False, False)
    anchors = {one["_partition"]: one["_height"] for one in found}
    assert all(0 < height <= lake.reader.view.refresh().height for height in anchors.values())


def test_an_older_and_a_newer_schema_in_one_table(lake: Lake) -> None:
    topic = lake.topic("grows")
    topic.publish(rows(range(5)))
    topic.grow(SCHEMA + ", note string")
    topic.publish([{**row, "note": "new"} for row in rows(range(5, 8))])
    newest = {row["seq"]: row["note"] for row in topic.read().collect()}
    assert newest == dict.fromkeys(range(5)) | dict.fromkeys(range(5, 8), "new")
    pinned = topic.read(schemaVersion=1)
    assert pinned.columns == ["vin", "seq", "speed"]
    assert seqs(pinned) == list(range(8))
    assert "has no schema version 9" in fails(lambda: topic.read(schemaVersion=9))


# --- mistakes, each by its name and with a remedy ---


def test_mistakes_in_options_are_told_with_the_remedy(steps: Topic) -> None:
    assert 'option "verfy" is unknown; known are home, topic' in fails(lambda: steps.read(verfy="full"))
    assert "tally principal enrol" in fails(lambda: steps.read(home=str(steps.lake.home / "nowhere")))


def test_a_topic_that_is_unknown_or_not_ours_is_no_empty_frame(lake: Lake) -> None:
    topic = Topic("nowhere", bytes(16), lake)
    assert "tally topic create" in fails(topic.read)
    silent = lake.stack.topic(lake.owner, "described", SCHEMA)
    lake.stack.grant(lake.owner, silent, lake.reader, int(Right.DESCRIBE))
    text = ""
    while "tally right grant" not in text or "no-right" not in text:  # until the authority has seen the right
        text = fails(Topic("described", silent, lake).read)


def test_nothing_anchored_is_no_empty_frame(lake: Lake) -> None:
    assert "nothing is anchored" in fails(lake.topic("empty").read())


def test_keys_of_a_later_epoch_are_told_by_name(lake: Lake) -> None:
    topic = lake.topic("rotated")
    topic.publish(rows(range(3)))
    lake.owner.authority.rotate(topic.token)
    kept = None
    while kept is None or kept.grant.private_keys[0][0] == 1:  # until the first epoch is over
        kept = Held.of(lake.reader.authority.permit(Operation.SUBSCRIBE, "rotated", 0))
    lake.reader.grants._keep(_name(Operation.SUBSCRIBE, "rotated", 1), kept)
    text = fails(topic.read())
    assert "cannot-open" in text
    assert "epoch 1" in text
    assert f"remove {lake.home}/grants, and a new one is asked for" in text
    shutil.rmtree(lake.home / "grants")
    assert seqs(topic.read()) == [0, 1, 2]


def test_a_ledger_that_is_behind_is_named(lake: Lake, steps: Topic) -> None:
    options = Options.parse(steps.options())
    access = admit(options.home, options.topic)
    session = access.session
    session.view = View(session.node, session.memory, ManualClock(lake.stack.clock.now() + 120), HEAD_AGE_MAX_S)
    with pytest.raises(Withheld) as caught:
        Planner(options, access).anchors()
    assert caught.value.reason == "stale-head"
    access.close()


def test_a_permit_is_asked_for_once(lake: Lake, steps: Topic) -> None:
    def issued() -> int:
        return sum(1 for _, row in lake.stack.node.ledger.scan(PERMITS, most=10_000) if row.token == steps.token)

    before = issued()
    assert seqs(steps.read()) == seqs(steps.read()) == list(range(10))
    assert issued() == before
