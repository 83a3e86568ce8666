"""From a request to its answer: a router for ASGI (path to handler, bounded bodies, one face for strangers), and the
gate that stands before the handlers of signed requests.

Measured on uvicorn with an empty handler and one route, CPU of the server per request: Starlette 110 µs, this
73; and Starlette tries its routes one after the other. What it offers besides (sessions, forms, templates,
middleware) no service here uses.

A handler takes a `Request` and returns an `Answer`. Whatever it lets escape (our errors, an unknown path, a
fault of ours) becomes `refuse_unauthenticated`, since nobody has shown who they are at this level. Whoever asks too
much is told to wait before anything else is looked at: `Buckets` count for services what each peer has asked for.
What is asked in many requests at once is bounded by `Shares`, and by `Pool`, which runs it on threads; what it costs,
by `Fairness`.

`Gate` stands between router and handler where requests are signed, gives the handler the envelope, and answers the
authenticated in full. Cheapest first, and no body is read for a stranger: head and signature, freshness, then the body
against its digest. Before the signature holds every refusal looks the same; after it, the peer is told what is wrong,
and one whose clock is off also what time it is here, signed. Replays within the window are the handler's to stop: it
gets the envelope, and the guards keep the nonces. A gate that `vouches` signs every answer over its request, the silent
refusal too, so that nobody in between can refuse in its name.

What nobody can be held to (no signature, a stale or future one, a replay: anybody may have sent those bytes) is told
to `on_junk`, which counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.errors import Misuse, Refused, TallystickError, Unavailable
from tallystick.runtime.counting import OTHER, Counts, Durations
from tallystick.runtime.http1 import Answer, answer_error, refuse_unauthenticated
from tallystick.runtime.sources import Clock
from tallystick.trust.envelope import (
    ANSWER_HEADER,
    UNAUTHENTICATED,
    Envelope,
    Headers,
    RequestHead,
    ResolveKey,
    asked_hash,
    sign_answer,
    signed_time,
    verify_head,
)

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

BUSY_S = 0.5  # before whoever holds its share may ask again


class Rate(NamedTuple):
    per_s: float
    most: float  # at once, after a silence


class Buckets(Generic[K]):
    """Token buckets: so much at once, then so much a second.

    There is one for each key; the least recent of more than `kept_max` begin anew, full.
    """

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._buckets: OrderedDict[K, tuple[float, float]] = OrderedDict()  # what is left, and when

    def wait_s(self, key: K, rate: Rate, needed: float, now: float) -> float:
        """How long until the bucket holds what is needed, or 0 if it does."""
        return max(0.0, (needed - self._left(key, rate, now)) / rate.per_s)

    def take(self, key: K, rate: Rate, count: float, now: float) -> None:
        """Take it, down to below nothing: what is missing is paid for before anything else."""
        left = self._left(key, rate, now) - count
        self._buckets.pop(key, None)
        self._buckets[key] = (left, now)
        if len(self._buckets) > self._kept_max:
            self._buckets.popitem(last=False)

    def charge(self, key: K, rate: Rate, count: float, now: float, needed: float | None = None) -> float:
        """Take `count` if the bucket holds that, or what is `needed`; how long to wait otherwise."""
        wait_s = self.wait_s(key, rate, count if needed is None else needed, now)
        self.take(key, rate, count if wait_s == 0 else 0, now)
        return wait_s

    def _left(self, key: K, rate: Rate, now: float) -> float:
        left, at = self._buckets.get(key, (rate.most, now))
        return min(rate.most, left + (now - at) * rate.per_s)


class Rates:
    """A bucket for each principal: `burst` requests, or parts, at once, then `per_s`, whatever connections it uses.

    Threat: a principal with a valid key that asks and asks. An empty bucket refuses that principal alone; only signed
    requests are counted, so nobody empties another's. The least recent of more than `principals_max` start anew.
    """

    def __init__(self, per_s: float, burst: int, principals_max: int) -> None:
        self._rate = Rate(per_s, burst)
        self._buckets: Buckets[bytes] = Buckets(principals_max)

    def charge(self, principal: bytes, now: float, count: int = 1) -> None:
        """Take `count` at `now` (seconds that never fall). Raises `Unavailable` if the bucket has not that many."""
        wait_s = self._buckets.charge(principal, self._rate, count, now)
        if wait_s:
            raise Unavailable("too many requests of this principal", retry_after_s=wait_s)


class Shares(Generic[K]):
    """How many of something each may hold at once."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self._held: Counter[K] = Counter()

    @contextmanager
    def held(self, who: K) -> Iterator[None]:
        """Raises `Unavailable` where `who` holds its share already."""
        if self._held[who] >= self._most:
            raise Unavailable(f"{self._what}: at most {self._most} at once", retry_after_s=BUSY_S)
        self._held[who] += 1
        try:
            yield
        finally:
            self._held[who] -= 1
            if not self._held[who]:
                del self._held[who]


