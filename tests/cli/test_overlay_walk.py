"""An overlay as `tally overlay up` runs it: real processes on a chain, a topic that travels over it, and faults.

Relays that lie are processes, too: what they send to one another is not what an honest relay would.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from chain_world import require_cometbft
from commands import PATIENCE_S, TALLY, done, refused, running, tally
from stack import wait_until

from tallystick.client.session import Session
from tallystick.engines.chain import running as validator_of
from tallystick.engines.chain import validator_folders
from tallystick.engines.chaos import held
from tallystick.engines.overlay import TrialOverlay
from tallystick.errors import Unavailable

ROWS = "".join(f'{{"vin": "V{number % 7}", "seq": {number}}}\n' for number in range(100)).encode()


LIE = """
import sys
if any(word.endswith({names}) for word in sys.orig_argv):
    from dataclasses import replace
    from itertools import count
    from tallystick.carriers.overlay.station import RelayStation
    from tallystick.runtime.effects import Send
    honest, turn = RelayStation.receive, count()
    def spoil(effect):
        if not isinstance(effect, Send) or next(turn) % 2:
            return effect
        place = len(effect.message) // 2
        wrong = bytes([effect.message[place] ^ 1])
        return replace(effect, message=effect.message[:place] + wrong + effect.message[place + 1 :])
    RelayStation.receive = lambda self, event, now: [*map(spoil, honest(self, event, now))]
"""


def enrol(trial: Path, homes: Path, name: str, edge: str, right: str) -> Path:
    """A principal at an edge, with a right on `brakes`."""
    home, owner = homes / name, homes / "owner"
    urls = (trial / f"{edge}.urls").read_text().split()
    done("principal", "enrol", done("principal", "invite", *urls, "--home", owner).out.strip(), "--home", home)
    done("principal", "overlay", "city", edge, "--home", home)
    done("right", "grant", "brakes", name, right, "--home", owner)
    return home


@contextmanager
def following(home: Path) -> Iterator[list[int]]:
    """What a subscriber gets meanwhile, that asks again where the world was in its way."""
    got: list[int] = []
    over = threading.Event()

    def follow() -> None:
        with Session.open(home) as session, session.subscriber("brakes") as subscriber:
            while not over.is_set():
                with suppress(Unavailable):
                    for received in subscriber.poll(200):
                        got.extend(received.batch.data["seq"].to_pylist())

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield got
    finally:
        over.set()
        thread.join()


@contextmanager
def liars(folder: Path, *names: str) -> Iterator[None]:
    """Every second frame that these relays send, wherever they are started meanwhile, has a bit that is wrong."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(LIE.format(names=names))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), before)))
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def prepare(folder: Path, homes: Path) -> tuple[Path, Path]:
    """A topic that travels over the overlay in `folder`; who publishes at one edge, and who reads at the other."""
    owner = homes / "owner"
    done("principal", "enrol", "-", "--home", owner, stdin=done("tenant", "create", "acme", folder).out.encode())
    done("topic", "create", "brakes", "--schema", "vin string, seq int64", "--home", owner)
    done("overlay", "entrust", "brakes", "city", "edge-a", "--home", owner)
    return enrol(folder, homes, "car", "edge-a", "write"), enrol(folder, homes, "reader", "edge-b", "read")


def publish(car: Path) -> None:
    done("publish", "brakes", "-", "--timeout", PATIENCE_S, "--home", car, stdin=ROWS)


@pytest.mark.long
@pytest.mark.chain
def test_on_a_chain_every_row_arrives_while_relays_are_killed_and_stalled(tmp_path: Path, seed: int) -> None:
    require_cometbft()
    folder, owner = tmp_path / "trial", tmp_path / "owner"
    with running("overlay", "up", folder, "--nodes", "edge-a,edge-b") as (up, told):
        assert [one["relay"] for one in told["relays"]] == [f"edge-{name}-{n}" for name in "ab" for n in (1, 2, 3)]
        assert "another process serves this folder" in refused(4, "overlay", "up", folder)[0]
        car, reader = prepare(folder, tmp_path)
        faults = [*TALLY, "overlay", "chaos", str(folder), "--seed", str(seed), "--seconds", "30", "--json"]
        with following(reader) as got, subprocess.Popen(faults, stdout=subprocess.PIPE, text=True) as chaos:
            times = 0
            while chaos.poll() is None:
                publish(car)
                times += 1
            said = chaos.communicate()[0]
            assert chaos.returncode == 0, said
            assert any(f'"fault": "{kind}"' in said for kind in ("kill", "stall", "restart"))
            wait_until(lambda: len(got) >= times * 100, PATIENCE_S)
        assert got == [*range(100)] * times
        status = done("overlay", "status", "city", "--folder", folder, "--home", owner, "--json").json
        relays = [one for node in status["nodes"] for one in node["relays"]]
        assert [one["ready"] for one in relays] == [True] * 6
        assert not any(one["blacklisted"] for one in relays)
        assert status["topics"][0]["partitions"][0]["anchored"] >= times
    assert up.returncode == 0
    trial = TrialOverlay.open(folder)
    assert [validator_of(one) for one in validator_folders(folder)] == [None]
    for relay in trial.relays:
        with held(trial, relay) as process:
            assert process is None
    assert tally("overlay", "chaos", folder).code == 4


@pytest.mark.long
@pytest.mark.chain
def test_on_a_chain_a_third_of_fifteen_relays_lies_dies_or_stalls_and_every_row_arrives(tmp_path: Path) -> None:
    """One relay of each of five virtual nodes in a line: two lie all the time, two stop in the middle of the load, and
    one is killed again and again."""
    require_cometbft()
    folder = tmp_path / "trial"
    line = "edge-a,inner-a,middle:inner-a,inner-b:middle,edge-b:inner-b"
    with (
        liars(tmp_path / "liars", "edge-a-3", "inner-b-3"),
        running("overlay", "up", folder, "--nodes", line) as (up, told),
    ):
        assert len(told["relays"]) == 15
        car, reader = prepare(folder, tmp_path)
        trial = TrialOverlay.open(folder)
        relays = {relay.name: relay for relay in trial.relays}

        def strike(name: str, number: signal.Signals) -> None:
            with held(trial, relays[name]) as process:
                if process is not None:
                    signal.pidfd_send_signal(process[1], number)

        with following(reader) as got:
            publish(car)
            for name in ("inner-a-3", "edge-b-3"):
                strike(name, signal.SIGSTOP)
            for _ in range(5):
                strike("middle-3", signal.SIGKILL)
                publish(car)
            wait_until(lambda: len(got) >= 600, PATIENCE_S)
        assert got == [*range(100)] * 6
        for neighbour in ("edge-a-1", "inner-b-1"):
            counted = done("node", "status", trial.place(relays[neighbour]), "--json").json
            assert counted["anchorer_frames_dropped"] > 0, "of the liar beside it"
        status = done("overlay", "status", "city", "--folder", folder, "--home", tmp_path / "owner", "--json").json
        away = {one["name"] for node in status["nodes"] for one in node["relays"] if not one["ready"]}
        assert {"inner-a-3", "edge-b-3"} <= away <= {"inner-a-3", "edge-b-3", "middle-3"}
    assert up.returncode == 0
