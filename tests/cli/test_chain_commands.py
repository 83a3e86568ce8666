"""`tally chain` and `tally dev chain` as an operator types them."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from chain_world import require_cometbft
from commands import done, refused, tally
from stack import PASSPHRASE, Stack

from tallystick.engines.chain import running, validator_folders
from tallystick.errors import Misuse
from tallystick.node.processes import free_ports, ports_from
from tallystick.node.validator import Validator


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_PASSPHRASE", "the passphrase of this test")


def _eight_ports() -> int:
    """The first of eight in a row that are free."""
    while True:
        with suppress(Misuse):
            return ports_from(free_ports(1)[0], 8)[0]


@pytest.mark.chain
def test_a_chain_of_four_is_made_watched_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_COMETBFT", require_cometbft())
    fleet = tmp_path / "fleet"
    try:
        port = _eight_ports()
        said = done("dev", "chain", "up", fleet, "--validators", 4, "--port", port, "--json")
        url = said.rows[-1]["ledger"]
        assert url == "cometbft://" + ",".join(f"127.0.0.1:{port + 2 * number}" for number in range(4))
        assert [one["process"] > 0 for one in done("dev", "chain", "status", fleet, "--json").json] == [True] * 4
        assert "ok      validators    4 of 4 are well, 3 must be, it goes on" in tally("status", fleet).out
        assert "its ports were chosen" in refused(2, "dev", "chain", "up", fleet, "--port", port)[0]
        health = done("chain", "status", url, "--trust", fleet / "trust.json", "--json").json
        assert [one["verdict"] for one in health["validators"]] == ["ok"] * 4
        assert health["verdict"] == "it goes on"
        listed = done("inspect", fleet / "trust.json", "--json").json["ledger_key_ids"]
        assert sorted(one["key"] for one in health["validators"]) == sorted(listed)
        verify = ("chain", "verify", url, "--trust", fleet / "trust.json")
        believed = done(*verify, "--json").json
        again = done(*verify, "--header", believed["header"], "--json").json
        assert again["height"] >= believed["height"]
        height = believed["header"].partition(":")[0]
        assert "hash 0000" in refused(3, *verify, "--header", f"{height}:{'00' * 32}")[0]
        assert "expected HEIGHT:HASH" in refused(2, *verify, "--header", "newest")[0]
        assert done("dev", "chain", "up", fleet, "--json").json["ledger"] == url, "it runs already"
        away = validator_folders(fleet)[2]
        assert done("chain", "snapshot", away, "--json").json["snapshots"] == []
        said_now = done("chain", "snapshot", away, "--now", "--json").json  # while it runs
        assert [one["height"] > 0 for one in said_now["snapshots"]] == [True]
        assert Path(said_now["folder"]) == away / "ledger.snapshots"
        assert "another process" in refused(4, "chain", "rollback", away)[0]
        assert done("dev", "chain", "down", fleet).out == "4 validators ended\n"
        assert all(running(one) is None for one in validator_folders(fleet))
        ended = tally("dev", "chain", "status", fleet)
        assert (ended.code, ended.out.count("away")) == (4, 4)
        assert "away    validators    0 of 4 are well" in tally("status", fleet).out
        assert ended.err.splitlines()[-1] == f"hint: tally dev chain up {fleet}"
        assert all("is whole" in done("ledger", "fsck", one).out for one in validator_folders(fleet))
        height = str(said_now["snapshots"][0]["height"])
        assert done("chain", "snapshot", away).out.splitlines()[1].startswith(height), "it outlives the process"
        said_status = tally("chain", "status", url, "--trust", fleet / "trust.json")
        assert said_status.code == 4
        assert said_status.out.count("away") == 4
        assert "halted" in said_status.out
    finally:
        tally("dev", "chain", "down", fleet)


@pytest.mark.chain
def test_an_instance_moves_to_a_chain_by_the_steps_of_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/guides/chain.md, "From the embedded ledger to a chain", with what was there before."""
    monkeypatch.setenv("TALLY_PASSPHRASE", PASSPHRASE.decode())
    fleet, v0, genesis = tmp_path / "fleet", tmp_path / "v0", tmp_path / "genesis.json"
    card, ledger = v0 / "validator.json", fleet / "node" / "ledger.sqlite"
    rpc, p2p = (f"127.0.0.1:{port}" for port in free_ports(2))
    done("chain", "init", v0, "--rpc", rpc, "--p2p", p2p)
    with Stack(fleet) as stack:
        topic = stack.topic(stack.tenant("acme"), "brakes", "vin string")
        assert "another process" in refused(4, "chain", "successor", fleet, card)[0]
        height = stack.node.ledger.height
    trust = ("--trust", fleet / "trust.json")
    before = refused(2, "chain", "genesis", card, *trust, "--ledger", ledger, "-o", genesis)
    assert "tally chain successor" in before[1]
    said = done("chain", "successor", fleet, card, "--json").json
    assert (said["number"], said["threshold"]) == (2, 1)
    assert "these validators already" in refused(2, "chain", "successor", fleet, card)[0]
    done("chain", "genesis", card, *trust, "--ledger", ledger, "-o", genesis)
    done("chain", "join", v0, card, *trust, "--genesis", genesis)
    shutil.copy(ledger, v0 / "ledger.sqlite")
    validator = Validator(v0, require_cometbft())
    try:
        validator.start()
        assert f'ledger = "cometbft://{rpc}"' in (fleet / "node" / "node.toml").read_text()
        moved = Stack(fleet, node={"ledger": f"cometbft://{rpc}"})
        moved._node_port, moved._authority_port = stack._node_port, stack._authority_port
        with moved:
            owner = fleet / "homes" / "acme-owner"
            assert "brakes" in done("topic", "list", "--home", owner).out
            followed = (owner / "trust.json").read_text()
            assert followed == (fleet / "trust.json").read_text(), "taken up by itself, on the root's word"
            moved.topic(moved.tenant("other"), "wheels", "vin string")
            assert moved.node.ledger.query(lambda state: state.get(b"topic/" + topic)) is not None
            assert moved.node.ledger.height > height
    finally:
        validator.stop()
    assert "is whole" in done("ledger", "fsck", v0).out, "what came before the chain, and after"


