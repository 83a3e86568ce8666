"""Topics: token, tenant, owner, partitions, replicas, schema versions by hash, and the nodes that carry them.

Threat: a topic of another tenant's, or another owner's, changed; partitions renumbered, so that lanes land elsewhere;
a schema rewritten under readers. Invariant: a topic is made once by its owner; its number of partitions never
changes; schema versions count up by one, each signed by the owner. The text of a schema is not here, since column
names give a topic away. Left out: that a token was derived by the tenant's authority; whoever takes a token first
keeps it, and the authority draws another.

    topic/<token>                 [tenant, owner, partitions, replicas, flags, nodes, version, schema hash,
                                   height of creation, height of closing or 0]
    schema/<token><u32 version>   [hash, signature, height]
    host/<token><u32 partition>   nodes, where one partition's differ from the topic's
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tallystick import wire
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import identity
from tallystick.ledger.contracts.state import ID, NOBODY, U32, Call, State, Table, fields_of
from tallystick.trust.certificate import SubjectKind
from tallystick.trust.promise import PARTITIONS_MAX
from tallystick.wire import Fields

SCHEMA_CONTEXT = "tallystick schema 1"
ERASABLE, PADDED = 1, 2  # flags
REPLICAS_MAX = 32
NODES_MAX = 8  # nodes and notaries that write about one partition


class TopicRow(NamedTuple):
    tenant: bytes
    owner: bytes
    partitions: int
    replicas: int
    flags: int
    nodes: list[bytes]
    version: int  # of the newest schema
    schema_hash: bytes
    created: int
    closed: int  # height, or 0


class SchemaRow(NamedTuple):
    hash: bytes
    signature: bytes
    height: int


TOPICS = Table("topic", TopicRow, ID)
SCHEMAS = Table("schema", SchemaRow, ID, U32)
_HOSTS = Table("host", list[bytes], ID, U32)


def require(state: State, token: bytes) -> TopicRow:
    """The topic, closed or not, or `Refused`."""
    row = state.row(TOPICS(token))
    if row is None:
        raise Refused(f"topic {token.hex()} does not exist", reason="unknown-topic")
    return row


def is_owner_or_admin(state: State, topic: TopicRow, subject: bytes) -> bool:
    return subject == topic.owner or identity.is_tenant_admin(state, topic.tenant, subject)


def require_owner(call: Call, token: bytes) -> TopicRow:
    """The topic, if the author owns it or administers its tenant."""
    topic = require(call.state, token)
    if not is_owner_or_admin(call.state, topic, call.author):
        raise Refused(f"only the owner of topic {token.hex()} or its tenant's may do this", reason="not-owner")
    return topic


def create(call: Call, entry: list[Any]) -> None:
    """[10, token, tenant, owner, partitions, replicas, flags, [node, …], schema hash, owner's signature]"""
    fields = fields_of(entry, "topic", 10)
    token, tenant, owner = fields.octets(16), fields.octets(16), fields.octets(16)
    partitions, replicas = fields.number(PARTITIONS_MAX, 1), fields.number(REPLICAS_MAX, 1)
    flags, nodes = fields.number(ERASABLE | PADDED), _nodes(call.state, fields)
    schema_hash, signature = fields.octets(32), fields.octets(64)
    if call.author != owner and not identity.is_tenant_admin(call.state, tenant, call.author):
        raise Refused("a topic is made by its owner or its tenant's", reason="not-owner")
    if token == NOBODY or call.state.get(TOPICS(token)) is not None:
        raise Refused(f"topic {token.hex()} exists already", reason="topic-exists")
    principal = identity.require(call.state, owner)
    if principal.kind != SubjectKind.PRINCIPAL or principal.tenant != tenant:
        raise Refused("a topic's owner is a principal of its tenant", reason="wrong-tenant")
    _check_schema(call, principal, token, 1, schema_hash, signature)
    row = TopicRow(tenant, owner, partitions, replicas, flags, nodes, 1, schema_hash, call.height, 0)
    call.state.put(TOPICS(token), [*row])


def schema(call: Call, entry: list[Any]) -> None:
    """[11, token, version, schema hash, owner's signature]"""
    fields = fields_of(entry, "schema", 5)
    token, version = fields.octets(16), fields.number((1 << 32) - 1, 1)
    schema_hash, signature = fields.octets(32), fields.octets(64)
    topic = require_owner(call, token)
    if version != topic.version + 1:
        raise Refused(f"schema version {topic.version + 1} expected, found {version}", reason="wrong-version")
    _check_schema(call, identity.require(call.state, topic.owner), token, version, schema_hash, signature)
    call.state.put(TOPICS(token), [*topic._replace(version=version, schema_hash=schema_hash)])


def assign(call: Call, entry: list[Any]) -> None:
    """[12, token, partition, [node, …]]: who carries one partition and writes its anchors."""
    fields = fields_of(entry, "assign", 4)
    token, partition, nodes = fields.octets(16), fields.number(PARTITIONS_MAX - 1), _nodes(call.state, fields)
    topic = require_owner(call, token)
    if partition >= topic.partitions:
        raise Refused(f"the topic has {topic.partitions} partitions", reason="unknown-partition")
    call.state.put(_HOSTS(token, partition), nodes)


def close(call: Call, entry: list[Any]) -> None:
    """[13, token]: no more writing; the history stays."""
    fields = fields_of(entry, "close topic", 2)
    token = fields.octets(16)
    topic = require_owner(call, token)
    if topic.closed:
        raise Refused(f"topic {token.hex()} is closed already", reason="topic-closed")
    call.state.put(TOPICS(token), [*topic._replace(closed=call.height)])


def carries(call: Call, token: bytes, partition: int) -> bool:
    """Whether the author is a node registered for this partition."""
    if (token, partition) in call.carried:
        return True
    nodes = call.state.get(_HOSTS(token, partition))
    if nodes is None:
        topic = require(call.state, token)
        nodes = topic.nodes if partition < topic.partitions else []
    if call.author_kind != SubjectKind.NODE or call.author not in nodes:
        return False
    call.carried.add((token, partition))
    return True


def schema_statement(instance: bytes, token: bytes, version: int, schema_hash: bytes) -> bytes:
    """What a topic's owner signs for each schema version."""
    return wire.encode([instance, token, version, schema_hash])


def _check_schema(
    call: Call, owner: identity.IdentityRow, token: bytes, version: int, schema_hash: bytes, signature: bytes
) -> None:
    statement = schema_statement(call.instance, token, version, schema_hash)
    VerifyKey(owner.key).verify(SCHEMA_CONTEXT, signature, statement)
    call.state.put(SCHEMAS(token, version), [schema_hash, signature, call.height])


def _nodes(state: State, fields: Fields) -> list[bytes]:
    nodes = fields.items(NODES_MAX, 1)
    for node in nodes:
        if type(node) is not bytes or len(node) != 16:
            raise Malformed("topic: a node is named by 16 bytes")
        if identity.require(state, node).kind != SubjectKind.NODE:
            raise Refused(f"{node.hex()} is not a node", reason="not-node")
    return nodes
