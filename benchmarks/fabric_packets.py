"""Publications through one switch, between veth pairs in network namespaces of its own. Every label is exchanged.

ebpf_200, ebpf_1400     packets a second from one host to another through the switch, frames of so many bytes; *peer* is
                        a direct veth pair between them. Both are sent by `sendmmsg` on a packet socket. The kernel
                        carries a frame to its end inside the call, so the rate is of one core: packets by seconds of
                        processor, in which other processes have no part
ebpf_fanout_200         the same with four subscribers at four ports: publications, each of which leaves four times;
                        *peer* is a direct veth pair to which the host sends each four times itself
packet_whole_200        µs of processor for a publication, from the host's call to the other host's interface: the host
                        that sends, two veth pairs and the switch; *peer* is the same over the direct pair
packet_200              µs of processor that the plane takes of it: the whole less what the sending host costs, which is
                        measured in turns with it on an interface that drops at once. What is left is the switch, and
                        both veth pairs with it; *peer* is 3 µs
afpacket_…              the same for the plane in Python on packet sockets (`afpacket_packet_200` has no peer)
…_latency_200           µs on the clock, from sending a frame at one host's socket to having it at the other's; *peer*
                        is the direct veth pair
flooding_200            µs of processor for a publication that two of eight ports want; *peer* is the same switch
                        flooding all ports
topic_group_200         *peer* is one group for each topic, of four ports, two of which throw the publication away
rules                   flow rules a second, written over P4Runtime by one controller into an empty switch in the same
                        process, by its seconds of processor; each rule with a label of its own and one next label
counters                µs of processor for each rule, of both sides, where a controller asks for the counters of all
                        of them, as it does every second
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "fabric"))  # the tests' laboratory

import harness
import lab
import plane_world

from tallystick.carriers.fabric.entries import DataPlane, Entries, NextKey, RouteAction, RouteVerdict, SwitchEntry
from tallystick.carriers.fabric.p4_client import P4RuntimeSwitch
from tallystick.carriers.fabric.p4_server import SwitchServer
from tallystick.carriers.fabric.route import RouteHeader, publication
from tallystick.carriers.fabric.rules import FlowRule
from tallystick.runtime.sources import SystemClock

EPOCH = 1
UNICAST, FANOUT, FLOOD, TOPIC, EXACT = (number.to_bytes(16) for number in range(1, 6))
BURST = 64  # frames a call
PORTS = range(1, 9)
CPU_US = 3.0  # to reach: under 3 µs of processor a packet
RATIO = 0.6  # to reach: of the direct veth's packets a second


class Blast:
    """Many copies of one frame out of a packet socket, without Python between them."""

    def __init__(self, tap: lab.Tap, frame: bytes) -> None:
        self._tap = tap

        class Iovec(ctypes.Structure):
            _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

        class Message(ctypes.Structure):
            _fields_ = (
                *(("name", ctypes.c_void_p), ("name_bytes", ctypes.c_uint32), ("parts", ctypes.c_void_p)),
                *(("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_bytes", ctypes.c_size_t)),
                *(("flags", ctypes.c_int), ("sent", ctypes.c_uint32)),
            )

        self._frame = ctypes.create_string_buffer(frame, len(frame))
        self._part = Iovec(ctypes.addressof(self._frame), len(frame))
        self._messages = (Message * BURST)()
        for message in self._messages:
            message.parts, message.count = ctypes.addressof(self._part), 1
        self._sendmmsg = ctypes.CDLL(None, use_errno=True).sendmmsg

    def send(self, count: int) -> None:
        while count > 0:
            sent = self._sendmmsg(self._tap.wire.fileno(), self._messages, min(BURST, count), 0)
            if sent <= 0:
                raise OSError(ctypes.get_errno(), "sendmmsg")
            count -= sent


class Arrivals:
    """How many frames an interface has received."""

    def __init__(self, where: lab.Namespace, interface: str) -> None:
        self._interface = interface
        self._table = where.run(lambda: open("/proc/thread-self/net/dev", encoding="ascii"))  # noqa: SIM115

    def count(self) -> int:
        self._table.seek(0)
        (line,) = (line for line in self._table if line.strip().startswith(f"{self._interface}:"))
        return int(line.split(":")[1].split()[1])


@cache
def kernel_threads() -> list[Path]:
    """Those that finish what a sender left."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # processes end
            if (folder / "comm").read_text().startswith("ksoftirqd"):
                found.append(folder / "schedstat")
    return found


