"""`latency_stored_…`, `latency_read_…`: how long a record takes at a fixed rate, in each arm, in ms.

Every `TICK_S` a producer is handed `TICK_ROWS` dicts. Counted from the moment at which they were due, whether or not
the producer was free by then (a late producer hides nothing): until all replicas have them, and until a reader that
follows the topic holds them, parsed or opened. With everything on that is after the anchor: the notary has read and
judged them, the ledger has written, and the reader has fetched the proof.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import data
import harness
import orjson
from kafka_arms import Direct, Plain, Unsealed, decode, encode

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.consumers import Tail
from tallystick.engines.kafka import KafkaCluster
from tallystick.record.batch import Batch
from tallystick.record.gather import to_batches

TICK_S, TICK_ROWS = 0.02, 100
TICKS, WARM_TICKS = 400, 50  # the first second is not counted
LATE_S = 60.0  # who is behind by so much does not hold the rate

Done = Callable[[], None]


class Behind(RuntimeError):
    """The arm falls behind the rate."""


class Way(Protocol):
    """A producer and a reader of one topic, each for one thread."""

    def put(self, rows: list[dict[str, Any]], done: Done) -> None:
        """Hand rows over; `done` is called when all replicas have them, at the latest in `serve`."""

    def serve(self, timeout_s: float) -> None: ...

    def take(self) -> Iterable[int]:
        """The column `seq` of the last row of what came; waits for a moment."""


def latencies(way: Way) -> tuple[list[float], list[float]]:
    """Seconds until stored, and until read, for each tick."""
    rows = data.dicts(data.columns(TICKS * TICK_ROWS))
    stored, read = [0.0] * TICKS, [0.0] * TICKS
    start = time.monotonic() + 0.5

    def due(tick: int) -> float:
        return start + tick * TICK_S

    def follow() -> None:
        last = -1
        while last < TICKS * TICK_ROWS - 1 and time.monotonic() < due(TICKS) + LATE_S:
            for last in way.take():
                tick, row = divmod(last, TICK_ROWS)
                if row == TICK_ROWS - 1:
                    read[tick] = time.monotonic() - due(tick)

    reader = threading.Thread(target=follow)
    reader.start()
    for tick in range(TICKS):
        while (early := due(tick) - time.monotonic()) > 0:
            way.serve(early)

        def done(tick: int = tick) -> None:
            stored[tick] = time.monotonic() - due(tick)

        way.put(rows[tick * TICK_ROWS : (tick + 1) * TICK_ROWS], done)
    while reader.is_alive() or not all(stored):
        way.serve(0.05)
        if time.monotonic() > due(TICKS) + LATE_S:
            raise Behind("the rate is not held: records are still on their way")
    reader.join()
    return stored[WARM_TICKS:], read[WARM_TICKS:]


def cases(cluster: KafkaCluster, instance: Direct, only: str) -> Iterator[harness.Result]:
    names = [
        (f"latency_{until}_p{percent}", number, percent)
        for number, until in enumerate(("stored", "read"))
        for percent in (50, 99)
    ]
    if not any(only in name for name, _, _ in names):
        return
    with ExitStack() as stack:
        try:
            plain = latencies(PlainWay(cluster, stack))
            unsealed = latencies(UnsealedWay(cluster, stack))
            sealed = latencies(SealedWay(instance, stack))
        except Behind as behind:  # a machine this busy has no latency to tell of
            print(f"latency: left out: {behind}", file=sys.stderr)
            return
    for name, number, percent in names:
        for suffix, ours in (("", sealed), ("_unsealed", unsealed)):
            both = [[_percentile(one[number], percent)] for one in (ours, plain)]
            yield harness.compare(name + suffix, both[0], both[1], "ms")


def _percentile(seconds: list[float], percent: int) -> float:
    """In ms."""
    return 1e3 * sorted(seconds)[len(seconds) * percent // 100]


class PlainWay:
    def __init__(self, cluster: KafkaCluster, stack: ExitStack) -> None:
        self._plain = Plain(cluster, "plain-latency", **{"linger.ms": "0"})
        self._consumer = self._plain.consumer(**{"fetch.wait.max.ms": "100"})
        stack.callback(self._consumer.close)

    def put(self, rows: list[dict[str, Any]], done: Done) -> None:
        for row in rows[:-1]:
            self._plain.producer.produce(self._plain.topic, orjson.dumps(row))
        self._plain.producer.produce(self._plain.topic, orjson.dumps(rows[-1]), on_delivery=lambda *_: done())

    def serve(self, timeout_s: float) -> None:
        self._plain.producer.poll(timeout_s)

    def take(self) -> Iterable[int]:
        for message in self._consumer.consume(TICK_ROWS, 0.005):
            if message.error() is None:
                yield orjson.loads(message.value())["seq"]


class UnsealedWay:
    def __init__(self, cluster: KafkaCluster, stack: ExitStack) -> None:
        self._unsealed = Unsealed(cluster, "latency", TICK_ROWS)
        self._kafka = KafkaClient(cluster.operator())
        self._tail = Tail(self._kafka.consumer())
        self._tail.follow({self._unsealed.place: 0})
        for one in (self._kafka, self._unsealed, self._tail):
            stack.callback(one.close)

    def put(self, rows: list[dict[str, Any]], done: Done) -> None:
        batch = Batch.of(data.SCHEMA, to_batches(rows, data.SCHEMA.arrow))
        self._kafka.flush([self._kafka.produce(self._unsealed.place, b"", encode(batch), ())])
        done()

    def serve(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def take(self) -> Iterable[int]:
        for records in self._tail.poll(0.005).values():
            for record in records:
                yield decode(record.value).data.column("seq")[-1].as_py()


class SealedWay:
    def __init__(self, instance: Direct, stack: ExitStack) -> None:
        instance.create("latency")
        self._publisher = instance.car.publisher("latency", heartbeat_s=3600.0)
        self._subscriber = instance.reader.subscriber("latency")
        stack.callback(self._publisher.stop)

    def put(self, rows: list[dict[str, Any]], done: Done) -> None:
        self._publisher.send(rows, lambda *_: done())

    def serve(self, timeout_s: float) -> None:
        self._publisher.poll(timeout_s)

    def take(self) -> Iterable[int]:
        for received in self._subscriber.poll(1_000):
            yield received.batch.data.column("seq")[-1].as_py()
