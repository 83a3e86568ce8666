"""Releases and campaigns on the ledger: three hands, none of which does another's work, and campaigns that stop
themselves."""

from __future__ import annotations

import pytest
from firmware_world import (
    CAMPAIGN,
    CONTENTS,
    IMAGE,
    MANIFESTS,
    OTHER_CAMPAIGN,
    OTHER_IMAGE,
    PHASES,
    SOAK_MS,
    FirmwareWorld,
)
from ledger_world import HOME, ROLES, Bench, World, seed
from ledger_world import bench as bench
from ledger_world import world as world
from test_contract_anchors_groups import evidence, header
from without import without

from tallystick import wire
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts import firmware
from tallystick.ledger.contracts.firmware import IMAGES_MAX, CampaignStatus
from tallystick.ledger.contracts.quotas import SPENT
from tallystick.trust.campaign import PHASES_MAX, WHOLE, Phase, count_members, draw, is_member
from tallystick.trust.right import Right

RUNNING, DONE, STOPPED, FAILED, WITHDRAWN = CampaignStatus


@pytest.fixture
def fleet(bench: Bench, world: World) -> FirmwareWorld:
    """One image is released, one campaign runs."""
    found = FirmwareWorld(world)
    bench.bring_into_force()
    found.stand(bench)
    return found


def soak(bench: Bench) -> None:
    bench.time_ms += SOAK_MS


# --- releases ---


def test_before_its_activation_the_contract_has_no_entries(bench: Bench, world: World) -> None:
    fleet = FirmwareWorld(world)
    for written in fleet.good():
        bench.refuse(world.landlord.sign(written), "unknown-kind")


def test_the_height_of_a_release_is_its_counter_and_nobody_chooses_it(bench: Bench, fleet: FirmwareWorld) -> None:
    """Fast-forward has no field to write a number into, and going back is a new release at a new height."""
    first = fleet.found_release(bench)
    assert (first.contents, first.author, first.withdrawn) == (CONTENTS, fleet.image.id, 0)
    other = bench.height
    bench.accept(fleet.image.sign(fleet.release(OTHER_IMAGE)))
    again = bench.height
    bench.accept(fleet.image.sign(fleet.release()))
    assert first.height < other == fleet.found_release(bench, OTHER_IMAGE).height < again
    assert fleet.found_release(bench).height == again
    bench.refuse(fleet.image.sign(wire.encode([100, fleet.releases, IMAGE, CONTENTS, 1 << 60])), "malformed")


@pytest.mark.parametrize("role", ROLES)
def test_who_may_write_the_releases_releases(bench: Bench, fleet: FirmwareWorld, role: str) -> None:
    bench.play(fleet.world.row(role, "sensor", fleet.release(OTHER_IMAGE), "no-right"))


@pytest.mark.parametrize("role", ROLES)
def test_who_may_write_or_owns_the_releases_withdraws(bench: Bench, fleet: FirmwareWorld, role: str) -> None:
    bench.play(fleet.world.row(role, "sensor landlord", fleet.withdraw(), "not-owner"))


def test_who_may_delete_there_withdraws_and_releases_nothing(bench: Bench, fleet: FirmwareWorld) -> None:
    doctor = fleet.world.doctor
    bench.play(
        (fleet.owner, entries.grant(fleet.releases, doctor.id, int(Right.DELETE)), None),
        (doctor, fleet.release(OTHER_IMAGE), "no-right"),
        (doctor, fleet.withdraw(), None),
    )


def test_what_was_withdrawn_stays_withdrawn(bench: Bench, fleet: FirmwareWorld) -> None:
    read = bench.state.row
    assert firmware.require_live(read, fleet.releases, IMAGE).height
    at = bench.height
    bench.play(
        (fleet.image, fleet.withdraw(), None),
        (fleet.image, fleet.withdraw(), "withdrawn"),
        (fleet.image, fleet.release(), "withdrawn"),
        (fleet.image, fleet.withdraw(OTHER_IMAGE), "not-released"),
    )
    assert fleet.found_release(bench).withdrawn == at
    for image, reason in ((IMAGE, "withdrawn"), (OTHER_IMAGE, "not-released")):
        with pytest.raises(Refused) as refused:
            firmware.require_live(read, fleet.releases, image)
        assert refused.value.reason == reason


