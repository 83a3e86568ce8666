"""*Updates*, *overlay*, *mesh* and *fabric*: pages that are there where an instance, or an identity, has the part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import console_contents
import pytest
from console_contents import FABRIC, bring_fleet, bring_town, choose
from firmware_world import CAMPAIGN, IMAGE, OTHER_IMAGE, FirmwareWorld
from ledger_world import seed
from overlay_ledger import EDGE, LEASE_MS, OVERLAY, OverlayWorld
from parts_world import HOSTILE, NOWHERE, PartsWorld, visit_of

from tallystick.carriers.mesh.direct import join_mesh
from tallystick.console.pages import members, overlay, updates
from tallystick.console.viewer import Viewer
from tallystick.errors import Malformed, Misuse, Unavailable
from tallystick.identity.choices import FILE
from tallystick.ledger import entries
from tallystick.ledger.contracts import plans


@pytest.fixture
def parts(tmp_path: Path) -> PartsWorld:
    return PartsWorld(tmp_path)


def in_menu(viewer: Viewer) -> set[str]:
    every = (*updates.PAGES, *overlay.PAGES, *members.PAGES)
    return {page.path for page in every if page.in_menu and page.is_there(visit_of(viewer, page.path))}


def text_of(markup: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", markup))


def test_an_instance_without_parts_has_no_pages_of_them(parts: PartsWorld) -> None:
    with parts.viewing() as viewer:
        assert in_menu(viewer) == set()
        assert "Nothing was released yet" in updates.show_updates(visit_of(viewer, "updates"))
        assert "founded no overlay" in overlay.show_overlays(visit_of(viewer, "overlay"))
        assert "goes over a mesh" in members.show_mesh(visit_of(viewer, "mesh"))


# --- updates ---


def campaign(viewer: Viewer, fleet: FirmwareWorld, name: bytes = CAMPAIGN) -> str:
    given = {"token": fleet.campaigns.hex(), "campaign": name.hex()}
    return updates.show_campaign(visit_of(viewer, "updates", given))


@pytest.fixture
def fleet(parts: PartsWorld) -> FirmwareWorld:
    return bring_fleet(parts)


def test_releases_withdrawals_and_campaigns_with_their_heights(parts: PartsWorld, fleet: FirmwareWorld) -> None:
    parts.accept(fleet.image.sign(fleet.release(OTHER_IMAGE)))
    parts.accept(fleet.image.sign(fleet.withdraw(OTHER_IMAGE)))
    withdrawn = parts.height
    with parts.viewing() as viewer:
        assert in_menu(viewer) == {"updates"}
        page = updates.show_updates(visit_of(viewer, "updates"))
        assert "1 live release, 1 withdrawn, 1 campaign." in page
        assert page.index(OTHER_IMAGE.hex()) < page.index(IMAGE.hex())
        assert f"withdrawn at {withdrawn}" in text_of(page).replace("  ", " ")
        assert "1 of 2, 10 %" in page


def test_a_campaign_with_its_phases_counts_and_stops(parts: PartsWorld, fleet: FirmwareWorld) -> None:
    parts.accept(fleet.director.sign(fleet.report(1, 0, 3, 1)))
    parts.accept(fleet.director.sign(fleet.stop()))
    stopped = parts.height
    with parts.viewing() as viewer:
        page = text_of(campaign(viewer, fleet))
        assert "3 succeeded, 1 failed (0 of them forgiven), in 1 report" in page
        assert "stopped by somebody&#x27;s word" in page
        assert f"{stopped} 2026" in page.replace("  ", " "), "the height of the stop, and when it was"
        assert f"tally ota campaign resume {CAMPAIGN.hex()}" in page
        assert "5 succeeded 2 failed 60 s open" in page.replace("  ", " ")
    parts.accept(fleet.owner.sign(fleet.resume()))
    parts.accept(fleet.director.sign(fleet.report(2, 0, 3, 3)))
    with parts.viewing() as viewer:
        page = campaign(viewer, fleet)
        assert "one failure too many" in page
        assert "(1 of them forgiven)" in page
        assert "3 failed 60 s open" in text_of(page), "what was forgiven does not count"
        assert 'class="mark good">failed' not in page


def test_a_campaign_that_is_not_there(parts: PartsWorld, fleet: FirmwareWorld) -> None:
    with parts.viewing() as viewer:
        with pytest.raises(Misuse, match="no campaign"):
            campaign(viewer, fleet, seed("none")[:16])
        with pytest.raises(Misuse, match="an identifier of 32 digits"):
            campaign(viewer, fleet, b"short")


# --- the overlay ---


@pytest.fixture
def town(parts: PartsWorld) -> OverlayWorld:
    return bring_town(parts)


def of_overlay(viewer: Viewer, name: str = OVERLAY.hex(), **query: str) -> str:
    return overlay.show_overlay(visit_of(viewer, f"overlay/{name}", {"overlay": name}, **query))


def test_the_plan_in_force_its_tree_and_the_leases(parts: PartsWorld, town: OverlayWorld) -> None:
    with parts.viewing() as viewer:
        assert in_menu(viewer) == {"overlay"}
        assert f"overlay/{OVERLAY.hex()}" in overlay.show_overlays(visit_of(viewer, "overlay"))
        page = of_overlay(viewer)
        assert page.count("<circle") == 4
        assert page.count('<path d="M') == 3
        assert f"{EDGE.hex()[:8]}  2 of 3 needed, publishers enter" in page
        said = text_of(page)
        assert "fence 1, ends" in said
        assert "4 virtual nodes, 12 relays in force" in said.replace("  ", " ")
        assert "Nobody was accused." in said
    parts.grow(1 + LEASE_MS // 1000)
    with parts.viewing() as viewer:
        assert "fence 1, run out" in text_of(of_overlay(viewer))


def test_a_plan_to_come_is_not_in_force(parts: PartsWorld, town: OverlayWorld) -> None:
    first = parts.height + plans.MARGIN_BLOCKS + 2
    parts.accept(town.administrators[0].sign(town.signed(town.plan(2), first)))
    with parts.viewing() as viewer:
        said = text_of(of_overlay(viewer))
        assert f"2 {first} 4 virtual nodes, 12 relays to come" in said.replace("  ", " ")
        assert f"ledger/blocks/{first}" not in of_overlay(viewer), "no link to a height to come"


def test_suspicions_and_whom_they_make_suspected(parts: PartsWorld, town: OverlayWorld) -> None:
    one, two, three = town.edge
    parts.accept(two.sign(entries.suspect(OVERLAY, 1, one.id)))
    with parts.viewing() as viewer:
        assert "called silent under plan 1" in of_overlay(viewer)
        assert "suspected" not in of_overlay(viewer)
    parts.accept(three.sign(entries.suspect(OVERLAY, 1, one.id)))
    with parts.viewing() as viewer:
        assert "suspected 1 failure" in text_of(of_overlay(viewer)).replace("  ", " ")
        assert "1 suspected" in of_overlay(viewer)


def test_a_large_overlay_is_drawn_and_listed_in_part(parts: PartsWorld) -> None:
    names = [f"n{number}" for number in range(70)]
    town = OverlayWorld(parts.world, {name: names[number // 3] if number else "" for number, name in enumerate(names)})
    for part in (town.everybody[at : at + 100] for at in range(0, 300, 100)):
        parts.accept(parts.world.authority.sign(*(entries.enrol(one.certificate) for one in part)))
    parts.accept(parts.world.authority.sign(town.founding()))
    first = parts.height + plans.MARGIN_BLOCKS + 2
    parts.accept(town.administrators[0].sign(town.signed(town.plan(), first)))
    parts.grow(first - parts.height)
    with parts.viewing() as viewer:
        page = of_overlay(viewer)
        assert page.count("<circle") == overlay.DRAWN_MAX
        assert "10 more are not drawn" in page
        assert "skip=50" in page
        assert len(page) < 150_000
        assert page.count("ltd,") == of_overlay(viewer, skip="50").count("ltd,") == 50


def test_an_overlay_that_is_not_there(parts: PartsWorld) -> None:
    with parts.viewing() as viewer:
        for name in ("ab" * 16, HOSTILE):
            with pytest.raises(Misuse, match="no overlay"):
                of_overlay(viewer, name)


# --- mesh and fabric ---


@pytest.fixture
def own_node() -> Iterator[Callable[[object], str]]:
    with console_contents.own_node() as tell:
        yield tell


MESH = {**console_contents.MESH, "address": HOSTILE}


def test_what_the_own_node_of_a_mesh_tells(parts: PartsWorld, own_node: Callable[[object], str]) -> None:
    with parts.viewing() as viewer:
        choose(viewer, "mesh", own_node(MESH), HOSTILE)
        assert in_menu(viewer) == {"mesh"}
        page = members.show_mesh(visit_of(viewer, "mesh"))
        assert "900, of which 100 were said" in page
        assert "the word of the node at" in page
        assert "<script>alert" not in page
        assert page.count("&lt;script&gt;") == 2, "the address, and the name of the topic"
        assert len(page) < 5000
        own_node({**MESH, "joined": False})
        assert "tally mesh join TOPIC" in members.show_mesh(visit_of(viewer, "mesh"))
        odds: list[object] = [b"{", [], {}, {"joined": True}, {**MESH, "node": 7}]
        for odd in odds:
            own_node(odd)
            with pytest.raises(Malformed, match="tells what this release does not know"):
                members.show_mesh(visit_of(viewer, "mesh"))


def test_what_the_own_host_of_a_fabric_tells(parts: PartsWorld, own_node: Callable[[object], str]) -> None:
    with parts.viewing() as viewer:
        choose(viewer, "fabric", own_node(FABRIC), HOSTILE)
        assert in_menu(viewer) == {"fabric"}
        assert "7 late" in members.show_fabric(visit_of(viewer, "fabric"))


def test_an_identity_all_of_whose_topics_go_over_a_mesh_has_its_page(
    parts: PartsWorld, own_node: Callable[[object], str]
) -> None:
    with parts.viewing() as viewer:
        join_mesh(viewer.identity.home, "city")
        assert in_menu(viewer) == {"mesh"}
        viewer.identity = replace(viewer.identity, node_urls=(own_node(MESH),))
        page = members.show_mesh(visit_of(viewer, "mesh"))
        assert "mesh://city" in page
        assert "<dt>your topics</dt><dd>all</dd>" in page
        assert "900, of which 100 were said" in page


def test_an_own_node_that_is_away_is_said(parts: PartsWorld) -> None:
    with parts.viewing() as viewer:
        choose(viewer, "mesh", NOWHERE, HOSTILE)
        with pytest.raises(Unavailable):
            members.show_mesh(visit_of(viewer, "mesh"))
        assert viewer.asking.acquire(blocking=False), "the next page may ask"
        (viewer.identity.home / FILE).write_text("{")
        assert in_menu(viewer) == {"mesh", "fabric"}, "the page says what is wrong with the file"
        with pytest.raises(Misuse, match="not a choice of carriers"):
            members.show_mesh(visit_of(viewer, "mesh"))
