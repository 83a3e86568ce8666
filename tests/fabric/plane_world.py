"""Each data plane with something plugged into every port, and the oracle, all asked the same way."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import lab
from interpreter import Interpreter

from tallystick.carriers.fabric.ebpf_plane import EbpfPlane
from tallystick.carriers.fabric.entries import (
    DataPlane,
    Entries,
    NextKey,
    RouteAction,
    RouteVerdict,
    SwitchEntry,
    match_of,
)
from tallystick.carriers.fabric.frame_plane import DATAGRAMS, FramePlane, Pipeline, relabelled
from tallystick.carriers.fabric.route import RouteHeader, control, publication
from tallystick.carriers.fabric.wires import datagram_wire

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent.parent / "vectors" / "fabric.json").read_text())
PORTS: list[int] = VECTORS["ports"]
REAL = ("ebpf", "clsact", "packet")

SENTINELS = 0xFFFF  # an epoch of flows to each port from each, behind which nothing is on its way any more

Frames = list[tuple[int, bytes]]


def entries(of: dict[str, Any]) -> list[SwitchEntry]:
    """Those of the file, as planes take them."""
    found = [
        SwitchEntry(Entries.NEXT_LABELS, NextKey(match_of((epoch, bytes.fromhex(label))), port), bytes.fromhex(after))
        for epoch, label, port, after in of["next_labels"]
    ]
    groups = {int(group): tuple((port, at) for at, port in enumerate(ports)) for group, ports in of["groups"].items()}
    found += [SwitchEntry(Entries.GROUPS, *one) for one in groups.items()]
    return found + [
        SwitchEntry(
            Entries.PUBLICATIONS,
            match_of((epoch, bytes.fromhex(label))),
            RouteAction(RouteVerdict[verdict.upper()], argument),
        )
        for epoch, label, verdict, argument in of["publications"]
    ]


class Subject(Protocol):
    def put(self, entry: SwitchEntry) -> None: ...

    def arrive(self, port: int, frame: bytes) -> None: ...

    def out(self, port: int, frame: bytes) -> None: ...

    def left(self) -> Frames:
        """All that left since the last call, in order of port and bytes; port 510 stands for packet-ins."""
        ...

    def close(self) -> None: ...


class Oracle:
    """The interpreter, at whose ports nothing is plugged in but at those of the file."""

    def __init__(self) -> None:
        self.interpreter = Interpreter()
        self._left: Frames = []

    def put(self, entry: SwitchEntry) -> None:
        if entry.kind is Entries.GROUPS:
            self.interpreter.groups[entry.key] = tuple(port for port, _instance in entry.value)
        elif entry.kind is Entries.NEXT_LABELS:
            key = int.from_bytes(entry.key.match[:2]), int.from_bytes(entry.key.match[2:]), entry.key.port
            after = int.from_bytes(entry.value)
            self.interpreter.put("PubSubEgress.next_labels", key, "PubSubEgress.relabel", after)
        else:
            match = int.from_bytes(entry.key[:2]), int.from_bytes(entry.key[2:])
            verdict, argument = entry.value
            arguments = () if verdict is RouteVerdict.DROP else (argument,)
            name = f"PubSubIngress.{verdict.name.lower()}"
            self.interpreter.put("PubSubIngress.publications", match, name, *arguments)

    def arrive(self, port: int, frame: bytes) -> None:
        self._keep(self.interpreter.process(port, frame))

    def out(self, port: int, frame: bytes) -> None:
        self._keep(self.interpreter.process(510, (port << 7).to_bytes(2) + frame))

    def _keep(self, frames: Frames) -> None:
        for port, frame in frames:
            if port == 510:
                assert int.from_bytes(frame[:2]) >> 7 in PORTS
                self._left.append((510, frame[2:]))
            elif port in PORTS:
                self._left.append((port, frame))

    def left(self) -> Frames:
        found, self._left = sorted(self._left), []
        return found

    def close(self) -> None:
        pass


class Bare:
    """The Python pipeline with no socket around it."""

    def __init__(self) -> None:
        self.pipeline = Pipeline()
        self._left: Frames = []

    def put(self, entry: SwitchEntry) -> None:
        self.pipeline.put(entry)

    def arrive(self, port: int, frame: bytes) -> None:
        self._left += self.pipeline.receive(port, frame)

    def out(self, port: int, frame: bytes) -> None:
        self._left.append((port, relabelled(self.pipeline.tables, port, frame)))

    def left(self) -> Frames:
        found = [one for one in self._left if one[0] in (*PORTS, 510)]
        self._left = []
        return sorted(found)

    def close(self) -> None:
        pass


class Plugged:
    """A real plane, between taps."""

    def __init__(self, plane: DataPlane, taps: dict[int, lab.Tap], close: Callable[[], None]) -> None:
        self.plane, self.taps, self._close = plane, taps, close
        self._packet_ins: Frames = []
        self._last = {port: publication(RouteHeader(SENTINELS, port.to_bytes(16)), b"no more") for port in taps}
        for port, last in self._last.items():
            self.plane.put(SwitchEntry(Entries.PUBLICATIONS, last[16:34], RouteAction(RouteVerdict.FORWARD, port)))
        self.plane.start(lambda port, frame: self._packet_ins.append((port, frame)))

    def put(self, entry: SwitchEntry) -> None:
        self.plane.put(entry)

    def arrive(self, port: int, frame: bytes) -> None:
        self.taps[port].send(frame)

    def out(self, port: int, frame: bytes) -> None:
        self.plane.send(port, frame)

    def left(self) -> Frames:
        last_word = control(b"no more")
        for tap in self.taps.values():  # a switch may take ports in any order, but each port's frames in theirs
            for last in (*self._last.values(), last_word):
                tap.send(last)
        found: Frames = []
        for port, tap in self.taps.items():
            for _ in self.taps:
                while (frame := tap.hear()) != self._last[port]:
                    assert frame is not None, f"port {port} is silent"
                    found.append((port, frame))
        assert lab.eventually(lambda: sum(word == last_word for _at, word in self._packet_ins) == len(self.taps))
        found += [(510, word) for _at, word in self._packet_ins if word != last_word]
        self._packet_ins.clear()
        return sorted(found)

    def close(self) -> None:
        self.plane.close()
        self._close()


def real_plane(name: str, interfaces: dict[int, str]) -> DataPlane:
    """Raises `Unavailable` where this process may not."""
    if name == "packet":
        return FramePlane.on_interfaces(interfaces)
    return EbpfPlane(interfaces, clsact=name == "clsact")


def plugged(name: str, ports: list[int] = PORTS) -> Plugged:
    if name == "datagrams":
        return Plugged(*on_datagrams(ports))
    bench = lab.Bench(ports)
    plane = bench.switch.run(lambda: real_plane(name, bench.interfaces))
    return Plugged(plane, bench.taps, bench.close)


def on_datagrams(ports: list[int]) -> tuple[FramePlane, dict[int, lab.Tap], Callable[[], None]]:
    """The emulation, what is plugged in, and how to unplug it."""
    outside = {port: socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for port in ports}
    wires = {}
    for port, tap in outside.items():
        tap.bind(("127.0.0.1", 0))
        wires[port] = datagram_wire(("127.0.0.1", 0), tap.getsockname())
        tap.connect(wires[port].getsockname())
    plane = FramePlane(DATAGRAMS, wires)

    def close() -> None:
        for tap in outside.values():
            tap.close()

    return plane, {port: lab.Tap(tap) for port, tap in outside.items()}, close


def random_frames(rng: random.Random, count: int) -> Frames:
    """Frames near what the tables know: right ones, and right ones cut, altered or of another kind."""
    labels = [bytes.fromhex(label) for _epoch, label, _verdict, _argument in VECTORS["entries"]["publications"]]
    frames = []
    for number in range(count):
        epoch = rng.choice([9, 9, 9, 10, rng.randrange(65_536)])
        payload = number.to_bytes(4) + rng.randbytes(rng.choice([0, 1, 60, 200, 1400]))
        frame = bytearray(publication(RouteHeader(epoch, rng.choice(labels), rng.randrange(256)), payload))
        match rng.randrange(8):
            case 0:
                frame[rng.randrange(12, 34)] = rng.randrange(256)
            case 1:
                frame = frame[: rng.randrange(14, 36)]
            case 2:
                frame = bytearray(control(payload))
            case 3:
                frame[12:12] = rng.choice([b"\x81\x00\x00\x07", b"\x88\xa8\x00\x07", b"\x08\x00", b"\x90\x04"])
            case 4:
                frame[:12] = rng.randbytes(12)
        frames.append((rng.choice(PORTS), bytes(frame)))
    return frames
