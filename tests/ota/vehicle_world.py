"""A car with two ECUs, a Director, an Image repository, servers of images and a ledger, on the seeded network.

`brakes` verifies in full, `door` in part. The ledger is a real one, in memory; so are the proofs. What an attacker with
stolen keys does is what the world does itself, with one thing changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

from firmware_world import FirmwareWorld
from ledger_world import NOW_MS, World, seed
from metadata_world import SUPPLIER, Served
from server_role import ObjectServer

from tallystick.crypto.signatures import SigningKey
from tallystick.fleet.ota.delta import PatchRecord
from tallystick.fleet.ota.diagnosis import Surfaces, VehicleDiagnosis
from tallystick.fleet.ota.ecu import Ecu, EcuName, RestartWanted
from tallystick.fleet.ota.judging import Judge, LeastHead, OfferJudge, PartialJudge, UpdateOffer, VehicleStanding
from tallystick.fleet.ota.manifest import EcuReport, EnrolledEcu, EnrolledVehicle, Inventory, VehicleManifest
from tallystick.fleet.ota.metadata import TrustedRepository
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.fleet.ota.slots import BootRecord, Slots
from tallystick.fleet.ota.vehicle import Primary, VehicleKnows
from tallystick.fleet.ota.waiting import CarState, VehicleRules
from tallystick.ledger import entries
from tallystick.ledger.contracts.execute import newest
from tallystick.ledger.contracts.firmware import CAMPAIGNS, RELEASES
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.objects.asking import FetchLimits
from tallystick.objects.cutting import cut_chunks
from tallystick.objects.layout import (
    FIXED,
    PLAIN,
    ZSTD,
    Docket,
    ObjectKey,
    ObjectReference,
    chunks_file,
    slips_file,
    slips_root,
)
from tallystick.objects.sealing import ChunkSealer
from tallystick.runtime.network import Network, SimClock
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.trust.campaign import WHOLE, Phase

NOW_S = NOW_MS / 1000
HARDWARE = {"brakes": "brake-mk2", "door": "door-mk1"}
VEHICLE = seed("vehicle")[:16]
SERVERS = ("server-0", "server-1")
LIMITS = FetchLimits(patience_s=30.0)
PARKED = CarState(parked=True, consents=True, charge_percent=80, minute=120)


class Image:
    """Bytes, sealed as an object, and its record."""

    def __init__(self, data: bytes, target: str, *, cut: int = FIXED, level: int = 0, **record: Any) -> None:
        self.data, self.target = data, target
        self.key = ObjectKey(seed(f"object key {target} {data[:64]!r}"))
        sealer = ChunkSealer(self.key, level)
        sealed = b"".join(sealer.seal(bytes(chunk)) for chunk in cut_chunks([data], cut, 4096))
        slips = bytes(sealer.slips)
        lengths = sealer.count, sealer.plain_length, sealer.sealed_length
        self.docket = Docket(cut, 4096, ZSTD if level else PLAIN, *lengths, slips_root(slips))
        self.root = self.docket.root
        self.files = {slips_file(self.root): slips, chunks_file(self.root): sealed}
        self.record = ReleaseRecord(ObjectReference(self.root, self.key.key, len(data)), target, **record)


@cache
def image(name: str, hardware: str, version: str = "1.0", length: int = 20_000) -> Image:
    return Image(Random(name).randbytes(length), f"{SUPPLIER}/{hardware}/{version}")


class Fleet:
    """The side of those who release: ledger, both repositories, servers."""

    def __init__(self) -> None:
        self.world = World()
        self.firmware = FirmwareWorld(self.world)
        self.ledger = SqliteLedger(":memory:", self.world.trust, self.world.ledger_key, NOW_MS)
        self.time_ms = NOW_MS
        for transaction in self.world.founding():
            self.submit(transaction)
        found = newest().items()
        self.submit(self.world.authority.sign(*(entries.activate(*one, self.ledger.height + 2) for one in found)))
        self.step()
        for who, written in self.firmware.founding():
            self.submit(who.sign(*written))
        self.step()
        self.images, self.director = Served("image", SUPPLIER), Served("director", parts=5)
        self.named: dict[str, Image] = {}
        self.files: dict[str, bytes] = {}
        self.records: dict[bytes, ReleaseRecord] = {}
        self.patches: dict[tuple[bytes, bytes], PatchRecord] = {}

    def submit(self, transaction: Any) -> None:
        self.ledger.submit(transaction.data, self.time_ms)
        self.step()

    def step(self, seconds: int = 1) -> None:
        """A block, some time later."""
        self.time_ms += 1000 * seconds
        self.ledger.flush(self.time_ms)

    @property
    def token(self) -> bytes:
        return self.firmware.releases

    # --- what each hand does ---

    def serve(self, *images: Image) -> None:
        for one in images:
            self.files |= one.files
            self.records[one.root] = one.record

    def publish(self, *images: Image, now_ms: int | None = None) -> None:
        """The supplier's part."""
        self.named |= {one.target: one for one in images}
        dockets = {name: one.docket.encode() for name, one in self.named.items()}
        self.images.publish(dockets, now_ms or self.time_ms, SUPPLIER)

    def release(self, *images: Image) -> None:
        """The Image repository's part."""
        written = [entries.release_image(self.token, one.root, one.record.contents) for one in images]
        self.submit(self.firmware.image.sign(*written))

    def withdraw(self, one: Image) -> None:
        self.submit(self.firmware.image.sign(self.firmware.withdraw(one.root)))

    def begin_campaign(self, campaign: bytes, *images: Image, share: int = WHOLE) -> None:
        phases = [Phase(share, 10, 1, 1, 0)]
        pairs = sorted((self.token, one.root) for one in images)
        self.submit(self.firmware.owner.sign(entries.campaign(self.firmware.campaigns, campaign, pairs, phases)))

    def assign(self, assigned: Mapping[str, Image], vehicle: bytes = VEHICLE, now_ms: int | None = None) -> None:
        """The Director's part."""
        dockets = {f"{vehicle.hex()}/{ecu}/{one.target}": one.docket.encode() for ecu, one in assigned.items()}
        self.director.publish(dockets, now_ms or self.time_ms)

    def put(self, assigned: Mapping[str, Image]) -> None:
        """All parts."""
        self.serve(*assigned.values())
        self.publish(*assigned.values())
        self.release(*assigned.values())
        self.assign(assigned)

    def offer(self, images: Sequence[Image], size: int = 0, campaign: bytes | None = None) -> UpdateOffer:
        self.step()
        keys: list[bytes] = [RELEASES(self.token, one.root) for one in images]
        keys += [] if campaign is None else [CAMPAIGNS(self.firmware.campaigns, campaign)]
        states = [self.ledger.state(key) for key in keys]
        newer = self.ledger.consistency(size, self._size(states[0].note)) if size else []
        director, kept = self.director.repository.files(), self.images.repository.files()
        director = {name: data for name, data in director.items() if not name.startswith("targets/")}
        return UpdateOffer.gather(director, kept, states, newer, campaign)

    def _size(self, note: bytes) -> int:
        return int(note.split(b"\n")[1])


