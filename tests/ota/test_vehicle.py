"""A car takes an update whole or not at all: waiting, trial, return, power cuts, sticks, and what it reports."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from vehicle_world import HARDWARE, NOW_S, PARKED, VEHICLE, Car, Fleet, image
from without import without

from tallystick.errors import Forged, Refused, TallystickError
from tallystick.fleet.ota.ecu import Order, Word
from tallystick.fleet.ota.manifest import EcuReport, Trial, VehicleManifest
from tallystick.fleet.ota.slots import Slots
from tallystick.fleet.ota.vehicle import STICK
from tallystick.fleet.ota.waiting import CarState, VehicleRules, reason_to_wait
from tallystick.objects.layout import chunks_file
from tallystick.objects.outcomes import ServerNamed

NEW = {ecu: image(f"new {ecu}", kind) for ecu, kind in HARDWARE.items()}
ROOTS = {ecu: one.root for ecu, one in NEW.items()}
IMAGES = [*NEW.values()]


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.put(NEW)
    return fleet


@pytest.fixture
def car(fleet: Fleet) -> Car:
    return started(fleet)


def started(fleet: Fleet, seed: int = 1, rules: VehicleRules = VehicleRules()) -> Car:
    car = Car(fleet, seed, rules=rules)
    car.run(10)
    return car


def old(car: Car) -> dict[str, bytes]:
    return {ecu: one.root for ecu, one in car.factory.items()}


def test_an_update_of_two_ecus_is_installed_confirmed_and_told(car: Car) -> None:
    assert car.update(IMAGES) == "installed"
    assert car.runs() == ROOTS
    inventory = car.inventory()
    for manifest in car.manifests:
        told, reports = inventory.take(manifest.encode())
    assert (told.outcome, told.size) == ("installed", car.size)
    assert {ecu: (one.image, one.trial, one.returns) for ecu, one in reports.items()} == {
        ecu: (root, Trial.NONE, 0) for ecu, root in ROOTS.items()
    }
    assert inventory.running[VEHICLE]["brakes"].counter == car.fleet.ledger.height - 1  # that of the release
    before = len(car.manifests)
    assert car.update(IMAGES) == "installed"  # once more changes nothing
    assert len(car.manifests) == before


# --- waiting ---


@pytest.mark.parametrize(
    ("car_state", "window", "is_fresh", "reason"),
    [
        (PARKED, (0, 1440), True, ""),
        (PARKED._replace(consents=False), (0, 1440), True, "consent"),
        (PARKED._replace(parked=False), (0, 1440), True, "parked"),
        (PARKED._replace(charge_percent=29), (0, 1440), True, "30 % of charge, has 29"),
        (PARKED, (180, 300), True, "window"),
        (PARKED, (1320, 121), True, ""),
        (PARKED, (1320, 120), True, "window"),
        (PARKED, (0, 1440), False, "ledger"),
    ],
)
def test_one_function_says_why_a_car_waits(
    car_state: CarState, window: tuple[int, int], is_fresh: bool, reason: str
) -> None:
    found = reason_to_wait(car_state, VehicleRules(window=window), is_fresh=is_fresh)
    assert reason in found
    assert bool(found) == bool(reason)


def test_a_bundle_waits_tells_why_and_goes_in_when_it_may(car: Car) -> None:
    car.state = PARKED._replace(parked=False)
    car.update(IMAGES)
    assert car.manifests[-1].waiting == "waits until the car is parked"
    assert set(car.last_reports()) == set(HARDWARE)
    assert car.runs() == old(car)
    car.state = PARKED
    car.run()
    assert (car.manifests[-1].outcome, car.manifests[-1].waiting) == ("installed", "")
    assert car.runs() == ROOTS


def test_what_is_withdrawn_while_it_waits_stays_out(car: Car) -> None:
    car.state = PARKED._replace(consents=False)
    car.update(IMAGES)
    car.fleet.withdraw(NEW["door"])
    assert "withdrawn" in car.update(IMAGES)
    car.state = PARKED
    car.run()
    assert car.runs() == old(car)


def test_a_bundle_that_waited_too_long_waits_for_a_word_of_the_ledger(fleet: Fleet) -> None:
    car = started(fleet, rules=VehicleRules(head_age_max_s=3600, tick_s=300))
    car.state = PARKED._replace(consents=False)
    car.update(IMAGES, 3 * 3600)
    car.state = PARKED
    car.run(900)
    assert car.manifests[-1].waiting == "waits for a word of the ledger"
    assert car.runs() == old(car)
    fleet.step(3 * 3600)
    assert car.update(IMAGES, 1800) == "installed"


# --- whole, or not at all ---


def test_one_ill_image_takes_the_whole_bundle_back_and_is_not_tried_again(car: Car) -> None:
    car.ill.add(NEW["door"].root)
    assert car.update(IMAGES, 120) == "failed: door"
    assert car.runs() == old(car)
    assert car.last_reports()["door"].returns == 1
    boots = car.last_reports()["brakes"].boots
    car.update(IMAGES, 120)
    assert Slots(car.disks["brakes"]).boot().boots == boots + 1


def test_without_the_health_of_all_half_a_bundle_stays(car: Car) -> None:
    car.ill.add(NEW["door"].root)
    with without("the health of the whole bundle"):
        car.update(IMAGES, 120)
    assert car.boots("brakes") == ROOTS["brakes"]
    assert Slots(car.disks["door"]).record().on_trial  # type: ignore[union-attr]


def test_an_ecu_that_cannot_stage_keeps_the_bundle_out(car: Car) -> None:
    """The key in the record opens nothing: the author's mistake."""
    broken = image("new door", HARDWARE["door"])
    car.fleet.files[chunks_file(broken.root)] = b""
    assert car.update(IMAGES, 120) == ""
    assert car.runs() == old(car)
    car.fleet.files[chunks_file(broken.root)] = broken.files[chunks_file(broken.root)]
    car.run(200)
    assert car.runs() == ROOTS


