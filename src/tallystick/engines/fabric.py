"""An operator's fabric from one folder: the switches of this machine, and the controller of all.

    <folder>/fabric.toml       the switches, where they listen, what is plugged into their ports; the dispatchers
    <folder>/fabric.key        from which labels are made; whoever has it and a table knows where flows lead
    <folder>/controller.lease  who of several controllers leads; they share the folder
    <folder>/topology.json     what the controller that leads knows, for commands that show it

A switch without a plane is somebody else's P4Runtime target, at its address. A *trial* needs no privileges: its
switches are the emulation over datagrams on loopback, and says so.
"""

from __future__ import annotations

import json
import os
import threading
import tomllib
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tallystick.carriers.fabric.configurator import ConfiguratorSettings
from tallystick.carriers.fabric.controller import ControllerSettings, FabricController
from tallystick.carriers.fabric.ebpf_plane import EbpfPlane
from tallystick.carriers.fabric.entries import DataPlane
from tallystick.carriers.fabric.frame_plane import FramePlane
from tallystick.carriers.fabric.leases import LeaseFile
from tallystick.carriers.fabric.p4_channel import SwitchTls
from tallystick.carriers.fabric.p4_client import P4RuntimeSwitch
from tallystick.carriers.fabric.p4_server import SwitchServer
from tallystick.carriers.fabric.rules import PORT_MAX
from tallystick.carriers.fabric.trees import FabricLink, PortPlace, TreeKind, Wiring
from tallystick.client.session import Session
from tallystick.engines.fabric_dispatchers import RemoteDispatchers
from tallystick.errors import Misuse
from tallystick.node.processes import free_ports
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import Clock, Entropy
from tallystick.wire import is_number

PLANES = ("ebpf", "packet", "datagrams", "")
SHAPES = ("line", "ring", "tree")
FORMAT = "tallystick fabric 1"
_FILE, _KEY, _TOPOLOGY = "fabric.toml", "fabric.key", "topology.json"
STATE_S = 1.0  # from one writing of what is known to the next


@dataclass(frozen=True)
class SwitchPlan:
    name: str
    device: int
    address: str
    ports: Mapping[int, str]  # an interface, or "HOST:PORT/HOST:PORT" for datagrams
    plane: str = ""  # empty: it runs elsewhere

    def make_plane(self, *, even_if_used: bool = False) -> DataPlane:
        """Raises `Misuse` for an interface in use, and `Unavailable` where this process may not."""
        if self.plane == "ebpf":
            return EbpfPlane(self.ports, even_if_used=even_if_used)
        if self.plane == "packet":
            return FramePlane.on_interfaces(self.ports, even_if_used=even_if_used)
        return FramePlane.on_datagrams({port: _ends(name) for port, name in self.ports.items()})


@dataclass(frozen=True)
class FabricFile:
    switches: tuple[SwitchPlan, ...]
    dispatchers: Mapping[str, str] = field(default_factory=dict)  # by node: the folder of the identity it expects
    declared: tuple[tuple[PortPlace, PortPlace], ...] | None = None
    tree: TreeKind = TreeKind.SPANNING
    tls: Mapping[str, str] = field(default_factory=dict)  # files: key, certificate, roots
    verifying: Mapping[str, int] = field(default_factory=dict)  # by switch: the port of the operator's verifying host

    @classmethod
    def read(cls, folder: Path) -> FabricFile:
        """Raises `Misuse`, naming what is wrong."""
        path = folder / _FILE
        try:
            told = tomllib.loads(path.read_text(encoding="utf-8"))
            switches = tuple(_switch(name, table) for name, table in told["switches"].items())
            links = told.get("links")
            declared = None if links is None else tuple((_place(one), _place(other)) for one, other in links)
            tree, tls = TreeKind(told.get("tree", "spanning")), told.get("tls", {})
            verifying = dict(_place(one) for one in told.get("verifying", ()))
            return cls(switches, told.get("dispatchers", {}), declared, tree, tls, verifying)
        except OSError as error:
            raise Misuse(f"{path}: there is no fabric", hint="tally fabric up DIR --trial ring makes one") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Misuse(f"{path}: {error!r}", hint="docs/guides/fabric.md shows what stands there") from error

    @property
    def channel(self) -> SwitchTls | None:
        """Off loopback controller and switches know each other by certificates."""
        if not self.tls:
            return None
        return SwitchTls(*(Path(self.tls[name]).read_bytes() for name in ("key", "certificate", "roots")))

    def driver(self, plan: SwitchPlan) -> P4RuntimeSwitch:
        return P4RuntimeSwitch(plan.name, plan.device, plan.address, self.channel)


