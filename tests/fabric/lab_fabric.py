"""A whole fabric in the laboratory: switches in namespaces of their own with P4Runtime servers, links between them, and
hosts' taps; lines, trees and rings."""

from __future__ import annotations

from collections.abc import Sequence

import plane_world
from lab import Namespace, Tap, connect, set_up

from tallystick.carriers.fabric.p4_client import P4RuntimeSwitch
from tallystick.carriers.fabric.p4_server import SwitchServer
from tallystick.runtime.sources import SystemClock

Link = tuple[str, str]  # of two switches


def line(length: int) -> list[Link]:
    return [(f"s{at}", f"s{at + 1}") for at in range(1, length)]


def ring(length: int) -> list[Link]:
    return [*line(length), (f"s{length}", "s1")]


def tree(length: int, children: int = 2) -> list[Link]:
    """Switches numbered from the root down, row by row."""
    return [(f"s{(at - 2) // children + 1}", f"s{at}") for at in range(2, length + 1)]


class LabFabric:
    """Ports are numbered from 1 at each switch, links before hosts; `ports[switch, neighbour or host]` says which."""

    def __init__(self, links: Sequence[Link], hosts: dict[str, str], plane: str = "ebpf") -> None:
        """`hosts`: by name, the switch that each is plugged into."""
        names = sorted(
            {end for link in links for end in link} | set(hosts.values()), key=lambda name: (len(name), name)
        )
        self.spaces = {name: Namespace() for name in names}
        self.outside = Namespace()  # of all hosts: their interfaces have names of their own
        self.ports: dict[tuple[str, str], int] = {}
        self._counts = dict.fromkeys(names, 0)
        for one, other in links:
            here, there = self._plug(one, other), self._plug(other, one)
            connect(self.spaces[one], f"p{here}", self.spaces[other], f"p{there}")
        self.taps: dict[str, Tap] = {}
        for host, switch in hosts.items():
            connect(self.spaces[switch], f"p{self._plug(switch, host)}", self.outside, host)
            self.taps[host] = Tap.on(self.outside, host)
        self.servers: dict[str, SwitchServer] = {}
        self.addresses: dict[str, str] = {}
        self._drivers: list[P4RuntimeSwitch] = []
        for device, name in enumerate(names, start=1):
            interfaces = {port: f"p{port}" for port in range(1, self._counts[name] + 1)}
            made = self.spaces[name].run(lambda interfaces=interfaces: plane_world.real_plane(plane, interfaces))  # type: ignore[misc]
            self.servers[name] = SwitchServer(device, made, SystemClock())
            self.addresses[name] = f"127.0.0.1:{self.servers[name].start()}"

    def _plug(self, switch: str, what: str) -> int:
        self._counts[switch] += 1
        self.ports[switch, what] = self._counts[switch]
        return self._counts[switch]

    def drivers(self, election: int) -> dict[str, P4RuntimeSwitch]:
        """A controller's drivers, by switch, that lead with this number."""
        found = {}
        for name, server in self.servers.items():
            found[name] = P4RuntimeSwitch(name, server.device, self.addresses[name])
            self._drivers.append(found[name])
            found[name].lead(election)
        return found

    def cut(self, one: str, other: str, *, up: bool = False) -> None:
        """Take a link down at one end (so that both see it), or bring it up again."""
        set_up(self.spaces[one], f"p{self.ports[one, other]}", up=up)

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()
        for server in self.servers.values():
            server.close()
        for tap in self.taps.values():
            tap.close()
        for space in (*self.spaces.values(), self.outside):
            space.close()
