"""The lanes of a publisher and their parcels on the way, with what a restart must know of them.

A lane is on record in the spool before anything is sealed in it, and from which sequence on nothing of it counts is one
durable step (`end`), so that no row counts twice whenever the process dies. Single-threaded by the publisher's lock.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from tallystick.client.deliveries import Told
from tallystick.client.identity import Identity
from tallystick.client.lane_keys import KeptLane, LaneSecrets
from tallystick.client.spool import Spool
from tallystick.errors import Unavailable
from tallystick.parcel.header import Kind, LaneRef
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.seal import Lane
from tallystick.runtime.entropy import Entropy
from tallystick.trust.promise import Promise


@dataclass
class Sent:
    """A sealed parcel on its way."""

    sequence: int
    parcel: bytes  # its hash
    rows: int
    size_bytes: int
    told: Told
    ready: bool = False  # in the spool and synced: may be sent
    offsets: tuple[tuple[bytes, int, int], ...] = ()
    promises: tuple[Promise, ...] = ()
    promised_at: float = 0.0


@dataclass
class LaneState:
    """A lane and its parcels in order: not yet stored, and stored but not yet anchored."""

    lane: Lane
    secrets: list[LaneSecrets]  # every lane key under which parcels wait, the newest last
    unsent: deque[Sent] = field(default_factory=deque)
    stored: deque[Sent] = field(default_factory=deque)
    locks_sent: set[bytes] = field(default_factory=set)
    parcels: int = 0  # under the present key
    size_bytes: int = 0
    last_ms: int = 0
    retired: bool = False  # drained, but takes nothing new
    stored_head: LaneRef | None = None
    end: int | None = None  # parcels from here on do not count: refused for good, or sealed again elsewhere
    replaces: bytes | None = None  # the lane whose rows were sealed again in this one


class Lanes:
    """Those of one set of topics. `states` holds them in the order of their numbers, retired ones among them."""

    def __init__(self, identity: Identity, spool: Spool, entropy: Entropy, tokens: list[bytes], now_ms: int) -> None:
        """Take up the spool of an earlier process: its lanes go on, its parcels are sent again."""
        self._identity, self._spool, self._entropy = identity, spool, entropy
        kept = {name: self._kept_lane(name) for name in spool.lanes()}
        self.states: list[LaneState] = []
        for name, one in kept.items():
            if [topic.token for topic in one.lane.topics] != tokens:
                continue  # of another publisher that shares this folder
            old = kept.get(one.replaces) if one.replaces is not None else None
            if old is not None and old.end is None:
                spool.drop_lane(name)  # the old lane still counts: nothing of this one was sent
                continue
            state = self._recovered(one, now_ms)
            self.states.append(state)
            self.drop_if_done(state)

    def _kept_lane(self, name: bytes) -> KeptLane:
        newest = self._spool.newest(name)
        return KeptLane.decode(self._identity, self._spool.lane_record(name), None if newest is None else newest.header)

    def _recovered(self, kept: KeptLane, now_ms: int) -> LaneState:
        name = kept.lane.lane
        state = LaneState(kept.lane, kept.secrets, last_ms=now_ms, end=kept.end, replaces=kept.replaces)
        newest = self._spool.newest(name)
        state.retired = kept.end is not None or (newest is not None and newest.header.kind is Kind.CLOSE)
        for sequence in self._spool.kept(name):
            if kept.end is not None and sequence >= kept.end:
                self._spool.forget(name, sequence)
                continue
            data = self._spool.read(name, sequence)
            header = Parcel.decode(data).header
            state.unsent.append(Sent(sequence, header.hash, header.count, len(data), Told([], 1), ready=True))
        return state

    @property
    def active(self) -> list[LaneState]:
        """Those that take parcels."""
        return [state for state in self.states if not state.retired]

    def record(self, state: LaneState) -> None:
        """Write down what a restart must know of a lane."""
        kept = KeptLane(state.lane, state.secrets, state.end, state.replaces)
        self._spool.put_lane(state.lane.lane, kept.encode(self._identity, self._entropy))

    def spooled(self, state: LaneState, one: Sent) -> Parcel:
        return Parcel.decode(self._spool.read(state.lane.lane, one.sequence))

    def end(self, state: LaneState) -> list[Sent]:
        """Let nothing count that waits in a lane, here and after a restart; what waited."""
        waiting = list(state.unsent)
        state.end = waiting[0].sequence if waiting else state.lane.sequence
        try:
            self.record(state)
        except Unavailable:
            state.end = None
            raise
        state.unsent.clear()
        state.retired = True
        with suppress(Unavailable):  # what cannot be deleted now does no harm
            for one in waiting:
                self._spool.forget(state.lane.lane, one.sequence)
            self.drop_if_done(state)
        return waiting

    def drop_if_done(self, state: LaneState) -> None:
        if state.retired and not state.unsent and not state.stored and state in self.states:
            self._spool.drop_lane(state.lane.lane)
            self.states.remove(state)
