"""The watch over one vehicle's bus: frames come in, in the order of the bus; rows of the schema `alerts` go out.

A vehicle's computer hands over what came in the last hundredth of a second, Spark some thousand frames: the alerts are
the same. The watch publishes nothing by itself, its batches go to whatever takes batches. What it knows is a few
kilobytes; kept with the vehicle's other state, they let a watch that was stopped go on as if it had not been.

A network's hits are gathered by themselves, and are alerts of their own: a hit of the checks may be told a while after
its frame, so in one row with the network's the order would depend on how frames were cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tallystick import wire
from tallystick.errors import Malformed
from tallystick.fleet.detect import network as networks
from tallystick.fleet.detect.alerts import Alert, OpenAlerts, finish, gather, to_batch
from tallystick.fleet.detect.checks import WatchState, begin, step
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.profile import Profile

if TYPE_CHECKING:
    from tallystick.fleet.dbc import Dbc

VERSION = 1
SLICE_US = 10_000
STATE_BYTES_MAX = 1 << 24


class BusWatch:
    """`profile_hash` is that of its signed file (`model`); `network` is None, or one that is meant to be used."""

    def __init__(
        self,
        vin: str,
        profile: Profile,
        profile_hash: bytes,
        *,
        network: networks.BusNetwork | None = None,
        dbc: Dbc | None = None,
    ) -> None:
        self.vin, self.profile, self.profile_hash = vin, profile, profile_hash
        self._network, self._dbc = network, dbc
        self.frames = 0  # seen since the watch began: the number of the next one
        self._state, self._open = begin(profile), OpenAlerts()
        self._features = None if network is None else networks.begin(profile)
        self._scored = OpenAlerts()

    def look(self, frames: Frames) -> list[Alert]:
        """Take the next frames. Returns the alerts that no further frame can change."""
        if not len(frames):
            return []
        self.frames += len(frames)
        now_us = int(frames.ts[-1])
        self._state, hits = step(self.profile, self._state, frames)
        self._open, ended = gather(self._open, hits, now_us)
        if self._network is not None and self._features is not None:
            self._features, hits = self._network.step(self.profile, self._features, frames)
            self._scored, scored = gather(self._scored, hits, now_us)
            ended += scored
        return ended

    def open(self) -> list[Alert]:
        """The alerts that later frames may still change."""
        return finish(self._open) + finish(self._scored)

    def rows(self, alerts: list[Alert]) -> pa.RecordBatch:
        """Alerts of this watch as rows of the schema `alerts`."""
        return to_batch(alerts, self.vin, self.profile, self.profile_hash, self._dbc)

    def batches(self, parts: Iterable[Frames]) -> Iterator[pa.RecordBatch]:
        """What there is to tell after each part, if anything."""
        for part in parts:
            if alerts := self.look(part):
                yield self.rows(alerts)

    def to_bytes(self) -> bytes:
        """Where the watch stands, for `resume`."""
        features = b"" if self._features is None else self._features.to_bytes()
        parts = [self._state.to_bytes(), self._open.to_bytes(), features, self._scored.to_bytes()]
        return wire.encode([VERSION, self.profile_hash, self.frames, *parts])

    def resume(self, data: bytes) -> BusWatch:
        """Go on where a watch with this profile stood. Raises `Malformed`; the watch then stands at its beginning."""
        fields = wire.Fields.parse(data, "state of a watch", 7)
        fields.version(VERSION)
        if fields.octets(32) != self.profile_hash:
            raise Malformed("state of a watch: of another profile", reason="other-profile")
        frames = fields.number()
        state, opened, features, scored = (fields.octets(at_most=STATE_BYTES_MAX) for _ in range(4))
        known = WatchState.from_bytes(state, self.profile), OpenAlerts.from_bytes(opened), OpenAlerts.from_bytes(scored)
        if self._features is not None:
            self._features = networks.FeatureState.from_bytes(features, self.profile)
        self.frames, (self._state, self._open, self._scored) = frames, known
        return self


def slices(frames: Frames, micros: int = SLICE_US) -> Iterator[Frames]:
    """A capture as a vehicle's computer sees it: what came in each stretch of so many microseconds."""
    ends = np.flatnonzero(np.diff(frames.ts // micros)) + 1
    for first, end in zip([0, *ends.tolist()], [*ends.tolist(), len(frames)], strict=True):
        yield frames[first:end]
