"""A vehicle on real disks, with what its folder says, sticks, and offers of strangers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ledger_world import seed
from vehicle_world import HARDWARE, NOW_S, Fleet, Image, image
from without import without

from tallystick.client.subscribe import Received
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import CannotOpen, Malformed, Misuse
from tallystick.fleet.ota.car import Car
from tallystick.fleet.ota.carfolder import CarFolder, FactoryImage, file_image, make_car
from tallystick.fleet.ota.fleetfile import SCHEMAS, FleetFile, NamedTopic, VehicleFile
from tallystick.fleet.ota.slots import Slots
from tallystick.fleet.ota.stick import Stick, read_stick, write_stick
from tallystick.fleet.ota.waiting import VehicleRules
from tallystick.identity.folder import Identity, Keys
from tallystick.objects.sources import FolderSource, Source
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import SystemClock, SystemEntropy
from tallystick.trust.campaign import WHOLE
from tallystick.trust.certificate import Certificate, SubjectKind

CAMPAIGN, DIRECTOR = b"a campaign of 16", seed("director")[:16]
NEW = {ecu: image(f"new {ecu}", kind) for ecu, kind in HARDWARE.items()}
STANDS = '{"parked": true, "consents": true, "charge_percent": 80}'


class Hurried(SystemClock):
    """The world's time, sixty times as fast."""

    def __init__(self) -> None:
        self._began = self.monotonic()

    def now(self) -> float:
        return NOW_S + 60 * (self.monotonic() - self._began)


