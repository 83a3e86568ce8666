"""Enrolment: a tenant, an invitation, and a principal that shows it holds both keys it brings.

Threat: somebody enrols another's key (and is later taken for its holder), or a sealing key it cannot open (and has
the authority seal secrets to a victim); an invitation used twice, or guessed. So the signing key signs the request,
the sealing key opens a challenge, and an invitation is 128 bits from entropy, kept as a hash, expiring, good once.
To whoever is not yet a principal every failure has one face.

New keys of a principal: the holder of the old one asks, the identifier stays. Threat: another's key under one's own
name, or a sealing key that one cannot open. As when enrolling, the new signing key signs the request and the new
sealing key opens a challenge; the challenge is a function of principal and keys, so nothing is kept between the two
requests. Threat: the thief of the old key. The certificate that replaces the old one ends its key at the height of its
entry: what it signed below counts for ever, what comes later is refused. Permits name a key, so they end with it, and
topics that the principal read begin a new epoch: what a thief copied opens nothing newer. Left out: a thief who asks
first. He has the key, and the tenant's owner has the revocation. An answer may be lost when the ledger has the new key
already: the same request, signed by the new key, is answered with the certificate.
"""

from __future__ import annotations

from hmac import compare_digest

from tallystick.authority import possession
from tallystick.authority.answers import Caller, Enrolled
from tallystick.authority.core import Core
from tallystick.authority.master import tenant_id
from tallystick.authority.possession import refused, secret_hash
from tallystick.authority.subjects import Subjects
from tallystick.crypto import hpke
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged, Misuse, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.identity import KEYS
from tallystick.trust.certificate import ALL_TENANTS, Certificate, SubjectKind, subject_id
from tallystick.wire import check_no_identifier


