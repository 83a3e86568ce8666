"""One record, proved alone: a file that anyone checks offline with a trust file and nothing else.

Threat: whoever shows a record may have made it up, altered it, or say that it came from somebody else. And a second
one, against the publisher's other records: whoever gets the proof may try to learn its neighbours.

    row ─ salt, path ─► group root ─► header ─ signature ─► permit ─► authority's certificate ─► root keys
                                        │                         └── tenant ◄─ topic's row ─► checkpoint
                                        └── parcel hash ─ receipt ─► checkpoint ─► ledger keys, witnesses

A leaf is hashed with a secret salt of 16 bytes, a block of a key stream under the parcel's salt key. The proof holds
the one salt of its own row: the hashes in its path can be neither opened nor guessed, however few values a neighbour
may have. It does hold the whole schema, since the header names the hash of all of it, and so shows the names and types
of columns in other groups.

A permit says whose topic it is for, and an authority signs it for its own tenants. That the topic is that tenant's, the
state proof of its row shows: an authority of another tenant could give leave for any token. Proofs of version 1 have
none, and say so.

What the proof does not show is part of its answer: `ProvenRecord.not_proven` says it in words, because a true proof
that is taken for more than it shows misleads as well as a forged one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.signatures import SIGNED_BYTES_MAX
from tallystick.errors import Forged, Malformed, Misuse, Refused
from tallystick.parcel.header import COUNT_MAX, GROUPS_MAX, HEADER_BYTES_MAX, SIGNATURE_CONTEXT, Header, ParcelKind
from tallystick.parcel.keys import SALT_BYTES, KeyRing
from tallystick.parcel.open import open_group
from tallystick.parcel.parcel import SIGNATURE_BYTES, VerifiedParcel, describe
from tallystick.parcel.verify import check_instance, check_signature
from tallystick.record.batch import Batch
from tallystick.record.leaves import decode_row, encode_row, leaf_hashes
from tallystick.record.schema import Schema
from tallystick.trust.certificate import BYTES_MAX as CERTIFICATE_BYTES_MAX
from tallystick.trust.certificate import ROOT_ID, Certificate, SubjectKind
from tallystick.trust.notes import not_witnessed
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.receipt import RECEIPT_BYTES_MAX, TOPIC_PROOF_BYTES_MAX, AnchoredAt, Path, Receipt, verify_tenant
from tallystick.trust.trustfile import TrustFile
from tallystick.wire import Fields, number, octets

ROW_BYTES_MAX = 1024 * 1024  # reading a row back takes up to 16 bytes for each bit of it (a list of absent items)
SCHEMA_BYTES_MAX = 512 * 1024  # 1,024 fields with names of 255 bytes
_SIGNED_MAX = SIGNED_BYTES_MAX + CERTIFICATE_BYTES_MAX  # permit and certificate
_LEDGER_MAX = RECEIPT_BYTES_MAX + TOPIC_PROOF_BYTES_MAX
PROOF_BYTES_MAX = ROW_BYTES_MAX + SCHEMA_BYTES_MAX + _LEDGER_MAX + _SIGNED_MAX + 64 * 1024


def _receipt(fields: Fields) -> bytes | None:
    return fields.optional_octets(RECEIPT_BYTES_MAX)


def _topic(fields: Fields) -> bytes | None:
    return fields.optional_octets(TOPIC_PROOF_BYTES_MAX)


@dataclass(frozen=True)
class Proof:
    """A claim about one record, well-formed and nothing more; `verify_proof` checks it."""

    row: Annotated[bytes, octets(at_most=ROW_BYTES_MAX)]
    salt: Annotated[bytes, octets(SALT_BYTES)]
    group: Annotated[int, number(GROUPS_MAX - 1)]
    leaf: Annotated[int, number(COUNT_MAX - 1)]
    count: Annotated[int, number(COUNT_MAX, at_least=1)]  # rows of the parcel
    path: Path
    schema: Annotated[bytes, octets(at_most=SCHEMA_BYTES_MAX)]
    header: Annotated[bytes, octets(at_most=HEADER_BYTES_MAX)]
    signature: Annotated[bytes, octets(SIGNATURE_BYTES)]
    permit: Annotated[bytes, octets()]
    authority: Annotated[bytes, octets(at_most=CERTIFICATE_BYTES_MAX)]  # the certificate of the permit's authority
    receipt: Annotated[bytes | None, _receipt]
    topic: Annotated[bytes | None, _topic] = None  # the state proof of the topic's row

    def encode(self) -> bytes:
        """Version 2, or version 1 without the topic's row."""
        *first, topic = wire.listed(self)
        return wire.encode([1, *first] if topic is None else [2, *first, topic])

    @classmethod
    def decode(cls, data: bytes) -> Proof:
        """Raises `Malformed`."""
        if len(data) > PROOF_BYTES_MAX:
            raise Malformed(f"proof: {len(data)} bytes, at most {PROOF_BYTES_MAX} expected")
        values = wire.decode(data, "proof")
        if type(values) is list and values[:1] == [1] and type(values[0]) is int:
            values = [2, *values[1:], None]
        fields = Fields(values, "proof", 14)
        fields.version(2)
        return wire.read_fields(cls, fields)


