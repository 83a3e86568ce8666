"""From the embedded ledger to a chain: the same tree, origin and heights, and old receipts that verify."""

from __future__ import annotations

import shutil
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest
from chain_world import QUICK, FixedEntropy, require_cometbft, wait_until
from ledger_world import World, operation_batch, token

from tallystick.crypto.merkle import verify_consistency
from tallystick.errors import Misuse
from tallystick.ledger import entries
from tallystick.ledger.block import read_head
from tallystick.ledger.cometbft.client import CometbftLedger
from tallystick.ledger.cometbft.home import NodeAddresses
from tallystick.ledger.fsck import fsck
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.node.processes import free_ports
from tallystick.node.validator import Validator, create_validator, join_chain, make_genesis
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import SystemClock

HEART = token("heart")


def test_a_chain_goes_on_where_sqlite_stopped(tmp_path: Path) -> None:
    program, world = require_cometbft(), World()
    ports = free_ports(2)
    folder = tmp_path / "validator"
    card = create_validator(folder, NodeAddresses(*(f"127.0.0.1:{one}" for one in ports)), FixedEntropy("v"))
    path, now_ms = tmp_path / "ledger.sqlite", int(time.time() * 1000) - 5000
    old = SqliteLedger(str(path), world.trust, world.ledger_key, now_ms)
    for transaction in (*world.founding(), world.node.sign(*operation_batch(world, 3, [HEART], [world.monitor.id]))):
        placed = old.submit(transaction.data, now_ms)
        old.flush(now_ms)
    receipt, memory = old.receipt(placed.number, 1), CheckpointMemory(world.trust, RealDisk(tmp_path / "memory"))
    before = memory.accept(old.checkpoint(), old.consistency)
    with pytest.raises(Misuse, match="note key"):
        make_genesis(world.trust, [card], now_ms, path)
    key = bytes.fromhex(card.note_key)
    successor = replace(world.trust, number=2, first=world.instance, ledger_keys=(key,), signatures=()).sign(world.root)
    old.submit(world.authority.sign(entries.trust(successor.to_json())).data, now_ms)
    old.flush(now_ms)
    last = old.height
    old.close()
    join_chain(folder, successor, make_genesis(successor, [card], now_ms, path), [card], QUICK)
    shutil.copy(path, folder / "ledger.sqlite")
    validator = Validator(folder, program)
    try:
        validator.start()
        wait_until(lambda: validator.application.book.last.height > last)
        engine = CometbftLedger(f"cometbft://{card.rpc}", successor, SystemClock())
        data = world.node.sign(*operation_batch(world, 3, [HEART], [world.monitor.id])).data
        engine.wait(engine.submit(data, 0), 30)
        head = read_head(engine.checkpoint(), successor)
        assert (head.origin, head.size) == (before.origin, before.size + 2)
        assert head.height > last
        proof = engine.consistency(before.size, head.size)
        verify_consistency(before.size, before.root, head.size, head.root, proof)
        receipt.verify(world.trust)  # under the trust file of then
        engine.receipt(placed.number, 1).verify(successor)
        remembered = CheckpointMemory(successor, RealDisk(tmp_path / "memory"))
        assert remembered.accept(engine.checkpoint(), engine.consistency).height >= head.height
        assert len(engine.history(HEART)) == 6, "across the border"
        engine.close()
    finally:
        validator.stop()
    assert fsck(str(folder / "ledger.sqlite"), successor).transactions == head.size


def test_a_validator_with_another_ledger_does_not_begin(tmp_path: Path) -> None:
    """One that lacks a transaction, at the same height; its own roots fit together."""
    program, world = require_cometbft(), World()
    ports = free_ports(2)
    folder = tmp_path / "validator"
    card = create_validator(folder, NodeAddresses(*(f"127.0.0.1:{one}" for one in ports)), FixedEntropy("v"))
    now_ms, key = int(time.time() * 1000) - 5000, bytes.fromhex(card.note_key)
    successor = replace(world.trust, number=2, first=world.instance, ledger_keys=(key,), signatures=())
    signed, founding = successor.sign(world.root), world.founding()
    for number, name in enumerate(("true", "other")):
        one = SqliteLedger(str(tmp_path / name), world.trust, world.ledger_key, now_ms)
        for transaction in founding[: 3 - number]:  # the other one lacks a topic
            one.submit(transaction.data, now_ms)
            one.flush(now_ms)
        one.submit(world.authority.sign(entries.trust(signed.to_json())).data, now_ms)
        one.flush(now_ms)
        if number:
            one.flush(now_ms)  # the same height
        one.close()
    join_chain(folder, signed, make_genesis(signed, [card], now_ms, tmp_path / "true"), [card], QUICK)
    shutil.copy(tmp_path / "other", folder / "ledger.sqlite")
    validator = Validator(folder, program)
    try:
        validator.start()
        wait_until(lambda: validator._server.statistics().faults > 0)
        assert validator.application.book.last.height == 4, "where it stopped"
    finally:
        validator.stop()
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        assert db.execute("SELECT count(*) FROM meta WHERE name = 'initial height'").fetchone() == (0,)
    db.close()
