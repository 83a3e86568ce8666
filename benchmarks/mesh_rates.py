"""Notifications through nodes of a mesh, against plain UDP flooding of the same bytes over the same links.

Both are nodes on real sockets of one event loop, so that the rate is that of one core which does everybody's work, by
the process's own processor time. The peer is as plain as can be: a node that has not seen a datagram sends it on to all
neighbours but the one it came from; no keys, no signatures, no beats, nothing is sent again. A publisher keeps a window
of notifications under way. Latency is by the clock on the wall, with one under way, divided by the hops to each reader.

The dial is at `padded`, as by default, and the shell game rests: the links are those of the first look.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import harness
from mesh_nodes import MeshTown, Shape

WINDOW = 32


@dataclass(frozen=True)
class Amount:
    rounds: int = 7
    count: int = 256  # notifications of a round
    single: int = 25  # of a round of latency


QUICK = Amount(1, 64, 5)
SHAPE = Shape(nodes=8, subscribers=4)


class PlainFlood:
    """Nodes that flood datagrams over given links."""

    def __init__(self, links: dict[int, list[int]], size: int) -> None:
        self._links, self._size, self._number = links, size, 0
        self._sockets = {number: _bound() for number in links}
        self._places = {number: one.getsockname() for number, one in self._sockets.items()}
        self._names = {place: number for number, place in self._places.items()}
        self._seen: dict[int, set[bytes]] = {number: set() for number in links}
        self.delivered: Counter[int] = Counter()
        self.came = asyncio.Event()
        for number, one in self._sockets.items():
            asyncio.get_running_loop().add_reader(one, self._read, number)

    def close(self) -> None:
        for one in self._sockets.values():
            asyncio.get_running_loop().remove_reader(one)
            one.close()

    def publish(self, topic: int, count: int = 1) -> None:
        for _ in range(count):
            self._number += 1
            self._take(topic, self._number.to_bytes(16, "big") + bytes(self._size - 16), None)

    def _read(self, number: int) -> None:
        with suppress(BlockingIOError):
            while True:
                data, source = self._sockets[number].recvfrom(65_536)
                self._take(number, data, self._names[source])

    def _take(self, number: int, data: bytes, sender: int | None) -> None:
        if data[:16] in self._seen[number]:
            return
        self._seen[number].add(data[:16])
        self.delivered[number] += 1
        for other in self._links[number]:
            if other != sender:
                self._sockets[number].sendto(data, self._places[other])
        self.came.set()


def _bound() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    made.bind(("127.0.0.1", 0))
    return made


class Arm:
    """Ours or the peer's, as both are driven."""

    def __init__(self, nodes: MeshTown | PlainFlood, hops: dict[int, int], readers: Sequence[int]) -> None:
        self._nodes, self._hops, self._readers = nodes, hops, readers

    async def _arrived(self, sent: int, before: Counter[int]) -> None:
        async with asyncio.timeout(120):
            while any(self._nodes.delivered[one] - before[one] < sent for one in self._readers):
                self._nodes.came.clear()
                await self._nodes.came.wait()

    async def rate(self, amount: Amount) -> float:
        """Seconds of processor time for a notification at a node."""
        before, started = Counter(self._nodes.delivered), time.process_time()
        for sent in range(WINDOW, amount.count + 1, WINDOW):
            self._nodes.publish(0, WINDOW)
            await self._arrived(sent, before)
        return (time.process_time() - started) / amount.count / len(self._hops)

    async def latency(self, amount: Amount) -> float:
        """Milliseconds a hop, to the reader that is the farthest."""
        found, farthest = [], max(self._hops[one] for one in self._readers)
        for _ in range(amount.single):
            before, started = Counter(self._nodes.delivered), time.perf_counter()
            self._nodes.publish(0)
            await self._arrived(1, before)
            found.append((time.perf_counter() - started) * 1000 / farthest)
            await asyncio.sleep(0.01)
        return statistics.median(found)


async def _measure(amount: Amount) -> list[harness.Result]:
    town = MeshTown(SHAPE)
    async with town.running():
        hops, readers = town.hops(0), SHAPE.readers(0)
        town.publish(0)
        await town.arrive([(one, 1) for one in readers])
        size = max(len(kept.data) for kept in town.stations[0].node.distribution.kept.values())
        plain = PlainFlood(town.links(0), size)
        try:
            arms = [Arm(town, hops, readers), Arm(plain, hops, readers)]
            await asyncio.gather(*(one.rate(QUICK) for one in arms))  # nobody pays for being first
            rates = await _in_turns([arm.rate for arm in arms], amount)
            hop = await _in_turns([arm.latency for arm in arms], amount)
        finally:
            plain.close()
    notify = harness.compare("notify", *([1e6 * one for one in arm] for arm in rates), "µs/notification and node")
    return [_as_rate(notify), harness.compare("hop_ms", *hop, "ms/hop")]


def _as_rate(result: harness.Result) -> harness.Result:
    """The same, told as notifications a second."""
    assert result.peer is not None
    told = asdict(result) | {"ours": 1e6 / result.ours, "peer": 1e6 / result.peer, "unit": "notifications/s and node"}
    return harness.Result(**told)


async def _in_turns(arms: Sequence[Callable[[Amount], Awaitable[float]]], amount: Amount) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in arms]
    for turn in range(amount.rounds):
        for number in range(len(arms)) if turn % 2 else reversed(range(len(arms))):
            found[number].append(await arms[number](amount))
    return found


def rows(amount: Amount) -> Iterator[harness.Row]:
    for result in asyncio.run(_measure(amount)):
        yield asdict(result)