def processor_s() -> float:
    """Of this process, and of those threads of the kernel."""
    return time.process_time() + sum(int(path.read_text().split()[0]) for path in kernel_threads()) / 1e9


class Stage:
    """One switch with eight ports and a pair of hosts without one."""

    def __init__(self, plane: str) -> None:
        self.bench = lab.Bench(PORTS)
        lab.connect(self.bench.outside, "d1", self.bench.outside, "d2")
        self.direct = lab.Tap.on(self.bench.outside, "d1")
        self.plane: DataPlane = self.bench.switch.run(lambda: plane_world.real_plane(plane, self.bench.interfaces))
        for label, ports in ((UNICAST, [2]), (FANOUT, [2, 3, 4, 5]), (FLOOD, list(PORTS))):
            self._route(label, ports)
        for label, ports in ((TOPIC, [2, 3, 4, 5]), (EXACT, [2, 3])):
            self._route(label, ports)
        self.plane.start(lambda port, frame: None)
        for tap in self.bench.taps.values():  # nobody listens, at either end
            tap.close() if tap is not self.bench.taps[1] else None

    def _route(self, label: bytes, ports: list[int]) -> None:
        match = EPOCH.to_bytes(2) + label
        for port in ports:
            self.plane.put(SwitchEntry(Entries.NEXT_LABELS, NextKey(match, port), os.urandom(16)))
        number = label[-1]
        self.plane.put(SwitchEntry(Entries.GROUPS, number, tuple((port, 0) for port in ports)))
        is_one = len(ports) == 1
        action = RouteAction(RouteVerdict.FORWARD, ports[0]) if is_one else RouteAction(RouteVerdict.MULTICAST, number)
        self.plane.put(SwitchEntry(Entries.PUBLICATIONS, match, action))

    def close(self) -> None:
        self.plane.close()
        self.direct.close()
        self.bench.taps.pop(1).close()
        self.bench.taps.clear()
        self.bench.close()

    def through(self, label: bytes, size: int, count: int, copies: int) -> Callable[[], float]:
        """µs of processor for each of so many publications; all copies must arrive."""
        frame = publication(RouteHeader(EPOCH, label), bytes(size - 34))
        return self._measured(Blast(self.bench.taps[1], frame), "t2", count, 1, copies)

    def directly(self, size: int, count: int, times: int = 1) -> Callable[[], float]:
        frame = publication(RouteHeader(EPOCH, UNICAST), bytes(size - 34))
        return self._measured(Blast(self.direct, frame), "d2", count, times, 1)

    def sending(self, size: int, count: int) -> Callable[[], float]:
        """µs of processor for sending alone."""
        nowhere = lab.Namespace()
        lab.add_drain(nowhere, "x0")
        blast = Blast(lab.Tap.on(nowhere, "x0"), publication(RouteHeader(EPOCH, UNICAST), bytes(size - 34)))

        def run() -> float:
            started = processor_s()
            blast.send(count)
            return 1e6 * (processor_s() - started) / count

        return run

    def _measured(self, blast: Blast, last: str, count: int, times: int, copies: int) -> Callable[[], float]:
        window = 512  # what a port of the Python plane holds, so that nothing is lost

        arrivals = Arrivals(self.bench.outside, last)

        def run() -> float:
            before, waited = arrivals.count(), 0.0
            started = processor_s()
            for sent in range(0, count, window):
                blast.send(min(window, count - sent) * times)
                if self.plane.kind != "ebpf":
                    goal, pause = before + min(sent + window, count) * times, time.thread_time()
                    while arrivals.count() < goal:
                        time.sleep(0.001)
                    waited += time.thread_time() - pause
            spent = processor_s() - started - waited
            if arrivals.count() - before != count * times:
                raise SystemExit(f"error: {last} has not all {count * times} frames")
            return 1e6 * spent / count

        return run


def in_turns(arms: list[Callable[[], float]], rounds: int) -> list[list[float]]:
    """What each arm says in each round, after one round that does not count."""
    for arm in arms:
        arm()
    taken: list[list[float]] = [[] for _ in arms]
    for turn in range(rounds):
        for at in range(len(arms)) if turn % 2 else reversed(range(len(arms))):
            taken[at].append(arms[at]())
    return taken


def rate(name: str, ours_us: list[float], peer_us: list[float], target: float | None) -> harness.Result:
    """Microseconds of both as packets a second."""
    made = harness.compare(name, ours_us, peer_us, "packets/s", target)
    assert made.peer is not None
    return harness.Result(
        *(name, 1e6 / made.ours, 1e6 / made.peer, made.unit, made.ratio, made.target, made.runs, made.met),
        spread=made.spread,
    )


