"""The HTTP client, blocking and asynchronous: connections that are kept, and nothing else.

What is sent, and whether again, `conversation` decides; the form of it is `http1`'s. Here sockets are opened,
written, read under a deadline and kept for the next request, and the world's errors become ours.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import TypeVar, cast

from tallystick.errors import Refused, Unavailable
from tallystick.runtime.address import Address, Endpoint, check_tls, client_tls, parse_address
from tallystick.runtime.conversation import (
    Attempt,
    ClientLimits,
    ConnectionGone,
    Conversation,
    Outcome,
    Pause,
    RequestSigner,
)
from tallystick.runtime.http1 import CBOR, Response, ResponseReader
from tallystick.runtime.sources import Clock, Entropy

_READ_BYTES = 256 * 1024
_JOIN_BYTES_MAX = 64 * 1024  # below this one write of head and body together is cheaper than two

C = TypeVar("C", "_Connection", "_AsyncConnection")


class _Kept(dict[Endpoint, "deque[tuple[float, C]]"]):
    """Idle connections by endpoint, the freshest taken first."""

    def __init__(self, clock: Clock, idle_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._idle_s = idle_s
        self._closed = False

    def take(self, endpoint: Endpoint) -> C | None:
        idle = self.get(endpoint)
        while idle:
            since, connection = idle.pop()
            if self._clock.monotonic() - since < self._idle_s:
                return connection
            connection.close()
        return None

    def keep(self, endpoint: Endpoint, connection: C) -> None:
        if self._closed:  # a long poll that outlived its client
            connection.close()
            return
        self.setdefault(endpoint, deque()).append((self._clock.monotonic(), connection))

    def close(self) -> None:
        self._closed = True
        for idle in self.values():
            while idle:
                idle.pop()[1].close()


class HttpClient:
    """Blocking requests to the first address that answers; threads may share one.

    Off loopback addresses must be https unless `insecure`. Without an identity requests go unsigned.

        with HttpClient([Address("http://127.0.0.1:7411", node_id)], identity, clock, entropy) as client:
            answer = client.request("POST", "/v1/publish", body=parcels, content_type=PARCELS)
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        identity: RequestSigner | None,
        clock: Clock,
        entropy: Entropy,
        *,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
        limits: ClientLimits = ClientLimits(),
    ) -> None:
        endpoints = [parse_address(address, insecure=insecure) for address in addresses]
        self._tls = _tls_for(endpoints, tls)
        self._clock = clock
        self._limits = limits
        self._conversation = Conversation(endpoints, identity, clock, entropy, limits)
        self._kept: _Kept[_Connection] = _Kept(clock, limits.idle_s)

    def request(
        self,
        method: str,
        path: str,
        query: str = "",
        body: bytes = b"",
        content_type: str = CBOR,
        *,
        timeout_s: float | None = None,
        attempts_max: int | None = None,
    ) -> Response:
        """The good answer to one request; raises `Refused` (with the peer's reason) or `Unavailable`.

        `path` and `query` are percent-encoded already. A request may arrive more than once; one whose caller has
        its own way to try again says `attempts_max=1`.
        """
        steps = self._conversation.converse(method, path, query, body, content_type, attempts_max)
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                answer: Response = done.value
                return answer
            outcome = self._carry_out(step, self._limits.answer_s if timeout_s is None else timeout_s)

    def close(self) -> None:
        self._kept.close()

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _carry_out(self, step: Attempt | Pause, timeout_s: float) -> Outcome:
        if isinstance(step, Pause):
            self._clock.pause(step.seconds)
            return None
        kept = self._kept.take(step.endpoint)
        connection = kept
        try:
            connection = connection or _Connection(step.endpoint, self._tls, self._limits)
            response, reusable = connection.exchange(step, self._clock, timeout_s)
        except (OSError, Unavailable) as error:
            if connection is not None:
                connection.close()
            return _translated(error, step.endpoint, reused=kept is not None)
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        if reusable:
            self._kept.keep(step.endpoint, connection)
        else:
            connection.close()
        return response


