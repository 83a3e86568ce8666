"""Node and application as a pair, with a small program in the node's place."""

from __future__ import annotations

import os
import signal
import subprocess
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


def test_a_node_that_a_killed_application_left_behind_is_ended(tmp_path: Path) -> None:
    """It hangs, and holds what the next one needs."""
    hanging = [sys.executable, "-c", "import time; time.sleep(600)"]
    log = tmp_path / "node.log"
    left = subprocess.Popen([*hanging, "--proxy_app=unix:///gone"])
    (tmp_path / "node.log.pid").write_text(f"{left.pid}\n")
    pair = Supervisor(Server(Application()), hanging, log)
    pair.start()
    assert left.wait(30) == -signal.SIGKILL
    pair.stop()


def test_another_process_under_the_same_number_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "other"])
    (tmp_path / "node.log.pid").write_text(f"{other.pid}\n")
    pair = Supervisor(Server(Application()), [sys.executable, "-c", NODE], tmp_path / "node.log")
    pair.start()
    assert other.poll() is None
    pair.stop()
    other.kill()
    other.wait()


def test_a_node_that_lost_its_application_and_hangs_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    connects_and_hangs = NODE.replace(
        "while connection.recv(1):\n    pass", "time.sleep(1); connection.close(); time.sleep(600)"
    )
    pair = Supervisor(Server(Application()), [sys.executable, "-c", connects_and_hangs], log, alone_s=0.5)
    pair.start()
    wait_until(lambda: log.read_text().count("connected") == 2)
    assert pair.statistics().restarts == 1
    pair.stop()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    server = Server(Application())
    pair = Supervisor(server, [str(tmp_path / "no-such-node")], tmp_path / "node.log")
    with pytest.raises(Unavailable, match="no-such-node"):
        pair.start()
    pair.stop()
