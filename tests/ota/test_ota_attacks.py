"""The attacks of Uptane 2.1 and 4.3, and some more, on a whole car: each is stopped, and succeeds without its defence.

Attackers hold signing keys: those of a world that signs whatever it is told. What the metadata alone stop, and every
flipped byte of them, is in test_metadata.py; partial bundles and replayed manifests are in test_vehicle.py; lying and
slow servers in tests/objects.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from metadata_world import DAY_MS, SUPPLIER, Served
from tuf.api.metadata import MetaFile, Snapshot, Timestamp
from vehicle_world import HARDWARE, NOW_S, VEHICLE, Car, Fleet, Image, image
from without import without

from tallystick.errors import Forged, Malformed, Refused, TallystickError, Unavailable
from tallystick.fleet.ota.judging import Assignment, UpdateOffer
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.ledger.contracts.state import Key
from tallystick.runtime.disk import read_all
from tallystick.trust.campaign import WHOLE, draw

OLD, NEW, EVIL = (
    image(f"{name} brakes", "brake-mk2", f"{version}.0") for version, name in enumerate(("old", "new", "evil"))
)
CAMPAIGN = b"a campaign of 16"


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def judged(car: Car, offer: UpdateOffer, age_max_s: float = 86_400) -> list[Assignment]:
    return car.judge().judge(offer, car.fleet.records.get, int(NOW_S * 1000) + 60_000, age_max_s)


def refused(car: Car, offer: UpdateOffer) -> str:
    with pytest.raises(TallystickError) as error:
        judged(car, offer)
    return error.value.reason if isinstance(error.value, Refused) else type(error.value).__name__


def stolen(fleet: Fleet) -> dict[bytes, bytes]:
    """What an attacker who writes its own records would have on the ledger."""
    return {root: record.contents for root, record in fleet.records.items()}


# --- keys ---


def test_a_stolen_director_chooses_only_what_the_image_repository_has(fleet: Fleet) -> None:
    fleet.put({"brakes": NEW})
    fleet.serve(EVIL)
    fleet.release(EVIL)
    fleet.assign({"brakes": EVIL})
    car, offer = Car(fleet), fleet.offer([EVIL])
    offer = replace(offer, images={**offer.images, f"targets/{EVIL.target}": EVIL.docket.encode()})
    assert refused(car, offer) == "not-in-metadata"
    with without("the Image repository's word"):
        assert [one.docket.root for one in judged(Car(fleet), offer)] == [EVIL.root]


def test_a_stolen_supplier_s_key_alone_assigns_nothing(fleet: Fleet) -> None:
    fleet.put({"brakes": NEW})
    fleet.serve(EVIL)
    fleet.publish(EVIL)
    assert [one.docket.root for one in judged(Car(fleet), fleet.offer([NEW, EVIL]))] == [NEW.root]


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
@pytest.mark.parametrize("which", ["director", "images"])
def test_one_role_s_key_alone_brings_nothing_in(fleet: Fleet, which: str, role: str) -> None:
    """The attacker signs everything, with one right key among wrong ones."""
    fleet.put({"brakes": NEW})
    true = getattr(fleet, which)
    forged = Served("attacker", SUPPLIER, parts=true.parts)
    forged.keys[role] = true.keys[role]
    for one in (EVIL, EVIL):
        name = one.target if which == "images" else f"{VEHICLE.hex()}/brakes/{one.target}"
        forged.publish({name: one.docket.encode()}, fleet.time_ms)
    offer = fleet.offer([NEW])
    files = {name: data for name, data in forged.repository.files().items() if "root" not in name}
    director, images = ({**offer.director, **files}, offer.images), (offer.director, {**offer.images, **files})
    brought = director if which == "director" else images
    assert refused(Car(fleet), replace(offer, director=brought[0], images=brought[1])) == "forged"


def test_without_signatures_anybody_is_the_director(fleet: Fleet) -> None:
    """An attacker without any key sends a car back to an older release."""
    fleet.put({"brakes": OLD})
    fleet.publish(OLD, NEW)
    fleet.put({"brakes": NEW})
    forged = Served("attacker", parts=5)
    for _ in range(3):
        forged.publish({f"{VEHICLE.hex()}/brakes/{OLD.target}": OLD.docket.encode()}, fleet.time_ms)
    offer = fleet.offer([OLD, NEW])
    files = {name: data for name, data in forged.repository.files().items() if name.endswith(".json")}
    offer = replace(offer, director={**offer.director, **{name: files[name] for name in files if "root" not in name}})
    assert refused(Car(fleet), offer) == "forged"
    with without("the signatures on metadata"):
        assert [one.docket.root for one in judged(Car(fleet), offer)] == [OLD.root]


def test_all_keys_together_are_stopped_by_the_ledger_in_the_primary_and_in_every_ecu(fleet: Fleet) -> None:
    evil = {ecu: image(f"evil {ecu}", kind, "6.6") for ecu, kind in HARDWARE.items()}
    fleet.serve(*evil.values())
    fleet.publish(*evil.values())
    fleet.assign(evil)
    car, offer = Car(fleet), fleet.offer([*evil.values()])
    assert refused(car, offer) == "not-released"
    for ecu, one in evil.items():
        with pytest.raises(Refused) as error:
            car.ecu_judge(ecu).judge(offer, {one.root: one.record}.get, int(NOW_S * 1000), 1e9)
        assert error.value.reason == "not-released"
    with without("the release on the ledger", contents=stolen(fleet)):
        car.run(10)
        car.update([*evil.values()])
    assert car.runs() == {ecu: one.root for ecu, one in evil.items()}


def test_what_partial_verification_leaves_to_the_primary(fleet: Fleet) -> None:
    """A stolen Director and a primary that was taken over: an ECU of partial verification takes an image that was
    released for its hardware and that the Image repository does not list any more. One of full verification does not.
    """
    taken_back = {ecu: image(f"taken back {ecu}", kind, "0.9") for ecu, kind in HARDWARE.items()}
    fleet.serve(*taken_back.values())
    fleet.release(*taken_back.values())
    fleet.publish(NEW)
    fleet.assign(taken_back)
    offer = fleet.offer([*taken_back.values()])
    dockets = {f"targets/{one.target}": one.docket.encode() for one in taken_back.values()}
    offer, car = replace(offer, images={**offer.images, **dockets}), Car(fleet)
    [door] = car.ecu_judge("door").judge(offer, fleet.records.get, int(NOW_S * 1000), 1e9)
    assert door.docket.root == taken_back["door"].root
    with pytest.raises(Refused, match="no target"):
        car.ecu_judge("brakes").judge(offer, fleet.records.get, int(NOW_S * 1000), 1e9)
    assert refused(car, offer) == "not-in-metadata"
    with pytest.raises(Refused) as error:
        car.ecu_judge("door").judge(replace(offer, director={}), fleet.records.get, int(NOW_S * 1000), 1e9)
    assert error.value.reason == "no-targets"


def test_two_images_for_two_cars_both_stand_where_everybody_sees_them(fleet: Fleet) -> None:
    """Who shows another image to one car has to release it, or the car refuses it."""
    fleet.put({"brakes": NEW})
    other = Image(b"another image under one name" * 400, NEW.target)
    fleet.serve(other)
    everybody = fleet.offer([NEW])
    fleet.publish(other)
    fleet.assign({"brakes": other})
    one_car = fleet.offer([other])
    assert [one.docket.root for one in judged(Car(fleet), everybody)] == [NEW.root]
    assert refused(Car(fleet), one_car) == "not-released"
    with without("the release on the ledger", contents=stolen(fleet)):
        assert [one.docket.root for one in judged(Car(fleet), one_car)] == [other.root]


# --- time ---


def test_a_freeze_ends_with_the_age_of_the_ledger_s_word(fleet: Fleet) -> None:
    fleet.put({"brakes": NEW})
    frozen = fleet.offer([NEW])
    fleet.withdraw(NEW)
    car = Car(fleet)
    assert [one.docket.root for one in judged(car, frozen, 3600)]
    later = int(NOW_S * 1000) + 7200_000
    with pytest.raises(Refused) as error:
        car.judge().judge(frozen, fleet.records.get, later, 3600)
    assert error.value.reason == "stale-head"
    with without("the age of the checkpoint"):
        assert car.judge().judge(frozen, fleet.records.get, later, 3600)
    assert refused(car, fleet.offer([NEW], car.size)) == "withdrawn"
    with pytest.raises(TallystickError):  # and from then on the frozen word is one of yesterday's ledger
        judged(car, frozen)


@pytest.mark.parametrize(("days", "reason"), [(-100, "expired"), (3650, "lifetime")])
@pytest.mark.parametrize("which", ["director", "images"])
def test_expired_and_future_metadata(fleet: Fleet, which: str, days: int, reason: str) -> None:
    fleet.put({"brakes": NEW})
    if which == "director":
        fleet.assign({"brakes": NEW}, now_ms=fleet.time_ms + days * DAY_MS)
    else:
        fleet.publish(NEW, now_ms=fleet.time_ms + days * DAY_MS)
    assert refused(Car(fleet), fleet.offer([NEW])) == reason


def test_a_rollback_with_every_key_is_stopped_by_the_height_of_the_release(fleet: Fleet) -> None:
    fleet.put({"brakes": OLD})
    fleet.put({"brakes": NEW})
    car = Car(fleet)
    car.run(10)
    assert car.update([NEW]) == "installed"
    fleet.assign({"brakes": OLD})  # signed anew: for the metadata it is the newest
    assert "goes below" in car.update([OLD])
    assert car.boots("brakes") == NEW.root
    fleet.release(OLD)  # going back on purpose is a new release
    assert car.update([OLD]) == "installed"
    assert car.boots("brakes") == OLD.root


def test_without_the_counter_an_old_image_comes_back(fleet: Fleet) -> None:
    fleet.put({"brakes": OLD})
    fleet.put({"brakes": NEW})
    car = Car(fleet)
    car.run(10)
    car.update([NEW])
    fleet.assign({"brakes": OLD})
    with without("the rollback counter"):
        assert car.update([OLD]) == "installed"
    assert car.boots("brakes") == OLD.root


def test_a_fast_forward_fails_since_nobody_chooses_a_height(fleet: Fleet) -> None:
    fleet.put({"brakes": EVIL})  # with every key, and before everybody's eyes
    car = Car(fleet)
    car.run(10)
    assert car.update([EVIL]) == "installed"
    fleet.withdraw(EVIL)
    fleet.put({"brakes": NEW})
    assert car.update([NEW]) == "installed"


def test_without_the_ledger_s_height_a_fast_forward_locks_a_car_out(fleet: Fleet) -> None:
    """Were the counter in what is signed, a thief would choose one that nobody reaches."""
    fleet.put({"brakes": EVIL})
    car = Car(fleet)
    car.run(10)
    with without("the release on the ledger", contents=stolen(fleet)):
        assert car.update([EVIL]) == "installed"
    fleet.withdraw(EVIL)
    fleet.put({"brakes": NEW})
    assert "goes below" in car.update([NEW])


# --- names, hardware, needs ---


def test_what_the_director_says_to_another_car(fleet: Fleet) -> None:
    fleet.put({"brakes": NEW})
    fleet.assign({"brakes": NEW}, vehicle=bytes(16))
    offer = fleet.offer([NEW])
    assert refused(Car(fleet), offer) == "wrong-vehicle"
    with without("the vehicle in a target's name"):
        assert judged(Car(fleet), offer)


def test_an_image_for_other_hardware(fleet: Fleet) -> None:
    fleet.put({"door": NEW})
    offer = fleet.offer([NEW])
    assert refused(Car(fleet), offer) == "wrong-hardware"
    with without("the hardware in the release record"):
        assert judged(Car(fleet), offer)


def test_a_record_that_says_other_hardware_is_not_the_released_one(fleet: Fleet) -> None:
    fleet.put({"door": NEW})
    name = f"{SUPPLIER}/door-mk1/1.0"
    fleet.records[NEW.root] = replace(NEW.record, target=name)
    assert refused(Car(fleet), fleet.offer([NEW])) == "wrong-record"
    for changed in (
        replace(NEW.record, reference=replace(NEW.record.reference, key=bytes(32))),
        replace(NEW.record, needs=(("door-mk1", (bytes(32),)),)),
        replace(NEW.record, surfaces=("tcp/22",)),
        replace(NEW.record, files=(("boot", bytes(32)),)),
    ):
        with pytest.raises(Forged):
            changed.check(NEW.root, len(NEW.data), NEW.record.contents)
        assert ReleaseRecord.decode(changed.encode()) == changed
        assert ReleaseRecord.of_row(changed.row()) == changed
    with pytest.raises(Malformed):
        ReleaseRecord.of_row({**NEW.record.row(), "hardware": "door-mk1"})


def test_images_that_do_not_go_together(fleet: Fleet) -> None:
    """A Director mixes a new image with an old one that it does not work with (mixed bundles)."""
    door = {name: image(f"{name} door", "door-mk1", f"{version}.0") for version, name in enumerate(("old", "new"))}
    needy = Image(NEW.data, NEW.target, needs=(("door-mk1", (door["new"].root,)),))
    fleet.put({"brakes": needy, "door": door["old"]})
    images = [needy, *door.values()]
    car = Car(fleet)
    car.run(10)
    assert "needs another image on door-mk1" in car.update(images[:2])
    mixed = Car(fleet)
    mixed.run(10)
    with without("what images need beside them"):
        assert mixed.update(images[:2]) == "installed"
    fleet.put({"brakes": needy, "door": door["new"]})
    assert car.update(images[::2]) == "installed"


@pytest.mark.parametrize("ecu", ["../brakes", "brakes/..", "", "no-such-ecu"])
def test_names_that_are_paths_or_nobody_s(fleet: Fleet, ecu: str) -> None:
    fleet.put({"brakes": NEW})
    offer, repository = fleet.offer([NEW]), fleet.director.repository
    targets = repository._targets["targets"]
    [target] = targets.targets.values()
    targets.targets = {f"{VEHICLE.hex()}/{ecu}/{NEW.target}": target}
    repository._write("targets", targets, fleet.time_ms)
    versions = repository._versions
    repository._write("snapshot", Snapshot(meta={"targets.json": MetaFile(versions["targets"])}), fleet.time_ms)
    repository._write("timestamp", Timestamp(snapshot_meta=MetaFile(versions["snapshot"])), fleet.time_ms)
    names = ["timestamp.json", "2.snapshot.json", "2.targets.json"]
    director = {name: read_all(fleet.director.disk, f"served/{name}") for name in names}
    assert refused(Car(fleet), replace(offer, director=director)) in ("bad-name", "wrong-vehicle")


# --- campaigns ---


def test_a_director_that_does_not_wait_for_the_phase(fleet: Fleet) -> None:
    fleet.put({"brakes": NEW})
    place = draw(CAMPAIGN, VEHICLE)
    fleet.begin_campaign(CAMPAIGN, NEW, share=max(place, 1))
    car = Car(fleet, campaigns=True)
    offer = fleet.offer([NEW], campaign=CAMPAIGN)
    assert refused(car, offer) == "not-in-phase"
    assert refused(car, replace(offer, campaign=None)) == "no-campaign"
    assert refused(car, replace(offer, campaign=bytes(16))) == "no-proof"
    with without("the phase of a campaign"):
        assert judged(Car(fleet, campaigns=True), offer)
    other = b"one for everyone"
    fleet.begin_campaign(other, NEW, share=WHOLE)
    assert judged(car, fleet.offer([NEW], car.size, other))


# --- bad input ---


def test_an_offer_without_its_proofs_or_with_others(fleet: Fleet) -> None:
    fleet.put({"brakes": NEW})
    offer = fleet.offer([NEW])
    [(key, value, proof)] = offer.states
    assert isinstance(key, Key)
    assert value is not None
    assert refused(Car(fleet), replace(offer, states=[])) == "no-proof"
    for states in (
        [(key, None, proof)],
        [(key, value[:-1] + b"\1", proof)],
        [(key, value, proof[:-1])],
        [(key, value, b"")],
    ):
        assert refused(Car(fleet), replace(offer, states=states)) in ("forged", "malformed")
    assert refused(Car(fleet), replace(offer, note=offer.note[:-5])) in ("forged", "malformed")
    missing = {name: data for name, data in offer.images.items() if not name.startswith("targets/")}
    assert refused(Car(fleet), replace(offer, images=missing)) == "forged"
    fleet.records.clear()
    assert refused(Car(fleet), offer) == "Unavailable"
    with pytest.raises(Unavailable):
        UpdateOffer.gather({}, {}, [fleet.ledger.state(key), replace(fleet.ledger.state(key), note=b"")])


def test_offers_that_are_none(fleet: Fleet) -> None:
    fleet.put({"brakes": NEW})
    data = fleet.offer([NEW]).encode()
    assert UpdateOffer.decode(data).encode() == data
    for bad in (b"", data[:-1], b"\x80", data + b"\0", b"\0" * (9 << 20)):
        with pytest.raises(Malformed):
            UpdateOffer.decode(bad)
    car = Car(fleet)
    car.run(10)
    for at in range(0, len(data), len(data) // 12):
        car.hear(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    car.run(10)
    assert car.boots("brakes") in (car.factory["brakes"].root, NEW.root)