class _Connection:
    """One socket, one exchange at a time."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, limits: ClientLimits) -> None:
        self._limits = limits
        self._socket = socket.create_connection((endpoint.host, endpoint.port), timeout=limits.connect_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls:
                assert tls is not None
                self._socket = tls.wrap_socket(self._socket, server_hostname=endpoint.host)
        except BaseException:
            self._socket.close()
            raise

    def exchange(self, attempt: Attempt, clock: Clock, timeout_s: float) -> tuple[Response, bool]:
        deadline = clock.monotonic() + timeout_s
        self._socket.settimeout(timeout_s)
        for data in _writes(attempt):
            self._socket.sendall(data)
        reader = ResponseReader(self._limits.response_bytes_max)
        started = False
        while reader.response is None:
            left_s = deadline - clock.monotonic()
            if left_s <= 0:  # a peer that drips bytes must not extend it
                raise TimeoutError("the answer took too long")
            self._socket.settimeout(left_s)
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise _closed(started)
            started = True
            reader.feed(data)
        return reader.response, reader.keep_alive

    def close(self) -> None:
        self._socket.close()


class AsyncHttpClient:
    """As `HttpClient`, for one event loop; up to `connections_max` requests run at once."""

    def __init__(
        self,
        addresses: Sequence[Address],
        identity: RequestSigner | None,
        clock: Clock,
        entropy: Entropy,
        *,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
        limits: ClientLimits = ClientLimits(),
    ) -> None:
        endpoints = [parse_address(address, insecure=insecure) for address in addresses]
        self._tls = _tls_for(endpoints, tls)
        self._clock = clock
        self._limits = limits
        self._conversation = Conversation(endpoints, identity, clock, entropy, limits)
        self._kept: _Kept[_AsyncConnection] = _Kept(clock, limits.idle_s)
        self._open: set[_AsyncConnection] = set()
        self._places = asyncio.Semaphore(limits.connections_max)

    async def request(
        self,
        method: str,
        path: str,
        query: str = "",
        body: bytes = b"",
        content_type: str = CBOR,
        *,
        timeout_s: float | None = None,
        attempts_max: int | None = None,
    ) -> Response:
        """See `HttpClient.request`."""
        steps = self._conversation.converse(method, path, query, body, content_type, attempts_max)
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                answer: Response = done.value
                return answer
            if isinstance(step, Pause):
                await self._clock.sleep(step.seconds)
                outcome = None
            else:
                async with self._places:
                    outcome = await self._exchange(step, self._limits.answer_s if timeout_s is None else timeout_s)

    async def close(self) -> None:
        for connection in list(self._open):
            connection.close()
        while self._open:  # transports close on the loop's next turns
            await asyncio.sleep(0)

    async def __aenter__(self) -> AsyncHttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _exchange(self, step: Attempt, timeout_s: float) -> Outcome:
        kept = self._kept.take(step.endpoint)
        connection = kept
        try:
            connection = connection or await self._connect(step.endpoint)
            response, reusable = await _within(timeout_s, connection.exchange(step))
        except (OSError, Unavailable) as error:
            if connection is not None:
                connection.close()
            return _translated(error, step.endpoint, reused=kept is not None)
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        if reusable:
            self._kept.keep(step.endpoint, connection)
        else:
            connection.close()
        return response

    async def _connect(self, endpoint: Endpoint) -> _AsyncConnection:
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(
            lambda: _AsyncConnection(self._limits.response_bytes_max, self._open),
            endpoint.host,
            endpoint.port,
            ssl=self._tls if endpoint.tls else None,
            server_hostname=endpoint.host if endpoint.tls else None,
        )
        return (await _within(self._limits.connect_s, opening))[1]


class _AsyncConnection(asyncio.Protocol):
    """One transport, one exchange at a time."""

    def __init__(self, body_bytes_max: int, open_connections: set[_AsyncConnection]) -> None:
        self._body_bytes_max = body_bytes_max
        self._open = open_connections
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._done: asyncio.Future[tuple[Response, bool]] | None = None
        self._started = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)

    async def exchange(self, attempt: Attempt) -> tuple[Response, bool]:
        if self._transport is None or self._transport.is_closing():
            raise _closed(started=False)
        self._reader = ResponseReader(self._body_bytes_max)
        self._done = asyncio.get_running_loop().create_future()
        self._started = False
        self._transport.writelines(_writes(attempt))
        return await self._done

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done() or self._reader is None:
            self.close()  # nobody asked
            return
        self._started = True
        try:
            self._reader.feed(data)
        except Unavailable as error:
            self._done.set_exception(error)
            return
        if self._reader.response is not None:
            self._done.set_result((self._reader.response, self._reader.keep_alive))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open.discard(self)
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc if isinstance(exc, OSError) else _closed(self._started))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()  # nothing is left to flush, and TLS would wait for the peer's farewell


T = TypeVar("T")


async def _within(seconds: float, awaitable: Awaitable[T]) -> T:
    async with asyncio.timeout(seconds):
        return await awaitable


def _tls_for(endpoints: Sequence[Endpoint], tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
    if tls is not None:
        return check_tls(tls)
    return client_tls() if any(endpoint.tls for endpoint in endpoints) else None


def _writes(attempt: Attempt) -> list[bytes]:
    if len(attempt.body) <= _JOIN_BYTES_MAX:
        return [attempt.head + attempt.body]
    return [attempt.head, attempt.body]


def _closed(started: bool) -> OSError:
    if started:
        return OSError("connection closed in the middle of the answer")
    return ConnectionResetError("connection closed before the answer")


def _translated(error: Exception, endpoint: Endpoint, *, reused: bool) -> Unavailable:
    """The world's failure as ours; raises `Refused` where the peer's certificate or TLS version is at fault."""
    where = endpoint.address.url
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        raise Refused(f"{where}: TLS failed: {error.reason or error}", reason="tls") from error
    kind = ConnectionGone if reused and isinstance(error, ConnectionError | ssl.SSLEOFError) else Unavailable
    translated = kind(f"{where}: {error or type(error).__name__}")
    translated.__cause__ = error
    return translated
