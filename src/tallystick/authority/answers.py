"""What an authority is asked and answers, as both sides hold it: who calls, and the values that come back.

A client that speaks to its authority over HTTP needs these, and nothing of how they are found: its process loads no
store and no keeper of keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tallystick import wire
from tallystick.errors import Malformed
from tallystick.wire import Fields

ANSWER_INFO = "tallystick answer 1"
_ITEMS_MAX = 1 << 20
_VALUES_MAX = 1 << 16
_PARTS_MAX = 1 << 16
_KEY_BYTES_MAX = 4 << 20

SHOW, REMEMBER, FORGET = 0, 1, 2  # what to do with a pattern


@dataclass(frozen=True)
class Caller:
    """Who asks, as the signature on the request proved; `nonce` is that of the request, drawn by the caller."""

    principal: bytes
    nonce: bytes


def answer_info(instance: bytes, principal: bytes, nonce: bytes) -> bytes:
    """The HPKE info of an answer: for one principal's one request."""
    return wire.encode([ANSWER_INFO, instance, principal, nonce])


@dataclass(frozen=True)
class Draft:
    """What the owner needs to make its topic: it signs the schema statement and submits the entries itself."""

    token: bytes
    tenant: bytes
    schema_hash: bytes
    partitions: int
    flags: int
    nodes: tuple[bytes, ...]
    public: bytes  # of epoch 1
    rights: tuple[bytes, ...]  # grant entries for remembered patterns that match the name


@dataclass(frozen=True)
class Resolved:
    tokens: tuple[bytes, ...]
    entries: tuple[bytes, ...]  # to sign and submit; only those that change something


@dataclass(frozen=True)
class Rotation:
    """The epoch that follows, and when it begins."""

    epoch: int
    begins_ms: int


@dataclass(frozen=True)
class Erased:
    """What an erasure did and what it could not reach."""

    periods: tuple[tuple[bytes, int], ...]  # (publisher, period) destroyed
    holders: tuple[bytes, ...]  # principals that were handed one of the keys
    backups: tuple[bytes, ...]  # identifiers of backups that hold one of the keys


@dataclass(frozen=True)
class NamePage:
    """One page of names; `after` is what to name in the next request, empty on the last page."""

    topics: tuple[tuple[bytes, str], ...]  # (token, name), on the first page
    principals: tuple[tuple[bytes, str], ...]
    after: bytes

    def encode(self) -> bytes:
        pairs = [[list(pair) for pair in found] for found in (self.topics, self.principals)]
        return wire.encode([1, *pairs, self.after])

    @classmethod
    def decode(cls, data: bytes) -> NamePage:
        """Raises `Malformed`."""
        fields = Fields.parse(data, "names", 4)
        fields.version(1)
        return cls(_pairs(fields), _pairs(fields), fields.octets(at_most=16))


def _pairs(fields: Fields) -> tuple[tuple[bytes, str], ...]:
    found = [Fields(item, "names", 2) for item in fields.items(_ITEMS_MAX)]
    return tuple((pair.octets(16), pair.text()) for pair in found)


@dataclass(frozen=True)
class ListedAttribute:
    """One attribute of one principal, values as people write them: wire [principal, name, [value, …], not after ms]."""

    principal: bytes
    name: str
    values: tuple[str, ...]
    not_after_ms: int

    def fields(self) -> list[object]:
        return [self.principal, self.name, list(self.values), self.not_after_ms]

    @classmethod
    def of_fields(cls, item: object) -> ListedAttribute:
        """Raises `Malformed`."""
        fields = Fields(item, "attributes", 4)
        principal, name, values = fields.octets(16), fields.text(), fields.items(_VALUES_MAX)
        if not all(type(value) is str for value in values):
            raise Malformed("attributes: a value is text")
        return cls(principal, name, tuple(values), fields.number())


@dataclass(frozen=True)
class AttributeAnswer:
    """What a principal gets of its attribute key: wire [1, identifier, key, [[epoch, part], …], epoch].

    `key` is empty where the one that the caller named is still right: then `parts` take it on to further epochs.
    Everything but `epoch` is empty where the caller holds no attribute.
    """

    identifier: bytes  # of holder and set of traits: what to name in the next request
    key: bytes = field(repr=False)
    parts: tuple[tuple[int, bytes], ...] = field(repr=False)
    epoch: int  # the current one; 0 before the first

    def encode(self) -> bytes:
        return wire.encode([1, self.identifier, self.key, [list(part) for part in self.parts], self.epoch])

    @classmethod
    def decode(cls, data: bytes) -> AttributeAnswer:
        """Raises `Malformed`."""
        fields = Fields.parse(data, "attribute key", 5)
        fields.version(1)
        identifier, key = fields.octets(at_most=16), fields.octets(at_most=_KEY_BYTES_MAX)
        parts = [Fields(item, "attribute key", 2) for item in fields.items(_PARTS_MAX)]
        return cls(identifier, key, tuple((part.number(), part.octets(48)) for part in parts), fields.number())