def test_without_its_finality_a_withdrawn_image_is_back(bench: Bench, fleet: FirmwareWorld) -> None:
    bench.accept(fleet.image.sign(fleet.withdraw()))
    with without("the finality of a withdrawal"):
        bench.accept(fleet.image.sign(fleet.release()))
    assert firmware.require_live(bench.state.row, fleet.releases, IMAGE).height


def test_without_the_right_a_director_s_key_releases_what_it_likes(bench: Bench, fleet: FirmwareWorld) -> None:
    with without("the right to release and to report"):
        bench.accept(fleet.director.sign(fleet.release(OTHER_IMAGE)))
    assert firmware.require_live(bench.state.row, fleet.releases, OTHER_IMAGE).author == fleet.director.id


def test_another_tenant_s_topic_releases_nothing_for_this_one(bench: Bench, fleet: FirmwareWorld) -> None:
    """A vehicle asks for the image under the topic that it trusts."""
    doctor, heart = fleet.world.doctor, seed("topic heart")[:16]
    bench.accept(doctor.sign(entries.grant(heart, doctor.id, int(Right.WRITE))))
    bench.accept(doctor.sign(entries.release_image(heart, OTHER_IMAGE, CONTENTS)))
    with pytest.raises(Refused, match="is no release"):
        firmware.require_live(bench.state.row, fleet.releases, OTHER_IMAGE)


def test_a_closed_topic_takes_no_releases_and_no_campaigns_but_withdrawals(bench: Bench, fleet: FirmwareWorld) -> None:
    close = [entries.close_topic(fleet.releases), entries.close_topic(fleet.campaigns)]
    bench.play(
        (fleet.owner, close, None),
        (fleet.image, fleet.release(OTHER_IMAGE), "topic-closed"),
        (fleet.owner, fleet.campaign(OTHER_CAMPAIGN), "topic-closed"),
        (fleet.director, fleet.stop(), None),
        (fleet.image, fleet.withdraw(), None),
    )


# --- campaigns: who plans, reports, stops and resumes ---


@pytest.mark.parametrize("role", ROLES)
def test_the_owner_begins_campaigns_and_nobody_else(bench: Bench, fleet: FirmwareWorld, role: str) -> None:
    bench.play(fleet.world.row(role, "landlord", fleet.campaign(OTHER_CAMPAIGN), "not-owner"))


@pytest.mark.parametrize("role", ROLES)
def test_the_director_reports_and_nobody_else(bench: Bench, fleet: FirmwareWorld, role: str) -> None:
    bench.play(fleet.world.row(role, "monitor", fleet.report(1, 0, 1, 0), "no-right"))


@pytest.mark.parametrize("role", ROLES)
def test_director_and_owner_stop_and_no_stranger(bench: Bench, fleet: FirmwareWorld, role: str) -> None:
    bench.play(fleet.world.row(role, "monitor landlord", fleet.stop(), "not-owner"))


@pytest.mark.parametrize("role", ROLES)
def test_the_owner_alone_resumes(bench: Bench, fleet: FirmwareWorld, role: str) -> None:
    bench.accept(fleet.director.sign(fleet.stop()))
    bench.play(fleet.world.row(role, "landlord", fleet.resume(), "not-owner"))


def test_a_stolen_director_s_key_alone_spreads_nothing(bench: Bench, fleet: FirmwareWorld) -> None:
    director = fleet.director
    bench.play(
        (director, fleet.release(OTHER_IMAGE), "no-right"),
        (director, fleet.campaign(OTHER_CAMPAIGN), "not-owner"),
        (director, fleet.withdraw(), "not-owner"),
        (director, fleet.report(1, 0, 0, 2), None),
        (director, fleet.resume(), "not-owner"),
        (director, fleet.report(2, 0, 18, 2), "not-running"),
    )
    assert fleet.found(bench).status == FAILED


