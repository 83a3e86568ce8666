"""How manifests are counted: by what ECUs say of themselves, each vehicle once, and a failure stays one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ledger_world import seed

from tallystick.crypto.signatures import SigningKey
from tallystick.fleet.ota.counting import CampaignCount, has_succeeded
from tallystick.fleet.ota.manifest import (
    NOTHING,
    EcuReport,
    EnrolledEcu,
    EnrolledVehicle,
    Inventory,
    Trial,
    VehicleManifest,
)
from tallystick.trust.campaign import WHOLE, draw, manifests_root

CAMPAIGN, OTHER = seed("campaign")[:16], seed("another campaign")[:16]
VEHICLE = seed("vehicle")[:16]
OLD, BRAKES, DOOR = seed("old image"), seed("image of brakes"), seed("image of door")
HARDWARE = {BRAKES: "brake-mk2", DOOR: "door-mk1"}
KEYS = {name: SigningKey.from_seed(seed(f"key {name}")) for name in ("", "brakes", "door", "radio")}
ECUS = {"brakes": "brake-mk2", "door": "door-mk1", "radio": "radio-mk9"}
ENROLLED = EnrolledVehicle(KEYS[""].public, {name: EnrolledEcu(KEYS[name].public, ECUS[name]) for name in ECUS})


def report(ecu: str, image: bytes, number: int = 1, trial: Trial = Trial.NONE) -> EcuReport:
    told = EcuReport(VEHICLE, ecu, number, ECUS[ecu], image, 7, NOTHING, trial, NOTHING, "", 1, 0)
    return told.sign(KEYS[ecu])


def manifest(
    reports: list[EcuReport], number: int = 1, outcome: str = "installed", campaign: bytes = CAMPAIGN
) -> VehicleManifest:
    told = VehicleManifest(VEHICLE, number, 9, campaign, "", outcome, tuple(one.encode() for one in reports))
    return told.sign(KEYS[""])


def judged(one: VehicleManifest, hardware: dict[bytes, str] = HARDWARE) -> bool | None:
    taken, reports = Inventory({VEHICLE: ENROLLED}.get).take(one.encode())
    return has_succeeded(CAMPAIGN, hardware, taken, reports, ENROLLED)


GOOD = [report("brakes", BRAKES), report("door", DOOR)]


def test_ecus_say_that_they_run_it_and_the_primary_says_nothing_for_them() -> None:
    assert judged(manifest(GOOD)) is True
    assert judged(manifest([*GOOD, report("radio", OLD)])) is True  # the campaign has no image for it
    assert judged(manifest(GOOD, outcome="", campaign=bytes(16))) is True  # it ran them before
    assert judged(manifest([])) is None
    assert judged(manifest([GOOD[0]])) is None  # the primary leaves one out
    assert judged(manifest([GOOD[0], report("door", OLD)])) is None
    assert judged(manifest([GOOD[0], report("door", DOOR, trial=Trial.HEALTHY)])) is None
    assert judged(manifest([GOOD[0], report("door", BRAKES)])) is None  # that of other hardware


@pytest.mark.parametrize(
    ("outcome", "campaign", "found"),
    [
        ("failed: door", CAMPAIGN, False),
        ("refused by door: no", CAMPAIGN, False),
        ("refused: old metadata", CAMPAIGN, None),
        ("failed: door", OTHER, None),
        ("installed", CAMPAIGN, None),
    ],
)
def test_a_failure_is_the_vehicles_own_word_of_this_campaign(outcome: str, campaign: bytes, found: bool | None) -> None:
    assert judged(manifest([report("brakes", OLD)], outcome=outcome, campaign=campaign)) is found


def test_a_campaign_without_images_wants_a_diagnosis() -> None:
    assert judged(manifest([], outcome="diagnosed"), {}) is True
    assert judged(manifest([], outcome="diagnosed", campaign=OTHER), {}) is None
    assert judged(manifest(GOOD), {}) is None
    assert judged(manifest([], outcome="diagnosed")) is None


def test_each_vehicle_counts_once_and_a_failure_stays() -> None:
    count = CampaignCount(CAMPAIGN, HARDWARE)
    reports = {one.ecu: one for one in GOOD}
    good, bad = manifest(GOOD), manifest([], 3, "failed: door")
    assert count.take(good, reports, ENROLLED)
    assert not count.take(replace(good, number=2), reports, ENROLLED)
    assert count.tell(WHOLE) == (1, 0, manifests_root({VEHICLE: good.encode()}))
    assert count.take(bad, {}, ENROLLED)
    assert not count.take(replace(good, number=4), reports, ENROLLED)
    assert count.tell(WHOLE) == (0, 1, manifests_root({VEHICLE: bad.encode()}))
    place = draw(CAMPAIGN, VEHICLE)
    assert count.tell(place) == (0, 0, manifests_root({}))
    assert count.tell(place + 1)[:2] == (0, 1)