class Fairness:
    """How much work was done for each tenant, and how long it rests.

    Threat: a tenant whose requests are few and each allowed, and cost much, so that all others wait behind them. While
    another tenant is there, whoever had more than its part of a core done rests before its next request; alone it may
    have everything.
    """

    PART = Rate(0.2, 0.5)  # of a core, and seconds of one at once
    PRESENT_S = 2.0  # since a tenant's last request
    TENANTS_MAX = 4_096

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._done: Buckets[bytes] = Buckets(self.TENANTS_MAX)
        self._came: OrderedDict[bytes, float] = OrderedDict()  # the last one last

    def come(self, tenant: bytes) -> None:
        self._came[tenant] = self._clock.monotonic()
        self._came.move_to_end(tenant)
        if len(self._came) > self.TENANTS_MAX:
            self._came.popitem(last=False)

    def rest_s(self, who: bytes) -> float:
        """Before its next request; whoever is no tenant, such as the authority, never rests."""
        now = self._clock.monotonic()
        other = next((one for one in reversed(self._came) if one != who), None)
        if who not in self._came or other is None or now - self._came[other] > self.PRESENT_S:
            return 0.0
        return self._done.wait_s(who, self.PART, 0.0, now)

    def note(self, who: bytes, worked_s: float) -> None:
        self._done.take(who, self.PART, worked_s, self._clock.monotonic())


class PoolLimits(NamedTuple):
    threads: int
    share: int  # threads that one tenant's work may hold
    waiting: int  # requests of one tenant beyond those; more are told to come back


class Pool:
    """Threads for work of one kind, of which nobody holds more than a share; on one event loop.

    Threat: a tenant whose requests take long, by waiting for a block or by what they look for, until no thread is left
    for anybody. Work of other kinds has other threads, and of this kind at most a share is one tenant's: what it asks
    beyond that waits without a thread, and beyond that is told to come back. Whose work is much rests (`Fairness`).
    """

    def __init__(self, name: str, limits: PoolLimits, fairness: Fairness) -> None:
        self._fairness = fairness
        self._threads = ThreadPoolExecutor(limits.threads, name)
        self._share = limits.share
        self._waiting: Shares[bytes] = Shares(limits.share + limits.waiting, "requests of this tenant")
        self._turns: WeakValueDictionary[bytes, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, who: bytes, work: Callable[[], T]) -> T:
        with self._waiting.held(who):
            turn = self._turns.get(who)
            if turn is None:  # kept by those who wait for it
                turn = self._turns[who] = asyncio.Semaphore(self._share)
            async with turn:
                while rest_s := self._fairness.rest_s(who):
                    await asyncio.sleep(min(rest_s, Fairness.PRESENT_S))
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, self._timed, loop, who, work)

    def _timed(self, loop: asyncio.AbstractEventLoop, who: bytes, work: Callable[[], T]) -> T:
        began = time.thread_time()
        try:
            return work()
        finally:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._fairness.note, who, time.thread_time() - began)

    def stop(self) -> None:
        """Return when what is under way is done."""
        self._threads.shutdown(cancel_futures=True)


log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

Handler = Callable[["Request"], Awaitable[Answer]]
# (host, port) of the connection and bytes announced, to seconds the peer must wait, 0 to go on.
Charge = Callable[[tuple[str, int], int], float]

_DRAIN_BYTES_MAX = 1024 * 1024  # what is read for politeness after a refusal; beyond it the connection breaks


