"""`tally mesh up`, `join` and `status`: rows over a mesh whose every key is the authority's."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from commands import Fleet, done, refused, running
from mesh_stack import MemberNode, is_in
from stack import CHEAP, PASSPHRASE, wait_until

from tallystick.carriers.mesh.station import MeshOutside
from tallystick.carriers.storage import Place
from tallystick.engines.mesh import ForwarderCrew, TrialMesh
from tallystick.identity.folder import Identity
from tallystick.node.instance import Folders, create_instance
from tallystick.node.processes import free_ports
from tallystick.node.settings import NodeSettings, read_settings
from tallystick.runtime.sources import SystemClock, SystemEntropy

NODES = 4


@pytest.fixture(scope="module")
def contacts(fleet: Fleet) -> Iterator[str]:
    """Of forwarders that run."""
    with running("mesh", "up", fleet.folder, "--nodes", NODES, "--beat", "0.25") as (process, told):
        assert len(told["nodes"]) == NODES
        yield Path(told["contacts"]).read_text().strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def member(fleet: Fleet, name: str, contacts: str, **more: str) -> tuple[Path, MemberNode]:
    """An enrolled principal, and its own node, which has no keys."""
    home = fleet.folder / "homes" / name
    done("principal", "enrol", done("principal", "invite", "--home", fleet.owner).out.strip(), "--home", home)
    return home, node_of(fleet, home, contacts, **more)


def node_of(fleet: Fleet, home: Path, contacts: str, **more: str) -> MemberNode:
    chosen = {
        "mesh_principal": Identity.load(home).principal.hex(),
        "mesh_listen": f"127.0.0.1:{free_ports(1)[0]}",
        "mesh_contacts": contacts,
        "mesh_beat_s": "0.25",
        **more,
    }
    settings = {**fleet.stack._node_settings, "carrier": "mesh://city", "port": 0, "carrier_settings": chosen}
    return MemberNode(fleet.stack, fleet.folder / f"node-of-{home.name}", NodeSettings(**settings))


def test_rows_travel_over_a_mesh_with_keys_from_the_authority(fleet: Fleet, contacts: str) -> None:
    (car, at_car), (reader, at_reader) = (member(fleet, name, contacts) for name in ("mesh-car", "mesh-reader"))
    try:
        done("right", "grant", "brakes", "mesh-car", "write", "--home", fleet.owner)
        done("right", "grant", "brakes", "mesh-reader", "read", "--home", fleet.owner)
        terms = done("mesh", "terms", "brakes", "--guise", "1", "--k-min", "9", "--home", fleet.owner)
        assert "brakes wears guise 1, and should have 9 members at least" in terms.out
        joined = done("mesh", "join", "brakes", "--publish", "--node-url", at_car.url, "--home", car)
        assert "in mesh city, with keys of 1 topic" in joined.out
        assert "note: topic brakes: anonymity is thin: fewer than 9 principals" in joined.err
        assert Identity.load(car).node_urls == (fleet.stack.node.url,)  # its other topics go where they went
        assert at_car.station._topics[0].guise == 1
        done("mesh", "join", "brakes", "--node-url", at_reader.url, "--home", reader)
        pseudonym = at_reader.station._topics[0].key.pseudonym
        wait_until(lambda: all(is_in(one.station, pseudonym) for one in (at_car, at_reader)))
        sent = done("publish", "brakes", "-", "--home", car, stdin=b'{"vin": "V", "seq": 7}\n')
        assert "1 row in 1 parcel to brakes, stored" in sent.out  # all that a mesh can tell
        assert "anonymity is thin" in sent.err
        anchored = refused(2, "publish", "brakes", "-", "--acks", "anchored", "--home", car, stdin=b"")
        assert anchored[0] == "error: acks=anchored: the mesh anchors nothing"
        place = Place(at_reader.station._topics[0].token, 0)
        wait_until(lambda: at_reader.carrier.storage.end(place) > 0)
        got = done("subscribe", "brakes", "--json", "--group", "dash", "--home", reader)
        assert got.rows[0]["seq"] == 7
        told = done("mesh", "status", "--json", "--home", car).json
        assert told["thin"] == [
            "brakes: anonymity is thin: fewer than 9 principals hold its mesh keys, the authority says"
        ]
        _look_at_group(reader)
        assert told["node"]["neighbours"] > 0
        assert told["topics"][0][3] is True
        assert len(done("mesh", "join", "--json", "--home", car).json["entry"]) > 100  # keys are looked at again
        done("mesh", "leave", "brakes", "--home", car)
        assert done("publish", "brakes", "-", "--home", car, stdin=b'{"vin": "V", "seq": 8}\n').out.endswith(
            "anchored\n"
        )
        assert at_car.mesh.kit is not None
        assert at_car.mesh.kit.topics == ()
    finally:
        for node in (at_car, at_reader):
            node.end()


@pytest.mark.long
def test_a_running_node_gets_later_keys_over_the_mesh(fleet: Fleet, contacts: str, tmp_path: Path) -> None:
    """Those of the topic and of the topic of keys, and a later certificate: without a word to the authority."""
    owner, named = tmp_path / "key-owner", {"mesh_home": str(fleet.folder / "homes" / "key-reader")}
    copytree(fleet.owner, owner)
    reader, at_reader = member(fleet, "key-reader", contacts, **named)
    at_owner = node_of(fleet, owner, contacts)
    try:
        schema = "update binary not null"
        done("topic", "create", "mesh-keys", "--schema", schema, "--padded", "--home", fleet.owner)
        for topic in ("brakes", "mesh-keys"):
            done("right", "grant", topic, "key-reader", "read", "--home", fleet.owner)
        done("right", "grant", "mesh-keys", "owner", "write", "--home", fleet.owner)
        done("mesh", "join", "mesh-keys", "--publish", "--node-url", at_owner.url, "--home", owner)
        done("mesh", "join", "brakes", "--updates", "mesh-keys", "--node-url", at_reader.url, "--home", reader)
        done("mesh", "join", "--home", reader)  # which keeps in mind where updates come
        pseudonym = at_owner.station._topics[0].key.pseudonym
        wait_until(lambda: all(is_in(one.station, pseudonym) for one in (at_owner, at_reader)))
        care, before = at_reader._care, at_reader.mesh.kit
        assert care is not None
        assert care.round() == 0
        told = done("mesh", "updates", "brakes", "--over", "mesh-keys", "--home", owner)
        assert "32 updates published over mesh-keys" in told.out
        fleet.stack.stop_authority()
        taken: list[int] = []
        try:
            wait_until(lambda: taken.append(care.round()) or sum(taken) == 2)
        finally:
            fleet.stack.start_authority()
        assert at_reader.mesh.kit is not None
        assert {one.token for one in at_reader.mesh.kit.topics} == {one.token for one in before.topics}  # type: ignore
        with running("mesh", "join", "--stay", "--home", reader) as (process, said):
            assert said["topics"] == 2
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
    finally:
        for node in (at_owner, at_reader):
            node.end()


@pytest.mark.long
def test_forwarders_whose_certificate_ends_get_a_later_one(fleet: Fleet, contacts: str) -> None:
    trial, machine = TrialMesh.prepare(fleet.folder, None), (SystemClock(), SystemEntropy())
    kit = trial.kits(*machine, lambda number: None)[0]
    early = replace(kit, until_ms=kit.until_ms - kit.epoch_ms)
    crew = ForwarderCrew.gather([early], free_ports(1), MeshOutside())
    try:
        trial.renew(crew, *machine)
        assert crew.stations[0].entry.until_ms == kit.until_ms
    finally:
        crew.stop()


def _look_at_group(reader: Path) -> None:
    """What was read in a group, at the node of who read."""
    listed = {one["group"]: one for one in done("group", "list", "--json", "--home", reader).json}
    assert (listed["dash"]["topics"], listed["dash"]["behind"]) == (["brakes"], None)
    assert _stands(reader) in (1, 2)  # with the parcel that closes the lane, if it has come
    assert (
        "nothing on a mesh is anchored"
        in refused(2, "group", "reset", "dash", "brakes", "--to", "latest", "--home", reader)[0]
    )
    done("group", "reset", "dash", "brakes", "--to", "earliest", "--home", reader)
    assert _stands(reader) == 0


def _stands(reader: Path) -> int:
    return sum(one["offset"] for one in done("group", "show", "dash", "--json", "--home", reader).json["partitions"])


def test_a_node_that_is_on_no_mesh_is_named(fleet: Fleet) -> None:
    lines = refused(2, "mesh", "join", "brakes", "--home", fleet.reader)
    assert lines[0] == "error: the node of this identity is no node of a mesh"


def test_how_many_nodes_a_trial_has_is_said_once(fleet: Fleet, contacts: str) -> None:
    assert "it has 4 nodes" in refused(2, "mesh", "up", fleet.folder, "--nodes", "7")[0]


def test_a_node_on_a_mesh_is_made_for_one_principal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, contacts = tmp_path / "fleet", tmp_path / "contacts"
    monkeypatch.setenv("TALLY_PASSPHRASE", PASSPHRASE.decode())
    settings = NodeSettings(ledger="cometbft://127.0.0.1:1")
    create_instance(folder, "fleet", PASSPHRASE, settings, 1_700_000_000_000, SystemEntropy(), cost=CHEAP)
    contacts.write_text("one,two\n")
    add = "node", "add", folder, tmp_path / "node", "--carrier", "mesh://city", "--contacts", contacts
    assert "serves one principal" in refused(2, *add)[0]
    assert "serves one principal" in refused(2, *add, "--serves", "me")[0]
    done(*add, "--serves", "ab" * 16)
    made = read_settings(Folders(tmp_path / "node").node)
    assert made.carrier == "mesh://city"
    chosen = dict(made.carrier_settings)
    assert chosen.pop("mesh_listen").startswith("127.0.0.1:")
    assert chosen == {"mesh_principal": "ab" * 16, "mesh_contacts": "one,two"}
    assert "are for nodes on a mesh" in refused(2, *add[:4], "--carrier", "kafka://x:1", "--serves", "ab" * 16)[0]
