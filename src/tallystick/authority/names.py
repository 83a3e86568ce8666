"""Names: which token and which identifier is what, for those who may know.

Node and ledger show tokens and identifiers; the names behind them are here alone. A tenant's owner (its auditor, too)
sees all names of its tenant; any other principal those of the topics that it owns or may describe, and its own.
Answers are sealed: names are what the pseudonyms hide.
"""

from __future__ import annotations

from tallystick.authority.answers import Caller, NamePage
from tallystick.authority.core import Core
from tallystick.authority.subjects import Subjects
from tallystick.ledger.contracts import access
from tallystick.ledger.contracts.state import State
from tallystick.trust.certificate import Certificate, SubjectKind
from tallystick.trust.right import Right


class NameBook:
    def __init__(self, core: Core, subjects: Subjects) -> None:
        self._core = core
        self._subjects = subjects

    def page(self, caller: Caller, after: bytes) -> NamePage:
        """The names that the caller may know, those of principals in pages."""
        certificate = self._subjects.require_caller(caller)
        is_admin = self._subjects.is_admin(certificate)
        topics = () if after else self._topics(certificate, is_admin)
        if not is_admin:
            return NamePage(topics, () if after else self._itself(certificate), b"")
        most = self._core.limits.names_max
        found = self._core.store.rows(
            "SELECT id, name FROM subjects WHERE tenant = ? AND kind = ? AND id > ? ORDER BY id LIMIT ?",
            (certificate.tenant, int(SubjectKind.PRINCIPAL), after, most),
        )
        return NamePage(topics, tuple(found), found[-1][0] if len(found) == most else b"")

    def _topics(self, certificate: Certificate, is_admin: bool) -> tuple[tuple[bytes, str], ...]:
        rows = self._core.store.rows("SELECT token, name, owner, tenant FROM topics WHERE name != '' ORDER BY name")
        state = State(self._core.ledger.raw)
        described = set(access.topics_with(state, certificate.subject, Right.DESCRIBE))
        return tuple(
            (token, name)
            for token, name, owner, tenant in rows
            if owner == certificate.subject or token in described or (is_admin and tenant == certificate.tenant)
        )

    def _itself(self, certificate: Certificate) -> tuple[tuple[bytes, str], ...]:
        row = self._core.store.row("SELECT id, name FROM subjects WHERE id = ?", (certificate.subject,))
        return () if row is None else ((row[0], row[1]),)
