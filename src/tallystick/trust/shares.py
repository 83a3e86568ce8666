"""What is said about the shares of one lane key: its origin, lineages, sets, lists of shares, complaints.

Threat: two stories. A relay that tells one receiver other commitments than another splits the honest ones, and one
that denies what it said cannot be blamed. So what is the same for all receivers (the *set*: every lineage that the
relay holds, with the commitments to its new polynomials) is one signed object, and what is for one receiver (the
*list* of shares) is another that names the set by its hash. Two sets of one sender, lane key, branch and attempt
convict it; so do a set and a list that does not fit it.

A lineage is named by the hash of all it came through: contributor set, lineage before it, commitments. So two relays
that speak of the same name hold shares of the same polynomial. Whether points are points is not looked at when an
object is read, since it costs more than the signature that the caller checks first; `verify_sent` does it. It stands
here because relays and the ledger must judge a share alike. docs/formats/overlay.md has the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import comb
from typing import Annotated, ClassVar, NamedTuple

from tallystick import wire
from tallystick.crypto import group
from tallystick.crypto.group import POINT_BYTES, SCALAR_BYTES, Point, decode_scalar, encode_scalar
from tallystick.crypto.signatures import SignedObject
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed, Refused
from tallystick.wire import Fields, Number, Octets16, Octets32, number

COUNT_MAX = 7  # relays of a virtual node
LINEAGES_MAX = comb(COUNT_MAX, COUNT_MAX // 2)  # 35: one for each contributor set
ATTEMPTS_MAX = 255
SHARE_BYTES = 2 * SCALAR_BYTES
TOKENS_MAX = 16

NO_LINEAGE, CANNOT_OPEN = 1, 2  # why somebody complains


class ScalarShare(NamedTuple):
    """The values of a polynomial and of its blinding one at a relay's index."""

    value: int
    blind: int

    def encode(self) -> bytes:
        return encode_scalar(self.value) + encode_scalar(self.blind)

    @classmethod
    def decode(cls, data: bytes) -> ScalarShare:
        """Raises `Malformed`."""
        return cls(decode_scalar(data[:SCALAR_BYTES], "share"), decode_scalar(data[SCALAR_BYTES:], "share"))


class Lineage(NamedTuple):
    """The contributor sets that a share came through, and the commitments to its polynomial, the constant first."""

    contributors: tuple[int, ...]  # indices, rising; none for what the publisher holds itself
    parent: bytes  # the lineage that they contributed to; for the publisher's own the lane key's identifier
    commitments: tuple[bytes, ...]

    @property
    def name(self) -> bytes:
        return _name(self)

    @classmethod
    def read(cls, fields: Fields) -> Lineage:
        return cls(_indices(fields), fields.octets(32), _points(fields, at_least=1))


@lru_cache(maxsize=1 << 12)
def _name(lineage: Lineage) -> bytes:
    return named_hash("tallystick lineage 1", wire.encode([1, *lineage]))


class SentLineage(NamedTuple):
    """A lineage that a relay holds, and its commitments to the polynomial by which it re-shares it.

    The constant's commitment is left away: it is that of the relay's own share, which follows from the lineage's.
    """

    lineage: Lineage
    fresh: tuple[bytes, ...]


def verify_share(commitments: Sequence[Point], index: int, share: ScalarShare) -> None:
    """Returns if the share is the committed polynomial's value at `index`. Raises `Forged`."""
    if group.commit(*share) != group.point_at(commitments, index):
        raise Forged(f"share of index {index}: not what its commitments say")


def verify_sent(sent: SentLineage, sender: int, share: ScalarShare, receiver: int) -> tuple[Point, ...]:
    """The commitments to the sender's polynomial, if they are points and the receiver's share fits them.

    Raises `Malformed` or `Forged`.
    """
    old = [group.decode_point(one, "commitment") for one in sent.lineage.commitments]
    fresh = [group.decode_point(one, "commitment") for one in sent.fresh]
    commitments = (group.point_at(old, sender), *fresh)
    verify_share(commitments, receiver, share)
    return commitments


def _indices(fields: Fields) -> tuple[int, ...]:
    found = tuple(one.number(COUNT_MAX, 1) for one in fields.each(COUNT_MAX))
    if any(after <= before for before, after in pairwise(found)):
        raise Malformed(f"{fields.what}: indices in rising order expected")
    return found


def _points(fields: Fields, at_least: int = 0) -> tuple[bytes, ...]:
    return tuple(one.octets(POINT_BYTES) for one in fields.each(COUNT_MAX - 1 + at_least, at_least))


def _commitments(fields: Fields) -> tuple[bytes, ...]:
    return _points(fields, at_least=1)


def _lineages(fields: Fields) -> tuple[SentLineage, ...]:
    sent = []
    for item in fields.items(LINEAGES_MAX):
        one = Fields(item, fields.what, 2)
        sent.append(SentLineage(Lineage.read(one.array(3)), _points(one)))
    check_lineages(sent, fields.what)
    return tuple(sent)


