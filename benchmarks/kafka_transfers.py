"""`produce_dicts_N`, `produce_columns_N`, `fetch_N`, `disk_N`: the three arms in turns, at N records a parcel.

Time on the wall is the client's, until all replicas have the records or until all are read. Processor time is told for
client, broker and notary apart; the notary works on when the client is done, so its time is counted until it has
anchored everything, and only then does the next arm have its turn. Fetching comes first, while a topic holds exactly
what is asked for: a subscriber takes whole answers, and would be timed for more.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import data
import harness
from kafka_arms import Arm, Direct, Plain, Sealed, Unsealed

from tallystick.engines.kafka import KafkaCluster

WARM = 3  # turns of each arm that do not count: a broker's code is compiled as it is used, and ours sends few requests
SIZES = {64: 65_536, 512: 262_144, 4096: 524_288}  # records a parcel → records a run
FETCHED = 4  # times as many are fetched as are sent at once: a fetch begins with waiting for its first records
TARGETS = {
    "produce_dicts_4096": 3.0,
    "produce_columns_4096": 5.0,
    "fetch_4096": 10.0,
    "produce_dicts_512": 1.5,
    "produce_columns_512": 3.0,
    "fetch_512": 4.0,
}

Works = Mapping[str, Callable[[], None]]


@dataclass(frozen=True)
class Spent:
    """What one turn of an arm took, in seconds."""

    wall: float
    client: float
    broker: float
    notary: float


def cases(cluster: KafkaCluster, instance: Direct, only: str, rounds: int) -> Iterator[harness.Result]:
    for size, records in SIZES.items():
        names = (f"produce_dicts_{size}", f"produce_columns_{size}", f"fetch_{size}", f"disk_{size}")
        wanted = {name for name in names if only in name}
        if wanted:
            with ExitStack() as stack:
                yield from Transfer(cluster, instance, size, records, stack).measure(wanted, rounds)


class Transfer:
    """The arms at one size."""

    def __init__(
        self, cluster: KafkaCluster, instance: Direct, size: int, records: int, stack: ExitStack, warm: int = WARM
    ) -> None:
        self._cluster, self._instance, self._size, self._records, self._warm = cluster, instance, size, records, warm
        unsealed, self._sealed = Unsealed(cluster, f"bench{size}", size), Sealed(instance, f"bench{size}", size)
        plain = Plain(cluster, f"plain-{size}")
        self._arms: dict[str, Arm] = {"plain": plain, "unsealed": unsealed, "sealed": self._sealed}
        for arm in self._arms.values():
            stack.callback(arm.close)

    def measure(self, wanted: set[str], rounds: int) -> Iterator[harness.Result]:
        columns = data.columns(self._records)
        rows = data.dicts(columns)
        before = _folder_bytes(self._instance.node_folder)
        for arm in self._arms.values():  # caches, connections, compiled code: nobody pays for being first
            arm.send(rows)
            arm.settle()
        if f"disk_{self._size}" in wanted:
            yield from self._disk(rows, _folder_bytes(self._instance.node_folder) - before)
        if f"fetch_{self._size}" in wanted:
            for arm in self._arms.values():
                for _ in range(FETCHED - 1):
                    arm.send(rows)
                arm.settle()
            count = FETCHED * self._records
            works = {kind: lambda arm=arm: arm.fetch(count) for kind, arm in self._arms.items()}
            works["fast"] = lambda: self._sealed.fetch(count, "fast")
            yield from self._compare(f"fetch_{self._size}", works, rounds, count)
        for name, given in (("produce_dicts", rows), ("produce_columns", columns)):
            if f"{name}_{self._size}" in wanted:
                works = {kind: lambda arm=arm, given=given: arm.send(given) for kind, arm in self._arms.items()}
                works["plain"] = lambda: self._arms["plain"].send(rows)
                yield from self._compare(f"{name}_{self._size}", works, rounds, self._records)

    def _compare(self, name: str, works: Works, rounds: int, records: int) -> Iterator[harness.Result]:
        spent: dict[str, list[Spent]] = {kind: [] for kind in works}
        for _ in range(self._warm):
            for kind, work in works.items():
                self._turn(work, self._settle(kind))
        gc.collect()
        gc.freeze()  # the collector runs as it would in an application, but not over our input
        for turn in range(rounds):
            for kind in list(works) if turn % 2 else reversed(list(works)):
                spent[kind].append(self._turn(works[kind], self._settle(kind)))
        gc.unfreeze()
        for suffix, kind, value, unit in (
            ("", "sealed", "wall", "ns/record"),
            ("_unsealed", "unsealed", "wall", "ns/record"),
            ("_fast", "fast", "wall", "ns/record"),
            ("_cpu", "sealed", "client", "ns CPU/record"),
            ("_cpu_unsealed", "unsealed", "client", "ns CPU/record"),
            ("_broker", "sealed", "broker", "ns CPU/record"),
        ):
            if kind in spent:
                ours, peer = (_each(spent[one], value, records) for one in (kind, "plain"))
                yield harness.compare(name + suffix, ours, peer, unit, TARGETS.get(name + suffix))
        yield harness.compare(f"{name}_notary", _each(spent["sealed"], "notary", records), None, "ns CPU/record")

    def _settle(self, kind: str) -> Callable[[], None]:
        return self._arms.get(kind, self._sealed).settle

    def _turn(self, work: Callable[[], None], settle: Callable[[], None]) -> Spent:
        broker, notary = self._cluster.brokers[0].pid, self._instance.pid
        assert broker is not None
        before = time.perf_counter(), time.process_time(), _processor_s(broker), _processor_s(notary)
        work()
        after = time.perf_counter(), time.process_time(), _processor_s(broker)
        settle()
        return Spent(*(end - start for start, end in zip(before, (*after, _processor_s(notary)), strict=True)))

    def _disk(self, rows: list[dict[str, object]], kept: int) -> Iterator[harness.Result]:
        """Of what was sent once: these are counted, not timed."""
        name = f"disk_{self._size}"
        found = {kind: self._log_bytes(arm.topic) for kind, arm in self._arms.items()}
        yield harness.compare(name, [found["sealed"]], [found["plain"]], "bytes/record")
        yield harness.compare(f"{name}_unsealed", [found["unsealed"]], [found["plain"]], "bytes/record")
        yield harness.compare(f"{name}_notary", [kept / self._records], None, "bytes/record")
        if self._size == max(SIZES):
            packed = Plain(self._cluster, "plain-lz4", **{"compression.type": "lz4"})
            packed.send(rows)
            yield harness.compare("disk_lz4", [found["sealed"]], [self._log_bytes(packed.topic)], "bytes/record")

    def _log_bytes(self, topic: str) -> float:
        """What a record takes in the segments of the topic's partition."""
        partition = self._cluster.brokers[0].folder / "data" / f"{topic}-0"
        return sum(path.stat().st_size for path in partition.glob("*.log")) / self._records


def _each(spent: list[Spent], value: str, records: int) -> list[float]:
    return [1e9 * getattr(one, value) / records for one in spent]


def _processor_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
