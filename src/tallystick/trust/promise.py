"""Promises and anchors: the carrier's word, and the ledger's.

A promise says that a parcel lies at an offset and will be anchored; it is signed by the node that took the parcel,
so a log that is later shorter, or holds another parcel there, convicts the node by its own word. One signature covers
all promises of an answer, each with its path to their root, so a request of many small parcels costs one. An anchor is
an entry on the ledger: size and root of a partition's RFC 6962 tree over parcel hashes, covering every parcel below it.
A notary's anchor also says which offsets since the last one it refused, and which anchor it continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self, cast

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.signatures import SIGNED_BYTES_MAX, Signer, Verifier, VerifyKey
from tallystick.errors import Forged, Malformed, Misuse
from tallystick.trust.plan import RELAYS_MAX, Plan
from tallystick.wire import Fields, Number, Octets16, Octets32, number

CONTEXT = "tallystick promise 1"
JOINT_CONTEXT, JOINT_ANCHOR_CONTEXT = "tallystick joint promise 1", "tallystick joint anchor 1"
PARTITIONS_MAX = 1 << 16
# The kind numbers of anchors on the ledger, a carrier's, a notary's and an overlay's, and how their encodings begin.
ANCHOR_ENTRY, NOTARISE_ENTRY, JOINT_ANCHOR_ENTRY = 40, 43, 94
ANCHOR_PREFIX, NOTARISE_PREFIX, JOINT_ANCHOR_PREFIX = b"\x85\x18\x28", b"\x87\x18\x2b", b"\x89\x18\x5e"
REFUSALS_MAX = 256  # runs of refused offsets in one anchor
REASON_CHARACTERS_MAX = 32
_PAIR = b"\x82"  # how an array of two begins: body and vow


@dataclass(frozen=True)
class Promise:
    instance: Octets32
    node: Octets16
    token: Octets16
    partition: Annotated[int, number(PARTITIONS_MAX - 1)]
    offset: Number
    parcel: Octets32  # the parcel's hash
    height: Number  # latest block the node knew
    time_ms: Number  # and its time
    vow: Vow | None = None

    @cached_property
    def body(self) -> bytes:
        return wire.encode([1, *wire.listed(self)])

    def sign(self, signer: Signer) -> Promise:
        return sign_promises([self], signer)[0]

    def encode(self) -> bytes:
        vow = self.vow
        assert vow is not None, "a promise is signed before it is given"
        return wire.encode([self.body, [vow.signature, vow.index, vow.count, list(vow.path)]])

    @classmethod
    def decode(cls, data: bytes) -> Promise:
        if len(data) > SIGNED_BYTES_MAX:
            raise Malformed(f"promise: at most {SIGNED_BYTES_MAX} bytes expected")
        outer = Fields.parse(data, "promise", 2)
        body, vow = outer.octets(), Fields(outer.items(4), "promise", 4)
        given = Vow(vow.octets(64), vow.number(), vow.number(), _path(vow.items(merkle.PATH_MAX)))
        return wire.read_as(cls, body, "promise", vow=given)

    def verify(self, node: Verifier) -> None:
        """Raise `Forged` unless `node` signed it, alone or among others."""
        node.verify(CONTEXT, *self.signed_statement())

    def signed_statement(self) -> tuple[bytes, bytes]:
        """Signature and message: promises of one answer share them, so a publisher verifies each once."""
        if self.vow is None:
            raise Forged("promise: not signed")
        leaf = merkle.leaf_hash(self.body)
        root = merkle.fold_inclusion(leaf, self.vow.index, self.vow.count, self.vow.path, merkle.node_hash)
        return self.vow.signature, wire.encode([self.vow.count, root])


def _signatures(fields: Fields) -> tuple[tuple[int, bytes], ...]:
    pairs = [Fields(item, fields.what, 2) for item in fields.items(RELAYS_MAX, 1)]
    found = tuple((pair.number(RELAYS_MAX, 1), pair.octets(64)) for pair in pairs)
    if any(after <= before for (before, _), (after, _) in pairwise(found)):
        raise Malformed(f"{fields.what}: signatures in the order of their relays expected")
    return found


class Joint:
    """What relays of an overlay's virtual node say together: it counts when more of them signed it than may be bad."""

    context: ClassVar[str]
    what: ClassVar[str]
    if TYPE_CHECKING:  # fields of each kind, in its own order
        overlay: bytes
        plan: int
        node: bytes
        signatures: tuple[tuple[int, bytes], ...]

    @cached_property
    def body(self) -> bytes:
        return wire.encode([1, *wire.listed(self)[:-1]])

    def sign(self, index: int, signer: Signer) -> Self:
        """With one relay's signature more; its own earlier one is replaced."""
        others = [pair for pair in self.signatures if pair[0] != index]
        return self._with([*others, (index, signer.sign(self.context, self.body))])

    def join(self, other: Self) -> Self:
        """With the signatures of both. Raises `Misuse` if they say different things."""
        if other.body != self.body:
            raise Misuse(f"{self.what}: the other one is about something else")
        return self._with((dict(self.signatures) | dict(other.signatures)).items())

    def _with(self, signatures: Iterable[tuple[int, bytes]]) -> Self:
        made: Self = replace(cast(Any, self), signatures=tuple(sorted(signatures)))
        return made

    def encode(self) -> bytes:
        return wire.encode([1, *wire.listed(self)])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Not yet verified. Raises `Malformed`."""
        if len(data) > SIGNED_BYTES_MAX:
            raise Malformed(f"{cls.what}: at most {SIGNED_BYTES_MAX} bytes expected")
        return wire.read_as(cls, data, cls.what)

    def verify(self, plan: Plan) -> None:
        """Raise `Forged` unless f+1 relays of its virtual node signed it, and `Malformed` where the plan is another."""
        if (plan.overlay, plan.version) != (self.overlay, self.plan):
            raise Malformed(f"{self.what}: of plan {self.plan}, judged by plan {plan.version}")
        node = plan.node(self.node)
        if self.signatures[-1][0] > len(node.relays):
            raise Malformed(f"{self.what}: signed by a relay that the plan has not")
        if len(self.signatures) <= node.faults:
            raise Forged(f"{self.what}: {len(self.signatures)} signatures, {node.faults + 1} expected")
        for index, signature in self.signatures:
            VerifyKey(node.relays[index - 1].key).verify(self.context, signature, self.body)


@dataclass(frozen=True)
class JointPromise(Joint):
    """Where a parcel lies."""

    context, what = JOINT_CONTEXT, "promise"

    instance: Octets32
    overlay: Octets16
    plan: Number  # version of the plan
    node: Octets16  # the virtual node
    fence: Number  # of the lease under which it was ordered: for one fence an offset has one parcel
    token: Octets16
    partition: Annotated[int, number(PARTITIONS_MAX - 1)]
    offset: Number
    parcel: Octets32
    height: Number  # latest block that the one who ordered it knew
    time_ms: Number  # and its time
    signatures: Annotated[tuple[tuple[int, bytes], ...], _signatures]

    @property
    def place(self) -> tuple[Any, ...]:
        """All from the instance to the offset: for that an honest relay signs one parcel."""
        return tuple(wire.listed(self)[:8])

    def contradicts(self, other: JointPromise) -> bool:
        """Whether who signed both lied. Under another fence or plan, or with another block, the place may be ordered
        anew."""
        return self.place == other.place and self.parcel != other.parcel


@dataclass(frozen=True)
class JointAnchor(Joint):
    """Size and root of a partition's tree, as each who signs has it, behind what is anchored already.

    It counts only while the anchor is of the size that it continues. Else a holder that forked its promises could have
    one root anchored, and above it one that others signed before they had heard of the first.
    """

    context, what = JOINT_ANCHOR_CONTEXT, "joint anchor"

    instance: Octets32
    overlay: Octets16
    plan: Number
    node: Octets16
    fence: Number  # of the lease of who writes it
    token: Octets16
    partition: Annotated[int, number(PARTITIONS_MAX - 1)]
    size: Number
    root: Octets32
    before: Number  # the size that it continues
    signatures: Annotated[tuple[tuple[int, bytes], ...], _signatures]

    def encode_entry(self) -> bytes:
        """The ledger entry; what is not in it the ledger knows."""
        what = self.token, self.partition, self.size, self.root, self.before, self.plan, self.fence
        return wire.encode([JOINT_ANCHOR_ENTRY, *what, [list(one) for one in self.signatures]])

    @classmethod
    def of(cls, entry: list[Any], instance: bytes, overlay: bytes, node: bytes) -> JointAnchor:
        """What a decoded entry says of a topic that enters at this virtual node."""
        fields = Fields(entry, "joint anchor", 9)
        fields.version(JOINT_ANCHOR_ENTRY)
        token, partition = fields.octets(16), fields.number(PARTITIONS_MAX - 1)
        tree, plan, fence = (fields.number(), fields.octets(32), fields.number()), fields.number(), fields.number()
        return cls(instance, overlay, plan, node, fence, token, partition, *tree, _signatures(fields))


def decode_promise(data: bytes) -> Promise | JointPromise:
    """Of one node, or of an overlay's virtual node; neither is verified yet. Raises `Malformed`."""
    return Promise.decode(data) if data[:1] == _PAIR else JointPromise.decode(data)


