"""A web server with byte ranges, as a role for the simulated network."""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.crypto.symmetric import Buffer
from tallystick.errors import Malformed
from tallystick.objects.ranges import RangeAnswer, RangeAsk
from tallystick.runtime.effects import Arrived, Effect, Event, Send


class ObjectServer:
    """Answers ranges of `files`, by their names; what is put there later, or taken away, is served so from then on."""

    def __init__(self, files: Mapping[str, Buffer]) -> None:
        self._files = files

    def receive(self, event: Event, now: float) -> list[Effect]:
        if not isinstance(event, Arrived):
            return []
        try:
            ask = RangeAsk.decode(event.message)
        except Malformed:
            return []
        file = self._files.get(ask.file)
        found = None if file is None else memoryview(file)[ask.first : ask.first + ask.length]
        return [Send(event.sender, RangeAnswer(ask.number, found or None).encode())]
