"""Reading what is stored and not yet anchored: on the carrier's word, which the anchor holds it to when it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from actors import Hand, Liar, stored
from lake import Lake, Topic, fails, seqs
from pyspark.sql import SparkSession
from stack import Stack
from streams import arrived, arrived_seqs, run

from tallystick.carriers.carrier import Carrier, Fetch, Fetched
from tallystick.errors import Withheld
from tallystick.pipeline.access import admit
from tallystick.pipeline.options import Options
from tallystick.pipeline.plan import Planner


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Lake]:
    """An instance whose node anchors when it is told to."""
    with Stack(tmp_path_factory.mktemp("slow"), node={"commit_ms": 3_600_000}) as stack:
        yield Lake(stack, spark)


def anchor(topic: Topic, size: int) -> None:
    topic.lake.stack.node.core.work()
    assert topic.size() == size


def test_rows_behind_the_anchor_are_read_on_demand_and_say_so(slow: Lake) -> None:
    topic = slow.topic("ahead")
    hand = Hand(slow.car, "ahead")
    assert "nothing is stored yet" in fails(topic.read(read="stored"))
    stored(hand.send(hand.seal(1))[0])
    assert "nothing is anchored on the ledger yet" in fails(topic.read())
    stored(hand.send(hand.seal(2))[0])
    anchor(topic, 2)
    stored(hand.send(hand.seal(3))[0])
    rows = topic.read(read="stored", provenance="true").collect()
    assert {row["seq"]: (row["_height"] is None, row["_late"]) for row in rows} == {
        1: (False, False),
        2: (False, False),
        3: (True, None),
    }
    assert seqs(topic.read()) == [1, 2]
    assert seqs(topic.read(read="stored", startingOffsets='{"0": 2}')) == [3]  # in the middle of the lane
    assert "3 parcels are stored" in fails(topic.read(read="stored", endingOffsets='{"0": 4}'))


@pytest.mark.long
def test_a_stream_goes_on_behind_the_anchor_and_below_the_next(slow: Lake, tmp_path: Path) -> None:
    topic, out, checkpoint = slow.topic("stream"), tmp_path / "out", tmp_path / "checkpoint"
    hand = Hand(slow.car, "stream")

    def go_on(*numbers: int) -> None:
        for number in numbers:
            stored(hand.send(hand.seal(number))[0])
        run(topic.stream(read="stored", provenance="true"), out, checkpoint)

    go_on(1, 2)
    go_on(3)
    anchor(topic, 3)
    go_on(4)
    assert arrived_seqs(out) == [1, 2, 3, 4]
    assert all(row["_height"] is None for row in arrived(out))
    anchor(topic, 4)
    run(topic.stream(provenance="true"), out, checkpoint)  # from now on only what is anchored
    assert arrived_seqs(out) == [1, 2, 3, 4]


@contextmanager
def planning(slow: Lake, topic: str, lie: Callable[[Carrier], Callable[..., Fetched]]) -> Iterator[Planner]:
    """A driver of what is stored, whose carrier fetches what the lie makes of the honest one."""
    with closing(admit(str(slow.home), topic)) as access:
        liar = Liar(access.session.carrier)
        liar.fetch = lie(access.session.carrier)
        access.session.carrier = liar
        yield Planner(Options(str(slow.home), topic, stored=True), access)


def test_a_node_that_showed_something_else_before_the_anchor_is_found_out(slow: Lake) -> None:
    topic = slow.topic("liar")
    hand = Hand(slow.car, "liar")
    fork = hand.fork()
    shown, real = hand.seal(1), hand.seal(2, lane=fork)
    stored(hand.send(real)[0])

    def lie(honest: Carrier) -> Callable[..., Fetched]:
        def fetch(wanted: Fetch) -> Fetched:
            fetched = honest.fetch(wanted)
            is_early = wanted.size is None and fetched.parcels
            return replace(fetched, parcels=(shown.encode_front(),)) if is_early else fetched

        return fetch

    with planning(slow, "liar", lie) as planner:
        (share,) = planner.plan({0: 0}, {0: 1}, planner.anchors())
        assert share[0].names == shown.hash
        anchor(topic, 1)
        with pytest.raises(Withheld, match="not what was anchored"):
            planner.anchors()


def test_a_node_that_sends_more_headers_than_asked_for_is_found_out(slow: Lake) -> None:
    slow.topic("generous")
    hand = Hand(slow.car, "generous")
    for number in (1, 2):
        stored(hand.send(hand.seal(number))[0])

    def lie(honest: Carrier) -> Callable[..., Fetched]:
        return lambda wanted: honest.fetch(replace(wanted, end=None))

    with planning(slow, "generous", lie) as planner:
        with pytest.raises(Withheld, match="offsets 0 to 1 were asked for, 2 parcels came") as caught:
            planner.plan({0: 0}, {0: 1}, planner.anchors())
        assert caught.value.reason == "missing"
