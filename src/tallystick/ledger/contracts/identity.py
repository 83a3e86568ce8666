"""Who exists: authorities, nodes, principals, tenants, and the trust file they hang on.

Threat: an identity that nobody certified, another's identifier claimed, a revoked or replaced key that still acts,
one key behind two names. Invariant: an identity is enrolled by a certificate whose chain ends at the trust file on
the ledger; its identifier is the hash of its first key; a key serves one identity and once replaced or revoked never
again. Each key keeps the heights between which it counts, so that old signatures can be judged for ever.

An author who is not enrolled yet enrols itself in its first transaction, which is signed by the certified key: that
is its proof of possession.

    identity/<id>      [kind, tenant, signing key, issuer, not before ms, not after ms, height of enrolment,
                        height of revocation or 0, certificate hash]
    certificate/<id>   the newest certificate
    key/<raw key>      [identity, first height, end height or 0]
    number/<id>        the author's last transaction number
    tenant/<id>        [owner, height]
    trust              the newest trust file, as text
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from tallystick import wire
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Refused
from tallystick.ledger.contracts.state import HASH, ID, Call, State, Table, fields_of
from tallystick.trust.certificate import ALL_TENANTS, ROOT_ID, Certificate, SubjectKind, subject_id
from tallystick.trust.certificate import BYTES_MAX as CERTIFICATE_BYTES_MAX
from tallystick.trust.trustfile import BYTES_MAX as TRUST_BYTES_MAX
from tallystick.trust.trustfile import TrustFile

REVOKE_CONTEXT = "tallystick revoke 1"


class IdentityRow(NamedTuple):
    """An enrolled identity."""

    kind: int
    tenant: bytes
    key: bytes
    issuer: bytes
    not_before_ms: int
    not_after_ms: int
    enrolled: int
    revoked: int  # height, or 0
    certificate_hash: bytes

    def is_live(self, time_ms: int) -> bool:
        return not self.revoked and self.not_before_ms <= time_ms < self.not_after_ms

    def check_live(self, time_ms: int) -> None:
        """Raise `Refused` unless the identity may act at this block time."""
        if self.revoked:
            raise Refused(f"identity was revoked at height {self.revoked}", reason="revoked")
        if not self.not_before_ms <= time_ms < self.not_after_ms:
            raise Refused("certificate is not valid at this time", reason="certificate-expired")


class KeyRow(NamedTuple):
    """Whose a key is, and between which heights it counts."""

    subject: bytes
    first: int
    end: int  # or 0


class TenantRow(NamedTuple):
    owner: bytes
    height: int


IDENTITIES = Table("identity", IdentityRow, ID)
CERTIFICATES = Table("certificate", bytes, ID)
KEYS = Table("key", KeyRow, HASH)
NUMBERS = Table("number", int, ID)
TENANTS = Table("tenant", TenantRow, ID)
TRUST = Table("trust", str)


def find(state: State, subject: bytes) -> IdentityRow | None:
    return state.row(IDENTITIES(subject))


def require(state: State, subject: bytes) -> IdentityRow:
    """The identity, or `Refused`."""
    identity = find(state, subject)
    if identity is None:
        raise Refused(f"identity {subject.hex()} is not enrolled", reason="unknown-identity")
    return identity


def is_tenant_admin(state: State, tenant: bytes, subject: bytes) -> bool:
    row = state.row(TENANTS(tenant))
    return row is not None and row.owner == subject


def enrol(call: Call, entry: list[Any]) -> None:
    """[1, certificate]"""
    certificate = _certificate(call, entry)
    if certificate.subject != subject_id(call.instance, certificate.signing_key):
        raise Refused("an identifier is the hash of its first key", reason="wrong-subject")
    if find(call.state, certificate.subject) is not None:
        raise Refused(f"identity {certificate.subject.hex()} is enrolled already", reason="already-enrolled")
    check_issuer(call.state, certificate, call.instance, call.time_ms)
    _store(call, certificate, enrolled=call.height)


def replace(call: Call, entry: list[Any]) -> None:
    """[3, certificate]: a new key for an identity; by itself or its issuer."""
    certificate = _certificate(call, entry)
    old = require(call.state, certificate.subject)
    if old.revoked:
        raise Refused(f"identity was revoked at height {old.revoked}", reason="revoked")
    if (certificate.kind, certificate.tenant) != (old.kind, old.tenant):
        raise Refused("a replaced key leaves kind and tenant as they were", reason="wrong-certificate")
    if call.author not in (certificate.subject, certificate.issuer):
        raise Refused("a key is replaced by its holder or its issuer", reason="not-entitled")
    check_issuer(call.state, certificate, call.instance, call.time_ms)
    _end_key(call, old.key)
    _store(call, certificate, enrolled=old.enrolled)


def revoke(call: Call, entry: list[Any]) -> None:
    """[2, subject, root signature or empty]: from this height its key signs nothing.

    By itself, its tenant's authority (principals), the operator, or anybody who shows the root's signature: an
    authority of all tenants that went bad is stopped by the root alone.
    """
    fields = fields_of(entry, "revoke", 3)
    subject, signature = fields.octets(16), fields.octets(at_most=CERTIFICATE_BYTES_MAX)
    identity = require(call.state, subject)
    if identity.revoked:
        raise Refused(f"identity was revoked at height {identity.revoked}", reason="revoked")
    if signature:
        trust_file(call.state).root_verifier.verify(REVOKE_CONTEXT, signature, revoke_statement(call.instance, subject))
    elif call.author != subject:
        if identity.kind == SubjectKind.PRINCIPAL:
            call.require_authority_of(identity.tenant)
        else:
            call.require_operator()
    _end_key(call, identity.key)
    call.state.put(IDENTITIES(subject), [*identity._replace(revoked=call.height)])


def tenant(call: Call, entry: list[Any]) -> None:
    """[4, tenant, owner]: the principal that administers a tenant; by the tenant's authority."""
    fields = fields_of(entry, "tenant", 3)
    tenant_id, owner = fields.octets(16), fields.octets(16)
    call.require_authority_of(tenant_id)
    identity = require(call.state, owner)
    if tenant_id == ALL_TENANTS or identity.kind != SubjectKind.PRINCIPAL or identity.tenant != tenant_id:
        raise Refused("a tenant's owner is a principal of that tenant", reason="wrong-tenant")
    call.state.put(TENANTS(tenant_id), [owner, call.height])


