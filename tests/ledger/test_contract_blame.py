"""Proof lowers a relay's reputation, suspicion never does; and f liars can do neither to an honest one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from ledger_world import Actor, Bench, World, seed, token
from ledger_world import bench as bench
from ledger_world import world as world
from overlay_ledger import HEART, OVERLAY, OverlayWorld, dealt, falsified
from without import without

from tallystick import wire
from tallystick.crypto.group import NEUTRAL
from tallystick.ledger import entries
from tallystick.ledger.contracts import blame, reputation
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.right import Right
from tallystick.trust.shares import ShareList, ShareSet

AIR = token("air")


@pytest.fixture
def overlay(bench: Bench, world: World) -> OverlayWorld:
    found = OverlayWorld(world)
    found.stand(bench)
    return found


def score(bench: Bench, who: Actor) -> int:
    return reputation.score(bench.state, who.id)


def key_of(who: Actor) -> bytes:
    return who.key.public.raw


def two_sets(liar: Actor, one: ShareSet, other: ShareSet) -> bytes:
    return entries.two_sets(liar.id, key_of(liar), one, other)


def false_share(liar: Actor, shares: ShareSet, listed: ShareList, number: int | None = None) -> bytes:
    return entries.false_share(liar.id, key_of(liar), shares, listed, number)


# --- proof ---


def test_two_stories_about_one_lane_key_convict_their_teller_once(bench: Bench, overlay: OverlayWorld) -> None:
    liar, world = overlay.edge[0], overlay.world
    one, other, third = (dealt(liar, story=story)[0] for story in ("", "another", "a third"))
    bench.play((world.sensor, two_sets(liar, one, other), None))  # whoever brings it
    assert score(bench, liar) == 90
    assert blame.is_suspected(bench.state.row, liar.id, 1)  # so the lease goes to another
    bench.play(
        (world.sensor, two_sets(liar, other, one), "known-evidence"),
        (world.sensor, two_sets(liar, one, third), "known-evidence"),
        (world.sensor, false_share(liar, one, falsified(liar, dealt(liar)[1][1])), "known-evidence"),
        (world.sensor, two_sets(liar, *(dealt(liar, "lane 2", story=story)[0] for story in ("", "b"))), None),
    )
    assert score(bench, liar) == 80


def test_what_is_no_contradiction_proves_nothing(bench: Bench, overlay: OverlayWorld) -> None:
    honest, liar, world = overlay.edge[0], overlay.edge[1], overlay.world
    shares, _ = dealt(honest)
    foreign, _ = dealt(liar, story="another")
    unsigned = replace(shares, attempt=1).sign(liar.key)
    bench.play(
        (liar, two_sets(honest, shares, shares), "false-evidence"),
        (liar, two_sets(honest, shares, dealt(honest, attempt=1)[0]), "false-evidence"),  # the next attempt
        (liar, two_sets(honest, shares, dealt(honest, "lane 2")[0]), "false-evidence"),
        (liar, two_sets(honest, shares, foreign), "forged"),  # the liar's own signature
        (liar, two_sets(honest, shares, replace(foreign, signature=shares.signature)), "forged"),
        (liar, two_sets(honest, shares, unsigned), "forged"),
        (liar, entries.two_sets(honest.id, key_of(liar), foreign, dealt(liar)[0]), "false-evidence"),  # not its key
        (liar, entries.two_sets(honest.id, seed("no key"), shares, foreign), "false-evidence"),
        (liar, wire.encode([96, honest.id, key_of(honest), shares.encode(), b"x"]), "malformed"),
        (world.doctor, two_sets(honest, shares, ShareSet.decode(shares.encode())), "false-evidence"),
    )
    assert (score(bench, honest), score(bench, liar)) == (100, 100)
    assert not blame.is_suspected(bench.state.row, honest.id, 1)


def test_a_share_that_does_not_fit_its_commitments_convicts(bench: Bench, overlay: OverlayWorld) -> None:
    liar, world = overlay.edge[0], overlay.world
    shares, lists = dealt(liar)
    bench.play((world.doctor, false_share(liar, shares, falsified(liar, lists[2])), None))
    assert (score(bench, liar), blame.is_suspected(bench.state.row, liar.id, 1)) == (90, True)


def test_a_list_of_another_length_convicts_and_so_does_a_point_that_is_none(
    bench: Bench, overlay: OverlayWorld
) -> None:
    doctor, (one, two, _) = overlay.world.doctor, overlay.edge
    shares, lists = dealt(one)
    short = replace(lists[1], encoded=()).sign(one.key)
    made, others = dealt(two)
    pointless = replace(made, lineages=(made.lineages[0]._replace(fresh=(bytes(NEUTRAL),)),)).sign(two.key)
    listed = replace(others[1], set_hash=pointless.hash).sign(two.key)
    bench.play(
        (doctor, false_share(one, shares, short), None),
        (doctor, false_share(two, pointless, listed), None),
    )
    assert (score(bench, one), score(bench, two)) == (90, 90)


def test_false_proofs_of_a_false_share_harm_nobody(bench: Bench, overlay: OverlayWorld) -> None:
    honest, liar = overlay.edge[:2]
    shares, lists = dealt(honest)
    bench.play(
        *((liar, false_share(honest, shares, lists[index]), "false-evidence") for index in lists),
        (liar, false_share(honest, shares, lists[1], number=1), "malformed"),  # there is no such share
        (liar, false_share(honest, shares, lists[1], number=35), "malformed"),
        (liar, false_share(honest, shares, falsified(liar, lists[1])), "forged"),  # the liar altered it
        (liar, false_share(honest, shares, replace(falsified(liar, lists[1]), signature=lists[1].signature)), "forged"),
        (liar, false_share(honest, shares, dealt(honest, "lane 2")[1][1]), "false-evidence"),  # of another set
        (liar, false_share(honest, dealt(honest, story="b")[0], lists[1]), "false-evidence"),
    )
    assert score(bench, honest) == 100
    assert set(blame.failures(bench.state.row, overlay.plan()).values()) == {0}


def test_without_the_judgement_of_a_share_whoever_sends_one_is_convicted(bench: Bench, overlay: OverlayWorld) -> None:
    honest, liar = overlay.edge[:2]
    shares, lists = dealt(honest)
    with without("the judgement of a share"):
        bench.play((liar, false_share(honest, shares, lists[1]), None))
    assert score(bench, honest) == 90


def test_a_publisher_whose_shares_miss_its_commitments_is_convicted_too(bench: Bench, overlay: OverlayWorld) -> None:
    publisher = overlay.world.monitor
    shares, lists = dealt(publisher)
    bench.play((overlay.edge[0], false_share(publisher, shares, falsified(publisher, lists[1])), None))
    assert (score(bench, publisher), bench.state.row(blame.FAULTS(publisher.id))) == (90, None)


def test_a_key_that_was_replaced_since_still_convicts(bench: Bench, overlay: OverlayWorld) -> None:
    liar, world = overlay.edge[0], overlay.world
    proof = two_sets(liar, *(dealt(liar, story=story)[0] for story in ("", "b")))
    new = world.actor("new key", SubjectKind.NODE, ALL_TENANTS).key
    bench.play((liar, entries.replace(world.certify(new, SubjectKind.NODE, ALL_TENANTS, subject=liar.id)), None))
    bench.play((world.doctor, proof, None))
    assert score(bench, liar) == 90


def test_a_liar_and_its_friend_cannot_fill_blocks_with_proofs(bench: Bench, overlay: OverlayWorld) -> None:
    liar, doctor = overlay.edge[0], overlay.world.doctor
    proofs = [two_sets(liar, *(dealt(liar, f"lane {n}", story=story)[0] for story in ("", "b"))) for n in range(10)]
    bench.play(*((doctor, proof, None) for proof in proofs[:9]), (doctor, proofs[9], "blacklisted"))
    assert reputation.is_blacklisted(bench.state, liar.id)


# --- suspicion ---


def nodes(overlay: OverlayWorld) -> list[str]:
    return [node.identifier.hex() for node in overlay.plan().nodes]


def suspect(relay: Actor, version: int = 1, topic: bytes = b"") -> bytes:
    return entries.suspect(OVERLAY, version, relay.id, topic)


def is_suspected(bench: Bench, relay: Actor, version: int = 1) -> bool:
    return blame.is_suspected(bench.state.row, relay.id, version)


@pytest.mark.parametrize("accusers", ["hub", "edge", "rim"])
def test_f_plus_one_of_one_virtual_node_make_a_relay_suspected(
    bench: Bench, overlay: OverlayWorld, accusers: str
) -> None:
    accused = overlay.hub[0]
    first, second = [one for one in overlay.relays[accusers] if one is not accused][:2]
    bench.play((first, suspect(accused), None))
    assert not is_suspected(bench, accused)
    bench.play((second, suspect(accused), None))
    assert is_suspected(bench, accused)
    assert score(bench, accused) == 100


def test_f_liars_of_every_virtual_node_together_cannot(bench: Bench, overlay: OverlayWorld) -> None:
    """One of each; where those of different virtual nodes were added up, they would."""
    accused = overlay.hub[0]
    liars = [overlay.hub[1], overlay.edge[1], overlay.rim[1]]
    bench.play(*((liar, suspect(accused), None) for liar in liars))
    assert not is_suspected(bench, accused)
    assert set(blame.failures(bench.state.row, overlay.plan()).values()) == {0}


def test_without_the_count_one_liar_has_an_honest_relay_replaced(bench: Bench, overlay: OverlayWorld) -> None:
    with without("the count of accusers"):
        bench.play((overlay.hub[1], suspect(overlay.hub[0]), None))
    assert is_suspected(bench, overlay.hub[0])


def test_an_accuser_counts_once(bench: Bench, overlay: OverlayWorld) -> None:
    accused, liar = overlay.edge[0], overlay.edge[1]
    bench.play((liar, suspect(accused), None), *((liar, suspect(accused), "known-accusation") for _ in range(3)))
    bench.play((liar, [suspect(overlay.edge[2]), suspect(accused)], "known-accusation", 1))
    assert not is_suspected(bench, accused)


def test_who_is_not_near_cannot_tell(bench: Bench, overlay: OverlayWorld) -> None:
    accused, world = overlay.edge[0], overlay.world
    outside = world.actor("outside", SubjectKind.NODE, ALL_TENANTS)
    bench.play(
        (outside, entries.enrol(outside.certificate), None),
        (outside, suspect(accused), "not-neighbour"),
        (world.node, suspect(accused), "not-neighbour"),
        (overlay.rim[0], suspect(accused), "not-neighbour"),  # a sibling
        (overlay.far[0], suspect(overlay.hub[0]), "not-neighbour"),  # two hops away
        (overlay.far[0], suspect(overlay.rim[0]), None),
        (accused, suspect(accused), "not-neighbour"),  # itself
        (world.authority, suspect(accused), "not-neighbour"),
        (overlay.hub[0], suspect(outside), "unknown-relay"),
        (overlay.hub[0], suspect(accused, topic=HEART), "not-neighbour"),
        (overlay.hub[0], entries.suspect(seed("none")[:16], 1, accused.id), "no-plan"),
    )


def test_suspicion_lapses_with_the_plan(bench: Bench, overlay: OverlayWorld) -> None:
    accused, (one, two, _) = overlay.edge[0], overlay.hub
    bench.play((one, suspect(accused), None))
    overlay.bring_plan(bench, overlay.plan(2))
    bench.play(
        (two, suspect(accused), "stale-plan"),
        (two, suspect(accused, 3), "stale-plan"),
        (two, suspect(accused, 2), None),
    )
    assert not is_suspected(bench, accused, 2)  # the word of before does not count with it
    bench.play((one, suspect(accused, 2), None))
    assert is_suspected(bench, accused, 2)
    overlay.bring_plan(bench, overlay.plan(3))
    assert not is_suspected(bench, accused, 3)


def test_a_subscriber_s_word_is_kept_and_counts_for_nothing(bench: Bench, overlay: OverlayWorld) -> None:
    world, accused = overlay.world, overlay.edge[0]
    monitor = world.monitor
    bench.play(
        (monitor, suspect(accused, topic=HEART), "no-right"),
        (world.doctor, entries.grant(HEART, monitor.id, Right.READ), None),
        (monitor, suspect(accused), "malformed"),
        (monitor, suspect(accused, topic=AIR), "not-entrusted"),
        (monitor, suspect(accused, 2, topic=HEART), "stale-plan"),
        *((monitor, suspect(accused, topic=HEART), None) for _ in range(3)),
    )
    assert not is_suspected(bench, accused)


def test_failures_count_from_f_plus_one_reporters_once_for_a_plan(bench: Bench, overlay: OverlayWorld) -> None:
    edge, hub = overlay.edge[0], overlay.hub[0]
    for accuser, accused in product([*overlay.hub[1:], *overlay.edge[1:]], [edge, hub]):
        bench.play((accuser, suspect(accused), None))
    bench.play((overlay.rim[0], suspect(overlay.hub[1]), None))  # one liar
    by_name = dict(zip(("hub", "edge", "rim", "far"), nodes(overlay), strict=True))
    assert blame.failures(bench.state.row, overlay.plan()) == {
        by_name["hub"]: 1,
        by_name["edge"]: 1,
        by_name["rim"]: 0,
        by_name["far"]: 0,
    }
    overlay.bring_plan(bench, overlay.plan(2))
    for accuser in overlay.hub[1:]:
        bench.play((accuser, suspect(edge, 2), None))
    proof = two_sets(edge, *(dealt(edge, story=story)[0] for story in ("", "b")))
    bench.play((overlay.world.doctor, proof, None))
    assert blame.failures(bench.state.row, overlay.plan(2))[by_name["edge"]] == 3
