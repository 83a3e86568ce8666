"""The parties of a link: who they are, what waits for each, and what they may still do.

A peer is known by the directory's name for it. It may have two connections, the one by which it is heard and the one by
which it is called; what is for it waits here until the second takes it (`queues.OutputQueue`). Whoever breaks the
framing is barred for a while, and for twice as long the next time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tallystick.errors import Misuse
from tallystick.runtime.connections import WRITE_BYTES, LinkConnection
from tallystick.runtime.queues import OutputQueue
from tallystick.wire import is_number


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Bounds of one party's links."""

    frame_bytes_max: int = 1 << 20  # of one message
    input_bytes_max: int = 8 << 20  # waiting for the role, about (see `InputQueue`), beside a frame under way by peer
    output_bytes_max: int = 8 << 20  # waiting for one peer
    output_messages_max: int = 8192  # the same
    turn_messages_max: int = 64  # for the role before sockets are looked after again
    handshakes_max: int = 64  # callers that are not known yet; the next drives out the oldest
    handshake_s: float = 10.0  # for a connection to come about
    unread_s: float = 30.0  # for a peer to take something of what fills its connection
    pause_min_s: float = 0.1  # before calling again, and before a peer that broke the framing may
    pause_max_s: float = 30.0  # to which both double


class PinnedPeer(NamedTuple):
    """Where a peer listens, as host:port, and the public key of its certificate."""

    address: str
    key: bytes

    @property
    def place(self) -> tuple[str, int]:
        """Raises `Misuse` for an address that cannot be one."""
        host, _, port = self.address.rpartition(":")
        if not host or not is_number(port) or not 0 < int(port) < 1 << 16:
            raise Misuse(f"address {self.address!r}: expected host:port")
        return host.removeprefix("[").removesuffix("]"), int(port)


@dataclass(frozen=True, slots=True)
class PeerStatistics:
    is_heard: bool  # it is connected to us
    is_called: bool  # we are connected to it
    messages_in: int
    bytes_in: int
    messages_out: int  # given to a connection
    bytes_out: int
    dropped: int  # did not fit into its output queue
    waiting_in: int  # messages
    waiting_out: int


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """This party: its name, where it listens, and the private key of its certificate."""

    name: str
    host: str = "127.0.0.1"
    port: int = 0  # 0: any
    seed: bytes | None = None
    insecure: bool = False  # without TLS, on loopback only


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    peers: Mapping[str, PeerStatistics]
    refused: Mapping[str, int]  # connections that did not come about or were ended here, by reason
    unsent: Mapping[str, int]  # messages that were for nobody or too long, by reason
    input_bytes: int


class LinkPeer:
    """What is known of a peer while it is in the directory."""

    def __init__(self, name: str, pinned: PinnedPeer, limits: LinkLimits) -> None:
        self.name, self.pinned = name, pinned
        self.waiting = OutputQueue(limits.output_messages_max, limits.output_bytes_max)
        self.has_waiting = asyncio.Event()
        self.heard: LinkConnection | None = None  # it called us
        self.called: LinkConnection | None = None  # we called it
        self.calling: asyncio.Task[None] | None = None
        self.barred_until = -math.inf
        self._bar_s, self._limits = 0.0, limits
        self._messages_in = self._bytes_in = self._messages_out = self._bytes_out = 0

    def count(self, message: bytes) -> None:
        """A message came."""
        self._messages_in += 1
        self._bytes_in += len(message)

    def send(self, message: bytes) -> None:
        self.waiting.put(message)
        if not self.has_waiting.is_set():
            self.has_waiting.set()
            asyncio.get_running_loop().call_soon(self.flush)  # behind the others of this turn

    def flush(self) -> None:
        """Give the connection as much as it takes."""
        while self.called is not None and not self.called.is_full and (messages := self.waiting.take(WRITE_BYTES)):
            self.called.write(*messages)
            self._messages_out += len(messages)
            self._bytes_out += sum(map(len, messages))
        if not self.waiting:
            self.has_waiting.clear()

    def bar(self, now: float) -> None:
        """For twice as long as the last time, unless that is long ago."""
        is_new = now - self.barred_until > self._limits.pause_max_s
        self._bar_s = self._limits.pause_min_s if is_new else min(2 * self._bar_s, self._limits.pause_max_s)
        self.barred_until = now + self._bar_s

    def forget(self) -> None:
        """End its connections, and call it no more."""
        if self.calling is not None:
            self.calling.cancel()
        for connection in (self.heard, self.called):
            if connection is not None:
                connection.drop()
        self.heard = self.called = None

    def statistics(self, waiting_in: int) -> PeerStatistics:
        return PeerStatistics(
            is_heard=self.heard is not None and not self.heard.lost.is_set(),
            is_called=self.called is not None,
            messages_in=self._messages_in,
            bytes_in=self._bytes_in,
            messages_out=self._messages_out,
            bytes_out=self._bytes_out,
            dropped=self.waiting.dropped,
            waiting_in=waiting_in,
            waiting_out=len(self.waiting),
        )
