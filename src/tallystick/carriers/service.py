"""The HTTP face of a node: its desk (desk.py) behind signed requests.

Publishing goes through one worker that takes all requests that wait, so that they share a sync; everything that may
touch the disk runs off the event loop; long polls wait on the loop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tallystick.carriers.accounts import Asked
from tallystick.carriers.carrier import Outcome
from tallystick.carriers.desk import Desk, Question, Route, Storing, Wait
from tallystick.carriers.front import Front
from tallystick.errors import TallystickError, Unavailable
from tallystick.runtime.http1 import Answer, Words
from tallystick.runtime.router import Gate, Request, Router
from tallystick.runtime.sources import Clock
from tallystick.trust.envelope import Envelope


@dataclass
class Waiting:
    """Parcels in the worker's queue."""

    storing: Storing
    answer: asyncio.Future[list[Outcome] | TallystickError]
    loop: asyncio.AbstractEventLoop

    def settle(self, answer: list[Outcome] | TallystickError) -> None:
        self.loop.call_soon_threadsafe(self._set, answer)

    def _set(self, answer: list[Outcome] | TallystickError) -> None:
        if not self.answer.done():  # the peer may have left
            self.answer.set_result(answer)


class PublishWorker(threading.Thread):
    """Takes whatever waits as one group: one sync, however many requests."""

    GROUP_MAX = 256  # requests

    def __init__(self, carrier: Front, waiting_max: int = 1024) -> None:
        super().__init__(name="publish", daemon=True)
        self._carrier = carrier
        self._queue: queue.Queue[Waiting | None] = queue.Queue(waiting_max)

    def put(self, waiting: Waiting) -> None:
        try:
            self._queue.put_nowait(waiting)
        except queue.Full:
            raise Unavailable("too many requests wait to be stored", retry_after_s=0.2) from None

    def stop(self) -> None:
        self._queue.put(None)
        self.join()

    def run(self) -> None:
        while (first := self._queue.get()) is not None:
            group = [first]
            stop = False
            while len(group) < self.GROUP_MAX:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    stop = True
                    break
                group.append(more)
            self._publish(group)
            if stop:
                return

    def _publish(self, group: list[Waiting]) -> None:
        try:
            answers = self._carrier.publish([one.storing[:3] for one in group])
        except Exception as error:  # the worker must outlive any single group
            failure = error if isinstance(error, TallystickError) else Unavailable(f"the node failed: {error!r}")
            answers = [failure] * len(group)
        for one, answer in zip(group, answers, strict=True):
            one.settle(answer)


class CarrierService:
    """Serves a desk. The event loop is that of the first request."""

    def __init__(self, front: Front, desk: Desk, gate: Gate, clock: Clock) -> None:
        self._desk, self._gate, self._clock = desk, gate, clock
        self._worker = PublishWorker(front)
        self._worker.start()
        self._grown: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = False
        front.on_growth = self._pulse

    def add_routes(self, router: Router) -> None:
        for route in self._desk.table():
            handler = self._gate.signed(self._signed(route)) if route.signed else self._open(route)
            router.add(route.method, route.path, handler)

    def end_polls(self) -> None:
        """Answer all who wait, now and from now on; on the event loop."""
        self._ending = True
        self._wake()

    def stop(self) -> None:
        self._worker.stop()

    def _signed(self, route: Route) -> Callable[[Request, Envelope, bytes], Awaitable[Answer]]:
        async def handle(request: Request, envelope: Envelope, body: bytes) -> Answer:
            asked = Asked(envelope, request.client[0], self._clock.now())
            question = Question(request.path, request.parameters, Words(request.query), body, asked)
            return await self._answer(route, question)

        return handle

    def _open(self, route: Route) -> Callable[[Request], Awaitable[Answer]]:
        async def handle(request: Request) -> Answer:
            question = Question(request.path, request.parameters, Words(request.query), b"", None)
            return await self._answer(route, question)

        return handle

    async def _answer(self, route: Route, question: Question) -> Answer:
        reply = route.handler(question) if route.quick else await asyncio.to_thread(route.handler, question)
        match reply:
            case Wait():
                await self._wait(reply)
                return await asyncio.to_thread(reply.then)
            case Storing():
                return await self._store(reply)
        return reply

    async def _store(self, storing: Storing) -> Answer:
        loop = asyncio.get_running_loop()
        waiting = Waiting(storing, loop.create_future(), loop)
        self._worker.put(waiting)
        outcomes = await waiting.answer
        if isinstance(outcomes, TallystickError):
            raise outcomes
        return storing.then(outcomes)

    async def _wait(self, wait: Wait) -> None:
        """Until the condition holds, or the time is up."""
        deadline = self._clock.monotonic() + wait.seconds
        while True:
            grown = self._growth()
            if wait.condition():
                return
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0 or self._ending:
                return
            try:
                async with asyncio.timeout(left_s):
                    await grown.wait()
            except TimeoutError:
                return

    def _growth(self) -> asyncio.Event:
        """The event that the next growth sets."""
        if self._grown is None:
            self._loop, self._grown = asyncio.get_running_loop(), asyncio.Event()
        return self._grown

    def _pulse(self) -> None:
        """Wake every long poll; called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._grown is not None:
            self._grown.set()
        self._grown = asyncio.Event()
