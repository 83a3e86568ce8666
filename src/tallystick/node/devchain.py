"""A chain for trials: all its validators on this machine, each a process of its own, in one folder.

Real chains have validators of different operators on different machines; one operator who runs all of them could as
well use the embedded ledger.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from tallystick.errors import Misuse, Unavailable
from tallystick.ledger.cometbft.home import ChainTiming, NodeAddresses
from tallystick.ledger.cometbft.rpc import Endpoint
from tallystick.node.validator import ValidatorCard, create_validator, join_chain, make_genesis, read_card
from tallystick.runtime.clock import Clock
from tallystick.runtime.entropy import Entropy
from tallystick.trust.trustfile import TrustFile

START_S, STOP_S = 120.0, 20.0
_PID = "pid"


def validator_folders(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "chain").glob("*/validator.json"))


def chain_url(folder: Path) -> str:
    return "cometbft://" + ",".join(read_card(one).rpc for one in validator_folders(folder))


def create_validators(folder: Path, count: int, entropy: Entropy) -> list[ValidatorCard]:
    """Validators on free ports of loopback."""
    if validator_folders(folder):
        raise Misuse(f"{folder}: a chain is here already")
    ports = free_ports(2 * count)
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
    """Start what does not run; returns when the chain makes blocks."""
    started = {one: running(one) or _spawn(one) for one in validator_folders(folder)}
    for one, pid in started.items():
        (one / _PID).write_text(f"{pid}\n")
    deadline = clock.monotonic() + START_S
    for one, pid in started.items():
        host, _, port = read_card(one).rpc.rpartition(":")
        endpoint = Endpoint(host, int(port))
        while not _makes_blocks(endpoint):
            if clock.monotonic() > deadline or _has_ended(pid):
                endpoint.close()
                raise Unavailable(f"{one.name} does not follow the chain", hint=f"read {one / 'validator.log'}")
            clock.pause(0.1)
        endpoint.close()


def stop_chain(folder: Path, clock: Clock) -> int:
    """End every validator of the folder that runs; how many there were."""
    ended = 0
    for one in validator_folders(folder):
        pid = running(one)
        if pid is None:
            continue
        os.kill(pid, signal.SIGTERM)
        deadline = clock.monotonic() + STOP_S
        while running(one) is not None and clock.monotonic() < deadline:
            clock.pause(0.05)
        if running(one) is not None:
            os.kill(pid, signal.SIGKILL)
        (one / _PID).unlink(missing_ok=True)
        ended += 1
    return ended


def running(folder: Path) -> int | None:
    """The process that runs the validator in `folder`, if it still does."""
    try:
        pid = int((folder / _PID).read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if str(folder.resolve()).encode() in words and not _has_ended(pid) else None


def _has_ended(pid: int) -> bool:
    """By its state alone: for a moment after its start a process has no command line yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _spawn(folder: Path) -> int:
    """A validator that outlives this process."""
    command = [sys.executable, "-m", "tallystick.cli", "chain", "run", str(folder.resolve())]
    with (folder / "validator.log").open("ab") as log, open(os.devnull) as nothing:
        actions = [(os.POSIX_SPAWN_DUP2, nothing.fileno(), 0)]
        actions += [(os.POSIX_SPAWN_DUP2, log.fileno(), number) for number in (1, 2)]
        return os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsid=True)


def _makes_blocks(endpoint: Endpoint) -> bool:
    try:
        return int(endpoint.ask("status", timeout_s=2)[1]) > 0
    except (Unavailable, Misuse):
        return False


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
