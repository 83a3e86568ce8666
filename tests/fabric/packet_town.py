"""A whole fabric on real interfaces, for a process that is in a network namespace of its own (`unshare -n`).

The process is in the hosts' namespace, where authority, dispatcher, controller and hosts speak over loopback. Each
switch has a namespace of its own, and between them are veth pairs. A host's agent has a packet socket on its end of a
pair. As a script, `packet_town.py FOLDER PLANE`, it publishes rows at one host, reads them at another, and prints what
it saw as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import lab
from actors import read_rows, rows
from fabric_town import SWITCHES, FabricTown, station_of
from stack import Stack

from tallystick.carriers.fabric.ebpf_plane import EbpfPlane
from tallystick.carriers.fabric.entries import DataPlane
from tallystick.carriers.fabric.frame_plane import FramePlane
from tallystick.carriers.fabric.trees import PortPlace

LINK, HOST = 1, 100


class Here(lab.Namespace):
    """The one that this process is in."""

    def __init__(self) -> None:
        self.fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def be_alone() -> None:
    """Set this process's namespace up, which is new: loopback, and nobody who speaks by itself."""
    Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
    lab.set_up(Here(), "lo")


class PacketTown(FabricTown):
    """The town with switches and hosts on veth pairs, one host at each switch."""

    def __init__(self, stack: Stack, plane: str) -> None:
        self._plane_kind, self._spaces, self._here = plane, {name: lab.Namespace() for name in SWITCHES}, Here()
        super().__init__(stack)

    def _addresses(self) -> Any:
        one, other = SWITCHES
        lab.connect(self._spaces[one], f"p{LINK}", self._spaces[other], f"p{LINK}")
        for name, space in self._spaces.items():
            lab.connect(space, f"p{HOST}", self._here, f"{name}-{HOST}")
        return {PortPlace(name, port): () for name in SWITCHES for port in (LINK, HOST)}

    def plane(self, switch: str) -> DataPlane:
        interfaces = {port: f"p{port}" for port in (LINK, HOST)}

        def make() -> DataPlane:
            return EbpfPlane(interfaces) if self._plane_kind == "ebpf" else FramePlane.on_interfaces(interfaces)

        return self._spaces[switch].run(make)

    def interface(self, place: PortPlace) -> str:
        return f"packet:{place.switch}-{place.port}"


def main(folder: Path, plane: str) -> None:
    be_alone()
    with Stack(folder, node={"block_ms": 50}) as stack:
        town = PacketTown(stack, plane)
        try:
            car, reader = town.member("car", "s0"), town.member("reader", "s1")
            town.topic("brakes", car, reader)
            with reader.subscriber("brakes") as subscriber, car.publisher("brakes") as publisher:
                for number in range(20):
                    publisher.send(rows(*range(number * 200, number * 200 + 200)))  # several fragments each
                    assert publisher.flush(30) == 0
                read = read_rows(subscriber, 4_000)
                findings = [one.reason for one in subscriber.findings]
            heard = station_of(town.node_of(reader)).require().statistics()
            told = {
                "is_whole": read == list(range(4_000)),
                "findings": findings,
                "parcels": heard.parcels,
                "heard": heard.heard,
                "dropped": dict(heard.dropped),
                "interface": town.interface(town.places["reader"]),
            }
            sys.stdout.write(json.dumps(told) + "\n")
        finally:
            town.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