def make_trial(folder: Path, shape: str, switches: int, hosts: int) -> None:
    """Write the file of a fabric of emulated switches, with so many host ports at each. Raises `Misuse` if one is
    there."""
    if (folder / _FILE).exists():
        raise Misuse(f"{folder / _FILE}: there is a fabric", hint="leave --trial out, or name another folder")
    names = [f"s{number}" for number in range(1, switches + 1)]
    parents = range(switches - 1) if shape != "tree" else [(number - 1) // 2 for number in range(1, switches)]
    pairs = [(names[parent], names[number]) for number, parent in enumerate(parents, 1)]
    if shape == "ring" and switches > 2:
        pairs.append((names[-1], names[0]))
    ports: dict[str, dict[int, str]] = {name: {} for name in names}
    free = iter(free_ports(2 * len(pairs) + (2 * hosts + 1) * switches))
    for pair in pairs:
        ends = [f"127.0.0.1:{next(free)}" for _ in pair]
        for name, wire in zip(pair, (ends, ends[::-1]), strict=True):
            ports[name][len(ports[name]) + 1] = "/".join(wire)
    lines = []
    for device, name in enumerate(names, 1):
        for port in range(101, 101 + hosts):
            ports[name][port] = f"127.0.0.1:{next(free)}/127.0.0.1:{next(free)}"
        lines += [f"[switches.{name}]", f"device = {device}", f'address = "127.0.0.1:{next(free)}"']
        lines += ['plane = "datagrams"', f"[switches.{name}.ports]"]
        lines += [f'{port} = "{wire}"' for port, wire in ports[name].items()] + [""]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / _FILE).write_text("\n".join(lines), encoding="utf-8")


class FabricCrew:
    """The switches of this machine and a controller, at work until `stop`."""

    def __init__(self, folder: Path, clock: Clock, entropy: Entropy) -> None:
        """Raises `Misuse` and `Unavailable`, and then nothing runs."""
        self.file, self._folder = FabricFile.read(folder), folder
        self._stopping, self._closing = threading.Event(), ExitStack()
        with ExitStack() as closing:
            for plan in self.file.switches:
                if plan.plane:
                    server = SwitchServer(plan.device, plan.make_plane(), clock, tls=self.file.channel)
                    closing.callback(server.close)
                    server.start(plan.address)
            drivers = {plan.name: self.file.driver(plan) for plan in self.file.switches}
            for driver in drivers.values():
                closing.callback(driver.close)
            homes = {node: Path(home) for node, home in self.file.dispatchers.items()}
            sessions = {node: closing.enter_context(Session.open(home)) for node, home in homes.items()}
            dispatchers = RemoteDispatchers({node: session.node for node, session in sessions.items()})
            lease = LeaseFile(RealDisk(folder), entropy.bytes(16))
            settings = ControllerSettings(
                ports={plan.name: sorted(plan.ports) for plan in self.file.switches},
                declared=self.file.declared,
                dispatchers=frozenset(self.file.dispatchers),
                verifying=self.file.verifying,
                configurator=ConfiguratorSettings(tree=self.file.tree),
            )
            self.controller = FabricController(
                fabric_key(folder, entropy), drivers, lease.take, dispatchers, clock, entropy, settings
            )
            dispatchers.start(self.controller.receive, lambda: self.controller.configurator is not None)
            closing.callback(dispatchers.stop)
            self.controller.start()
            closing.callback(self.controller.stop)
            self._closing = closing.pop_all()

    def run(self) -> None:
        """Until `stop`: write down what is known."""
        while not self._stopping.wait(STATE_S):
            self.write_state()

    def write_state(self) -> None:
        """Where it leads; another writes where another leads."""
        configurator = self.controller.configurator
        if configurator is None:
            return
        with suppress(RuntimeError):  # the controller changed it meanwhile: next time
            statistics = asdict(configurator.statistics())
            state = {
                "format": FORMAT,
                "links": sorted([*link.a, *link.b, link.latency_us] for link in configurator.wiring.links),
                "flows": {name.hex(): flow.request.switch for name, flow in configurator.book.flows.items()},
                "epochs": list(configurator.book.epochs),
                "hosts": sorted([*place] for place in self.controller.topology.hosts()),
                "statistics": statistics,
                "findings": [str(one) for one in self.controller.statistics().findings],
            }
            new = self._folder / f"{_TOPOLOGY}.new"
            new.write_text(json.dumps(state) + "\n", encoding="utf-8")
            new.replace(self._folder / _TOPOLOGY)

    def stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        self._closing.close()


