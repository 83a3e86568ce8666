"""CometBFT's RPC over HTTP: one endpoint, several endpoints, and what their errors mean.

Nothing that an endpoint says is believed here; who needs to, asks for proofs. Several endpoints are tried in turn,
beginning with the one that answered last; when none does, again after a pause that doubles, until the caller's time is
up. A request may arrive more than once, so only what may be repeated is sent this way: queries, and transactions, which
are taken once whatever their number.
"""

from __future__ import annotations

import http.client
import itertools
import logging
import threading
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson

from tallystick import wire
from tallystick.abci.messages import OK
from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.ledger.cometbft.queries import PREFIX, read_answer
from tallystick.runtime.sources import Clock

log = logging.getLogger(__name__)

ANSWER_S = 10.0
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 2.0
SCHEME = "cometbft://"
_ANSWER_BYTES_MAX = 32 << 20

T = TypeVar("T")


class RpcEndpoint:
    """One node's RPC; threads may share it, each with a connection of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.name = f"{host}:{port}"
        self._host, self._port = host, port
        self._local = threading.local()
        self._open: set[http.client.HTTPConnection] = set()
        self._identifiers = itertools.count(1)

    def call(self, method: str, timeout_s: float = ANSWER_S, **params: Any) -> Any:
        """The result. Raises `Unavailable` where the node cannot be reached, `Refused` where it says no."""
        body = {"jsonrpc": "2.0", "id": next(self._identifiers), "method": method, "params": params}
        return self._post("/", "application/json", orjson.dumps(body), timeout_s)

    def ask(self, name: str, *arguments: Any, timeout_s: float = ANSWER_S) -> Any:
        """A question to the application behind this node (`queries`)."""
        data = wire.encode(list(arguments)).hex()
        response = self.call("abci_query", timeout_s, path=PREFIX + name, data=data)["response"]
        return read_answer(response, b64decode(response.get("value") or ""))

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
        if int(result["code"]) != OK:
            raise Refused(str(result["log"]), reason=str(result.get("codespace") or "refused"))

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def _post(self, path: str, kind: str, body: bytes, timeout_s: float) -> Any:
        for fresh in (False, True):  # a kept connection may have been closed by the node meanwhile
            connection = self._connection(timeout_s, fresh=fresh)
            try:
                connection.request("POST", path, body, {"content-type": kind})
                answer = orjson.loads(connection.getresponse().read(_ANSWER_BYTES_MAX))
                if not isinstance(answer, dict):
                    raise ValueError("not an object")
                if (error := answer.get("error")) is not None:
                    raise _translate(self.name, f"{error.get('message', '')}: {error.get('data', '')}")
                return answer["result"]
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                connection.close()
                if fresh:
                    raise Unavailable(f"{self.name}: the connection was closed") from error
            except (OSError, ValueError, http.client.HTTPException) as error:
                connection.close()
                raise Unavailable(f"{self.name}: {error}", hint="is the validator running?") from error
        raise AssertionError

    def _connection(self, timeout_s: float, *, fresh: bool) -> http.client.HTTPConnection:
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is None or fresh:
            if kept is not None:
                self._open.discard(kept)
                kept.close()
            kept = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
            self._local.connection = kept
            self._open.add(kept)
        elif kept.sock is not None:
            kept.sock.settimeout(timeout_s)
        return kept


class Endpoints:
    """Several nodes of one chain."""

    def __init__(self, endpoints: Sequence[RpcEndpoint], clock: Clock) -> None:
        self.all = list(endpoints)
        self._clock = clock
        self._first = 0

    @classmethod
    def parse(cls, url: str, clock: Clock) -> Endpoints:
        """`cometbft://host:port,host:port,…`"""
        if not url.startswith(SCHEME):
            raise Misuse(f'ledger "{url}": expected {SCHEME}host:port,…')
        found = []
        for part in url.removeprefix(SCHEME).rstrip("/").split(","):
            host, _, port = part.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise Misuse(f'ledger "{url}": "{part}" is not host:port', hint=f"for example {SCHEME}127.0.0.1:26657")
            found.append(RpcEndpoint(host.strip("[]"), int(port)))
        return cls(found, clock)

    def attempt(self, act: Callable[[RpcEndpoint], T], timeout_s: float) -> T:
        """What `act` gives with the first endpoint that is available; `Unavailable` when the time is up."""
        deadline = self._clock.monotonic() + timeout_s
        pause_s = PAUSE_FIRST_S
        while True:
            troubles = []
            for step in range(len(self.all)):
                which = (self._first + step) % len(self.all)
                try:
                    result = act(self.all[which])
                except Unavailable as error:
                    troubles.append(error)
                    continue
                self._first = which
                return result
            if self._clock.monotonic() + pause_s >= deadline:
                told = "; ".join(dict.fromkeys(str(one) for one in troubles))
                raise Unavailable(f"ledger: no validator answers: {told}", hint=troubles[0].hint) from troubles[0]
            self._clock.pause(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def close(self) -> None:
        for endpoint in self.all:
            endpoint.close()


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
