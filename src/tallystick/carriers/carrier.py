"""A carrier as its clients see it, the frames of what they send and fetch, and the voids they may meet.

Engines share this protocol and the suite in tests/contract, nothing else.

A void lies at an offset that holds no parcel to open. A carrier with guards in front stores only what they took, once.
On Kafka anybody with Kafka's leave appends, so a partition also holds what the notary refused, parcels a second time,
and offsets at which readers see nothing (the ends of transactions, aborted records). The tree has a leaf for each
offset all the same: a parcel's hash where it is repeated, else under labels of their own, so that no refused bytes pass
for a parcel and no parcel for a void. The reason is the notary's word; it stands in its anchor on the ledger. A parcel
that is falsely called repeated is missed by whoever reads its lane.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from hashlib import sha256
from typing import NamedTuple, Protocol, runtime_checkable

from tallystick import wire
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Malformed
from tallystick.trust.promise import REASON_CHARACTERS_MAX, JointPromise, Promise
from tallystick.wire import Fields

_LENGTH = struct.Struct("<I")
ITEMS_MAX = 65_536


def join_frames(items: Sequence[bytes | memoryview]) -> bytes:
    return b"".join(part for item in items for part in (_LENGTH.pack(len(item)), item))


def split_frames(data: bytes | memoryview, items_max: int = ITEMS_MAX) -> list[bytes]:
    """The items of a framed body. Raises `Malformed` unless it is made of whole frames."""
    return [bytes(item) for item in frame_views(data, items_max)]


def frame_views(data: bytes | memoryview, items_max: int = ITEMS_MAX) -> list[memoryview]:
    """As `split_frames`, without copying; the whole lives as long as any of its items."""
    view, at = memoryview(data), 0
    items: list[memoryview] = []
    while at < len(view):
        if at + 4 > len(view) or len(items) == items_max:
            raise Malformed("frames: truncated, or too many")
        end = at + 4 + _LENGTH.unpack_from(view, at)[0]
        if end > len(view):
            raise Malformed("frames: truncated")
        items.append(view[at + 4 : end])
        at = end
    return items


MAGIC = b"TLV\x01"
VOID_BYTES_MAX = 256


@dataclass(frozen=True)
class Void:
    """Refused bytes, by their SHA-256, and why; a parcel once more, by its hash and without a reason; or nothing."""

    digest: bytes = b""
    reason: str = ""

    @classmethod
    def refused(cls, data: bytes, reason: str) -> Void:
        return cls(sha256(data).digest(), reason)

    @classmethod
    def repeated(cls, parcel: bytes) -> Void:
        return cls(parcel)

    @property
    def hash(self) -> bytes:
        """What stands in the partition's tree where a parcel's hash would."""
        if not self.digest:
            return named_hash("tallystick empty leaf 1", b"")
        return named_hash("tallystick refused leaf 1", self.digest) if self.reason else self.digest

    def encode(self) -> bytes:
        return MAGIC + wire.encode([self.digest, self.reason])

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Void:
        if not is_void(data) or len(data) > VOID_BYTES_MAX:
            raise Malformed("not a void")
        fields = Fields.parse(bytes(data[len(MAGIC) :]), "void", 2)
        void = cls(fields.octets(at_most=32), fields.text(REASON_CHARACTERS_MAX))
        if len(void.digest) not in (0, 32) or (void.reason and not void.digest):
            raise Malformed("void: a reason without a digest")
        return void


def is_void(data: bytes | memoryview) -> bool:
    return bytes(data[: len(MAGIC)]) == MAGIC


BUNDLE_PATH = "/v1/bundle"
CONTRACTS_PATH = "/v1/ledger/contracts"
FRAMES_PATH = "/v1/overlay/frames"  # a client's frames to a relay, and the relay's to it
KIT_PATH = "/v1/mesh/kit"  # what a mesh node needs, from the principal that it serves
MESH_STATUS_PATH = "/v1/mesh/status"  # and what it tells it of itself
GROUPS_PATH = "/v1/mesh/groups"  # the groups of its processes, which are kept there; at a host of the fabric as well
FABRIC_KIT_PATH = "/v1/fabric/kit"  # what a host of the fabric needs, from the principal that it serves
FABRIC_ASK_PATH = "/v1/fabric/ask"  # have a request carried to the dispatcher
FABRIC_STATUS_PATH = "/v1/fabric/status"
FABRIC_CARD_PATH = "/v1/fabric/card"  # a dispatcher's key
FABRIC_FRAMES_PATH = "/v1/fabric/frames"  # the configurator's frames to a dispatcher, and the dispatcher's to it
FABRIC_DIRECTORY_PATH = "/v1/fabric/directory"  # who holds which attributes, for a dispatcher
QUESTIONS_MAX = 256  # a proof of the state has about a kilobyte: a quarter of a megabyte, and of a tenth of a second


@dataclass(frozen=True)
class Stored:
    """A parcel was taken, now or (`again`) before: the carrier's promise in each of its topics. Where no guard
    stands in front of the carrier, there are `offsets` (token, partition, offset) without a promise. Where nothing will
    be anchored, it is `final`: there is nothing more to wait for."""

    promises: tuple[Promise | JointPromise, ...]
    again: bool = False
    offsets: tuple[tuple[bytes, int, int], ...] = ()
    final: bool = False


@dataclass(frozen=True)
class NotStored:
    """A parcel was refused; for reason `ahead`, `expected` is the sequence that is due."""

    reason: str
    message: str
    expected: int | None = None


Outcome = Stored | NotStored


@dataclass(frozen=True)
class Fetch:
    """What a subscriber asks for: parcels of a partition from `offset` on and below `end`."""

    token: bytes
    partition: int
    permit: bytes
    offset: int
    bytes_max: int
    wait_ms: int = 0  # for the first of them, where none is there
    stored: bool = False  # also those that no anchor covers yet
    headers: bool = False  # without their bodies
    size: int | None = None  # of the tree in which they are proved; the newest anchor's by default
    end: int | None = None


@dataclass(frozen=True)
class Fetched:
    """Consecutive parcels of a partition from `first` on, and what proves them; nothing of it is verified.

    `parcels` are whole parcels, or fronts where only headers were asked for. `proof` is the range proof of their hashes
    in the tree of `anchored` parcels. `end` is the end of the log, as the carrier tells it; below `retired` there are
    no bodies any more.
    """

    first: int
    parcels: tuple[bytes | memoryview, ...]
    anchored: int
    proof: tuple[bytes, ...]
    end: int
    retired: int = 0


class LaneSought(NamedTuple):
    """Which lane's front is asked for: of its last parcel below an offset, proved in the tree of `size` parcels."""

    token: bytes
    partition: int
    permit: bytes
    publisher: bytes
    lane: bytes
    below: int
    size: int


