"""A whole instance for tests: node and authority on loopback in threads of this process, identities on demand.

with Stack(tmp_path) as stack:
    owner = stack.tenant("acme")
    topic = stack.topic(owner, "brakes", "vin string, speed float32")
    car, reader = stack.principal("acme", "car"), stack.principal("acme", "reader")
    stack.grant(owner, topic, car, WRITE), stack.grant(owner, topic, reader, READ)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tallystick.authority.settings import AuthoritySettings
from tallystick.carriers.log.store import LogStore
from tallystick.client.session import Session
from tallystick.crypto.passphrase import Cost
from tallystick.identity.enrol import enrol
from tallystick.identity.folder import Identity
from tallystick.ledger import entries
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.node.authority import AuthorityProcess
from tallystick.node.instance import Folders, create_instance
from tallystick.node.node import Node
from tallystick.node.settings import NodeSettings
from tallystick.record.schema import Schema
from tallystick.runtime.address import Address, Listen
from tallystick.runtime.client import HttpClient
from tallystick.runtime.sources import Clock, Entropy, SystemClock, SystemEntropy
from tallystick.trust.right import Right

PASSPHRASE = b"correct horse"
CHEAP = Cost(32, 1, 1)
TICK_S = 0.1  # of the authority, which looks twice a second elsewhere: many tests wait for what it does then
READ = Right.READ | Right.DESCRIBE
WRITE = Right.WRITE | Right.DESCRIBE


class Stack:
    def __init__(
        self,
        folder: Path,
        *,
        node: dict[str, Any] | None = None,
        authority: dict[str, Any] | None = None,
        clock: Clock | None = None,
        passphrase: bytes = PASSPHRASE,
        keys_from: Callable[[str], Entropy] = lambda name: SystemEntropy(),
    ) -> None:
        """`keys_from(name)` is what the keys of the instance, and of everybody in it, are drawn from."""
        self.folders = Folders(folder)
        self.clock, self.entropy = clock or SystemClock(), SystemEntropy()
        self._passphrase, self._keys_from = passphrase, keys_from
        self._node_settings = {"port": 0, "commit_ms": 20, "window_ms": 5, **(node or {})}
        self._authority_settings = AuthoritySettings(**{"revoke_s": 1, **(authority or {})})
        if not self.folders.trust.exists():
            create_instance(
                folder,
                "test",
                passphrase,
                NodeSettings(**self._node_settings),
                int(self.clock.now() * 1000),
                keys_from("instance"),
                cost=CHEAP,
            )
        self._threads: list[threading.Thread] = []
        self._sessions: list[Session] = []
        self._node_port = self._authority_port = 0
        self.node_urls: tuple[str, ...] = ()  # that principals are told of; none: the node's own

    def __enter__(self) -> Stack:
        self.start_node()
        self.start_authority()
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions:
            session.close()
        self.stop_authority()
        self.stop_node()

    # Processes.

    def start_node(self) -> Node:
        """Start the node; after the first time on the same port."""
        self.node = Node(
            self.folders.node, self.clock, NodeSettings(**{**self._node_settings, "port": self._node_port})
        )
        self._node_port = self.node.server.port
        self._node_thread = threading.Thread(target=self.node.run, name="node", daemon=True)
        self._node_thread.start()
        return self.node

    def stop_node(self) -> None:
        self.node.server.stop()
        self._node_thread.join(20)

    def start_authority(self) -> AuthorityProcess:
        self.authority = AuthorityProcess(
            self.folders.authority,
            self._passphrase,
            [Address(self.node.url, self.node.identifier, self.node.keys.certificate.verify_key)],
            self.clock,
            self.entropy,
            settings=self._authority_settings,
            listen=Listen(port=self._authority_port),
        )
        self._authority_port = self.authority.server.port
        self.authority.service._tick_s = TICK_S
        self._authority_thread = threading.Thread(target=self.authority.run, name="authority", daemon=True)
        self._authority_thread.start()
        wait_until(self._authority_is_ready)
        return self.authority

    def stop_authority(self) -> None:
        self.authority.stop()
        self._authority_thread.join(20)

    def _authority_is_ready(self) -> bool:
        with suppress(Exception):
            self.authority.authority.check_ready()
            return True
        return False

    # People.

    def tenant(self, name: str) -> Session:
        """A new tenant; its owner's session."""
        return self._enrol(f"{name}-owner", self.authority.authority.enrolment.create_tenant(name))

    def principal(self, tenant: str, name: str, node_urls: tuple[str, ...] = ()) -> Session:
        return self._enrol(name, self.authority.authority.enrolment.invite_to(tenant), node_urls)

    def again(self, session: Session) -> Session:
        """The same principal in another process, as it were."""
        return self.session(session.identity)

    def _enrol(self, name: str, invite: str, node_urls: tuple[str, ...] = ()) -> Session:
        identity = enrol(
            self.folders.root / "homes" / name,
            name,
            invite,
            trust=self.node.trust,
            authority_url=self.authority.url,
            node_urls=node_urls or self.node_urls or (self.node.url,),
            clock=self.clock,
            entropy=self._keys_from(name),
        )
        return self.session(identity)

    def session(self, identity: Identity) -> Session:
        """A session that ends with the stack."""
        session = Session(identity, clock=self.clock, entropy=self.entropy)
        self._sessions.append(session)
        return session

    def topic(self, owner: Session, name: str, schema: str | Schema, *, partitions: int = 1, flags: int = 0) -> bytes:
        """A new topic; its token."""
        parsed = Schema.parse(schema) if isinstance(schema, str) else schema
        return owner.create_topic(name, parsed.encode(), partitions, flags)

    def grant(self, owner: Session, token: bytes, to: Session, operations: int) -> None:
        owner.author.write(entries.grant(token, to.identity.principal, int(operations)))

    def withdraw(self, owner: Session, token: bytes, to: Session, operations: int) -> None:
        owner.author.write(entries.withdraw(token, to.identity.principal, int(operations)))


@contextmanager
def impatient(*clients: Session | HttpClient) -> Iterator[None]:
    """They ask once, and do not try again for seconds where the scenario knows that nobody will answer."""
    pairs = [(one._node_http, one._authority_http) if isinstance(one, Session) else (one,) for one in clients]
    talks = [http._conversation for pair in pairs for http in pair]
    before = [talk._limits for talk in talks]
    for talk in talks:
        talk._limits = replace(talk._limits, attempts_max=1)
    try:
        yield
    finally:
        for talk, limits in zip(talks, before, strict=True):
            talk._limits = limits


def wait_until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Until the condition holds; fails loudly if it never does. A busy machine may take its time: what hangs fails."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("the condition did not come true")
        time.sleep(0.01)


def wait_beyond(measure: Callable[[], float], mark: float, timeout_s: float = 120.0) -> None:
    """Until it measures more than `mark`."""
    wait_until(lambda: measure() > mark, timeout_s)


def log_store(stack: Stack) -> LogStore:
    """Behind the front of a node that carries on its own disk."""
    storage = stack.node.carrier.storage
    assert isinstance(storage, LogStore)
    return storage


def sqlite_ledger(stack: Stack) -> SqliteLedger:
    """That of a node without a chain."""
    assert isinstance(stack.node.ledger, SqliteLedger)
    return stack.node.ledger


def python_path(*folders: Path) -> str:
    """PYTHONPATH for a process that imports from these folders too."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