class Request:
    """One request as a handler sees it; `path` is as it came, `parameters` its parts that the route names."""

    __slots__ = ("_body_bytes_max", "_receive", "_whole", "client", "headers", "method", "parameters", "path", "query")

    def __init__(self, scope: Scope, receive: Receive, body_bytes_max: int) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["raw_path"].decode("ascii", "replace")
        self.query: str = scope["query_string"].decode("ascii", "replace")
        self.headers: Headers = scope["headers"]
        self.client: tuple[str, int] = scope["client"] or ("", 0)
        self.parameters: Mapping[str, str] = {}
        self._receive = receive
        self._body_bytes_max = body_bytes_max
        self._whole = False

    def header(self, name: bytes) -> bytes | None:
        """The one header of that name. Raises `Refused` if there are two."""
        values = [value for key, value in self.headers if key == name]
        if len(values) > 1:
            raise Refused(f"request: header {name.decode()} appears {len(values)} times", reason="malformed")
        return values[0] if values else None

    @property
    def authority(self) -> str:
        return (self.header(b"host") or b"").decode("ascii", "replace").lower()

    @property
    def announced_bytes(self) -> int:
        """The body's length; a body whose length is not known beforehand is refused."""
        if self.header(b"transfer-encoding") is not None:
            raise Refused("request: expected a body of known length, found a transfer coding", reason="malformed")
        text = self.header(b"content-length") or b"0"
        return int(text) if text.isdigit() and len(text) < 20 else 0

    async def body(self) -> bytes:
        """The whole body. Raises `Refused` (`too-large`) before it takes more than it may."""
        if self.announced_bytes > self._body_bytes_max:
            raise self._too_large(self.announced_bytes)
        parts: list[bytes] = []
        size = 0
        while not self._whole:
            part = await self._part()
            size += len(part)
            if size > self._body_bytes_max:
                raise self._too_large(size)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def drain(self) -> None:
        """Read what is left of a reasonable body, so that a refusal reaches a peer that is still sending."""
        left = _DRAIN_BYTES_MAX
        while not self._whole and left > 0:
            left -= len(await self._part())

    async def _part(self) -> bytes:
        event = await self._receive()
        if event["type"] == "http.disconnect":
            self._whole = True
            raise Refused("request: the peer left in the middle of the body", reason="malformed")
        self._whole = not event.get("more_body", False)
        part: bytes = event.get("body", b"")
        return part

    def _too_large(self, size: int) -> Refused:
        return Refused(f"body of {size} bytes or more: at most {self._body_bytes_max} are accepted", reason="too-large")


H = TypeVar("H")


