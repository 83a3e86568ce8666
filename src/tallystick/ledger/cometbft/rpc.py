"""CometBFT's RPC over HTTP: one endpoint, several endpoints, and what their errors mean.

Nothing that an endpoint says is believed here; who needs to, asks for proofs. Several endpoints are tried in turn,
beginning with the one that answered last; when none does, again after a pause that doubles, until the caller's time is
up. A request may arrive more than once, so only what may be repeated is sent this way: queries, and transactions, which
are taken once whatever their number.

Threat: an endpoint that answers a byte at a time, or for ever. A whole answer has a deadline and a size; an endpoint
that let somebody wait, or said no, is asked last for a while, and its no is taken for the chain's only if most say so.
"""

from __future__ import annotations

import http.client
import itertools
import logging
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson

from tallystick import wire
from tallystick.abci.messages import OK
from tallystick.errors import Misuse, Refused, TallystickError, Unavailable
from tallystick.ledger.cometbft.queries import PREFIX, read_answer
from tallystick.runtime.sources import Clock
from tallystick.wire import is_number

log = logging.getLogger(__name__)

ANSWER_S = 10.0
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 2.0
REST_FIRST_S, REST_MAX_S = 5.0, 320.0  # that an endpoint which failed stands behind the others; it doubles
SCHEME = "cometbft://"
_ANSWER_BYTES_MAX = 32 << 20

NOT_AN_ANSWER = (TypeError, ValueError, LookupError, AttributeError)  # what reading a hostile one may raise

T = TypeVar("T")


