"""The subject `labels` of `make bench-abe`: what a subscriber with an interest is spared, and what a publisher pays.

Batches of 4,096 records of the fleet (data.py), as a publisher gathers them. Ours are grouped by subspace and labelled,
under one code over speed, latitude and longitude (`joint`) or a code for each (`each`), 24 labels a parcel. A
subscriber is sent whole what shares a label with its interest and fronts of the rest; the peer is the same topic
without labels: everything is sent, in parcels of 4,096. How much is spared hangs on the data, on how much an interest
wants, and on how many records a batch has to group.

    labels_<code>_<interest>_bytes     bytes that are sent; the peer sends all
    labels_<code>_<interest>_parcels   parcels whose bodies are opened
    labels_<code>_<interest>_excess    records opened for each one wanted; the peer opens all
    labels_<code>_seal                 grouping, labelling and sealing a batch, against sealing it
    labels_<code>_stored_bytes         bytes a record at rest: smaller parcels compress worse and have more headers
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Any

import data
import harness
import pyarrow as pa
from abe_locks import NONE, Arm, seed

from tallystick.parcel.labels import Labeller, Wanted, interest_labels
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.seal import Lane
from tallystick.policy.content import read_interest, wanted_rows
from tallystick.policy.topic_code import TopicCode
from tallystick.record.batch import Batch

ROWS, BATCHES = 4_096, 24
DIMENSIONS = ["speed:3:0..160", "lat:2:51.8..52.2", "lon:2:12.7..13.3"]
INTERESTS = {
    "rare": "speed > 140",
    "place": "lat > 52.1 && lon > 13.15",
    "half": "speed > 44",
}
KEY = sha256(b"labels").digest()


class Topic:
    """One publisher's parcels, labelled by a code or not."""

    def __init__(self, code: TopicCode | None) -> None:
        self._code, self._draw = code, Random(1).randbytes
        self._labeller = None if code is None else Labeller(code, KEY)

    def lane(self) -> Lane:
        lane = Arm(NONE).lane(0)
        return replace(lane, schema=data.SCHEMA)

    def seal(self, lane: Lane, batch: Any) -> Iterator[tuple[Any, Parcel]]:
        """The rows of each parcel, and the parcel."""
        for part in [batch] if self._code is None else self._groups(self._code, batch):
            labels = () if self._labeller is None else self._labeller.labels(_columns(part), self._draw)
            rows = Batch.of(data.SCHEMA, part)
            yield part, lane.seal(rows, now_ms=1, entropy=seed(lane.sequence), labels=labels)

    def _groups(self, code: TopicCode, batch: Any) -> list[Any]:
        return [batch.take(pa.array(rows)) for rows in code.group(_columns(batch))]


def _columns(batch: Any) -> dict[str, Any]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _wanted(code: TopicCode, interest: str) -> Wanted:
    formula = read_interest(interest, data.SCHEMA.arrow)
    labels = interest_labels(code, {1: KEY}, formula, strings_max=32, false_positives_max=0.1, draw=Random(2).randbytes)
    return Wanted(labels)


def _spared(name: str, code: TopicCode, ours: list[tuple[Any, Parcel]], peer: list[Parcel]) -> Iterator[harness.Figure]:
    for interest, text in INTERESTS.items():
        asks, formula = _wanted(code, text), read_interest(text, data.SCHEMA.arrow)
        whole = [(rows, parcel) for rows, parcel in ours if asks.asks_for(parcel.header)]
        bodies = sum(len(parcel.body) for _, parcel in whole)
        sent = bodies + sum(len(parcel.encode_front()) for _, parcel in ours)
        everything = sum(len(parcel.encode()) for parcel in peer)
        wanted = sum(int(wanted_rows(formula, rows).sum()) for rows, _ in ours)
        assert wanted == sum(int(wanted_rows(formula, rows).sum()) for rows, _ in whole)
        opened = sum(rows.num_rows for rows, _ in whole)
        label = f"labels_{name}_{interest}"
        yield harness.Figure(f"{label}_bytes", sent, everything, "bytes")
        yield harness.Figure(f"{label}_parcels", len(whole), len(ours), "parcels")
        yield harness.Figure(f"{label}_excess", opened / wanted, ROWS * BATCHES / wanted, "records")


def label_cases() -> Iterator[harness.Case | harness.Figure]:
    batches = [data.columns(ROWS, ROWS * number) for number in range(BATCHES)]
    plain = Topic(None)
    lane = plain.lane()
    peer = [parcel for batch in batches for _, parcel in plain.seal(lane, batch)]
    stored = sum(len(parcel.encode()) for parcel in peer) / (ROWS * BATCHES)
    for name in ("joint", "each"):
        code = replace(TopicCode.read(DIMENSIONS, data.SCHEMA.arrow, each=name == "each"), version=1)
        topic = Topic(code)
        lane = topic.lane()
        ours = [pair for batch in batches for pair in topic.seal(lane, batch)]
        yield from _spared(name, code, ours, peer)
        mine = sum(len(parcel.encode()) for _, parcel in ours) / (ROWS * BATCHES)
        yield harness.Figure(f"labels_{name}_stored_bytes", mine, stored, "bytes/record")
        sealing = (_sealing(topic, batches[0]), _sealing(plain, batches[0]))
        yield harness.Case(f"labels_{name}_seal", *sealing, amount=1, unit="ms/batch", scale=1e3)


def _sealing(topic: Topic, batch: Any) -> harness.Work:
    lane = topic.lane()

    def seal() -> None:
        for _ in topic.seal(lane, batch):
            pass

    return seal
