"""The client's decisions, without sockets: what to send where, whether to try again, and when.

`converse` is a generator: it yields `Attempt` (exchange these bytes with that endpoint) and `Pause`, is sent
what came of it, and returns the answer; the client on sockets and the one of the simulation drive the same one.

Rules: the world's failures (`Unavailable`) are tried again, at the next address at once and after a growing,
jittered pause when all have failed, as long as there is time (`until`); a node that names a delay gets it; a refusal
is final. Every attempt is signed anew, with its own nonce, since a node may have taken one whose answer was lost:
requests must be harmless to repeat, and ours are (lanes have sequences, transactions have numbers).

Threat: a node that lies about the time to collect requests dated in the future. Its signed time counts only
under its own key, for the request just sent, only for requests to itself, and at most `offset_max_s` away
from our clock.

Threat: whoever answers in the place of a peer that signs its answers (`vouched`). What the peer did not sign, for the
request just sent, is the world's failure: whoever can forge an answer, or a refusal, could as well have cut the line,
and gains nothing more. Only "later" needs no signature.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Misuse, Refused, Unavailable
from tallystick.runtime.address import Endpoint
from tallystick.runtime.http1 import RefusedByPeer, Response, check_answer, encode_head
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.envelope import (
    ANSWER_HEADER,
    NONCE_BYTES,
    Headers,
    PlainHead,
    asked_hash,
    check_time,
    sign_request,
    verify_answer,
)


@dataclass(frozen=True, slots=True)
class RequestSigner:
    """Who signs: a principal and its enrolled key."""

    principal: bytes
    key: SigningKey


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds of a client."""

    connect_s: float = 5.0  # a node that takes longer to accept is as good as down
    answer_s: float = 30.0  # for a whole exchange; long polls say their own
    response_bytes_max: int = 64 * 1024 * 1024  # a fetch of many parcels
    attempts_max: int = 6
    backoff_first_s: float = 0.1  # doubled for every round in which all addresses failed
    backoff_max_s: float = 5.0
    retry_after_max_s: float = 60.0  # a node that asks for more gets an error to the caller instead
    offset_max_s: float = 86_400.0  # a clock that is further off must be set, not followed
    idle_s: float = 10.0  # below the server's keep-alive, so that reuse rarely meets a closed connection


@dataclass(frozen=True, slots=True)
class Attempt:
    """Send `head` and `body`, give back the `Response` or the `Unavailable` that came of it."""

    endpoint: Endpoint
    head: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait, give back None."""

    seconds: float


class ConnectionGone(Unavailable):
    """A connection kept from an earlier request had been closed meanwhile: says nothing about the node."""


Outcome = Response | Unavailable | None
Steps = Generator[Attempt | Pause, Outcome, Response]


class Conversation:
    """What a client remembers between requests: which address works, and how far off its clock is there."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        identity: RequestSigner | None,
        clock: Clock,
        entropy: Entropy,
        limits: ClientLimits,
    ) -> None:
        if not endpoints:
            raise Misuse("client: no address given")
        self._endpoints = tuple(endpoints)
        self._identity = identity
        self._clock = clock
        self._entropy = entropy
        self._limits = limits
        self.until = math.inf  # on the clock that never falls: nothing is tried again then
        self._preferred = 0
        self._offset_s: dict[bytes, float] = {}

    def converse(
        self,
        method: str,
        path: str,
        query: str,
        body: bytes,
        content_type: str,
        attempts_max: int | None = None,
        vouched: bool = False,
        beside: Sequence[tuple[bytes, bytes]] = (),
    ) -> Steps:
        """Yields the steps of one request and returns its good answer. Raises `Refused` or `Unavailable`.

        A `vouched` answer is signed by whom the address names, a refusal too. Headers `beside` ours are not signed.
        """
        left = self._limits.attempts_max if attempts_max is None else attempts_max
        failures, followed = 0, False
        while True:
            endpoint = self._endpoints[self._preferred]
            nonce = self._entropy.bytes(NONCE_BYTES)
            headers: list[tuple[bytes, bytes]] = [(b"content-type", content_type.encode()), *beside]
            if self._identity is not None:
                headers += self._sign(self._identity, endpoint, method, path, query, body, nonce)
            head = encode_head(method, f"{path}?{query}" if query else path, endpoint.authority, headers, len(body))
            outcome = yield Attempt(endpoint, head, body)
            try:
                if isinstance(outcome, Unavailable):
                    raise outcome
                assert outcome is not None
                if vouched:
                    self._check_vouched(endpoint, PlainHead(method, endpoint.authority, path, query, headers), outcome)
                return check_answer(outcome)
            except RefusedByPeer as refusal:
                if followed or not self._follow_time(endpoint, refusal, nonce):
                    raise
                followed = True
            except ConnectionGone:
                continue  # bounded: every one takes a kept connection away
            except Unavailable as error:
                failures += 1
                wait_s = self._wait_s(error, failures)
                if failures >= left or wait_s is None or self._clock.monotonic() + wait_s >= self.until:
                    raise
                if wait_s:
                    yield Pause(wait_s)

    def ask_another(self) -> int:
        """Prefer the next address: the one that answered answers wrongly. Returns how many there are."""
        self._preferred = (self._preferred + 1) % len(self._endpoints)
        return len(self._endpoints)

    def _sign(
        self, identity: RequestSigner, endpoint: Endpoint, method: str, path: str, query: str, body: bytes, nonce: bytes
    ) -> Headers:
        node = endpoint.address.node
        return sign_request(
            identity.key,
            identity.principal,
            node,
            method=method,
            authority=endpoint.authority,
            path=path,
            query=query,
            body=body,
            now=self._clock.now() + self._offset_s.get(node, 0.0),
            nonce=nonce,
        )

    def _check_vouched(self, endpoint: Endpoint, head: PlainHead, answer: Response) -> None:
        """Raise `Unavailable` unless the peer signed the answer to this request, or has none yet."""
        if answer.status == 429 or answer.status >= 500:
            return
        address = endpoint.address
        if address.key is None:
            raise Misuse(f"{address.url}: nobody said under which key its answers count")
        told = answer.headers.get(ANSWER_HEADER, "")
        try:
            verify_answer(told, address.key, address.node, asked_hash(head), answer.status, answer.body)
        except Forged as error:
            raise Unavailable(
                f"{address.url}: the answer is not signed by {address.node.hex()} for this request",
                hint="somebody answers in its place, or it runs an older release: upgrade the authority first",
            ) from error

    def _follow_time(self, endpoint: Endpoint, refusal: RefusedByPeer, nonce: bytes) -> bool:
        """Whether the node's signed time explains the refusal and is now followed."""
        key = endpoint.address.key
        if refusal.reason not in ("stale", "future") or key is None or type(refusal.extra) is not bytes:
            return False
        try:
            offset_s = check_time(refusal.extra, key, endpoint.address.node, nonce) - self._clock.now()
        except Refused:
            return False
        if abs(offset_s) > self._limits.offset_max_s:
            return False
        self._offset_s[endpoint.address.node] = offset_s
        return True

    def _wait_s(self, error: Unavailable, failures: int) -> float | None:
        """How long to wait before the next attempt, or None if the node wants more patience than we have."""
        if error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= self._limits.retry_after_max_s else None
        self.ask_another()
        rounds, rest = divmod(failures, len(self._endpoints))
        if rest:
            return 0.0
        longest = min(self._limits.backoff_max_s, self._limits.backoff_first_s * 2.0 ** (rounds - 1))
        jitter = int.from_bytes(self._entropy.bytes(2), "big") / 0xFFFF
        return longest * (0.5 + jitter / 2)
