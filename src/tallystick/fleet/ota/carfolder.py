"""The folder of one vehicle: what it was made with, how it stands, and a disk for each of its units.

    ota.json, vehicle.json   what the vehicle was told, and how the Director knows it; neither is secret
    car.json                 how the car stands, as its owner says: parked, consents, charge_percent; `codes` (trouble
                             codes by ECU), `ill` (ECUs whose new image fails its health check), surfaces, scanned_ms
    status.json              what the primary does
    primary/                 what it stores, the checkpoints and the metadata that it accepted
    ecus/<name>/             key, boot record, slots, and what the ECU's judge accepted

Where `car.json` says nothing, or cannot be read, the car is not parked and nobody consents.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Misuse
from tallystick.fleet.ota.diagnosis import Surfaces
from tallystick.fleet.ota.fleetfile import FleetFile, VehicleFile
from tallystick.fleet.ota.manifest import EnrolledEcu
from tallystick.fleet.ota.slots import Slots
from tallystick.fleet.ota.waiting import CarState
from tallystick.identity.folder import Identity
from tallystick.runtime.disk import RealDisk, write_atomic
from tallystick.runtime.sources import Entropy

_READ_BYTES = 1 << 20

log = logging.getLogger(__name__)


class FactoryImage(NamedTuple):
    """What an ECU runs when it leaves the factory."""

    root: bytes
    blocks: Callable[[], Iterable[bytes]]  # asked for twice


class CarFolder:
    """Raises `Misuse` where there is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fleet, self.vehicle = FleetFile.read(path / "ota.json"), VehicleFile.read(path / "vehicle.json")
        self.hardware = {name: one.hardware for name, one in self.vehicle.ecus.items()}

    def disk(self, ecu: str) -> RealDisk:
        return RealDisk(self.path / "ecus" / ecu)

    def state(self, now: float) -> CarState:
        told, time = self._told(), datetime.fromtimestamp(now)
        charge, is_told = told.get("charge_percent"), (told.get("parked") is True, told.get("consents") is True)
        return CarState(*is_told, charge if isinstance(charge, int) else 0, 60 * time.hour + time.minute)

    def surfaces(self) -> Surfaces:
        told = self._told()
        at = told.get("scanned_ms")
        return Surfaces(_texts(told.get("surfaces")), max(0, at) if isinstance(at, int) else 0)

    def codes(self, ecu: str) -> list[str]:
        codes = self._told().get("codes")
        return _texts(codes.get(ecu)) if isinstance(codes, dict) else []

    def is_healthy(self, ecu: str) -> bool:
        return ecu not in _texts(self._told().get("ill"))

    def _told(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / "car.json").read_text()))
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s: %s", self.path / "car.json", error)
            return {}


def make_car(
    path: Path,
    fleet: FleetFile,
    identity: Identity,
    images: Mapping[str, tuple[str, FactoryImage]],
    partial: Sequence[str],
    entropy: Entropy,
) -> CarFolder:
    """As a factory does, of ECUs with their hardware and first images. Raises `Misuse` where there is a vehicle."""
    if (path / "vehicle.json").exists():
        raise Misuse(f"{path}: a vehicle is here already", hint="name another folder")
    ecus = {}
    for name, (hardware, image) in images.items():
        disk, seed = RealDisk(path / "ecus" / name), entropy.bytes(32)
        write_atomic(disk, "key", seed)
        ecus[name] = EnrolledEcu(SigningKey.from_seed(seed).public, hardware)
        install_first(Slots(disk), image)
    fleet.write(path / "ota.json")
    (path / "car.json").write_text('{"parked": false, "consents": false, "charge_percent": 0}\n')
    key, sealing_key = identity.signing_key.public, identity.certificate.sealing_key
    VehicleFile(identity.principal, key, ecus, tuple(partial), sealing_key).write(path / "vehicle.json")
    return CarFolder(path)


def install_first(slots: Slots, image: FactoryImage) -> None:
    def digest(block: bytes) -> bytes:
        return bytes(blake3(block).digest())

    with slots.stage(image.root, 0, [(len(one), digest(one)) for one in image.blocks()], digest) as staging:
        for number, block in enumerate(image.blocks()):
            staging.write(number, block)
        staging.finish()


def file_image(file: Path) -> FactoryImage:
    """An image that is no release. Its root is the hash of its bytes, and whoever reads reports does not know it."""

    def blocks() -> Iterator[bytes]:
        with file.open("rb") as opened:
            while block := opened.read(_READ_BYTES):
                yield block

    hasher = blake3()
    for block in blocks():
        hasher.update(block)
    return FactoryImage(hasher.digest(), blocks)


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