@dataclass(frozen=True)
class LaneFront:
    """The front of a lane's last parcel below an offset, and its inclusion proof in the tree of `anchored` parcels."""

    offset: int
    front: bytes
    anchored: int
    proof: tuple[bytes, ...]


class Can(Flag):
    """What a carrier can do beyond what all of them do; each says so as `CAN`, and the contract suite asks for it."""

    ANCHOR = auto()  # what it takes is anchored on the ledger; else it stores nothing, and readers' nodes do
    GUARD = auto()  # refuses at once what the rules refuse; without it a notary judges behind
    PROMISE = auto()  # answers with a signed promise, and anchors what it promised
    KNOW = auto()  # knows a parcel that it has, and where; without it the parcel lies there twice
    SELECT = auto()  # sends no body that a permit's labels leave out
    RETIRE = auto()  # gives up old bodies under a mark on the ledger
    LOCKS = auto()  # keeps locks to be fetched; else they are pushed

    SENDING = ANCHOR | GUARD | PROMISE | KNOW  # what stands between a publisher and the storage
    READING = SELECT | RETIRE | LOCKS


class Sending(Protocol):
    """What publishers ask of a carrier. Everything raises `Refused` or `Unavailable`, here and below."""

    def advertise(self, permit: bytes) -> None: ...

    def undo(self, order: bytes) -> None: ...

    def put_locks(self, token: bytes, permit: bytes, locks: Sequence[bytes]) -> None: ...

    def publish(self, token: bytes, parcels: Sequence[bytes]) -> list[Outcome]: ...


