"""A vehicle as it runs: primary and ECUs over real disks, servers of images, and the topics of its instance.

The roles decide (`vehicle`, `ecu`). Here events go to them one after the other, in one thread, and what they ask for is
carried out in its order. Servers are read in threads of their own (`SourceLanes`), topics in another, so that neither
holds up a car. A unit that wants a restart is made anew from its disk, as a boot loader would.

Threat: power that fails between any two steps, a node that is away for days. Invariant: what the primary stores, the
last offer and the release records, lie in one SQLite file, durable before anything that follows from it leaves; each
ECU has a disk of its own. So a process that was killed goes on, or goes back, by what lies there. The last offer is
judged again after every start, and whenever a release record comes that it may have waited for. What was not told is
told again: the role stores its outcome, and the publisher has a spool.
"""

from __future__ import annotations

import heapq
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Thread

from tallystick import wire
from tallystick.client.publish import Publisher
from tallystick.client.session import Session
from tallystick.client.subscribe import Received
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused, TallystickError, Unavailable
from tallystick.fleet.ota.carfolder import CarFolder
from tallystick.fleet.ota.delta import PatchRecord
from tallystick.fleet.ota.diagnosis import EcuDiagnosis, VehicleDiagnosis, findings
from tallystick.fleet.ota.ecu import Ecu, EcuName, RestartWanted
from tallystick.fleet.ota.judging import Checkpoints, Judge, LeastHead, OfferJudge, PartialJudge, VehicleStanding
from tallystick.fleet.ota.manifest import NOTHING, VehicleManifest
from tallystick.fleet.ota.metadata import TrustedRepository
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.fleet.ota.slots import Slots
from tallystick.fleet.ota.stick import Stick
from tallystick.fleet.ota.vehicle import STICK, Primary, PrimaryStatistics, VehicleKnows
from tallystick.fleet.ota.waiting import VehicleRules
from tallystick.identity.folder import Identity
from tallystick.ledger.block import Head
from tallystick.ledger.proofs import CheckpointMemory, Consistency
from tallystick.objects.asking import FetchLimits
from tallystick.objects.fetching import SourceLanes
from tallystick.objects.outcomes import ServerNamed
from tallystick.objects.sources import Source
from tallystick.runtime.disk import RealDisk, read_all, write_atomic
from tallystick.runtime.effects import Arrived, Deliver, Event, Role, Send, StoreEffect, WakeAt, Woken
from tallystick.runtime.role_store import SqliteRoleStore
from tallystick.runtime.sources import Clock

PRIMARY = "primary"
KEPT_MAX = 1024  # release records for our hardware, and patches, of each the newest
ASK_S = 5.0  # for a proof of the node, which the offer may have as well
READ_S, RETRY_S = 1.0, 10.0  # between two looks at the topics, and after one that failed
LOOK_S = 0.5  # how often somebody may say that it is enough
_OFFER, _AT, _RECORD = "offer", "offers read", "record "  # keys of what is stored beside what the primary stores
_TOPICS = ("releases", "patches", "offers")

log = logging.getLogger(__name__)


class CarHeads:
    """The checkpoints of offers. Each continues the last, by a proof of the node, or by the offer's where no node
    answers: a stick is read in a garage."""

    def __init__(self, memory: CheckpointMemory, session: Session | None) -> None:
        self.memory, self._session = memory, session

    def accept(self, note: bytes, consistency: Consistency) -> Head:
        return self.memory.accept(note, partial(self._prove, consistency))

    def _prove(self, consistency: Consistency, old: int, new: int) -> Sequence[bytes]:
        if self._session is not None:
            with suppress(Unavailable), self._session.within(ASK_S):
                return self._session.node.consistency(old, new)
        return consistency(old, new)


