"""A fleet's updates for the jobs that look at them: vehicles that sign what tests let them say, three topics and a
ledger on a `Lake`, and a Director that tells the truth or does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from lake import Lake
from ledger_world import seed

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused
from tallystick.fleet.ota.diagnosis import NO_CAMPAIGN, EcuDiagnosis, VehicleDiagnosis
from tallystick.fleet.ota.director import CampaignReport, Director
from tallystick.fleet.ota.fleetfile import SCHEMAS, FleetFile, NamedTopic, VehicleFile
from tallystick.fleet.ota.manifest import NOTHING, EcuReport, EnrolledEcu, Trial, VehicleManifest
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.ledger import entries
from tallystick.ledger.contracts.firmware import CAMPAIGNS, RELEASES, CampaignRow
from tallystick.objects.layout import ObjectReference
from tallystick.trust.campaign import WHOLE, Phase

HARDWARE = {"brakes": "brake-mk2", "door": "door-mk1"}


class Vehicle:
    """It and its ECUs sign whatever they are told to."""

    def __init__(self, name: str) -> None:
        self.vehicle = seed(name)[:16]
        self.key = SigningKey.from_seed(seed(f"{name} primary"))
        self.keys = {ecu: SigningKey.from_seed(seed(f"{name} {ecu}")) for ecu in HARDWARE}
        self._number = 0

    @property
    def file(self) -> VehicleFile:
        ecus = {ecu: EnrolledEcu(self.keys[ecu].public, kind) for ecu, kind in HARDWARE.items()}
        return VehicleFile(self.vehicle, self.key.public, ecus)

    def report(self, ecu: str, image: bytes, *, key: SigningKey | None = None, **other: Any) -> EcuReport:
        told = {"counter": 1, "staged": NOTHING, "trial": Trial.NONE, "refused": NOTHING, "told": "", "boots": 1}
        self._number += 1
        facts: dict[str, Any] = {**told, "returns": 0, **other}
        report = EcuReport(self.vehicle, ecu, self._number, HARDWARE[ecu], image, **facts)
        return report.sign(key or self.keys[ecu])

    def manifest(self, *reports: EcuReport, campaign: bytes = NO_CAMPAIGN, outcome: str = "") -> VehicleManifest:
        self._number += 1
        encoded = tuple(one.encode() for one in reports)
        return VehicleManifest(self.vehicle, self._number, 1, campaign, "", outcome, encoded).sign(self.key)

    def runs(self, images: Mapping[str, bytes], **about: Any) -> VehicleManifest:
        return self.manifest(*(self.report(ecu, image) for ecu, image in images.items()), **about)

    def diagnosis(self, images: Mapping[str, bytes], surfaces: Sequence[str] = (), **ecu: Any) -> VehicleDiagnosis:
        self._number += 1
        facts = {"slot_ok": 1, "boots": 1, "returns": 0, **ecu}
        answers = [
            EcuDiagnosis(self.vehicle, name, self._number, NO_CAMPAIGN, image, **facts).sign(self.keys[name])
            for name, image in images.items()
        ]
        told = VehicleDiagnosis(self.vehicle, self._number, NO_CAMPAIGN, tuple(one.encode() for one in answers))
        whole = VehicleDiagnosis(told.vehicle, told.number, told.campaign, told.reports, tuple(surfaces), 5)
        return whole.sign(self.key)


def record(hardware: str, version: str, surfaces: Sequence[str] = ()) -> ReleaseRecord:
    target = f"acme/{hardware}/{version}"
    reference = ObjectReference(sha256(target.encode()).digest(), seed(f"key of {target}"), 1_000)
    return ReleaseRecord(reference, target, surfaces=tuple(surfaces))


class FleetRows:
    """Owner, Image repository, Director and data team are `owner`, `car`, `car` and `reader` of the lake."""

    def __init__(self, lake: Lake, folder: Path, vehicles: Sequence[Vehicle]) -> None:
        self.lake, self.vehicles, self.folder = lake, vehicles, folder
        wanted = ("releases", "patches", "campaigns", "manifests", "diagnoses")
        self.topics = {what: lake.topic(f"ota-{what}", SCHEMAS[what]) for what in wanted}
        named = {what: NamedTopic(f"ota-{what}", bytes(16)) for what in SCHEMAS}
        named |= {what: NamedTopic(one.name, one.token) for what, one in self.topics.items()}
        self.director = lake.car.identity.principal
        FleetFile(named, self.director, b"{}", b"{}").write(folder / "ota.json")
        (folder / "vehicles").mkdir()
        for one in vehicles:
            one.file.write(folder / "vehicles" / f"{one.vehicle.hex()}.json")
        self.manifests: list[VehicleManifest] = []
        self.records: list[ReleaseRecord] = []
        self.campaigns: list[bytes] = []

    def release(self, *records: ReleaseRecord) -> None:
        self.records += records
        token = self.topics["releases"].token
        self.lake.car.author.write(*(entries.release_image(token, one.image, one.contents) for one in records))
        self.topics["releases"].publish([one.row() for one in records])

    def withdraw(self, one: ReleaseRecord) -> None:
        self.lake.car.author.write(entries.withdraw_image(self.topics["releases"].token, one.image))

    def begin(self, campaign: bytes, *images: ReleaseRecord) -> None:
        self.campaigns.append(campaign)
        pairs, phases = [(self.topics["releases"].token, one.image) for one in images], [Phase(WHOLE, 9, 9, 8, 0)]
        self.lake.owner.author.write(entries.campaign(self.topics["campaigns"].token, campaign, pairs, phases))

    def stop(self, campaign: bytes) -> None:
        """And once more, as the owner may."""
        of_it = self.topics["campaigns"].token, campaign
        self.lake.owner.author.write(entries.stop_campaign(*of_it), entries.resume_campaign(*of_it))
        self.lake.owner.author.write(entries.stop_campaign(*of_it))

    def send(self, *manifests: VehicleManifest) -> None:
        """The carrier has them, and the ledger says so."""
        self.manifests += manifests
        self.topics["manifests"].publish([one.row() for one in manifests])

    def count(self) -> dict[bytes, CampaignReport]:
        """What an honest Director would report now, by campaign; it is started anew for it."""
        director, view = Director(), self.lake.owner.view
        for car in self.vehicles:
            director.enrol(car.vehicle, car.file.enrolled)
        for one in self.records:
            director.take_record(one)
        keys = {one.image: RELEASES(self.topics["releases"].token, one.image) for one in self.records}
        releases = {image: view.row(key) for image, key in keys.items()}
        campaigns = {one: self.row(one) for one in self.campaigns}
        director.take_ledger(campaigns, {image: row for image, row in releases.items() if row is not None})
        for manifest in self.manifests:
            with suppress(Refused):
                director.take_manifest(manifest.encode())
        return {one.campaign: one for one in director.reports(1e9, 1 << 60)}

    def report(self, campaign: bytes) -> None:
        """The truth to the ledger."""
        told = self.count()[campaign]
        self.tell(campaign, told.succeeded, told.failed, told.manifests, told.number, told.phase)

    def tell(self, campaign: bytes, succeeded: int, failed: int, root: bytes, number: int = 1, phase: int = 0) -> None:
        """A report to the ledger."""
        where = self.topics["campaigns"].token, campaign, number, phase
        told = entries.report_campaign(*where, succeeded=succeeded, failed=failed, manifests=root)
        self.lake.car.author.write(told)

    def row(self, campaign: bytes) -> CampaignRow:
        row = self.lake.owner.view.row(CAMPAIGNS(self.topics["campaigns"].token, campaign))
        assert row is not None
        return row
