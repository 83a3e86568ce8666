"""A vehicle is asked how it is, by a campaign without an image, and looks by itself every so often."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vehicle_world import HARDWARE, VEHICLE, Car, Fleet
from without import without

from tallystick.errors import Forged, Malformed
from tallystick.fleet.ota.diagnosis import (
    CODES_MAX,
    NO_CAMPAIGN,
    EcuDiagnosis,
    Surfaces,
    VehicleDiagnosis,
    findings,
    read_diagnosis,
    undeclared,
)
from tallystick.fleet.ota.waiting import VehicleRules
from tallystick.trust.campaign import draw

CAMPAIGN = b"how are you all?"


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.publish()
    fleet.assign({})
    return fleet


@pytest.fixture
def car(fleet: Fleet) -> Car:
    fleet.begin_campaign(CAMPAIGN)
    car = Car(fleet, campaigns=True)
    car.run(10)
    assert [one.campaign for one in car.diagnoses] == [NO_CAMPAIGN]  # its first start
    return car


def answers(car: Car) -> tuple[VehicleDiagnosis, dict[str, EcuDiagnosis]]:
    return read_diagnosis(car.diagnoses[-1].encode(), car.enrolled())


def test_a_campaign_without_an_image_is_answered_once_and_told(car: Car) -> None:
    assert car.update([], campaign=CAMPAIGN) == "diagnosed"
    assert car.manifests[-1].campaign == CAMPAIGN
    diagnosis, found = answers(car)
    assert (diagnosis.vehicle, diagnosis.campaign) == (VEHICLE, CAMPAIGN)
    assert {ecu: (one.image, one.slot_ok) for ecu, one in found.items()} == {
        ecu: (one.root, 1) for ecu, one in car.factory.items()
    }
    assert not findings(diagnosis, found, HARDWARE, [])
    before = len(car.diagnoses)
    for _ in range(2):
        car.update([], campaign=CAMPAIGN)
        car.network.crash("primary")
        car.network.restart("primary")
        car.run(20)
    assert len(car.diagnoses) == before
    assert (car.manifests[-1].outcome, car.manifests[-1].campaign) == ("diagnosed", CAMPAIGN)  # told again, and kept


def test_a_campaign_that_has_not_reached_the_car_is_not_answered(fleet: Fleet) -> None:
    fleet.begin_campaign(CAMPAIGN, share=max(1, draw(CAMPAIGN, VEHICLE)))
    car = Car(fleet, campaigns=True)
    car.run(10)
    assert "has not reached this vehicle" in car.update([], campaign=CAMPAIGN)
    assert [one.campaign for one in car.diagnoses] == [NO_CAMPAIGN]


def test_a_car_looks_by_itself_every_so_often(fleet: Fleet) -> None:
    car = Car(fleet, rules=VehicleRules(check_s=600))
    car.run(6 * 600)
    assert 6 <= len(car.diagnoses) <= 7
    assert {one.campaign for one in car.diagnoses} == {NO_CAMPAIGN}
    numbers = [one.number for one in car.diagnoses]
    assert numbers == sorted(set(numbers))
    assert car.manifests[-1].outcome == ""


def test_what_is_to_be_looked_at_is_found(car: Car) -> None:
    car.surfaces = Surfaces(["tcp/22", "interface/can0", "paired/phone", "paired/watch"], 1000)
    car.codes["brakes"] = ["P0171"] * 2 * CODES_MAX
    file = car.disks["door"].open("slot-0")
    file.pwrite(7, b"!")
    assert car.update([], campaign=CAMPAIGN) == "diagnosed"
    diagnosis, found = answers(car)
    assert diagnosis.scanned_ms == 1000
    assert len(found["brakes"].codes) == CODES_MAX
    assert findings(diagnosis, found, [*HARDWARE, "horn"], ["paired/*", "interface/can0"]) == [
        "horn is silent",
        "door: its slot is damaged",
        *["brakes: trouble code P0171"] * CODES_MAX,
        "tcp/22 is open, and no release declares it",
    ]
    assert undeclared(["tcp/22"], ["tcp/22"]) == undeclared(["tcp/22"], ["tcp/*"]) == []


def test_an_ecu_that_is_silent_is_no_success(car: Car) -> None:
    car.network.crash("door")
    assert car.update([], 100, CAMPAIGN) == "failed: door is silent"
    assert [*answers(car)[1]] == ["brakes"]


def test_a_primary_that_was_taken_over_calls_no_ecu_sound(car: Car) -> None:
    car.disks["door"].open("slot-0").pwrite(7, b"!")
    car.update([], campaign=CAMPAIGN)
    told, found = answers(car)
    key, enrolled = car.keys["primary"], car.enrolled()
    sound = replace(found["door"], slot_ok=1).sign(key).encode()
    lie = replace(told, reports=(sound,)).sign(key).encode()
    earlier = car.diagnoses[0]  # before the damage: the door's own word, from another round
    stale = replace(told, reports=earlier.reports).sign(key).encode()
    twice = replace(told, reports=told.reports + told.reports[:1]).sign(key).encode()
    stranger = replace(told, reports=(replace(found["door"], ecu="horn").sign(key).encode(),)).sign(key).encode()
    for bad in (lie, stale, twice, stranger, told.encode()[:-1] + b"\0"):
        with pytest.raises(Forged):
            read_diagnosis(bad, enrolled)
    with without("the ECU's key on its diagnosis"):
        assert read_diagnosis(lie, enrolled)[1]["door"].slot_ok == 1
        assert read_diagnosis(stale, enrolled)[1]["door"].slot_ok == 1


def test_diagnoses_of_too_much_are_none(car: Car) -> None:
    diagnosis, found = answers(car)
    key = car.keys["door"]
    many = replace(found["door"], codes=("x",) * (CODES_MAX + 1)), replace(found["door"], codes=("x" * 17,))
    for bad in (*many, replace(found["door"], slot_ok=2)):
        with pytest.raises(Malformed):
            EcuDiagnosis.decode(bad.sign(key).encode())
    for worse in (replace(diagnosis, surfaces=("x",) * 257), replace(diagnosis, reports=(b"",) * 151)):
        with pytest.raises(Malformed):
            VehicleDiagnosis.decode(worse.sign(key).encode())
    for data in (b"", b"\x80", diagnosis.encode()[:-1], b"\0" * (1 << 20)):
        with pytest.raises(Malformed):
            VehicleDiagnosis.decode(data)
