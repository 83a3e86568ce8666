"""The tenants' dispatchers, as the operator's controller reaches them: over HTTP, as the principal that their node.toml
names. The controller asks, again and again: a dispatcher need not know where it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from tallystick.carriers.carrier import FABRIC_FRAMES_PATH, join_frames, split_frames
from tallystick.carriers.fabric.requests import REPEAT
from tallystick.carriers.remote import RemoteNode
from tallystick.runtime.steps import Steps

WAITING_MAX = 16_384  # frames for one dispatcher; beyond that the oldest are lost, and hosts ask again
EXCHANGE_FRAMES = 1_024  # at once


class RemoteDispatchers:
    """A `Dispatchers`. `receive(owner, frame)` gets what they say, in threads of this."""

    def __init__(self, nodes: Mapping[str, RemoteNode], interval_s: float = 0.05) -> None:
        self._nodes, self._interval_s = nodes, interval_s
        self._leaving = {owner: deque[bytes](maxlen=WAITING_MAX) for owner in nodes}
        self._is_leading: Callable[[], bool] = lambda: True
        self._steps: dict[str, Steps] = {}

    def start(self, receive: Callable[[str, bytes], None], is_leading: Callable[[], bool] = lambda: True) -> None:
        """While another leads nobody is asked: what a dispatcher says, it says once."""
        self._is_leading = is_leading
        for owner in self._nodes:
            exchange = partial(self._exchange, owner, receive)
            self._steps[owner] = Steps(exchange, self._interval_s, f"fabric dispatcher {owner}")
            self._steps[owner].start()

    def send(self, owner: str, data: bytes) -> None:
        if owner in self._leaving:
            self._leaving[owner].append(data)
            if owner in self._steps:
                self._steps[owner].wake()

    def repeat(self) -> None:
        for owner in self._nodes:
            self.send(owner, REPEAT)

    def stop(self) -> None:
        for steps in self._steps.values():
            steps.stop()

    def _exchange(self, owner: str, receive: Callable[[str, bytes], None]) -> None:
        """What was on its way when the dispatcher does not answer is lost, and asked for again."""
        if self._is_leading():
            leaving = self._leaving[owner]
            frames = [leaving.popleft() for _ in range(min(len(leaving), EXCHANGE_FRAMES))]
            for frame in split_frames(self._nodes[owner].post(FABRIC_FRAMES_PATH, join_frames(frames))):
                receive(owner, frame)
