"""What runs in a vehicle: a report of each ECU, signed by it, in a manifest that the vehicle signs and sends as a row.

Threat: a primary that was taken over and speaks for its ECUs; a vehicle that reports a success it did not have; a
manifest or a report of last week, shown again. Invariant: a report counts only under the key that the ECU was enrolled
with, for its own vehicle, and only once: numbers of reports and manifests rise, by ECU and by vehicle. An ECU that is
left out is silent, which is a finding (job `ecu_health`), and no success.

What an ECU says of itself is its word: an image that runs can lie about what it is. What it cannot do is speak for
another ECU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, NamedTuple

from tallystick import wire
from tallystick.crypto.signatures import SignedObject, VerifyKey
from tallystick.errors import Forged, Refused
from tallystick.wire import Fields, Number, Octets16, Octets32

SCHEMA = "vehicle binary not null, number int64 not null, manifest binary not null"
ECUS_MAX = 150
NOTHING = bytes(32)  # no image is staged

_Text = Annotated[str, lambda fields: fields.text(256)]


class Trial(IntEnum):
    """How a unit runs its image."""

    NONE = 0  # it was confirmed
    HEALTHY = 1
    ILL = 2


def _read_reports(fields: Fields) -> tuple[bytes, ...]:
    return tuple(one.octets(at_most=EcuReport.bytes_max) for one in fields.each(ECUS_MAX))


@dataclass(frozen=True)
class EcuReport(SignedObject):
    what = "ECU report"
    context = "tallystick ecu report 1"
    bytes_max = 1024

    vehicle: Octets16
    ecu: _Text
    number: Number  # milliseconds of its clock, or one more than the last
    hardware: _Text
    image: Octets32  # that runs
    counter: Number  # below which it goes never again
    staged: Octets32  # that lies whole in the other slot, or nothing
    trial: Annotated[int, wire.number(Trial.ILL)]
    refused: Octets32  # the image that it was ordered last and does not take, or nothing
    told: _Text  # why it did not do as it was told
    boots: Number
    returns: Number


@dataclass(frozen=True)
class VehicleManifest(SignedObject):
    what = "vehicle manifest"
    context = "tallystick vehicle manifest 1"
    bytes_max = 256 * 1024

    vehicle: Octets16
    number: Number
    size: Number  # of the ledger, as the vehicle knows it
    campaign: Octets16  # of the bundle on its way in, or else of the last one; zeros: none
    waiting: _Text  # why it does not install
    outcome: _Text  # of the last bundle: installed, or why it was not
    reports: Annotated[tuple[bytes, ...], _read_reports] = field(default=())

    def row(self) -> dict[str, Any]:
        """A row of the topic of manifests, whose schema is `SCHEMA`."""
        return {"vehicle": self.vehicle, "number": self.number, "manifest": self.encode()}


class EnrolledEcu(NamedTuple):
    key: VerifyKey
    hardware: str


class EnrolledVehicle(NamedTuple):
    key: VerifyKey
    ecus: Mapping[str, EnrolledEcu]


class Inventory:
    """The Director's memory of what runs where. It is read anew from the parcels after a restart."""

    def __init__(self, find: Callable[[bytes], EnrolledVehicle | None]) -> None:
        self._find = find
        self._numbers: dict[tuple[bytes, str], int] = {}
        self.running: dict[bytes, dict[str, EcuReport]] = {}

    def take(self, data: bytes) -> tuple[VehicleManifest, dict[str, EcuReport]]:
        """A manifest and its reports by ECU. Raises `Refused`, and takes nothing of it then."""
        manifest = VehicleManifest.decode(data)
        vehicle = self._find(manifest.vehicle)
        if vehicle is None:
            raise Refused(f"manifest: vehicle {manifest.vehicle.hex()} is not enrolled", reason="unknown-vehicle")
        manifest.verify_by(vehicle.key)
        reports = [self._read_report(vehicle, manifest.vehicle, one) for one in manifest.reports]
        numbers = {(manifest.vehicle, one.ecu): one.number for one in reports}
        if len(numbers) != len(reports):
            raise Forged("manifest: two reports of one ECU")
        numbers[manifest.vehicle, ""] = manifest.number
        for (whose, ecu), number in numbers.items():
            self._check_number(whose, ecu, number)
        self._numbers |= numbers
        found = {one.ecu: one for one in reports}
        self.running.setdefault(manifest.vehicle, {}).update(found)
        return manifest, found

    def _check_number(self, vehicle: bytes, ecu: str, number: int) -> None:
        if number <= self._numbers.get((vehicle, ecu), -1):
            raise Refused(f"manifest: {ecu or 'it'} was here before, number {number}", reason="replayed")

    def _read_report(self, enrolled: EnrolledVehicle, vehicle: bytes, data: bytes) -> EcuReport:
        report = EcuReport.decode(data)
        ecu = enrolled.ecus.get(report.ecu)
        if ecu is None or report.vehicle != vehicle or report.hardware != ecu.hardware:
            raise Forged(f"manifest: {report.ecu} is no ECU of this vehicle")
        report.verify_by(ecu.key)
        return report
