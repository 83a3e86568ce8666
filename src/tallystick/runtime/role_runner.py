"""One role, fed from its queue: what it is told, and what becomes of what it says.

The role hears messages in turns: a few, one from each sender that has any (`queues.InputQueue`), and `Woken` first if a
time that it asked for has come. The effects of a turn are carried out together, in their order, but what it stores
comes before all of them: so nothing leaves that a crash could take back, and one sync serves the turn. Meanwhile
nothing is told to the role, and sockets go on. What the role, the store or `deliver` raises ends the run: a role that
is broken says nothing rather than something wrong.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

from tallystick.errors import Misuse
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Role, Send, StoreEffect, WakeAt, Woken
from tallystick.runtime.role_store import RoleStore
from tallystick.runtime.sources import Clock

_SLEEP_MAX_S = 3600.0  # before it looks at the clock again, which may have been set


class InputSource(Protocol):
    """What waits for a role, in the order in which it is to hear it (`queues.InputQueue`)."""

    def __bool__(self) -> bool: ...

    def take(self) -> tuple[str, bytes] | None: ...


class RoleRunner:
    """`send` is called for every `Send`, `heard` before the role is told something of a sender; neither may wait."""

    def __init__(
        self,
        role: Role,
        queue: InputSource,
        clock: Clock,
        store: RoleStore | None,
        *,
        send: Callable[[str, Any], None],
        heard: Callable[[str], None],
        deliver: Callable[[Any], None],
        turn_messages_max: int,
    ) -> None:
        self._role, self._queue, self._clock, self._store = role, queue, clock, store
        self._send, self._heard, self._deliver = send, heard, deliver
        self._turn_messages_max = turn_messages_max
        self._wakes = {0}  # in milliseconds, so that they are not endlessly many; 0 is the start
        self._stirred = asyncio.Event()

    def stir(self) -> None:
        """There is something in the queue."""
        self._stirred.set()

    def wake(self) -> None:
        """Tell the role `Woken` in its next turn."""
        self._wakes.add(0)
        self._stirred.set()

    async def run(self) -> None:
        """Tell the role everything until cancelled; begins with `Woken`."""
        loop = asyncio.get_running_loop()
        while True:
            effects = [effect for event in self._events() for effect in self._role.receive(event, self._clock.now())]
            await self._keep(effects)
            for effect in effects:
                self._carry_out(effect)
            if self._queue:
                await asyncio.sleep(0)
                continue
            left_s = min(self._wakes, default=math.inf) / 1000 - self._clock.now()
            alarm = loop.call_later(max(0.0, min(left_s, _SLEEP_MAX_S)), self._stirred.set)
            try:
                await self._stirred.wait()
            finally:
                alarm.cancel()
            self._stirred.clear()

    def _events(self) -> Iterator[Event]:
        now_ms = self._clock.now() * 1000
        if due := {time for time in self._wakes if time <= now_ms}:
            self._wakes -= due
            yield Woken()
        for _ in range(self._turn_messages_max):
            if (taken := self._queue.take()) is None:
                return
            self._heard(taken[0])
            yield Arrived(*taken)

    async def _keep(self, effects: list[Effect]) -> None:
        changes = [(effect.key, effect.value) for effect in effects if isinstance(effect, StoreEffect)]
        if not changes:
            return
        if self._store is None:
            raise Misuse("links: the role stores, and has no store")
        saving = asyncio.get_running_loop().run_in_executor(None, self._store.put, changes)
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            await asyncio.wait([saving])  # so that nobody closes a store that is in use
            raise

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(to, message):
                self._send(to, message)
            case Deliver(value):
                self._deliver(value)
            case WakeAt(time) if math.isfinite(time):
                self._wakes.add(math.ceil(time * 1000))


class RoleDriver:
    """A role behind one listening socket, in the loop of one thread (`links.py`, `datagrams.py`). Other threads may ask
    two things of it."""

    _runner: RoleRunner

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self.port = int(listening.getsockname()[1])
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # once it runs

    def stop(self) -> None:
        """Let `run` return: from any thread. Connections end as they are, and nothing more is sent. What never ran
        does not listen any more."""
        if self._loop is None:
            self._stopping.set()
            self._socket.close()
        else:
            with suppress(RuntimeError):  # the loop is closed: it has stopped already
                self._loop.call_soon_threadsafe(self._stopping.set)

    def wake(self, before: Callable[[], None] = lambda: None) -> None:
        """Give the role `Woken` soon, and call `before` in its thread first: from any thread. Before `run` it is called
        at once, and the role is woken when it begins."""

        def act() -> None:
            before()
            self._runner.wake()

        if self._loop is None:
            before()
            return
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(act)