class Routes(Generic[H]):
    """Handlers by method and path."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str, str], H] = {}
        self._patterns: dict[tuple[str, int], list[tuple[list[str], H]]] = {}

    def add(self, method: str, pattern: str, handler: H) -> None:
        """Let `handler` serve `pattern`, whose parts in braces match any one part that is not empty."""
        parts = pattern.split("/")
        if not pattern.startswith("/") or (method, pattern) in self._exact:
            raise Misuse(f"route {method} {pattern}: expected a new one from the first slash")
        if any(part.startswith("{") for part in parts):
            self._patterns.setdefault((method, len(parts)), []).append((parts, handler))
        else:
            self._exact[method, pattern] = handler

    def find(self, method: str, path: str) -> tuple[H, Mapping[str, str]]:
        """The handler, and the parts of the path that its route names. Raises `Refused` (`not-found`)."""
        exact = self._exact.get((method, path))
        if exact is not None:
            return exact, {}
        parts = path.split("/")
        for pattern, handler in self._patterns.get((method, len(parts)), ()):
            parameters = _match(pattern, parts)
            if parameters is not None:
                return handler, parameters
        raise Refused(f"no route {method} {path}", reason="not-found")


class Router:
    """An ASGI application of handlers by method and path.

    router = Router(body_bytes_max=1 << 20)
    router.add("GET", "/v1/topics/{token}", show_topic)
    """

    def __init__(self, *, body_bytes_max: int = 16 * 1024 * 1024, charge: Charge | None = None) -> None:
        self._body_bytes_max = body_bytes_max
        self._charge = charge
        self._routes: Routes[tuple[str, Handler]] = Routes()
        self._names: set[str] = set()
        self._durations, self._refused = Durations(self._names), Counts()

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        """As `Routes.add`."""
        name = f"{method} {pattern}"
        self._routes.add(method, pattern, (name, handler))
        self._names.add(name)

    def statistics(self) -> dict[str, Any]:
        """How long answers took, by route, and what was refused, by reason. Strangers are all refused for the same one,
        here too: who may read this must not learn from it what their request lacked."""
        return {"duration_s": self._durations.snapshot(), "refused": self._refused.snapshot()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive, self._body_bytes_max)
        began = time.monotonic()
        try:
            route, answer = await self._answer(request)
        except asyncio.CancelledError:  # the server ends, and cuts long polls: their callers ask again
            route, answer = OTHER, answer_error(Unavailable("the server stops"))
        self._durations.note(time.monotonic() - began, route)
        if answer.reason:
            self._refused.add(answer.reason)
        headers = [(b"content-length", b"%d" % len(answer.body)), (b"content-type", answer.content_type.encode())]
        headers += [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, request: Request) -> tuple[str, Answer]:
        """The name of the route that answered, and its answer."""
        route = OTHER
        try:
            if self._charge is not None:
                wait_s = self._charge(request.client, request.announced_bytes)
                if wait_s > 0:
                    return route, await self._slow_down(request, wait_s)
            (route, handler), request.parameters = self._routes.find(request.method, request.path)
            return route, await handler(request)
        except TallystickError as error:
            log.debug("refused %s %s: %s", request.method, request.path, error)
        except Exception:
            log.exception("fault while answering %s %s", request.method, request.path)
        return route, await refuse(request)

    async def _slow_down(self, request: Request, wait_s: float) -> Answer:
        await request.drain()
        return answer_error(Unavailable("too many requests on this connection", retry_after_s=wait_s))


async def refuse(request: Request) -> Answer:
    """`refuse_unauthenticated`, once the peer has been listened to."""
    with suppress(Refused):  # it left
        await request.drain()
    return refuse_unauthenticated()


def _match(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    parameters: dict[str, str] = {}
    for expected, part in zip(pattern, parts, strict=True):
        if expected.startswith("{") and part:
            parameters[expected[1:-1]] = part
        elif expected != part:
            return None
    return parameters


log = logging.getLogger(__name__)

SignedHandler = Callable[[Request, Envelope, bytes], Awaitable[Answer]]

NOBODYS = UNAUTHENTICATED | {"stale", "future", "duplicate"}


def _count_nothing(method: str, reason: str) -> None:
    pass


def _always(principal: bytes) -> bool:
    return True


class _NotAtHand(Exception):
    """A key has to be asked for first."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What a node needs to know to judge a signed request."""

    node: bytes
    key: SigningKey  # signs the time, and answers
    resolve_key: ResolveKey
    clock: Clock
    delay_max_s: float = 60.0  # how long an honest request may be under way
    skew_max_s: float = 5.0  # how far an honest clock may be off
    on_junk: Callable[[str, str], None] = _count_nothing  # method and reason of what nobody can be held to
    at_hand: Callable[[bytes], bool] = _always  # whether a principal's key is known without a look at the ledger
    vouches: bool = False  # whether answers are signed, each over its request

    def signed(self, handler: SignedHandler) -> Handler:
        """`handler` for signed requests, as a handler for the router."""

        async def handle(request: Request) -> Answer:
            try:
                envelope = await self._verified(request)
            except Refused:
                return self.vouch(request, await refuse(request))
            try:
                self.check_fresh(envelope)
                body = await request.body()
                envelope.check_body(body)
                return self.vouch(request, await handler(request, envelope, body))
            except TallystickError as error:
                await refuse(request)
                return self.explain(request, envelope, error)
            except Exception:
                log.exception("fault while answering %s %s", request.method, request.path)
                return answer_error(Unavailable("the node failed to answer; its log says why"))

        return handle

    async def _verified(self, head: RequestHead) -> Envelope:
        """As `verify`. Threat: a stranger names principals whose keys must be asked for, of a ledger that is busy or
        far away; a thread does so, and the event loop goes on."""
        try:
            return self.verify(head, self._key_at_hand)
        except _NotAtHand:
            return await asyncio.to_thread(self.verify, head)

    def _key_at_hand(self, principal: bytes) -> VerifyKey | None:
        if not self.at_hand(principal):
            raise _NotAtHand
        return self.resolve_key(principal)

    def verify(self, head: RequestHead, resolve_key: ResolveKey | None = None) -> Envelope:
        """The envelope of a request whose signature holds; its body has yet to be held to it."""
        try:
            return verify_head(head, resolve_key or self.resolve_key, self.node)
        except Refused as error:
            log.debug("refused %s %s: %s", head.method, head.path, error)
            self.on_junk(head.method, error.reason)
            raise

    def check_fresh(self, envelope: Envelope) -> None:
        envelope.check_fresh(self.clock.now(), self.delay_max_s, self.skew_max_s)

    def explain(self, head: RequestHead, envelope: Envelope, error: TallystickError) -> Answer:
        """The answer to a peer whose signature holds."""
        log.info("refused %s %s: %s", head.method, head.path, error)
        reason = error.reason if isinstance(error, Refused) else ""
        if reason in NOBODYS:
            self.on_junk(head.method, reason)
        if reason in UNAUTHENTICATED:  # a signed head before another's body: its principal did not ask this
            return self.vouch(None, refuse_unauthenticated())
        stale = reason in ("stale", "future")
        extra = signed_time(self.key, self.node, envelope.nonce, self.clock.now()) if stale else None
        return self.vouch(head, answer_error(error, extra))

    def vouch(self, head: RequestHead | None, answer: Answer) -> Answer:
        """The answer, signed for this request if we sign; for none, the signature is there and holds for nobody."""
        if not self.vouches:
            return answer
        request = bytes(32) if head is None else asked_hash(head)
        signature = sign_answer(self.key, self.node, request, answer.status, answer.body)
        return replace(answer, headers={**answer.headers, ANSWER_HEADER: signature})
