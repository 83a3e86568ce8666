"""`tally overlay attach|detach|relay`: relays come and go by the next plan, which administrators sign as any other."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Fleet, done, refused
from ledger_world import seed
from test_overlay_commands import bring_into_force, enrolled, found, identifier, written

from tallystick.client.plan_file import PlanFile, find_node, write_plan
from tallystick.crypto.signatures import SigningKey
from tallystick.ledger.contracts.plans import find_plan
from tallystick.trust.plan import Plan, node_id

LINK = seed("link of a newcomer").hex()


@pytest.fixture(scope="module")
def relays(fleet: Fleet) -> list[str]:
    return enrolled(fleet, "member", 8)


@pytest.fixture(scope="module")
def harbour(fleet: Fleet, relays: list[str], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An overlay with a plan in force, of six of the relays; the owner alone signs for it."""
    owner = identifier(fleet.owner)
    made = done("overlay", "found", fleet.folder, "harbour", owner, "--yes", "--json").json["overlay"]
    file = written(tmp_path_factory.mktemp("harbour"), "harbour", relays)
    first = fleet.stack.node.ledger.height + 30
    done("overlay", "plan", "sign", file, "--from", first, "--home", fleet.owner)
    done("overlay", "plan", "submit", file, "--home", fleet.owner)
    return bytes.fromhex(made)


def newest(fleet: Fleet, overlay: bytes, version: int) -> Plan:
    plan = fleet.stack.node.ledger.query(lambda state: find_plan(state.row, overlay, version))
    assert plan is not None
    return plan


def newcomer(relay: str, file: Path) -> list[object]:
    return [relay, "--address", f"{relay[:8]}.example:7443", "--link-key", LINK, "--to", file]


def test_one_administrator_attaches_and_detaches_at_once(
    fleet: Fleet, harbour: bytes, relays: list[str], tmp_path: Path
) -> None:
    more, less, home = tmp_path / "more.toml", tmp_path / "less.toml", ("--home", fleet.owner)
    error, hint = refused(3, "overlay", "detach", "harbour", relays[0], "--to", less, *home)
    assert "2 relays would be left" in error
    assert "attach first" in hint
    assert not less.exists()
    seat = [*newcomer(relays[6], more), "--operator", "acme", "--host", "rack-1"]
    told = done("overlay", "attach", "harbour", "hub", *seat, "--sign", "--submit", *home, "--json").json
    assert (told["version"], told["needed"], told["relays"], told["missing"]) == (2, 3, 4, 0)
    hub = newest(fleet, harbour, 2).nodes[0]
    assert [one.identifier.hex() for one in hub.relays] == [*relays[:3], relays[6]]
    assert (hub.relays[3].link_key.hex(), hub.relays[3].operator, hub.relays[3].host) == (LINK, "acme", "rack-1")
    # Plan 2 does not count yet; whoever leaves now leaves it, and the newcomer stays.
    said = done("overlay", "detach", "harbour", relays[0], "--to", less, "--submit", "--from", 90_000, *home)
    assert "leaves virtual node" in said.out
    assert "2 of 3 are needed" in said.out
    assert "plan 3 counts from height 90000 on" in said.out
    assert [one.identifier.hex() for one in newest(fleet, harbour, 3).nodes[0].relays] == [*relays[1:3], relays[6]]
    assert "exists already" in refused(2, "overlay", "detach", "harbour", relays[1], "--to", less, *home)[0]


def test_where_two_must_sign_the_file_goes_from_one_to_the_other(
    fleet: Fleet, relays: list[str], tmp_path: Path
) -> None:
    fresh, overlay = enrolled(fleet, "pier", 7), found(fleet, "pier")
    first = written(tmp_path, "pier", fresh)
    bring_into_force(fleet, first)
    file, seat = (
        tmp_path / "next.toml",
        ("overlay", "attach", "pier", "edge", *newcomer(fresh[6], tmp_path / "next.toml")),
    )
    error, hint = refused(2, *seat, "--submit", "--home", fleet.owner)
    assert "2 administrators must sign" in error
    assert "one sign after the other" in hint
    assert not file.exists()
    said = done(*seat, "--names", first, "--sign", "--home", fleet.owner)
    assert "1 signature of 2" in said.out
    assert said.err.endswith(f"next: tally overlay plan sign {file}\n")
    assert [node["name"] for node in tomllib.loads(file.read_text())["nodes"]] == ["hub", "edge"]
    bring_signed = done("overlay", "plan", "sign", file, "--home", fleet.car, "--json").json
    assert (bring_signed["signed"], bring_signed["missing"]) == (2, 0)
    done("overlay", "plan", "submit", file, "--home", fleet.reader)
    assert len(newest(fleet, overlay, 2).node(node_id(overlay, "edge")).relays) == 4