@dataclass(frozen=True)
class ProvenRecord:
    """A record whose proof holds, with what that shows and what it does not; made by `verify_proof` alone."""

    row: dict[str, Any]
    columns: tuple[str, ...]  # of its column group
    group: int
    leaf: int
    publisher: bytes  # principal
    token: bytes  # the topic that the proof names
    tenant: bytes | None  # whose topic it is, where the proof shows that
    tokens: tuple[bytes, ...]  # all topics of the parcel
    lane: bytes
    sequence: int
    parcel: bytes  # the parcel's hash
    claimed_time_ms: int | None  # the publisher's claim; None when it is sealed in the body
    anchored: AnchoredAt | None
    statements: tuple[str, ...]
    not_proven: tuple[str, ...]

    def _repr_html_(self) -> str:
        """In notebooks: the row, what is proved of it and what is not."""
        from tallystick.page.notebook import items, rows, shown

        said = items("proved:", self.statements), items("not proved:", self.not_proven)
        return shown("a proven record", {}, rows([self.row], 1), *said)


def prove(
    verified: VerifiedParcel,
    ring: KeyRing,
    schema: Schema,
    leaf: int,
    group: int,
    permit: bytes,
    authority: bytes,
    receipt: Receipt | None = None,
    topic: bytes | None = None,
) -> Proof:
    """The proof of row `leaf` of a data parcel, in the columns of `group`.

    `permit` is the advertise permit of any one of the parcel's topics, `authority` the root-signed certificate of who
    issued it. A receipt must be of the same topic, and so must `topic`, the state proof of the topic's row. Raises
    `Misuse` for what the parcel does not hold, and what `open_group` raises.
    """
    return Prover(verified, ring, schema, group, permit, authority, receipt, topic).prove(leaf)


class Prover:
    """A parcel opened once, for the proofs of any of its rows; the arguments are those of `prove`."""

    def __init__(
        self,
        verified: VerifiedParcel,
        ring: KeyRing,
        schema: Schema,
        group: int,
        permit: bytes,
        authority: bytes,
        receipt: Receipt | None = None,
        topic: bytes | None = None,
    ) -> None:
        header = verified.header
        if header.kind is not ParcelKind.DATA:
            raise Misuse(f"{describe(header)}: holds no records")
        if not 0 <= group < len(header.groups):
            raise Misuse(f"{describe(header)}: has no column group {group}")
        opened = open_group(verified, ring, schema, group)
        publisher = Permit.decode(permit)
        _check_permit(header, publisher, Certificate.decode(authority))
        # Inside a verified run only the last signature was looked at; alone, the parcel needs its own.
        check_signature(verified.parcel, publisher.verify_key)
        self.batch, self._salts = opened.batch, opened.salts
        self._tree = merkle.Tree(leaf_hashes(opened.batch, opened.salts).tobytes())
        self._verified, self._schema, self._group = verified, schema, group
        self._permit, self._authority = permit, authority
        self._receipt = None if receipt is None else receipt.encode()
        self._topic = topic

    def prove(self, leaf: int) -> Proof:
        """The proof of one row. Raises `Misuse` where there is none of that number."""
        count, header = self.batch.rows, self._verified.header
        if not 0 <= leaf < count:
            raise Misuse(f"{describe(header)}: has {count} records, none with number {leaf}")
        return Proof(
            row=_encode_row(self.batch, leaf),
            salt=self._salts[SALT_BYTES * leaf : SALT_BYTES * (leaf + 1)],
            group=self._group,
            leaf=leaf,
            count=count,
            path=tuple(self._tree.inclusion(leaf, count)),
            schema=self._schema.encode(),
            header=header.encoded,
            signature=self._verified.parcel.signature,
            permit=self._permit,
            authority=self._authority,
            receipt=self._receipt,
            topic=self._topic,
        )