def fabric_key(folder: Path, entropy: Entropy) -> bytes:
    """The one in the folder, drawn the first time."""
    path = folder / _KEY
    if not path.exists():
        with suppress(FileExistsError), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(entropy.bytes(32))
    return path.read_bytes()


@dataclass(frozen=True)
class FabricState:
    """What the controller that leads wrote last."""

    wiring: Wiring
    hosts: frozenset[PortPlace]
    flows: Mapping[bytes, str]  # the switch of each flow's publisher
    epochs: tuple[int, ...]
    statistics: Mapping[str, Any]
    findings: tuple[str, ...]  # floods, guesses and who alters frames, the newest last

    @classmethod
    def read(cls, folder: Path) -> FabricState:
        """Raises `Misuse`."""
        path = folder / _TOPOLOGY
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            if told["format"] != FORMAT:
                raise ValueError(f"format {told['format']!r}")
            links = [
                FabricLink.of(PortPlace(a, int(a_port)), PortPlace(b, int(b_port)), int(latency))
                for a, a_port, b, b_port, latency in told["links"]
            ]
            names = [plan.name for plan in FabricFile.read(folder).switches]
            hosts = frozenset(PortPlace(switch, port) for switch, port in told["hosts"])
            flows = {bytes.fromhex(flow): switch for flow, switch in told["flows"].items()}
            said = told["statistics"], tuple(map(str, told["findings"]))
            return cls(Wiring.of(names, links), hosts, flows, tuple(told["epochs"]), *said)
        except OSError as error:
            raise Misuse(f"{path}: no controller has led here yet", hint="tally fabric up DIR") from error
        except (ValueError, KeyError, TypeError) as error:
            raise Misuse(f"{path}: not what tally fabric up wrote: {error!r}") from error


def _switch(name: str, table: Mapping[str, Any]) -> SwitchPlan:
    ports = {int(port): str(wire) for port, wire in table["ports"].items() if is_number(port)}
    plane = table.get("plane", "")
    if plane not in PLANES:
        raise ValueError(f"switch {name}: plane {plane!r}, {', '.join(filter(None, PLANES))} or none expected")
    if len(ports) < len(table["ports"]) or not all(1 <= port <= PORT_MAX for port in ports):
        raise ValueError(f"switch {name}: ports from 1 to {PORT_MAX} expected")
    return SwitchPlan(name, int(table["device"]), str(table["address"]), ports, plane)


def _place(text: str) -> PortPlace:
    """Port 2 of s1 is written `s1:2`."""
    switch, _, port = text.rpartition(":")
    return PortPlace(switch, int(port))


def _ends(wire: str) -> tuple[tuple[str, int], tuple[str, int]]:
    """This end's address and the other's. Raises `Misuse`."""
    places = [end.rpartition(":") for end in wire.split("/")]
    if len(places) != 2 or any(not (host and is_number(port)) for host, _, port in places):
        raise Misuse(f"{wire}: this end's address and the other's expected, as in 127.0.0.1:7001/127.0.0.1:7002")
    (here, _, port), (there, _, other) = places
    return (here, int(port)), (there, int(other))
