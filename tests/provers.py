"""What proofs and receipts need around a small world: a trust file, a root-signed authority, an anchoring ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from makers import INSTANCE, World, entropy, rows, seed, token

from tallystick.crypto import merkle
from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.ledger.block import compose
from tallystick.parcel.keys import KeyRing
from tallystick.parcel.parcel import Parcel, VerifiedParcel
from tallystick.parcel.prove import Proof, ProvenRecord, prove, verify_proof
from tallystick.parcel.verify import PermitBook, verify_one
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.trust.certificate import ROOT_ID, Certificate
from tallystick.trust.notes import Algorithm, Note, NoteSigner, compose_checkpoint
from tallystick.trust.promise import Anchor
from tallystick.trust.receipt import EntryProof, Receipt
from tallystick.trust.trustfile import TrustFile

ROOT = RootKey.from_seed(seed("root"))
LEDGER = [SigningKey.from_seed(seed(f"ledger {i}")) for i in range(4)]
WITNESSES = [
    NoteSigner(f"witness-{i}.example", SigningKey.from_seed(seed(f"witness {i}")), Algorithm.COSIGNATURE_V1)
    for i in range(3)
]
NODE = SigningKey.from_seed(seed("node"))
NODE_ID = b"node".ljust(16, b"-")
HEIGHT, TIME_MS = 12, 1_700_000_100_000
STATE_ROOT = seed("state")


def trust_file(*, witnesses: int = 0, quorum: int = 0, ledger: int = 1, ledger_threshold: int = 1) -> TrustFile:
    """A second trust file of the makers' instance: a later file keeps the name of the first."""
    return TrustFile(
        number=2,
        first=INSTANCE,
        name="test",
        roots=(ROOT.public.raw,),
        threshold=1,
        ledger_keys=tuple(key.public.raw for key in LEDGER[:ledger]),
        ledger_threshold=ledger_threshold,
        witnesses=tuple(witness.verifier.encode() for witness in WITNESSES[:witnesses]),
        quorum=quorum,
    ).sign(ROOT)


def certify(certificate: Certificate, trust: TrustFile, **changes: object) -> Certificate:
    """The same subject and key, in the root's name."""
    changed = replace(certificate, **{"issuer": ROOT_ID, **changes})  # type: ignore[arg-type]
    return changed.sign(trust.root_signer(ROOT))


def book(world: World, trust: TrustFile) -> PermitBook:
    return PermitBook(trust.instance, [certify(world.authority, trust)], world.permits.__getitem__)


def sign_note(
    origin: str,
    size: int,
    root: bytes,
    *,
    ledger: Sequence[SigningKey] = LEDGER[:1],
    cosigners: int = 0,
    extensions: tuple[str, ...] | None = None,
    state_root: bytes = STATE_ROOT,
) -> bytes:
    """A checkpoint note of this tree."""
    checkpoint = compose_checkpoint(origin, size, root, height=HEIGHT, time_ms=TIME_MS, state_root=state_root)
    if extensions is not None:
        checkpoint = replace(checkpoint, extensions=extensions)
    text = checkpoint.encode()
    note = Note.sign(text, *(NoteSigner(origin, key) for key in ledger))
    for witness in WITNESSES[:cosigners]:
        note = note.add(witness.sign(text, 1_700_000_101))
    return note.encode()


def state_note(trust: TrustFile, state_root: bytes) -> bytes:
    """The checkpoint of a ledger with this state."""
    return sign_note(trust.origin, 1, seed("tree"), state_root=state_root)


@dataclass
class Anchorage:
    """A partition of one topic, anchored by one entry of one transaction among others."""

    trust: TrustFile
    parcels: list[bytes]  # parcel hashes in offset order
    token: bytes = token("brakes")
    partition: int = 3
    cosigners: int = 0
    signers: int = 1  # of the ledger's keys
    instance: bytes = INSTANCE

    def receipt(self, offset: int) -> Receipt:
        leaves = merkle.Tree([merkle.leaf_hash(parcel) for parcel in self.parcels])
        anchor = Anchor(self.token, self.partition, leaves.size, leaves.root()).encode_entry()
        return Receipt(offset, tuple(leaves.inclusion(offset, leaves.size)), self.entry_proof(anchor))

    def entry_proof(self, entry: bytes) -> EntryProof:
        entries = [Anchor(self.token, i, 0, merkle.EMPTY_ROOT).encode_entry() for i in range(2)] + [entry]
        transaction = compose(self.instance, NODE_ID, 7, entries, NODE)
        inside = merkle.Tree(transaction.entry_hashes)
        tree = merkle.Tree([merkle.leaf_hash(bytes([i])) for i in range(5)])
        number = tree.append(transaction.leaf)
        tree.append(merkle.leaf_hash(b"a later one"))
        return EntryProof(
            entry=entry,
            index=2,
            entry_path=tuple(inside.inclusion(2, 3)),
            head=transaction.head,
            signature=transaction.signature,
            number=number,
            path=tuple(tree.inclusion(number, tree.size)),
            note=sign_note(
                *(self.trust.origin, tree.size, tree.root()), ledger=LEDGER[: self.signers], cosigners=self.cosigners
            ),
        )


@dataclass
class Scene:
    """A sealed parcel, and everything that its proofs are made of."""

    world: World
    trust: TrustFile
    schema: Schema
    verified: VerifiedParcel
    ring: KeyRing
    topic: str = "brakes"

    @classmethod
    def of(
        cls, batch: Batch | None = None, *, topics: tuple[str, ...] = ("brakes",), witnesses: int = 0, **options: Any
    ) -> Scene:
        world, trust = World(), trust_file(witnesses=witnesses, quorum=witnesses)
        batch = rows(0, 11) if batch is None else batch
        lane = world.lane(topics=topics, schema=batch.schema, **options)
        parcel = Parcel.decode(lane.seal(batch, now_ms=1234, entropy=entropy(0)).encode())
        return cls(world, trust, batch.schema, verify_one(parcel, INSTANCE, book(world, trust)), world.ring(topics[0]))

    def permit(self, topic: str | None = None) -> bytes:
        return self.world.permit("car", topic or self.topic).encode()

    @property
    def authority(self) -> bytes:
        return certify(self.world.authority, self.trust).encode()

    def anchorage(self, **changes: Any) -> Anchorage:
        parcels = [seed("before"), self.verified.parcel.hash, seed("after")]
        return Anchorage(self.trust, parcels, **{"token": token(self.topic), **changes})

    def prove(self, leaf: int = 4, group: int = 0, **changes: Any) -> Proof:
        values = {"permit": self.permit(), "authority": self.authority, "receipt": None, **changes}
        return prove(self.verified, self.ring, self.schema, leaf, group, **values)

    def check(self, proof: Proof) -> ProvenRecord:
        return verify_proof(proof.encode(), self.trust)
