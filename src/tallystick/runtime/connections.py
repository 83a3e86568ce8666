"""One connection of a link: frames on TCP or TLS, with a greeting before all else.

The first frame each way says who speaks and in which version; it is short, and nothing more is taken until whoever
owns the connection has believed it (`admit`). What breaks the framing, or comes too early, ends the connection. A peer
that takes nothing for `unread_s` of what fills its connection is gone, and so is one whose machine acknowledges nothing
for as long (where the system can tell: Linux).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tallystick.errors import Malformed, Refused, Unavailable
from tallystick.runtime.queues import FrameReader, framed_message

HELLO_BYTES_MAX = 256
WRITE_BYTES = 64 * 1024  # given to a connection at once, and what it may hold before it is full


def listen(host: str, port: int) -> socket.socket:
    """Raises `Unavailable`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise Unavailable(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    listening.setblocking(False)
    return listening


def hello(name: str) -> bytes:
    """The first frame of the party of this name."""
    return b"tallystick link 1 " + name.encode()


def refusal_reason(error: OSError | UnicodeError | Refused) -> str:
    """Why a connection did not come about, in a word or two."""
    match error:
        case Refused():
            return error.reason
        case TimeoutError():
            return "late"
        case ssl.SSLCertVerificationError():
            return "certificate"
        case ssl.SSLError():
            return "handshake"
        case ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError():
            return "closed"
    return "away"


def _ignore() -> None:
    pass


class LinkConnection(asyncio.Protocol):
    """`opened` holds it as long as it is open. It is full while the peer does not take what was written."""

    def __init__(self, opened: set[LinkConnection], unread_s: float) -> None:
        self.transport: Any = None
        self.is_full = False
        self.lost = asyncio.Event()
        self.greeting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._opened, self._unread_s = opened, unread_s
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._take: Callable[[bytes], None] | None = None
        self._on_fault = self._on_room = _ignore
        self._is_dropped = self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None

    def admit(self, take: Callable[[bytes], None], bytes_max: int, on_fault: Callable[[], None]) -> None:
        """Take messages from here on."""
        self._take, self._on_fault, self._reader.bytes_max = take, on_fault, bytes_max

    def when_room(self, act: Callable[[], None]) -> None:
        """Call `act` whenever it is no longer full."""
        self._on_room = act

    def write(self, *messages: bytes) -> None:
        if not self._is_dropped:
            self.transport.write(b"".join(map(framed_message, messages)))

    def pause(self) -> None:
        """Read no more until `resume`; what has been read is still taken."""
        if not self._is_paused and not self._is_dropped:
            self._is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused and not self._is_dropped:
            self._is_paused = False
            self.transport.resume_reading()

    def drop(self) -> None:
        """End it as it is. Nothing is taken or told any more."""
        self._is_dropped = True
        if self.transport is not None:
            self.transport.abort()

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=WRITE_BYTES)
        raw = self.transport.get_extra_info("socket")
        if raw is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            with suppress(OSError):  # it is closed already
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._unread_s * 1000))
        self._opened.add(self)
        if self._is_dropped:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_dropped:
            return
        try:
            for message in self._reader.feed(data):
                if not self.greeting.done():
                    self.greeting.set_result(message)
                elif self._take is not None:
                    self._take(message)
                else:
                    raise Malformed("link: nothing expected yet")
        except Malformed:
            self._on_fault()
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_dropped = True
        self._opened.discard(self)
        self._end_timer()
        if not self.greeting.done():
            self.greeting.set_exception(ConnectionResetError("closed before its greeting"))
            self.greeting.exception()  # seen, even if nobody waits for it any more
        self.lost.set()

    def pause_writing(self) -> None:
        self.is_full = True
        self._timer = asyncio.get_running_loop().call_later(self._unread_s, self.drop)

    def resume_writing(self) -> None:
        self.is_full = False
        self._end_timer()
        self._on_room()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