class Enrolment:
    def __init__(self, core: Core, subjects: Subjects) -> None:
        self._core, self._store, self._subjects = core, core.store, subjects

    def create_tenant(self, name: str) -> str:
        """A new tenant; the invitation of the principal that will own it. By the operator, not over HTTP."""
        check_name(name, "tenant", self._core.limits.name_characters_max)
        identifier = tenant_id(self._core.instance, name)
        if self._core.keys.certificate.tenant not in (ALL_TENANTS, identifier):
            raise Misuse(f'tenant "{name}": this authority serves one tenant only, and another one')
        with self._store.transaction():
            if self._store.row("SELECT 1 FROM tenants WHERE id = ?", (identifier,)):
                raise Misuse(f'tenant "{name}" exists already')
            self._store.insert("tenants", id=identifier, name=name)
            return self._invite(identifier, owns=True)

    def tenants(self) -> tuple[str, ...]:
        """The names of all tenants."""
        return self._store.column("SELECT name FROM tenants ORDER BY name")

    def invite_to(self, tenant_name: str, *, owns: bool = False) -> str:
        """An invitation to a tenant, by the operator."""
        identifier = tenant_id(self._core.instance, tenant_name)
        with self._store.transaction():
            # A restored store may know the tenant from the ledger, by its identifier alone.
            known = self._store.write("UPDATE tenants SET name = ? WHERE id = ?", (tenant_name, identifier))
            if not known:
                raise Misuse(f'tenant "{tenant_name}" does not exist', hint="tally tenant create makes one")
            return self._invite(identifier, owns=owns)

    def invite(self, caller: Caller) -> str:
        """An invitation to the caller's own tenant, which it must own."""
        certificate = self._subjects.require_admin(caller)
        with self._store.transaction():
            return self._invite(certificate.tenant, owns=False)

    def _invite(self, tenant: bytes, *, owns: bool) -> str:
        store, now_ms = self._store, self._core.now_ms
        store.write("DELETE FROM pending WHERE invite IN (SELECT hash FROM invites WHERE expires_ms < ?)", (now_ms,))
        store.write("DELETE FROM invites WHERE expires_ms < ?", (now_ms,))
        count = store.scalar("SELECT count(*) FROM invites WHERE tenant = ? AND used = 0", (tenant,))
        if count >= self._core.limits.invites_max:
            raise Refused(f"tenant {tenant.hex()} has {count} open invitations", reason="too-many-invites")
        code = self._core.entropy.bytes(possession.INVITE_BYTES)
        expires_ms = now_ms + self._core.settings.invite_s * 1000
        store.insert("invites", hash=secret_hash(code), tenant=tenant, owns=int(owns), expires_ms=expires_ms)
        return possession.show_invite(code)

    def begin(self, invite: str, name: str, signing_key: bytes, sealing_key: bytes, signature: bytes) -> bytes:
        """Check the invitation and the signing key. Returns the challenge, sealed to the sealing key."""
        core = self._core
        code = possession.parse_invite(invite)
        with core.store.transaction():
            self._require_invite(secret_hash(code))
            try:
                check_name(name, "principal", core.limits.name_characters_max)
                statement = possession.enrol_statement(core.instance, code, name, signing_key, sealing_key)
                VerifyKey(signing_key).verify(possession.ENROL_CONTEXT, signature, statement)
                public = hpke.PublicKey.decode(sealing_key)
            except (Refused, Misuse):
                raise refused() from None
            principal = subject_id(core.instance, signing_key)
            if core.store.row("SELECT 1 FROM subjects WHERE id = ?", (principal,)):
                raise refused()
            challenge = core.entropy.bytes(32)
            # One attempt at a time for each invitation and for each key: the newest counts.
            place = {"invite": secret_hash(code), "principal": principal}
            same = "FROM pending WHERE (invite = ? OR principal = ?)"
            core.store.write(f"DELETE {same} AND certificate IS NULL", tuple(place.values()))
            if core.store.row(f"SELECT 1 {same}", tuple(place.values())):
                raise refused()
            keys = {"signing_key": signing_key, "sealing_key": sealing_key}
            core.store.insert("pending", **place, name=name, **keys, challenge=secret_hash(challenge))
        return hpke.seal(public, challenge, possession.enrol_challenge_info(core.instance, principal))

    def prepare(self, principal: bytes, challenge: bytes) -> int | None:
        """Check the opened challenge, use the invitation up and queue the certificate. Returns its place in the queue.

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
            certificate = self._certify(principal, tenant, signing_key, sealing_key)
            core.store.write("UPDATE invites SET used = 1 WHERE hash = ?", (invite,))
            core.store.update("pending", {"principal": principal}, certificate=certificate.encode())
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
            authority=self._core.keys.certificate.encode(),
            nodes=tuple(node.encode() for node in self._subjects.nodes()),
            trust=self._core.trust.to_json(),
        )

    def _require_invite(self, invite: bytes) -> tuple[bytes, int]:
        row = self._store.row("SELECT tenant, owns, expires_ms, used FROM invites WHERE hash = ?", (invite,))
        if row is None or row[3] or row[2] <= self._core.now_ms:
            raise refused()
        return row[0], row[1]

    def _certify(self, principal: bytes, tenant: bytes, signing_key: bytes, sealing_key: bytes) -> Certificate:
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
            issuer=core.keys.certificate.subject,
        ).sign(core.keys.signing)

    # --- new keys ---

    def begin_rekey(self, caller: Caller, signing_key: bytes, sealing_key: bytes, signature: bytes) -> bytes | None:
        """The challenge, sealed to the new sealing key, or None where the caller has these keys already."""
        core = self._core
        certificate = self._subjects.require_caller(caller)
        if (certificate.signing_key, certificate.sealing_key) == (signing_key, sealing_key):
            return None
        statement = possession.rekey_statement(core.instance, caller.principal, signing_key, sealing_key)
        VerifyKey(signing_key).verify(possession.REKEY_CONTEXT, signature, statement)
        public = hpke.PublicKey.decode(sealing_key)
        challenge = core.keys.master.rekey_challenge(caller.principal, signing_key, sealing_key)
        return hpke.seal(public, challenge, possession.rekey_challenge_info(core.instance, caller.principal))

    def prepare_rekey(self, caller: Caller, signing_key: bytes, sealing_key: bytes, challenge: bytes) -> int:
        """Check the opened challenge and queue the certificate. Returns its place in the queue."""
        core = self._core
        expected = core.keys.master.rekey_challenge(caller.principal, signing_key, sealing_key)
        if not compare_digest(challenge, expected):
            raise Forged("rekey: the challenge was not opened with the new sealing key")
        old = self._subjects.require_caller(caller)
        if core.ledger.raw(KEYS(signing_key)) is not None:
            raise Refused("rekey: the key serves or served an identity already", reason="key-used", hint="draw another")
        return core.queue([entries.replace(self._certify(old.subject, old.tenant, signing_key, sealing_key))])

    def finish_rekey(self, caller: Caller, signing_key: bytes) -> bytes:
        """The new certificate, once the ledger has it."""
        certificate = self._subjects.find(caller.principal)
        if certificate is None or certificate.signing_key != signing_key:
            raise Unavailable("the ledger has not published the certificate yet", retry_after_s=1.0)
        return certificate.encode()


def check_name(name: str, what: str, characters_max: int) -> None:
    """Raise `Misuse` unless `name` is printable, without spaces at its ends, not too long, and no identifier."""
    check_no_identifier(name, what)
    if not 0 < len(name) <= characters_max or not name.isprintable() or name != name.strip():
        raise Misuse(f"{what} name: 1 to {characters_max} printable characters expected")
