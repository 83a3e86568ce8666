"""Nodes of a mesh on real sockets of this machine, all in one event loop, and a tap on their sockets.

Each node has its own keys, its own UDP socket and the product's own roles (`MeshStation`). The tap notes when a
datagram left, from where, to where, and how long it was: what an observer of all links has, and no more.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from random import Random
from typing import Any, NamedTuple

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.community import CommunityLimits
from tallystick.carriers.mesh.forwarding import CoverChoice
from tallystick.carriers.mesh.kit import MeshKit, MeshTopicKeys
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.link_layer import Dial
from tallystick.carriers.mesh.mesh_keys import MeshKey
from tallystick.carriers.mesh.mesh_node import MeshSettings
from tallystick.carriers.mesh.station import MeshOutside, MeshStation
from tallystick.crypto.exchange import ExchangeKey
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Unavailable
from tallystick.trust.mesh import certify_member, certify_publisher, epoch_at, mesh_secret

CONTACTS = 3  # of those before it, that each node knows
WHOLE_S = 120.0  # in which a topic's mesh must stand
PARCEL_BYTES = 600  # with its envelope it fits into one cell


@dataclass(frozen=True)
class Shape:
    """A mesh. Topic t is published by node t, and read by nodes that a seed draws."""

    nodes: int = 12
    topics: int = 1
    subscribers: int = 3  # of each topic
    dial: Dial = Dial.PADDED
    beat_s: float = 1.0
    beat_cells: int = 4
    covers: CoverChoice = field(default_factory=CoverChoice)
    plays: bool = False  # the shell game, which moves links while they are measured
    seed: int = 4

    @property
    def settings(self) -> MeshSettings:
        """The product's own, but that a publisher may publish as fast as it can."""
        default = MeshSettings()
        limits = replace(MeshLimits(), beat_s=self.beat_s, beat_cells=self.beat_cells, window_share_max=1 << 20)
        return replace(
            default,
            mesh=limits,
            covers=self.covers,
            frames_max=1 << 20,
            community=CommunityLimits(),
            game=replace(default.game, plays=self.plays),
        )

    def readers(self, topic: int) -> list[int]:
        others = [number for number in range(self.nodes) if number != topic]
        return Random(f"{self.seed} {topic}").sample(others, self.subscribers)


class Seen(NamedTuple):
    """A datagram, as an observer of all links sees it."""

    time: float
    sender: int
    receiver: int
    bytes: int


class _TappedSocket:
    """A node's socket; what it sends is noted."""

    def __init__(self, inner: Any, note: Callable[[tuple[str, int], int], None]) -> None:
        self._inner, self._note = inner, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sendto(self, data: bytes, place: tuple[str, int]) -> int:
        self._note(place, len(data))
        return int(self._inner.sendto(data, place))


