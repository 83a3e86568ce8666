"""`kill -9` of application and node at random moments: nothing acknowledged is lost, and the file is whole."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from chain_world import QUICK, require_cometbft, wait_until
from ledger_world import World, operation_batch, token

from tallystick.errors import Refused, Unavailable
from tallystick.ledger.cometbft.client import ClientSettings, CometbftLedger
from tallystick.ledger.engine import Submitted
from tallystick.ledger.fsck import fsck
from tallystick.node.devchain import (
    chain_url,
    create_validators,
    found_chain,
    running,
    start_chain,
    stop_chain,
    validator_folders,
)
from tallystick.runtime.clock import SystemClock
from tallystick.runtime.entropy import SystemEntropy

KILLS = 4


def node_of(pid: int) -> int | None:
    """The CometBFT under a validator's process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def kill_one(folder: Path, dice: random.Random, clock: SystemClock) -> None:
    pid = running(folder)
    assert pid is not None
    if dice.random() < 0.5:
        os.kill(pid, signal.SIGKILL)  # CometBFT notices that its application is gone, and ends
        wait_until(lambda: running(folder) is None)
        start_chain(folder.parent.parent, clock)
    else:
        node = node_of(pid)
        if node is not None:
            os.kill(node, signal.SIGKILL)  # the application starts it again


def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_COMETBFT", require_cometbft())
    dice, clock = random.Random(seed), SystemClock()
    cards = create_validators(tmp_path, 1, SystemEntropy())
    world = World(ledger_keys=tuple(bytes.fromhex(card.note_key) for card in cards))
    found_chain(tmp_path, world.trust, int(time.time() * 1000) - 1000, QUICK)
    folder = validator_folders(tmp_path)[0]
    acknowledged: list[Submitted] = []
    finished = threading.Event()
    try:
        start_chain(tmp_path, clock)
        engine = CometbftLedger(chain_url(tmp_path), world.trust, clock, ClientSettings(submit_s=60, answer_s=40))
        for transaction in world.founding():
            engine.wait(engine.submit(transaction.data, 0), 60)

        def write() -> None:
            while not finished.is_set():
                data = world.node.sign(*operation_batch(world, 8, [token("heart")], [world.monitor.id])).data
                while True:
                    try:
                        placed = engine.submit(data, 0)
                        engine.wait(placed, 60)
                        acknowledged.append(placed)
                        break
                    except Unavailable:
                        if finished.is_set():
                            return
                    except Refused as refusal:
                        acknowledged.append(Submitted(b"", -1, -1, -1))
                        raise AssertionError(f"refused: {refusal}") from refusal

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        for _ in range(KILLS):
            before = len(acknowledged)
            wait_until(lambda before=before: len(acknowledged) > before, 120)  # type: ignore[misc]
            time.sleep(dice.random() * 0.2)
            kill_one(folder, dice, clock)
        before = len(acknowledged)
        wait_until(lambda: len(acknowledged) > before, 120)
        finished.set()
        writer.join(120)
        for placed in acknowledged:
            assert engine.blocks(placed.height, 1)[0][1], f"block {placed.height}"
            assert engine._find(placed.leaf) == placed
        engine.close()
    finally:
        finished.set()
        stop_chain(tmp_path, clock)
    report = fsck(str(folder / "ledger.sqlite"), world.trust)
    assert report.transactions == len(world.founding()) + len(acknowledged), "each once"