class Car:
    """The vehicle's side, on a network."""

    def __init__(
        self,
        fleet: Fleet,
        seed_: int = 1,
        *,
        rules: VehicleRules = VehicleRules(),
        campaigns: bool = False,
        hardware: Mapping[str, str] = HARDWARE,
    ) -> None:
        self.fleet, self.rules, self.campaigns, self.hardware = fleet, rules, campaigns, hardware
        self.network = Network(seed_, clock=SimClock(NOW_S))
        self.disks = {name: SeededDisk(seed_) for name in ("primary", *hardware)}
        self.state, self.ill = PARKED, set[bytes]()
        self.surfaces, self.codes = Surfaces(), dict[str, list[str]]()
        self.keys = {name: SigningKey.from_seed(seed(f"car {name}")) for name in ("primary", *hardware)}
        self.factory = {ecu: image(f"factory {ecu}", kind, "0.1") for ecu, kind in hardware.items()}
        for ecu, one in self.factory.items():
            install(Slots(self.disks[ecu]), one)
        for server in SERVERS:
            self.network.add(server, lambda _: ObjectServer(fleet.files))
        self.network.add("primary", self._primary)
        for ecu in hardware:
            self.network.add(ecu, lambda _, ecu=ecu: self._ecu(ecu))  # type: ignore[misc]
        self._seen = 0

    def _repositories(self, disk: SeededDisk) -> tuple[TrustedRepository, TrustedRepository]:
        director = TrustedRepository(disk, "director-metadata", self.fleet.director.root)
        return director, TrustedRepository(disk, "image-metadata", self.fleet.images.root)

    def judge(self) -> Judge:
        """That of the primary."""
        disk = self.disks["primary"]
        self.memory = CheckpointMemory(self.fleet.world.trust, disk)
        token = self.fleet.firmware.campaigns if self.campaigns else None
        standing = VehicleStanding(VEHICLE, self.hardware, self.fleet.token, token)
        return Judge(standing, *self._repositories(disk), self.memory)

    def _primary(self, stored: Mapping[str, bytes]) -> Primary:
        knows = VehicleKnows(
            self.fleet.records.get,
            lambda base, new: self.fleet.patches.get((base, new)),
            lambda: self.state,
            lambda: self.size,
            lambda: self.surfaces,
        )
        return Primary(self.keys["primary"], "director", self.judge(), knows, stored, self.rules)

    @property
    def size(self) -> int:
        return 0 if self.memory.head is None else self.memory.head.size

    def ecu_judge(self, ecu: str) -> OfferJudge:
        disk, fleet = self.disks[ecu], self.fleet
        standing = VehicleStanding(VEHICLE, {ecu: self.hardware[ecu]}, fleet.token, ecu=ecu)
        head = LeastHead(disk, fleet.world.trust)
        if ecu == "door":
            return PartialJudge(standing, fleet.director.root, disk, head)
        return Judge(standing, *self._repositories(disk), head)

    def _ecu(self, ecu: str) -> Ecu:
        name = EcuName(VEHICLE, ecu, self.hardware[ecu], "primary")
        slots = Slots(self.disks[ecu])
        told = self._is_healthy, LIMITS, lambda: self.codes.get(ecu, [])
        return Ecu(name, self.keys[ecu], slots, self.ecu_judge(ecu), SERVERS, *told)

    def _is_healthy(self, record: BootRecord) -> bool:
        return record.image.root not in self.ill

    # --- what happens ---

    def hear(self, offer: UpdateOffer | bytes, sender: str = "director") -> None:
        data = offer if isinstance(offer, bytes) else offer.encode()
        self.network.send(sender, "primary", data)

    def run(self, seconds: float = 60.0) -> None:
        """Let time pass; who wants to restart does."""
        until = self.network.clock.now() + seconds
        while self.step(until):
            pass
        self.network.clock.run(until)

    def step(self, until: float) -> bool:
        """One event. Returns False if there is none up to `until`."""
        happened = self.network.clock.step(until)
        for _, name, value in self.network.delivered[self._seen :]:
            if isinstance(value, RestartWanted) and self.network.alive(name):
                self.network.restart(name)
        self._seen = len(self.network.delivered)
        return happened

    def update(self, images: Sequence[Image], seconds: float = 60.0, campaign: bytes | None = None) -> str:
        """Hear what the fleet says now, and say what became of it."""
        self.hear(self.fleet.offer(images, self.size, campaign))
        self.run(seconds)
        return self.manifests[-1].outcome if self.manifests else ""

    @property
    def manifests(self) -> list[VehicleManifest]:
        return [value for _, _, value in self.network.delivered if isinstance(value, VehicleManifest)]

    def boots(self, ecu: str) -> bytes:
        """The root of the image that would boot next."""
        record = Slots(self.disks[ecu]).record()
        assert record is not None
        return record.image.root

    def runs(self) -> dict[str, bytes]:
        return {ecu: self.boots(ecu) for ecu in self.hardware}

    @property
    def diagnoses(self) -> list[VehicleDiagnosis]:
        return [value for _, _, value in self.network.delivered if isinstance(value, VehicleDiagnosis)]

    def enrolled(self) -> EnrolledVehicle:
        ecus = {ecu: EnrolledEcu(self.keys[ecu].public, kind) for ecu, kind in self.hardware.items()}
        return EnrolledVehicle(self.keys["primary"].public, ecus)

    def inventory(self) -> Inventory:
        return Inventory({VEHICLE: self.enrolled()}.get)

    def last_reports(self) -> dict[str, EcuReport]:
        return {one.ecu: one for one in map(EcuReport.decode, self.manifests[-1].reports)}


def install(slots: Slots, one: Image, counter: int = 0) -> None:
    """As the factory does."""
    chunks = [bytes(chunk) for chunk in cut_chunks([one.data], one.docket.cut, one.docket.target_bytes)]
    hashes = [(len(chunk), one.key.plain_hash(chunk)) for chunk in chunks]
    staging = slots.stage(one.root, counter, hashes, one.key.plain_hash)
    for number, chunk in enumerate(chunks):
        staging.write(number, chunk)
    staging.finish()
    staging.close()
