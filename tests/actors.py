"""Who plays in the scenarios: publishers that seal by hand, peers that write their own HTTP, nodes that lie.

`Hand` is a publisher whose every parcel can be altered before it is sent. `exchange` is one HTTP request as the caller
wants it, right or wrong, without a client's retries. `Liar` stands between a client and its node and passes everything
on, until a scenario tells it to lie.
"""

from __future__ import annotations

import copy
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from stack import READ, WRITE, Stack, wait_until

from tallystick.carriers.carrier import Carrier, NotStored, Outcome, Stored
from tallystick.carriers.remote import RemoteNode
from tallystick.client.keeper import Held, draw_secrets, open_lane
from tallystick.client.session import HEAD_AGE_MAX_S, Session
from tallystick.client.subscribe import Received, Subscriber, SubscriberSettings
from tallystick.client.view import View
from tallystick.crypto.signatures import SigningKey
from tallystick.ledger.contracts.kinds import Kind
from tallystick.ledger.engine import Query
from tallystick.ledger.memory import CheckpointMemory
from tallystick.parcel.header import SIGNATURE_CONTEXT
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.seal import Lane
from tallystick.record.batch import Batch
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.http1 import Response, ResponseReader, encode_head
from tallystick.trust.envelope import sign_request
from tallystick.trust.permit import Operation, Permit

SCHEMA = "vin string, seq int64 not null, speed float32"


class Topic:
    """A tenant's topic with its owner, a publisher and a reader."""

    def __init__(self, stack: Stack, tenant: str, name: str = "brakes", *, partitions: int = 1, flags: int = 0) -> None:
        self.stack, self.tenant, self.name = stack, tenant, name
        self.owner = stack.tenant(tenant)
        self.token = stack.topic(self.owner, name, SCHEMA, partitions=partitions, flags=flags)
        await_topic(stack, self.token)
        self.car, self.reader = self.publisher("car"), self.subscriber("reader")

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
    wait_until(lambda: authority._topics.find(token) is not None)


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"vin": "V", "seq": number, "speed": number / 2} for number in numbers]


def publish(session: Session, topic: str, numbers: Sequence[int], **settings: Any) -> None:
    """Publish a row a parcel, and wait until the ledger vouches for all."""
    with session.publisher(topic, acks="anchored", anchor_check_s=0.02, **settings) as publisher:
        for number in numbers:
            publisher.send(rows(number))
        assert publisher.flush(30) == 0


def read_rows(subscriber: Subscriber, count: int) -> list[int]:
    """The `seq` of that many rows."""
    received: list[Received] = []
    wait_until(lambda: received.extend(subscriber.poll(100)) or sum(one.batch.rows for one in received) >= count)
    return [row["seq"] for one in received for row in one.to_pylist()]


class Hand:
    """A publisher that seals and sends parcel by parcel."""

    def __init__(self, session: Session, *topics: str | bytes, node: Carrier | None = None) -> None:
        """A publisher to these topics at once, through `node` where another one than the session's is meant."""
        self.session, self.node = session, node or session.node
        self.grants = [Held.of(session.authority.permit(Operation.ADVERTISE, topic)) for topic in topics]
        self.held = self.grants[0]
        self.permit, self.token = self.held.permit, self.held.grant.token
        for held in self.grants:
            self.node.advertise(held.grant.permit)
        self.lane = self.open_lane()

    def open_lane(self, name: bytes | None = None) -> Lane:
        """A new lane, called `name` if one is given."""
        session, now_ms = self.session, int(self.session.clock.now() * 1000)
        lane, secrets = open_lane(session.identity, self.grants, now_ms, session.entropy, codec="lz4")
        if name is not None:
            secrets = draw_secrets(session.identity, name, self.grants, lane.schema, now_ms, session.entropy)
            lane.lane = name
            lane.refresh(secrets.topics, secrets.keys)
        self.node.put_locks(self.token, self.permit.identifier, secrets.locks)
        return lane

    def seal(self, *numbers: int, lane: Lane | None = None) -> Parcel:
        lane = lane or self.lane
        data = pa.RecordBatch.from_pylist(rows(*numbers), schema=lane.schema.arrow)
        session = self.session
        return lane.seal(
            Batch.of(lane.schema, data),
            now_ms=int(session.clock.now() * 1000),
            entropy=session.entropy.bytes(32),
            checkpoint=session.view.accepted,
        )

    def fork(self) -> Lane:
        """The lane as it is, once more: whoever seals in both equivocates."""
        return copy.copy(self.lane)

    def send(self, *parcels: Parcel | bytes) -> list[Outcome]:
        return self.node.publish(self.token, [p.encode() if isinstance(p, Parcel) else p for p in parcels])

    def resign(self, parcel: Parcel, *, key: SigningKey | None = None, **changes: Any) -> Parcel:
        """The parcel under a header that differs, signed again."""
        header = replace(parcel.header, **changes)
        key = key or self.session.identity.signing_key
        return Parcel(header, key.sign(SIGNATURE_CONTEXT, header.encoded), parcel.body)