def test_a_mistake_is_named_and_nothing_is_written(
    fleet: Fleet, harbour: bytes, relays: list[str], tmp_path: Path
) -> None:
    file, home = tmp_path / "next.toml", ("--home", fleet.owner)
    for code, words, node, relay, link in (
        (2, "64 hexadecimal digits", "hub", relays[7], "5a"),
        (2, "is not enrolled", "hub", "00" * 16, LINK),
        (3, "no virtual node", "nowhere", relays[7], LINK),
        (3, "a relay is listed twice", "hub", relays[4], LINK),
    ):
        seat = relay, "--address", "a.example:1", "--link-key", link, "--to", file
        assert words in refused(code, "overlay", "attach", "harbour", node, *seat, *home)[0]
    assert "no relay" in refused(2, "overlay", "detach", "harbour", relays[7], "--to", file, *home)[0]
    found(fleet, "quay")
    assert "no plan yet" in refused(2, "overlay", "detach", "quay", relays[0], "--to", file, *home)[0]
    assert not file.exists()


def test_a_plan_is_suggested_from_offers_and_paths_and_submitted_at_once(fleet: Fleet, tmp_path: Path) -> None:
    fresh, home = enrolled(fleet, "dock", 8), ("--home", fleet.owner)
    overlay = done("overlay", "found", fleet.folder, "dock", identifier(fleet.owner), "--yes", "--json").json["overlay"]
    first, later = written(tmp_path, "dock", fresh), tmp_path / "later.toml"
    done("overlay", "plan", "sign", first, *home)
    done("overlay", "plan", "submit", first, *home)
    suggest = ("overlay", "plan", "suggest", "dock", "--to", later, *home)
    assert done(*suggest).out == "plan 1 stays as it is\n"
    offers, paths = tmp_path / "offers.toml", tmp_path / "paths.toml"
    offers.write_text(
        "".join(
            f'[[relays]]\nprincipal = "{one}"\naddress = "{one[:8]}:1"\nlink_key = "{seed(one).hex()}"\n'
            for one in fresh[6:]
        )
    )
    paths.write_text('[[paths]]\nnodes = ["edge", "hub"]\n')
    said = done(*suggest, "--relays", offers, "--paths", paths, "--submit", "--from", 90_000)
    assert f"virtual node {node_id(bytes.fromhex(overlay), 'edge').hex()}: 3 of 5 are needed, before 2 of 3" in said.out
    assert "plan 2 counts from height 90000 on" in said.out
    assert {one.identifier.hex() for one in newest(fleet, bytes.fromhex(overlay), 2).nodes[1].relays} == {*fresh[3:]}
    paths.write_text('[[paths]]\nnodes = ["edge"]\n')
    assert "is on no path" in refused(2, *suggest[:4], "--to", tmp_path / "x", "--paths", paths, *home)[0]


def test_a_node_tells_what_a_plan_says_of_it(fleet: Fleet) -> None:
    told, keys = done("overlay", "relay", fleet.folder, "--json").json, fleet.stack.node.keys
    assert (told["principal"], told["key"]) == (keys.certificate.subject.hex(), keys.key.public.raw.hex())
    link = SigningKey.from_seed(keys.key.derive("tallystick link key 1")).public.raw
    assert told["link_key"] == link.hex() != told["key"]


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_written_plan_is_read_as_the_same_plan_whatever_relays_are_called(
    fleet: Fleet, harbour: bytes, tmp_path: Path, suffix: str
) -> None:
    plan = newest(fleet, harbour, 1)
    hub, edge = plan.nodes
    odd = replace(hub.relays[0], operator='"\n[[nodes]]\n\\u0041 = \x7f\x00', host="Ünder the 🌉'''")
    plan = replace(plan, nodes=(replace(hub, relays=(odd, *hub.relays[1:])), edge))
    keys = {relay.identifier: relay.key for node in plan.nodes for relay in node.relays}
    for names in ({}, {hub.identifier: "hub"}):
        file = tmp_path / f"plan.{suffix}"
        write_plan(file, "harbour", plan, names)
        assert PlanFile.read(file).plan(harbour, 1, bytes.fromhex, keys.__getitem__) == plan
    text = file.read_text()
    nodes = (json.loads(text) if suffix == "json" else tomllib.loads(text))["nodes"]
    assert [(one["name"], one.get("parent")) for one in nodes] == [("hub", None), (edge.identifier.hex(), "hub")]
    assert find_node(harbour, edge.identifier.hex()) == find_node(harbour, "edge") == edge.identifier
