"""Processes known by a file: told from others that got the same number, ended, and gone when they are."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import pytest

from tallystick.errors import Misuse
from tallystick.node import processes
from tallystick.runtime.sources import SystemClock

TALKS = "import time; print('on', flush=True); time.sleep(60)"


def test_a_process_is_known_by_its_folder_until_it_is_ended(tmp_path: Path) -> None:
    mark = str(tmp_path)
    assert processes.running(tmp_path, mark) is None
    pid = processes.spawn(tmp_path, [sys.executable, "-c", "import time; time.sleep(60)", mark], "log")
    assert processes.running(tmp_path, mark) == pid
    assert processes.end(tmp_path, mark, SystemClock())
    assert processes.running(tmp_path, mark) is None
    assert processes.has_ended(pid)
    assert not processes.end(tmp_path, mark, SystemClock())


def test_another_process_with_the_number_is_left_alone(tmp_path: Path) -> None:
    pid = processes.spawn(tmp_path, [sys.executable, "-c", TALKS, "another"], "log")
    while not (tmp_path / "log").read_text():  # from now on it has a command line
        assert not processes.has_ended(pid)
    assert processes.running(tmp_path, str(tmp_path)) is None
    assert not processes.end(tmp_path, str(tmp_path), SystemClock())
    assert processes.running(tmp_path, "another") == pid
    assert processes.end(tmp_path, "another", SystemClock(), signal.SIGKILL)


def test_free_ports_are_all_different() -> None:
    assert len(set(processes.free_ports(20))) == 20


def test_ports_are_chosen_by_the_first_and_one_that_is_taken_is_named() -> None:
    (port,) = processes.free_ports(1)
    assert processes.ports_from(port, 1) == [port]
    assert len(set(processes.ports_from(0, 3))) == 3
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Misuse, match=f"port {port}: address already in use"):
        processes.ports_from(port, 2)
    with pytest.raises(Misuse, match="port 65536: there is no such port"):
        processes.ports_from(65_536, 2)