def stored(outcome: Outcome) -> Stored:
    assert isinstance(outcome, Stored), outcome
    return outcome


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, NotStored), outcome
    return outcome.reason


# --- the wire ---


def exchange(
    session: Session,
    method: str,
    path: str,
    query: str = "",
    body: bytes = b"",
    *,
    url: str | None = None,
    node: bytes | None = None,
    principal: bytes | None = None,
    key: SigningKey | None = None,
    now: float | None = None,
    nonce: bytes | None = None,
    sent: bytes | None = None,
    headers: Sequence[tuple[bytes, bytes]] | None = None,
) -> Response:
    """One signed request and its answer; whatever the caller names is lied about. `sent` is the body that travels."""
    identity = session.identity
    address = urlsplit(url or identity.node_urls[0]).netloc
    if headers is None:
        headers = sign_request(
            key or identity.signing_key,
            principal or identity.principal,
            node or identity.nodes[0].subject,
            method=method,
            authority=address,
            path=path,
            query=query,
            body=body,
            now=session.clock.now() if now is None else now,
            nonce=nonce or session.entropy.bytes(16),
        )
    body = body if sent is None else sent
    head = encode_head(method, f"{path}?{query}" if query else path, address, headers, len(body))
    return send_bytes(address, head + body)


def send_bytes(address: str, data: bytes) -> Response:
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(data)
        answer = ResponseReader(64 << 20)
        while answer.response is None:
            part = connection.recv(1 << 16)
            assert part, "the peer closed without an answer"
            answer.feed(part)
        return answer.response


def fetch_query(permit: bytes, partition: int = 0, offset: int = 0) -> str:
    return f"partition={partition}&permit={permit.hex()}&offset={offset}"


# --- the ledger ---


def settle(stack: Stack) -> None:
    """Until everything that the node noted is on the ledger."""
    wait_until(lambda: stack.node.carrier.statistics().operations_waiting == 0)


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
    items = stack.node.ledger.audit(Query(kind=int(Kind.OPERATION), **query))
    return [
        Act(i.height, i.fields[1], i.fields[3], i.fields[4], i.fields[5], i.fields[7], i.fields[13])
        for i in sorted(items, key=lambda item: (item.height, item.index))
    ]


def reputation(stack: Stack, principal: bytes) -> tuple[int, int]:
    """(score, height of the blacklisting or 0), as the ledger has it."""
    settle(stack)
    value = stack.node.ledger.query(lambda state: state.get(b"reputation/" + principal))
    return (100, 0) if value is None else (value[0], value[3])


# --- nodes that lie ---


class Liar:
    """A node between a client and the real one; assign a method to lie in it."""

    def __init__(self, honest: RemoteNode) -> None:
        self.honest = honest

    def __getattr__(self, name: str) -> Any:
        return getattr(self.honest, name)


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
    return Subscriber(
        session.identity,
        topic,
        carrier=node,
        authority=session.authority,
        view=View(node, memory or session.memory, session.clock, head_age_max_s),
        clock=session.clock,
        settings=SubscriberSettings(**settings),
        on_finding=on_finding,
    )


def fresh_memory(session: Session, stack: Stack, name: str) -> CheckpointMemory:
    """What a subscriber that has seen nothing yet remembers."""
    return CheckpointMemory(session.identity.trust, RealDisk(stack.folders.root / "memories" / name))


def permit_of(subscriber: Subscriber) -> Permit:
    return subscriber._held.permit
