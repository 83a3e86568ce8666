"""Certificates: who holds which keys, on whose word.

The root of an instance (its trust file) certifies authorities and nodes; an authority certifies the principals of
its tenants. A certificate names the signing key (Ed25519) that vouches for a subject's acts and the sealing key
(HPKE) to which secrets for it are sealed. Whether a certificate still counts is on the ledger; here is only whether
it was ever issued.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

from tallystick import wire
from tallystick.crypto.signatures import Signer, Verifier, VerifyKey, split_signed
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed
from tallystick.wire import Fields

CONTEXT = "tallystick certificate 1"
BYTES_MAX = 128 * 1024  # under the root's word: as many as 32 hybrid signatures of 3,373 bytes
ROOT_ID = bytes(16)  # the issuer's name in what the trust file's root signs
ALL_TENANTS = bytes(16)  # the tenant of nodes, and of an authority that serves every tenant


class SubjectKind(IntEnum):
    AUTHORITY = 1
    NODE = 2
    PRINCIPAL = 3


@dataclass(frozen=True)
class Certificate:
    instance: bytes
    kind: SubjectKind
    subject: bytes  # 16 bytes, see `subject_id`
    tenant: bytes  # 16 bytes
    signing_key: bytes
    sealing_key: bytes
    not_before_ms: int
    not_after_ms: int
    issuer: bytes
    body: bytes = b""
    signature: bytes = b""

    def sign(self, signer: Signer) -> Certificate:
        body = self._encode_body()
        return replace(self, body=body, signature=signer.sign(CONTEXT, body))

    def encode(self) -> bytes:
        return wire.encode([self.body, self.signature])

    @classmethod
    def decode(cls, data: bytes) -> Certificate:
        body, signature = split_signed(data, "certificate", BYTES_MAX)
        fields = Fields.parse(body, "certificate", 10)
        fields.version(1)
        instance = fields.octets(32)
        try:
            kind = SubjectKind(fields.number())
        except ValueError as error:
            raise Malformed("certificate: unknown kind") from error
        return cls(
            instance=instance,
            kind=kind,
            subject=fields.octets(16),
            tenant=fields.octets(16),
            signing_key=fields.octets(32),
            sealing_key=fields.octets(at_most=2048),
            not_before_ms=fields.number(),
            not_after_ms=fields.number(),
            issuer=fields.octets(16),
            body=body,
            signature=signature,
        )

    def verify(self, issuer: Verifier, *, instance: bytes) -> None:
        """Raise `Forged` unless `issuer` signed this certificate for `instance`."""
        if self.instance != instance:
            raise Forged("certificate: of another instance", reason="wrong-instance")
        issuer.verify(CONTEXT, self.signature, self.body)

    def verify_issued_by(self, issuer: Certificate) -> None:
        """Raise `Forged` unless `issuer` is an authority that may certify this subject, and did."""
        if (
            issuer.kind is not SubjectKind.AUTHORITY
            or self.kind is not SubjectKind.PRINCIPAL
            or self.issuer != issuer.subject
        ):
            raise Forged("certificate: its issuer is not the authority it names")
        if issuer.tenant not in (ALL_TENANTS, self.tenant):
            raise Forged("certificate: its issuer is the authority of another tenant")
        self.verify(VerifyKey(issuer.signing_key), instance=issuer.instance)

    @cached_property
    def verify_key(self) -> VerifyKey:
        return VerifyKey(self.signing_key)

    @property
    def hash(self) -> bytes:
        return named_hash("tallystick certificate 1", self.encode())

    def _encode_body(self) -> bytes:
        return wire.encode(
            [
                1,
                self.instance,
                int(self.kind),
                self.subject,
                self.tenant,
                self.signing_key,
                self.sealing_key,
                self.not_before_ms,
                self.not_after_ms,
                self.issuer,
            ]
        )


def subject_id(instance: bytes, first_signing_key: bytes) -> bytes:
    """The identifier of a subject: a name nobody else can claim, since it hashes the subject's first key.

    It stays when the key is replaced.
    """
    return named_hash("tallystick subject 1", instance + first_signing_key)[:16]
