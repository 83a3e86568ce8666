"""Certificates: who may certify whom, and for which instance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from makers import FAR_FUTURE_MS, INSTANCE, TENANT, seed
from provers import ROOT, trust_file

from tallystick import wire
from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.errors import Forged, Malformed
from tallystick.trust.certificate import ALL_TENANTS, BYTES_MAX, ROOT_ID, Certificate, SubjectKind, subject_id
from tallystick.trust.trustfile import TrustFile

TRUST = trust_file()
AUTHORITY_KEY = SigningKey.from_seed(seed("authority"))


def unsigned(who: str, kind: SubjectKind, tenant: bytes, issuer: bytes) -> Certificate:
    raw = SigningKey.from_seed(seed(who)).public.raw
    return Certificate(INSTANCE, kind, subject_id(INSTANCE, raw), tenant, raw, b"seal", 5, FAR_FUTURE_MS, issuer)


def authority(tenant: bytes = ALL_TENANTS) -> Certificate:
    return unsigned("authority", SubjectKind.AUTHORITY, tenant, ROOT_ID).sign(TRUST.root_signer(ROOT))


def car(tenant: bytes = TENANT) -> Certificate:
    return unsigned("car", SubjectKind.PRINCIPAL, tenant, authority().subject).sign(AUTHORITY_KEY)


def test_what_is_signed_is_read_and_verified() -> None:
    read = Certificate.decode(authority().encode())
    assert read.body == authority().body  # the signature differs: ML-DSA draws randomness
    read.verify(TRUST.root_verifier, instance=INSTANCE)
    principal = Certificate.decode(car().encode())
    assert principal == car()
    principal.verify_issued_by(read)
    assert principal.hash == car().hash != read.hash


def test_a_tenant_s_authority_certifies_its_own_only() -> None:
    car().verify_issued_by(authority(TENANT))
    with pytest.raises(Forged):
        car().verify_issued_by(authority(b"another tenant--"))


def test_only_an_authority_certifies_and_only_principals() -> None:
    node = unsigned("authority", SubjectKind.NODE, ALL_TENANTS, ROOT_ID).sign(TRUST.root_signer(ROOT))
    with pytest.raises(Forged):
        car().verify_issued_by(node)
    upstart = replace(car(), kind=SubjectKind.AUTHORITY).sign(AUTHORITY_KEY)  # an authority of an authority's making
    with pytest.raises(Forged):
        upstart.verify_issued_by(authority())
    other = replace(car(), issuer=ROOT_ID).sign(AUTHORITY_KEY)
    with pytest.raises(Forged):
        other.verify_issued_by(authority())


def test_another_instance_another_signer_another_word() -> None:
    with pytest.raises(Forged) as caught:
        authority().verify(TRUST.root_verifier, instance=bytes(32))
    assert caught.value.reason == "wrong-instance"
    with pytest.raises(Forged):
        car().verify(SigningKey.from_seed(seed("car")).public, instance=INSTANCE)
    altered = replace(car(), body=car().body[:-1] + b"\0")
    with pytest.raises(Forged):
        altered.verify_issued_by(authority())
    other = TrustFile(
        2, INSTANCE, "x", (RootKey.from_seed(seed("another root")).public.raw,), 1, TRUST.ledger_keys, 1, (), 0
    )
    with pytest.raises(Forged):
        authority().verify(other.root_verifier, instance=INSTANCE)


def test_a_subject_is_named_by_its_first_key_within_an_instance() -> None:
    raw = SigningKey.from_seed(seed("car")).public.raw
    assert len(subject_id(INSTANCE, raw)) == 16
    assert subject_id(INSTANCE, raw) != subject_id(bytes(32), raw)


def test_certificates_are_bounded_and_strict() -> None:
    body, signature = wire.decode(car().encode())
    fields = wire.decode(body)

    def encode(*changed: object) -> bytes:
        return wire.encode([wire.encode(list(changed)), signature])

    for bad in [
        b"",
        wire.encode([body]),
        wire.encode([body, signature, b""]),
        wire.encode([body, 7]),
        encode(2, *fields[1:]),
        encode(*fields[:2], 4, *fields[3:]),  # an unknown kind
        encode(*fields[:3], b"short", *fields[4:]),
        encode(*fields[:6], bytes(4096), *fields[7:]),
        encode(*fields[:7], -1, *fields[8:]),
        encode(*fields[:-1]),
        bytes(BYTES_MAX + 1),
    ]:
        with pytest.raises(Malformed):
            Certificate.decode(bad)
