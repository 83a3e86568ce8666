"""Faults in an overlay: drawn by a seed, never more than f at a time, and never in a process of somebody else.

The relays here are small programs that claim a relay's folder and answer as ready; a thread starts them again, as
`tally overlay up` does. The real ones have their walk in the long tier.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stack import wait_until
from without import without

from tallystick.engines.chaos import KINDS, Chaos, Fault, draw_faults, held
from tallystick.engines.overlay import TrialOverlay
from tallystick.errors import Misuse, Unavailable
from tallystick.node.instance import claim
from tallystick.node.supervisor import is_ready
from tallystick.runtime.sources import SystemClock

NODES = {"hub": [f"hub-{n}" for n in range(1, 4)], "edge": [f"edge-{n}" for n in range(1, 6)]}

RELAY = """
import fcntl, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
lock = open(sys.argv[1] + "/node/lock", "a+")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.truncate(0)
print(os.getpid(), file=lock, flush=True)
class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[2])), Ready).serve_forever()
"""


# --- the schedule ---


@pytest.mark.parametrize("number", range(20))
def test_no_more_than_f_relays_of_a_virtual_node_are_out_of_order_at_a_time(number: int) -> None:
    faults = draw_faults(number, 120, KINDS, NODES)
    assert {fault.kind for fault in faults} <= {*KINDS}
    assert all(fault.at_s > 0 and fault.at_s + fault.lasts_s <= 120.01 for fault in faults)
    for relays, most in zip(NODES.values(), (1, 2), strict=True):
        mine = [fault for fault in faults if fault.relay in relays]
        busiest = 0
        for fault in mine:
            others = [one for one in mine if one.at_s <= fault.at_s < one.at_s + one.lasts_s]
            assert len({one.relay for one in others}) == len(others) <= most
            busiest = max(busiest, len(others))
        assert busiest == most, "less would show less"


def test_the_same_seed_draws_the_same_faults() -> None:
    assert draw_faults(7, 60, KINDS, NODES) == draw_faults(7, 60, KINDS[::-1], NODES)
    assert draw_faults(7, 60, KINDS, NODES) != draw_faults(8, 60, KINDS, NODES)
    assert {fault.kind for fault in draw_faults(7, 60, ["stall"], NODES)} == {"stall"}


# --- carried out ---


@pytest.fixture
def trial(tmp_path: Path) -> TrialOverlay:
    """One virtual node of three relays that nobody has started."""
    trial = TrialOverlay.create(tmp_path, "city", {"hub": ""}, 3)
    for relay in trial.relays:
        (trial.place(relay) / "node").mkdir(parents=True)
    return trial


def spawn(trial: TrialOverlay, number: int, *words: str) -> subprocess.Popen[bytes]:
    relay = trial.nodes[0].relays[number]
    return subprocess.Popen([sys.executable, "-c", RELAY, str(trial.place(relay)), str(relay.port), *words])


@contextmanager
def running(trial: TrialOverlay) -> Iterator[list[subprocess.Popen[bytes]]]:
    """All relays, started again when they end; the processes that run now."""
    stopping, relays = threading.Event(), [spawn(trial, number) for number in range(3)]

    def look_after() -> None:
        while not stopping.wait(0.02):
            for number, process in enumerate(relays):
                if process.poll() is not None:
                    stopping.wait(0.2)
                    relays[number] = spawn(trial, number)

    thread = threading.Thread(target=look_after)
    with claim(trial.folder):
        thread.start()
        try:
            wait_until(lambda: all(is_ready(one.url) for one in trial.relays))
            yield relays
        finally:
            stopping.set()
            thread.join()
            for process in relays:
                process.kill()
                process.wait()


def carried_out(trial: TrialOverlay, *faults: Fault) -> list[tuple[str, str]]:
    """What was said: (kind, relay)."""
    said: list[tuple[str, str]] = []
    Chaos(trial, SystemClock(), lambda _, kind, relay, __: said.append((kind, relay)), lambda: False).run(faults)
    return said


def test_relays_are_killed_stalled_and_restarted_and_all_is_well_in_the_end(trial: TrialOverlay) -> None:
    with running(trial) as relays:
        first = [process.pid for process in relays]
        faults = [
            Fault(0.0, "hub-1", "kill", 10),
            Fault(0.05, "hub-2", "kill", 10),  # while the first is away: f is 1
            Fault(1.0, "hub-2", "stall", 0.3),
            Fault(1.6, "hub-3", "restart", 10),
        ]
        assert carried_out(trial, *faults) == [
            ("kill", "hub-1"),
            ("none", "hub-2"),
            ("stall", "hub-2"),
            ("go on", "hub-2"),
            ("restart", "hub-3"),
        ]
        assert [process.pid == pid for process, pid in zip(relays, first, strict=True)] == [False, True, False]
        assert all(is_ready(one.url) for one in trial.relays)


def test_a_stalled_relay_goes_on_when_somebody_ends_the_chaos(trial: TrialOverlay) -> None:
    with running(trial):
        over = threading.Event()
        said: list[str] = []

        def say(_at_s: float, kind: str, _relay: str, _words: str) -> None:
            said.append(kind)
            over.set()

        Chaos(trial, SystemClock(), say, over.is_set).run([Fault(0.0, "hub-1", "stall", 600)])
        assert said == ["stall", "go on"]


# --- whose process it is ---


def test_without_somebody_who_starts_relays_again_nothing_is_touched(trial: TrialOverlay) -> None:
    process = spawn(trial, 0)
    try:
        with pytest.raises(Unavailable, match="does not run") as caught:
            carried_out(trial, Fault(0.0, "hub-1", "kill", 1))
        assert caught.value.hint == f"tally overlay up {trial.folder}"
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@contextmanager
def bystander(trial: TrialOverlay) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that has nothing to do with the overlay, and that a file names as the first relay."""
    place = trial.place(trial.nodes[0].relays[0]) / "node"
    with claim(trial.folder), claim(place), subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
        try:
            (place / "lock").write_text(f"{process.pid}\n")
            yield process
        finally:
            process.kill()


def kill_first(trial: TrialOverlay) -> None:
    with held(trial, trial.nodes[0].relays[0]) as process:
        assert process is not None
        signal.pidfd_send_signal(process[1], signal.SIGKILL)


def test_a_process_that_is_no_relay_of_the_folder_is_not_touched(trial: TrialOverlay) -> None:
    with bystander(trial) as process:
        with pytest.raises(Misuse, match=f"process {process.pid} is not the relay in"):
            kill_first(trial)
        assert process.poll() is None


def test_without_that_look_a_bystander_is_killed(trial: TrialOverlay) -> None:
    with bystander(trial) as process, without("the look at a process before a fault"):
        kill_first(trial)
        assert process.wait(10) == -signal.SIGKILL


def test_a_relay_that_does_not_run_is_left_alone(trial: TrialOverlay) -> None:
    with claim(trial.folder), held(trial, trial.nodes[0].relays[0]) as process:
        assert process is None
