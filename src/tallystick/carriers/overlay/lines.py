"""A client's lines to the relays of its edge: all are asked at once, and nobody waits for more answers than it takes.

Threat: up to f relays of the edge that are silent, slow, or answer what they like. Each relay is asked by a thread of
its own, in order, so one that hangs holds up nobody else. What f+1 relays answer alike an honest one answers. Too much
that waits for one relay is not sent to it: the others tell it. What it is to know of this client (permits, claims) is
told before the next thing that it is asked.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, Full, Queue, SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast

from tallystick.carriers.remote import RemoteNode
from tallystick.errors import Refused, TallystickError, Unavailable

T = TypeVar("T")
Ask = Callable[[bytes, RemoteNode], T]  # of one relay, by its identifier

TASKS_MAX = 8  # that wait for one relay: a request each, of some megabytes at most
OWED_MAX = 64  # things that one relay has yet to hear
ANSWER_S = 30.0  # for f+1 answers


class _Task(NamedTuple):
    ask: Ask[Any]
    tell: Callable[[Any], None]
    key: object  # where it is to be told in the end, it has a name


class RelayLine:
    """One relay."""

    def __init__(self, name: bytes, node: RemoteNode) -> None:
        self.name, self.node = name, node
        self._tasks: Queue[_Task | None] = Queue(TASKS_MAX)
        self._owed: dict[object, Ask[Any]] = {}  # what it has yet to hear, by name
        threading.Thread(target=self._run, name="relay line", daemon=True).start()

    def post(self, ask: Ask[Any], tell: Callable[[Any], None], key: object = None) -> None:
        """Have it asked; its answer, or the error, is told in the line's thread."""
        task = _Task(ask, tell, key)
        try:
            self._tasks.put_nowait(task)
        except Full:
            self._fail(task, Unavailable("too much waits for this relay"))

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                for key, ask in list(self._owed.items()):
                    self._catch_up(key, ask)
                self._owed.pop(task.key, None)
                task.tell(task.ask(self.name, self.node))
            except Unavailable as error:
                self._fail(task, error)
            except TallystickError as error:
                task.tell(error)

    def _catch_up(self, key: object, ask: Ask[Any]) -> None:
        with suppress(Refused):  # it was told
            ask(self.name, self.node)
        self._owed.pop(key, None)

    def _fail(self, task: _Task, error: Unavailable) -> None:
        if task.key is not None:
            self._owed[task.key] = task.ask
            if len(self._owed) > OWED_MAX:
                self._owed.pop(next(iter(self._owed)), None)
        task.tell(error)

    def close(self) -> None:
        """Ask nothing more. What is under way ends with its connection, or its time."""
        try:
            while True:
                self._tasks.get_nowait()
        except Empty:
            self._tasks.put(None)


class RelayLines:
    """All of them, by name."""

    def __init__(self, nodes: Mapping[bytes, RemoteNode]) -> None:
        self._lines = {name: RelayLine(name, node) for name, node in nodes.items()}
        self._turn = 0

    def __contains__(self, name: bytes) -> bool:
        return name in self._lines

    def ask_all(
        self,
        names: Sequence[bytes],
        ask: Ask[T],
        take: Callable[[bytes, T | TallystickError], Any],
        key: object = None,
        within_s: float = ANSWER_S,
    ) -> Any:
        """Ask these at once. `take` sees each answer as it comes, and returns what counts, or None to wait for more.
        Raises `Unavailable` where nothing counted when all had answered, or in time."""
        came: SimpleQueue[tuple[bytes, Any]] = SimpleQueue()
        for name in names:
            self._lines[name].post(ask, partial(_put, came, name), key)
        until, errors = time.monotonic() + within_s, list[TallystickError]()
        for _ in names:
            try:
                name, answer = came.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                break
            if isinstance(answer, TallystickError):
                errors.append(answer)
            found = take(name, answer)
            if found is not None:
                return found
        raise _together(errors)

    def post(self, names: Sequence[bytes], ask: Ask[Any]) -> None:
        """Have these asked, and wait for none."""
        for name in names:
            self._lines[name].post(ask, lambda answer: None)

    def agreed(
        self, names: Sequence[bytes], faults: int, ask: Ask[T], key: object = None, within_s: float = ANSWER_S
    ) -> T:
        """What more than `faults` of these answer alike. Raises `Refused` where as many refuse for one reason."""
        answers: list[tuple[T, list[bytes]]] = []
        refused: Counter[str] = Counter()

        def take(name: bytes, answer: T | TallystickError) -> tuple[T] | None:
            if isinstance(answer, Refused):
                refused[answer.reason] += 1
                if refused[answer.reason] > faults:
                    raise answer
            if isinstance(answer, TallystickError):
                return None
            alike = next((found for value, found in answers if value == answer), None)
            if alike is None:
                answers.append((answer, alike := []))
            alike.append(name)
            return (answer,) if len(alike) > faults else None

        return cast(tuple[T], self.ask_all(names, ask, take, key, within_s))[0]

    def first(self, names: Sequence[bytes], faults: int, ask: Ask[T]) -> T:
        """One's answer, by the caller's own thread: the one that answered last time, then the others. Raises `Refused`
        where more than `faults` refuse for one reason."""
        errors, refused, start = list[TallystickError](), Counter[str](), self._turn
        for turn in range(start, start + len(names)):
            name = names[turn % len(names)]
            try:
                found = ask(name, self._lines[name].node)
                self._turn = turn % len(names)
                return found
            except Unavailable as error:
                errors.append(error)
            except Refused as error:
                errors.append(error)
                refused[error.reason] += 1
                if refused[error.reason] > faults:
                    raise
        self._turn = start + 1
        raise _together(errors)

    def ask_another(self) -> None:
        self._turn += 1

    def close(self) -> None:
        for line in self._lines.values():
            line.close()


def _put(came: SimpleQueue[tuple[bytes, Any]], name: bytes, answer: Any) -> None:
    came.put((name, answer))


def _together(errors: Sequence[TallystickError]) -> Unavailable:
    """What to tell where too few agree. The shortest wait is the one to keep: a longer one may be a lie."""
    waits = [error.retry_after_s for error in errors if isinstance(error, Unavailable)]
    told = "; ".join(dict.fromkeys(map(str, errors))) or "too few answered in time"
    return Unavailable(f"the edge's relays do not agree: {told}", retry_after_s=min(filter(None, waits), default=None))
