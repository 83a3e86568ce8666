"""Node and application as a pair, with a small program in the node's place."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.abci.application import Application
from tallystick.abci.server import Server
from tallystick.abci.supervisor import Supervisor
from tallystick.errors import Unavailable

# A node that connects to its application first, says so, and stays.
NODE = """
import socket, sys, time
address = sys.argv[1].removeprefix("--proxy_app=unix://")
connection = socket.socket(socket.AF_UNIX)
connection.connect(address)
print("connected", flush=True)
while connection.recv(1):
    pass
print("alone", flush=True)
"""


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_node_that_was_killed_is_started_again_and_ended_with_the_pair(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    server = Server(Application())
    pair = Supervisor(server, [sys.executable, "-c", NODE], log)
    pair.start()
    wait_until(lambda: log.read_text().count("connected") == 1)
    first = pair.statistics().pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: log.read_text().count("connected") == 2)
    found = pair.statistics()
    assert found.running
    assert found.restarts == 1
    assert found.pid != first
    pair.stop()
    pair.stop()
    assert not pair.statistics().running
    assert not Path(f"/proc/{found.pid}").exists()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    server = Server(Application())
    pair = Supervisor(server, [str(tmp_path / "no-such-node")], tmp_path / "node.log")
    with pytest.raises(Unavailable, match="no-such-node"):
        pair.start()
    pair.stop()