def trust(call: Call, entry: list[Any]) -> None:
    """[5, trust file]: its successor, signed by the old threshold; anybody may bring it."""
    fields = fields_of(entry, "trust", 2)
    text = fields.text(TRUST_BYTES_MAX)
    new = _parse_trust(text)
    trust_file(call.state).check_successor(new)
    call.state.put(TRUST(), text)


def genesis(trust_text: str) -> dict[bytes, bytes | None]:
    """The state before the first block."""
    _parse_trust(trust_text)
    return {bytes(TRUST()): wire.encode(trust_text)}


def trust_file(state: State) -> TrustFile:
    """The newest trust file on the ledger."""
    return _parse_trust(state.get(TRUST()))


def revoke_statement(instance: bytes, subject: bytes) -> bytes:
    """What the root signs to revoke `subject`."""
    return wire.encode([instance, subject])


@lru_cache(maxsize=8)
def _parse_trust(text: str) -> TrustFile:
    return TrustFile.parse(text)


def _certificate(call: Call, entry: list[Any]) -> Certificate:
    fields = fields_of(entry, "enrolment", 2)
    certificate = Certificate.decode(fields.octets(at_most=CERTIFICATE_BYTES_MAX))
    if certificate.subject in (ROOT_ID, b""):
        raise Refused("the root's name is nobody's", reason="wrong-subject")
    if call.state.get(KEYS(certificate.signing_key)) is not None:
        raise Refused("the key serves or served an identity already", reason="key-used")
    VerifyKey(certificate.signing_key)
    return certificate


def check_issuer(state: State, certificate: Certificate, instance: bytes, time_ms: int) -> None:
    """Raise `Refused` unless the certificate's chain ends at the trust file, at this block time."""
    if certificate.issuer == ROOT_ID:
        if certificate.kind == SubjectKind.PRINCIPAL:
            raise Refused("principals are certified by an authority", reason="wrong-issuer")
        certificate.verify(trust_file(state).root_verifier, instance=instance)
        return
    issuer = require(state, certificate.issuer)
    issuer.check_live(time_ms)
    if (
        certificate.kind != SubjectKind.PRINCIPAL
        or issuer.kind != SubjectKind.AUTHORITY
        or certificate.tenant == ALL_TENANTS
        or issuer.tenant not in (ALL_TENANTS, certificate.tenant)
    ):
        raise Refused("an authority certifies principals of its own tenants", reason="wrong-issuer")
    certificate.verify(VerifyKey(issuer.key), instance=instance)


def _store(call: Call, certificate: Certificate, *, enrolled: int) -> None:
    kind, key = int(certificate.kind), certificate.signing_key
    begin, end = certificate.not_before_ms, certificate.not_after_ms
    row = IdentityRow(kind, certificate.tenant, key, certificate.issuer, begin, end, enrolled, 0, certificate.hash)
    call.state.put(IDENTITIES(certificate.subject), [*row])
    call.state.put(CERTIFICATES(certificate.subject), certificate.encode())
    call.state.put(KEYS(key), [certificate.subject, call.height, 0])


def _end_key(call: Call, key: bytes) -> None:
    row = call.state.row(KEYS(key))
    assert row is not None  # it was stored with its identity
    call.state.put(KEYS(key), [*row._replace(end=call.height)])