def test_a_lying_server_is_named_and_the_image_comes(car: Car) -> None:
    liar = dict(car.fleet.files)
    for one in IMAGES:
        data = bytearray(liar[chunks_file(one.root)])
        data[::4096] = bytes(len(data[::4096]))
        liar[chunks_file(one.root)] = bytes(data)
    car.network.role("server-0")._files = liar  # type: ignore[attr-defined]
    assert car.update(IMAGES, 120) == "installed"
    named = {value.server for _, _, value in car.network.delivered if isinstance(value, ServerNamed)}
    assert named == {"server-0"}


def test_an_ecu_that_returned_after_the_decision_gets_its_image_again(car: Car) -> None:
    """An ECU starts again and again just when all are told to stay, and hears nothing of it."""
    car.hear(car.fleet.offer(IMAGES, car.size))
    until = car.network.clock.now() + 60
    while b"confirm" not in decided(car):
        assert car.step(until)
    car.network.crash("door")
    car.run(0.1)  # what is on its way to it is lost
    car.network.partition(["primary", "brakes", "server-0", "server-1"], ["door"])
    for _ in range(4):
        car.network.restart("door")
        car.run(1)
    assert car.runs() == {"brakes": ROOTS["brakes"], "door": old(car)["door"]}
    car.network.heal()
    car.run(60)
    assert car.runs() == ROOTS
    assert car.manifests[-1].outcome == "installed"


def decided(car: Car) -> bytes:
    """What the primary stored last."""
    bundle = car.network.role("primary")._bundle  # type: ignore[attr-defined]
    return b"" if bundle is None else bundle.phase.name.lower().encode()


def cut_power(car: Car, who: str) -> None:
    if car.network.alive(who):
        car.network.crash(who)
    if who in car.disks:
        car.disks[who].power_off()
        car.disks[who].crash()
    car.network.restart(who)


def story(fleet: Fleet, seed: int) -> str:
    """Power that fails at any moment, of anybody; sometimes an image is ill."""
    random = Random(seed)
    car = started(fleet, seed, VehicleRules(install_s=60))
    if is_ill := random.random() < 0.3:
        car.ill.add(random.choice(IMAGES).root)
    car.hear(fleet.offer(IMAGES, car.size))
    for _ in range(random.randrange(1, 8)):
        car.run(random.choice([0.02, 0.1, 0.5, 6.0]))
        cut_power(car, random.choice(["primary", *HARDWARE]))
    car.run(300)
    for _ in range(2):  # the Director says it again, as it does
        car.hear(fleet.offer(IMAGES, car.size))
        car.run(300)
    records = [Slots(car.disks[ecu]).record() for ecu in HARDWARE]
    assert not any(record is None or record.on_trial for record in records), seed
    assert car.runs() in (old(car), ROOTS), seed
    assert not is_ill or car.runs() == old(car), seed
    return "installed" if car.runs() == ROOTS else "old"


def test_whenever_the_power_fails_a_bundle_is_in_whole_or_not_at_all(fleet: Fleet) -> None:
    found = [story(fleet, seed) for seed in range(8)]
    assert {"installed", "old"} == set(found)


@pytest.mark.long
def test_whenever_the_power_fails_in_many_stories(fleet: Fleet) -> None:
    for seed in range(100, 200):
        story(fleet, seed)


