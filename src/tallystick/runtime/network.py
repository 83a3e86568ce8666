"""A seeded network of protocol roles: a heap of events, links that lose, delay, repeat and reorder, crashes.

Everything that happens is a function of the seed and of what was scheduled. Each directed link draws from a
stream of its own, so that traffic on one does not change the fate of another; events at one time happen in
the order in which they were scheduled. `trace_hash` folds every event, and two runs agree in it or did not
do the same.

    network = Network(seed=7, link=Link(loss=0.1, duplicate=0.05))
    network.add("a", lambda stored: MyRole(stored))
    network.run(until=60.0)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from random import Random
from typing import Any

from tallystick.errors import Misuse
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Role, Send, StoreEffect, WakeAt, Woken


class SimClock:
    """The time of a simulation: it jumps from event to event."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.pause(seconds)

    def pause(self, seconds: float) -> None:
        raise Misuse(f"nobody may wait {seconds} seconds inside a simulation; schedule an event instead")

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Schedule `action`; a time that has passed means now."""
        heapq.heappush(self._events, (max(time, self._now), next(self._order), action))

    def step(self, until: float = float("inf")) -> bool:
        """Let the next event up to `until` happen. Returns False if there is none."""
        if not self._events or self._events[0][0] > until:
            return False
        self._now, _, action = heapq.heappop(self._events)
        action()
        return True

    def run(self, until: float, events_max: int = 10_000_000) -> int:
        """Let everything up to `until` happen and stand there; returns the number of events."""
        for events in range(events_max):
            if not self.step(until):
                self._now = max(self._now, until)
                return events
        raise Misuse(f"simulation: more than {events_max} events before {until} s; do the roles wake in circles?")


@dataclass(frozen=True, slots=True)
class Link:
    """How one direction between two nodes behaves; times in seconds, the rest are probabilities."""

    delay_min_s: float = 0.001
    delay_max_s: float = 0.010
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0  # of being held back by up to `held_max_s` more, so that later ones overtake
    held_max_s: float = 0.5

    def arrivals(self, random: Random) -> list[float]:
        """After how long copies of one message arrive."""
        if random.random() < self.loss:
            return []
        copies = 2 if random.random() < self.duplicate else 1
        return [self._delay(random) for _ in range(copies)]

    def _delay(self, random: Random) -> float:
        delay = random.uniform(self.delay_min_s, self.delay_max_s)
        return delay + random.uniform(0, self.held_max_s) if random.random() < self.reorder else delay


@dataclass(slots=True)
class _Node:
    make: Callable[[Mapping[str, bytes]], Role]
    stored: dict[str, bytes]
    role: Role | None = None  # None while it lies crashed
    life: int = 0  # counts restarts: what was meant for an earlier life is void
    doomed: bool = False  # crashes among its next effects


class Network:
    """Roles by name, the links between them, and what they delivered."""

    def __init__(self, seed: int, link: Link = Link(), clock: SimClock | None = None) -> None:
        self.clock = clock if clock is not None else SimClock()
        self.delivered: list[tuple[float, str, Any]] = []
        self._seed = seed
        self._link = link
        self._links: dict[tuple[str, str], Link] = {}
        self._streams: dict[tuple[str, str], Random] = {}
        self._nodes: dict[str, _Node] = {}
        self._side: dict[str, int] = {}
        self._trace = sha256(f"{seed}".encode())

    def add(self, name: str, make: Callable[[Mapping[str, bytes]], Role]) -> None:
        """Start a role; `make` gets what it stored in earlier lives."""
        if name in self._nodes:
            raise Misuse(f'network: a node named "{name}" exists')
        self._nodes[name] = _Node(make, {})
        self.restart(name)

    def set_link(self, sender: str, to: str, link: Link) -> None:
        """Let one direction behave otherwise than the rest."""
        self._links[sender, to] = link

    def partition(self, *sides: Iterable[str]) -> None:
        """Lose every message between different sides from now on; whoever is not named stands alone."""
        self._side = {name: -index for index, name in enumerate(self._nodes, 1)}
        self._side |= {name: index for index, side in enumerate(sides) for name in side}

    def heal(self) -> None:
        """End the partition."""
        self._side = {}

    def crash(self, name: str) -> None:
        """Forget the role and everything it did not store; messages to it are lost."""
        self._note("crash", name)
        self._nodes[name].role = None

    def crash_midway(self, name: str) -> None:
        """Crash while the effects of the next event are carried out, after a number of them drawn by seed."""
        self._nodes[name].doomed = True

    def restart(self, name: str) -> None:
        """Make the role anew from what it stored, and wake it."""
        self._note("start", name)
        node = self._nodes[name]
        node.life += 1
        node.role = node.make(dict(node.stored))
        self._schedule(self.clock.now(), name, Woken())

    def send(self, sender: str, to: str, message: Any) -> None:
        """Put `message` on the link, from a role or from the test itself."""
        if to not in self._nodes:
            raise Misuse(f'network: "{sender}" sends to "{to}", which does not exist')
        link = self._links.get((sender, to), self._link)
        arrivals = link.arrivals(self._stream(sender, to))
        if self._side.get(sender) != self._side.get(to):
            return  # drawn all the same, so that a partition shifts no later fate
        for delay in arrivals:
            self.clock.at(self.clock.now() + delay, lambda: self._arrive(to, Arrived(sender, message)))

    def run(self, until: float) -> None:
        """Let everything up to `until` happen."""
        self.clock.run(until)

    def alive(self, name: str) -> bool:
        return self._nodes[name].role is not None

    def role(self, name: str) -> Role:
        """The living role, for checkers to look at."""
        role = self._nodes[name].role
        if role is None:
            raise Misuse(f'network: node "{name}" lies crashed')
        return role

    def trace_hash(self) -> str:
        """The same for two runs in which the same things happened at the same times."""
        return self._trace.hexdigest()

    def _stream(self, sender: str, to: str) -> Random:
        stream = self._streams.get((sender, to))
        if stream is None:
            stream = Random(f"{self._seed}/{sender!r}/{to!r}")  # noqa: S311 (fates of messages, not keys)
            self._streams[sender, to] = stream
        return stream

    def _schedule(self, time: float, name: str, event: Event) -> None:
        life = self._nodes[name].life
        self.clock.at(time, lambda: self._arrive(name, event) if self._nodes[name].life == life else None)

    def _arrive(self, name: str, event: Event) -> None:
        node = self._nodes[name]
        if node.role is None:
            return
        self._note(name, event)
        effects = node.role.receive(event, self.clock.now())
        if node.doomed:
            effects = effects[: self._stream(name, name).randint(0, len(effects))]
        for effect in effects:
            self._carry_out(name, effect)
        if node.doomed:
            node.doomed = False
            self.crash(name)

    def _carry_out(self, name: str, effect: Effect) -> None:
        match effect:
            case Send(to, message):
                self.send(name, to, message)
            case StoreEffect(key, None):
                self._nodes[name].stored.pop(key, None)
            case StoreEffect(key, bytes(value)):
                self._nodes[name].stored[key] = value
            case Deliver(value):
                self._note(name, effect)
                self.delivered.append((self.clock.now(), name, value))
            case WakeAt(time):
                self._schedule(time, name, Woken())

    def _note(self, *what: Any) -> None:
        self._trace.update(repr((self.clock.now(), *what)).encode())
