"""A live plan: what the ledger counts as failed is replaced, what liars say is not, and nobody is moved about."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_world import Actor, Bench, World
from ledger_world import bench as bench
from ledger_world import world as world
from overlay_ledger import EDGE, HUB, OVERLAY, RIM, OverlayWorld, dealt, seat
from without import without

from tallystick.client.placement import OverlayPath, PlacementLimits, RelayOffer, place
from tallystick.client.plan_suggestion import OfferedRelay, Suggestion, all_roads, read_offers, read_roads, suggest
from tallystick.errors import Misuse
from tallystick.ledger import entries
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.plan import Plan


@pytest.fixture
def overlay(bench: Bench, world: World) -> OverlayWorld:
    found = OverlayWorld(world)
    found.stand(bench)
    return found


@pytest.fixture
def spares(bench: Bench, overlay: OverlayWorld) -> list[Actor]:
    found = [overlay.world.actor(f"spare {n}", SubjectKind.NODE, ALL_TENANTS) for n in range(3)]
    bench.accept(overlay.world.authority.sign(*(entries.enrol(one.certificate) for one in found)))
    return found


def suggested(bench: Bench, plan: Plan, *spares: Actor, version: int | None = None) -> Suggestion:
    offers = [OfferedRelay(seat(one), 5) for one in spares]
    return suggest(plan, version or plan.version, bench.state.row, offers, all_roads(plan), bytes.hex)


def suspect(bench: Bench, plan: Plan, relay: Actor, *accusers: Actor) -> None:
    bench.play(*((one, entries.suspect(OVERLAY, plan.version, relay.id), None) for one in accusers))


def members(plan: Plan, node: bytes) -> list[bytes]:
    return [relay.identifier for relay in plan.node(node).relays]


# --- who is replaced ---


def test_a_relay_that_f_plus_one_suspect_is_replaced(bench: Bench, overlay: OverlayWorld, spares: list[Actor]) -> None:
    plan, silent = overlay.plan(), overlay.hub[0]
    suspect(bench, plan, silent, *overlay.edge[:2])
    made = suggested(bench, plan, spares[0])
    assert members(made.plan, HUB) == [overlay.hub[1].id, overlay.hub[2].id, spares[0].id]
    assert [members(made.plan, node.identifier) for node in made.plan.nodes[1:]] == [
        members(plan, node.identifier) for node in plan.nodes[1:]
    ]
    hub = f"virtual node {HUB.hex()}"
    assert made.lines[:2] == [
        f"{hub}: {silent.id.hex()} leaves, suspected or convicted",
        f"{hub}: {spares[0].id.hex()} comes",
    ]
    overlay.bring_plan(bench, made.plan)  # the ledger takes it
    again = suggested(bench, made.plan, silent, spares[0])
    assert again.plan is made.plan  # and it settles: the silent one is not brought back, though somebody offers it
    assert f"{silent.id.hex()} is not seated: suspected or convicted before" in again.lines


def test_f_liars_of_every_virtual_node_evict_nobody_and_without_the_count_one_does(
    bench: Bench, overlay: OverlayWorld, spares: list[Actor]
) -> None:
    plan, honest = overlay.plan(), overlay.hub[0]
    suspect(bench, plan, honest, overlay.edge[0], overlay.rim[0], overlay.hub[1])  # one of three each, all who may
    assert suggested(bench, plan, spares[0]).plan is plan
    with without("the count of accusers"):
        suspect(bench, plan, overlay.hub[2], overlay.edge[0])
    assert overlay.hub[2].id not in members(suggested(bench, plan, spares[0]).plan, HUB)


def test_a_convicted_relay_is_replaced_and_stays_away(bench: Bench, overlay: OverlayWorld, spares: list[Actor]) -> None:
    plan, liar = overlay.plan(), overlay.rim[2]
    told = [dealt(liar, story=story)[0] for story in ("", "another")]
    bench.play((overlay.world.sensor, entries.two_sets(liar.id, liar.key.public.raw, *told), None))
    made = suggested(bench, plan, spares[0])
    assert members(made.plan, RIM) == [overlay.rim[0].id, overlay.rim[1].id, spares[0].id]
    overlay.bring_plan(bench, made.plan)
    # Where an administrator attached it again, it is still convicted, and goes with the next suggestion.
    back = replace(plan, version=3)
    overlay.bring_plan(bench, back)
    assert members(suggested(bench, back, spares[0]).plan, RIM) == members(made.plan, RIM)


def test_a_suspicion_counts_for_a_plan_that_does_not_count_yet(
    bench: Bench, overlay: OverlayWorld, spares: list[Actor]
) -> None:
    """Plan 2, about something else, is on the ledger already; plan 1 is in force, and what was said under it stands."""
    plan, silent = overlay.plan(), overlay.edge[1]
    suspect(bench, plan, silent, *overlay.hub[:2])
    coming = replace(plan, version=2)
    assert silent.id not in members(suggested(bench, coming, spares[0], version=1).plan, EDGE)
    assert suggested(bench, coming, spares[0], version=2).plan is coming  # it has not been silent under that one


def test_without_a_relay_to_take_the_seat_it_says_so(bench: Bench, overlay: OverlayWorld) -> None:
    suspect(bench, overlay.plan(), overlay.hub[0], *overlay.edge[:2])
    with pytest.raises(Misuse, match="11 relays do not seat 4 virtual nodes") as refused:
        suggested(bench, overlay.plan())
    assert "offer more relays" in str(refused.value.hint)


def test_replicas_go_to_where_failures_are(bench: Bench, overlay: OverlayWorld, spares: list[Actor]) -> None:
    plan = overlay.plan()
    assert suggested(bench, plan, spares[0]).plan is plan  # one alone would make an even size
    suspect(bench, plan, overlay.hub[0], *overlay.edge[:2])
    made = suggested(bench, plan, *spares)
    assert members(made.plan, HUB)[:2] == [overlay.hub[1].id, overlay.hub[2].id]
    assert {*members(made.plan, HUB)[2:]} == {one.id for one in spares}
    assert f"virtual node {HUB.hex()}: 3 of 5 are needed, before 2 of 3" in made.lines
    assert {*made.lines} >= {f"virtual node {HUB.hex()}: {one.id.hex()} comes" for one in spares}


def test_where_more_leave_than_may_fail_it_warns(bench: Bench, overlay: OverlayWorld, spares: list[Actor]) -> None:
    plan = overlay.plan()
    for silent in overlay.edge[:2]:
        suspect(bench, plan, silent, *overlay.hub[:2])
    assert any("more leave than may fail" in line for line in suggested(bench, plan, *spares).lines)


# --- seats ---

NODES = ("A", "B", "C")


@given(st.lists(st.tuples(st.sampled_from(("", *NODES)), st.integers(0, 6)), min_size=9, max_size=30), st.data())
def test_nobody_moves_and_those_who_are_there_come_first(told: list[tuple[str, int]], data: st.DataObject) -> None:
    relays = [
        RelayOffer(f"r{at:02}", f"operator {of}", f"host {at}", at % 3, seated) for at, (seated, of) in enumerate(told)
    ]
    failed = {node: data.draw(st.integers(0, 9)) for node in NODES}
    try:
        placed = place([OverlayPath("P", NODES)], relays, failed, PlacementLimits(), once=False)
    except Misuse:
        return
    found = {one.name: one for one in relays}
    for node, names in placed.seats.items():
        assert all(found[name].seat in ("", node) for name in names)


def test_newcomers_that_are_quicker_push_nobody_out() -> None:
    there = [RelayOffer(f"r{at}", f"o{at}", f"h{at}", 50, "A") for at in range(3)]
    quick = [RelayOffer(f"q{at}", f"p{at}", f"i{at}", 1) for at in range(4)]
    alone = [OverlayPath("P", ("A",))]
    assert {*place(alone, [*there, *quick], {}, PlacementLimits(size=5), once=False).seats["A"]} >= {"r0", "r1", "r2"}
    assert place(alone, [*there, *quick], {}, PlacementLimits(size=3), once=False).seats["A"] == ("r0", "r1", "r2")


# --- the files ---

OFFER = """
[[relays]]
principal = "{0}"
address = "a.example:1"
link_key = "{0}{0}"
latency_ms = 12
"""
PATHS = """
[[paths]]
nodes = [{0}]
weight = 0.5
[limits]
latency_ms = 200
"""


def quoted(*nodes: bytes) -> str:
    return ", ".join(f'"{node.hex()}"' for node in nodes)


def test_offers_and_paths_are_read(overlay: OverlayWorld, tmp_path: Path) -> None:
    offers, paths, plan = tmp_path / "offers.toml", tmp_path / "paths.toml", overlay.plan()
    offers.write_text(OFFER.format("5a" * 16))
    [(relay, latency_ms)] = read_offers(offers, bytes.fromhex, lambda principal: principal * 2)
    assert (relay.identifier, relay.link_key, relay.operator, latency_ms) == (b"Z" * 16, b"Z" * 32, "", 12)
    paths.write_text(PATHS.format(quoted(EDGE, HUB, RIM)))
    [path], limits = read_roads(paths, plan)
    assert (path.publisher, path.nodes) == (EDGE.hex(), (EDGE.hex(), HUB.hex(), RIM.hex()))
    assert (float(path.weight), float(path.rate), limits.latency_ms, limits.size) == (0.5, 1.0, 200, 7)
    with pytest.raises(Misuse, match="is on no path"):
        suggest(plan, 1, lambda key: None, [], read_roads(paths, plan), bytes.hex)


def test_without_a_file_every_leaf_talks_to_every_other(overlay: OverlayWorld) -> None:
    [path] = all_roads(overlay.plan()).paths  # the edge, and what is behind the rim
    assert len(path.nodes) == 4
    alone = replace(overlay.plan(), nodes=overlay.plan().nodes[:1])
    assert all_roads(alone).paths == [OverlayPath(HUB.hex(), (HUB.hex(),))]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[[paths]]", "[[path]]", 'unknown key "path"'),
        ("weight = 0.5", "weight = nan", "a number above zero expected"),
        ("weight = 0.5", "weight = true", "a number above zero expected"),
        ("latency_ms = 200", "latency = 200", 'unknown key "latency"'),
        ("latency_ms = 200", "latency_ms = -1", "a whole number expected"),
        (HUB.hex(), "hub", 'no virtual node "hub"'),
        (quoted(EDGE, HUB, RIM), quoted(EDGE, RIM), "are no neighbours"),
        (quoted(EDGE, HUB, RIM), "", "a list of virtual nodes expected"),
    ],
)
def test_a_mistake_in_the_paths_is_named(overlay: OverlayWorld, tmp_path: Path, old: str, new: str, words: str) -> None:
    file = tmp_path / "paths.toml"
    file.write_text(PATHS.format(quoted(EDGE, HUB, RIM)).replace(old, new))
    with pytest.raises(Misuse, match=words) as refused:
        read_roads(file, overlay.plan())
    assert "paths.toml" in str(refused.value)


def test_all_who_may_suspect_agree_on_whom(bench: Bench, overlay: OverlayWorld, spares: list[Actor]) -> None:
    """Administrators who make the plan from the same rows come to the same bytes, in whichever order offers stand."""
    plan = overlay.plan()
    suspect(bench, plan, overlay.hub[0], *overlay.edge[:2])
    made = {suggested(bench, plan, *order).plan.encode() for order in permutations(spares)}
    assert len(made) == 1