def cut_at(fleet: Fleet, who: str, changes: int, seed: int) -> bool:
    """The power of one of them fails during its write of that number. Returns False if there are not so many."""
    car = started(fleet, seed, VehicleRules(install_s=60))
    disk = car.disks[who]
    disk.power_off_after(changes)
    car.hear(fleet.offer(IMAGES, car.size))
    with suppress(TallystickError, OSError):  # what cannot be read while there is no power
        car.run(60)
    was_cut = disk.is_off
    disk.disarm()
    cut_power(car, who)
    car.run(200)
    assert car.runs() in (old(car), ROOTS), changes
    for ecu in HARDWARE:
        assert Slots(car.disks[ecu]).boot().image.root == car.boots(ecu)
    car.network.restart(who)
    fleet.release(*IMAGES)  # what failed is tried again as a new release, and not before
    assert car.update(IMAGES, 200) == "installed", changes
    assert car.runs() == ROOTS
    return was_cut


@pytest.mark.parametrize("who", ["brakes", "door", "primary"])
def test_power_that_fails_at_some_writes(fleet: Fleet, who: str) -> None:
    assert cut_at(fleet, who, 5, 1)
    assert cut_at(fleet, who, 17, 2)


@pytest.mark.long
@pytest.mark.parametrize("who", ["brakes", "door", "primary"])
def test_power_that_fails_at_every_write(fleet: Fleet, who: str) -> None:
    changes = 1
    while cut_at(fleet, who, changes, changes):
        changes += 1
    assert changes > 20


# --- sticks ---


def test_the_same_files_from_a_stick_work_offline_within_expiry(fleet: Fleet) -> None:
    offer = fleet.offer(IMAGES).encode()
    for days, outcome in ((3, "installed"), (40, "refused: ledger: last heard")):
        car = started(fleet, rules=VehicleRules(tick_s=7200))
        car.network.clock.run(NOW_S + days * 86_400)
        car.hear(offer, "director")
        car.run(15_000)
        assert "last heard" in car.manifests[-1].outcome
        car.hear(offer, STICK)
        car.run(50_000)
        assert outcome in car.manifests[-1].outcome


# --- what an ECU says, and what it takes ---


def test_a_manifest_counts_once_and_speaks_for_no_other_ecu(car: Car) -> None:
    car.update(IMAGES)
    inventory = car.inventory()
    first, last = car.manifests[0], car.manifests[-1]
    inventory.take(first.encode())
    inventory.take(last.encode())
    for again in (first, last):
        with pytest.raises(Refused) as refused:
            inventory.take(again.encode())
        assert refused.value.reason == "replayed"
    with without("the numbers of manifests"):
        inventory.take(first.encode())
    assert inventory.running[VEHICLE]["brakes"].image != ROOTS["brakes"]  # the old one, once more

    key, number = car.keys["primary"], last.number + 1000  # a primary that was taken over
    stale = replace(last, number=number).sign(key)
    lie = EcuReport.decode(last.reports[0])
    forged = replace(lie, number=number, image=bytes(32)).sign(key).encode()
    forging = replace(last, number=number, reports=(forged,)).sign(key)
    twice = replace(last, number=number, reports=(last.reports[0], last.reports[0])).sign(key)
    with pytest.raises(Refused):
        car.inventory().take(replace(last, vehicle=bytes(16)).sign(key).encode())
    for bad, kind in ((stale, Refused), (forging, Forged), (twice, Forged)):
        fresh = car.inventory()
        fresh.take(last.encode())
        with pytest.raises(kind):
            fresh.take(bad.encode())
    with without("the ECU's key on its report"):
        assert car.inventory().take(forging.encode())[1][lie.ecu].image == bytes(32)
    with pytest.raises(Forged):
        car.inventory().take(VehicleManifest.decode(last.encode()[:-1] + b"\0").encode())


def test_a_dead_ecu_is_left_out_and_keeps_nobody_silent(car: Car) -> None:
    car.network.crash("door")
    car.update(IMAGES, 60)
    car.hear(b"no offer")
    car.run(60)
    assert "offer" in car.manifests[-1].outcome
    assert [*car.last_reports()] == ["brakes"]
    assert car.runs() == old(car)


@pytest.mark.parametrize("message", [b"", b"\x80", Order(Word.INSTALL).encode(), Order(Word.ORDER).encode(), b"x" * 99])
def test_whatever_a_primary_says_an_ecu_stands(car: Car, message: bytes) -> None:
    for ecu in HARDWARE:
        car.network.send("primary", ecu, message)
        car.network.send(ecu, "primary", message)
    car.hear(message)
    car.run(30)
    assert car.runs() == old(car)
    assert car.update(IMAGES, 120) == "installed"


def test_an_ecu_installs_nothing_that_its_own_judge_did_not_take(car: Car) -> None:
    """A primary that was taken over orders an image that nobody released."""
    evil = {ecu: image(f"evil {ecu}", kind, "6.6.6") for ecu, kind in HARDWARE.items()}
    car.fleet.serve(*evil.values())
    offer = car.fleet.offer(IMAGES).encode()
    for ecu, one in evil.items():
        for word in (Word.ORDER, Word.INSTALL):
            car.network.send("primary", ecu, Order(word, one.root, one.record.encode(), None, offer).encode())
            car.run(5)
    assert car.runs() == old(car)
