"""Receipts: the proof that a parcel is anchored, checked without the ledger.

    parcel hash ─ path ─► anchor (size, root of the partition) ─ path ─► transaction head ─ path ─► checkpoint

Threat: a carrier that says it stored and anchored what it did not. Each arrow is an RFC 6962 inclusion proof, and the
checkpoint at the end is accepted by the trust file or not at all. An `EntryProof` is the right half of the chain, for
an entry of any kind: it needs neither the other entries nor the other transactions.

What a receipt does not show: when exactly. The checkpoint may be younger than the anchor, so its height and time are
upper bounds: anchored *at or before* that height. Nor that the author of the anchor was a node of the partition, or
had its key still: the contracts saw to that before the tree took the transaction, and an audit replays them.

Whose topic it is, the ledger's state says: the state proof of the topic's row, whose first field is the tenant.

What a revoked publisher had anchored before stands (`stands_below`): the ledger is one ordered log, so the numbers of
two transactions say which came first, whatever the heights of the checkpoints at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.merkle_map import verify_map
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged, Malformed
from tallystick.trust.notes import NOTE_BYTES_MAX, AcceptedCheckpoint, not_witnessed, verify_checkpoint
from tallystick.trust.promise import Anchor
from tallystick.trust.trustfile import TrustFile
from tallystick.wire import Fields, number, octets

TRANSACTION_CONTEXT = "tallystick transaction 1"
ENTRIES_MAX = 4096  # entries of one transaction
ENTRY_BYTES_MAX = 3 << 20  # as large as a transaction; anchors take 61 bytes
HEAD_BYTES_MAX = 256
PROOF_BYTES_MAX = ENTRY_BYTES_MAX + NOTE_BYTES_MAX + 8192  # and two paths
RECEIPT_BYTES_MAX = NOTE_BYTES_MAX + 16 * 1024  # three paths, an anchor, a head
_ANCHOR_BYTES_MAX = 256
REVOKE_ENTRY = 2  # the kind number of revocations on the ledger
TOPIC_FAMILY = "topic"  # of keys in the ledger's state; a token follows
TOPIC_PROOF_BYTES_MAX = NOTE_BYTES_MAX + 32 * 1024  # a row, its path in the map, and the checkpoint


def verify_tenant(data: bytes, token: bytes, trust: TrustFile) -> bytes:
    """The tenant of a topic, by the state proof of its row. Raises `Forged` or `Malformed`."""
    fields = Fields.parse(data, "topic's row", 5)
    fields.version(1)
    key, value = fields.octets(at_most=64), fields.octets(at_most=TOPIC_PROOF_BYTES_MAX)
    proof, note = fields.octets(at_most=TOPIC_PROOF_BYTES_MAX), fields.octets(at_most=NOTE_BYTES_MAX)
    if key != f"{TOPIC_FAMILY}/".encode() + token:
        raise Forged("topic's row: it is another topic's", reason="wrong-topic")
    verify_map(verify_checkpoint(note, trust).state_root, key, value, proof)
    row = wire.decode(value, "topic's row")
    return Fields(row[:1] if type(row) is list else row, "topic's row", 1).octets(16)


def read_path(fields: Fields) -> tuple[bytes, ...]:
    """The next field as the hashes of an inclusion proof."""
    path = fields.items(merkle.PATH_MAX)
    if not all(type(item) is bytes and len(item) == merkle.HASH_BYTES for item in path):
        raise Malformed(f"{fields.what}: a path is made of hashes of {merkle.HASH_BYTES} bytes")
    return tuple(path)


Path = Annotated[tuple[bytes, ...], read_path]


@dataclass(frozen=True)
class EntryProof(wire.WireObject):
    """A claim that an entry is on the ledger; `verify` makes it one that holds."""

    what = "entry proof"
    bytes_max = PROOF_BYTES_MAX
    entry: Annotated[bytes, octets(at_most=ENTRY_BYTES_MAX)]
    index: Annotated[int, number(ENTRIES_MAX - 1)]  # of the entry in its transaction
    entry_path: Path
    head: Annotated[bytes, octets(at_most=HEAD_BYTES_MAX)]  # of the transaction
    signature: Annotated[bytes, octets(64)]
    number: Annotated[int, number(merkle.SIZE_MAX)]  # of the transaction in the ledger's tree
    path: Path
    note: Annotated[bytes, octets(at_most=NOTE_BYTES_MAX)]  # the checkpoint

    def verify(self, trust: TrustFile) -> ProvenEntry:
        """The entry, if it lies under a checkpoint that `trust` accepts. Raises `Forged` or `Malformed`."""
        checkpoint = verify_checkpoint(self.note, trust)
        head = Fields.parse(self.head, "transaction head", 6)
        head.version(1)
        instance, author, _number = head.octets(32), head.octets(16), head.number()
        entries_root, count = head.octets(32), head.number(ENTRIES_MAX, 1)
        if instance != trust.instance:
            raise Forged("receipt: of another instance", reason="wrong-instance")
        entry = merkle.leaf_hash(self.entry)
        merkle.verify_inclusion(entry, self.index, count, self.entry_path, entries_root)
        transaction = merkle.leaf_hash(wire.encode([self.head, self.signature]))
        merkle.verify_inclusion(transaction, self.number, checkpoint.size, self.path, checkpoint.root)
        return ProvenEntry(self, author, checkpoint)


@dataclass(frozen=True)
class ProvenEntry:
    """An entry that is on the ledger under `checkpoint`; made by `EntryProof.verify` alone."""

    proof: EntryProof
    author: bytes
    checkpoint: AcceptedCheckpoint

    def check_author(self, key: VerifyKey) -> None:
        """Raise `Forged` unless `key` signed the transaction."""
        key.verify(TRANSACTION_CONTEXT, self.proof.signature, self.proof.head)


def is_revocation(entry: bytes, subject: bytes) -> bool:
    """Whether a ledger entry revokes this subject; there is one such entry at most."""
    return entry.startswith(wire.encode([REVOKE_ENTRY, subject, b""])[:-1])


@dataclass(frozen=True)
class AnchoredBefore:
    """A claim that an anchor came before a revocation, and that a later tree of the partition continues its tree."""

    revocation: EntryProof
    anchor: EntryProof
    path: tuple[bytes, ...]  # from the anchor's tree to the later one

    def encode(self) -> bytes:
        return wire.encode([1, self.revocation.encode(), self.anchor.encode(), list(self.path)])

    @classmethod
    def decode(cls, data: bytes) -> AnchoredBefore:
        """Raises `Malformed`."""
        fields = Fields.parse(data, "anchor before a revocation", 4)
        fields.version(1)
        revocation, anchor = (EntryProof.decode(fields.octets(at_most=PROOF_BYTES_MAX)) for _ in range(2))
        return cls(revocation, anchor, read_path(fields))


def stands_below(
    publisher: bytes,
    place: tuple[bytes, int],
    revocation: ProvenEntry,
    anchor: ProvenEntry,
    later: tuple[int, bytes],
    path: Sequence[bytes],
) -> int:
    """The offset below which everything in the partition's tree `later` (size and root) was anchored before the key of
    this publisher was revoked. Both entries were proved in one history of the ledger. Raises `Forged` or `Malformed`.
    """
    if not is_revocation(revocation.proof.entry, publisher):
        raise Forged("anchor before a revocation: nobody, or somebody else, was revoked there", reason="wrong-subject")
    found = Anchor.decode_entry(anchor.proof.entry)
    if (found.token, found.partition) != place:
        raise Forged("anchor before a revocation: it is another partition's", reason="wrong-topic")
    if (anchor.proof.number, anchor.proof.index) >= (revocation.proof.number, revocation.proof.index):
        raise Forged("anchor before a revocation: it came after", reason="anchored-after")
    merkle.verify_consistency(found.size, found.root, *later, path)
    return found.size


@dataclass(frozen=True)
class Receipt:
    """A claim that a parcel is anchored; `verify` makes it one that holds."""

    offset: int  # of the parcel in its partition
    path: tuple[bytes, ...]  # from the parcel to the anchored root
    anchor: EntryProof

    def encode(self) -> bytes:
        return wire.encode([1, self.offset, list(self.path), *wire.listed(self.anchor)])

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """Raises `Malformed`."""
        if len(data) > RECEIPT_BYTES_MAX:
            raise Malformed(f"receipt: {len(data)} bytes, at most {RECEIPT_BYTES_MAX} expected")
        fields = Fields.parse(data, "receipt", 11)
        fields.version(1)
        offset, path = fields.number(merkle.SIZE_MAX), read_path(fields)
        anchor = wire.read_fields(EntryProof, fields)
        if len(anchor.entry) > _ANCHOR_BYTES_MAX:
            raise Malformed("receipt: expected some bytes")
        return cls(offset, path, anchor)

    def verify(self, parcel_hash: bytes, token: bytes | None, trust: TrustFile) -> AnchoredAt:
        """Where and by when the parcel of this hash was anchored in the topic, or in whichever topic the receipt names
        if that is None. Raises `Forged` or `Malformed`."""
        proven = self.anchor.verify(trust)
        anchor = Anchor.decode_entry(self.anchor.entry)
        if token is not None and token != anchor.token:
            expected = f"{token.hex()} expected, found {anchor.token.hex()}"
            raise Forged(f"receipt: its anchor is of another topic: {expected}", reason="wrong-topic")
        merkle.verify_inclusion(merkle.leaf_hash(parcel_hash), self.offset, anchor.size, self.path, anchor.root)
        return AnchoredAt(
            parcel=parcel_hash,
            token=anchor.token,
            partition=anchor.partition,
            offset=self.offset,
            node=proven.author,
            height=proven.checkpoint.height,
            time_ms=proven.checkpoint.time_ms,
            cosigners=proven.checkpoint.cosigners,
            validators=proven.checkpoint.validators(trust),
            vouched_by=proven.checkpoint.vouched_by(trust),
        )


@dataclass(frozen=True)
class AnchoredAt:
    """Where a parcel lies, and bounds of when it was anchored; made by `Receipt.verify` alone."""

    parcel: bytes  # its hash
    token: bytes
    partition: int
    offset: int
    node: bytes  # who wrote the anchor
    height: int  # of the checkpoint: an upper bound
    time_ms: int  # its block time: an upper bound
    cosigners: tuple[str, ...]
    validators: tuple[str, ...]  # by the identifiers of their keys, where several sign
    vouched_by: str

    def describe(self) -> str:
        place = f"partition {self.partition}, offset {self.offset}"
        time = f"block time {wire.show_time(self.time_ms)}, {self.time_ms} ms"
        return f"{place}, anchored at or before height {self.height} ({time}); {self.vouched_by}"

    @property
    def statements(self) -> tuple[str, ...]:
        """What the receipt shows by itself, in words."""
        return (f"parcel {self.parcel.hex()} of topic {self.token.hex()} lies in {self.describe()}",)

    @property
    def not_proven(self) -> tuple[str, ...]:
        """What the receipt does not show, in words."""
        return (
            "when exactly it was anchored: height and time are those of the checkpoint, which may be younger than the"
            " anchor",
            f"that node {self.node.hex()} carried the partition, and had its key still: the contracts saw to that, and"
            " an audit replays them",
            "who sealed the parcel, and what it holds: neither its signature nor its body was looked at",
            *not_witnessed(self.cosigners, self.validators),
        )
