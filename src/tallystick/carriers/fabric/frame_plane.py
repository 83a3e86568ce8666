"""The switch program in plain Python, and the data planes made of it: on real interfaces, or on datagrams.

`Pipeline` means the same as program/pubsub.p4; tests hold it against an interpreter of the compiled program. What is
easy to get wrong, and is not an oversight here:

- `multicast(0)` is no multicast: v1model sends the frame to `egress_spec`, which nobody set, so to port 0.
- A multicast copy never returns the way it came, but `forward` does where a rule says so.
- A group may name a port twice, and then it gets two copies.
- The controller's own frames skip `publications`, and so the version, yet `next_labels` renames them too.

`packet` works wherever packet sockets may be opened, also without root inside a user namespace. `datagrams` is an
emulation, for machines where nothing else is allowed: it shows that the rules are right, and says nothing about speed.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tallystick.carriers.fabric import entries
from tallystick.carriers.fabric.entries import Entries, PlaneStatistics, RouteVerdict, SwitchEntry
from tallystick.carriers.fabric.route import HEADER_BYTES, ROUTE_VERSION
from tallystick.carriers.fabric.rules import CONTROLLER_PORT, DROP_PORT, PacketIn
from tallystick.carriers.fabric.wires import PortWires, datagram_wire, packet_wires

PACKET = "packet"
DATAGRAMS = "datagrams (an emulation)"

Out = list[tuple[int, bytes]]

_CONTROL, _PUBLICATION = b"\x90\x03", b"\x90\x04"


class Pipeline:
    """A frame and its port go in, frames and their ports come out. One thread has the frames; another may change
    entries, each of which is in force from one frame to the next."""

    def __init__(self) -> None:
        self.tables = entries.no_entries()
        self.received = self.malformed = self.to_controller = 0
        self.unmatched: Counter[int] = Counter()  # by port
        self._counters: dict[bytes, list[int]] = {}

    def put(self, entry: SwitchEntry) -> None:
        if entry.kind is Entries.PUBLICATIONS:
            self._counters.setdefault(entry.key, [0, 0])
        self.tables[entry.kind][entry.key] = entry.value

    def delete(self, kind: Entries, key: Any) -> None:
        del self.tables[kind][key]
        if kind is Entries.PUBLICATIONS:
            del self._counters[key]

    def counters(self) -> Mapping[bytes, tuple[int, int]]:
        return {match: (packets, total) for match, (packets, total) in self._counters.items()}

    def receive(self, port: int, frame: bytes) -> Out:
        """What leaves the switch when this frame arrives. The controller's port stands for a packet-in."""
        self.received += 1
        kind, is_fit = frame[12:14], len(frame) <= entries.FRAME_BYTES_MAX
        if kind == _PUBLICATION and is_fit and len(frame) >= HEADER_BYTES and frame[14] == ROUTE_VERSION:
            return self._route(port, frame)
        if kind == _CONTROL and is_fit:
            self.to_controller += 1
            return [(CONTROLLER_PORT, frame)]
        self.malformed += 1
        return []

    def _route(self, port: int, frame: bytes) -> Out:
        match = frame[16:HEADER_BYTES]
        found, counter = self.tables[Entries.PUBLICATIONS].get(match), self._counters.get(match)
        if found is None or counter is None:
            self.unmatched[port] += 1
            return []
        counter[0] += 1
        counter[1] += len(frame)
        verdict, argument = found
        outs = [] if verdict is RouteVerdict.DROP else [argument]
        if verdict is RouteVerdict.MULTICAST and argument != 0:
            outs = [to for to, _instance in self.tables[Entries.GROUPS].get(argument, ()) if to != port]
        return [(to, relabelled(self.tables, to, frame)) for to in outs if to != DROP_PORT]


def relabelled(tables: entries.EntryTables, port: int, frame: bytes) -> bytes:
    """A frame, as it leaves by a port."""
    if frame[12:14] != _PUBLICATION or len(frame) < HEADER_BYTES:
        return frame
    match = frame[16:HEADER_BYTES]
    label: bytes = tables[Entries.NEXT_LABELS].get((match, port), match[2:])
    return frame[:18] + label + frame[HEADER_BYTES:]


class FramePlane(Pipeline):
    """The same between sockets."""

    def __init__(self, kind: str, wires: Mapping[int, socket.socket]) -> None:
        super().__init__()
        self.kind, self._wires = kind, PortWires(wires)
        self.close = self._wires.close

    @classmethod
    def on_interfaces(cls, interfaces: Mapping[int, str], *, even_if_used: bool = False) -> FramePlane:
        """Raises `Misuse` for an interface in use, and `Unavailable` where this process may not."""
        return cls(PACKET, packet_wires(interfaces, even_if_used=even_if_used))

    @classmethod
    def on_datagrams(cls, links: Mapping[int, tuple[tuple[str, int], tuple[str, int]]]) -> FramePlane:
        """By port, this end's address and the other's."""
        return cls(DATAGRAMS, {port: datagram_wire(local, remote) for port, (local, remote) in links.items()})

    def send(self, port: int, frame: bytes) -> None:
        self._wires.send(port, relabelled(self.tables, port, frame))

    def start(self, packet_in: PacketIn) -> None:
        def receive(port: int, frame: bytes) -> None:
            for to, one in self.receive(port, frame):
                if to == CONTROLLER_PORT:
                    packet_in(port, one)
                else:
                    self._wires.send(to, one)

        self._wires.start(receive)

    def statistics(self) -> PlaneStatistics:
        return PlaneStatistics(self.kind, self.received, dict(self.unmatched), self.malformed, self.to_controller)
