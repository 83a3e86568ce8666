"""Who plays in the scenarios: publishers that seal by hand, and nodes that lie.

`Hand` is a publisher whose every parcel can be altered before it is sent. `Liar` stands between a client and its node
and passes everything on, until a scenario tells it to lie. What attackers write themselves is in the demo, which acts
out the same attacks: tallystick.demo.forgery, disk, hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
from stack import READ, WRITE, Stack, wait_until

from tallystick.carriers.carrier import NotStored, Outcome, Stored
from tallystick.carriers.storage import Place
from tallystick.client.grants import Grants
from tallystick.client.session import HEAD_AGE_MAX_S, Session
from tallystick.client.subscribe import Received, Subscriber, SubscriberSettings
from tallystick.client.ties import Author, ReaderTies, View
from tallystick.demo import hand as demo
from tallystick.errors import Refused, Unavailable
from tallystick.identity.folder import Identity
from tallystick.ledger import entries
from tallystick.ledger.block import compose
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.execute import newest
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.reputation import STANDINGS
from tallystick.ledger.contracts.settings import VERSIONS
from tallystick.ledger.contracts.state import Key
from tallystick.ledger.engine import Query, Submitted
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.node.node import Node
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.seal import Lane
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.permit import Operation, Permit

R = TypeVar("R")

SCHEMA = "vin string, seq int64 not null, speed float32"


class Topic:
    """A tenant's topic with its owner, a publisher and a reader."""

    def __init__(self, stack: Stack, tenant: str, name: str = "brakes", *, partitions: int = 1, flags: int = 0) -> None:
        self.stack, self.tenant, self.name = stack, tenant, name
        self.owner = stack.tenant(tenant)
        self.token = stack.topic(self.owner, name, SCHEMA, partitions=partitions, flags=flags)
        await_topic(stack, self.token)
        self.car, self.reader = self.publisher("car"), self.subscriber("reader")

    def beside(self, name: str, *, partitions: int = 1) -> Topic:
        """Another topic of the same people: enrolling them takes longest."""
        other = copy(self)
        other.name, other.token = name, self.stack.topic(self.owner, name, SCHEMA, partitions=partitions)
        await_topic(self.stack, other.token)
        for session, operations in ((self.car, WRITE), (self.reader, READ)):
            self.stack.grant(self.owner, other.token, session, operations)
        return other

    def publisher(self, name: str) -> Session:
        return self._member(name, WRITE)

    def subscriber(self, name: str) -> Session:
        return self._member(name, READ)

    def member(self, name: str) -> Session:
        """Somebody of the tenant without any right on the topic."""
        return self.stack.principal(self.tenant, f"{self.tenant}-{name}")

    def _member(self, name: str, operations: int) -> Session:
        session = self.member(name)
        self.stack.grant(self.owner, self.token, session, operations)
        return session


def await_topic(stack: Stack, token: bytes) -> None:
    """Until the authority has seen a new topic on the ledger."""
    authority = stack.authority.authority
    authority.work()  # what its own clock would have it do within half a second
    wait_until(lambda: authority.topics.find(token) is not None)


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"vin": "V", "seq": number, "speed": number / 2} for number in numbers]


def publish(session: Session, topic: str, numbers: Sequence[int], **settings: Any) -> None:
    """Publish a row a parcel, and wait until the ledger vouches for all."""
    with session.publisher(topic, acks="anchored", anchor_check_s=0.02, **settings) as publisher:
        for number in numbers:
            publisher.send(rows(number))
        assert publisher.flush(30) == 0


def read_rows(subscriber: Subscriber, count: int) -> list[int]:
    """The `seq` of that many rows; a carrier that is away for a moment is asked again."""
    received: list[Received] = []
    away: list[str] = []

    def enough() -> bool:
        try:
            received.extend(subscriber.poll(100))
        except Unavailable as error:
            away.append(str(error))
        return sum(one.batch.rows for one in received) >= count

    try:
        wait_until(enough)
    except AssertionError as error:
        raise AssertionError(f"{len(received)} parcels came; {len(away)} times it was away: {away[-1:]}") from error
    return [row["seq"] for one in received for row in one.to_pylist()]


class Hand(demo.Hand):
    """A publisher that seals and sends parcel by parcel, here rows by their numbers."""

    def seal(self, *numbers: int, lane: Lane | None = None) -> Parcel:
        schema = (lane or self.lane).schema.arrow
        return self.seal_batch(pa.RecordBatch.from_pylist(rows(*numbers), schema=schema), lane=lane)


def stored(outcome: Outcome) -> Stored:
    assert isinstance(outcome, Stored), outcome
    return outcome


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, NotStored), outcome
    return outcome.reason


def admit(session: Session, permit: bytes) -> None:
    """Advertise or subscribe, as the permit says."""
    is_publisher = Permit.decode(permit).operation is Operation.ADVERTISE
    (session.node.advertise if is_publisher else session.node.subscribe)(permit)


def fetch_query(permit: bytes, partition: int = 0, offset: int = 0) -> str:
    return f"partition={partition}&permit={permit.hex()}&offset={offset}"


# --- the ledger ---


def settle(stack: Stack) -> None:
    """Until everything that the node noted is on the ledger."""
    wait_until(lambda: stack.node.carrier.statistics().operations_waiting == 0)


