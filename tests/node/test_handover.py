"""Handing an embedded ledger over: by the root alone, as the ledger's last entry, and again after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from chain_world import FixedEntropy
from stack import PASSPHRASE, Stack

from tallystick.crypto.signatures import RootKey
from tallystick.errors import Misuse
from tallystick.ledger.cometbft.home import NodeAddresses
from tallystick.ledger.fsck import fsck
from tallystick.node.handover import hand_over
from tallystick.node.instance import open_root
from tallystick.node.validator import create_validator, make_genesis
from tallystick.trust.trustfile import TrustFile

NOW_MS = 1_900_000_000_000


def test_the_root_hands_over_once_and_may_repeat_itself(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    stack = Stack(fleet)
    stack.start_node()
    stack.stop_node()
    ledger, settings = fleet / "node" / "ledger.sqlite", fleet / "node" / "node.toml"
    cards = [
        create_validator(tmp_path / f"v{n}", NodeAddresses(f"10.0.0.{n}:1", f"10.0.0.{n}:2"), FixedEntropy(f"v{n}"))
        for n in range(4)
    ]
    first, untouched = TrustFile.parse((fleet / "trust.json").read_text()), settings.read_text()
    with pytest.raises(Misuse, match="not one of its roots"):
        hand_over(fleet, cards, RootKey.from_seed(bytes(32)), NOW_MS)
    assert settings.read_text() == untouched
    before = fsck(str(ledger), first).transactions

    root = open_root(fleet, PASSPHRASE)
    new = hand_over(fleet, cards, root, NOW_MS)
    first.check_successor(new)
    assert (len(new.ledger_keys), new.ledger_threshold) == (4, 3)
    for path in (fleet / "trust.json", fleet / "node" / "trust.json"):
        assert TrustFile.parse(path.read_text()) == new
    assert "cometbft://10.0.0.0:1,10.0.0.1:1,10.0.0.2:1,10.0.0.3:1" in settings.read_text()

    settings.write_text(untouched)  # as if the machine had stopped before the last step
    assert hand_over(fleet, cards, root, NOW_MS) == new
    assert fsck(str(ledger), new).transactions == before + 1, "the ledger takes it once"
    make_genesis(new, cards, NOW_MS, ledger)
