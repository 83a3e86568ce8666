"""The data plane in the kernel: eBPF on every port, tables in maps, frames that Python never sees.

The program means the same as program/pubsub.p4 (frame_plane.py says what is easily got wrong). A frame whose label has
no rule is dropped, in the kernel, before anything else sees it, and counted by the interface where it came in. Control
frames are left to the packet socket of the controller's side. The kernel takes a VLAN tag off before it asks, so that a
tagged frame looks like ours: it is dropped, as the program does, which knows no tags.

Where the kernel has TCX (6.6 and later) a program hangs on a link, and goes with the process. Older kernels have a
clsact filter, which stays when the process is killed: the next start on the interface takes its place.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from tallystick.carriers.fabric import bpf, entries
from tallystick.carriers.fabric.bpf import ARRAY, HASH, RESULT, STACK, Assembler, BpfMap, Register, Stack
from tallystick.carriers.fabric.entries import Entries, PlaneStatistics, RouteVerdict, SwitchEntry
from tallystick.carriers.fabric.frame_plane import relabelled
from tallystick.carriers.fabric.route import ETHERNET_BYTES, ETHERTYPE_CONTROL, ROUTE_BYTES, ROUTE_VERSION
from tallystick.carriers.fabric.rules import GROUP_PORTS_MAX, GROUPS_MAX, TABLE_MAX
from tallystick.carriers.fabric.wires import PortWires, packet_wires

PUBLICATION = struct.Struct("=IIQQ")  # verdict, argument, packets, bytes
NUMBER = struct.Struct("=I")
NEXT_KEY = struct.Struct("=18sH")  # match, port
GROUP_BYTES = 4 + 2 * GROUP_PORTS_MAX  # count, ports
ARRIVALS = struct.Struct("=4Q")  # of one interface, in the order of `PlaneStatistics`
_RECEIVED, _UNMATCHED, _MALFORMED, _TO_CONTROLLER = range(0, ARRIVALS.size, 8)

# Fields of the kernel's `__sk_buff`, and helpers by their numbers.
_LEN, _PROTOCOL, _VLAN_PRESENT, _INTERFACE = 0, 16, 20, 40
_LOOK_UP, _STORE_BYTES, _CLONE_REDIRECT, _REDIRECT, _LOAD_BYTES = 1, 9, 13, 23, 26
_PASS, _DROP = 0, 2

# What registers hold from one call to the next. 1 to 5 are for a few instructions.
FRAME, ARRIVED, GROUP, COPY, OUT = Register(6), Register(7), Register(7), Register(8), Register(9)

# On the stack: the route header, and behind it room for a port, so that header[2:] and port are a key of next_labels.
_NUMBER, _ROUTE, _MATCH, _LABEL, _PORT = map(Stack, (-32, -24, -22, -20, -24 + ROUTE_BYTES))

_LABEL_IN_FRAME = ETHERNET_BYTES + 4


class SwitchMaps:
    def __init__(self) -> None:
        """Raises `Unavailable` where this process may not."""
        self.publications = BpfMap(HASH, 18, PUBLICATION.size, TABLE_MAX)
        self.next_labels = BpfMap(HASH, NEXT_KEY.size, 16, TABLE_MAX)
        self.groups = BpfMap(HASH, 4, GROUP_BYTES, GROUPS_MAX)
        self.interfaces = BpfMap(ARRAY, 4, 4, 512)  # by port
        self.arrivals = BpfMap(HASH, 4, ARRIVALS.size, 512)  # by interface


def switch_program(maps: SwitchMaps) -> bytes:
    """The instructions for frames that arrive at any port."""
    a = Assembler()
    a.move(FRAME, Register(1))
    a.load(1, FRAME, _INTERFACE, 4)
    a.store(_NUMBER, 1, 4)
    _look_up(a, maps.arrivals, _NUMBER, "drop")
    a.move(ARRIVED, RESULT)
    _count(a, _RECEIVED)
    a.load(1, FRAME, _VLAN_PRESENT, 4)
    a.jump_unless(1, 0, "malformed")
    a.load(1, FRAME, _LEN, 4)
    a.jump_at_least(1, entries.FRAME_BYTES_MAX + 1, "malformed")
    a.load(1, FRAME, _PROTOCOL, 4)
    a.jump_if(1, int.from_bytes(b"\x90\x03", sys.byteorder), "control")
    a.jump_unless(1, int.from_bytes(b"\x90\x04", sys.byteorder), "malformed")

    a.call(_LOAD_BYTES, FRAME, ETHERNET_BYTES, _ROUTE, ROUTE_BYTES)
    a.jump_unless(RESULT, 0, "malformed")  # a runt
    a.load(1, STACK, _ROUTE, 1)
    a.jump_unless(1, ROUTE_VERSION, "malformed")

    _look_up(a, maps.publications, _MATCH, "unmatched")
    a.move(1, 1)
    a.count(RESULT, 8, 1)
    a.load(1, FRAME, _LEN, 4)
    a.count(RESULT, 16, 1)
    a.load(OUT, RESULT, 4, 4)
    a.load(1, RESULT, 0, 4)
    a.jump_if(1, RouteVerdict.FORWARD, "forward")
    a.jump_unless(1, RouteVerdict.MULTICAST, "drop")
    a.jump_if(OUT, 0, "forward")  # group 0 is none

    a.store(_NUMBER, OUT, 4)
    _look_up(a, maps.groups, _NUMBER, "drop")
    a.move(GROUP, RESULT)
    a.move(COPY, 0)
    a.place("next port")
    a.load(1, GROUP, 0, 4)
    a.jump_at_least(COPY, Register(1), "drop")  # all have theirs
    a.jump_at_least(COPY, GROUP_PORTS_MAX, "drop")  # for the verifier
    a.move(1, GROUP)
    a.add(1, COPY)
    a.add(1, COPY)
    a.load(OUT, 1, 4, 2)
    a.add(COPY, 1)
    _look_up_interface(a, maps, "next port")
    a.load(1, FRAME, _INTERFACE, 4)
    a.jump_if(OUT, Register(1), "next port")  # a copy never returns the way it came
    _relabel(a, maps, "copy", "next port")
    a.call(_CLONE_REDIRECT, FRAME, OUT, 0)
    a.jump("next port")

    a.place("forward")
    _look_up_interface(a, maps, "drop")
    _relabel(a, maps, "whole", "drop")
    a.call(_REDIRECT, OUT, 0)
    a.leave(RESULT)

    a.place("control")
    _count(a, _TO_CONTROLLER)
    a.leave(_PASS)
    a.place("unmatched")
    _count(a, _UNMATCHED)
    a.jump("drop")
    a.place("malformed")
    _count(a, _MALFORMED)
    a.place("drop")
    a.leave(_DROP)
    return a.code()


def _look_up_interface(a: Assembler, maps: SwitchMaps, otherwise: str) -> None:
    """`OUT` is a port, and then its interface. Where there is none, go on `otherwise`."""
    a.store(_PORT, OUT, 2)
    a.store(_NUMBER, OUT, 4)
    _look_up(a, maps.interfaces, _NUMBER, otherwise)
    a.load(OUT, RESULT, 0, 4)
    a.jump_if(OUT, 0, otherwise)


def _relabel(a: Assembler, maps: SwitchMaps, name: str, otherwise: str) -> None:
    """Give the frame the label that it has behind the port."""
    _look_up(a, maps.next_labels, _MATCH, f"{name} keeps its label")
    a.jump(f"{name} is labelled")
    a.place(f"{name} keeps its label")
    a.move(RESULT, STACK)
    a.add(RESULT, _LABEL)  # its own: the copy before it may have had another
    a.place(f"{name} is labelled")
    a.call(_STORE_BYTES, FRAME, _LABEL_IN_FRAME, RESULT, 16, 0)
    a.jump_unless(RESULT, 0, otherwise)


def _look_up(a: Assembler, of: BpfMap, key: Stack, otherwise: str) -> None:
    a.call(_LOOK_UP, of, key)
    a.jump_if(RESULT, 0, otherwise)


def _count(a: Assembler, which: int) -> None:
    a.move(1, 1)
    a.count(ARRIVED, which, 1)


# --- the plane ---


class EbpfPlane:
    def __init__(self, interfaces: Mapping[int, str], *, even_if_used: bool = False, clsact: bool = False) -> None:
        """`clsact` is for kernels without TCX, where it is taken anyway. Raises `Misuse` for an interface in use, and
        `Unavailable` where this process may not."""
        self.kind, self.tables = "ebpf", entries.no_entries()
        self._interfaces: dict[int, bytes] = {}  # their numbers, by port
        with ExitStack() as closing:
            self._wires = PortWires(packet_wires(interfaces, even_if_used=even_if_used, only=ETHERTYPE_CONTROL))
            closing.callback(self._wires.close)
            netlink = bpf.Netlink()  # of the namespace that the interfaces are in, whoever closes this
            closing.callback(netlink.close)
            self._maps = SwitchMaps()
            for one in vars(self._maps).values():
                closing.callback(one.close)
            program = bpf.load_program(switch_program(self._maps))
            closing.callback(os.close, program)
            for port, name in interfaces.items():
                interface = socket.if_nametoindex(name)
                number = self._interfaces[port] = NUMBER.pack(interface)
                self._maps.interfaces.put(NUMBER.pack(port), number)
                self._maps.arrivals.put(number, bytes(ARRIVALS.size))
                closing.callback(_attach(program, interface, netlink, clsact))
            self.start, self.close = self._wires.start, closing.pop_all().close

    def put(self, entry: SwitchEntry) -> None:
        table, key = self._place(entry.kind, entry.key)
        value = entry.value
        if entry.kind is Entries.GROUPS:
            ports = struct.pack(f"={len(value)}H", *(port for port, _instance in value))
            value = (NUMBER.pack(len(value)) + ports).ljust(GROUP_BYTES, b"\0")
        elif entry.kind is Entries.PUBLICATIONS:
            counted = PUBLICATION.unpack(table.get(key) or bytes(PUBLICATION.size))[2:]
            value = PUBLICATION.pack(*value, *counted)
        table.put(key, value)
        self.tables[entry.kind][entry.key] = entry.value

    def delete(self, kind: Entries, key: Any) -> None:
        table, packed = self._place(kind, key)
        table.delete(packed)
        del self.tables[kind][key]

    def _place(self, kind: Entries, key: Any) -> tuple[BpfMap, bytes]:
        if kind is Entries.NEXT_LABELS:
            return self._maps.next_labels, NEXT_KEY.pack(*key)
        if kind is Entries.GROUPS:
            return self._maps.groups, NUMBER.pack(key)
        return self._maps.publications, key

    def counters(self) -> Mapping[bytes, tuple[int, int]]:
        found = ((match, PUBLICATION.unpack(value)) for match, value in self._maps.publications.items())
        return {match: (packets, total) for match, (_verdict, _argument, packets, total) in found}

    def send(self, port: int, frame: bytes) -> None:
        self._wires.send(port, relabelled(self.tables, port, frame))

    def statistics(self) -> PlaneStatistics:
        found = dict(self._maps.arrivals.items())
        arrived = {port: ARRIVALS.unpack(found[number]) for port, number in self._interfaces.items()}
        received, _, malformed, to_controller = (sum(one[at] for one in arrived.values()) for at in range(4))
        unmatched = {port: one[1] for port, one in arrived.items() if one[1]}
        return PlaneStatistics(self.kind, received, unmatched, malformed, to_controller)


def _attach(program: int, interface: int, netlink: bpf.Netlink, clsact: bool) -> Callable[[], None]:
    """Returns what takes it off again."""
    if not clsact:
        with suppress(OSError):
            return partial(os.close, bpf.attach_tcx(program, interface))
    netlink.attach_clsact(program, interface)
    return partial(netlink.detach_clsact, interface)
