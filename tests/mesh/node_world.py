"""Meshes of whole nodes on a simulated network, by name: grown from contacts, or with the links that a test draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

from makers import seed
from mesh_world import AUTHORITY, NOW_MS, mesh_key, publisher

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.envelope import MeshEnvelope
from tallystick.carriers.mesh.forwarding import CoverChoice
from tallystick.carriers.mesh.frames import MeshKind
from tallystick.carriers.mesh.members import MemberEntry
from tallystick.carriers.mesh.membership import Neighbour, ViewLimits
from tallystick.carriers.mesh.mesh_node import MeshNode, MeshSettings, Publication
from tallystick.carriers.mesh.shell_game import ShellGameLimits
from tallystick.crypto.signatures import SigningKey
from tallystick.runtime.effects import Effect, Event, Role, Send
from tallystick.runtime.network import Link, Network, SimClock
from tallystick.runtime.sources import SeededEntropy
from tallystick.trust.mesh import certify_member

NOW = NOW_MS / 1000
DAY_MS = 24 * 3600 * 1000


def entry(name: str, authority: SigningKey = AUTHORITY) -> MemberEntry:
    key = seed(f"mesh link {name}")
    return MemberEntry(key, NOW_MS + DAY_MS, f"{name}.example:1", certify_member(key, NOW_MS + DAY_MS, authority))


class Watched:
    """A node whose frames are counted by kind, as they leave."""

    def __init__(self, node: MeshNode, counts: Counter[str]) -> None:
        self.node, self._counts = node, counts

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects = self.node.receive(event, now)
        for effect in effects:
            if isinstance(effect, Send):
                self._counts[MeshKind(effect.message[2]).name] += 1  # behind the array's head and the version
        return effects


class NodeWorld:
    """Nodes by short names. Times are counted from the start of the world."""

    def __init__(self, number: int, link: Link = Link()) -> None:
        self.network = Network(number, link, SimClock(NOW))
        self.counts: Counter[str] = Counter()
        self.names: dict[str, str] = {}  # by the hex of an identity
        self.identities: dict[str, bytes] = {}
        self._number = number
        self._lives: Counter[str] = Counter()

    @property
    def now(self) -> float:
        return self.network.clock.now()

    def add(self, name: str, contacts: Iterable[str] = (), settings: MeshSettings = MeshSettings()) -> None:
        me, known = entry(name), [entry(one) for one in contacts]
        self.identities[name], self.names[me.identity.hex()] = me.identity, name

        def make(_: Mapping[str, bytes]) -> Role:
            self._lives[name] += 1
            tag = f"{self._number} {name} {self._lives[name]}"
            node = MeshNode(me, known, AUTHORITY.public, Random(tag), SeededEntropy(tag), settings)
            return Watched(node, self.counts)

        self.network.add(me.identity.hex(), make)

    def node(self, name: str) -> MeshNode:
        role = self.network.role(self.identities[name].hex())
        assert isinstance(role, Watched)
        return role.node

    def connect(self, *pairs: tuple[str, str]) -> None:
        """Links of the graph, as if membership had made them."""
        for one, other in (*pairs, *(pair[::-1] for pair in pairs)):
            membership = self.node(one).membership
            membership._renew_at = float("inf")  # or else it would give its entry to the mesh
            membership.known[self.identities[other]] = Neighbour(
                entry(other), held_until=float("inf"), holds_us=True, since=self.now, heard=self.now
            )

    def run(self, seconds: float) -> None:
        self.network.run(self.now + seconds)

    def crash(self, name: str) -> None:
        self.network.crash(self.identities[name].hex())

    def restart(self, name: str) -> None:
        self.network.restart(self.identities[name].hex())

    def alive(self, name: str) -> bool:
        return self.network.alive(self.identities[name].hex())

    def living(self) -> list[str]:
        return [name for name in self.identities if self.alive(name)]

    # --- what is wanted ---

    def subscribe(self, *names: str, topic: str = "brakes") -> None:
        for name in names:
            self.node(name).subscribe(mesh_key(topic).pseudonym)

    def advertise(self, name: str, topic: str = "brakes") -> Publication:
        publication = Publication(publisher(name, topic), mesh_key(topic))
        self.node(name).advertise(publication)
        return publication

    def publish(self, name: str, publication: Publication, parcel: bytes) -> None:
        self.node(name).publish(publication, Pushed(parcel))

    def delivered(self, topic: str = "brakes") -> dict[str, Counter[bytes]]:
        """How often each node delivered which parcel; the empty ones, which only say that the mesh is whole, aside."""
        found: dict[str, Counter[bytes]] = {}
        key = mesh_key(topic)
        for _, name, value in self.network.delivered:
            assert isinstance(value, MeshEnvelope)
            if value.pseudonym == key.pseudonym and (parcel := key.open(value).parcel):
                found.setdefault(self.names[name], Counter())[parcel] += 1
        return found

    # --- what is seen from above ---

    def links(self, topic: str = "brakes") -> dict[str, set[str]]:
        """The mesh of a topic: living members, and who has whom in its table, and is had."""
        pseudonym = mesh_key(topic).pseudonym
        mine = {
            name: {self.names[one.hex()] for one in self.node(name).matching.links(pseudonym)} for name in self.living()
        }
        return {name: {one for one in links if name in mine.get(one, ())} for name, links in mine.items() if links}

    def graph(self) -> dict[str, set[str]]:
        names = self.living()
        near = {name: {self.names[one.hex()] for one in self.node(name).membership.neighbours} for name in names}
        return {name: {one for one in near[name] if name in near.get(one, ())} for name in names}


def reached(links: Mapping[str, set[str]], start: str) -> set[str]:
    found, waiting = {start}, [start]
    while waiting:
        for one in sorted(links.get(waiting.pop(), set()) - found):
            found.add(one)
            waiting.append(one)
    return found


def distances(links: Mapping[str, set[str]], start: str) -> dict[str, int]:
    """Hops from one node to each that it reaches."""
    found, ring = {start: 0}, [start]
    while ring:
        ring = sorted({one for name in ring for one in links.get(name, ())} - set(found))
        found |= dict.fromkeys(ring, max(found.values()) + 1)
    return found


def is_connected(links: Mapping[str, set[str]]) -> bool:
    return not links or reached(links, next(iter(links))) == set(links)


GAME = ShellGameLimits(decide_s=2.0, lock_s=5.0, pause_s=10.0)  # on a network without link beats
STILL = MeshSettings(
    view=ViewLimits(view_max=0), covers=CoverChoice(0.0, 0.0), game=replace(GAME, plays=False)
)  # links as drawn, no tricks


def drawn(number: int, links: str, settings: MeshSettings, **others: MeshSettings) -> NodeWorld:
    """A world with the links "a-b b-c"; some nodes may have settings of their own."""
    world = NodeWorld(number)
    pairs = [(pair.split("-")[0], pair.split("-")[1]) for pair in links.split()]
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        world.add(name, settings=others.get(name, settings))
    world.connect(*pairs)
    return world