def test_validators_of_their_own_operators_make_one_genesis(tmp_path: Path) -> None:
    ports = free_ports(4)
    cards = []
    for index in range(2):
        folder = tmp_path / f"v{index}"
        addresses = ("--rpc", f"127.0.0.1:{ports[2 * index]}", "--p2p", f"127.0.0.1:{ports[2 * index + 1]}")
        done("chain", "init", folder, *addresses)
        cards.append(folder / "validator.json")
        assert "already" in refused(2, "chain", "init", folder, *addresses)[0]
    fleet, genesis = tmp_path / "fleet", tmp_path / "genesis.json"
    options = [word for card in cards for word in ("--validator", card)]
    done("init", fleet, "--ledger", "cometbft://127.0.0.1:1", *options)
    trust = ("--trust", fleet / "trust.json")
    done("chain", "genesis", *cards, *trust, "-o", genesis)
    assert "exists already" in refused(2, "chain", "genesis", *cards, *trust, "-o", genesis)[0]
    for index in range(2):
        done("chain", "join", tmp_path / f"v{index}", *cards, *trust, "--genesis", genesis)
    homes = [tmp_path / f"v{index}" / "comet" / "config" for index in range(2)]
    assert homes[0].joinpath("genesis.json").read_bytes() == homes[1].joinpath("genesis.json").read_bytes()
    assert f"127.0.0.1:{ports[3]}" in homes[0].joinpath("config.toml").read_text()
    assert homes[0].joinpath("priv_validator_key.json").stat().st_mode & 0o077 == 0


def test_mistakes_are_told(tmp_path: Path) -> None:
    assert "expected HOST:PORT" in refused(2, "chain", "init", tmp_path / "v", "--rpc", "x", "--p2p", "y:1")[0]
    assert "no chain is here" in refused(2, "dev", "chain", "down", tmp_path)[0]
    assert "belongs to no chain" in refused(2, "chain", "run", tmp_path)[0]
    assert "ledger.sqlite: missing" in refused(2, "chain", "snapshot", tmp_path)[0]
    assert "go together" in refused(2, "init", tmp_path / "f", "--ledger", "cometbft://127.0.0.1:1")[0]
    card = tmp_path / "card.json"
    card.write_text("{}")
    assert "validator card" in refused(3, "init", tmp_path / "f", "--ledger", "x", "--validator", card)[0]
    done("init", tmp_path / "sqlite")
    ports = ("--rpc", "127.0.0.1:1", "--p2p", "127.0.0.1:2")
    done("chain", "init", tmp_path / "v0", *ports)
    trust = ("--trust", tmp_path / "sqlite" / "trust.json")
    said = refused(2, "chain", "genesis", tmp_path / "v0" / "validator.json", *trust, "-o", tmp_path / "g")
    assert "does not list every validator's note key" in said[0]
    assert said[1].startswith("hint:")