def _encode_row(batch: Batch, leaf: int) -> bytes:
    # By the columns first: encoding takes many times the memory of what a hostile publisher may have sealed.
    size = batch.data.slice(leaf, 1).nbytes
    row = encode_row(batch.schema.arrow, leaf, batch.data) if size <= 16 * ROW_BYTES_MAX else b""
    if not row or len(row) > ROW_BYTES_MAX:
        raise Misuse(f"record {leaf}: of {len(row) or size} bytes, at most {ROW_BYTES_MAX} can be proved")
    return row


def verify_proof(
    data: bytes, trust: TrustFile, *, publisher: bytes | None = None, topic: bytes | None = None
) -> ProvenRecord:
    """The record that `data` proves under `trust`. Raises `Malformed`, `Forged` or `Refused`.

    A proof that holds may still be somebody else's, of another topic: whoever knows which principal and which topic's
    token to expect says so, and any other is refused (`other-publisher`, `other-topic`).
    """
    proof = Proof.decode(data)
    # 1. The header is of this instance; the root certified the authority, the authority the publisher, and the
    #    publisher signed the header.
    header = Header.decode(proof.header)
    check_instance(header, trust.instance)
    permit, authority = Permit.decode(proof.permit), Certificate.decode(proof.authority)
    _check_authority(authority, trust)
    _check_permit(header, permit, authority)
    permit.verify_key.verify(SIGNATURE_CONTEXT, proof.signature, proof.header)
    _check_expected("publisher", publisher, permit.principal)
    _check_expected("topic", topic, permit.token)
    # 2. The schema is the header's, and the row is a leaf under the root of its group.
    schema = _read_schema(header, proof)
    merkle.verify_inclusion(
        merkle.leaf_hash(proof.salt + proof.row), proof.leaf, proof.count, proof.path, header.groups[proof.group].root
    )
    row = decode_row(schema.group_arrow(proof.group), proof.row)
    # 3. The topic is the tenant's for whom the authority gave leave, if the proof shows its row.
    tenant = None if proof.topic is None else verify_tenant(proof.topic, permit.token, trust)
    if tenant not in (None, permit.tenant):
        raise Forged("proof: the topic is another tenant's than the permit's", reason="wrong-tenant")
    # 4. The parcel is anchored, if the proof says so.
    anchored = None
    if proof.receipt is not None:
        anchored = Receipt.decode(proof.receipt).verify(header.hash, permit.token, trust)
    return ProvenRecord(
        row=row,
        columns=schema.groups[proof.group],
        group=proof.group,
        leaf=proof.leaf,
        publisher=permit.principal,
        token=permit.token,
        tenant=tenant,
        tokens=tuple(topic.token for topic in header.topics),
        lane=header.lane,
        sequence=header.sequence,
        parcel=header.hash,
        claimed_time_ms=None if header.padded else header.time_ms,
        anchored=anchored,
        statements=_statements(header, permit, proof, anchored),
        not_proven=_not_proven(header, schema, tenant, anchored),
    )


