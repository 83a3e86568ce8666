"""A whole instance whose ledger is a chain: validators on loopback, then the stack of tests/stack.py on top."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chain_world import QUICK, require_cometbft
from stack import CHEAP, PASSPHRASE, Stack

from tallystick.engines.chain import chain_url, create_validators, found_chain, validator_folders
from tallystick.node.instance import Folders, create_instance
from tallystick.node.settings import NodeSettings
from tallystick.node.validator import Validator
from tallystick.runtime.sources import SystemEntropy
from tallystick.trust.trustfile import TrustFile


@contextmanager
def chain_of(folder: Path, count: int, **settings: Any) -> Iterator[tuple[Stack, list[Validator]]]:
    """An instance in `folder` whose ledger is a chain of `count` validators; the node is not started yet.
    `settings` are the node's besides."""
    program = require_cometbft()
    cards = create_validators(folder, count, SystemEntropy())
    now_ms = int(time.time() * 1000) - 1000
    url = chain_url(folder)
    keys = tuple(bytes.fromhex(card.note_key) for card in cards)
    create_instance(
        *(folder, "test", PASSPHRASE, NodeSettings(port=0, ledger=url), now_ms, SystemEntropy()),
        validators=keys,
        cost=CHEAP,
    )
    found_chain(folder, TrustFile.parse(Folders(folder).trust.read_text()), now_ms, QUICK)
    validators = [Validator(one, program) for one in validator_folders(folder)]
    try:
        for validator in validators:
            validator.start()
        yield Stack(folder, node={"ledger": url, **settings}), validators
    finally:
        for validator in validators:
            validator.stop()
