"""Ranges of a log of many segments: a reader that begins in the middle is joined to its lanes, wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from actors import Topic, publish, read_rows
from stack import Stack, log_store

from tallystick.client.reader import Finding

PARCELS = 20


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    """Twenty parcels of one lane, a few in each segment."""
    with Stack(tmp_path_factory.mktemp("ranges"), node={"commit_ms": 50}) as stack:
        store = log_store(stack)
        store.limits = replace(store.limits, segment_bytes_max=2_500)
        topic = Topic(stack, "acme")
        publish(topic.car, topic.name, range(PARCELS))
        assert store.statistics().segments > 1
        yield topic


@pytest.mark.parametrize("start", range(1, PARCELS, 3))
def test_a_reader_that_begins_in_the_middle_finds_the_parcel_before(topic: Topic, start: int) -> None:
    findings: list[Finding] = []
    with topic.reader.subscriber(topic.name, start=start, on_finding=findings.append) as subscriber:
        assert read_rows(subscriber, PARCELS - start) == list(range(start, PARCELS))
    assert findings == []
