"""A new instance has the contracts of its release in force from its first blocks on."""

from __future__ import annotations

from pathlib import Path

import pytest
from authority_world import PromptClient, World
from stack import Stack, wait_until

from tallystick.ledger.contracts import execute
from tallystick.ledger.contracts.settings import VERSIONS


def test_the_contracts_of_a_release_are_activated_when_an_instance_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(execute.CONTRACTS, ("later", 1), {90: _accept})
    with Stack(tmp_path) as stack:
        wait_until(lambda: stack.node.ledger.query(lambda state: state.row(VERSIONS())) is not None)
        found = stack.node.ledger.query(lambda state: state.row(VERSIONS())) or []
        assert {name: version for name, version, _ in found} == {"later": 1, **execute.newest()}
        assert len({height for *_, height in found}) == 1
        core = stack.authority.authority.core
        wait_until(lambda: core.store.meta("founding") is None)
    monkeypatch.setitem(execute.CONTRACTS, ("newer", 1), {91: _accept})
    with Stack(tmp_path) as stack:  # an instance that goes over to another release waits for its operator
        stack.authority.authority.work()
        assert stack.node.ledger.query(lambda state: state.row(VERSIONS())) == found


class SlowClient(PromptClient):
    """Nine blocks are made while a transaction is on its way."""

    def submit(self, transaction: bytes) -> None:
        for _ in range(9):
            self.ledger.flush(int(self.clock.now() * 1000))
        super().submit(transaction)


def test_blocks_that_overtake_an_activation_delay_it_and_no_more(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ledger_client = SlowClient(world.ledger, world.clock)
    world.authority.core.store.set_meta("founding", b"\x01")
    world.reopen()
    for _ in range(4):
        world.authority.work()
    found = world.ledger.query(lambda state: state.row(VERSIONS())) or []
    assert {name: version for name, version, _ in found} == execute.newest()
    assert world.authority.core.store.meta("founding") is None


def _accept(call: object, entry: object) -> None:
    """Nothing is asked of it."""
