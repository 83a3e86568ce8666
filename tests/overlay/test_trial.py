"""An overlay for trials on disk: what is asked for, what is made of it, and what is found again. Nothing runs here."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import done, refused
from stack import CHEAP, PASSPHRASE

from tallystick.cli.overlay_trial import NODES
from tallystick.client.plan_file import PlanFile
from tallystick.crypto.signatures import SigningKey
from tallystick.engines.chain import chain_url, create_validators
from tallystick.engines.overlay import TrialOverlay, read_tree
from tallystick.errors import Misuse
from tallystick.node.instance import Folders, create_instance, read_secret
from tallystick.node.settings import NodeSettings, read_settings
from tallystick.runtime.sources import SystemEntropy
from tallystick.trust.plan import node_id

NOW_MS = 1_800_000_000_000


def test_the_first_virtual_node_is_the_root_and_the_others_hang_on_it() -> None:
    assert read_tree(NODES) == {"hub": "", "edge-a": "hub", "edge-b": "hub"}
    assert read_tree("hub, edge, far:edge") == {"hub": "", "edge": "hub", "far": "edge"}


@pytest.mark.parametrize("text", ["", "hub,", "Hub", "hub,hub", "a/b", "hub:hub", "hub,far:edge,edge"])
def test_what_is_no_tree_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="virtual node"):
        read_tree(text)


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An instance on a chain that nobody has started."""
    monkeypatch.setenv("TALLY_PASSPHRASE", PASSPHRASE.decode())
    cards = create_validators(tmp_path, 1, SystemEntropy())
    keys = tuple(bytes.fromhex(card.note_key) for card in cards)
    settings = NodeSettings(ledger=chain_url(tmp_path))
    create_instance(tmp_path, "trial", PASSPHRASE, settings, NOW_MS, SystemEntropy(), validators=keys, cost=CHEAP)
    return tmp_path


def test_relays_are_nodes_that_the_plan_file_names(instance: Path) -> None:
    trial = TrialOverlay.create(instance, "city", read_tree("hub,edge"), 3)
    assert trial.make_relays(NOW_MS, SystemEntropy()) == 6
    assert TrialOverlay.open(instance) == trial
    text = trial.plan_file.read_text()
    assert trial.make_relays(NOW_MS, SystemEntropy()) == 0, "once is enough"
    assert trial.plan_file.read_text() == text
    overlay, certificates = b"o" * 16, {trial.certificate(one).subject: trial.certificate(one) for one in trial.relays}
    plan = PlanFile.read(trial.plan_file).plan(overlay, 1, bytes.fromhex, lambda one: certificates[one].signing_key)
    assert [node.identifier for node in plan.nodes] == [node_id(overlay, "hub"), node_id(overlay, "edge")]
    assert plan.nodes[1].parent == plan.nodes[0].identifier
    for relay, seat in zip(trial.relays, (seat for node in plan.nodes for seat in node.relays), strict=True):
        node = Folders(trial.place(relay)).node
        settings, key = read_settings(node), SigningKey.from_seed(read_secret(node / "key"))
        assert (settings.carrier, settings.ledger, settings.port) == ("overlay://city", chain_url(instance), relay.port)
        assert settings.carrier_settings == {"overlay_listen": seat.address}
        assert seat.key == key.public.raw
        assert seat.link_key == SigningKey.from_seed(key.derive("tallystick link key 1")).public.raw
        assert seat.host == relay.name
    ports = [port for relay in trial.relays for port in (relay.port, relay.link_port)]
    assert len({*ports}) == 12


def test_a_relay_that_a_cut_run_did_not_make_is_made_by_the_next(instance: Path) -> None:
    trial = TrialOverlay.create(instance, "city", read_tree("hub"), 3)
    trial.make_relays(NOW_MS, SystemEntropy())
    first = trial.certificate(trial.nodes[0].relays[0]).subject
    Folders(trial.place(trial.nodes[0].relays[2])).trust.unlink()  # it is written last
    trial.plan_file.unlink()
    assert trial.make_relays(NOW_MS, SystemEntropy()) == 1
    assert trial.certificate(trial.nodes[0].relays[0]).subject == first


def test_a_relay_for_another_machine_is_made_by_hand(instance: Path) -> None:
    target = instance / "relay-1"
    error, hint = refused(2, "node", "add", instance, target)
    assert "is embedded, and serves one node" in error
    assert "overlay://" in hint
    named = ("--carrier", "overlay://city", "--host", "relay-1.example", "--port", 7500)
    node = done("node", "add", instance, target, *named, "--json").json["node"]
    settings = read_settings(Folders(target).node)
    assert (settings.carrier, settings.host, settings.port) == ("overlay://city", "relay-1.example", 7500)
    assert settings.ledger == chain_url(instance)
    key = SigningKey.from_seed(read_secret(Folders(target).node / "key"))
    told = done("overlay", "relay", target, "--json").json
    assert told["principal"] == node
    assert told["link_key"] == SigningKey.from_seed(key.derive("tallystick link key 1")).public.raw.hex()


def test_mistakes_say_what_to_do(tmp_path: Path, instance: Path) -> None:
    error, hint = refused(2, "overlay", "chaos", tmp_path / "nowhere")
    assert "no overlay is here" in error
    assert "tally overlay up" in hint
    TrialOverlay.create(instance, "city", read_tree("hub"), 3)
    assert 'fault "burn" is unknown' in refused(2, "overlay", "chaos", instance, "--faults", "burn")[0]
    assert "does not run" in refused(4, "overlay", "chaos", instance)[0]
    (instance / "overlay.json").write_text("{}")
    assert "not what tally overlay up wrote" in refused(2, "overlay", "chaos", instance)[0]
