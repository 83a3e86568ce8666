"""Parties on real sockets of this machine, for tests of links: honest ones, and whoever speaks TLS by hand."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tallystick.runtime.connections import hello
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Role, Send
from tallystick.runtime.links import Links
from tallystick.runtime.peers import LinkEnd, LinkLimits, PeerStatistics, PinnedPeer
from tallystick.runtime.pinned_tls import PinnedTls
from tallystick.runtime.queues import framed_message
from tallystick.runtime.sources import SystemEntropy

LIMITS = LinkLimits(pause_min_s=0.01, pause_max_s=0.05)


def seed_of(name: str) -> bytes:
    return sha256(name.encode()).digest()


def public_of(name: str) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed_of(name)).public_key().public_bytes_raw()


def tls_of(name: str, *others: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a party speaks when it calls and when it is called."""
    return PinnedTls(seed_of(name), SystemEntropy()).contexts(map(public_of, others))


def pinned(name: str, port: int) -> PinnedPeer:
    return PinnedPeer(f"127.0.0.1:{port}", public_of(name))


async def until(is_so: Callable[[], Any]) -> None:
    """Return as soon as it is; what never will be is given up."""
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.002)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await story()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    uvloop.run(whole())


class Teller:
    """Delivers what it hears, with the sender; says at the start what it was given to say."""

    def __init__(self, *says: tuple[str, bytes]) -> None:
        self.says = says

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived):
            return [Deliver((event.sender, event.message))]
        return [Send(to, message) for to, message in self.says]


class Party:
    """Links that run, and what they delivered."""

    def __init__(self, name: str, role: Role, port: int = 0, *, secure: bool = True, **options: Any) -> None:
        options.setdefault("limits", LIMITS)
        self.name = name
        self.delivered: list[Any] = []
        end = LinkEnd(name, port=port, seed=seed_of(name) if secure else None, insecure=not secure)
        self.links = Links(end, role, deliver=self.delivered.append, **options)
        self.task: asyncio.Task[None] | None = None

    def knows(self, *others: Party | tuple[str, int]) -> Party:
        places = [(one.name, one.links.port) if isinstance(one, Party) else one for one in others]
        self.links.set_peers({name: pinned(name, port) for name, port in places})
        return self

    def start(self) -> None:
        self.task = asyncio.create_task(self.links.run())

    async def stop(self) -> None:
        self.links.stop()
        if self.task is not None:
            await self.task

    def peer(self, name: str) -> PeerStatistics:
        return self.links.statistics().peers[name]

    def refused(self, reason: str) -> int:
        return self.links.statistics().refused.get(reason, 0)

    def heard(self, sender: str) -> list[bytes]:
        return [message for name, message in self.delivered if name == sender]


@asynccontextmanager
async def running(*parties: Party) -> AsyncIterator[None]:
    for party in parties:
        party.start()
    try:
        yield
    finally:
        for party in parties:
            await party.stop()


@asynccontextmanager
async def caller(
    port: int, name: str, tls: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Who calls by hand and says it is `name`; whether it is let in is for the test to see."""
    server_hostname = None if tls is None else ""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=server_hostname)
    try:
        writer.write(framed_message(hello(name)))
        yield reader, writer
    finally:
        writer.transport.abort()
        await gone(reader)


async def gone(reader: asyncio.StreamReader) -> bytes:
    """What is left to be read until the connection ends, one way or another."""
    left = b""
    try:
        while more := await reader.read(1 << 16):
            left += more
    except OSError:
        pass
    return left


class Ear:
    """Listens by hand under a party's key, keeps what callers say, and greets them as `greets`, or not at all."""

    def __init__(self, tls: ssl.SSLContext | None, greets: str = "", *, reads: bool = True) -> None:
        self._tls, self._greets, self._reads = tls, greets, reads
        self.said: dict[int, bytes] = defaultdict(bytes)
        self.calls = 0
        self.port = 0
        self.tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self, port: int = 0) -> AsyncIterator[Ear]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.calls += 1
            call = self.calls
            if self._greets:
                writer.write(framed_message(hello(self._greets)))
            try:
                if not self._reads:
                    await ended.wait()
                while more := await reader.read(1 << 16):
                    self.said[call] += more
            except OSError:
                pass
            finally:
                writer.transport.abort()

        ended = asyncio.Event()

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.tasks.add(asyncio.create_task(answer(reader, writer)))

        server = await asyncio.start_server(begin, "127.0.0.1", port, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            ended.set()
            for one in self.tasks:
                one.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await server.wait_closed()
