"""`tally fabric`: a trial fabric of emulated switches, and what commands show of it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import done, refused

from tallystick.carriers.fabric.requests import FlowKind, FlowRequest
from tallystick.carriers.fabric.route import control, read_control
from tallystick.carriers.fabric.topology import is_probe, prove
from tallystick.engines.fabric import FabricCrew, FabricFile, make_trial
from tallystick.errors import Malformed
from tallystick.runtime.sources import SystemClock, SystemEntropy

FLOW, SUBSCRIPTION = bytes(range(16)), bytes(range(16, 32))


class TrialHosts:
    """Somebody at every host port who answers probes."""

    def __init__(self, file: FabricFile) -> None:
        self._is_stopping = False
        self._threads = []
        for plan in file.switches:
            for port, wire in plan.ports.items():
                if port > 100:
                    thread = threading.Thread(target=self._answer, args=wire.split("/"), daemon=True)
                    thread.start()
                    self._threads.append(thread)

    def _answer(self, there: str, here: str) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
            wire.bind(("127.0.0.1", int(here.rpartition(":")[2])))
            wire.settimeout(0.1)
            while not self._is_stopping:
                try:
                    payload = read_control(wire.recv(4096))
                except (TimeoutError, Malformed, OSError):
                    continue
                if is_probe(payload):
                    wire.sendto(control(prove(payload)), ("127.0.0.1", int(there.rpartition(":")[2])))

    def stop(self) -> None:
        self._is_stopping = True
        for thread in self._threads:
            thread.join()


def told_by(*arguments: str) -> str:
    return done(*arguments).out


def said(*arguments: str) -> str:
    """What a command says that is the caller's mistake."""
    return "\n".join(refused(2, *arguments))


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three switches in a ring with a flow from s1 to s3, which the test asks for in a dispatcher's place."""
    folder = tmp_path_factory.mktemp("fabric")
    make_trial(folder / "lab", "ring", 3, 1)
    crew = FabricCrew(folder / "lab", SystemClock(), SystemEntropy())
    hosts = TrialHosts(crew.file)
    try:
        deadline = time.monotonic() + 60
        far_ms = int(time.time() * 1000) + 3_600_000
        while crew.controller.statistics().links < 3 or not crew.controller.topology.hosts():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        crew.controller.stop()  # what follows is its thread's work
        configurator = crew.controller.configurator
        assert configurator is not None
        configurator.gathered()
        places = [FlowRequest(FlowKind.ADVERTISE, FLOW, "s1", 101, far_ms, 100)]
        places.append(FlowRequest(FlowKind.SUBSCRIBE, SUBSCRIPTION, "s3", 101, far_ms, 0, frozenset({FLOW})))
        configurator.receive("nobody", places)
        crew.write_state()
        yield folder / "lab"
    finally:
        hosts.stop()
        crew.stop()
        crew.close()


def test_the_topology_is_shown_with_its_tree(trial: Path, tmp_path: Path) -> None:
    told = told_by("fabric", "topology", str(trial), "--root", "s1", "--svg", str(tmp_path / "tree.svg"))
    assert "s1:1" in told
    assert [line for line in told.splitlines() if line.startswith(("├", "└"))]
    assert (tmp_path / "tree.svg").read_text().count("<rect") == 6  # three switches, three hosts
    document = json.loads(told_by("fabric", "topology", str(trial), "--json"))
    assert len(document["links"]) == 3
    assert document["hosts"] == ["s1:101", "s2:101", "s3:101"]


def test_rules_are_read_from_the_switches_themselves(trial: Path) -> None:
    document = json.loads(told_by("fabric", "rules", str(trial), "--json"))
    assert {one["switch"] for one in document} == {"s1", "s3"}
    [up, down] = sorted(one["out"][0]["port"] for one in document if one["switch"] == "s3")
    assert up < down == 101
    assert told_by("fabric", "rules", str(trial), "--switch", "s1").startswith("s1  1  ")


def test_a_flow_is_traced_to_its_hosts(trial: Path, tmp_path: Path) -> None:
    told = told_by("fabric", "trace", str(trial), FLOW.hex(), "--svg", str(tmp_path / "way.svg"))
    [first, second, third] = told.splitlines()
    assert (first, second.split()[-1]) == ("s1", "s3")
    assert "101─ host, as" in third
    assert "<title>flow 0001" in (tmp_path / "way.svg").read_text()
    document = json.loads(told_by("fabric", "trace", str(trial), FLOW.hex(), "--json"))
    assert (document["switches"], document["faults"]) == (["s1", "s3"], [])
    assert document["delivered"][0]["at"] == "s3:101"
    # A label that nobody knows there.
    assert told_by("fabric", "trace", str(trial), "ff" * 16, "--from", "s2", "--json").count('"delivered": []') == 1


def test_what_is_not_there_is_said(trial: Path, tmp_path: Path) -> None:
    assert "no flow" in said("fabric", "trace", str(trial), "ff" * 16)
    assert "32 hex digits" in said("fabric", "trace", str(trial), "brakes")
    assert "no switch s9" in said("fabric", "rules", str(trial), "--switch", "s9")
    assert "no switch s9" in said("fabric", "topology", str(trial), "--root", "s9")
    assert "there is no fabric" in said("fabric", "rules", str(tmp_path))
    assert "there is a fabric" in said("fabric", "up", str(trial), "--trial", "line")
    (tmp_path / "fabric.toml").write_text('[switches.s1]\ndevice = 1\naddress = "a"\nports = { 600 = "x" }\n')
    assert "ports from 1 to 509" in said("fabric", "rules", str(tmp_path))


def test_the_key_of_a_fabric_is_for_its_operator_s_eyes(trial: Path) -> None:
    assert os.stat(trial / "fabric.key").st_mode & 0o077 == 0
