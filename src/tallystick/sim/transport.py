"""The network between clients and node: real signed requests, carried badly.

A `NodeLink` is an `HttpClient` but for its sockets, so signing, trying again and following
the node's clock are the real ones. The network loses a request or its answer, holds a request back and lets it arrive
long after its sender gave up, and lets one arrive a second time: everything that lies between a lost answer and an
attack by replay. What it does is drawn from the seed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from tallystick.errors import Unavailable
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import Attempt, ClientLimits, Outcome, Pause, RequestSigner
from tallystick.runtime.http1 import Response
from tallystick.runtime.sources import Clock, Entropy

URL = "http://127.0.0.1:7411"
_LIMITS = ClientLimits(attempts_max=2, backoff_first_s=0.2)


@dataclass(frozen=True)
class Weather:
    """How often of a thousand requests something happens to one, and how long a copy may stay under way."""

    lost_requests: int = 0
    lost_answers: int = 0
    delayed: int = 0
    repeated: int = 0
    late_s: float = 5.0


CALM = Weather()


class RequestNetwork:
    def __init__(
        self,
        chooser: random.Random,
        clock: Clock,
        serve: Callable[[bytes, bytes], Response],
        pass_time: Callable[[float], None],
        watch: Callable[[Attempt], None],
    ) -> None:
        """`serve` is the node; `watch` sees everything that is sent, whatever becomes of it."""
        self._chooser, self._clock, self._serve = chooser, clock, serve
        self.pass_time, self._watch = pass_time, watch
        self.weather = CALM
        self._late: list[tuple[float, int, Attempt]] = []
        self._order = count()

    def exchange(self, attempt: Attempt) -> Response | Unavailable:
        """What became of a request, as its sender sees it."""
        self._watch(attempt)
        weather, fate = self.weather, self._chooser.randrange(1000)
        if fate < (share := weather.lost_requests):
            return Unavailable("the request was lost")
        if fate < (share := share + weather.delayed):
            self._keep(attempt)
            return Unavailable("the request took too long")
        if fate < (share := share + weather.repeated):
            self._keep(attempt)
        elif fate < share + weather.lost_answers:
            self._arrive(attempt)
            return Unavailable("the answer was lost")
        return self._arrive(attempt)

    def deliver_late(self) -> int:
        """Let what was held back until now arrive; nobody waits for the answers. Returns how many arrived."""
        arrived = 0
        while self._late and self._late[0][0] <= self._clock.monotonic():
            self._arrive(heapq.heappop(self._late)[2])
            arrived += 1
        return arrived

    def _arrive(self, attempt: Attempt) -> Response | Unavailable:
        try:
            return self._serve(attempt.head, attempt.body)
        except Unavailable as error:
            return error

    def _keep(self, attempt: Attempt) -> None:
        due = self._clock.monotonic() + self._chooser.random() * self.weather.late_s
        heapq.heappush(self._late, (due, next(self._order), attempt))


class NodeLink(HttpClient):
    """One client's way to the node: an `HttpClient` whose steps the network carries out instead of a socket."""

    def __init__(
        self, network: RequestNetwork, address: Address, identity: RequestSigner, clock: Clock, entropy: Entropy
    ) -> None:
        super().__init__([address], identity, clock, entropy, limits=_LIMITS)
        self._network = network

    def _carry_out(self, step: Attempt | Pause, timeout_s: float, bytes_max: int) -> Outcome:
        if isinstance(step, Pause):
            self._network.pass_time(step.seconds)
            return None
        return self._network.exchange(step)