class MeshTown:
    def __init__(self, shape: Shape, tapped: bool = False) -> None:
        self.shape = shape
        self._mesh = SigningKey.from_seed(_seed("mesh authority"))
        self.tokens = [sha256(b"topic %d" % topic).digest()[:16] for topic in range(shape.topics)]
        self.stations: list[MeshStation] = []
        self.delivered: Counter[int] = Counter()  # by node
        self.came: asyncio.Event = asyncio.Event()
        self.seen: deque[Seen] = deque()
        kits = [self._kit(number) for number in range(shape.nodes)]
        for number, kit in enumerate(kits):
            known = tuple(one.entry for one in self.stations[-CONTACTS:])
            drawing = Random(f"{shape.seed} node {number}")  # nobody is hidden here
            outside = MeshOutside(contacts=known, dial=shape.dial, settings=shape.settings, random=drawing)
            self.stations.append(MeshStation(kit, outside, self._taker(number)))
        self._numbers = {one.datagrams.port: number for number, one in enumerate(self.stations)}
        if tapped:
            for number, one in enumerate(self.stations):
                one.datagrams._socket = _TappedSocket(one.datagrams._socket, self._noter(number))  # type: ignore[assignment]

    def _kit(self, number: int) -> MeshKit:
        lasting, until_ms = _seed(f"lasting {number}"), int(time.time() * 1000) + 24 * 3600 * 1000
        certificate = certify_member(ExchangeKey(lasting).public, until_ms, self._mesh)
        topics = [self._topic(topic, number) for topic in range(self.shape.topics) if self._role(topic, number)]
        epoch_ms = MeshLimits().epoch_ms
        return MeshKit(self._mesh.public.raw, epoch_ms, lasting, until_ms, certificate, tuple(topics))

    def _role(self, topic: int, number: int) -> str:
        return "publishes" if number == topic else "reads" if number in self.shape.readers(topic) else ""

    def _topic(self, topic: int, number: int) -> MeshTopicKeys:
        token, epoch = self.tokens[topic], epoch_at(int(time.time() * 1000), MeshLimits().epoch_ms)
        secret, own = mesh_secret(_seed("root"), token, epoch), _seed(f"publisher {number} {topic}")
        if self._role(topic, number) == "reads":
            return MeshTopicKeys(token, epoch, secret, 1)
        pseudonym = MeshKey(secret, epoch).pseudonym
        key = SigningKey.from_seed(own).public.raw
        return MeshTopicKeys(token, epoch, secret, 0, own, certify_publisher(pseudonym, epoch, key, self._mesh))

    def _taker(self, number: int) -> Callable[[bytes, Pushed], None]:
        def take(publisher: bytes, pushed: Pushed) -> None:
            self.delivered[number] += 1
            self.came.set()

        return take

    def _noter(self, number: int) -> Callable[[tuple[str, int], int], None]:
        return lambda place, size: self.seen.append(Seen(time.monotonic(), number, self._numbers[place[1]], size))

    # --- what it looks like ---

    def pseudonym(self, topic: int) -> bytes:
        return self._topic(topic, topic).key.pseudonym

    def links(self, topic: int) -> dict[int, list[int]]:
        """Who sends the topic's envelopes to whom; nobody else is in its mesh."""
        names = {one.entry.identity: number for number, one in enumerate(self.stations)}
        found = {
            number: [names[other] for other in one.node.matching.links(self.pseudonym(topic))]
            for number, one in enumerate(self.stations)
        }
        return {number: others for number, others in found.items() if others}

    def hops(self, topic: int) -> dict[int, int]:
        """From the publisher to each that its envelopes reach."""
        links, found, queue = self.links(topic), {topic: 0}, deque([topic])
        while queue:
            at = queue.popleft()
            for other in links.get(at, ()):
                if other not in found:
                    found[other] = found[at] + 1
                    queue.append(other)
        return found

    def is_whole(self) -> bool:
        return all(
            set(self.shape.readers(topic)) <= set(self.hops(topic)) == set(self.links(topic))
            for topic in range(self.shape.topics)
        )

    def bytes_sent(self) -> int:
        return sum(one.datagrams.statistics().bytes_out for one in self.stations)

    # --- at work ---

    def publish(self, topic: int, count: int = 1, size: int = PARCEL_BYTES) -> None:
        for _ in range(count):
            self.stations[topic].publish(self.tokens[topic], Pushed(bytes(size)))

    async def arrive(self, wanted: Sequence[tuple[int, int]], seconds: float = 60.0) -> None:
        """Wait until nodes have been delivered so many."""
        async with asyncio.timeout(seconds):
            while any(self.delivered[node] < count for node, count in wanted):
                self.came.clear()
                await self.came.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Until the topics' meshes stand, and then while it is used."""
        running = asyncio.gather(*(one.run() for one in self.stations))
        try:
            until, calm = time.monotonic() + WHOLE_S, 0
            while calm < 3:  # for three seconds
                await asyncio.sleep(1.0)
                calm = calm + 1 if self.is_whole() else 0
                if time.monotonic() > until:
                    raise Unavailable("mesh: it does not stand")
            yield
        finally:
            for one in self.stations:
                one.stop()
            await running


def _seed(name: str) -> bytes:
    return sha256(name.encode()).digest()
