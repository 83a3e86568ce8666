"""Who the authority knows: principals, nodes and authorities, by the certificates that the ledger shows.

A row is believed no further than its certificate: the chain up to the trust file is checked whenever one is first
used, so that a sealing key planted in the store receives nothing.

Node and ledger show tokens and identifiers; the names behind them are here alone. A tenant's owner (its auditor, too)
sees all names of its tenant; any other principal those of the topics that it owns or may describe, and its own.
Answers are sealed: names are what the pseudonyms hide.
"""

from __future__ import annotations

from tallystick.authority.answers import Caller, NamePage
from tallystick.authority.core import Core
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts import access
from tallystick.ledger.contracts.identity import IDENTITIES, TENANTS
from tallystick.ledger.contracts.state import State
from tallystick.trust.certificate import ROOT_ID, Certificate, SubjectKind
from tallystick.trust.right import Right

_CHECKED_MAX = 100_000  # certificates remembered as checked, by hash


class Subjects:
    def __init__(self, core: Core) -> None:
        self._core, self._store = core, core.store
        self._checked: set[bytes] = set()
        # Key and tenant of live subjects: asked for on every request, before anything else.
        self._keys: dict[bytes, tuple[VerifyKey, bytes]] = {}

    def find(self, subject: bytes) -> Certificate | None:
        """The certificate of a subject that is enrolled and not revoked, its chain checked."""
        row = self._store.row("SELECT certificate, revoked FROM subjects WHERE id = ?", (subject,))
        if row is None or row[1]:
            return None
        certificate = Certificate.decode(row[0])
        self._check_chain(certificate)
        return certificate

    def require_caller(self, caller: Caller) -> Certificate:
        """The certificate of the principal that asks. Raises `Refused` unless it may act now."""
        certificate = self.find(caller.principal)
        if certificate is None or certificate.kind is not SubjectKind.PRINCIPAL:
            raise Refused("the principal is not enrolled or was revoked", reason="unknown-principal")
        if not certificate.not_before_ms <= self._core.now_ms < certificate.not_after_ms:
            raise Refused("the principal's certificate is not valid now", reason="certificate-expired")
        return certificate

    def resolve_key(self, subject: bytes) -> VerifyKey | None:
        """The key under which a subject's requests count."""
        if subject not in self._keys:
            try:
                certificate = self.find(subject)
            except Refused:
                return None
            if certificate is None:
                return None
            if len(self._keys) >= _CHECKED_MAX:
                self._keys.clear()
            self._keys[subject] = certificate.verify_key, certificate.tenant
        known = self._keys.get(subject)
        return None if known is None else known[0]

    def has_key(self, subject: bytes) -> bool:
        """Whether its key is known without a look at the store."""
        return subject in self._keys

    def share_of(self, subject: bytes) -> bytes:
        """By whose share its requests are counted: its tenant's, once its key was asked for."""
        known = self._keys.get(subject)
        return subject if known is None else known[1]

    def nodes(self) -> list[Certificate]:
        known = "SELECT id FROM subjects WHERE kind = ? AND revoked = 0"
        found = map(self.find, self._store.column(known, (int(SubjectKind.NODE),)))
        return [certificate for certificate in found if certificate is not None]

    def require_admin(self, caller: Caller) -> Certificate:
        """As `require_caller`, for the owner of its tenant."""
        certificate = self.require_caller(caller)
        if not self.is_admin(certificate):
            raise Refused("only the owner of the tenant may do this", reason="not-owner")
        return certificate

    def is_admin(self, certificate: Certificate) -> bool:
        owner = self._store.scalar("SELECT owner FROM tenants WHERE id = ?", (certificate.tenant,))
        return bool(owner == certificate.subject)

    def revoke(self, caller: Caller, principal: bytes) -> int:
        """Queue the revocation of a principal of the caller's tenant, which it must own. Returns its place."""
        admin, certificate = self.require_admin(caller), self.find(principal)
        if certificate is None or certificate.tenant != admin.tenant or certificate.kind is not SubjectKind.PRINCIPAL:
            raise Refused("the tenant has no such principal", reason="no-such-principal")
        return self._core.queue([entries.revoke(principal)])

    # --- names ---

    def names(self, caller: Caller, after: bytes) -> NamePage:
        """The names that the caller may know, those of principals in pages."""
        certificate = self.require_caller(caller)
        is_admin = self.is_admin(certificate)
        topics = () if after else self._topic_names(certificate, is_admin)
        if not is_admin:
            row = self._store.row("SELECT id, name FROM subjects WHERE id = ?", (certificate.subject,))
            return NamePage(topics, () if after or row is None else ((row[0], row[1]),), b"")
        most = self._core.limits.names_max
        found = self._store.rows(
            "SELECT id, name FROM subjects WHERE tenant = ? AND kind = ? AND id > ? ORDER BY id LIMIT ?",
            (certificate.tenant, int(SubjectKind.PRINCIPAL), after, most),
        )
        return NamePage(topics, tuple(found), found[-1][0] if len(found) == most else b"")

    def _topic_names(self, certificate: Certificate, is_admin: bool) -> tuple[tuple[bytes, str], ...]:
        rows = self._store.rows("SELECT token, name, owner, tenant FROM topics WHERE name != '' ORDER BY name")
        described = set(access.topics_with(State(self._core.ledger.raw), certificate.subject, Right.DESCRIBE))
        return tuple(
            (token, name)
            for token, name, owner, tenant in rows
            if owner == certificate.subject or token in described or (is_admin and tenant == certificate.tenant)
        )

    # --- what the ledger says ---

    def apply_identity(self, subject: bytes, certificate: bytes | None) -> bool:
        """Take over what the ledger holds of a subject. Returns whether its permits may have lost their ground.

        `certificate` is one that was seen in a transaction; it counts if the state names its hash.
        """
        identity = self._core.ledger.row(IDENTITIES(subject))
        if identity is None:
            return False
        self._keys.pop(subject, None)
        old = self._store.row("SELECT certificate, revoked FROM subjects WHERE id = ?", (subject,))
        if certificate is not None and Certificate.decode(certificate).hash == identity.certificate_hash:
            name = self._store.scalar("SELECT name FROM pending WHERE principal = ?", (subject,))
            self._store.write(
                "INSERT INTO subjects VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET certificate = excluded.certificate, revoked = excluded.revoked",
                (subject, identity.kind, identity.tenant, name or subject.hex(), certificate, identity.revoked),
            )
        else:
            self._store.write("UPDATE subjects SET revoked = ? WHERE id = ?", (identity.revoked, subject))
        if old is None:
            return False
        replaced = certificate is not None and certificate != old[0]
        return replaced or bool(identity.revoked and not old[1])

    def apply_tenant(self, tenant: bytes) -> None:
        row = self._core.ledger.row(TENANTS(tenant))
        if row is not None:
            # A tenant made after the backup that this store came from is known by its identifier only.
            self._store.write(
                "INSERT INTO tenants VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET owner = excluded.owner",
                (tenant, tenant.hex(), row.owner),
            )

    def _check_chain(self, certificate: Certificate) -> None:
        if certificate.hash in self._checked:
            return
        if certificate.issuer == ROOT_ID:
            certificate.verify(self._core.trust.root_verifier, instance=self._core.instance)
        elif certificate.issuer == self._core.keys.certificate.subject:
            certificate.verify_issued_by(self._core.keys.certificate)
        else:
            issuer = self.find(certificate.issuer)
            if issuer is None:
                raise Refused("a certificate's issuer is not known", reason="unknown-issuer")
            certificate.verify_issued_by(issuer)
        if len(self._checked) >= _CHECKED_MAX:
            self._checked.clear()
        self._checked.add(certificate.hash)