def check_lineages(sent: Sequence[SentLineage], what: str) -> None:
    """One for each contributor set, in the order of their names, all of one form. Raises `Malformed`."""
    forms = {(len(one.lineage.contributors), len(one.lineage.commitments), len(one.fresh)) for one in sent}
    names = [one.lineage.name for one in sent]
    if len(forms) > 1 or len({one.lineage.contributors for one in sent}) < len(sent) or names != sorted(names):
        raise Malformed(f"{what}: one lineage for each contributor set expected, in order and of one form")


def _encoded_shares(fields: Fields) -> tuple[bytes, ...]:
    found = tuple(one.octets(SHARE_BYTES) for one in fields.each(LINEAGES_MAX))
    for share in found:
        ScalarShare.decode(share)
    return found


def _tokens(fields: Fields) -> tuple[bytes, ...]:
    found = tuple(one.octets(16) for one in fields.each(TOKENS_MAX, 1))
    if len(set(found)) < len(found):
        raise Malformed(f"{fields.what}: a topic is named twice")
    return found


@dataclass(frozen=True)
class Origin(SignedObject):
    """A publisher's word on a new lane key: whose it is, where it enters the overlay, and what it committed to."""

    what: ClassVar[str] = "share origin"
    context: ClassVar[str] = "tallystick share origin 1"
    publisher: Octets16
    lock: Octets32  # the name of the share lock
    created_ms: Number
    plan: Number  # version of the plan
    edge: Octets16  # the virtual node that the publisher gives its shares to
    tokens: Annotated[tuple[bytes, ...], _tokens]  # the topics of its lane, whose subscribers it is for
    commitments: Annotated[tuple[bytes, ...], _commitments]
    opens: Octets32  # the commitment to the share lock's secret

    @cached_property
    def lane_key(self) -> bytes:
        return name_lane_key(self.publisher, self.lock, self.created_ms)

    def contradicts(self, other: Origin) -> bool:
        """Whether who signed both lied."""
        return self.lane_key == other.lane_key and self.body != other.body


def name_lane_key(publisher: bytes, lock: bytes, created_ms: int) -> bytes:
    """A lane key's identifier. No other publisher can take it, nor the same one at another time: so a relay that
    signs one set for a lane key, and none for those made before it was started, never contradicts itself."""
    return named_hash("tallystick relayed key 1", wire.encode([1, publisher, lock, created_ms]))


@dataclass(frozen=True)
class ShareSet(SignedObject):
    """All that a relay will say about a lane key to the relays of a branch in an attempt, the same to each of them."""

    what: ClassVar[str] = "share set"
    context: ClassVar[str] = "tallystick share set 1"
    lane_key: Octets32
    plan: Number  # version of the plan
    branch: Octets16  # the virtual node, or the subscriber, that the set is for
    attempt: Annotated[int, number(ATTEMPTS_MAX)]
    sender: Annotated[int, number(COUNT_MAX, 1)]  # its index in its virtual node
    lineages: Annotated[tuple[SentLineage, ...], _lineages]

    @property
    def place(self) -> tuple[bytes, int, bytes, int]:
        """What an honest sender signs one set for."""
        return self.lane_key, self.plan, self.branch, self.attempt

    def contradicts(self, other: ShareSet) -> bool:
        """Whether who signed both lied."""
        return self.place == other.place and self.body != other.body

    @cached_property
    def hash(self) -> bytes:
        """What lists of shares name it by: it is over what is signed."""
        return named_hash("tallystick share set 1", self.body or wire.encode([1, *wire.listed(self)]))


@dataclass(frozen=True)
class ShareList(SignedObject):
    """The shares of one receiver, one for each lineage of a set, in its order."""

    what: ClassVar[str] = "share list"
    context: ClassVar[str] = "tallystick share list 1"
    set_hash: Octets32
    receiver: Annotated[int, number(COUNT_MAX, 1)]
    encoded: Annotated[tuple[bytes, ...], _encoded_shares]

    @cached_property
    def shares(self) -> tuple[ScalarShare, ...]:
        return tuple(map(ScalarShare.decode, self.encoded))


def find_false(shares: ShareSet, listed: ShareList) -> int | None:
    """The number of the first share of a list that does not fit its set, or None where all do."""
    for at, (sent, share) in enumerate(zip(shares.lineages, listed.shares, strict=False)):
        try:
            verify_sent(sent, shares.sender, share, listed.receiver)
        except Refused:
            return at
    return None


@dataclass(frozen=True)
class Complaint(SignedObject):
    """An attempt brought a relay no lineage, or a subscriber no secret: the publisher's edge begins the next one."""

    what: ClassVar[str] = "complaint"
    context: ClassVar[str] = "tallystick complaint 1"
    lane_key: Octets32
    plan: Number
    attempt: Annotated[int, number(ATTEMPTS_MAX)]
    place: Octets16  # the relay's virtual node, or the subscriber
    index: Annotated[int, number(COUNT_MAX)]  # the relay's; 0 is a subscriber
    reason: Annotated[int, number(CANNOT_OPEN, NO_LINEAGE)]
    liars: Annotated[tuple[int, ...], _indices]  # those before it whose shares did not verify
