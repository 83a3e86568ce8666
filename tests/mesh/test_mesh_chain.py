"""Members' nodes whose ledger is a chain: rights, permits and retention come from validators, rows over the mesh."""

from __future__ import annotations

from pathlib import Path

import pytest
from actors import read_rows, rows
from chain_world import require_cometbft
from commands import done, tally
from mesh_stack import MeshTown
from stack import PASSPHRASE, Stack, wait_until

from tallystick.ledger.cometbft.client import CometbftLedger
from tallystick.node.processes import free_ports


@pytest.mark.chain
@pytest.mark.long
def test_members_of_a_mesh_find_rights_on_a_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_PASSPHRASE", PASSPHRASE.decode())
    monkeypatch.setenv("TALLY_COMETBFT", require_cometbft())
    fleet = tmp_path / "fleet"
    try:
        said = done("dev", "chain", "up", fleet, "--validators", 1, "--port", free_ports(1)[0], "--json")
        with Stack(fleet, node={"ledger": said.rows[-1]["ledger"]}) as stack:
            town = MeshTown(stack, 3)
            try:
                car, reader = town.member("car"), town.member("reader")
                assert isinstance(town.node_of(car).ledger, CometbftLedger)
                token = town.topic("brakes", car, reader)
                wait_until(lambda: town.is_whole(token, car, reader))
                with car.publisher("brakes") as publisher:
                    publisher.send(rows(1, 2))
                    assert publisher.flush(60) == 0
                with reader.subscriber("brakes") as subscriber:
                    assert read_rows(subscriber, 2) == [1, 2]
                    assert subscriber.findings == []
            finally:
                town.end()
    finally:
        tally("dev", "chain", "down", fleet)