def test_without_the_owner_s_word_the_thief_goes_on_where_the_campaign_stopped(
    bench: Bench, fleet: FirmwareWorld
) -> None:
    all_at_once = [Phase(WHOLE, 200, 1, 199, 0)]
    bench.accept(fleet.director.sign(fleet.report(1, 0, 0, 2)))
    with without("the owner's word on campaigns"):
        bench.accept(fleet.director.sign(fleet.resume()))
        bench.accept(fleet.director.sign(fleet.campaign(OTHER_CAMPAIGN, phases=all_at_once)))
    assert fleet.found(bench).status == RUNNING
    assert fleet.found(bench, OTHER_CAMPAIGN).share == WHOLE


def test_a_blacklisted_key_releases_and_reports_nothing_and_may_brake(bench: Bench, fleet: FirmwareWorld) -> None:
    """It told two stories under one number of a lane."""
    forked = evidence(fleet.world, header(fleet.world, "one story"), header(fleet.world, "another"))
    bench.play(
        (fleet.owner, entries.grant(fleet.releases, fleet.director.id, int(Right.WRITE)), None),
        (fleet.world.doctor, forked, None),
        (fleet.director, fleet.release(OTHER_IMAGE), "blacklisted"),
        (fleet.director, fleet.report(1, 0, 1, 0), "blacklisted"),
        (fleet.director, fleet.stop(), None),
    )


# --- campaigns: what is planned ---


BAD_PHASES = {
    "of no vehicles": [Phase(WHOLE, 0, 0, 0, 0)],
    "of no share": [Phase(0, 20, 5, 1, 0)],
    "of more than all": [Phase(WHOLE + 1, 20, 5, 1, 0)],
    "that ends without a success": [Phase(WHOLE, 20, 0, 1, 0)],
    "that never ends": [Phase(WHOLE, 20, 21, 1, 0)],
    "that nothing stops": [Phase(WHOLE, 20, 5, 20, 0)],
    "none at all": [],
    "too many": [Phase(n + 1, 20, 5, 1, 0) for n in range(PHASES_MAX + 1)],
    "not rising": [PHASES[1], PHASES[0]],
    "the same twice": [PHASES[0], PHASES[0]],
    "fewer vehicles in a larger share": [Phase(1, 20, 5, 1, 0), Phase(2, 19, 5, 1, 0)],
    "a soak of less than nothing": [Phase(WHOLE, 20, 5, 1, -1)],
}


@pytest.mark.parametrize("phases", BAD_PHASES.values(), ids=BAD_PHASES)
def test_phases_that_make_no_sense_are_refused(bench: Bench, fleet: FirmwareWorld, phases: list[Phase]) -> None:
    bench.refuse(fleet.owner.sign(fleet.campaign(OTHER_CAMPAIGN, phases=phases)), "malformed")


def test_a_campaign_names_live_releases_each_once(bench: Bench, fleet: FirmwareWorld) -> None:
    pair = [fleet.releases, IMAGE]
    twice = wire.encode([102, fleet.campaigns, OTHER_CAMPAIGN, [pair, pair], [[*one] for one in PHASES]])
    many = [bytes([n]) * 32 for n in range(IMAGES_MAX + 1)]
    bench.play(
        (fleet.owner, fleet.campaign(), "campaign-exists"),
        (fleet.owner, fleet.campaign(OTHER_CAMPAIGN, [OTHER_IMAGE]), "not-released"),
        (fleet.owner, twice, "malformed"),
        (fleet.owner, fleet.campaign(OTHER_CAMPAIGN, many), "malformed"),
        (fleet.image, [fleet.release(OTHER_IMAGE), fleet.withdraw()], None),
        (fleet.owner, fleet.campaign(OTHER_CAMPAIGN, [IMAGE, OTHER_IMAGE]), "withdrawn"),
        (fleet.owner, fleet.campaign(OTHER_CAMPAIGN, [OTHER_IMAGE]), None),
    )


def test_a_diagnosis_is_a_campaign_without_an_image(bench: Bench, fleet: FirmwareWorld) -> None:
    bench.play(
        (fleet.owner, fleet.campaign(OTHER_CAMPAIGN, images=()), None),
        (fleet.director, fleet.report(1, 0, 5, 2, OTHER_CAMPAIGN), None),
    )
    assert fleet.found(bench, OTHER_CAMPAIGN).status == FAILED