class Car:
    """`sources` are the servers of images, by their names in `ota.json`. Without a `session` it runs by itself, and
    tells what became of it when it has one again."""

    def __init__(
        self,
        folder: CarFolder,
        identity: Identity,
        sources: Mapping[str, Source],
        clock: Clock,
        session: Session | None = None,
        rules: VehicleRules = VehicleRules(),
        on_change: Callable[[PrimaryStatistics], None] = lambda told: None,
    ) -> None:
        """Raises `Unavailable` where it never had leave to publish, and cannot ask for it."""
        self._folder, self._identity, self._clock, self._on_change = folder, identity, clock, on_change
        self._told: PrimaryStatistics | None = None
        self._session, self._servers = session, list(sources)
        self.named: dict[str, str] = {}  # servers that sent what is wrong, and what that was
        disk = RealDisk(folder.path / PRIMARY)
        self._store = SqliteRoleStore(disk.root / "kept.db")
        kept = self._store.items()
        self._offer: tuple[str, bytes] | None = wire.decode(kept[_OFFER]) if _OFFER in kept else None  # and who sent it
        self._read_to = dict(wire.decode(kept[_AT]) if _AT in kept else ())
        known = [ReleaseRecord.decode(data) for key, data in kept.items() if key.startswith(_RECORD)]
        self._records = {one.image: one for one in known}
        self._patches: dict[tuple[bytes, bytes], PatchRecord] = {}
        self._events: SimpleQueue[tuple[str, Event] | Callable[[], None]] = SimpleQueue()
        self._wakes: list[tuple[float, str]] = []
        self._lanes = SourceLanes(sources, FetchLimits().lanes)
        memory = CheckpointMemory(identity.trust, RealDisk(disk.root / "ledger"))
        knows = VehicleKnows(
            self._records.get,
            lambda base, image: self._patches.get((base, image)),
            lambda: folder.state(clock.now()),
            lambda: 0 if memory.head is None else memory.head.size,
            folder.surfaces,
        )
        judge = self._judge(disk, self._standing(), CarHeads(memory, session))
        director = folder.fleet.director.hex()
        self._primary = Primary(identity.signing_key, director, judge, knows, kept, rules)
        self._roles: dict[str, Role] = {PRIMARY: self._primary} | {ecu: self._boot(ecu) for ecu in folder.hardware}
        self._publishers: dict[type, Publisher] = {}
        if session is not None:
            for kind, topic in {VehicleManifest: "manifests", VehicleDiagnosis: "diagnoses"}.items():
                name = folder.fleet[topic].name
                self._publishers[kind] = session.publisher(name, when_full="gap", acks=session.acks_most)
        self._rounds, self._ending = 0, Flag()
        self._reader = Thread(target=self._read, args=(session,), name="car reads", daemon=True)
        if session is not None:
            self._reader.start()

    def run(self, is_enough: Callable[[], bool]) -> None:
        """Until somebody says that it is enough, which is asked every so often."""
        for name in (*self._folder.hardware, PRIMARY):
            self._give(name, Woken())
        self._hear_offer()
        while not is_enough():
            self._turn()

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to do: everything was read, no bundle is on its way, or one waits, and whoever reads
        what was told can see it."""
        has_read = self._session is None or self._rounds > 1
        return has_read and self._events.empty() and self.statistics().is_quiet and self._has_told

    def statistics(self) -> PrimaryStatistics:
        return self._primary.statistics()

    def plug_in(self, stick: Stick) -> None:
        """Take what a stick brings. Its object files are one of the sources."""
        for record in stick.records:
            self._take_record(record)
        for patch in stick.patches:
            self._take_patch(patch)
        self._keep_offer(STICK, stick.offer)
        self._hear_offer()

    def look(self) -> list[str]:
        """What a diagnosis would find, of a vehicle that does not run. It changes nothing and tells nobody."""
        vehicle, answers = self._folder.vehicle.vehicle, {}
        for ecu in self._folder.hardware:
            slots = Slots(self._folder.disk(ecu))
            try:
                record, slot_ok = slots.record(), 1
                slots.check()
            except TallystickError:
                record, slot_ok = None, 0
            told = vehicle, ecu, 0, bytes(16), NOTHING if record is None else record.image.root, slot_ok, 0, 0
            answers[ecu] = EcuDiagnosis(*told, tuple(self._folder.codes(ecu)))
        records = [self._records[one.image] for one in answers.values() if one.image in self._records]
        outside = VehicleDiagnosis(vehicle, 0, bytes(16), (), tuple(self._folder.surfaces().found))
        return findings(outside, answers, answers, {surface for one in records for surface in one.surfaces})

    def close(self) -> None:
        self._ending.set()
        if self._session is not None:
            self._reader.join()
        for publisher in self._publishers.values():
            publisher.close(ASK_S)
        self._lanes.close()
        self._store.close()

    # --- events ---

    def _turn(self) -> None:
        now = self._clock.now()
        if self._wakes and self._wakes[0][0] <= now:
            self._give(heapq.heappop(self._wakes)[1], Woken())
            return
        with suppress(Empty):
            event = self._events.get(timeout=min(LOOK_S, self._wakes[0][0] - now) if self._wakes else LOOK_S)
            if callable(event):
                event()
            else:
                self._give(*event)

    def _give(self, name: str, event: Event) -> None:
        try:
            effects = self._roles[name].receive(event, self._clock.now())
        except TallystickError as error:
            if name == PRIMARY:
                raise
            log.warning("%s: %s", name, error)  # a unit that does not boot is silent
            return
        for effect in effects:
            match effect:
                case Send(to, message) if to in self._roles:
                    self._events.put((to, Arrived(name, message)))
                case Send(to, message):
                    self._lanes.ask(to, message, lambda answer: self._events.put((name, answer)))
                case StoreEffect(key, value):
                    self._store.put([(key, value)])
                case WakeAt(time):
                    heapq.heappush(self._wakes, (time, name))
                case Deliver(RestartWanted()):
                    self._roles[name] = self._boot(name)
                    self._events.put((name, Woken()))
                case Deliver(VehicleManifest() | VehicleDiagnosis() as told) if type(told) in self._publishers:
                    self._tell(told)
                case Deliver(ServerNamed(server, what)):
                    self.named[server] = what
                    log.warning("server %s sent what is wrong: %s", server, what)
        self._show()

    def _tell(self, told: VehicleManifest | VehicleDiagnosis) -> None:
        try:
            self._publishers[type(told)].send([told.row()])
        except TallystickError as error:  # a right that is gone, a full disk: no reason to stop installing
            log.warning("not told: %s", error)

    @property
    def _has_told(self) -> bool:
        with suppress(TallystickError):  # as above: then it will never be seen
            return not any(one.flush(0) for one in self._publishers.values())
        return True

    def _show(self) -> None:
        told = self.statistics()
        if self._told is None or told[:-1] != self._told[:-1]:
            self._told, shown = told, json.dumps(told._asdict(), default=bytes.hex)
            write_atomic(RealDisk(self._folder.path), "status.json", shown.encode())
            self._on_change(told)

    # --- rows ---

    def _read(self, session: Session) -> None:
        """In a thread of its own: hand over what the topics have. What fails is tried again."""
        readers, fleet, trouble = {}, self._folder.fleet, ""
        while not self._ending.is_set():
            try:
                for topic in _TOPICS:
                    if topic not in readers:
                        start = min(self._read_to.values(), default=0) if topic == "offers" else 0
                        readers[topic] = session.subscriber(fleet[topic].name, start=start, on_bad="report")
                    while received := readers[topic].poll(0):
                        self._events.put(partial(self._take, topic, received, readers[topic].positions()))
                self._rounds, trouble = self._rounds + 1, ""
            except (Refused, Unavailable) as error:
                if str(error) != trouble:
                    log.warning("%s; trying again", error)
                trouble = str(error)
            self._ending.wait(RETRY_S if trouble else READ_S)
        for reader in readers.values():
            reader.close()

    def _take(self, topic: str, received: list[Received], positions: dict[int, int]) -> None:
        is_news = False
        for one in received:
            for row in one.to_pylist():
                try:
                    match topic:
                        case "releases":
                            is_news |= self._take_record(ReleaseRecord.of_row(row))
                        case "patches":
                            self._take_patch(PatchRecord.decode(row["patch"]))
                        case _:
                            if one.offset >= self._read_to.get(one.partition, 0):
                                is_news |= self._take_offer(one.publisher, row["vehicle"], row["offer"])
                except Refused as error:
                    log.warning("%s: %s", topic, error)
        if topic == "offers":
            self._store.put([(_AT, wire.encode([*map(list, positions.items())]))])
        if is_news:
            self._hear_offer()

    def _take_record(self, record: ReleaseRecord) -> bool:
        """Returns whether it is news: one for hardware of ours."""
        if record.image in self._records or record.hardware not in self._folder.hardware.values():
            return False
        self._records[record.image] = record
        self._store.put([(f"{_RECORD}{record.image.hex()}", record.encode())])
        if len(self._records) > KEPT_MAX:
            oldest = self._records.pop(next(iter(self._records)))
            self._store.put([(f"{_RECORD}{oldest.image.hex()}", None)])
        return True

    def _take_patch(self, patch: PatchRecord) -> None:
        self._patches[patch.base, patch.image] = patch
        if len(self._patches) > KEPT_MAX:
            del self._patches[next(iter(self._patches))]

    def _take_offer(self, publisher: bytes, vehicle: bytes, offer: bytes) -> bool:
        is_ours = self._is_ours(publisher, vehicle)
        if is_ours:
            self._keep_offer(self._folder.fleet.director.hex(), offer)
        return is_ours

    def _is_ours(self, publisher: bytes, vehicle: bytes) -> bool:
        """Whether it is of the Director. An offer of somebody else would be refused, and take back what waits."""
        return vehicle == self._folder.vehicle.vehicle and publisher == self._folder.fleet.director

    def _keep_offer(self, sender: str, offer: bytes) -> None:
        self._offer = sender, offer
        self._store.put([(_OFFER, wire.encode(self._offer))])

    def _hear_offer(self) -> None:
        if self._offer is not None:
            self._events.put((PRIMARY, Arrived(*self._offer)))

    # --- units ---

    def _boot(self, ecu: str) -> Ecu:
        """A unit from its disk."""
        folder, disk = self._folder, self._folder.disk(ecu)
        name = EcuName(folder.vehicle.vehicle, ecu, folder.hardware[ecu], PRIMARY)
        heads, standing = LeastHead(disk, self._identity.trust), self._standing(ecu)
        judge: OfferJudge = self._judge(disk, standing, heads)
        if ecu in folder.vehicle.partial:
            judge = PartialJudge(standing, folder.fleet.director_root, disk, heads)
        key, told = SigningKey.from_seed(read_all(disk, "key")), partial(folder.codes, ecu)
        health = lambda _: folder.is_healthy(ecu)  # noqa: E731
        return Ecu(name, key, Slots(disk), judge, self._servers, health, trouble_codes=told)

    def _standing(self, ecu: str | None = None) -> VehicleStanding:
        """An ECU knows of itself alone, and leaves campaigns to the primary."""
        fleet, hardware = self._folder.fleet, self._folder.hardware
        vehicle, token = self._folder.vehicle.vehicle, fleet["releases"].token
        if ecu is None:
            return VehicleStanding(vehicle, hardware, token, fleet["campaigns"].token)
        return VehicleStanding(vehicle, {ecu: hardware[ecu]}, token, ecu=ecu)

    def _judge(self, disk: RealDisk, standing: VehicleStanding, heads: Checkpoints) -> Judge:
        fleet = self._folder.fleet
        director = TrustedRepository(disk, "director-metadata", fleet.director_root)
        return Judge(standing, director, TrustedRepository(disk, "image-metadata", fleet.images_root), heads)
