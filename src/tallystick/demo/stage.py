"""The stage: an instance as a user runs it, two tenants that trust neither each other nor the broker, and their people.

Node and authority are the two processes of `tally up`, on free ports of loopback, with their logs in the demo's folder;
whoever acts is an identity folder of its own. The tenants are those of BPS 5.1: a hospital, here with the vehicles that
it sends out, and a home provider. Leaving the stage ends every process that was started on it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tallystick.client.session import Session
from tallystick.demo.scene import NotObserved
from tallystick.errors import Refused, Unavailable
from tallystick.fleet.schemas import schema
from tallystick.identity.enrol import enrol
from tallystick.ledger import entries
from tallystick.node.instance import Folders
from tallystick.node.operator import operating
from tallystick.node.supervisor import READY_S, Child, ChildFailed, is_ready
from tallystick.record.schema import Schema
from tallystick.runtime.sources import SystemClock, SystemEntropy
from tallystick.trust.right import Right
from tallystick.trust.trustfile import TrustFile

if TYPE_CHECKING:
    from tallystick.demo.impostor import Snapshot
    from tallystick.demo.spark import SparkProcess

READ, WRITE = Right.READ | Right.DESCRIBE, Right.WRITE | Right.DESCRIBE
PATIENCE_S = 30.0  # for what must come within a second or two, on a busy machine
_PAUSE_S = 0.05

T = TypeVar("T")


@dataclass(frozen=True)
class StageTopic:
    tenant: str
    schema: str  # the fleet's
    partitions: int


TOPICS = {
    "telemetry": StageTopic("hospital", "telemetry", 4),
    "vitals": StageTopic("hospital", "vitals", 1),
    "air": StageTopic("homes", "home", 1),
}
# Who may do what from the beginning. Attackers are enrolled by their scenes.
CAST: dict[str, tuple[str, Right]] = {
    "ambulances": ("telemetry", WRITE),
    "ward": ("vitals", WRITE),
    "meters": ("air", WRITE),
    "dispatch-1": ("telemetry", READ),
    "dispatch-2": ("telemetry", READ),
    "doctor": ("vitals", READ),
    "resident": ("air", READ),
    "analyst": ("telemetry", READ),
}


class Ended(Unavailable):
    """A process ended before it served; its log says why."""


class Stage:
    """`with Stage(folder) as stage`: everything runs; `people` are sessions by name, `tokens` those of the topics."""

    snapshot: Snapshot  # taken before the scenes on the disk

    def __init__(self, folder: Path, vehicles: int = 20) -> None:
        """`vehicles` is how many there are to act on, as large as the demo is."""
        self.folder, self.folders, self.vehicles = folder, Folders(folder / "instance"), vehicles
        self.clock, self.entropy = SystemClock(), SystemEntropy()
        self.people: dict[str, Session] = {}
        self.tokens: dict[str, bytes] = {}
        self.owners: dict[str, Session] = {}  # by topic
        self.spark: SparkProcess | None = None
        self.canaries: list[bytes] = []  # what was published and must not lie readable anywhere
        self._children: list[Child] = []
        self._logs = folder / "logs"

    def __enter__(self) -> Stage:
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            self._create()
            self.node = self.start("node", self.folders.root, "--node-only", "--port", "0")
            arguments = ("--authority-only", "--authority-port", "0", "--node-url", self.node.url)
            self.authority = self.start("authority", self.folders.root, *arguments)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for session in self.people.values():
            session.close()
        if self.spark is not None:
            self.spark.close()
        for child in reversed(self._children):
            child.stop()

    # Processes.

    def _create(self) -> None:
        ports = ("--port", "0", "--authority-port", "0")
        made = subprocess.run(
            [sys.executable, "-m", "tallystick.cli", "init", str(self.folders.root), *ports],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise Unavailable(f"tally init {self.folders.root}: {made.stderr.strip()}")
        self.trust = TrustFile.parse(self.folders.trust.read_text())

    def start(self, name: str, folder: Path, *arguments: str) -> Child:
        """A process of `tally up` over an instance's folder, ready to serve."""
        [child] = self.spawn({name: ["up", str(folder), "--supervised", *arguments]})
        self.wait_until(lambda: is_ready(child.url), f"the {name} to be ready", READY_S)
        return child

    def spawn(self, commands: Mapping[str, Sequence[str]]) -> list[Child]:
        """Processes of `tally`, all at once, which have said where they listen."""
        children = [
            Child(name, [*arguments, "--json"], "--authority-only" in arguments, self._logs / f"{name}.log")
            for name, arguments in commands.items()
        ]
        self._children += children
        for child in children:
            child.spawn(self.clock)
        for child in children:
            try:
                child.wait_listening(lambda: False)
            except ChildFailed as failure:
                hint = f"look at {child.log}"
                raise Ended(f"the {child.name} ended with code {failure.code} before it served", hint=hint) from failure
        return children

    def stop(self, child: Child) -> None:
        self._children.remove(child)
        child.stop()

    # People.

    def enrol_cast(self) -> None:
        """Two tenants with their owners, topics and people."""
        for tenant in dict.fromkeys(topic.tenant for topic in TOPICS.values()):
            with operating(self.folders.root, self.clock, self.entropy) as operator:
                self._enrol(tenant, operator.create_tenant(tenant))
        for name, topic in TOPICS.items():
            self.make_topic(name, topic.tenant, schema(topic.schema), topic.partitions)
        for name, (topic_name, operations) in CAST.items():
            self.enrol(TOPICS[topic_name].tenant, name, topic_name, operations)
        self.grant("vitals", "analyst", READ)
        self.grant("telemetry", "hospital", READ)  # its owner audits it

    def enrol(self, tenant: str, name: str, topic: str | None = None, operations: Right = READ) -> Session:
        """One more principal of a tenant, with a right on a topic if one is named."""
        session = self._enrol(name, self.people[tenant].authority.invite())
        if topic is not None:
            self.grant(topic, name, operations)
        return session

    def grant(self, topic: str, name: str, operations: Right) -> None:
        owner, session, token = self.owners[topic], self.people[name], self.tokens[topic]
        owner.author.write(entries.grant(token, session.identity.principal, int(operations)))
        self.wait_until(lambda: _knows(session, token), f"the authority to see the right of {name}")

    def _enrol(self, name: str, invitation: str) -> Session:
        identity = enrol(
            self.folder / "homes" / name,
            name,
            invitation,
            trust=self.trust,
            authority_url=self.authority.url,
            node_urls=(self.node.url,),
            clock=self.clock,
            entropy=self.entropy,
        )
        self.people[name] = Session(identity, clock=self.clock, entropy=self.entropy)
        return self.people[name]

    def make_topic(self, name: str, tenant: str, columns: Schema, partitions: int = 1) -> None:
        self.make_topics(tenant, {name: columns}, partitions)

    def make_topics(self, tenant: str, topics: Mapping[str, Schema], partitions: int = 1) -> None:
        owner = self.people[tenant]
        for name, columns in topics.items():
            self.owners[name] = owner
            self.tokens[name] = owner.create_topic(name, columns.encode(), partitions)
        for name in topics:
            token = self.tokens[name]
            self.wait_until(lambda: _knows(owner, token), f'the authority to see topic "{name}"')  # noqa: B023

    # Waiting.

    def wait_until(self, condition: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
        """Wait until the condition holds. Returns what it came to. Raises `NotObserved` after `patience_s`."""
        deadline = self.clock.monotonic() + patience_s
        while not (found := condition()):
            if self.clock.monotonic() > deadline:
                raise NotObserved(f"waited {patience_s:.0f} s for {what}")
            self.clock.pause(_PAUSE_S)
        return found

    def shown(self, path: Path) -> str:
        """A path from the demo's folder on."""
        return str(path.relative_to(self.folder))


def _knows(session: Session, token: bytes) -> bool:
    """Whether the authority has followed the ledger so far that this principal may know the topic."""
    with suppress(Refused):
        return bool(session.authority.schemas(token))
    return False