# --- campaigns: how they go on ---


def test_a_campaign_goes_from_phase_to_phase_and_is_done(bench: Bench, fleet: FirmwareWorld) -> None:
    assert fleet.found(bench).share == WHOLE // 10
    bench.accept(fleet.director.sign(fleet.report(1, 0, 5, 0)))
    assert fleet.found(bench).phase == 0, "it soaks"
    soak(bench)
    bench.accept(fleet.director.sign(fleet.report(2, 0, 5, 1)))
    row = fleet.found(bench)
    assert (row.phase, row.share, row.opened_ms, row.manifests) == (1, WHOLE, bench.time_ms, MANIFESTS)
    soak(bench)
    bench.accept(fleet.director.sign(fleet.report(3, 1, 99, 3)))
    assert fleet.found(bench).status == RUNNING, "too few"
    bench.accept(fleet.director.sign(fleet.report(4, 1, 100, 3)))
    row = fleet.found(bench)
    assert (row.status, row.share, row.reports) == (DONE, WHOLE, 4)
    bench.play(
        (fleet.director, fleet.report(5, 1, 101, 3), "not-running"),
        (fleet.owner, fleet.resume(), "not-stopped"),
        (fleet.director, fleet.stop(), None),
        (fleet.director, fleet.stop(), "not-running"),
    )
    assert fleet.found(bench).share == 0


def test_one_failure_too_many_stops_it_and_the_owner_may_forgive(bench: Bench, fleet: FirmwareWorld) -> None:
    soak(bench)
    bench.accept(fleet.director.sign(fleet.report(1, 0, 18, 2)))
    row = fleet.found(bench)
    assert (row.status, row.share, row.phase) == (FAILED, 0, 0), "successes weigh nothing against it"
    bench.time_ms += 1
    bench.accept(fleet.owner.sign(fleet.resume()))
    row = fleet.found(bench)
    assert (row.status, row.forgiven, row.opened_ms) == (RUNNING, 2, bench.time_ms)
    bench.accept(fleet.director.sign(fleet.report(2, 0, 17, 3)))
    assert fleet.found(bench).phase == 0, "it soaks anew"
    soak(bench)
    bench.accept(fleet.director.sign(fleet.report(3, 0, 17, 3)))
    assert fleet.found(bench).phase == 1
    bench.accept(fleet.director.sign(fleet.report(4, 1, 17, 6)))
    assert fleet.found(bench).status == FAILED, "of six failures two were forgiven"


def test_a_withdrawn_image_stops_its_campaigns_for_good(bench: Bench, fleet: FirmwareWorld) -> None:
    soak(bench)
    bench.play(
        (fleet.image, fleet.withdraw(), None),
        (fleet.director, fleet.report(1, 0, 20, 0), None),
        (fleet.owner, fleet.resume(), "withdrawn"),
    )
    assert (fleet.found(bench).status, fleet.found(bench).share) == (WITHDRAWN, 0)


def test_reports_come_once_and_in_order(bench: Bench, fleet: FirmwareWorld) -> None:
    director = fleet.director
    bench.play(
        (director, fleet.report(2, 0, 1, 0), "wrong-number"),
        (director, fleet.report(1, 1, 1, 0), "wrong-phase"),
        (director, fleet.report(1, 0, 1, 0), None),
        (director, fleet.report(1, 0, 1, 0), "wrong-number"),
        (director, fleet.report(1, 0, 9, 0), "wrong-number"),
        (director, fleet.report(2, 0, 1, 0, OTHER_CAMPAIGN), "unknown-campaign"),
    )
    soak(bench)
    late = fleet.report(3, 0, 5, 0)
    bench.play((director, fleet.report(2, 0, 5, 0), None), (director, late, "wrong-phase"))