def _check_expected(what: str, expected: bytes | None, found: bytes) -> None:
    if expected is not None and expected != found:
        raise Refused(
            f"proof: of another {what}: {expected.hex()} expected, found {found.hex()}", reason=f"other-{what}"
        )


def _check_authority(authority: Certificate, trust: TrustFile) -> None:
    if authority.kind is not SubjectKind.AUTHORITY or authority.issuer != ROOT_ID:
        raise Forged("proof: the certificate is not that of an authority under the root", reason="wrong-authority")
    authority.verify(trust.root_verifier, instance=trust.instance)


def _check_permit(header: Header, permit: Permit, authority: Certificate) -> None:
    """Raise `Forged` or `Refused` unless this is the permit under which the header stands in one of its topics."""
    topic = next((topic for topic in header.topics if topic.permit == permit.identifier), None)
    if topic is None:
        raise Forged(f"{describe(header)}: stands under another permit", reason="wrong-permit")
    permit.verify(authority)
    permit.check_covers(Operation.ADVERTISE, topic.token, topic.epoch)


def _read_schema(header: Header, proof: Proof) -> Schema:
    schema = Schema.decode(proof.schema)
    if header.kind is not ParcelKind.DATA:
        raise Malformed(f"{describe(header)}: holds no records")
    if schema.hash != header.schema_hash or len(schema.groups) != len(header.groups):
        raise Forged(f"{describe(header)}: the schema is not the one it names", reason="wrong-schema")
    if proof.group >= len(header.groups):
        raise Malformed(f"{describe(header)}: has no column group {proof.group}")
    if not header.padded and proof.count != header.count:
        raise Forged(f"{describe(header)}: has {header.count} records, the proof says {proof.count}")
    return schema


def _statements(header: Header, permit: Permit, proof: Proof, anchored: AnchoredAt | None) -> tuple[str, ...]:
    place = f"record {proof.leaf}" if header.padded else f"record {proof.leaf} of {proof.count}"
    said = [
        f"principal {permit.principal.hex()} sealed this row as {place}, in column group {proof.group} of"
        f" {describe(header)}, on topic {permit.token.hex()}",
        f"authority {permit.authority.hex()} had given it a permit to publish there, for block times from"
        f" {wire.show_time(permit.not_before_ms)} to {wire.show_time(permit.not_after_ms)} ({permit.not_before_ms} to"
        f" {permit.not_after_ms} ms); the root keys certified that authority",
    ]
    if proof.topic is not None:
        said.append(f"topic {permit.token.hex()} is tenant {permit.tenant.hex()}'s, as the ledger's state has it")
    if anchored is not None:
        said.append(f"the parcel lies in {anchored.describe()}")
    return tuple(said)


def _not_proven(header: Header, schema: Schema, tenant: bytes | None, anchored: AnchoredAt | None) -> tuple[str, ...]:
    gaps = [
        "that the row is true: only that the publisher sealed it",
        "that no other row exists: neighbours are neither shown nor excluded",
        "that permit, certificate and keys were not revoked when the row was sealed: the ledger knows",
    ]
    if tenant is None:
        gaps.append("which tenant's the topic is: the ledger's row of it is not shown")
    if header.padded:
        gaps.append("its place among the parcel's rows, their number and the time: with padding on they are sealed")
    else:
        claimed = f"{wire.show_time(header.time_ms)} ({header.time_ms} ms)"
        gaps.append(f"when the row was sealed: {claimed} is the publisher's claim")
    if header.pending:
        gaps.append("that the row counts: the parcel is pending until the commit parcel of its write lists its lane")
    if len(header.topics) > 1:
        gaps.append("that the publisher had leave for the parcel's other topics: one permit is shown")
    if len(schema.groups) > 1:
        gaps.append("anything about the other column groups but the names and types of their columns")
    if anchored is None:
        gaps.append("that the parcel was ever stored: there is no receipt")
    else:
        gaps += not_witnessed(anchored.cosigners, anchored.validators)
    return tuple(gaps)