class Garage:
    """A ledger and repositories in memory, objects in a folder, and one car without a network."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.world, self.objects = folder, Fleet(), folder / "objects"
        self.world.put(NEW)
        self.world.begin_campaign(CAMPAIGN, *NEW.values(), share=WHOLE)
        for one in NEW.values():
            for name, data in one.files.items():
                RealDisk(self.objects).open(name, create=True).pwrite(0, data)
        self.identity = self._identity("car")
        topics = {what: NamedTopic(what, bytes(16)) for what in SCHEMAS}
        firmware = self.world.firmware
        topics |= {"releases": NamedTopic("r", firmware.releases), "campaigns": NamedTopic("c", firmware.campaigns)}
        told = FleetFile(topics, DIRECTOR, self.world.director.root, self.world.images.root)
        old = {ecu: (kind, self._factory(ecu)) for ecu, kind in HARDWARE.items()}
        self.car = make_car(folder / "car", told, self.identity, old, ["door"], SystemEntropy())
        self.world.assign(NEW, self.identity.principal)

    def _identity(self, name: str) -> Identity:
        key, sealing = SigningKey.from_seed(seed(name)), hpke.PrivateKey.decode(seed(f"{name} sealing"))
        public, who = (key.public.raw, sealing.public.encode()), seed(name)[:16]
        shown = Certificate(bytes(32), SubjectKind.PRINCIPAL, who, bytes(16), *public, 0, 1, bytes(16))
        keys = Keys(seed(name), seed(f"{name} sealing"))
        return Identity(self.folder / name, name, shown, shown, (), (), "", self.world.world.trust, keys)

    def _factory(self, ecu: str) -> FactoryImage:
        path = self.folder / f"{ecu}.bin"
        path.write_bytes(ecu.encode() * 1000)
        return file_image(path)

    def offer(self) -> bytes:
        return self.world.offer([*NEW.values()], campaign=CAMPAIGN).encode()

    def stick(self, offer: bytes | None = None) -> Stick:
        """One that was written and read."""
        vehicle = VehicleFile.read(self.folder / "car" / "vehicle.json")
        source: dict[str, Source] = {"objects": FolderSource(RealDisk(self.objects), "objects")}
        records = [one.record for one in NEW.values()]
        told = vehicle.vehicle, vehicle.sealing_key, source, SystemClock()
        write_stick(self.folder / "stick", Stick(offer or self.offer(), records, []), *told)
        return read_stick(self.folder / "stick", self.identity.principal, self.identity.sealing_key)

    @contextmanager
    def running(self) -> Iterator[Car]:
        stick = FolderSource(RealDisk(self.folder / "stick"), "stick")
        car = Car(CarFolder(self.car.path), self.identity, {"stick": stick}, Hurried(), rules=VehicleRules(tick_s=6))
        try:
            yield car
        finally:
            car.close()

    def stand(self, text: str = STANDS) -> None:
        (self.car.path / "car.json").write_text(text)

    def runs(self) -> dict[str, bytes]:
        records = {ecu: Slots(self.car.disk(ecu)).record() for ecu in HARDWARE}
        return {ecu: one.image.root for ecu, one in records.items() if one is not None}


@pytest.fixture
def garage(tmp_path: Path) -> Garage:
    return Garage(tmp_path)


def roots(images: dict[str, Image]) -> dict[str, bytes]:
    return {ecu: one.root for ecu, one in images.items()}


def quiet(car: Car) -> Any:
    """Run until there is nothing to do; what the car says of itself then."""
    car.run(lambda: car.is_quiet)
    return car.statistics()


def test_a_stick_waits_for_its_owner_and_goes_in_when_it_may(garage: Garage) -> None:
    old = garage.runs()
    for bad in ("no json", "[]", '{"parked": 1, "consents": "yes", "charge_percent": []}'):
        garage.stand(bad)
        with garage.running() as car:
            car.plug_in(garage.stick())
            assert quiet(car).waiting == "waits for consent"
        assert garage.runs() == old
    garage.stand()
    with garage.running() as car:  # the stick is not needed again, except for its files
        assert quiet(car).outcome == "installed"
        assert (garage.runs(), car.look()) == (roots(NEW), [])
        garage.stand('{"codes": {"door": ["B1"]}, "surfaces": ["tcp/22", 7], "scanned_ms": -1}')
        damaged = garage.car.disk("brakes").open("slot-1")
        damaged.pwrite(9, b"!")
        assert car.look() == [
            "brakes: its slot is damaged",
            "door: trouble code B1",
            "tcp/22 is open, and no release declares it",
        ]


def test_an_ill_image_goes_back_with_its_bundle(garage: Garage) -> None:
    old = garage.runs()
    garage.stand('{"parked": true, "consents": true, "charge_percent": 80, "ill": ["door"]}')
    with garage.running() as car:
        car.plug_in(garage.stick())
        assert quiet(car).outcome == "failed: door"
    assert garage.runs() == old


def test_who_finds_a_stick_finds_no_key(garage: Garage) -> None:
    garage.stick()
    secrets = [one.record.reference.key for one in NEW.values()]

    def lies_there() -> bool:
        files = [path.read_bytes() for path in (garage.folder / "stick").iterdir()]
        return any(secret in data for secret in secrets for data in files)

    assert not lies_there()
    with pytest.raises(CannotOpen):
        read_stick(garage.folder / "stick", garage.identity.principal, hpke.PrivateKey.decode(seed("finder")))
    with pytest.raises(CannotOpen):
        read_stick(garage.folder / "stick", bytes(16), garage.identity.sealing_key)
    with without("the sealing of a stick's records"), pytest.raises(CannotOpen):
        garage.stick()
    assert lies_there()


@pytest.mark.parametrize("name", ["offer", "records"])
def test_sticks_that_are_none(garage: Garage, name: str) -> None:
    garage.stick()
    keys = garage.identity.principal, garage.identity.sealing_key
    path = garage.folder / "stick" / name
    path.write_bytes(bytes(65 << 20))
    with pytest.raises(Malformed, match="more than"):
        read_stick(garage.folder / "stick", *keys)
    path.unlink()
    with pytest.raises(Misuse, match="missing"):
        read_stick(garage.folder / "stick", *keys)


def test_an_offer_of_a_stranger_takes_back_nothing(garage: Garage) -> None:
    """Somebody else may write on the topic of offers, and sends a car what it must refuse."""
    garage.stand("{}")

    def waits_after(publisher: bytes, vehicle: bytes) -> str:
        row = {"vehicle": vehicle, "offer": b"no offer at all"}
        with garage.running() as car:
            car.plug_in(garage.stick())
            assert quiet(car).waiting == "waits for consent"
            car._take("offers", [received(publisher, row)], {0: 1})
            return str(quiet(car).waiting)

    us = garage.identity.principal
    assert waits_after(bytes(16), us) == waits_after(DIRECTOR, bytes(16)) == "waits for consent"
    with without("the Director's name on an offer"):
        assert waits_after(bytes(16), us) == ""


def received(publisher: bytes, row: dict[str, Any]) -> Received:
    schema = Schema.parse(SCHEMAS["offers"])
    batch = Batch(schema, pa.RecordBatch.from_pylist([row], schema=schema.arrow))
    return Received(batch, bytes(16), 0, 7, bytes(32), publisher, bytes(16), 0, 1, 0, late=False, suspect=False)


def test_one_vehicle_in_a_folder_one_process_at_a_time(garage: Garage) -> None:
    with pytest.raises(Misuse, match="already"):
        make_car(garage.car.path, garage.car.fleet, garage.identity, {}, [], SystemEntropy())
    with pytest.raises(Misuse, match="no such file"):
        CarFolder(garage.folder)
