"""From publish() to the opened row, over the fabric and over the log carrier, one row at a time.

    row_latency          ours against the log as its readers have it: stored, synced, in a block, anchored and proved
    row_latency_stored   ours against the log read before the anchor (`read=stored`): its storage alone

Storage waits of ours: the publisher's spool is synced before the row leaves it. Both hosts store it too, while it
travels and while it is read; what nobody waits for is that, a block and its anchor. The log's: the same spool, its
segment and journal before the promise, and the ledger's block.

The fabric has two eBPF switches, P4Runtime, and hosts on packet sockets, in network namespaces (`unshare -n`).
Publishers and subscribers have processes of their own, and so has each instance: the fabric's hosts share one with its
dispatcher, controller and authority. All of them sync to the same disk.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, replace
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import harness

from tallystick.carriers.fabric.controller import ControllerSettings
from tallystick.carriers.fabric.topology import ProbeLimits
from tallystick.client.session import Session
from tallystick.identity.folder import Identity
from tallystick.node.settings import NodeSettings
from tallystick.trust.certificate import Certificate

if TYPE_CHECKING:
    from stack import Stack

TESTS = Path(__file__).resolve().parent.parent / "tests"
FOLDERS = TESTS, TESTS / "fabric"  # the tests' world
ROUNDS, QUICK = 60, 8
WAIT_MS = 1_000  # of a subscriber's poll: then it looks whether all is measured
TARGET = 10.0  # the log's time divided by ours
NODE = {one.name: one.default for one in fields(NodeSettings) if one.name in ("commit_ms", "window_ms", "block_ms")}


def rows(quick: bool, rounds: int | None) -> Iterator[harness.Result]:
    count = QUICK if quick else rounds or ROUNDS
    command = ["unshare", "-n", sys.executable, __file__, str(count)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, FOLDERS), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    told = json.loads(done.stdout.splitlines()[-1])
    yield harness.compare("row_latency", told["fabric"], told["anchored"], "ms", TARGET)
    yield harness.compare("row_latency_stored", told["fabric"], told["stored"], "ms")


def measure(count: int) -> dict[str, list[float]]:
    """Milliseconds of each round, by carrier, in turns."""
    from packet_town import be_alone

    be_alone()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        worlds = [closing.enter_context(Party(one, folder)) for one in (over_log, over_fabric)]
        (writer, reader), (car, town_reader) = (world.pipe.recv() for world in worlds)
        by_log, by_fabric = (closing.enter_context(Party(publish, *one)) for one in (writer, car))
        ways = {
            "fabric": (by_fabric, closing.enter_context(Party(subscribe, *town_reader))),
            "anchored": (by_log, closing.enter_context(Party(subscribe, *reader))),
            "stored": (by_log, closing.enter_context(Party(subscribe, *reader, read="stored"))),
        }
        for party in {one for way in ways.values() for one in way}:
            party.pipe.recv()  # it is ready
        numbers, pauses, times = itertools.count(), Random(1), {name: list[float]() for name in ways}
        for turn in range(count + 1):
            for name, (publisher, subscriber) in ways.items():
                number = next(numbers)
                time.sleep(pauses.uniform(0, NODE["commit_ms"] / 1_000))  # a round begins at no time of the node's own
                publisher.pipe.send(number)
                sent, came = publisher.pipe.recv(), subscriber.await_row(number)
                times[name] += [1_000 * (came - sent)] if turn else []  # the first brings locks and keys
    return times


class Party:
    """Somebody in a process of its own, as elsewhere: no two share an interpreter. The clock is the machine's."""

    def __init__(self, work: Callable[..., None], *arguments: Any, **settings: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self._process = context.Process(target=work, args=(there, *arguments), kwargs=settings)
        self._process.start()
        there.close()

    def await_row(self, number: int) -> float:
        """When it was opened."""
        while (told := self.pipe.recv())[0] != number:
            pass
        return float(told[1])

    def __enter__(self) -> Party:
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.close()
        self._process.join()


def over_log(pipe: Connection, folder: str) -> None:
    """An instance whose node is the log; tells who publishes and who reads."""
    from actors import SCHEMA, await_topic
    from stack import READ, WRITE

    with _instance(Path(folder) / "log") as stack:
        owner, writer, reader = stack.tenant("acme"), stack.principal("acme", "car"), stack.principal("acme", "reader")
        token = stack.topic(owner, "brakes", SCHEMA)
        stack.grant(owner, token, writer, WRITE)
        stack.grant(owner, token, reader, READ)
        await_topic(stack, token)
        _tell(pipe, writer, reader)


def over_fabric(pipe: Connection, folder: str) -> None:
    """One with a fabric: dispatcher, controller, two switches and two hosts."""
    from packet_town import PacketTown

    class Town(PacketTown):
        step_s, probe_s = ControllerSettings.step_s, ProbeLimits.probe_s

    with _instance(Path(folder) / "fabric") as stack, ExitStack() as closing:
        town = Town(stack, "ebpf")
        closing.callback(town.end)
        car, reader = town.member("car", "s0"), town.member("reader", "s1")
        town.topic("brakes", car, reader)
        _tell(pipe, car, reader)


def _instance(folder: Path) -> Stack:
    """One whose authority looks as often as elsewhere."""
    import stack

    from tallystick.authority.http import TICK_S

    stack.TICK_S = TICK_S
    return stack.Stack(folder, node=NODE)


def _tell(pipe: Connection, *sessions: Session) -> None:
    found = [one.identity for one in sessions]
    pipe.send([(str(one.home), one.node_urls, [node.encode() for node in one.nodes]) for one in found])
    with suppress(EOFError):
        pipe.recv()  # until all is measured


@contextmanager
def _session(home: str, urls: tuple[str, ...], nodes: Sequence[bytes]) -> Iterator[Session]:
    identity = replace(Identity.load(home), node_urls=urls, nodes=tuple(map(Certificate.decode, nodes)))
    with Session(identity) as session, suppress(EOFError):
        yield session


def publish(pipe: Connection, *who: Any) -> None:
    """Publish a row for each number that comes, and tell when."""
    with _session(*who) as session, session.publisher("brakes") as publisher:
        pipe.send(None)
        while True:
            number = pipe.recv()
            started = time.perf_counter()
            publisher.send([{"vin": "V", "seq": number, "speed": 1.0}])
            pipe.send(started)


def subscribe(pipe: Connection, *who: Any, **settings: str) -> None:
    """Tell of each row when it was opened."""
    with _session(*who) as session, session.subscriber("brakes", **settings) as subscriber:
        pipe.send(None)
        while not pipe.poll():
            for got in subscriber.poll(WAIT_MS):
                came = time.perf_counter()
                for number in got.batch.data["seq"].to_pylist():
                    pipe.send((number, came))


if __name__ == "__main__":
    found = measure(int(sys.argv[1]))
    sys.stderr.write(json.dumps({name: statistics.median(one) for name, one in found.items()}) + "\n")
    sys.stdout.write(json.dumps(found) + "\n")