class Reading(Protocol):
    """What subscribers ask of a carrier that stores: ranges, and what proves them."""

    def subscribe(self, permit: bytes) -> None: ...

    def undo(self, order: bytes) -> None: ...

    def lock(self, name: bytes) -> bytes: ...

    def permit(self, identifier: bytes) -> bytes: ...

    def fetch(self, wanted: Fetch) -> Fetched: ...

    def lane_front(self, sought: LaneSought) -> LaneFront | None: ...

    def verdict(self, token: bytes, partition: int, offset: int) -> str:
        """Why what lies at an anchored offset was refused, empty if it was not."""

    def inclusion(self, token: bytes, partition: int, size: int, offsets: Sequence[int]) -> list[list[bytes]]:
        """The path of each offset in the tree of `size` parcels."""

    def ask_another(self) -> int:
        """Ask another node from now on, since what came was wrong. Returns how many there are to ask."""


PUSHED_PARCEL_BYTES = 160 * 1024  # of a parcel that is pushed: with locks and padding it fits an envelope of the mesh


class Pushed(NamedTuple):
    """A parcel as it was pushed, and the permits and locks that came with it."""

    parcel: bytes
    permits: tuple[bytes, ...] = ()
    locks: tuple[bytes, ...] = ()


class Offer(NamedTuple):
    """What a publisher says of an advertisement beyond its permit; what it does not say is empty."""

    code: bytes = b""  # of the topic's labels
    label_keys: tuple[tuple[int, bytes], ...] = ()  # by epoch; empty ones where labels are clear
    content: bytes = b""  # what will be published: a formula over the topic's columns, or a set of their values
    policy: bytes = b""  # who may get it: a formula over attributes


@runtime_checkable
class Matched(Protocol):
    """A carrier that matches what is published with what is wanted: it is told more than a permit says, before the
    permit is shown to it. What nobody asked for does not come, not even its header."""

    def describe_offer(self, permit: bytes, offer: Offer) -> None: ...

    def describe_interest(self, permit: bytes, interest: bytes) -> None:
        """What a subscriber wants: a formula, encoded."""


class Receiving(Protocol):
    """What a node asks of a carrier that stores nothing: parcels as they come, of which its own log keeps those that
    count (received.py); subscribers and Spark read that log."""

    def pushed(self) -> Sequence[Pushed]:
        """What came since the last call, from anybody; does not wait."""

    def close(self) -> None: ...


OpenedSecrets = Mapping[tuple[bytes, bytes], bytes]  # of share locks, by publisher and lock


class DrawnShare(NamedTuple):
    """A new share lock and its secret."""

    lock: bytes
    secret: bytes
    plan: int  # version of the plan under which it is split
    created_ms: int
    given: bool  # whether relays have its shares: else what is sealed under it must not be sent


class Sharing(Protocol):
    """A carrier that brings one secret of a lane key to those who may read, split among its relays (share locks)."""

    def draw(self, instance: bytes, lane: bytes, tokens: Sequence[bytes], now_ms: int) -> DrawnShare | None:
        """A new lock for a lane of these topics, or None where they are not carried so."""

    def version_for(self, tokens: Sequence[bytes]) -> int | None:
        """The version of the plan under which a lock would be drawn now, or None where none would."""

    def parts(self, body_bytes: int) -> tuple[int, int] | None:
        """Into how many blocks a body is coded, and how many of them are needed: (needed, total)."""

    def check(self) -> None:
        """Raise `Unavailable` unless shares could be given now."""

    def collect(self) -> None:
        """Take what came; waits for nobody."""

    def want(self, publisher: bytes, lock: bytes, permit: bytes) -> bytes | None:
        """The secret of a publisher's lock, if its shares came; if not, they are asked for under this permit."""

    @property
    def opened(self) -> OpenedSecrets:
        """The secrets at hand, by publisher and lock."""

    def keep(self, known: OpenedSecrets, save: Callable[[OpenedSecrets], object]) -> None:
        """Begin with these secrets, and have all saved whenever there is another."""


class Carrier(Sending, Reading, Protocol):
    """A carrier that stores, from both sides."""
