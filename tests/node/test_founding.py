"""A new instance has the contracts of its release in force from its first blocks on."""

from __future__ import annotations

from pathlib import Path

import pytest
from stack import Stack, wait_until

from tallystick.authority.core import Core
from tallystick.errors import Refused
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


def test_blocks_that_overtake_an_activation_delay_it_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the way to the ledger is."""
    submit = Core._submit

    def submit_late(core: Core, number: int, data: bytes) -> Refused | None:
        assert core.ledger.head is not None
        named = core.ledger.head.height
        wait_until(lambda: stack.node.ledger.height >= named + 9)
        return submit(core, number, data)

    monkeypatch.setitem(execute.CONTRACTS, ("later", 1), {90: _accept})
    monkeypatch.setattr(Core, "_submit", submit_late)
    with Stack(tmp_path, node={"block_ms": 10}) as stack:
        wait_until(lambda: stack.node.ledger.query(lambda state: state.row(VERSIONS())) is not None)


def _accept(call: object, entry: object) -> None:
    """Nothing is asked of it."""
