"""An overlay for tests: relays as whole nodes on loopback, in threads of this process, on one ledger with the stack's.

with overlay_of(tmp_path, {"edge": "", "rim": "edge"}) as town:
    car, reader = town.principal("car", "edge"), town.principal("reader", "rim")
    token = town.topic("brakes", "edge", car, reader)
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

from actors import SCHEMA, await_topic, is_in_force
from stack import PASSPHRASE, READ, WRITE, Stack, wait_until

from tallystick.carriers.log.store import LogStore
from tallystick.carriers.overlay.keeper import OverlayKeeper
from tallystick.carriers.overlay.keeping import OverlayStorage
from tallystick.carriers.overlay.relay import OverlayRelay
from tallystick.carriers.storage import Place
from tallystick.client.session import Session
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.plans import MARGIN_BLOCKS, OVERLAYS
from tallystick.ledger.engine import NodeLedger
from tallystick.node.instance import Folders, create_node, open_node_keys
from tallystick.node.node import Node
from tallystick.node.processes import free_ports
from tallystick.node.settings import NodeSettings
from tallystick.trust.plan import Plan, Relay, VirtualNode, node_id, overlay_id

NAME = "city"
LEASE_MS = 5_000


class Shared:
    """A ledger that others use too: it is not closed with one of them, and may be away for one of them."""

    def __init__(self, ledger: NodeLedger) -> None:
        self._ledger, self.is_away = ledger, False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        if self.is_away and name in ("query", "scan", "submit", "block"):
            return self._fail
        return found

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise Unavailable("the ledger is away", retry_after_s=0.1)

    def close(self) -> None:
        """It is another's."""


class RelayNode(Node):
    """A node on somebody else's ledger, in a thread of its own."""

    def __init__(self, town: Town, folder: Path, port: int, link: int) -> None:
        self.shared = Shared(town.stack.node.ledger)
        settings = {**town.settings, "port": port, "carrier_settings": {"overlay_listen": f"127.0.0.1:{link}"}}
        super().__init__(Folders(folder).node, town.stack.clock, NodeSettings(**settings))
        self.thread = threading.Thread(target=self.run, name="relay node", daemon=True)
        self.thread.start()

    def _open_ledger(self, folder: Path) -> NodeLedger:
        return cast(NodeLedger, self.shared)

    @property
    def log(self) -> LogStore:
        storage = self.carrier.storage
        assert isinstance(storage, OverlayStorage)
        return storage.log

    @property
    def relay(self) -> OverlayRelay:
        """Its role, once a plan named it."""
        keeper = self.core.anchorer
        assert isinstance(keeper, OverlayKeeper)
        assert keeper.station is not None
        return keeper.station.relay

    def end(self) -> None:
        self.server.stop()
        self.thread.join(30)


