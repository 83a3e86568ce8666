"""Certificates: who holds which keys, on whose word.

The root of an instance (its trust file) certifies authorities and nodes; an authority certifies the principals of
its tenants. A certificate names the signing key (Ed25519) that vouches for a subject's acts and the sealing key
(HPKE) to which secrets for it are sealed. Whether a certificate still counts is on the ledger; here is only whether
it was ever issued.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Annotated

from tallystick.crypto.signatures import SignedObject, Verifier, VerifyKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed
from tallystick.wire import Fields, Number, Octets16, Octets32, octets

CONTEXT = "tallystick certificate 1"
BYTES_MAX = 128 * 1024  # under the root's word: as many as 32 hybrid signatures of 3,373 bytes
ROOT_ID = bytes(16)  # the issuer's name in what the trust file's root signs
ALL_TENANTS = bytes(16)  # the tenant of nodes, and of an authority that serves every tenant


class SubjectKind(IntEnum):
    AUTHORITY = 1
    NODE = 2
    PRINCIPAL = 3


def _kind(fields: Fields) -> SubjectKind:
    try:
        return SubjectKind(fields.number())
    except ValueError as error:
        raise Malformed("certificate: unknown kind") from error


@dataclass(frozen=True)
class Certificate(SignedObject):
    what = "certificate"
    context = CONTEXT
    bytes_max = BYTES_MAX
    instance: Octets32
    kind: Annotated[SubjectKind, _kind]
    subject: Octets16  # see `subject_id`
    tenant: Octets16
    signing_key: Octets32
    sealing_key: Annotated[bytes, octets(at_most=2048)]
    not_before_ms: Number
    not_after_ms: Number
    issuer: Octets16

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


def subject_id(instance: bytes, first_signing_key: bytes) -> bytes:
    """The identifier of a subject: a name nobody else can claim, since it hashes the subject's first key.

    It stays when the key is replaced.
    """
    return named_hash("tallystick subject 1", instance + first_signing_key)[:16]
