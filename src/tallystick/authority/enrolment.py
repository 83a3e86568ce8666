"""Enrolment: a tenant, an invitation, and a principal that shows it holds both keys it brings.

Threat: somebody enrols another's key (and is later taken for its holder), or a sealing key it cannot open (and has
the authority seal secrets to a victim); an invitation used twice, or guessed. So the signing key signs the request,
the sealing key opens a challenge, and an invitation is 128 bits from entropy, kept as a hash, expiring, good once.
To whoever is not yet a principal every failure has one face.
"""

from __future__ import annotations

from hmac import compare_digest

from tallystick.authority.answers import Caller
from tallystick.authority.core import Core
from tallystick.authority.master import tenant_id
from tallystick.authority.possession import (
    ENROL_CONTEXT,
    INVITE_BYTES,
    Enrolled,
    enrol_challenge_info,
    enrol_statement,
    parse_invite,
    refused,
    secret_hash,
    show_invite,
)
from tallystick.authority.subjects import Subjects
from tallystick.crypto import hpke
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.trust.certificate import ALL_TENANTS, Certificate, SubjectKind, subject_id


class Enrolment:
    def __init__(self, core: Core, subjects: Subjects) -> None:
        self._core = core
        self._subjects = subjects

    def create_tenant(self, name: str) -> str:
        """A new tenant; the invitation of the principal that will own it. By the operator, not over HTTP."""
        check_name(name, "tenant", self._core.limits.name_characters_max)
        identifier = tenant_id(self._core.instance, name)
        if self._core.certificate.tenant not in (ALL_TENANTS, identifier):
            raise Misuse(f'tenant "{name}": this authority serves one tenant only, and another one')
        with self._core.store.transaction():
            if self._core.store.row("SELECT 1 FROM tenants WHERE id = ?", (identifier,)):
                raise Misuse(f'tenant "{name}" exists already')
            self._core.store.insert("tenants", id=identifier, name=name)
            return self._invite(identifier, owns=True)

    def invite_to(self, tenant_name: str, *, owns: bool = False) -> str:
        """An invitation to a tenant, by the operator."""
        identifier = tenant_id(self._core.instance, tenant_name)
        with self._core.store.transaction():
            # A restored store may know the tenant from the ledger, by its identifier alone.
            known = self._core.store.write("UPDATE tenants SET name = ? WHERE id = ?", (tenant_name, identifier))
            if not known:
                raise Misuse(f'tenant "{tenant_name}" does not exist', hint="tally tenant create makes one")
            return self._invite(identifier, owns=owns)

    def invite(self, caller: Caller) -> str:
        """An invitation to the caller's own tenant, which it must own."""
        certificate = self._subjects.require_admin(caller)
        with self._core.store.transaction():
            return self._invite(certificate.tenant, owns=False)

    def _invite(self, tenant: bytes, *, owns: bool) -> str:
        store, now_ms = self._core.store, self._core.now_ms
        store.write("DELETE FROM pending WHERE invite IN (SELECT hash FROM invites WHERE expires_ms < ?)", (now_ms,))
        store.write("DELETE FROM invites WHERE expires_ms < ?", (now_ms,))
        count = store.scalar("SELECT count(*) FROM invites WHERE tenant = ? AND used = 0", (tenant,))
        if count >= self._core.limits.invites_max:
            raise Refused(f"tenant {tenant.hex()} has {count} open invitations", reason="too-many-invites")
        code = self._core.entropy.bytes(INVITE_BYTES)
        expires_ms = now_ms + self._core.settings.invite_s * 1000
        store.insert("invites", hash=secret_hash(code), tenant=tenant, owns=int(owns), expires_ms=expires_ms)
        return show_invite(code)

    def begin(self, invite: str, name: str, signing_key: bytes, sealing_key: bytes, signature: bytes) -> bytes:
        """Check the invitation and the signing key. Returns the challenge, sealed to the sealing key."""
        core = self._core
        code = parse_invite(invite)
        with core.store.transaction():
            self._require_invite(secret_hash(code))
            try:
                check_name(name, "principal", core.limits.name_characters_max)
                statement = enrol_statement(core.instance, code, name, signing_key, sealing_key)
                VerifyKey(signing_key).verify(ENROL_CONTEXT, signature, statement)
                public = hpke.PublicKey.decode(sealing_key)
            except (Refused, Misuse):
                raise refused() from None
            principal = subject_id(core.instance, signing_key)
            if core.store.row("SELECT 1 FROM subjects WHERE id = ?", (principal,)):
                raise refused()
            challenge = core.entropy.bytes(32)
            # One attempt at a time for each invitation and for each key: the newest counts.
            core.store.write(
                "DELETE FROM pending WHERE (invite = ? OR principal = ?) AND certificate IS NULL",
                (secret_hash(code), principal),
            )
            if core.store.row(
                "SELECT 1 FROM pending WHERE invite = ? OR principal = ?", (secret_hash(code), principal)
            ):
                raise refused()
            core.store.insert(
                "pending",
                invite=secret_hash(code),
                principal=principal,
                name=name,
                signing_key=signing_key,
                sealing_key=sealing_key,
                challenge=secret_hash(challenge),
            )
        return hpke.seal(public, challenge, enrol_challenge_info(core.instance, principal))

    def prepare(self, principal: bytes, challenge: bytes) -> int | None:
        """Check the opened challenge, use the invitation up and queue the certificate. Returns the outbox place.

        None if that was done before: an answer that was lost is given again.
        """
        core = self._core
        with core.store.transaction():
            row = core.store.row("SELECT * FROM pending WHERE principal = ?", (principal,))
            if row is None or not compare_digest(row[5], secret_hash(challenge)):
                raise refused()
            invite, _, _, signing_key, sealing_key, _, done = row
            if done is not None:
                return None
            tenant, owns = self._require_invite(invite)
            certificate = self.certify(principal, tenant, signing_key, sealing_key)
            core.store.write("UPDATE invites SET used = 1 WHERE hash = ?", (invite,))
            core.store.write(
                "UPDATE pending SET certificate = ? WHERE principal = ?", (certificate.encode(), principal)
            )
            group = [entries.enrol(certificate)]
            if owns:
                group.append(entries.tenant(tenant, principal))
            return core.queue(group)

    def finish(self, principal: bytes) -> Enrolled:
        """What the principal takes home, once the ledger has its certificate."""
        certificate = self._subjects.find(principal)
        if certificate is None:
            raise Unavailable("the ledger has not published the certificate yet", retry_after_s=1.0)
        return Enrolled(
            certificate=certificate.encode(),
            authority=self._core.certificate.encode(),
            nodes=tuple(node.encode() for node in self._subjects.nodes()),
            trust=self._core.trust.to_json(),
        )

    def _require_invite(self, invite: bytes) -> tuple[bytes, int]:
        row = self._core.store.row("SELECT tenant, owns, expires_ms, used FROM invites WHERE hash = ?", (invite,))
        if row is None or row[3] or row[2] <= self._core.now_ms:
            raise refused()
        return row[0], row[1]

    def certify(self, principal: bytes, tenant: bytes, signing_key: bytes, sealing_key: bytes) -> Certificate:
        """A certificate of these keys, from now on."""
        core = self._core
        begins_ms = core.now_ms if core.ledger.head is None else min(core.now_ms, core.ledger.head.time_ms)
        return Certificate(
            instance=core.instance,
            kind=SubjectKind.PRINCIPAL,
            subject=principal,
            tenant=tenant,
            signing_key=signing_key,
            sealing_key=sealing_key,
            not_before_ms=begins_ms,  # block time may lag behind our clock, and validity is judged by it
            not_after_ms=core.now_ms + core.settings.certificate_s * 1000,
            issuer=core.certificate.subject,
        ).sign(core.key)


def check_name(name: str, what: str, characters_max: int) -> None:
    """Raise `Misuse` unless `name` is printable, without spaces at its ends, and not too long."""
    if not 0 < len(name) <= characters_max or not name.isprintable() or name != name.strip():
        raise Misuse(f"{what} name: 1 to {characters_max} printable characters expected")
