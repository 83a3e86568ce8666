"""Topics: token, tenant, owner, partitions, replicas, schema versions by hash, and the nodes that carry them.

Threat: a topic of another tenant's, or another owner's, changed; partitions renumbered, so that lanes land elsewhere;
a schema rewritten under readers; a token that somebody saw on its way and registered for another tenant, so that names
lead to the thief's topic. Invariant: a topic is made once by its owner; its number of partitions never changes; schema
versions count up by one, each signed by the owner. The text of a schema is not here, since column names give a topic
away. From version 2 on a token is the hash of an authority and of a word of 32 bytes that this authority derived from
tenant and name, and the authority signs the tenant. So under another tenant, or by another authority, the same token
cannot be made. Topics of version 1 keep their tokens, which were whoever's came first.

    topic/<token>                 [tenant, owner, partitions, replicas, flags, nodes, version, schema hash,
                                   height of creation, height of closing or 0, authority, kept for ms, kept parcels,
                                   anchor pace ms]; what stands at its default at the end is not written
    schema/<token><u32 version>   [hash, signature, height]
    host/<token><u32 partition>   nodes, where one partition's differ from the topic's
    tenure/<token><u32 partition><node>   [since ms, until ms or 0], of nodes that came or went by assignment
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tallystick import wire
from tallystick.crypto.signatures import VerifyKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import identity, quotas, settings
from tallystick.ledger.contracts.state import ID, NOBODY, U32, Call, State, Table, fields_of
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.promise import PARTITIONS_MAX
from tallystick.trust.receipt import TOPIC_FAMILY
from tallystick.wire import Fields

SCHEMA_CONTEXT, BINDING_CONTEXT = "tallystick schema 1", "tallystick topic 2"
ERASABLE, PADDED, CLEAR = 1, 2, 4  # flags; CLEAR: content may be matched in the clear
BOUND_VERSION = 2  # of this contract: from it on topics are bound
WORD_BYTES = 32
ANCHOR_PACE_MS_MAX = 30_000  # half of what a promise has by default until its anchor must be there
REPLICAS_MAX = 32
NODES_MAX = 8  # nodes and notaries that write about one partition


class TopicRow(NamedTuple):
    tenant: bytes  # it stays the first: proofs are checked by it (trust/receipt.py)
    owner: bytes
    partitions: int
    replicas: int
    flags: int
    nodes: list[bytes]
    version: int  # of the newest schema
    schema_hash: bytes
    created: int
    closed: int  # height, or 0
    authority: bytes = b""  # that bound the token to the tenant; empty in topics of version 1
    keep_ms: int = 0  # how old parcels become before they may go, or 0
    keep_parcels: int = 0  # how many newest parcels of a partition stay, or 0; with both 0 everything stays for ever
    anchor_pace_ms: int = 0  # the least time between two anchors of a partition; 0: as soon as the last is through


class Binding(NamedTuple):
    """An authority's word that a token is a tenant's."""

    authority: bytes
    word: bytes  # derived by the authority from tenant and name
    signature: bytes

    @property
    def token(self) -> bytes:
        return bound_token(self.authority, self.word)


class Terms(NamedTuple):
    """What the owner of a topic chooses about it, as the fields of its row say."""

    keep_ms: int = 0
    keep_parcels: int = 0
    anchor_pace_ms: int = 0


class SchemaRow(NamedTuple):
    hash: bytes
    signature: bytes
    height: int


class TenureRow(NamedTuple):
    """Since when a node carries a partition, and until when, or 0: its last time."""

    since_ms: int
    until_ms: int

    def covers(self, first_ms: int, last_ms: int) -> bool:
        return self.since_ms <= first_ms and (not self.until_ms or self.until_ms > last_ms)


TOPICS = Table(TOPIC_FAMILY, TopicRow, ID)
SCHEMAS = Table("schema", SchemaRow, ID, U32)
HOSTS = Table("host", list[bytes], ID, U32)
TENURES = Table("tenure", TenureRow, ID, U32, ID)  # by topic, partition and node


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
    _make(call, *_read_new(call, fields, ERASABLE | PADDED))


def create_bound(call: Call, entry: list[Any]) -> None:
    """[10, … as in version 1 …, [authority, word, its signature], [keep ms, keep parcels], anchor pace ms, [fees]]

    There are no fees yet: their list is empty.
    """
    if len(entry) == 10:
        raise Refused("a topic without its authority's binding is of version 1", reason="unbound-topic")
    fields = fields_of(entry, "topic", 14)
    token, row, signature = _read_new(call, fields, ERASABLE | PADDED | CLEAR)
    bound = fields.array(3)
    binding = Binding(bound.octets(16), bound.octets(WORD_BYTES), bound.octets(64))
    keep_ms, keep_parcels = read_keeping(fields)
    pace_ms = fields.number(min(ANCHOR_PACE_MS_MAX, settings.read(call.state, "anchor_ms") // 2))
    fields.items(0)
    _check_binding(call, token, row.tenant, binding)
    if call.has_quotas:
        quotas.charge_partitions(call, row.tenant, row.partitions * row.replicas)
    _make(call, token, TopicRow(*row[:10], binding.authority, keep_ms, keep_parcels, pace_ms), signature)


def read_keeping(fields: Fields) -> tuple[int, int]:
    """[keep ms, keep parcels], of which one is 0, or both: then everything stays."""
    keeping = fields.array(2)
    keep_ms, keep_parcels = keeping.number(), keeping.number()
    if keep_ms and keep_parcels:
        raise Malformed("topic: parcels are kept by age or by number, not by both")
    return keep_ms, keep_parcels


def bound_token(authority: bytes, word: bytes) -> bytes:
    """The token that this authority's word makes."""
    return named_hash("tallystick token 2", wire.encode([authority, word]))[:16]