class RpcEndpoint:
    """One node's RPC; threads may share it, each with a connection of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.name = f"{host}:{port}"
        self._host, self._port = host, port
        self._local = threading.local()
        self._open: set[_Connection] = set()
        self._identifiers = itertools.count(1)

    def call(self, method: str, timeout_s: float = ANSWER_S, **params: Any) -> Any:
        """The result. Raises `Unavailable` where the node cannot be reached, `Refused` where it says no."""
        body = {"jsonrpc": "2.0", "id": next(self._identifiers), "method": method, "params": params}
        return self._post("/", "application/json", orjson.dumps(body), timeout_s)

    def ask(self, name: str, *arguments: Any, timeout_s: float = ANSWER_S) -> Any:
        """A question to the application behind this node (`queries`)."""
        data = wire.encode(list(arguments)).hex()
        answer = self.call("abci_query", timeout_s, path=PREFIX + name, data=data)
        try:
            response = answer["response"]
            return read_answer(response, b64decode(response.get("value") or ""))
        except NOT_AN_ANSWER as error:
            raise Unavailable(f"{self.name}: not an answer: {error}") from error

    def broadcast(self, data: bytes) -> None:
        """Hand in a transaction; returns when the node has checked it. Raises `Refused` with the reason.

        As a form in hexadecimal: CometBFT goes over a request in JSON a dozen times, which for a large transaction was
        40 % of all that it does.
        """
        body = b"tx=0x" + data.hex().encode()
        try:
            result = self._post("/broadcast_tx_sync", "application/x-www-form-urlencoded", body, ANSWER_S)
        except Refused as refusal:
            if refusal.reason == "known":
                return
            raise
        try:
            code, told, reason = int(result["code"]), str(result["log"]), str(result.get("codespace") or "refused")
        except NOT_AN_ANSWER as error:
            raise Unavailable(f"{self.name}: not an answer: {error}") from error
        if code != OK:
            raise Refused(told, reason=reason)

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def _post(self, path: str, kind: str, body: bytes, timeout_s: float) -> Any:
        for fresh in (False, True):  # a kept connection may have been closed by the node meanwhile
            connection = self._connection(fresh=fresh)
            try:
                connection.begin(timeout_s)
                connection.request("POST", path, body, {"content-type": kind})
                answer = orjson.loads(connection.getresponse().read(_ANSWER_BYTES_MAX))
                if (error := answer.get("error")) is not None:
                    raise _translate(self.name, f"{error.get('message', '')}: {error.get('data', '')}")
                return answer["result"]
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                connection.close()
                if fresh:
                    raise Unavailable(f"{self.name}: the connection was closed") from error
            except (OSError, *NOT_AN_ANSWER, http.client.HTTPException) as error:
                connection.close()
                raise Unavailable(f"{self.name}: {error}", hint="is the validator running?") from error
        raise AssertionError

    def _connection(self, *, fresh: bool) -> _Connection:
        kept: _Connection | None = getattr(self._local, "connection", None)
        if kept is None or fresh:
            if kept is not None:
                self._open.discard(kept)
                kept.close()
            kept = _Connection(self._host, self._port)
            self._local.connection = kept
            self._open.add(kept)
        return kept


class _Socket(socket.socket):
    """A socket on which everything that is received has one deadline, however it trickles."""

    deadline = 0.0

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("its answer takes too long")
        self.settimeout(left_s)
        return super().recv_into(*arguments, **options)


class _Connection(http.client.HTTPConnection):
    sock: _Socket | None

    def begin(self, timeout_s: float) -> None:
        """One request and its whole answer take at most this long."""
        self.timeout = timeout_s
        if self.sock is None:
            self.connect()
            assert self.sock is not None
        self.sock.settimeout(timeout_s)
        self.sock.deadline = time.monotonic() + timeout_s

    def connect(self) -> None:
        super().connect()
        assert self.sock is not None
        self.sock = _Socket(fileno=self.sock.detach())


class Endpoints:
    """Several nodes of one chain."""

    def __init__(self, endpoints: Sequence[RpcEndpoint], clock: Clock) -> None:
        self.all = list(endpoints)
        self._clock = clock
        self._first = 0
        self._resting: dict[int, float] = {}  # until when, by number
        self._rest_s: dict[int, float] = {}  # how long the last time, since it last served

    @classmethod
    def parse(cls, url: str, clock: Clock) -> Endpoints:
        """`cometbft://host:port,host:port,…`"""
        if not url.startswith(SCHEME):
            raise Misuse(f'ledger "{url}": expected {SCHEME}host:port,…')
        found = []
        for part in url.removeprefix(SCHEME).rstrip("/").split(","):
            host, _, port = part.rpartition(":")
            if not host or not is_number(port) or not 0 < int(port) < 65536:
                raise Misuse(f'ledger "{url}": "{part}" is not host:port', hint=f"for example {SCHEME}127.0.0.1:26657")
            found.append(RpcEndpoint(host.strip("[]"), int(port)))
        return cls(found, clock)

    def in_turn(self) -> list[tuple[int, RpcEndpoint]]:
        """All of them, each with its number: the one that answered last comes first, those that rest come last."""
        now, count = self._clock.monotonic(), len(self.all)
        order = [(self._first + step) % count for step in range(count)]
        return [(one, self.all[one]) for one in sorted(order, key=lambda one: self._resting.get(one, 0.0) > now)]

    def awake(self) -> list[tuple[int, RpcEndpoint]]:
        """Those that do not rest, in order."""
        now = self._clock.monotonic()
        return [(one, found) for one, found in enumerate(self.all) if self._resting.get(one, 0.0) <= now]

    def turn(self) -> None:
        """Begin with the next one from now on."""
        self._first = (self._first + 1) % len(self.all)

    def rest(self, which: int) -> None:
        """This one let somebody wait, or differed from what was agreed: ask it last, longer each time."""
        self._rest_s[which] = min(2 * self._rest_s.get(which, REST_FIRST_S / 2), REST_MAX_S)
        self._resting[which] = self._clock.monotonic() + self._rest_s[which]

    def served(self, which: int) -> None:
        """This one served as it should."""
        self._rest_s.pop(which, None)

    def attempt(self, act: Callable[[RpcEndpoint], T], timeout_s: float) -> T:
        """Return what `act` gives with the first endpoint that serves. Raises what most of them say, if they say no,
        and `Unavailable` when the time is up."""
        deadline = self._clock.monotonic() + timeout_s
        pause_s = PAUSE_FIRST_S
        while True:
            troubles: list[TallystickError] = []
            for which, endpoint in self.in_turn():
                try:
                    result = act(endpoint)
                except TallystickError as error:
                    self.rest(which)
                    troubles.append(error)
                    continue
                self._first = which
                self.served(which)
                return result
            raise_common(troubles, len(self.all))
            if self._clock.monotonic() + pause_s >= deadline:
                raise no_answer("ledger: no validator answers", troubles)
            self._clock.pause(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def close(self) -> None:
        for endpoint in self.all:
            endpoint.close()


def raise_common(troubles: Sequence[TallystickError], count: int) -> None:
    """Raise the first no, if more than half of `count` endpoints said no: one alone may lie."""
    said_no = [one for one in troubles if not isinstance(one, Unavailable)]
    if 2 * len(said_no) > count:
        raise said_no[0]


def no_answer(what: str, troubles: Sequence[TallystickError]) -> Unavailable:
    told = "; ".join(dict.fromkeys(str(one) for one in troubles))
    found = Unavailable(
        f"{what}: {told}" if told else what, hint=next((one.hint for one in troubles if one.hint), None)
    )
    found.__cause__ = troubles[0] if troubles else None
    return found


def _translate(name: str, message: str) -> Unavailable | Refused | Misuse:
    """CometBFT's errors by their texts, which is all that tells them apart."""
    text = message.lower()
    if "already exists in cache" in text:
        return Refused("the transaction is known already", reason="known")
    if "too large" in text:
        return Misuse(
            f"{name}: the transaction is larger than the chain takes: {message}",
            hint="spread its entries over several, or raise mempool.max_tx_bytes on every validator",
        )
    if "mempool is full" in text:
        return Unavailable(
            f"{name}: its mempool is full", hint="the chain is slower than its writers; it is tried again"
        )
    return Unavailable(f"{name}: {message}")
