"""Honest work: a fleet and the sensors of a city publish, a group of subscribers reads along."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tallystick.client.reader import OPEN_REASONS
from tallystick.client.session import Session
from tallystick.client.subscribe import Subscriber
from tallystick.demo.scene import NotObserved
from tallystick.demo.stage import PATIENCE_S, TOPICS, Stage
from tallystick.errors import Refused
from tallystick.fleet.batches import START_MS
from tallystick.fleet.city import Sensors
from tallystick.fleet.vehicles import Fleet

GROUP = "dispatch"
FLUSH_S = 120.0
PARCELS = 24  # at least so many of the fleet's, whatever its size: attacks need something to drop and to swap
ROWS_MAX, ROWS_MIN = 4_096, 16


@dataclass(frozen=True)
class Size:
    """How much is simulated."""

    vehicles: int = 500
    sensors: int = 200  # of each of the two tenants
    minutes: float = 10.0
    seed: int = 0
    start_ms: int = START_MS

    @property
    def seconds(self) -> float:
        return self.minutes * 60

    def then(self, share: float) -> Size:
        """What comes after it, for a share of its time: other vehicles, since a fleet is not interrupted."""
        end_ms = self.start_ms + int(self.seconds * 1000)
        return replace(self, minutes=self.minutes * share, seed=self.seed + 1, start_ms=end_ms)


@dataclass(frozen=True)
class Pace:
    """How many rows in how much time."""

    rows: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.rows / self.seconds

    def __str__(self) -> str:
        return f"{self.rows:,} rows in {self.seconds:.1f} s, {self.per_second:,.0f} rows/s"


def sample(topic: str, rows: int = 1) -> pa.RecordBatch:
    """A few rows that fit a sensors' topic."""
    return next(Sensors(TOPICS[topic].schema, rows, 1.0).batches())


def publish_all(stage: Stage, size: Size) -> dict[str, Pace]:
    """Publish for the vehicles, the hospital's monitors and the meters in homes, and wait until all is anchored."""
    fleet = Fleet(size.vehicles, size.seconds, seed=size.seed, start_ms=size.start_ms)
    stage.canaries += [fleet.vins[0].encode(), str(sample("vitals")["patient"][0]).encode()]
    rows_max = min(ROWS_MAX, max(ROWS_MIN, int(size.vehicles * size.seconds) // PARCELS))
    return {
        "telemetry": publish(stage.people["ambulances"], "telemetry", fleet.batches(), rows_max, lanes=4, key="vin"),
        "vitals": publish(stage.people["ward"], "vitals", _sensors(size, "vitals"), ROWS_MAX),
        "air": publish(stage.people["meters"], "air", _sensors(size, "home"), ROWS_MAX),
    }


def _sensors(size: Size, kind: str) -> Iterable[pa.RecordBatch]:
    return Sensors(kind, size.sensors, size.seconds, seed=size.seed, start_ms=size.start_ms).batches()


def publish(session: Session, topic: str, batches: Iterable[pa.RecordBatch], rows_max: int, **settings: Any) -> Pace:
    """Seal, send, and wait until the ledger vouches for everything."""
    clock, rows = session.clock, 0
    session.view.refresh()  # its headers carry the newest checkpoint that it accepted
    began = clock.monotonic()
    settings |= {"acks": "anchored", "anchor_check_s": 0.1, "batch_rows_max": rows_max}
    with session.publisher(topic, **settings) as publisher:
        for batch in batches:
            publisher.send(batch)
            rows += batch.num_rows
        waiting = publisher.flush(FLUSH_S)
        pace = Pace(rows, clock.monotonic() - began)
    if waiting:
        raise NotObserved(f"{topic}: {waiting} parcels were not anchored within {FLUSH_S:.0f} s")
    return pace


def read_all(subscriber: Subscriber) -> int:
    """How many rows come until nothing more does."""
    rows = 0
    while received := subscriber.poll(0):
        rows += sum(one.batch.rows for one in received)
    return rows


def check_clean(subscriber: Subscriber) -> None:
    """Raise `NotObserved` for a finding; a publisher that has fallen silent, as attackers do, tampers with nothing."""
    for one in subscriber.findings:
        if one.reason not in OPEN_REASONS:
            raise NotObserved(f"an honest subscriber found {one.reason}: {one.message}")


class ReaderGroup:
    """An honest group on the fleet's topic: two members that share its partitions and commit what they read."""

    def __init__(self, stage: Stage) -> None:
        self._clock = stage.clock
        self.members: list[Subscriber] = [
            stage.people[name].subscriber("telemetry", group=GROUP, renew_s=1.0, on_bad="report")
            for name in ("dispatch-1", "dispatch-2")
        ]
        self.rows = [0 for _ in self.members]
        self._seen: set[tuple[int, int]] = set()  # parcels: one that comes again is counted once
        for member in self.members:  # join, so that the partitions are dealt before there is anything to read
            member.poll(0)

    def read(self, rows: int) -> Pace:
        """Read until the group has so many rows in all. Raises `NotObserved` if they do not come or are not clean."""
        began, before = self._clock.monotonic(), sum(self.rows)
        last = began
        while sum(self.rows) < rows:
            if self._round():
                last = self._clock.monotonic()
            elif self._clock.monotonic() - last > PATIENCE_S:
                raise NotObserved(f"the group has read {sum(self.rows):,} of {rows:,} rows")
        self.check_clean()
        if sum(self.rows) != rows:
            raise NotObserved(f"the group has read {sum(self.rows):,} rows, {rows:,} were published")
        return Pace(sum(self.rows) - before, self._clock.monotonic() - began)

    def check_clean(self) -> None:
        for member in self.members:
            check_clean(member)

    def _round(self) -> int:
        got = 0
        for number, member in enumerate(self.members):
            received = member.poll(100)
            fresh = [one for one in received if (one.partition, one.offset) not in self._seen]
            self._seen |= {(one.partition, one.offset) for one in fresh}
            self.rows[number] += sum(one.batch.rows for one in fresh)
            got += len(fresh)
            if received:
                with suppress(Refused):  # dealt anew meanwhile: whoever holds the partition now reads it again
                    member.commit()
        return got

    def close(self) -> None:
        for member in self.members:
            member.close()