def binding_statement(instance: bytes, tenant: bytes, authority: bytes, word: bytes) -> bytes:
    """What an authority signs for each token that it binds to a tenant."""
    return wire.encode([instance, bound_token(authority, word), tenant, authority, word])


def stored(row: TopicRow) -> list[Any]:
    """The row as it is written: as long as it was before fields came that stand at their defaults."""
    values = [*row]
    while len(values) > _FIRST_FIELDS and values[-1] == _DEFAULTS[len(values) - 1]:
        values.pop()
    return values


_FIRST_FIELDS = len(TopicRow._fields) - len(TopicRow._field_defaults)
_DEFAULTS = [TopicRow._field_defaults.get(name) for name in TopicRow._fields]


def schema(call: Call, entry: list[Any]) -> None:
    """[11, token, version, schema hash, owner's signature]"""
    fields = fields_of(entry, "schema", 5)
    token, version = fields.octets(16), fields.number((1 << 32) - 1, 1)
    schema_hash, signature = fields.octets(32), fields.octets(64)
    topic = require_owner(call, token)
    if version != topic.version + 1:
        raise Refused(f"schema version {topic.version + 1} expected, found {version}", reason="wrong-version")
    _check_schema(call, identity.require(call.state, topic.owner), token, version, schema_hash, signature)
    call.state.put(TOPICS(token), stored(topic._replace(version=version, schema_hash=schema_hash)))


def assign(call: Call, entry: list[Any]) -> None:
    """[12, token, partition, [node, …]]: who carries one partition and writes its anchors."""
    _assign(call, entry)


def assign_noted(call: Call, entry: list[Any]) -> None:
    """Version 2: also by the operator, whose nodes they are; it notes since when a node carries it, or until when."""
    token, partition, before, after = _assign(call, entry, by_operator=call.is_operator)
    for node in {*before} - {*after}:
        row = call.state.row(TENURES(token, partition, node)) or TenureRow(0, 0)
        call.state.put(TENURES(token, partition, node), [row.since_ms, call.time_ms])
    for node in {*after} - {*before}:
        call.state.put(TENURES(token, partition, node), [call.time_ms, 0])


