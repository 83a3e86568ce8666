"""The parts that need no Spark session: options, shares of the work, notes of lane heads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.reader import LaneHead
from tallystick.errors import Misuse
from tallystick.pipeline.heads import KEPT, HeadCache
from tallystick.pipeline.options import Edge, Options
from tallystick.pipeline.plan import _shares, check_offsets


def test_options_are_read_once_whatever_their_case() -> None:
    given = {
        "HOME": "h",
        "topic": "t",
        "startingoffsets": '{"1": 5, "0": 3}',
        "VERIFY": "fast",
        "endingTime": "1970-01-01",
    }
    options = Options.parse(given)
    assert options.start == Edge(((0, 3), (1, 5)))
    assert options.end == Edge(rest="latest", time_ms=0)
    assert options.fast
    assert Options.parse({"home": "h", "path": "t"}).topic == "t"


@pytest.mark.parametrize(
    "bad",
    [
        {"topic": ""},
        {"partitionsMax": "0"},
        {"startingOffsets": '{"0": -1}'},
        {"startingOffsets": "[1]"},
        {"startingTime": "yesterday"},
        {"quarantinePath": "p"},
        {"provenance": "yes"},
        {"checkpoint": "c"},
    ],
)
def test_what_makes_no_sense_is_a_misuse(bad: dict[str, str]) -> None:
    with pytest.raises(Misuse):
        Options.parse({"home": "h", "topic": "t", **bad})


@given(st.lists(st.lists(st.integers(1, 1000), min_size=1, max_size=20), min_size=1, max_size=5), st.integers(1, 30))
def test_shares_cover_every_parcel_once_in_order(partitions: list[list[int]], tasks: int) -> None:
    total, done = sum(map(sum, partitions)), 0
    last = 0
    for sizes in partitions:
        cuts = list(_shares(sizes, done, total, tasks))
        assert [cuts[0][1][0], *(end for _, (_, end) in cuts)][-1] == len(sizes)
        assert cuts[0][1][0] == 0
        assert all(before[1][1] == after[1][0] for before, after in pairwise(cuts))
        numbers = [number for number, _ in cuts]
        assert numbers == sorted(numbers)
        assert all(last <= number < tasks for number in numbers)
        last, done = numbers[-1], done + sum(sizes)


def test_heads_are_kept_for_the_newest_offsets(tmp_path: Path) -> None:
    cache = HeadCache(str(tmp_path))
    head = LaneHead(4, b"p" * 32, b"header", b"s" * 64, 12, True)
    for offset in range(5, 5 + KEPT + 2):
        cache.save(b"t" * 16, 1, offset, {(b"a" * 16, b"l" * 16): head})
    assert cache.load(b"t" * 16, 1, 5) is None
    assert cache.load(b"t" * 16, 1, 8) == {(b"a" * 16, b"l" * 16): head}
    assert cache.load(b"t" * 16, 0, 8) is None


def test_offsets_of_another_topic_or_with_holes_are_refused() -> None:
    token = b"t" * 16
    assert check_offsets({"topic": token.hex(), "0": 3, "1": 0}, token, 2) == {0: 3, 1: 0}
    for bad in ({"0": 3, "1": 0}, {"topic": token.hex(), "0": 3}, {"topic": token.hex(), "0": 3, "1": True}):
        with pytest.raises(Misuse):
            check_offsets(bad, token, 2)
