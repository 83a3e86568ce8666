"""A fetch on real sources: threads ask each server, one a lane, and the role decides in the thread of the caller.

What was verified goes to an `ObjectKeeper`, which also says what lies there from an earlier attempt. `FolderKeeper`
keeps the two files of an object in a folder, so that a server joins by fetching as a vehicle does; they get their names
once all of it is there and synced, since a server of half an object would be taken for a liar. `PlainKeeper` opens each
chunk into one file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

from tallystick.crypto.symmetric import Buffer
from tallystick.errors import Forged, Refused, Unavailable, blame
from tallystick.objects import outcomes
from tallystick.objects.asking import FetchLimits
from tallystick.objects.fetch import ObjectFetch
from tallystick.objects.layout import Docket, ObjectKey, Slip, Slips, chunks_file, slips_file
from tallystick.objects.ranges import RangeAnswer, RangeAsk
from tallystick.objects.sealing import ChunkOpener
from tallystick.objects.sources import Source
from tallystick.runtime.disk import Disk, File
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send, StoreEffect, WakeAt, Woken
from tallystick.runtime.sources import Clock

Hear = Callable[[Arrived], None]


class ObjectKeeper(Protocol):
    """Where what was verified is kept. What lies there is hashed again before it counts."""

    def slips(self) -> bytes:
        """Those of an earlier attempt, or nothing."""

    def kept(self, slips: Slips) -> Sequence[bool]:
        """Of each chunk whether it lies there, whole. These are the object's slips: chunks follow."""

    def store(self, key: str, value: bytes) -> None:
        """Slips, a fence, or a chunk, under the keys of `objects.outcomes`."""

    def finish(self) -> None:
        """All of it is there."""


class _Parts(ABC):
    """Files that get their names in the end, in this order."""

    def __init__(self, disk: Disk, *names: str) -> None:
        self._disk, self._names = disk, names
        self._files: list[File] = []
        self._slips = Slips(b"")
        try:
            for name in names:
                whole = disk.exists(name) and not disk.exists(f"{name}.part")
                self._files.append(disk.open(name if whole else f"{name}.part", create=True))
        except BaseException:
            self.close()
            raise

    def kept(self, slips: Slips) -> list[bool]:
        self._slips = slips
        return [self._lies_there(number, slip) for number, slip in enumerate(slips)]

    def finish(self) -> None:
        for name, file in zip(self._names, self._files, strict=True):
            file.sync()
            if self._disk.exists(f"{name}.part"):
                self._disk.rename(f"{name}.part", name)
            self._disk.sync_dir("")

    def close(self) -> None:
        for file in self._files:
            file.close()

    @abstractmethod
    def _lies_there(self, number: int, slip: Slip) -> bool:
        """Whether this chunk lies there, whole."""


class FolderKeeper(_Parts):
    """The two files of an object in a folder."""

    def __init__(self, disk: Disk, docket: Docket) -> None:
        # Slips last: without them nothing is there.
        super().__init__(disk, chunks_file(docket.root), slips_file(docket.root))

    def slips(self) -> bytes:
        return self._files[1].pread(0, self._files[1].size())

    def store(self, key: str, value: bytes) -> None:
        if key == outcomes.SLIPS:
            self._files[1].truncate(0)
            self._files[1].pwrite(0, value)
        elif (number := outcomes.chunk_number(key)) is not None:
            self._files[0].pwrite(self._slips.sealed[number], value)

    def _lies_there(self, number: int, slip: Slip) -> bool:
        try:
            slip.check(self._files[0].pread(self._slips.sealed[number], slip.sealed_length), f"chunk {number}")
        except Forged:
            return False
        return True


