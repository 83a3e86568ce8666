"""`kill -9` of application and node at random moments, of one validator and of four: nothing acknowledged is lost, the
files are whole, and all of them hold the same blocks.

A few kills here; TALLY_PROFILE=soak makes more of them, with a fresh seed that is printed with a failure.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from chain_world import QUICK, require_cometbft, wait_until
from ledger_world import World, operation_batch, token
from stack import wait_beyond

from tallystick.engines.chain import (
    chain_url,
    create_validators,
    found_chain,
    running,
    start_chain,
    stop_chain,
    validator_folders,
)
from tallystick.errors import Refused, Unavailable
from tallystick.ledger.cometbft.client import ClientSettings, CometbftLedger
from tallystick.ledger.engine import Submitted
from tallystick.ledger.fsck import fsck
from tallystick.ledger.sqlite_store import LedgerReader, LedgerStore
from tallystick.node.validator import threshold
from tallystick.runtime.sources import SystemClock, SystemEntropy

KILLS = 40 if os.environ.get("TALLY_PROFILE") == "soak" else 3


def node_of(pid: int) -> int | None:
    """The CometBFT under a validator's process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def height_of(folder: Path) -> int:
    with closing(LedgerStore(str(folder / "ledger.sqlite"), create=False)) as store:
        return store.last_height() or 0


def block_of(folder: Path, height: int) -> bytes:
    with closing(LedgerStore(str(folder / "ledger.sqlite"), create=False)) as store:
        return LedgerReader(store).block(height).encoded


def is_stopped(folder: Path) -> bool:
    return running(folder) is None


def kill(folders: list[Path], dice: random.Random, clock: SystemClock) -> None:
    """One or two of them at once, the application or the node of each."""
    ended = []
    for folder in dice.sample(folders, min(len(folders), dice.choice((1, 2)))):
        pid = running(folder)
        assert pid is not None
        if dice.random() < 0.5:
            os.kill(pid, signal.SIGKILL)  # CometBFT notices that its application is gone, and ends
            ended.append(folder)
        elif (node := node_of(pid)) is not None:
            os.kill(node, signal.SIGKILL)  # the application starts it again
    for folder in ended:
        wait_until(partial(is_stopped, folder))
    if ended:
        start_chain(ended[0].parent.parent, clock)


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.long)])
def test_nothing_acknowledged_is_lost(tmp_path: Path, count: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_COMETBFT", require_cometbft())
    dice, clock = random.Random(seed), SystemClock()
    cards = create_validators(tmp_path, count, SystemEntropy())
    keys = tuple(bytes.fromhex(card.note_key) for card in cards)
    world = World(ledger_keys=keys, ledger_threshold=threshold(count))
    found_chain(tmp_path, world.trust, int(time.time() * 1000) - 1000, QUICK)
    folders = validator_folders(tmp_path)
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
            wait_beyond(lambda: len(acknowledged), before)
            time.sleep(dice.random() * 0.2)
            kill(folders, dice, clock)
        before = len(acknowledged)
        wait_until(lambda: len(acknowledged) > before, 120)
        finished.set()
        writer.join(120)
        for placed in acknowledged:
            assert engine.blocks(placed.height, 1)[0][1], f"block {placed.height}"
            assert engine._find(placed.leaf) == placed
        engine.close()
        newest = acknowledged[-1].height
        wait_until(lambda: all(height_of(folder) >= newest for folder in folders))
    finally:
        finished.set()
        stop_chain(tmp_path, clock)
    for folder in folders:
        report = fsck(str(folder / "ledger.sqlite"), world.trust)
        assert report.transactions == len(world.founding()) + len(acknowledged), f"each once, in {folder.name}"
    assert len({block_of(folder, newest) for folder in folders}) == 1, "one app hash, whoever was killed"
