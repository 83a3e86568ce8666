"""The core of a node: what its threads share must not hold them up."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from stack import CHEAP, PASSPHRASE

from tallystick.ledger.contracts.state import Key
from tallystick.ledger.engine import Submitted
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.node.core import NodeCore, ledger_settings
from tallystick.node.instance import Folders, create_instance, open_node_keys
from tallystick.node.settings import NodeSettings
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import ManualClock, SeededEntropy


def make_core(folder: Path) -> NodeCore:
    clock, settings = ManualClock(), NodeSettings()
    now_ms = int(clock.now() * 1000)
    trust = create_instance(folder, "test", PASSPHRASE, settings, now_ms, SeededEntropy(1), cost=CHEAP)
    home = Folders(folder).node
    keys = open_node_keys(home, trust)
    ledger = SqliteLedger(str(home / "ledger.sqlite"), trust, keys.ledger_key, now_ms, ledger_settings(settings))

    def settle(submitted: Submitted) -> None:
        ledger.flush(int(clock.now() * 1000))

    return NodeCore(trust, keys, ledger, RealDisk(home / "log"), clock, settings, settle=settle)


def test_a_guard_that_asks_the_ledger_and_a_block_that_is_made_do_not_wait_for_each_other(tmp_path: Path) -> None:
    node = make_core(tmp_path)
    began = threading.Event()
    load = node._cache._load

    def slow_load(key: Key[Any]) -> object:
        began.set()  # the cache's lock is held; the ledger's is not to be had
        return load(key)

    node._cache._load = slow_load
    guard = threading.Thread(target=node.rules.blacklisted, args=(bytes(16),), daemon=True)
    arguments = (node.ledger.block(0), [b"reputation/" + bytes(16)])
    block = threading.Thread(target=node._forget_changed, args=arguments, daemon=True)
    assert isinstance(node.ledger, SqliteLedger)
    with node.ledger._lock:  # as while a block is made
        guard.start()
        assert began.wait(10)
        block.start()
        block.join(10)
        assert not block.is_alive()
    guard.join(10)
    assert not guard.is_alive()
    node.close()


def test_what_a_block_changed_is_read_anew(tmp_path: Path) -> None:
    node = make_core(tmp_path)
    subject = node.identifier
    assert node.rules.verify_key(subject) is not None
    node._cache._held[b"identity/" + subject] = (1 << 62, None)  # as it was before the block
    assert node.rules.verify_key(subject) is None
    node._forget_changed(node.ledger.block(0), [b"identity/" + subject])
    assert node.rules.verify_key(subject) is not None
    node.close()
