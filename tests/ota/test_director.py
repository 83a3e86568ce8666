"""What the Director decides: who is offered what, what is reported, and what a lying car changes about it."""

from __future__ import annotations

from functools import cache

import pytest
from ledger_world import seed
from without import without

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused
from tallystick.fleet.ota.director import RENEW_S, REPORT_S, RETRY_S, CampaignReport, Director
from tallystick.fleet.ota.manifest import NOTHING, EcuReport, EnrolledEcu, EnrolledVehicle, Trial, VehicleManifest
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.ledger.contracts.firmware import CampaignRow, CampaignStatus, ReleaseRow
from tallystick.objects.layout import ObjectReference
from tallystick.trust.campaign import WHOLE, Phase, is_member, manifests_root

TOKEN, CAMPAIGN = seed("releases")[:16], seed("campaign")[:16]
OLD = seed("old image")
RECORDS = {
    hardware: ReleaseRecord(ObjectReference(seed(hardware), seed("key"), 100), f"acme/{hardware}/2.0")
    for hardware in ("brake-mk2", "door-mk1")
}
BRAKES, DOOR = (one.image for one in RECORDS.values())
ECUS = {"brakes": "brake-mk2", "door": "door-mk1"}
VEHICLES = [seed(f"vehicle {number}")[:16] for number in range(20)]
HALF = Phase(WHOLE // 2, 30, 4, 2, 60_000)
ALL = Phase(WHOLE, 30, 18, 2, 60_000)
REACHED = [one for one in VEHICLES if is_member(CAMPAIGN, one, HALF.share)]
OTHERS = [one for one in VEHICLES if one not in REACHED]


@cache
def key(vehicle: bytes, ecu: str = "") -> SigningKey:
    return SigningKey.from_seed(seed(f"key {vehicle.hex()} {ecu}"))


@cache
def enrolled(vehicle: bytes) -> EnrolledVehicle:
    ecus = {ecu: EnrolledEcu(key(vehicle, ecu).public, hardware) for ecu, hardware in ECUS.items()}
    return EnrolledVehicle(key(vehicle).public, ecus)


def manifest(
    vehicle: bytes,
    number: int,
    runs: tuple[bytes, bytes] = (OLD, OLD),
    outcome: str = "",
    *,
    size: int = 7,
    counter: int = 0,
    campaign: bytes = CAMPAIGN,
) -> bytes:
    reports = []
    for (ecu, hardware), image in zip(ECUS.items(), runs, strict=True):
        told = image, counter, NOTHING, int(Trial.NONE), NOTHING, "", 1, 0
        report = EcuReport(vehicle, ecu, number, hardware, *told)
        reports.append(report.sign(key(vehicle, ecu)).encode())
    told_ = VehicleManifest(vehicle, number, size, campaign, "", outcome, tuple(reports))
    return told_.sign(key(vehicle)).encode()


class Desk:
    """A Director with a campaign of two phases, and its ledger."""

    def __init__(self) -> None:
        images = sorted([TOKEN, one] for one in (BRAKES, DOOR))
        phases = [[*HALF], [*ALL]]
        self.row = CampaignRow(images, phases, CampaignStatus.RUNNING, 0, 1000, 0, 0, 0, 0, bytes(32), 9)
        self.releases = {one.image: ReleaseRow(5, one.contents, bytes(16), 0) for one in RECORDS.values()}
        self.director = self.start()

    def start(self) -> Director:
        director = Director()
        for vehicle in VEHICLES:
            director.enrol(vehicle, enrolled(vehicle))
        for record in RECORDS.values():
            director.take_record(record)
        director.take_ledger({CAMPAIGN: self.row}, self.releases)
        return director

    def hear(self, **changes: object) -> None:
        self.row = self.row._replace(**changes)  # type: ignore[arg-type]
        self.director.take_ledger({CAMPAIGN: self.row}, self.releases)

    def accept(self, report: CampaignReport) -> None:
        """As the contract does."""
        self.hear(reports=report.number, succeeded=report.succeeded, failed=report.failed)

    def offer(self, now: float = 0.0) -> list[bytes]:
        """Offer what there is, and say to whom."""
        found = self.director.offers(now)
        for one in found:
            self.director.sent(one, now)
        return [one.vehicle for one in found]

    def say(self, *vehicles: bytes, **said: object) -> None:
        for one in vehicles:
            self.director.take_manifest(manifest(one, **said))  # type: ignore[arg-type]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def spoken(desk: Desk) -> Desk:
    desk.say(*VEHICLES, number=1)
    return desk


def test_those_whom_the_phase_reaches_are_offered_every_image_of_theirs_once(desk: Desk) -> None:
    assert 0 < len(REACHED) < len(VEHICLES)
    assert desk.offer() == []  # nobody has said what it runs
    desk.say(*VEHICLES, number=1)
    found = desk.director.offers(0.0)
    assert {one.vehicle for one in found} == set(REACHED)
    assert {(one.campaign, one.targets, one.size) for one in found} == {
        (CAMPAIGN, (("brakes", BRAKES), ("door", DOOR)), 7)
    }
    assert desk.director.offers(0.0) == found  # none got out
    assert len(desk.offer()) == len(found)
    assert desk.offer(1.0) == []
    desk.say(REACHED[0], number=2)  # it has news, and was offered this already
    assert desk.offer(2.0) == []
    assert set(desk.offer(RENEW_S)) == set(REACHED)  # before the checkpoint is too old
    desk.hear(phase=1, opened_ms=2000)
    assert set(desk.offer(RENEW_S + 1)) == set(OTHERS)


def test_who_has_succeeded_or_failed_is_counted_once_and_not_asked_again(spoken: Desk) -> None:
    desk = spoken
    good, bad, half = REACHED[:3]
    desk.say(good, number=2, runs=(BRAKES, DOOR), outcome="installed")
    desk.say(bad, number=2, outcome="failed: door")
    desk.say(half, number=2, runs=(BRAKES, OLD), outcome="installed")  # the primary's word is nothing
    assert set(desk.offer()) == set(REACHED) - {good, bad}
    [report] = desk.director.reports(100.0, 2000)
    manifests = {good: manifest(good, 2, (BRAKES, DOOR), "installed"), bad: manifest(bad, 2, outcome="failed: door")}
    assert report == CampaignReport(CAMPAIGN, 1, 0, 1, 1, manifests_root(manifests))
    desk.accept(report)
    desk.say(good, number=3, runs=(BRAKES, DOOR), outcome="installed")
    desk.say(bad, number=3, runs=(BRAKES, DOOR), outcome="installed")  # it says it thought better of it
    assert desk.director.reports(200.0, 3000) == []
    desk.say(good, number=4, outcome="failed: brakes")  # it returned: this counts
    [report] = desk.director.reports(200.0, 3000)
    assert report[1:5] == (2, 0, 0, 2)


def test_vehicles_that_no_phase_reaches_do_not_count(spoken: Desk) -> None:
    desk = spoken
    desk.say(*OTHERS, number=2, runs=(BRAKES, DOOR))  # they ran it before
    assert desk.director.reports(100.0, 2000) == []
    desk.hear(phase=1)
    [report] = desk.director.reports(100.0, 2000)
    assert report[2:5] == (1, len(OTHERS), 0)


def test_a_phase_has_room_for_so_many(spoken: Desk) -> None:
    desk = spoken
    desk.hear(phases=[[WHOLE, 5, 5, 2, 0]])
    desk.say(*VEHICLES[:7], number=2, runs=(BRAKES, DOOR))
    desk.say(VEHICLES[7], number=2, outcome="failed: door")
    assert desk.director.reports(100.0, 2000)[0][3:5] == (4, 1)


@pytest.mark.parametrize("left_out", ["none", "replays"])
def test_a_manifest_that_is_shown_again_counts_for_nothing(spoken: Desk, left_out: str) -> None:
    """Without the check of numbers, last week's success covers today's failure: it is taken for what runs."""
    desk, car = spoken, REACHED[0]
    before = manifest(car, 2, (BRAKES, DOOR), "installed")
    desk.director.take_manifest(before)
    desk.say(car, number=3, campaign=bytes(16))  # back at the old image
    if left_out == "none":
        with pytest.raises(Refused) as refusal:
            desk.director.take_manifest(before)
        assert refusal.value.reason == "replayed"
        assert desk.director.inventory.running[car]["door"].image == OLD
    else:
        with without("the numbers of manifests"):
            desk.director.take_manifest(before)
        assert desk.director.inventory.running[car]["door"].image == DOOR


def test_reports_are_paced_and_come_again_when_a_phase_has_soaked(spoken: Desk) -> None:
    desk, director = spoken, spoken.director
    desk.say(*REACHED[:4], number=2, runs=(BRAKES, DOOR))
    [report] = director.reports(100.0, 2000)
    desk.accept(report)
    desk.say(REACHED[4], number=2, runs=(BRAKES, DOOR))
    assert director.reports(100.0 + REPORT_S / 2, 3000) == []
    [report] = director.reports(100.0 + REPORT_S, 3000)
    desk.accept(report)
    assert director.reports(200.0, 60_999) == []  # nothing new
    [report] = director.reports(300.0, 61_000)  # but the time has come
    assert report[1:5] == (3, 0, 5, 0)
    desk.hear(status=CampaignStatus.DONE)
    assert director.reports(400.0, 62_000) == []


def test_nothing_is_reported_that_takes_back_what_was(spoken: Desk) -> None:
    """Vehicles that are not enrolled here any more were counted before; the contract would refuse it."""
    spoken.hear(reports=3, succeeded=5, failed=1)
    spoken.say(*REACHED[:5], number=2, runs=(BRAKES, DOOR))
    assert spoken.director.reports(100.0, 99_000) == []


def test_a_withdrawn_image_is_offered_no_more_and_those_who_wait_with_it_hear_of_it(spoken: Desk) -> None:
    desk = spoken
    assert set(desk.offer()) == set(REACHED)
    desk.say(REACHED[0], number=2, runs=(BRAKES, DOOR), outcome="installed")
    desk.releases = {**desk.releases, DOOR: desk.releases[DOOR]._replace(withdrawn=11)}
    desk.hear()
    found = desk.director.offers(1.0)
    assert {(one.vehicle, one.targets) for one in found} == {(one, ()) for one in REACHED[1:]}
    assert [one.vehicle for one in found] == desk.offer(1.0)
    assert desk.director.reports(100.0, 2000)  # so that the contract stops it
    assert desk.offer(2.0) == []
    assert desk.offer(RENEW_S + 2) == []  # once is enough


@pytest.mark.parametrize("status", [CampaignStatus.STOPPED, CampaignStatus.FAILED])
def test_a_campaign_that_stopped_is_taken_back_and_goes_on_when_it_is_resumed(spoken: Desk, status: int) -> None:
    desk = spoken
    desk.offer()
    desk.hear(status=status)
    assert {one.targets for one in desk.director.offers(1.0)} == {()}
    assert set(desk.offer(1.0)) == set(REACHED)
    desk.hear(status=CampaignStatus.RUNNING)
    assert {one.targets for one in desk.director.offers(2.0)} == {(("brakes", BRAKES), ("door", DOOR))}


def test_what_an_ecu_must_refuse_is_not_sent(spoken: Desk) -> None:
    ahead, behind = REACHED[:2]
    spoken.say(ahead, number=2, counter=6)  # the images were released at height 5
    spoken.say(behind, number=2, counter=5)
    offered = spoken.offer()
    assert (ahead in offered, behind in offered) == (False, True)


def test_a_record_that_is_not_the_released_one_counts_for_nothing(desk: Desk) -> None:
    director, false = Director(), ReleaseRecord(RECORDS["door-mk1"].reference, "acme/brake-mk2/9.9")
    for vehicle in VEHICLES:
        director.enrol(vehicle, enrolled(vehicle))
    director.take_record(false)
    director.take_record(RECORDS["brake-mk2"])
    director.take_ledger({CAMPAIGN: desk.row}, desk.releases)
    director.take_manifest(manifest(REACHED[0], 1))
    assert director.offers(0.0) == []
    director.take_record(RECORDS["door-mk1"])
    director.take_ledger({CAMPAIGN: desk.row}, desk.releases)
    director.take_record(false)
    assert [one.vehicle for one in director.offers(0.0)] == [REACHED[0]]


def test_who_refuses_because_it_knows_another_ledger_hears_again_in_a_while(spoken: Desk) -> None:
    desk, car = spoken, REACHED[0]
    desk.offer()
    desk.say(car, number=2, outcome="refused: ledger: two histories", size=7)
    assert desk.offer(RETRY_S) == []  # it was told from there
    desk.say(car, number=3, outcome="refused: ledger: two histories", size=9)
    assert desk.offer(1.0) == []
    [found] = desk.director.offers(RETRY_S)
    assert (found.vehicle, found.size) == (car, 9)


def test_the_newest_campaign_comes_first_and_a_diagnosis_has_no_targets(spoken: Desk) -> None:
    desk, newer = spoken, seed("newer")[:16]
    asks = desk.row._replace(images=[], phases=[[*ALL]], height=10)
    desk.director.take_ledger({CAMPAIGN: desk.row, newer: asks}, desk.releases)
    assert {(one.campaign, one.targets) for one in desk.director.offers(0.0)} == {(newer, ())}
    assert set(desk.offer()) == set(VEHICLES)
    desk.say(REACHED[0], number=2, outcome="diagnosed", campaign=newer)
    assert {(one.vehicle, one.campaign) for one in desk.director.offers(1.0)} == {(REACHED[0], CAMPAIGN)}
    assert [one[:5] for one in desk.director.reports(100.0, 2000)] == [(newer, 1, 0, 1, 0)]


def test_after_a_restart_and_for_a_later_campaign_the_same_is_counted(spoken: Desk) -> None:
    desk = spoken
    rows = [manifest(one, 2, (BRAKES, DOOR), "installed") for one in REACHED[:3]]
    rows += [manifest(REACHED[0], 3, (BRAKES, DOOR), "something else"), manifest(REACHED[4], 2, outcome="failed: it")]
    later = Desk()
    later.director.campaigns, later.director.counts = {}, {}  # it has not begun yet
    for director in (desk.director, later.director):
        for row in ([] if director is desk.director else [manifest(one, 1) for one in VEHICLES]) + rows[:4]:
            director.take_manifest(row)
    later.hear()
    for director in (desk.director, later.director):
        director.take_manifest(rows[4])
    again = desk.start()
    for row in [manifest(one, 1) for one in VEHICLES] + rows:
        again.take_manifest(row)
    told = [one.reports(100.0, 2000) for one in (desk.director, later.director, again)]
    assert told[0] == told[1] == told[2]
    assert told[0][0][3:5] == (3, 1)


def test_a_vehicle_that_spoke_before_it_was_enrolled_is_heard_then() -> None:
    director, early = Director(), REACHED[0]
    for number in range(300):  # strangers push one another out, and nobody else
        with pytest.raises(Refused, match="not enrolled"):
            director.take_manifest(manifest(early if number == 299 else REACHED[1], 1 + number))
    director.enrol(early, enrolled(early))
    director.take_early()
    assert list(director.manifests) == [early]
    director.enrol(REACHED[1], enrolled(REACHED[1]))
    director.take_early()
    assert director.manifests[REACHED[1]].number == 299


def test_bases_without_a_patch_are_known(spoken: Desk) -> None:
    spoken.say(REACHED[0], number=2, runs=(BRAKES, OLD))
    assert spoken.director.unpatched(BRAKES) == {OLD: len(VEHICLES) - 1}
    spoken.director.patches[OLD, BRAKES] = b"a patch"
    assert spoken.director.unpatched(BRAKES) == {}


def test_ten_thousand_vehicles_of_which_one_has_news(desk: Desk) -> None:
    """A round looks at that one; nobody decides, and nobody signs, for the rest."""
    director = desk.director
    for number in range(10_000):
        director.enrol(number.to_bytes(16, "big"), enrolled(VEHICLES[0]))
    director.offers(0.0)
    assert not director._look_at
    desk.say(REACHED[0], number=1)
    assert list(director._look_at) == [REACHED[0]]
    assert desk.offer(1.0) == [REACHED[0]]
    assert director._look_at == {REACHED[0]: 1.0 + RENEW_S}
