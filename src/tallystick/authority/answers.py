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


@dataclass(frozen=True)
class Enrolled:
    """What a new principal takes home."""

    certificate: Octets
    authority: Annotated[bytes, octets(about="the authority's certificate", at_most=CERTIFICATE_BYTES_MAX)]
    nodes: Annotated[tuple[bytes, ...], items(octets(at_most=CERTIFICATE_BYTES_MAX), "certificates of the nodes")]
    trust: Annotated[str, text("trust.json", at_most=1 << 18)]


@dataclass(frozen=True)
class Draft:
    """What the owner needs to make its topic: it signs the schema statement and submits the entries itself."""

    token: Identifier
    tenant: Identifier
    schema_hash: Annotated[bytes, octets(32)]
    partitions: Number
    flags: Number
    nodes: Annotated[tuple[bytes, ...], items(octets(), "identifiers of the nodes")]
    public: Annotated[bytes, octets(about="public half of epoch 1; empty where the topic exists")]
    rights: Annotated[tuple[bytes, ...], items(octets(), "grant entries of remembered patterns")]


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