def _assign(call: Call, entry: list[Any], *, by_operator: bool = False) -> tuple[bytes, int, list[bytes], list[bytes]]:
    """Assign a partition. Returns topic, partition, and its nodes before and after."""
    fields = fields_of(entry, "assign", 4)
    token, partition, nodes = fields.octets(16), fields.number(PARTITIONS_MAX - 1), _nodes(call.state, fields)
    topic = require(call.state, token) if by_operator else require_owner(call, token)
    if partition >= topic.partitions:
        raise Refused(f"the topic has {topic.partitions} partitions", reason="unknown-partition")
    before = call.state.row(HOSTS(token, partition)) or topic.nodes
    call.state.put(HOSTS(token, partition), nodes)
    return token, partition, before, nodes


def close(call: Call, entry: list[Any]) -> None:
    """[13, token]: no more writing; the history stays."""
    token = fields_of(entry, "close topic", 2).octets(16)
    end(call, token, require_owner(call, token))


def end(call: Call, token: bytes, topic: TopicRow) -> None:
    """Close a topic; whether the author may was asked."""
    if topic.closed:
        raise Refused(f"topic {token.hex()} is closed already", reason="topic-closed")
    call.state.put(TOPICS(token), stored(topic._replace(closed=call.height)))


def carries(call: Call, token: bytes, partition: int) -> bool:
    """Whether the author is a node registered for this partition."""
    if (token, partition) in call.carried:
        return True
    nodes = call.state.get(HOSTS(token, partition))
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


def _read_new(call: Call, fields: Fields, flags_max: int) -> tuple[bytes, TopicRow, bytes]:
    """The token, the row and the owner's signature of a topic that is to be made."""
    token, tenant, owner = fields.octets(16), fields.octets(16), fields.octets(16)
    partitions, replicas = fields.number(PARTITIONS_MAX, 1), fields.number(REPLICAS_MAX, 1)
    flags, nodes = fields.number(flags_max), _nodes(call.state, fields)
    schema_hash, signature = fields.octets(32), fields.octets(64)
    return token, TopicRow(tenant, owner, partitions, replicas, flags, nodes, 1, schema_hash, call.height, 0), signature


def _check_binding(call: Call, token: bytes, tenant: bytes, binding: Binding) -> None:
    if token != binding.token:
        raise Refused("a token is the hash of its authority and of the word shown", reason="wrong-token")
    authority = identity.require(call.state, binding.authority)
    authority.check_live(call.time_ms)
    if authority.kind != SubjectKind.AUTHORITY or authority.tenant not in (ALL_TENANTS, tenant):
        raise Refused(f"only an authority of tenant {tenant.hex()} may do this", reason="not-authority")
    statement = binding_statement(call.instance, tenant, binding.authority, binding.word)
    VerifyKey(authority.key).verify(BINDING_CONTEXT, binding.signature, statement)


def _make(call: Call, token: bytes, row: TopicRow, signature: bytes) -> None:
    if call.author != row.owner and not identity.is_tenant_admin(call.state, row.tenant, call.author):
        raise Refused("a topic is made by its owner or its tenant's", reason="not-owner")
    if token == NOBODY or call.state.get(TOPICS(token)) is not None:
        raise Refused(f"topic {token.hex()} exists already", reason="topic-exists")
    principal = identity.require(call.state, row.owner)
    if principal.kind != SubjectKind.PRINCIPAL or principal.tenant != row.tenant:
        raise Refused("a topic's owner is a principal of its tenant", reason="wrong-tenant")
    _check_schema(call, principal, token, 1, row.schema_hash, signature)
    call.state.put(TOPICS(token), stored(row))


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
