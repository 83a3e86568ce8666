"""A fabric for tests: a tenant's dispatcher on the stack's ledger, switches, a controller, and hosts of principals.

Switches are the emulation over datagrams on loopback, driven over P4Runtime; everything else is what runs elsewhere.

with fabric_of(tmp_path) as town:
    car, reader = town.member("car", "s0"), town.member("reader", "s1")
    token = town.topic("brakes", car, reader)
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from actors import SCHEMA, await_topic
from mesh_stack import KeyMaker, MemberNode
from stack import READ, WRITE, Stack, wait_until

from tallystick.carriers.fabric.configurator import ConfiguratorSettings
from tallystick.carriers.fabric.controller import ControllerSettings, FabricController
from tallystick.carriers.fabric.direct import FILE, ask_card, give_kit, join_fabric
from tallystick.carriers.fabric.entries import DataPlane
from tallystick.carriers.fabric.floods import FloodLimits
from tallystick.carriers.fabric.frame_plane import FramePlane
from tallystick.carriers.fabric.host_kit import FabricKit
from tallystick.carriers.fabric.p4_client import P4RuntimeSwitch
from tallystick.carriers.fabric.p4_server import SwitchServer
from tallystick.carriers.fabric.server import DispatcherStation, FabricHolder
from tallystick.carriers.fabric.topology import ProbeLimits
from tallystick.carriers.fabric.trees import PortPlace
from tallystick.carriers.mesh.kit import MeshKit, MeshTopicKeys
from tallystick.client.session import Session
from tallystick.engines.fabric_dispatchers import RemoteDispatchers
from tallystick.identity.choices import CarrierChoice, choose_carrier
from tallystick.identity.folder import Identity
from tallystick.node.node import Node
from tallystick.node.processes import free_ports
from tallystick.node.settings import NodeSettings

NAME = "city"
SWITCHES = ("s0", "s1")
HOST_PORTS = range(100, 106)
Address = tuple[str, int]


def station_of(node: Node) -> FabricHolder:
    return cast(FabricHolder, cast(Any, node.core.anchorer)._carrier)


class FabricTown:
    """Two switches with a link between them, and room for hosts at each."""

    step_s, probe_s = 0.02, 0.2  # quicker than elsewhere: tests wait for what happens then

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.owner = stack.tenant("acme")
        self.operator = stack.principal("acme", "configurator")
        self._become_dispatcher()
        self.maker = KeyMaker(stack.entropy.bytes(32), stack.clock)
        self.ends = self._addresses()
        self.servers: dict[str, SwitchServer] = {}
        drivers: dict[str, P4RuntimeSwitch] = {}
        for device, name in enumerate(SWITCHES, 1):
            self.servers[name] = SwitchServer(device, self.plane(name), stack.clock)
            drivers[name] = P4RuntimeSwitch(name, device, f"127.0.0.1:{self.servers[name].start()}")
        self.drivers = drivers
        node = stack.node.identifier.hex()
        self.dispatchers = RemoteDispatchers({node: self.operator.node}, self.step_s)
        settings = ControllerSettings(
            ports={name: [place.port for place in self.ends if place.switch == name] for name in SWITCHES},
            dispatchers={node},
            configurator=ConfiguratorSettings(gather_s=0.5),
            probes=ProbeLimits(probe_s=self.probe_s, expiry_s=2.0, lost_s=5.0),
            floods=FloodLimits(packet_ins_per_s=200, packet_ins_burst=1_000),  # tests ask more than people do
            step_s=self.step_s,
        )
        key = stack.entropy.bytes(32)
        self.controller = FabricController(
            key, drivers, lambda _: 1, self.dispatchers, stack.clock, stack.entropy, settings
        )
        self.dispatchers.start(self.controller.receive)
        self.controller.start()
        wait_until(lambda: self.controller.statistics().links == 1)
        self.nodes: dict[str, MemberNode] = {}
        self.places: dict[str, PortPlace] = {}
        self._kits: dict[str, MeshKit] = {}
        self._chosen: dict[str, dict[str, str]] = {}
        self._ports: dict[str, int] = {}

    def _become_dispatcher(self) -> None:
        """The node of the topics stops, and starts again as the tenant's dispatcher."""
        who = {"fabric_configurator": self.operator, "fabric_principal": self.owner}
        self.stack.stop_node()
        self.stack._node_settings |= {
            "carrier": f"fabric://{NAME}",
            "carrier_settings": {key: one.identity.principal.hex() for key, one in who.items()},
        }
        self.stack.start_node()

    def _addresses(self) -> dict[PortPlace, tuple[Address, Address]]:
        """By port of a switch, its own address and that at the other end."""
        places = [PortPlace(name, port) for name in SWITCHES for port in HOST_PORTS]
        numbers = iter([("127.0.0.1", port) for port in free_ports(2 * len(places) + 2)])
        found = {place: (next(numbers), next(numbers)) for place in places}
        near, far = next(numbers), next(numbers)
        return found | {PortPlace("s0", 1): (near, far), PortPlace("s1", 1): (far, near)}

    def plane(self, switch: str) -> DataPlane:
        return FramePlane.on_datagrams(
            {place.port: ends for place, ends in self.ends.items() if place.switch == switch}
        )

    def interface(self, place: PortPlace) -> str:
        """Of the host at a port."""
        there, here = self.ends[place]
        return "datagrams:{}:{}>{}:{}".format(*here, *there)

    def plug(self, name: str, switch: str = "s0") -> tuple[Session, MemberNode]:
        """A principal, and its host, which has no kit yet."""
        session = self.stack.principal("acme", name)
        taken = sum(place.switch == switch for place in self.places.values())
        place = self.places[name] = PortPlace(switch, HOST_PORTS[taken])
        self._chosen[name] = {
            "fabric_principal": session.identity.principal.hex(),
            "fabric_interface": self.interface(place),
        }
        return session, self.start(name)

    def member(self, name: str, switch: str = "s0") -> Session:
        """A principal with its host, which has keys of no topic."""
        session, node = self.plug(name, switch)
        card = ask_card(session.node)
        identity = replace(session.identity, node_urls=(node.url,), nodes=(node.keys.certificate,))
        self._kits[name] = self.maker.kit(name)
        host = self.stack.session(identity)
        key = give_kit(host.node, FabricKit(card, self._kits[name]))
        join_fabric(identity.home, NAME, card, key)
        wait_until(lambda: self.controller.topology.is_host(self.places[name], time.time()))
        return self.stack.session(identity)

    def beside(self, session: Session, **topics: bytes) -> Session:
        """The same member as its folder has it: these topics over the fabric, all others by the instance's node."""
        home, known = session.identity.home, session.identity
        told = json.loads((home / FILE).read_text())
        (home / FILE).unlink()
        tokens = {name: token.hex() for name, token in topics.items()}
        way = CarrierChoice(f"fabric://{told.pop('fabric')}", known.node_urls[0], known.nodes[0], tokens, settings=told)
        choose_carrier(home, way)
        return self.stack.session(Identity.load(home))

    def start(self, name: str) -> MemberNode:
        folder = self.stack.folders.root / f"fabric-{name}"
        settings: dict[str, Any] = {**self.stack._node_settings, "carrier_settings": self._chosen[name]}
        settings["port"] = self._ports.get(name, 0)
        node = self.nodes[name] = MemberNode(self.stack, folder, NodeSettings(**settings))
        self._ports[name] = node.server.port
        return node

    def equip(self, session: Session, *topics: MeshTopicKeys) -> None:
        name = session.identity.name
        self._kits[name] = replace(self._kits[name], topics=(*self._kits[name].topics, *topics))
        give_kit(session.node, FabricKit(self.dispatcher.role.keys.card, self._kits[name]))

    def node_of(self, session: Session) -> MemberNode:
        return self.nodes[session.identity.name]

    @property
    def dispatcher(self) -> DispatcherStation:
        return cast(DispatcherStation, self.stack.node.core.anchorer)

    def topic(self, name: str, writer: Session, *readers: Session, partitions: int = 1, schema: str = SCHEMA) -> bytes:
        token = self.stack.topic(self.owner, name, schema, partitions=partitions)
        self.stack.grant(self.owner, token, writer, WRITE)
        self.equip(writer, self.maker.topic(writer.identity.name, token, reads=False, publishes=True))
        for reader in readers:
            self.stack.grant(self.owner, token, reader, READ)
            self.equip(reader, self.maker.topic(reader.identity.name, token, reads=True, publishes=False))
        await_topic(self.stack, token)
        return token

    def end(self) -> None:
        for node in self.nodes.values():
            node.end()
        self.controller.stop()
        self.dispatchers.stop()
        for driver in self.drivers.values():
            driver.close()
        for server in self.servers.values():
            server.close()


@contextmanager
def fabric_of(folder: Path) -> Iterator[FabricTown]:
    with Stack(folder, node={"block_ms": 50}) as stack, ExitStack() as closing:
        town = FabricTown(stack)
        closing.callback(town.end)
        yield town
