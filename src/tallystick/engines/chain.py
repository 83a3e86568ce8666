"""A chain for trials: all its validators on this machine, each a process of its own, in one folder.

Real chains have validators of different operators on different machines; one operator who runs all of them could as
well use the embedded ledger.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tallystick.errors import Misuse, Unavailable
from tallystick.ledger.cometbft.home import ChainTiming, NodeAddresses
from tallystick.ledger.cometbft.rpc import RpcEndpoint
from tallystick.node import processes
from tallystick.node.validator import ValidatorCard, create_validator, join_chain, make_genesis, read_card
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.trustfile import TrustFile

START_S = 120.0


def validator_folders(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "chain").glob("*/validator.json"))


def chain_url(folder: Path) -> str:
    return "cometbft://" + ",".join(read_card(one).rpc for one in validator_folders(folder))


def create_validators(folder: Path, count: int, entropy: Entropy, port: int = 0) -> list[ValidatorCard]:
    """Validators on loopback: clients find the first at `port`, and all other ports follow; 0: any that are free."""
    if validator_folders(folder):
        raise Misuse(f"{folder}: a chain is here already")
    ports = processes.ports_from(port, 2 * count)
    return [
        create_validator(
            folder / "chain" / f"validator{index}",
            NodeAddresses(f"127.0.0.1:{ports[2 * index]}", f"127.0.0.1:{ports[2 * index + 1]}"),
            entropy,
        )
        for index in range(count)
    ]


def found_chain(folder: Path, trust: TrustFile, now_ms: int, timing: ChainTiming = ChainTiming()) -> None:
    """One genesis for all, and each validator's home."""
    folders = validator_folders(folder)
    cards = [read_card(one) for one in folders]
    genesis = make_genesis(trust, cards, now_ms)
    for one in folders:
        join_chain(one, trust, genesis, cards, timing)


def start_chain(folder: Path, clock: Clock) -> None:
    """Start what does not run, and wait until the chain makes blocks."""
    started = {one: running(one) or _spawn(one) for one in validator_folders(folder)}
    deadline = clock.monotonic() + START_S
    for one, pid in started.items():
        host, _, port = read_card(one).rpc.rpartition(":")
        endpoint = RpcEndpoint(host, int(port))
        while not _makes_blocks(endpoint):
            if clock.monotonic() > deadline or processes.has_ended(pid):
                endpoint.close()
                raise Unavailable(f"{one.name} does not follow the chain", hint=f"read {one / 'validator.log'}")
            clock.pause(0.1)
        endpoint.close()


def start_ended(folder: Path) -> None:
    """Start validators that ended again, and do not wait for them."""
    for one in validator_folders(folder):
        running(one) or _spawn(one)


def stop_chain(folder: Path, clock: Clock) -> int:
    """End every validator of the folder that runs. Returns how many there were."""
    return sum(processes.end(one, _mark(one), clock) for one in validator_folders(folder))


def running(folder: Path) -> int | None:
    """The process that runs the validator in `folder`, if it still does."""
    return processes.running(folder, _mark(folder))


def _mark(folder: Path) -> str:
    return str(folder.resolve())


def _spawn(folder: Path) -> int:
    """A validator that outlives this process."""
    command = [sys.executable, "-m", "tallystick.cli", "chain", "run", _mark(folder)]
    return processes.spawn(folder, command, "validator.log")


def _makes_blocks(endpoint: RpcEndpoint) -> bool:
    try:
        return int(endpoint.ask("status", timeout_s=2)[1]) > 0
    except (Unavailable, Misuse):
        return False
