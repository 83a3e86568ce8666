"""docs/guides/chain.md, "Another set of validators": a chain goes on as a chain of others, who know it to its end."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from chain_stack import chain_of
from chain_world import QUICK, FixedEntropy, require_cometbft, wait_until
from stack import PASSPHRASE, Stack

from tallystick.crypto.merkle import verify_consistency
from tallystick.crypto.signatures import RootKey
from tallystick.errors import Forged, Misuse
from tallystick.ledger.block import read_head
from tallystick.ledger.cometbft.client import CometbftLedger
from tallystick.ledger.cometbft.home import NodeAddresses
from tallystick.ledger.fsck import fsck
from tallystick.node.handover import hand_over
from tallystick.node.instance import open_root
from tallystick.node.processes import free_ports
from tallystick.node.validator import Validator, create_validator, join_chain, make_genesis, read_card
from tallystick.runtime.sources import SystemClock
from tallystick.trust.trustfile import TrustFile


def test_a_chain_of_one_goes_on_as_a_chain_of_two(tmp_path: Path) -> None:
    fleet, ports = tmp_path / "fleet", free_ports(2)
    newcomer = tmp_path / "newcomer"
    joining = create_validator(newcomer, NodeAddresses(*(f"127.0.0.1:{one}" for one in ports)), FixedEntropy("new"))
    with chain_of(fleet, 1) as (stack, (validator,)):
        stack.start_node()  # it enrols itself and its authority
        stack.stop_node()
        cards = [read_card(validator.folder), joining]
        old = TrustFile.parse((fleet / "trust.json").read_text())
        ledger, now_ms = validator.folder / "ledger.sqlite", int(time.time() * 1000)
        with pytest.raises(Misuse, match="not one of its roots"):
            hand_over(fleet, cards, RootKey.from_seed(bytes(32)), now_ms)
        new = hand_over(fleet, cards, open_root(fleet, PASSPHRASE), now_ms)
        engine = CometbftLedger(f"cometbft://{cards[0].rpc}", old, SystemClock())
        ended = engine.checkpoint()
        before = read_head(ended, old)
        engine.close()
        validator.stop()
        last = validator.application.book.last.height

        genesis = make_genesis(new, cards, now_ms, ledger)
        forget_blocks(validator.folder)
        for folder in (validator.folder, newcomer):
            join_chain(folder, new, genesis, cards, QUICK)
        shutil.copy(ledger, newcomer / "ledger.sqlite")
        both = [Validator(folder, require_cometbft()) for folder in (validator.folder, newcomer)]
        try:
            for one in both:
                one.start()
            wait_until(lambda: all(one.application.book.last.height > last + 1 for one in both))
            url = "cometbft://" + ",".join(card.rpc for card in cards)
            moved = Stack(fleet, node={"ledger": url})
            moved.start_node()
            engine = CometbftLedger(url, new, SystemClock())
            head = read_head(engine.checkpoint(), new)
            assert head.height > last
            with pytest.raises(Forged):
                read_head(ended, new)  # what the old set alone signed is not enough any more
            verify_consistency(
                before.size, before.root, head.size, head.root, engine.consistency(before.size, head.size)
            )
            engine.close()
            moved.stop_node()
        finally:
            for one in both:
                one.stop()
    assert fsck(str(newcomer / "ledger.sqlite"), new).transactions >= head.size


def forget_blocks(folder: Path) -> None:
    """As the guide says: all of comet/data but what the validator has voted for."""
    for path in (folder / "comet" / "data").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "priv_validator_state.json":
            path.unlink()