@dataclass(frozen=True)
class Vow:
    """One signature over all promises of an answer: over their count and RFC 6962 root; and this one's place."""

    signature: bytes
    index: int
    count: int
    path: tuple[bytes, ...]


def sign_promises(promises: Sequence[Promise], signer: Signer) -> list[Promise]:
    """Give all of these promises with one signature; each can be shown and verified alone."""
    tree = merkle.Tree([merkle.leaf_hash(promise.body) for promise in promises])
    signature = signer.sign(CONTEXT, wire.encode([tree.size, tree.root()]))
    return [
        replace(promise, vow=Vow(signature, index, tree.size, tuple(tree.inclusion(index, tree.size))))
        for index, promise in enumerate(promises)
    ]


def _path(items: list[Any]) -> tuple[bytes, ...]:
    if not all(type(item) is bytes and len(item) == 32 for item in items):
        raise Malformed("promise: a path is made of hashes")
    return tuple(items)


class Refusal(NamedTuple):
    """A notary's word on offsets from `first` to below `end`: nothing there is to be opened."""

    first: int
    end: int
    reason: str


@dataclass(frozen=True)
class Anchor:
    """`before` is the size that a notary's anchor continues; one of a carrier with guards in front names none."""

    token: bytes
    partition: int
    size: int
    root: bytes
    before: int | None = None
    refused: tuple[Refusal, ...] = ()

    def encode_entry(self) -> bytes:
        """The ledger entry."""
        if self.before is None:
            return wire.encode([ANCHOR_ENTRY, self.token, self.partition, self.size, self.root])
        refused = [list(refusal) for refusal in self.refused]
        return wire.encode([NOTARISE_ENTRY, self.token, self.partition, self.size, self.root, self.before, refused])

    @classmethod
    def decode_entry(cls, entry: bytes) -> Anchor:
        return cls.of(wire.decode(entry, "anchor"))

    @classmethod
    def of(cls, entry: list[Any]) -> Anchor:
        """The anchor in a decoded entry of any kind; an overlay's without its signatures."""
        if type(entry) is list and entry[:1] == [JOINT_ANCHOR_ENTRY]:
            joint = JointAnchor.of(entry, b"", b"", b"")
            return cls(joint.token, joint.partition, joint.size, joint.root)
        notary = type(entry) is list and entry[:1] == [NOTARISE_ENTRY]
        fields = Fields(entry, "anchor", 7 if notary else 5)
        fields.version(NOTARISE_ENTRY if notary else ANCHOR_ENTRY)
        token, partition = fields.octets(16), fields.number(PARTITIONS_MAX - 1)
        size, root = fields.number(), fields.octets(32)
        if not notary:
            return cls(token, partition, size, root)
        before = fields.number()
        return cls(token, partition, size, root, before, _refusals(fields.items(REFUSALS_MAX), before, size))


def is_notarised(entry: bytes) -> bool:
    return entry.startswith(NOTARISE_PREFIX)


def is_anchor(entry: bytes) -> bool:
    """Whether a ledger entry is an anchor, of whatever kind."""
    return entry.startswith((ANCHOR_PREFIX, NOTARISE_PREFIX, JOINT_ANCHOR_PREFIX))


def _refusals(items: list[Any], at: int, end: int) -> tuple[Refusal, ...]:
    """Runs in order, apart from each other, between the two sizes."""
    found = []
    for item in items:
        fields = Fields(item, "refusal", 3)
        refusal = Refusal(fields.number(), fields.number(), fields.text(REASON_CHARACTERS_MAX))
        if not (at <= refusal.first < refusal.end <= end and refusal.reason):
            raise Malformed("anchor: refused offsets out of order or range")
        found.append(refusal)
        at = refusal.end
    return tuple(found)
