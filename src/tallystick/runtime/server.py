"""The HTTP server: uvicorn (uvloop, httptools) with bounds that it does not have itself.

Threat: a peer that opens connections and finishes nothing, sends endless headers, drips a body, or never
reads its answer. Each costs it a connection and us a bounded amount of memory for a bounded time: connections
are counted, in all and by address, and the surplus dropped, heads are bounded in bytes, requests and unread
answers in time. Bodies are bounded where they are read (`router.Request.body`). Forwarding headers are ignored:
the peer is who holds the connection.

Threat: request smuggling through a proxy. What two readers might read in two ways (`http1.misreading`) reaches no
handler, and a connection carries one request at a time: whatever follows before the answer ends the connection, and
no other answer is ever written in that one's place. Proxies wait for answers, and so does our client.

Who waits for news would hold up a stop for as long as stopping may take: `on_stop` tells the application, which
answers its long polls then.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tallystick.errors import Unavailable
from tallystick.runtime.address import check_plain, check_tls
from tallystick.runtime.http1 import REFUSED_UNREAD, misreading

_STOP_PAUSE_S = 0.005  # between looks whether the last request is answered


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of a server."""

    head_bytes_max: int = 16 * 1024  # ours have about 700
    connections_max: int = 1024  # each may hold a read buffer of 64 KiB and a body
    address_connections_max: int = 256  # of these; whoever shares an address, behind a proxy or NAT, shares them
    request_s: float = 60.0  # for one whole request to arrive: 900 KiB at 120 kbit/s
    unread_s: float = 60.0  # for a peer to take what it asked for
    keep_alive_s: int = 30  # above the client's `idle_s`
    stop_s: int = 10  # for requests under way when stopping


def _neighbourhood(address: tuple[str, int] | None) -> str:
    """Whose connections are counted together: an address, or of version 6 the network of 64 bits that one host gets."""
    host = "" if address is None else address[0].partition("%")[0]
    return IPv6Address(host).exploded[:19] if ":" in host else host


def is_asked(cycle: RequestResponseCycle | None) -> bool:
    """Whether a request has begun on a connection and is not answered."""
    return cycle is not None and not cycle.response_complete


def _bounded(limits: ServerLimits) -> type[HttpToolsProtocol]:
    held: Counter[str] = Counter()  # connections by neighbourhood

    class BoundedProtocol(HttpToolsProtocol):
        """uvicorn's protocol under `limits`."""

        _from = ""
        _timer: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None
        _heads = 0  # begun so far
        _in_head = False
        _parsed_bytes = 0  # of this head, as far as the parser has handed them over
        _raw_bytes = 0  # of this head, in reads that neither begin nor end it

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._from = _neighbourhood(self.client)
            held[self._from] += 1
            if len(self.connections) > limits.connections_max or held[self._from] > limits.address_connections_max:
                transport.abort()
            else:
                self._expect_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timers()
            held[self._from] -= 1
            if not held[self._from]:
                del held[self._from]
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            head = self._heads if self._in_head else None
            super().data_received(data)
            if self._in_head and self._heads == head:  # an unfinished header grows inside the parser
                self._raw_bytes += len(data)
                self._check_head()

        def on_message_begin(self) -> None:
            if is_asked(self.cycle):
                raise ValueError("a request before the last one is answered")
            self._heads += 1
            self._in_head, self._parsed_bytes, self._raw_bytes = True, 0, 0
            self._expect_request()
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            self._parsed_bytes += len(name) + len(value)
            self._check_head()
            super().on_header(name, value)

        def on_url(self, url: bytes) -> None:
            self._parsed_bytes += len(url)
            self._check_head()
            super().on_url(url)

        def on_headers_complete(self) -> None:
            self._in_head = False
            found = misreading(self.parser.get_http_version(), self.url, self.headers)
            if found is not None:
                raise ValueError(found)
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            """Refuse what is not one plain request; here an exception of the parser or of the above ends."""
            if is_asked(self.cycle):
                self.transport.abort()
            else:
                self.transport.write(REFUSED_UNREAD)
                self.transport.close()

        def on_message_complete(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().on_message_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(limits.unread_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._unread is not None:
                self._unread.cancel()

        def _expect_request(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_later(limits.request_s, self.transport.abort)

        def _check_head(self) -> None:
            if max(self._parsed_bytes, self._raw_bytes) > limits.head_bytes_max:
                self.transport.abort()

        def _stop_timers(self) -> None:
            for timer in (self._timer, self._unread):
                if timer is not None:
                    timer.cancel()

    return BoundedProtocol


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, which stops as soon as it is asked to, and tells when it begins to, whoever asked.

    uvicorn itself looks ten times a second whether it should stop, and again whether connections have closed.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None], stop_s: float) -> None:
        super().__init__(config)
        self._on_stop, self._stop_s = on_stop, stop_s
        self._wake: Callable[[], None] = lambda: None  # before it serves there is nobody to wake

    def ask_to_stop(self) -> None:
        """From any thread, and from a signal's handler."""
        self.should_exit = True
        self._wake()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._wake()

    async def main_loop(self) -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: it has stopped already
                loop.call_soon_threadsafe(asked.set)

        self._wake = wake
        if not await self.on_tick(0):  # once: what it does beside, now and then, is for settings that we do not use
            await asked.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()  # who is woken runs after connections were told to close behind their answer
        for server in self.servers:
            server.close()
        for listening in sockets or []:
            listening.close()
        await asyncio.sleep(0)  # a connection that was taken just now is known from here on
        state, clock = self.server_state, asyncio.get_running_loop().time
        told: set[Any] = set()
        deadline = clock() + self._stop_s
        while (state.connections or state.tasks) and not self.force_exit and clock() < deadline:
            for connection in state.connections - told:  # one may have come out of the backlog just now
                connection.shutdown()
                told.add(connection)
            await asyncio.sleep(_STOP_PAUSE_S)
        for task in state.tasks:
            task.cancel()
        for connection in list(state.connections):  # nothing may be read any more when the loop is closed
            connection.transport.abort()
        await asyncio.sleep(0)


class Server:
    """One listening socket and its application; `run` serves until `stop` or, on the main thread, a signal."""

    def __init__(
        self,
        app: Callable[..., Any],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
        limits: ServerLimits = ServerLimits(),
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_stop` is called on the event loop when no new connection is taken any more."""
        if tls is None:
            check_plain(host, insecure=insecure)
        else:
            check_tls(tls)
        self._socket = _listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        name = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls is not None else 'http'}://{name}:{self.port}"
        config = uvicorn.Config(
            app,
            http=_bounded(limits),
            loop="uvloop",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=limits.keep_alive_s,
        )
        config.load()
        config.ssl = tls
        self._server = _Uvicorn(config, on_stop, limits.stop_s)

    def run(self) -> None:
        """Serve on an event loop of its own."""
        self._server.run(sockets=[self._socket])

    async def serve(self) -> None:
        """Serve on the running loop."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Take no new connections, finish the requests under way, then return from `run`; from any thread."""
        self._server.ask_to_stop()

    def close(self) -> None:
        """Give the socket back if the server never ran."""
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint="another process may hold it; --port and --authority-port choose another, and 0 takes a free one",
        ) from error
