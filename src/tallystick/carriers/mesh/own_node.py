"""A principal's own node on a carrier that stores nothing: what a node of the mesh and a host of the fabric share.

The node takes part by a *station*, once it has its principal's kit: from a file beside its log (`sealed_files.py`), or
by the door that is open to that principal alone. Which principal that is, node.toml says, so whoever runs the node
decides; nobody can talk it into serving another. The principal's clients publish and subscribe here as anywhere. Others
are turned away, since what this node keeps of a topic would tell them that its owner is there.

Nothing of what happens here comes to the ledger, and nothing is promised or anchored. What is heard is put in order
(`arrivals.py`), judged (`received.py`) and kept in the node's own log, from which groups and Spark read, for as long as
the topics' owners have it kept.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from tallystick.carriers.carrier import GROUPS_PATH, Pushed
from tallystick.carriers.kept_groups import KeptGroups
from tallystick.carriers.log.limits import LogLimits
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.mesh.arrivals import ArrivalLimits, Arrivals, due_by
from tallystick.carriers.mesh.keeping import MeshStorage, ParcelsOut, parcel_bytes_max
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.sealed_files import KIT, SealedFiles
from tallystick.carriers.received import Receiver
from tallystick.carriers.registry import CarrierHost, Served
from tallystick.errors import CannotOpen, Malformed, Misuse, Refused
from tallystick.runtime.disk import Disk
from tallystick.runtime.sources import Clock

log = logging.getLogger(__name__)

EARLY_MAX = 64  # on the fabric, where time counts, readers see so much of a partition while the disk works

Take = Callable[[bytes, Pushed], None]  # the key under which it was signed, if it has one, and what came


class OwnStation(ParcelsOut, Protocol):
    """At work from the beginning."""

    @property
    def failure(self) -> BaseException | None: ...  # what ended it

    def under_way(self) -> float: ...  # since when the oldest of what is still coming is; infinity: nothing is

    def stop(self) -> None: ...


class StationKit(Protocol):
    def encode(self) -> bytes: ...


K = TypeVar("K", bound=StationKit)
S = TypeVar("S", bound=OwnStation)


class StationHolder(Generic[K, S]):
    """The station of a node, once it has a kit, and what came from it: a `Receiving`."""

    def __init__(
        self,
        files: SealedFiles,
        clock: Clock,
        decode: Callable[[bytes], K],
        begin: Callable[[K, Take], S],
        renew: Callable[[S, K, K], bool],
    ) -> None:
        """`begin` starts a station. `renew(station, old, new)` has it go on with another kit, or returns False."""
        self.carrier, self.clock, self._files = files.carrier, clock, files
        self._decode, self._begin, self._renew = decode, begin, renew
        self._arrivals: Arrivals | None = None
        self._changing = threading.Lock()
        self.bell = threading.Event()  # something came
        self.kit: K | None = None
        self.station: S | None = None

    def open(self, arrivals: Arrivals) -> None:
        """Begin, if an earlier process left a kit. Raises `Misuse` for one that is none."""
        self._arrivals = arrivals
        try:
            if (kit := self._files.read(KIT)) is not None:
                self._start(self._decode(kit))
        except (CannotOpen, Malformed) as error:
            hint = f"remove it, and tally {self.carrier} join again"
            raise Misuse(f"{self.carrier}.{KIT}: {error}", hint=hint) from error

    def equip(self, kit: K) -> S:
        """Take another kit, for good."""
        with self._changing:
            if kit == self.kit and self.station is not None:
                return self.station
            self._files.write(KIT, kit.encode())
            old, self.kit = self.kit, kit
            if self.station is not None and old is not None and self._renew(self.station, old, kit):
                return self.station
            self._end()
            return self._start(kit)

    def require(self) -> S:
        """Raises `Refused` where there is no kit yet."""
        if self.station is None:
            hint = f"tally {self.carrier} join"
            raise Refused("this node has no kit yet", reason="no-kit", hint=hint)
        return self.station

    def pushed(self) -> Sequence[Pushed]:
        station, kit = self.station, self.kit
        if station is not None and kit is not None and station.failure is not None:
            log.error("the %s station stopped, and begins again: %r", self.carrier, station.failure)
            with self._changing:
                self._end()
                self._start(kit)
        return [] if self._arrivals is None else self._arrivals.take(self.clock.now())

    def under_way(self) -> float:
        return float("-inf") if self.station is None else self.station.under_way()

    def close(self) -> None:
        with self._changing:
            self._end()

    def _start(self, kit: K) -> S:
        self.kit, self.station = kit, self._begin(kit, self._take)
        return self.station

    def _end(self) -> None:
        station, self.station = self.station, None
        if station is not None:
            station.stop()

    def _take(self, publisher: bytes, pushed: Pushed) -> None:
        assert self._arrivals is not None  # set before the first station
        self._arrivals.put(publisher, pushed, self.clock.now())
        self.bell.set()


def serve_own(
    holder: StationHolder[Any, Any],
    owner: bytes,
    host: CarrierHost,
    disk: Disk,
    doors: Mapping[str, Callable[[bytes], bytes]],
    limits: MeshLimits,
    arrivals: ArrivalLimits = ArrivalLimits(),
) -> Served:
    """The node of one principal, to whom alone its `doors` are open."""
    kept, clock = LogStore(disk, LogLimits(early_max=EARLY_MAX if holder.carrier == "fabric" else 0)), holder.clock
    storage = MeshStorage(kept, lambda: holder.station, limits, holder.carrier)
    host.rules.is_open = True
    front = host.front(storage, kept.journal, {}, quiet=True)
    kept.on_early = lambda: front.on_growth()
    front.limits = replace(front.limits, parcel_bytes_max=parcel_bytes_max(limits))
    front.serve_only(owner)
    groups = KeptGroups(host.ledger, disk, owner, host.rules.instance, clock, storage.end)
    holder.open(Arrivals(due_by(front), arrivals, holder.under_way))
    if holder.station is not None:
        storage.send_again(owner, int(clock.now() * 1000))
    open_to_owner = {path: only(owner, answer) for path, answer in {**doors, GROUPS_PATH: groups.answer}.items()}
    return Served(front, Receiver(holder, front, host.rules.read), open_to_owner, holder.bell)


def only(
    owner: bytes, answer: Callable[[bytes], bytes], otherwise: str = "this node serves another principal alone"
) -> Callable[[bytes, bytes], bytes]:
    """A door that is open to one principal."""

    def asked(caller: bytes, body: bytes) -> bytes:
        if caller != owner:
            raise Refused(otherwise, reason="not-served")
        return answer(body)

    return asked
