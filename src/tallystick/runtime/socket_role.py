"""One protocol role on one socket that is open already, in a thread of its own: for roles that speak in frames.

    running = SocketRole(role, wire, clock, deliver=print)
    running.call(lambda: role.publish(b"…"))
    running.stop()

Every `Send` goes out of the socket, whoever it names, and all that comes in is told to the role as coming from "wire".
As on any wire, what cannot be sent is lost: a full queue, a link that is down, another end that is gone. Other threads
have something done in the role's thread by `call`, and wait for what comes of it by `wait_for`. What the role raises
ends the thread, and is kept as `failure`.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tallystick.runtime.effects import Arrived, Deliver, Event, Role, Send, WakeAt, Woken
from tallystick.runtime.sources import Clock

FRAME_BYTES = 9_216
READ_MAX = 64  # frames before anything else is looked at


class SocketRole:
    """`deliver` is called in the role's thread, and must be quick."""

    def __init__(self, role: Role, wire: socket.socket, clock: Clock, deliver: Callable[[Any], None]) -> None:
        """`wire` is a socket that does not block; it is closed with this."""
        self._role, self._wire, self._clock, self._deliver = role, wire, clock, deliver
        self._waiting: deque[Callable[[], object]] = deque()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._is_stopped = False
        self.failure: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="socket role", daemon=True)
        self._thread.start()

    def call(self, action: Callable[[], object]) -> None:
        """Have something done in the role's thread, and the role woken."""
        self._waiting.append(action)
        with suppress(OSError):  # it has stopped
            self._rope.send(b"\x00")

    def wait_for(self, is_there: Callable[[], bool], wait_s: float) -> None:
        """Wait until it is so, or the time is over, or the role has ended."""
        with self._changed:
            self._changed.wait_for(lambda: is_there() or self._is_stopped, wait_s)

    def stop(self) -> None:
        self._is_stopped = True
        self.call(lambda: None)
        self._thread.join()
        for one in (self._wire, self._bell, self._rope):
            one.close()

    def _work(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._wire, selectors.EVENT_READ)
                selector.register(self._bell, selectors.EVENT_READ)
                wake = self._tell(Woken())
                while not self._is_stopped:
                    selector.select(None if wake is None else max(0.0, wake - self._clock.now()))
                    wake = self._turn()
        except Exception as error:  # for whoever started it to see
            self.failure = error
        self._is_stopped = True
        self._wake_others()

    def _turn(self) -> float | None:
        while self._read(self._bell):
            pass
        while self._waiting:
            self._waiting.popleft()()
        wake = self._tell(Woken())
        for _ in range(READ_MAX):
            if not (frame := self._read(self._wire)):
                break
            wake = self._tell(Arrived("wire", frame))
        self._wake_others()
        return wake

    def _wake_others(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _read(self, source: socket.socket) -> bytes:
        try:
            return source.recv(FRAME_BYTES)
        except OSError:  # nothing is there, or the other end is not
            return b""

    def _tell(self, event: Event) -> float | None:
        """Returns when the role wants to be woken."""
        wake = None
        for effect in self._role.receive(event, self._clock.now()):
            if isinstance(effect, Send):
                with suppress(OSError):
                    self._wire.send(effect.message)
            elif isinstance(effect, Deliver):
                self._deliver(effect.value)
            elif isinstance(effect, WakeAt):
                wake = effect.time
        return wake
