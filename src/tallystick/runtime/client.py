"""The HTTP client: blocking connections that are kept, and nothing else.

What is sent, and whether again, `conversation` decides; the form of it is `http1`'s. Here sockets are opened,
written, read under a deadline and kept for the next request, and the world's errors become ours.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.runtime.address import Address, Endpoint, check_tls, client_tls, parse_address
from tallystick.runtime.conversation import (
    Attempt,
    ClientLimits,
    ConnectionGone,
    Conversation,
    Outcome,
    Pause,
    RequestSigner,
    Steps,
)
from tallystick.runtime.http1 import CBOR, Response, ResponseReader, check_range
from tallystick.runtime.sources import Clock, Entropy

LOOK_S = 3.0  # for whoever is asked whether it is ready: somebody waits for the answer, and another may know more
_READ_BYTES = 256 * 1024
_REFUSAL_BYTES_MAX = 16 * 1024  # room for a page that says no, where few bytes were asked for
_JOIN_BYTES_MAX = 64 * 1024  # below this one write of head and body together is cheaper than two


class _Kept(dict[Endpoint, "deque[tuple[float, _Connection]]"]):
    """Idle connections by endpoint, the freshest taken first."""

    def __init__(self, clock: Clock, idle_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._idle_s = idle_s
        self.closed = False

    def take(self, endpoint: Endpoint) -> _Connection | None:
        idle = self.get(endpoint)
        while idle:
            since, connection = idle.pop()
            if self._clock.monotonic() - since < self._idle_s:
                return connection
            connection.close()
        return None

    def keep(self, endpoint: Endpoint, connection: _Connection) -> None:
        if self.closed:  # a long poll that outlived its client
            connection.close()
            return
        self.setdefault(endpoint, deque()).append((self._clock.monotonic(), connection))

    def close(self) -> None:
        self.closed = True
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
        self._addresses, self._insecure, self._identity = list(addresses), insecure, identity
        self._clock, self._entropy = clock, entropy
        self._limits = limits
        self._each: dict[bytes, HttpClient] = {}
        self._conversation = Conversation(endpoints, identity, clock, entropy, limits)
        self._kept = _Kept(clock, limits.idle_s)

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
        vouched: bool = False,
    ) -> Response:
        """The good answer to one request. Raises `Refused` (with the peer's reason) or `Unavailable`.

        `path` and `query` are percent-encoded already. A request may arrive more than once; one whose caller has
        its own way to try again says `attempts_max=1`. A `vouched` answer must be signed by the peer.
        """
        steps = self._conversation.converse(method, path, query, body, content_type, attempts_max, vouched)
        return self._drive(steps, timeout_s, self._limits.response_bytes_max)

    def read_range(self, path: str, first: int, n: int, *, timeout_s: float | None = None) -> tuple[bytes, int]:
        """`n` bytes of a file from `first` on, fewer only at its end, and the length of the whole file.

        Raises `Refused` where the peer answers with anything else, a redirect too, and `Unavailable`. It is read no
        further than what was asked for: an answer that is longer, or does not end in time, ends the connection.
        """
        if first < 0 or n < 1:
            raise Misuse(f"range: {n} bytes from {first}")
        wanted = (b"range", b"bytes=%d-%d" % (first, first + n - 1))
        steps = self._conversation.converse("GET", path, "", b"", CBOR, beside=[wanted])
        try:
            return check_range(self._drive(steps, timeout_s, max(n, _REFUSAL_BYTES_MAX)), first, n)
        except Refused as error:
            error.args = (f"{self._addresses[0].url}{path}: {error}",)
            raise

    def _drive(self, steps: Steps, timeout_s: float | None, bytes_max: int) -> Response:
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                answer: Response = done.value
                return answer
            outcome = self._carry_out(step, self._limits.answer_s if timeout_s is None else timeout_s, bytes_max)

    @contextmanager
    def within(self, timeout_s: float) -> Iterator[None]:
        """Whatever is asked in this block, however often, takes so many seconds in all. Then it is `Unavailable`."""
        before, self._conversation.until = self._conversation.until, self._clock.monotonic() + timeout_s
        try:
            with ExitStack() as others:
                for one in self._each.values():
                    others.enter_context(one.within(timeout_s))
                yield
        finally:
            self._conversation.until = before

    def each(self) -> dict[bytes, HttpClient]:
        """A client for each node alone, by its identifier, for who asks several of them and compares. It asks once:
        whoever has others to ask need not try again at one. It ends with this one."""
        if not self._each:
            for node in dict.fromkeys(address.node for address in self._addresses):
                alone = [address for address in self._addresses if address.node == node]
                limits = replace(self._limits, attempts_max=1)
                fixed = self._identity, self._clock, self._entropy
                self._each[node] = HttpClient(alone, *fixed, tls=self._tls, insecure=self._insecure, limits=limits)
        return self._each

    def ask_another(self) -> int:
        """Begin at the next address from now on. Returns how many there are."""
        return self._conversation.ask_another()

    def trouble(self, who: str) -> str:
        """Return why `who` listens there is not ready, in its own words, or that it is away; empty where it is ready.

        Nobody vouches for the words: they are for people, and decide nothing.
        """
        try:
            self.request("GET", "/health/ready", timeout_s=LOOK_S, attempts_max=len(self._addresses))
        except Unavailable as error:
            return f"{who} away: {error}" if isinstance(error.__cause__, OSError) else str(error)
        except Refused as error:
            return f"{who}: {error}"
        return ""

    def close(self) -> None:
        self._kept.close()
        for one in self._each.values():
            one.close()

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _carry_out(self, step: Attempt | Pause, timeout_s: float, bytes_max: int) -> Outcome:
        if isinstance(step, Pause):
            self._clock.pause(step.seconds)
            if self._kept.closed:  # a request that outlived its client is not tried again
                raise Unavailable("the client was closed")
            return None
        timeout_s = min(timeout_s, self._conversation.until - self._clock.monotonic())
        if timeout_s <= 0:
            return Unavailable(f"{step.endpoint.address.url}: no time was left to ask")
        kept = self._kept.take(step.endpoint)
        try:
            connection = kept or _Connection(step.endpoint, self._tls, self._limits, timeout_s)
            with ExitStack() as unless_kept:
                unless_kept.callback(connection.close)
                response, reusable = connection.exchange(step, self._clock, timeout_s, bytes_max)
                if reusable:
                    unless_kept.pop_all()
                    self._kept.keep(step.endpoint, connection)
        except (OSError, Unavailable) as error:
            return _translated(error, step.endpoint, reused=kept is not None)
        return response


class _Connection:
    """One socket, one exchange at a time."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, limits: ClientLimits, timeout_s: float) -> None:
        timeout_s = min(timeout_s, limits.connect_s)
        self._socket = socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls:
                assert tls is not None
                self._socket = tls.wrap_socket(self._socket, server_hostname=endpoint.host)
        except BaseException:
            self._socket.close()
            raise

    def exchange(self, attempt: Attempt, clock: Clock, timeout_s: float, bytes_max: int) -> tuple[Response, bool]:
        deadline = clock.monotonic() + timeout_s
        self._socket.settimeout(timeout_s)
        for data in _writes(attempt):
            self._socket.sendall(data)
        reader = ResponseReader(bytes_max)
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
    """The world's failure as ours. Raises `Refused` where the peer's certificate or TLS version is at fault."""
    where = endpoint.address.url
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        raise Refused(f"{where}: TLS failed: {error.reason or error}", reason="tls") from error
    kind = ConnectionGone if reused and isinstance(error, ConnectionError | ssl.SSLEOFError) else Unavailable
    translated = kind(f"{where}: {error or type(error).__name__}")
    translated.__cause__ = error
    return translated
