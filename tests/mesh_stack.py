"""A mesh for tests: forwarders on loopback sockets in one thread, and nodes of principals on the stack's ledger.

with mesh_of(tmp_path, forwarders=5) as town:
    car, reader = town.member("car"), town.member("reader")
    token = town.topic("brakes", car, reader)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from actors import SCHEMA, await_topic
from overlay_stack import Shared
from stack import PASSPHRASE, READ, WRITE, Stack

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.community import CommunityLimits
from tallystick.carriers.mesh.direct import give_kit, join_mesh, leave_mesh
from tallystick.carriers.mesh.forwarding import CoverChoice
from tallystick.carriers.mesh.kit import MeshKit, MeshTopicKeys, show_entry
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.link_layer import Dial
from tallystick.carriers.mesh.members import MemberEntry
from tallystick.carriers.mesh.mesh_keys import MeshKey
from tallystick.carriers.mesh.mesh_node import MeshSettings
from tallystick.carriers.mesh.server import MeshHolder
from tallystick.carriers.mesh.station import MeshOutside, MeshStation
from tallystick.client.session import Session
from tallystick.crypto.exchange import ExchangeKey
from tallystick.crypto.signatures import SigningKey
from tallystick.identity.choices import CarrierChoice, choose_carrier
from tallystick.identity.folder import Identity
from tallystick.ledger.engine import NodeLedger
from tallystick.node.instance import Folders, create_node
from tallystick.node.node import Node
from tallystick.node.processes import free_ports
from tallystick.node.settings import NodeSettings
from tallystick.trust.mesh import certify_member, certify_publisher, epoch_at, mesh_secret

NAME = "city"
PULSE_S = 4.0
BEAT_S = 0.25
LIMITS = replace(MeshLimits(), beat_s=BEAT_S)
SETTINGS = MeshSettings(mesh=LIMITS, covers=CoverChoice(0.2, 0.0), community=CommunityLimits(PULSE_S, 2.5 * PULSE_S))
DAY_MS = 24 * 3600 * 1000


@dataclass
class KeyMaker:
    """What an authority gives to members of a mesh."""

    root: bytes
    clock: Any
    mesh: SigningKey = field(init=False)

    def __post_init__(self) -> None:
        self.mesh = SigningKey.from_seed(self._seed("mesh authority"))

    def _seed(self, name: str) -> bytes:
        return sha256(self.root + name.encode()).digest()

    def kit(self, who: str, *topics: MeshTopicKeys) -> MeshKit:
        lasting, until_ms = self._seed(f"lasting {who}"), int(self.clock.now() * 1000) + DAY_MS
        certificate = certify_member(ExchangeKey(lasting).public, until_ms, self.mesh)
        return MeshKit(self.mesh.public.raw, LIMITS.epoch_ms, lasting, until_ms, certificate, topics)

    def topic(self, who: str, token: bytes, *, reads: bool, publishes: bool, ahead: int = 0) -> MeshTopicKeys:
        """For the epoch that runs, or one so many later."""
        epoch = epoch_at(int(self.clock.now() * 1000), LIMITS.epoch_ms) + ahead
        secret, own = mesh_secret(self.root, token, epoch), self._seed(f"publisher {who} {token.hex()} {epoch}")
        if not publishes:
            return MeshTopicKeys(token, epoch, secret, int(reads))
        pseudonym = MeshKey(secret, epoch).pseudonym
        certificate = certify_publisher(pseudonym, epoch, SigningKey.from_seed(own).public.raw, self.mesh)
        return MeshTopicKeys(token, epoch, secret, int(reads), own, certificate)


class Forwarders:
    """Stations in one thread; `taken` is what came out at them, by their number."""

    def __init__(self, kits: Sequence[MeshKit], outside: MeshOutside) -> None:
        self.taken: list[list[Pushed]] = [[] for _ in kits]
        self.stations: list[MeshStation] = []
        contacts: tuple[MemberEntry, ...] = outside.contacts
        for number, kit in enumerate(kits):
            take = partial(self._take, number)
            self.stations.append(MeshStation(kit, replace(outside, contacts=contacts), take))
            contacts = (*contacts, self.stations[-1].entry)[-3:]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="forwarders", daemon=True)
        self._thread.start()

    def _take(self, number: int, publisher: bytes, pushed: Pushed) -> None:
        self.taken[number].append(pushed)

    async def _run(self) -> None:
        await asyncio.gather(*(station.run() for station in self.stations))

    def end(self) -> None:
        for station in self.stations:
            station.stop()
        self._thread.join(30)


class MemberNode(Node):
    """A principal's own node, on somebody else's ledger."""

    def __init__(self, stack: Stack, folder: Path, settings: NodeSettings) -> None:
        """Made the first time."""
        self.shared = Shared(stack.node.ledger)
        if not Folders(folder).trust.exists():
            now_ms = int(stack.clock.now() * 1000)
            create_node(stack.folders.root, folder, PASSPHRASE, settings, now_ms, stack.entropy)
        super().__init__(Folders(folder).node, stack.clock, settings)
        self.thread = threading.Thread(target=self.run, name="mesh node", daemon=True)
        self.thread.start()

    def _open_ledger(self, folder: Path) -> NodeLedger:
        return super()._open_ledger(folder) if self.settings.ledger else cast(NodeLedger, self.shared)

    @property
    def mesh(self) -> MeshHolder:
        return cast(MeshHolder, cast(Any, self.core.anchorer)._carrier)

    @property
    def station(self) -> MeshStation:
        assert self.mesh.station is not None
        return self.mesh.station

    def end(self) -> None:
        self.server.stop()
        self.thread.join(30)


class MeshTown:
    """Members by name, each with a node of its own; keys come by the node's door."""

    def __init__(self, stack: Stack, forwarders: int, dial: Dial = Dial.PADDED, beat_s: float = BEAT_S) -> None:
        self.stack, self.dial, self._beat_s = stack, dial, beat_s
        self.settings: dict[str, Any] = {**stack._node_settings, "carrier": f"mesh://{NAME}", "port": 0}
        self.maker = KeyMaker(stack.entropy.bytes(32), stack.clock)
        settings = replace(SETTINGS, mesh=replace(LIMITS, beat_s=beat_s))
        outside = MeshOutside(dial=dial, settings=settings)
        self.forwarders = Forwarders([self.maker.kit(f"forwarder {n}") for n in range(forwarders)], outside)
        self.owner = stack.tenant("acme")
        self.nodes: dict[str, MemberNode] = {}
        self._kits: dict[str, MeshKit] = {}
        self._chosen: dict[str, dict[str, str]] = {}
        self._ports: dict[str, int] = {}

    def member(self, name: str) -> Session:
        """A principal with its node, which is in the mesh and has keys of no topic."""
        session = self.stack.principal("acme", name)
        known = self.forwarders.stations[:3]
        self._chosen[name] = {
            "mesh_principal": session.identity.principal.hex(),
            "mesh_listen": f"127.0.0.1:{free_ports(1)[0]}",
            "mesh_dial": self.dial.name.lower(),
            "mesh_beat_s": str(self._beat_s),
            "mesh_mu": "0.2",
            "mesh_nu": "0",
            "mesh_pulse_s": str(PULSE_S),
            "mesh_contacts": ",".join(show_entry(one.entry) for one in known),
        }
        node = self.start(name)
        identity = replace(session.identity, node_urls=(node.url,), nodes=(node.keys.certificate,))
        join_mesh(identity.home, NAME)
        session = self.stack.session(identity)
        self._kits[name] = self.maker.kit(name)
        self.equip(session)
        return session

    def beside(self, session: Session, **topics: bytes) -> Session:
        """The same member as its folder has it: these topics over the mesh, all others by the instance's node."""
        home, known = session.identity.home, session.identity
        leave_mesh(home)
        tokens = {name: token.hex() for name, token in topics.items()}
        choose_carrier(home, CarrierChoice(f"mesh://{NAME}", known.node_urls[0], known.nodes[0], tokens))
        return self.stack.session(Identity.load(home))

    def start(self, name: str) -> MemberNode:
        """Start a member's node; after the first time on the same port."""
        folder = self.stack.folders.root / f"mesh-{name}"
        settings = {**self.settings, "port": self._ports.get(name, 0), "carrier_settings": self._chosen[name]}
        node = self.nodes[name] = MemberNode(self.stack, folder, NodeSettings(**settings))
        self._ports[name] = node.server.port
        return node

    def equip(self, session: Session, *topics: MeshTopicKeys) -> str:
        """Give a member's node more keys; its entry."""
        name = session.identity.name
        self._kits[name] = replace(self._kits[name], topics=(*self._kits[name].topics, *topics))
        return give_kit(session.node, self._kits[name].encode())

    def node_of(self, session: Session) -> MemberNode:
        return self.nodes[session.identity.name]

    def topic(self, name: str, writer: Session, *readers: Session, partitions: int = 1) -> bytes:
        token = self.stack.topic(self.owner, name, SCHEMA, partitions=partitions)
        self.stack.grant(self.owner, token, writer, WRITE)
        self.equip(writer, self.maker.topic(writer.identity.name, token, reads=False, publishes=True))
        for reader in readers:
            self.stack.grant(self.owner, token, reader, READ)
            self.equip(reader, self.maker.topic(reader.identity.name, token, reads=True, publishes=False))
        await_topic(self.stack, token)
        return token

    def is_whole(self, token: bytes, *members: Session) -> bool:
        """Whether these have links of the topic, and for themselves: what comes to a forwarder is passed on alone."""
        return all(is_in(self.node_of(one).station, self.pseudonym(token)) for one in members)

    def pseudonym(self, token: bytes) -> bytes:
        return self.maker.topic("", token, reads=True, publishes=False).key.pseudonym

    def end(self) -> None:
        for node in self.nodes.values():
            node.end()
        self.forwarders.end()


def is_in(station: MeshStation, pseudonym: bytes) -> bool:
    """Whether it has links of the topic, and is there for itself."""
    return bool(station.node.matching.links(pseudonym)) and station.node.community.is_ours(pseudonym)


@contextmanager
def mesh_of(folder: Path, forwarders: int, dial: Dial = Dial.PADDED, beat_s: float = BEAT_S) -> Iterator[MeshTown]:
    with Stack(folder, node={"block_ms": 100}) as stack, ExitStack() as closing:
        town = MeshTown(stack, forwarders, dial, beat_s)
        closing.callback(town.end)
        yield town