class Town:
    """`relays` by virtual node; those that were ended are None."""

    def __init__(self, stack: Stack, tree: Mapping[str, str], size: int) -> None:
        self.stack, self.tree = stack, tree
        self.overlay = overlay_id(stack.node.trust.instance, NAME)
        self.settings: dict[str, Any] = {**stack._node_settings, "carrier": f"overlay://{NAME}", "port": 0}
        self._folders = {
            (name, index): stack.folders.root / f"{name}-{index}" for name in tree for index in range(size)
        }
        self._links = dict(zip(self._folders, free_ports(len(self._folders)), strict=True))
        self._ports: dict[tuple[str, int], int] = {}
        self._version = 0
        self.relays: dict[tuple[str, int], RelayNode] = {}
        for folder in self._folders.values():
            now_ms = int(stack.clock.now() * 1000)
            create_node(stack.folders.root, folder, PASSPHRASE, NodeSettings(**self.settings), now_ms, stack.entropy)
        for one in self._folders:
            self.start(one)
        self.owner = stack.tenant("acme")
        self._found()

    def start(self, one: tuple[str, int]) -> RelayNode:
        """Start a relay; after the first time where it was."""
        node = self.relays[one] = RelayNode(self, self._folders[one], self._ports.get(one, 0), self._links[one])
        self._ports[one] = node.server.port
        return node

    def end(self, one: tuple[str, int]) -> None:
        self.relays.pop(one).end()

    def wipe(self, one: tuple[str, int]) -> None:
        """All that an ended relay kept is lost; its keys are not."""
        shutil.rmtree(Folders(self._folders[one]).node / "log")

    def seat_of(self, node: RelayNode) -> tuple[str, int]:
        return next(one for one, found in self.relays.items() if found is node)

    def edge(self, name: str) -> list[RelayNode]:
        return [node for (where, _), node in sorted(self.relays.items()) if where == name]

    def _found(self) -> None:
        """The overlay, its plan in force, and every relay at work."""
        me = self.owner.identity
        authority = self.stack.authority.authority
        wait_until(lambda: len(authority.subjects.nodes()) == 1 + len(self._folders))
        wait_until(lambda: is_in_force(self.stack, "plans") and is_in_force(self.stack, "blame"))
        authority.change_rules([entries.overlay(self.overlay, [me.principal], 1)])
        self.replan()
        assert self.owner.view.row(OVERLAYS(self.overlay)) is not None
        wait_until(lambda: all(one.core.anchorer.statistics()["relaying"] for one in self.relays.values()))

    def replan(self, without: Collection[tuple[str, int]] = ()) -> None:
        """The next version of the plan, in force: with all relays but these."""
        self._version += 1
        ledger, me = self.stack.node.ledger, self.owner.identity
        plan, first = self.plan(self._version, without), ledger.height + MARGIN_BLOCKS + 4
        signature = entries.sign_plan(me.instance, plan, first, me.principal, me.signing_key)
        self.owner.author.write(entries.plan(plan, first, [signature]))
        wait_until(lambda: ledger.height >= first)

    def plan(self, version: int, without: Collection[tuple[str, int]] = ()) -> Plan:
        nodes = []
        for name, parent in self.tree.items():
            above = node_id(self.overlay, parent) if parent else b""
            seats = tuple(self._relay(one) for one in self._folders if one[0] == name and one not in without)
            nodes.append(VirtualNode(node_id(self.overlay, name), above, seats))
        return Plan(self.overlay, version, tuple(nodes))

    def _relay(self, one: tuple[str, int]) -> Relay:
        keys = open_node_keys(Folders(self._folders[one]).node, self.stack.node.trust)
        link = SigningKey.from_seed(keys.key.derive("tallystick link key 1")).public.raw
        public, address = keys.certificate.signing_key, f"127.0.0.1:{self._links[one]}"
        return Relay(keys.certificate.subject, public, link, address, f"operator {one[1]}", f"host {one[1]}")

    def principal(
        self, name: str, edge: str, reaches: int | None = None, repositories: str = "", tenant: str = "acme"
    ) -> Session:
        """A client of this edge, with its way over the overlay; perhaps it reaches only so many relays."""
        nodes = [*self.edge(edge)[:reaches], *self.edge(repositories)]
        session = self.stack.principal(tenant, name, tuple(node.url for node in nodes))
        way = {"overlay": self.overlay.hex(), "edge": node_id(self.overlay, edge).hex()}
        if repositories:
            way["repositories"] = node_id(self.overlay, repositories).hex()
        (session.identity.home / "overlay.json").write_text(json.dumps(way))
        return self.stack.again(session)

    def topic(
        self,
        name: str,
        entry: str,
        writer: Session,
        reader: Session,
        partitions: int = 1,
        owner: Session | None = None,
    ) -> bytes:
        """A topic that enters there, and travels; another tenant's, if its owner is named."""
        owner = owner or self.owner
        token = self.stack.topic(owner, name, SCHEMA, partitions=partitions)
        owner.author.write(entries.entrust(token, self.overlay, node_id(self.overlay, entry), LEASE_MS))
        self.stack.grant(owner, token, writer, WRITE)
        self.stack.grant(owner, token, reader, READ)
        await_topic(self.stack, token)
        return token

    def holder(self, place: Place) -> RelayNode:
        """Who orders a partition."""
        wait_until(lambda: any(self._writes(node, place) for node in self.relays.values()))
        return next(node for node in self.relays.values() if self._writes(node, place))

    def _writes(self, node: RelayNode, place: Place) -> bool:
        return node.rules.writes(*place, node.core.block()[1])

    def give_up(self, place: Place, below: int) -> None:
        """The owner lets go of what lies below an offset, and all relays give it up."""
        self.owner.author.write(entries.release(*place, below))
        holder = self.holder(place)
        holder.core.write([entries.retire(*place, below, holder.carrier.storage.tree(place).root(below))])
        wait_until(lambda: all(node.carrier.storage.tree(place).below == below for node in self.relays.values()))


@contextmanager
def overlay_of(folder: Path, tree: Mapping[str, str], size: int = 3) -> Iterator[Town]:
    with Stack(folder, node={"block_ms": 50}) as stack, ExitStack() as closing:
        town = Town(stack, tree, size)
        closing.callback(lambda: [node.end() for node in town.relays.values()])
        yield town
