"""The authority's HTTP service: signed requests to method calls, and the work that time demands.

Threat: a stranger who probes; the gate verifies the RFC 9421 signature before a body is read, and whatever fails
before that, enrolment included, has one face. Replays within the freshness of a signature are harmless: the nonce
inside the body makes them the same request (`permits`). Threat: many who wait, or one who asks too much; long polls
hold no thread, are counted, and wake when something changed, and each principal has a rate of its own; of the threads a
tenant has a share, and the authority's own work has others. `charge` bounds connections before anybody is known.

The authority itself is synchronous: its methods run on a few threads, and while one waits for the ledger the others
go on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from tallystick.authority.answers import NOBODY, Caller
from tallystick.authority.asks import ASKS, NONCE_BYTES, Ask, AskKeys
from tallystick.authority.authority import Authority
from tallystick.authority.describe import describe
from tallystick.errors import Refused, TallystickError, Unavailable
from tallystick.runtime.http1 import Answer, answer_error
from tallystick.runtime.logs import Lasting
from tallystick.runtime.router import (
    Charge,
    Fairness,
    Gate,
    Handler,
    Pool,
    PoolLimits,
    Rates,
    Request,
    Router,
    Shares,
    SignedHandler,
)
from tallystick.runtime.sources import Clock
from tallystick.trust.envelope import Envelope, signed_time

log = logging.getLogger(__name__)

T = TypeVar("T")

# Requests that wait for one block together, of all tenants and of one; more would only queue at the store.
THREADS = PoolLimits(64, 16, 256)
WATCH_S = 1.0  # between two looks at how the node is and how far the ledger was followed
TICK_S = 0.5  # how late an epoch may begin and a revocation be noticed, beside the ledger's own blocks


class Service:
    """An ASGI application for one authority; `run` must be running beside it."""

    def __init__(
        self,
        authority: Authority,
        clock: Clock,
        *,
        charge: Charge | None = None,
        polls_max: int = 10_000,
        tick_s: float = TICK_S,
        ask_node: Callable[[], str] = str,
    ) -> None:
        """`ask_node` returns what is the matter with the node through which the ledger is read, empty if nothing is."""
        self._authority = authority
        self._clock = clock
        self._tick_s = tick_s
        self._ask_node = ask_node
        self._hindered = ""  # by what the node said last
        self._polls_max = polls_max
        self._polls: set[asyncio.Future[None]] = set()
        self._ending = False
        self._fairness = Fairness(clock)
        self._pool = Pool("tally-authority", THREADS, self._fairness)
        self._own = ThreadPoolExecutor(2, "tally-authority-own")  # for its own work, and for its numbers
        self._watching = ThreadPoolExecutor(1, "tally-authority-watch")  # it waits for a node that hangs
        gate = Gate(
            *(authority.certificate.subject, authority.core.keys.signing, authority.resolve_key, clock),
            at_hand=authority.subjects.has_key,
            vouches=True,
        )
        limits = authority.core.limits
        self._rates = Rates(limits.requests_per_s, limits.requests_burst, limits.principals_max)
        self._requests: Shares[bytes] = Shares(limits.requests_max, "requests of this principal")
        self.app = Router(body_bytes_max=limits.request_bytes_max, charge=charge)
        for kind in ASKS:
            handler = gate.signed(self._signed(kind)) if kind.signed else self._unsigned(kind)
            self.app.add("POST", kind.path, handler)
        for path, plain in (
            ("/v1/time", self._time),
            ("/health/live", self._live),
            ("/health/ready", self._ready),
            ("/metrics", self._metrics),
            ("/openapi.json", self._openapi),
        ):
            self.app.add("GET", path, plain)

    async def run(self) -> None:
        """Follow the ledger and the clock, and watch what hinders that, until cancelled; an error is logged and tried
        again."""
        await asyncio.gather(self._work(), self._watch())

    async def _work(self) -> None:
        lasting = Lasting(log, "authority at work")
        while True:
            try:
                await self._call(self._authority.work)
                lasting.tell("")
            except TallystickError as error:
                lasting.tell(str(error))
            except Exception:
                log.exception("fault while the authority was at work")
            await self._clock.sleep(self._tick_s)

    async def _watch(self) -> None:
        """Ask the node beside the work, which may take long to notice: it waits for blocks, and tries again."""
        lasting = Lasting(log, "authority")
        while True:
            await self._clock.sleep(WATCH_S)  # first: who has just begun is behind, and that is no news
            try:
                self._hindered = await asyncio.get_running_loop().run_in_executor(self._watching, self._ask_node)
                lasting.tell(self._hindered or self._behind())
            except Exception:
                log.exception("fault while the authority was watched")

    def _behind(self) -> str:
        try:
            self._authority.check_ready()
        except Unavailable as error:
            return f"authority behind: {error}"
        return ""

    def end_polls(self) -> None:
        """Answer all who wait, now and from now on; on the event loop."""
        self._ending = True
        self._wake()

    def close(self) -> None:
        self._pool.stop()
        self._own.shutdown()
        self._watching.shutdown()

    # --- requests ---

    def _signed(self, kind: type[Ask[Any]]) -> SignedHandler:
        async def handle(_: Request, envelope: Envelope, body: bytes) -> Answer:
            self._rates.charge(envelope.principal, self._clock.monotonic())
            ask, nonce = kind.decode(body, self._authority.core.limits)
            caller, who = Caller(envelope.principal, nonce), self._authority.subjects.share_of(envelope.principal)
            if who != envelope.principal:  # a tenant's
                self._fairness.come(who)
            with self._requests.held(envelope.principal):
                if isinstance(ask, AskKeys):
                    return await self._wait(ask, caller, who)
                return await self._serve(ask, caller, who)

        return handle

    def _unsigned(self, kind: type[Ask[Any]]) -> Handler:
        async def handle(request: Request) -> Answer:
            ask, _ = kind.decode(await request.body(), self._authority.core.limits)
            try:
                return await self._serve(ask, NOBODY, request.client[0].encode())
            except Unavailable as error:
                return answer_error(error)

        return handle

    async def _serve(self, ask: Ask[Any], caller: Caller, who: bytes) -> Answer:
        """By the share of `who`: a tenant, or the address of somebody who is not enrolled yet."""
        work = partial(self._authority.answer, ask, caller)
        return Answer(body=ask.encode_answer(await self._noticing(self._pool.run(who, work))))

    async def _wait(self, ask: AskKeys, caller: Caller, who: bytes) -> Answer:
        """Serve a long poll: answer when there is news, or when the time is up."""
        deadline = self._clock.monotonic() + min(ask.wait_ms, self._authority.core.limits.wait_ms_max) / 1000
        nothing = ask.encode_answer(b"")
        while True:
            version = self._authority.core.version
            answer = await self._serve(ask, caller, who)
            left_s = deadline - self._clock.monotonic()
            if answer.body != nothing or left_s <= 0 or self._ending:
                return answer
            await self._news(version, left_s)

    async def _news(self, version: int, left_s: float) -> None:
        """Return when the authority's version is no longer `version`, or the time is up."""
        if self._authority.core.version != version:
            return
        if len(self._polls) >= self._polls_max:
            raise Unavailable("too many wait for news already", retry_after_s=5.0)
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._polls.add(woken)
        sleeper = asyncio.ensure_future(self._clock.sleep(left_s))
        try:
            await asyncio.wait((woken, sleeper), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
            self._polls.discard(woken)

    async def _call(self, call: Callable[[], T]) -> T:
        """Run a method of the authority on a thread of its own."""
        return await self._noticing(asyncio.get_running_loop().run_in_executor(self._own, call))

    async def _noticing(self, work: Awaitable[T]) -> T:
        """Whoever waits hears of what it changes."""
        version = self._authority.core.version
        try:
            return await work
        finally:
            if self._authority.core.version != version:
                self._wake()

    def _wake(self) -> None:
        for woken in self._polls:
            if not woken.done():
                woken.set_result(None)

    # --- what anybody may ask ---

    async def _time(self, request: Request) -> Answer:
        if not request.query.startswith("nonce=") or len(request.query) != 6 + 2 * NONCE_BYTES:
            raise Refused("time: expected a nonce", reason="malformed")
        try:
            nonce = bytes.fromhex(request.query[6:])
        except ValueError:
            raise Refused("time: expected a nonce", reason="malformed") from None
        authority = self._authority
        return Answer(
            body=signed_time(authority.core.keys.signing, authority.certificate.subject, nonce, self._clock.now())
        )

    async def _live(self, _: Request) -> Answer:
        return Answer(body=b"live\n", content_type="text/plain")

    async def _ready(self, _: Request) -> Answer:
        if trouble := self._hindered or self._behind():  # both at hand: nobody waits behind work or another
            return Answer(503, f"{trouble}\n".encode(), "text/plain")
        return Answer(body=b"ready\n", content_type="text/plain")

    async def _metrics(self, _: Request) -> Answer:
        from tallystick.runtime.metrics import CONTENT_TYPE, render

        statistics = await self._call(self._authority.statistics)
        shown = {**asdict(statistics), "polls": len(self._polls)}  # those that wait for news
        body = render({"authority": shown, "requests": self.app.statistics()})
        return Answer(body=body, content_type=CONTENT_TYPE)

    async def _openapi(self, _: Request) -> Answer:
        return Answer(body=json.dumps(describe(), indent=1).encode(), content_type="application/json")
