"""A relay's part in the ledger: leases and anchors where publishers enter, and everywhere a log that follows them.

Each round, for the partitions that this relay keeps: those of topics that enter at its virtual node, and those of
topics somebody subscribed to here.

- The log follows the newest anchor: with the tail, where its root is the anchored one, else with what other relays
  prove (`catching_up.py`). A parcel comes into the log only with its permits and locks, so that whoever reads it here
  can open it here.
- Who holds the lease (`leading.py`) anchors what f+1 relays signed (`anchoring.py`), with the operations of its
  publishers, taken from the parcels themselves: so they are told once, however many relays took them.
- Evidence and suspicions of the roles go to the ledger, each once; where it is away, when it is there again.

A relay that the plan does not name any more leaves, and ends. The node serves what it keeps, and relays again once a
plan names it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tallystick import wire
from tallystick.carriers.accounts import permit_name
from tallystick.carriers.carrier import Pushed
from tallystick.carriers.front import Front
from tallystick.carriers.overlay.accuse import accuse
from tallystick.carriers.overlay.bearings import LedgerBearings
from tallystick.carriers.overlay.content_forwarding import CarriedParcel, Suspicion
from tallystick.carriers.overlay.keeping import OverlayStorage, wait_for_relay
from tallystick.carriers.overlay.leading import Leading
from tallystick.carriers.overlay.places import Counted, Recalled, Unjudged
from tallystick.carriers.overlay.proved import FoundBlob, Proved
from tallystick.carriers.overlay.relay import Departed
from tallystick.carriers.overlay.relayed_keys import Evidence
from tallystick.carriers.overlay.station import RelayStation
from tallystick.carriers.received import judge_pushed
from tallystick.carriers.registry import CarrierHost
from tallystick.carriers.storage import Location, Place
from tallystick.errors import Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.anchors import ANCHORS, RETIRED, AnchorRow
from tallystick.ledger.contracts.plans import ENTRUSTED, EntrustedRow
from tallystick.ledger.engine import find_entry, is_anchor_of
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel, front_bytes
from tallystick.runtime.disk import read_all, write_atomic
from tallystick.runtime.effects import Effect
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.promise import Anchor, JointAnchor

log = logging.getLogger(__name__)

_EVERYTHING = 1 << 20
_FOLLOWED = "followed"  # a file: topics that somebody subscribed to here
TOLD_MAX = 4_096
MISSING_MAX = 64  # readers at different places, in one round


class OverlayKeeper:
    """Stands where an anchorer stands; for one thread, beside those of front and station."""

    def __init__(
        self,
        host: CarrierHost,
        overlay: bytes,
        storage: OverlayStorage,
        front: Front,
        bearings: LedgerBearings,
        start: Callable[[Callable[[Any], None]], RelayStation | None],
    ) -> None:
        """`start` makes the relay as soon as a plan names it, with whom it delivers to."""
        self._host, self._overlay, self._me, self._start = host, overlay, host.signer.principal, start
        self._storage, self._front, self._bearings, self._read = storage, front, bearings, host.rules.read
        self.station: RelayStation | None = None
        self._height = -1
        self._entrusted: dict[bytes, EntrustedRow] = {}
        self._followed = _read_followed(storage)
        self._leading = Leading(host, storage)
        self._learning = threading.Lock()
        self._told: deque[Any] = deque()  # by the relay, for the next round
        self._said: dict[bytes, None] = {}  # entries of blame, by their bytes
        self._missing: dict[tuple[Place, int], int] = {}  # from where up to where a reader lacks bodies
        storage.on_share, storage.on_missing = self._learn, self._miss
        self.on_close: Callable[[], None] = lambda: None

    def grown(self) -> list[Anchor]:
        return []  # they go with what publishers did

    def work(self, now_ms: int) -> bool:
        station = self.station or self._begin()
        if station is None:
            return False
        if station.failure is not None:  # the ledger was away, perhaps: what counts is stored, and it begins again
            self.station = None
            raise Unavailable(f"the relay stopped, and starts again: {station.failure!r}")
        if self._host.block()[0] != self._height:
            self._height = self._host.block()[0]
            rows = self._host.ledger.scan(ENTRUSTED, most=_EVERYTHING)
            self._entrusted = {token: row for (token,), row in rows if row.overlay == self._overlay}
            self._bearings.look()
            station.moved()
        self._listen(station, now_ms)
        if self.station is None:  # it has left
            return False
        self._fetch_bodies(station)
        plan = self._bearings.newest_plan()
        seat = plan.place(self._me)
        written: list[list[bytes]] = []
        for token, word in self._entrusted.items():
            topic, is_entry = self._host.rules.topic(token), seat is not None and seat[0].identifier == word.node
            is_entry = is_entry and topic is not None and self._host.rules.consents(topic.tenant)
            for place in [Place(token, number) for number in range(0 if topic is None else topic.partitions)]:
                if is_entry or token in self._followed or self._storage.has_some(place):
                    self._follow(station, place, now_ms)
                if is_entry:
                    lease, suspicion = self._leading.lead(station, place, word, plan, now_ms)
                    written += [lease] if lease else []
                    self._told += [] if suspicion is None else [suspicion]
        return self._write(written)

    def _begin(self) -> RelayStation | None:
        self._bearings.look()
        self.station = station = self._start(self._hear)
        if station is not None:
            self._storage.propose, self._height = partial(self._propose, station), -1
        return station

    def _end(self) -> None:
        station, self.station, self._storage.propose = self.station, None, wait_for_relay
        if station is not None:
            station.stop()

    def statistics(self) -> Mapping[str, int]:
        station = self.station
        if station is None:
            return {"relaying": 0}
        relay = station.relay
        dropped = relay.dropped + relay.ordering.dropped + relay.content.dropped + relay.secrets.dropped
        return {"relaying": 1, "plan": self._bearings.newest_plan().version, "frames_dropped": dropped.total()}

    def close(self) -> None:
        self._end()
        self.on_close()

    # What the relay tells, in its own thread.

    def _hear(self, value: Any) -> None:
        match value:
            case Counted(promise, parcel):
                self._storage.keep(promise, parcel, is_own=True)
            case CarriedParcel(promise, parcel):
                self._storage.keep(promise, parcel, is_own=False)
            case Recalled(place, offset, _):
                self._storage.recall(place, offset)
                self._told.append(value)
            case Unjudged() as brought:
                self._judge(brought)
            case _:
                self._told.append(value)

    def _judge(self, brought: Unjudged) -> None:
        """A parcel from another relay is proposed, if it would pass if its publisher brought it."""
        place, parcel, is_promised = brought
        station = self.station
        if station is None or self._storage.underway(place, parcel.hash) is not None:
            return
        try:
            if is_promised:
                self._bearings.check_front(parcel)
                parcel.check_body()
            elif not self._lacks(station, place, [parcel.header]):
                with self._front.lock:
                    judge_pushed(self._front, Pushed(parcel.encode()), ())
            else:
                return  # what it needs is asked for, and it is brought again
        except Refused as error:
            log.warning("%s: a parcel that another relay brought is refused here: %s", place, error)
        else:
            station.propose(place, parcel)

    def _propose(self, station: RelayStation, place: Place, parcel: Parcel) -> None:
        """A new parcel, unless it is promised when its turn comes: its publisher may have shown it again."""

        def propose(now: float) -> list[Effect]:
            is_known = self._storage.underway(place, parcel.hash) is not None
            return [] if is_known else station.relay.propose(place, parcel, now)

        station.ask(propose)

    def _learn(self, blobs: Mapping[bytes, bytes]) -> None:
        """Somebody shows a permit here: a reader's topic is followed from now on."""
        for data in blobs.values():
            try:
                permit = Permit.decode(data)
            except Refused:  # a lock, or an order
                continue
            with self._learning:
                if permit.operation is Operation.SUBSCRIBE and permit.token not in self._followed:
                    write_atomic(self._storage.disk, _FOLLOWED, wire.encode(sorted({*self._followed, permit.token})))
                    self._followed.add(permit.token)

    def _miss(self, place: Place, first: int, below: int) -> None:
        """A reader, in its own thread, asks for what nobody wanted here."""
        if len(self._missing) < MISSING_MAX:
            self._missing[place, first] = below

    # What it told, in the node's.

    def _listen(self, station: RelayStation, now_ms: int) -> None:
        while self._told:
            match self._told.popleft():
                case Proved(place, first, parcels):
                    if first + len(parcels) <= self._storage.end(place):
                        self._storage.fill(place, first, [_parcel(data) for data in parcels])
                    elif first == self._storage.end(place):
                        self._take_in(station, place, [_parcel(data) for data in parcels], now_ms)
                case JointAnchor() as joint:
                    self._anchor(station, joint, now_ms)
                case FoundBlob(name, data):
                    with self._front.syncing():
                        self._storage.deposit(name, data)
                        self._storage.sync()
                case Evidence() as evidence:
                    try:
                        self._blame(accuse(evidence, self._bearings))
                    except Refused as error:
                        log.warning("evidence that proves nothing: %s", error)
                case Suspicion(version, relay):
                    self._blame(entries.suspect(self._overlay, version, relay))
                case bytes() as entry:
                    self._blame(entry)
                case Recalled(_, _, parcels):  # whose publishers may bring them again
                    with self._front.syncing():
                        self._take_back(parcels)
                case Departed(version):
                    log.warning("this relay has left its overlay by plan %d; the node serves what it keeps", version)
                    self._end()

    def _fetch_bodies(self, station: RelayStation) -> None:
        while self._missing:
            (place, first), below = self._missing.popitem()
            size = self._front.anchored.size(place)
            if first < size:
                anchor, want = (size, self._storage.tree(place).root(size)), station.relay.catching_up.want_bodies
                station.ask(partial(want, place, first, min(below, size), *anchor))

    def _blame(self, entry: bytes) -> None:
        if entry in self._said:
            return
        try:
            self._host.write([entry])
        except Refused as error:
            log.info("the ledger does not take a relay's word: %s", error)
        except Unavailable:
            self._told.append(entry)
            raise
        self._said[entry] = None
        while len(self._said) > TOLD_MAX:
            del self._said[next(iter(self._said))]

    # The log.

    def _follow(self, station: RelayStation, place: Place, now_ms: int) -> None:
        self._retire(place)
        row, end = self._read(ANCHORS(*place)), self._storage.end(place)
        if row is None or row.size <= self._front.anchored.size(place):
            return
        if end < row.size:
            tail = self._storage.tail(place)[: row.size - end]
            if len(tail) == row.size - end and self._storage.root_with(place, tail) == row.root:
                self._take_in(station, place, tail, now_ms)
            else:
                what = place, end, row.size, row.root
                station.ask(lambda now: station.relay.catching_up.want(*what, now))
        if self._storage.end(place) >= row.size:
            self._prove(place, row)

    def _retire(self, place: Place) -> None:
        """Give up what the holder of the lease marked as given up."""
        mark, end = self._read(RETIRED(*place)), self._storage.end(place)
        if mark is not None and end and mark.below > self._storage.tree(place).below:
            self._storage.retire(place, min(mark.below, end))

    def _prove(self, place: Place, row: AnchorRow) -> None:
        """Show readers what the anchor covers."""
        if self._storage.tree(place).root(row.size) != row.root:
            log.error("%s: the anchor of %d parcels does not continue those before it", place, row.size)
            return
        found = find_entry(self._host.ledger, row.height, lambda entry: is_anchor_of(entry, *place))
        if found is not None:
            self._front.anchored.remember(Anchor(*place, row.size, row.root), *found)
            self._front.on_growth()

    def _take_in(self, station: RelayStation, place: Place, parcels: Sequence[Parcel], now_ms: int) -> None:
        """Append what is anchored, if what opens it is here too."""
        front, storage = self._front, self._storage
        headers = [parcel.header for parcel in parcels]
        if self._lacks(station, place, headers):
            return
        with front.syncing():
            first = storage.end(place)
            storage.grow(place, parcels, now_ms)
            for offset, header in enumerate(headers, first):
                principal = front.deposits.principal_of(header)
                front.heads.stored(principal, header, Location((place,), (offset,)))
            front.heads.index.cover(place, storage.end(place))
            self._take_back(storage.let_go(place))  # other parcels were anchored there: publishers may bring them again
            self._retire(place)
            end, logged = storage.end(place), [parcel.hash for parcel in parcels]
        station.ask(lambda now: station.relay.ordering.settle(place, end, logged, now))

    def _take_back(self, parcels: Sequence[Parcel]) -> None:
        for header in [parcel.header for parcel in parcels]:
            if permit_name(header.topics[0].permit) in self._storage.blobs:  # else it came from another relay
                self._front.heads.take_back(self._front.deposits.principal_of(header), header.lane)

    def _lacks(self, station: RelayStation, place: Place, headers: Sequence[Header]) -> bool:
        """Whether permits or locks of parcels are not here: then they are asked for. Who publishes at f+1 relays shows
        them to no others."""
        needed = {permit_name(topic.permit) for header in headers for topic in header.topics}
        needed |= {name for header in headers for group in header.groups for name in group.locks}
        missing = [name for name in needed if name not in self._storage.blobs]
        if missing:
            station.ask(lambda now: station.relay.catching_up.want_blobs(missing, place.token, now))
        return bool(missing)

    # The ledger.

    def _anchor(self, station: RelayStation, joint: JointAnchor, now_ms: int) -> None:
        """What f+1 relays signed goes to the ledger, and who published it."""
        place, end = Place(joint.token, joint.partition), self._storage.end(Place(joint.token, joint.partition))
        tail = self._storage.tail(place)[: max(0, joint.size - end)]
        if self._lacks(station, place, [parcel.header for parcel in tail]):
            return  # it is brought again
        by: dict[bytes, list[tuple[int, bytes]]] = {}
        for offset, parcel in enumerate(tail, end):
            by.setdefault(self._front.deposits.principal_of(parcel.header), []).append((offset, parcel.hash))
        told = [entries.published(who, *place, some, now_ms, "overlay") for who, some in by.items()]
        self._write([[joint.encode_entry(), *told]])

    def _write(self, written: Sequence[Sequence[bytes]]) -> bool:
        """All in one transaction; where the ledger refuses it, each by itself. Returns whether there was any."""
        try:
            if written:
                self._host.write([entry for some in written for entry in some])
        except Refused as refusal:
            log.info("the ledger refuses what this relay writes: %s", refusal)
            for some in written if len(written) > 1 else ():
                try:
                    self._host.write(some)
                except Refused as error:
                    log.info("%s", error)
            return False
        return bool(written)


def _parcel(data: bytes) -> Parcel:
    """Whole, or only what stands before the body, where that was given up."""
    return Parcel.decode_front(data) if len(data) == front_bytes(data) else Parcel.decode(data)


def _read_followed(storage: OverlayStorage) -> set[bytes]:
    if not storage.disk.exists(_FOLLOWED):
        return set()
    return set(wire.decode(read_all(storage.disk, _FOLLOWED), "followed topics"))