class PlainKeeper(_Parts):
    """One file of this name, with what is inside the object. `on_chunk` is told of each chunk's length."""

    def __init__(self, disk: Disk, name: str, key: ObjectKey, on_chunk: Callable[[int], None] = lambda n: None) -> None:
        super().__init__(disk, name)
        self._key, self._opener, self._on_chunk = key, ChunkOpener(key), on_chunk

    def slips(self) -> bytes:
        return b""  # they are fetched again: a thousandth of the object

    def store(self, key: str, value: bytes) -> None:
        """Raises `CannotOpen`."""
        if (number := outcomes.chunk_number(key)) is not None:
            plain = self._opener.open(number, self._slips[number], value)
            self._files[0].pwrite(self._slips.plain[number], plain)
            self._on_chunk(len(plain))

    def finish(self) -> None:
        self._files[0].truncate(self._slips.plain[-1])
        super().finish()

    def _lies_there(self, number: int, slip: Slip) -> bool:
        lies = self._files[0].pread(self._slips.plain[number], slip.plain_length)
        return len(lies) == slip.plain_length and self._key.plain_hash(lies) == slip.plain_hash


class SourceLanes:
    """Threads that read sources, one a lane: a source that hangs holds up its own threads and nobody else's."""

    def __init__(self, sources: Mapping[str, Source], lanes: int) -> None:
        self._sources, self._lanes = sources, lanes
        self._asks: dict[str, SimpleQueue[tuple[RangeAsk, Hear] | None]] = {name: SimpleQueue() for name in sources}
        for name in [*sources] * lanes:
            Thread(target=self._serve, args=(name,), name=f"fetch {name}", daemon=True).start()

    def ask(self, name: str, message: bytes, hear: Hear) -> None:
        """Returns at once; `hear` is called in a thread of the source."""
        self._asks[name].put((RangeAsk.decode(message), hear))

    def close(self) -> None:
        for asks in [*self._asks.values()] * self._lanes:
            asks.put(None)

    def _serve(self, name: str) -> None:
        """What one server is asked, one ask after the other."""
        while (asked := self._asks[name].get()) is not None:
            ask, hear = asked
            try:
                data: Buffer | None = self._sources[name].read(ask.file, ask.first, ask.length)[0]
            except (Refused, Unavailable):
                data = None  # it has it not, or does not answer as it should: the role lets it rest
            hear(Arrived(name, RangeAnswer(ask.number, data)))


class Fetching:
    """One fetch. `sources` are the servers that may be asked, by name."""

    def __init__(
        self,
        docket: Docket,
        sources: Mapping[str, Source],
        keeper: ObjectKeeper,
        clock: Clock,
        *,
        limits: FetchLimits = FetchLimits(),
        on_named: Callable[[outcomes.ServerNamed], None] = lambda named: None,
    ) -> None:
        self._keeper, self._clock, self._on_named = keeper, clock, on_named
        self._role = ObjectFetch(docket, list(sources), keeper.kept, keeper.slips(), limits=limits)
        self._heard: SimpleQueue[Event] = SimpleQueue()
        self._sources, self._lanes = sources, limits.lanes
        self._wake_at = 0.0
        self._outcome: outcomes.ObjectWhole | outcomes.FetchGivenUp | None = None

    def run(self) -> outcomes.FetchStatistics:
        """Fetch all of it. Raises `Unavailable` where it gave up or the disk is full; another attempt goes on from
        there."""
        lanes = SourceLanes(self._sources, self._lanes)
        try:
            event: Event = Woken()
            while True:
                self._carry_out(self._role.receive(event, self._clock.monotonic()), lanes)
                if isinstance(self._outcome, outcomes.FetchGivenUp):
                    raise Unavailable(f"object: {self._outcome.why}", hint="what came is kept: try again later")
                if self._outcome is not None:
                    self._keeper.finish()
                    return self._role.statistics()
                event = self._next_event()
        except OSError as error:
            raise blame(error, "object: ") from error
        finally:
            lanes.close()

    def _next_event(self) -> Event:
        try:
            return self._heard.get(timeout=max(0.0, self._wake_at - self._clock.monotonic()))
        except Empty:
            return Woken()

    def _carry_out(self, effects: Iterable[Effect], lanes: SourceLanes) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    lanes.ask(to, message, self._heard.put)
                case StoreEffect(key, bytes(value)):
                    self._keeper.store(key, value)
                case WakeAt(time):
                    self._wake_at = time  # the role names one time after the other, each the earliest
                case Deliver(outcomes.ServerNamed() as named):
                    self._on_named(named)
                case Deliver(outcome):
                    self._outcome = outcome
