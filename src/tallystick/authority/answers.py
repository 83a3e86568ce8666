"""What an authority is asked and answers, as both sides hold it: who calls, and the values that come back.

A client that speaks to its authority over HTTP needs these, and nothing of how they are found: its process loads no
store and no keeper of keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from tallystick import wire
from tallystick.authority.codec import Identifier, Number, Octets, Versioned, items, number, octets, plain, row, text
from tallystick.crypto.symmetric import named_hash
from tallystick.ledger.contracts.topics import WORD_BYTES, Binding
from tallystick.trust.certificate import BYTES_MAX as CERTIFICATE_BYTES_MAX

_NAMED = Annotated[tuple[tuple[bytes, str], ...], items(row(octets(16), text(at_most=256)))]

SHOW, REMEMBER, FORGET = 0, 1, 2  # what to do with a pattern

AttributeValue = int | tuple[str, ...]


@dataclass(frozen=True)
class Caller:
    """Who asks, as the signature on the request proved; `nonce` is that of the request, drawn by the caller."""

    principal: bytes
    nonce: bytes


NOBODY = Caller(b"", b"")  # who is not yet a principal


def answer_info(instance: bytes, principal: bytes, nonce: bytes) -> bytes:
    """The HPKE info of an answer: for one principal's one request."""
    return wire.encode(["tallystick answer 1", instance, principal, nonce])


def attribute_commitment(salt: bytes, principal: bytes, name: str, value: AttributeValue) -> bytes:
    """What the ledger shows of an attribute's name and value."""
    return named_hash("tallystick attribute commitment 1", wire.encode([salt, principal, name, plain(value)]))


def policy_commitment(salt: bytes, token: bytes, group: int, version: int, formula: bytes) -> bytes:
    """What the ledger shows of a policy's formula."""
    return named_hash("tallystick policy commitment 1", wire.encode([salt, token, group, version, formula]))


def key_hash(public: bytes) -> bytes:
    """What the ledger shows of the public half of a topic's epoch."""
    return named_hash("tallystick topic key 1", public)


def erasure_key_name(publisher: bytes, period: int) -> bytes:
    """Under which name the ledger shows the hash of an erasure period's key."""
    return named_hash("tallystick erasure key name 1", wire.encode([publisher, period]))[:16]


def policy_key_name(group: int, version: int, epoch: int) -> bytes:
    """Under which name the ledger shows the hash of a topic policy's key."""
    return named_hash("tallystick policy key name 1", wire.encode([group, version, epoch]))[:16]


def authority_hash(public: bytes) -> bytes:
    """What the ledger shows of the attribute authority's public key."""
    return named_hash("tallystick attribute authority 1", public)


@dataclass(frozen=True)
class Enrolled:
    """What a new principal takes home."""

    certificate: Octets
    authority: Annotated[bytes, octets(about="the authority's certificate", at_most=CERTIFICATE_BYTES_MAX)]
    nodes: Annotated[tuple[bytes, ...], items(octets(at_most=CERTIFICATE_BYTES_MAX), "certificates of the nodes")]
    trust: Annotated[str, text("trust.json", at_most=1 << 18)]


@dataclass(frozen=True)
class Draft:
    """What the owner needs to make its topic: it builds, signs and submits the entries itself (`topic_entries`)."""

    token: Identifier
    tenant: Identifier
    schema_hash: Annotated[bytes, octets(32)]
    partitions: Number
    flags: Number
    nodes: Annotated[tuple[bytes, ...], items(octets(), "identifiers of the nodes")]
    public: Annotated[bytes, octets(about="public half of epoch 1; empty where the topic exists")]
    rights: Annotated[tuple[bytes, ...], items(octets(), "grant entries of remembered patterns")]


@dataclass(frozen=True)
class BoundDraft(Draft):
    """A draft whose token the authority binds to the tenant."""

    authority: Identifier
    word: Annotated[bytes, octets(WORD_BYTES, "32 bytes; the token is the hash of authority and word")]
    signature: Annotated[bytes, octets(64, 'context "tallystick topic 2"')]

    @property
    def binding(self) -> Binding:
        return Binding(self.authority, self.word, self.signature)


@dataclass(frozen=True)
class Resolved:
    """The topics that a pattern matches, and the entries to sign and submit: only those that change something."""

    tokens: Annotated[tuple[bytes, ...], items(octets())]
    entries: Annotated[tuple[bytes, ...], items(octets())]


@dataclass(frozen=True)
class Rotation:
    """The epoch that follows, and when it begins."""

    epoch: Number
    begins_ms: Number


@dataclass(frozen=True)
class Erased:
    """What an erasure did and what it could not reach."""

    periods: Annotated[tuple[tuple[bytes, int], ...], items(row(octets(16), number()), "[publisher, period] destroyed")]
    holders: Annotated[tuple[bytes, ...], items(octets(), "principals that were handed a key")]
    backups: Annotated[tuple[bytes, ...], items(octets(), "identifiers of backups that hold a key")]


@dataclass(frozen=True)
class RulesInForce:
    """What the ledger's rules are now, as far as the operator may change them."""

    height: Number
    settings: Annotated[tuple[tuple[str, int], ...], items(row(text(), number()), "[name, value] of every setting")]
    versions: Annotated[
        tuple[tuple[str, int, int], ...], items(row(text(), number(), number()), "[contract, version, from height]")
    ]


@dataclass(frozen=True)
class NamePage(Versioned):
    """One page of names; `after` is what to name in the next request, empty on the last page."""

    what = "names"
    topics: _NAMED  # (token, name), on the first page
    principals: _NAMED
    after: Annotated[bytes, octets(at_most=16)]


@dataclass(frozen=True)
class ListedAttribute:
    """One attribute of one principal, values as people write them: wire [principal, name, [value, …], not after ms]."""

    principal: Identifier
    name: Annotated[str, text(at_most=256)]
    values: Annotated[tuple[str, ...], items(text(at_most="request_bytes_max"), at_most=1 << 16)]
    not_after_ms: Number


@dataclass(frozen=True)
class ListedPolicy:
    """The policy of a topic's column group, to its owner: wire [group, version, formula, salt]; formula and salt are
    empty where the authority lost them. The ledger has their commitment."""

    group: Number
    version: Number
    formula: Annotated[bytes, octets(at_most=1 << 16)]
    salt: Annotated[bytes, octets(at_most=32)]


@dataclass(frozen=True)
class HeldPlace:
    """An attribute that a principal holds, and where it stands on the ledger: wire [tenant that granted it, pseudonym,
    name, [value, …], not after ms]."""

    tenant: Identifier
    pseudonym: Identifier
    name: Annotated[str, text(at_most=256)]
    values: Annotated[tuple[str, ...], items(text(at_most="request_bytes_max"), at_most=1 << 16)]
    not_after_ms: Number


@dataclass(frozen=True)
class AttributeAnswer(Versioned):
    """What a principal gets of its attribute key: wire [1, identifier, key, [[epoch, part], …], epoch].

    `key` is empty where the one that the caller named is still right: then `parts` take it on to further epochs.
    Everything but `epoch` is empty where the caller holds no attribute.
    """

    what = "attribute key"
    identifier: Annotated[bytes, octets(at_most=16)]  # of holder and set of traits: what to name in the next request
    key: Annotated[bytes, octets(at_most=4 << 20)] = field(repr=False)
    parts: Annotated[tuple[tuple[int, bytes], ...], items(row(number(), octets(48)), at_most=1 << 16)] = field(
        repr=False
    )
    epoch: Number  # the current one; 0 before the first