def test_without_their_order_one_report_counts_for_two_phases(bench: Bench, fleet: FirmwareWorld) -> None:
    """Whoever repeats a report that is true ends a campaign of which nobody told anything more."""
    phases = [Phase(1, 20, 5, 1, 0), Phase(WHOLE, 20, 5, 1, 0)]
    bench.accept(fleet.owner.sign(fleet.campaign(OTHER_CAMPAIGN, phases=phases)))
    written = fleet.report(1, 0, 5, 0, OTHER_CAMPAIGN)
    bench.accept(fleet.director.sign(written))
    bench.refuse(fleet.director.sign(written), "wrong-number")
    with without("the order of reports"):
        bench.accept(fleet.director.sign(written))
    assert fleet.found(bench, OTHER_CAMPAIGN).status == DONE


def test_counts_stay_within_the_phase_and_take_nothing_back(bench: Bench, fleet: FirmwareWorld) -> None:
    director = fleet.director
    bench.play(
        (director, fleet.report(1, 0, 20, 1), "beyond-phase"),
        (director, fleet.report(1, 0, 0, 21), "beyond-phase"),
        (director, fleet.report(1, 0, 1 << 40, 0), "malformed"),
        (director, fleet.report(1, 0, 10, 1), None),
        (director, fleet.report(2, 0, 11, 0), "counts-fall"),
        (director, fleet.report(2, 0, 9, 1), "counts-fall"),
        (director, fleet.report(2, 0, 19, 1), None),
    )


def test_a_success_may_turn_into_a_failure(bench: Bench, fleet: FirmwareWorld) -> None:
    bench.play((fleet.director, fleet.report(1, 0, 10, 0), None), (fleet.director, fleet.report(2, 0, 8, 2), None))
    assert fleet.found(bench).status == FAILED


def test_without_the_bounds_of_counts_a_liar_opens_phases_with_vehicles_that_are_not_there(
    bench: Bench, fleet: FirmwareWorld
) -> None:
    soak(bench)
    bench.accept(fleet.director.sign(fleet.report(1, 0, 0, 1)))
    lie = fleet.report(2, 0, 1_000_000, 0)
    bench.refuse(fleet.director.sign(lie), "beyond-phase")
    with without("the bounds of counts"):
        bench.accept(fleet.director.sign(lie))
    assert fleet.found(bench).phase == 1


def test_a_liar_waits_for_the_soak_time_and_without_it_for_nothing(bench: Bench, fleet: FirmwareWorld) -> None:
    """The time in which whoever recounts the manifests stops it."""
    lies = iter(fleet.report(number, phase, 20 if phase == 0 else 200, 0) for number, phase in ((1, 0), (2, 0), (3, 1)))
    bench.accept(fleet.director.sign(next(lies)))
    assert fleet.found(bench).phase == 0
    with without("the soak time"):
        bench.accept(fleet.director.sign(next(lies)))
        bench.accept(fleet.director.sign(next(lies)))
    assert fleet.found(bench).status == DONE


def test_what_a_fleet_writes_is_charged_to_its_tenant(bench: Bench, fleet: FirmwareWorld) -> None:
    before = bench.state.row(SPENT(HOME))
    bench.accept(fleet.image.sign(fleet.release(OTHER_IMAGE)))
    after = bench.state.row(SPENT(HOME))
    assert before is not None
    assert after is not None
    assert after.state_bytes - before.state_bytes > 32 + 32 + 16
    assert after.entries == before.entries + 1


# --- membership ---


def test_everybody_draws_the_same_places_and_a_share_holds_the_smaller_ones() -> None:
    vehicles = [seed(f"vehicle {n}")[:16] for n in range(2_000)]
    first, all_ = ({one for one in vehicles if is_member(CAMPAIGN, one, share)} for share in (WHOLE // 10, WHOLE))
    assert len(first) == pytest.approx(200, abs=60)
    assert first < all_ == {*vehicles}
    assert count_members(CAMPAIGN, vehicles, PHASES) == [len(first), 2_000]
    assert not any(is_member(CAMPAIGN, one, 0) for one in vehicles)
    assert {one for one in vehicles if is_member(OTHER_CAMPAIGN, one, WHOLE // 10)} != first
    later = seed("a vehicle of tomorrow")[:16]
    assert draw(CAMPAIGN, later) == draw(CAMPAIGN, later) < WHOLE
