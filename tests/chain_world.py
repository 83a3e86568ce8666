"""Chains for tests: validators of a world on loopback, in this process (CometBFT in its own), in a temporary folder."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from ledger_world import NOW_MS, World

from engines import cometbft
from engines.cache import cache_folder
from tallystick.abci import messages as m
from tallystick.ledger.block import Transaction
from tallystick.ledger.cometbft import queries
from tallystick.ledger.cometbft.application import ChainSettings, LedgerApplication, genesis_state
from tallystick.ledger.cometbft.client import ClientSettings, CometbftLedger
from tallystick.ledger.cometbft.home import ChainTiming, NodeAddresses
from tallystick.node.processes import free_ports
from tallystick.node.validator import Validator, ValidatorCard, create_validator, join_chain, make_genesis, threshold
from tallystick.runtime.sources import SystemClock
from tallystick.wire import encode

PROGRAM = cache_folder() / cometbft.NAME / "cometbft"  # read before the suite moves HOME
QUICK = ChainTiming(commit_ms=20, block_ms=500)


def require_cometbft() -> str:
    """The program, or a skip (which fails where engines are required)."""
    named = os.environ.get("TALLY_COMETBFT") or (str(PROGRAM) if PROGRAM.exists() else shutil.which("cometbft"))
    if not named:
        pytest.skip("CometBFT is not built here: make engines")
    return named


class FixedEntropy:
    """The same keys in every run."""

    def __init__(self, name: str) -> None:
        self._name, self._count = name, 0

    def bytes(self, count: int) -> bytes:
        self._count += 1
        return sha256(f"{self._name} {self._count}".encode()).digest()[:count]


class ChainWorld(World):
    """A world whose ledger keys are those of `count` validators."""

    def __init__(self, folder: Path, count: int = 1, witnesses: tuple[str, ...] = ()) -> None:
        self.folders = [folder / f"validator{i}" for i in range(count)]
        ports = free_ports(2 * count)
        self.cards: list[ValidatorCard] = [
            create_validator(
                one,
                NodeAddresses(f"127.0.0.1:{ports[2 * i]}", f"127.0.0.1:{ports[2 * i + 1]}"),
                FixedEntropy(one.name),
            )
            for i, one in enumerate(self.folders)
        ]
        keys = tuple(bytes.fromhex(card.note_key) for card in self.cards)
        super().__init__(
            ledger_keys=keys, ledger_threshold=threshold(count), witnesses=witnesses, quorum=len(witnesses)
        )


class Chain:
    """Running validators of a `ChainWorld`; a chain that it had before is gone."""

    def __init__(
        self, world: ChainWorld, timing: ChainTiming = QUICK, settings: ChainSettings = ChainSettings()
    ) -> None:
        self.world, self.program, self._settings = world, require_cometbft(), settings
        self.genesis = genesis = make_genesis(world.trust, world.cards, int(time.time() * 1000) - 1000)
        for folder in world.folders:
            shutil.rmtree(folder / "comet", ignore_errors=True)
            for old in folder.glob("ledger.sqlite*"):
                old.unlink()
            join_chain(folder, world.trust, genesis, world.cards, timing)
        self.validators: dict[int, Validator] = {}
        for index in range(len(world.folders)):
            self.start(index)

    @property
    def url(self) -> str:
        return "cometbft://" + ",".join(card.rpc for card in self.world.cards)

    def start(self, index: int) -> Validator:
        validator = Validator(self.world.folders[index], self.program, self._settings)
        self.validators[index] = validator
        validator.start()
        return validator

    def stop(self, index: int) -> None:
        self.validators.pop(index).stop()

    def close(self) -> None:
        for index in list(self.validators):
            self.stop(index)

    def client(self, settings: ClientSettings = ClientSettings(), url: str | None = None) -> CometbftLedger:
        return CometbftLedger(url or self.url, self.world.trust, SystemClock(), settings)

    def heights(self) -> dict[int, int]:
        return {index: one.application.book.last.height for index, one in self.validators.items()}


class Node:
    """One validator's application without a chain: what CometBFT does, in order."""

    def __init__(self, path: Path, world: World, settings: ChainSettings = ChainSettings()) -> None:
        self.path, self.world, self.settings = path, world, settings
        self.application = LedgerApplication(str(path), world.trust, world.ledger_key, settings)
        self.height = self.application.info(m.RequestInfo()).last_block_height
        if self.height == 0:
            state = json.dumps(genesis_state(world.trust)).encode()
            time = m.Timestamp(NOW_MS // 1000)
            self.hash = self.application.init_chain(
                m.RequestInitChain(time, app_state_bytes=state, initial_height=1)
            ).app_hash

    def finalize(self, *transactions: bytes) -> m.ResponseFinalizeBlock:
        time = m.Timestamp(NOW_MS // 1000 + self.height + 1)
        return self.application.finalize_block(
            m.RequestFinalizeBlock(tuple(transactions), height=self.height + 1, time=time)
        )

    def block(self, *transactions: Transaction) -> m.ResponseFinalizeBlock:
        done = self.finalize(*(one.data for one in transactions))
        self.application.commit(m.RequestCommit())
        self.height += 1
        self.hash = done.app_hash
        return done

    def restart(self) -> Node:
        """As after `kill -9`: nothing is closed in order."""
        return Node(self.path, self.world, self.settings)

    def ask(self, name: str, *arguments: Any) -> Any:
        response = self.application.query(m.RequestQuery(path=queries.PREFIX + name, data=encode(list(arguments))))
        facts = {"code": response.code, "log": response.log, "info": response.info, "codespace": response.codespace}
        return queries.read_answer(facts, response.value)


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)