def write_as_node(node: Node, *entry: bytes) -> Submitted:
    """The node writes what it likes. Its own thread may draw a later number before the ledger sees ours: then again."""
    for _ in range(20):
        try:
            return node.core._submit(node.core._compose(*entry))
        except Refused as error:
            if error.reason != "replayed":
                raise
    raise AssertionError("the node's own thread was quicker each time")


def give_up(owner: Session, node: Node, place: Place, below: int) -> None:
    """The owner lets go of what lies below an offset, and the node gives it up."""
    owner.author.write(entries.release(*place, below))
    write_as_node(node, entries.retire(*place, below, node.carrier.storage.tree(place).root(below)))
    node.carrier.storage.retire(place, below)


def row_of(view: View, key: Key[R]) -> R:
    """The row under `key`, which must be there."""
    row = view.row(key)
    assert row is not None, key
    return row


def anchored(view: View, token: bytes, partition: int = 0) -> int:
    """How many parcels are."""
    row = view.row(ANCHORS(token, partition))
    return 0 if row is None else row.size


def read_anchored(subscriber: Subscriber) -> list[dict[str, Any]]:
    """The rows of all that is anchored; nothing may be found."""
    ends = [anchored(subscriber._view, subscriber.token, partition) for partition in range(subscriber.partitions)]
    found: list[dict[str, Any]] = []
    at: dict[int, int] = {}
    while any(at.get(partition, 0) < end for partition, end in enumerate(ends)):
        found += [row for one in subscriber.poll(50) for row in one.to_pylist()]
        at = subscriber.positions()
    assert subscriber.findings == []
    return sorted(found, key=lambda row: row["seq"])


@dataclass(frozen=True)
class Act:
    """An operation on the ledger."""

    height: int
    operator: bytes
    token: bytes
    operation: int
    reason: str
    count: int
    evidence: bytes


def acts(stack: Stack, **query: Any) -> list[Act]:
    """Operations that an audit finds, oldest first: `token`, `principal`, `refused`."""
    settle(stack)
    items = stack.node.ledger.audit(Query(kind=int(EntryKind.OPERATION), **query))
    return [
        Act(i.height, i.fields[1], i.fields[3], i.fields[4], i.fields[5], i.fields[7], i.fields[13])
        for i in sorted(items, key=lambda item: (item.height, item.index))
    ]


def reputation(stack: Stack, principal: bytes) -> tuple[int, int]:
    """(score, height of the blacklisting or 0), as the ledger has it."""
    settle(stack)
    row = stack.node.ledger.query(lambda state: state.row(STANDINGS(principal)))
    return (100, 0) if row is None else (row.score, row.blacklisted)


def operate(stack: Stack, *entry: bytes) -> None:
    """Write entries as the instance's operator."""
    core = stack.authority.authority.core
    number = int(stack.clock.now() * 1_000_000)
    stack.node.core._submit(
        compose(core.instance, core.keys.certificate.subject, number, entry, core.keys.signing).data
    )


def count_each_refusal(stack: Stack) -> None:
    """As if a principal's requests lay minutes apart, and it knew of every right that was withdrawn."""
    wait_until(lambda: is_in_force(stack, "settings"))
    operate(stack, entries.set_("fall_window_ms", 0), entries.set_("grace_ms", 0))


def is_in_force(stack: Stack, contract: str) -> bool:
    """Whether the newest version of a contract counts."""
    versions = stack.node.ledger.query(lambda state: state.row(VERSIONS())) or []
    height = stack.node.ledger.height
    return any(name == contract and number == newest()[name] and start <= height for name, number, start in versions)


# --- nodes that lie ---


class Liar:
    """A node between a client and the real one; assign a method to lie in it."""

    # What tests lie in; whatever is not assigned is the honest node's.
    blocks: Any
    checkpoint: Any
    consistencies: Any
    consistency: Any
    fetch: Any
    inclusion: Any
    lane_front: Any
    lane_fronts: Any
    permit: Any
    permits: Any
    publish: Any
    state: Any
    states: Any

    def __init__(self, honest: Any) -> None:
        self.honest = honest

    def __getattr__(self, name: str) -> Any:
        return getattr(self.honest, name)


@dataclass
class LooseTies(ReaderTies):
    """Those of a session, some of which a test holds itself."""

    identity: Identity
    node: Any
    carrier: Any
    authority: Any
    view: View
    clock: Clock
    entropy: Entropy
    grants: Grants | None = None
    author: Author | None = None


def ties(session: Session, node: Any = None, **others: Any) -> LooseTies:
    """The session's, through another node where one is given."""
    node = node or session.node
    found = LooseTies(session.identity, node, node, session.authority, session.view, session.clock, session.entropy)
    return replace(found, **others)


def subscribe_through(
    session: Session,
    node: Any,
    topic: str,
    *,
    memory: CheckpointMemory | None = None,
    head_age_max_s: float = HEAD_AGE_MAX_S,
    on_finding: Callable[[Any], None] | None = None,
    **settings: Any,
) -> Subscriber:
    """A subscriber whose node is `node`, ledger included."""
    view = View(node, memory or session.memory, session.clock, head_age_max_s)
    return Subscriber(ties(session, node, view=view), topic, SubscriberSettings(**settings), on_finding=on_finding)


def fresh_memory(session: Session, stack: Stack, name: str) -> CheckpointMemory:
    """What a subscriber that has seen nothing yet remembers."""
    return CheckpointMemory(session.identity.trust, RealDisk(stack.folders.root / "memories" / name))


def permit_of(subscriber: Subscriber) -> Permit:
    return subscriber._opener.held.permit