def latency(stage: Stage, name: str, rounds: int) -> harness.Result:
    """Sockets at both ends, one frame at a time."""
    first, second = stage.bench.taps[1], lab.Tap.on(stage.bench.outside, "t2")
    near, far = stage.direct, lab.Tap.on(stage.bench.outside, "d2")
    frame = publication(RouteHeader(EPOCH, UNICAST), bytes(166))

    def once(sender: lab.Tap, receiver: lab.Tap) -> float:
        receiver.wire.settimeout(5)
        started = time.perf_counter()
        sender.wire.send(frame)
        receiver.wire.recv(2_048)
        return 1e6 * (time.perf_counter() - started)

    def median(sender: lab.Tap, receiver: lab.Tap) -> float:
        return statistics.median(once(sender, receiver) for _ in range(200))

    ours, peer = in_turns([lambda: median(first, second), lambda: median(near, far)], rounds)
    second.close()
    far.close()
    return harness.compare(name, ours, peer, "µs")


def plane_rows(plane: str, prefix: str, rounds: int, count: int) -> Iterator[harness.Result]:
    stage = Stage(plane)
    is_kernel = plane == "ebpf"
    target = RATIO if is_kernel else None
    try:
        arms = [stage.through(UNICAST, 200, count, 1), stage.directly(200, count), stage.sending(200, count)]
        ours, peer, sending = in_turns(arms, rounds)
        yield rate(f"{prefix}_200", ours, peer, target)
        limit = [CPU_US] * rounds if is_kernel else None
        name = "packet_200" if is_kernel else f"{prefix}_packet_200"
        yield harness.compare(name.replace("packet_200", "packet_whole_200"), ours, peer, "µs of processor")
        taken = [max(0.01, whole - part) for whole, part in zip(ours, sending, strict=True)]
        yield harness.compare(name, taken, limit, "µs of processor", 1.0 if is_kernel else None)
        ours, peer = in_turns([stage.through(UNICAST, 1400, count, 1), stage.directly(1400, count)], rounds)
        yield rate(f"{prefix}_1400", ours, peer, None)
        fewer = count // 4
        ours, peer = in_turns([stage.through(FANOUT, 200, fewer, 4), stage.directly(200, fewer, 4)], rounds)
        yield rate(f"{prefix}_fanout_200", ours, peer, None)
        yield latency(stage, f"{prefix}_latency_200", rounds)
        if is_kernel:
            exact, flood, topic = in_turns(
                [stage.through(label, 200, fewer, 2) for label in (EXACT, FLOOD, TOPIC)], rounds
            )
            yield harness.compare("flooding_200", exact, flood, "µs of processor")
            yield harness.compare("topic_group_200", exact, topic, "µs of processor")
    finally:
        stage.close()


def rule_rows(rounds: int, count: int) -> Iterator[harness.Result]:
    rates, asked = [], []
    for turn in range(rounds):
        bench = lab.Bench([1, 2])
        plane = bench.switch.run(lambda bench=bench: plane_world.real_plane("ebpf", bench.interfaces))
        server = SwitchServer(1, plane, SystemClock())
        controller = P4RuntimeSwitch("one", 1, f"127.0.0.1:{server.start()}")
        controller.lead(1)
        rules = [FlowRule(turn, os.urandom(16), ((2, os.urandom(16)),)) for _ in range(count)]
        started = time.process_time()
        controller.write({rule.key: rule for rule in rules})
        rates.append(count / (time.process_time() - started))
        if len(controller.counters()) != count:
            raise SystemExit("error: the switch has not all rules")
        started = time.process_time()
        controller.counters()
        asked.append(1e6 * (time.process_time() - started) / count)
        controller.close()
        server.close()
        bench.close()
    yield harness.compare("rules", rates, None, "rules/s")
    yield harness.compare("counters", asked, None, "µs/rule")


def rows(quick: bool, rounds: int | None) -> Iterator[harness.Result]:
    """Raises `SystemExit` where no network namespace can be made."""
    if reason := lab.why_not():
        raise SystemExit(f"error: {reason}")
    rounds, count = rounds or (1 if quick else harness.ROUNDS), 2_000 if quick else 100_000
    yield from plane_rows("ebpf", "ebpf", rounds, count)
    yield from plane_rows("packet", "afpacket", rounds, count // 10)
    yield from rule_rows(min(rounds, 5), 500 if quick else 20_000)
