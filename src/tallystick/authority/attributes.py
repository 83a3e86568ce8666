"""Attributes: who holds which, granted and withdrawn by the owners of tenants.

Names and values stay here; the ledger knows pseudonyms and commitments. Granting is the tenant owner's act: it draws
the salt and computes the commitment itself, has the authority keep name and value as a *draft*, and signs the entry;
the attribute counts from when the ledger shows it.

Threat: a tenant that grants in another's namespace: a draft outside its own space is refused, and a grant on the ledger
that has no draft behind it (a pseudonym copied from another's grant) comes to nothing. Threat: a row edited in the
store: what is kept opens at its own place only, and whenever it is used it is held to the ledger, expiry included.

A withdrawal, another value, or an expiry lets the next attribute epoch begin, in its tenant's turn; so does a holder
that is revoked or gets other keys, whose attribute key would otherwise serve whoever may read the topic. After a
restore the grants made since the backup are lost here though they stand on the ledger: they come to nothing until their
owner grants them again.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick import wire
from tallystick.authority.answers import Caller, ListedAttribute
from tallystick.authority.attribute_epochs import AttributeEpochs
from tallystick.authority.attribute_spaces import AttributeSpaces
from tallystick.authority.core import Core
from tallystick.authority.subjects import Subjects
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Misuse, Refused
from tallystick.ledger.contracts.attributes import ATTRIBUTES, AttributeRow
from tallystick.ledger.contracts.state import Key
from tallystick.policy.space import AttributeSet
from tallystick.trust.certificate import SubjectKind

DRAFT, LIVE, EXPIRED = 0, 1, 2
_KNOWN_MAX = 200_000  # attributes remembered as proven, some 150 MB

Value = int | tuple[str, ...]
_Row = tuple[bytes, bytes, bytes, bytes, bytes]  # tenant, principal, pseudonym, commitment, content


@dataclass(frozen=True)
class HeldAttribute:
    """One attribute of one principal, by name."""

    tenant: bytes
    principal: bytes
    name: str
    value: Value
    not_after_ms: int  # 0: without end


@dataclass(frozen=True)
class _Place:
    """Where an attribute stands on the ledger."""

    tenant: bytes
    principal: bytes
    pseudonym: bytes

    @property
    def key(self) -> Key[AttributeRow]:
        return ATTRIBUTES(self.tenant, self.principal, self.pseudonym)

    @property
    def columns(self) -> tuple[bytes, bytes, bytes]:
        return self.tenant, self.principal, self.pseudonym

    def wrapping(self, commitment: bytes) -> list[bytes | int | str]:
        return ["attribute", *self.columns, commitment]


_AT = "tenant = ? AND principal = ? AND pseudonym = ?"


def attribute_commitment(salt: bytes, principal: bytes, name: str, value: Value) -> bytes:
    """What the ledger shows of name and value."""
    return named_hash("tallystick attribute commitment 1", wire.encode([salt, principal, name, _plain(value)]))


class Attributes:
    def __init__(self, core: Core, subjects: Subjects, spaces: AttributeSpaces, epochs: AttributeEpochs) -> None:
        self._core = core
        self._subjects = subjects
        self._spaces = spaces
        self._epochs = epochs
        self._known: dict[_Place, tuple[_Row, HeldAttribute]] = {}

    # --- requests ---

    def draft(self, caller: Caller, principal: bytes, encoded: bytes, salt: bytes) -> list[bytes]:
        """Keep names and values of what is to be granted. Returns the pseudonyms to write on the ledger, in order."""
        core, tenant = self._core, self._subjects.require_admin(caller).tenant
        space, held = self._spaces.require(tenant), AttributeSet.decode(encoded)
        space.check(held)
        for name, _ in held.values:
            if not space[name].can_lock:
                raise Misuse(f'attribute "{name}" is a real number, and keys are made for whole ones')
        places = [self._place(tenant, principal, name) for name, _ in held.values]
        with core.store.transaction():
            for place, (name, value) in zip(places, held.values, strict=True):
                self._keep_draft(place, name, value, salt)
            kept = core.store.scalar(
                "SELECT count(*) FROM attributes WHERE tenant = ? AND principal = ?", (tenant, principal)
            )
            if kept > core.limits.attributes_max:
                raise Refused(
                    f"at most {core.limits.attributes_max} attributes of one tenant for one principal",
                    reason="too-many-attributes",
                )
        return [place.pseudonym for place in places]

    def _keep_draft(self, place: _Place, name: str, value: Value, salt: bytes) -> None:
        core, commitment = self._core, attribute_commitment(salt, place.principal, name, value)
        content = wire.encode([name, _plain(value), salt])
        core.store.write(f"DELETE FROM attributes WHERE {_AT} AND state = ?", (*place.columns, DRAFT))  # noqa: S608
        core.store.write(
            "INSERT OR IGNORE INTO attributes VALUES (?, ?, ?, ?, ?, 0, ?)",
            (
                *place.columns,
                commitment,
                core.master.wrap_at(place.wrapping(commitment), content, core.entropy),
                DRAFT,
            ),
        )

    def pseudonyms(self, caller: Caller, principal: bytes, names: list[str]) -> list[bytes]:
        """Which entries on the ledger stand for these attributes of a principal; by the owner of their tenant."""
        tenant = self._subjects.require_admin(caller).tenant
        space = self._spaces.require(tenant)
        return [self._place(tenant, principal, space.resolve(name).name).pseudonym for name in names]

    def listed(self, caller: Caller, principal: bytes, after: bytes) -> tuple[list[ListedAttribute], bytes]:
        """What the owner of a tenant granted (to one principal, or to all); what anybody else holds itself.

        In pages of whole principals; the second value is what to name for the next one, empty on the last.
        """
        certificate = self._subjects.require_caller(caller)
        if not self._subjects.is_admin(certificate):
            if principal not in (b"", caller.principal):
                raise Refused("only the owner of a tenant lists what others hold", reason="not-owner")
            return [self._listed(one) for one in self.held(caller.principal)], b""
        most = self._core.limits.names_max
        rows = self._core.store.rows(
            "SELECT tenant, principal, pseudonym, commitment, content FROM attributes WHERE state = ? AND tenant = ?"
            " AND (? = x'' OR principal = ?) AND principal > ? ORDER BY principal LIMIT ?",
            (LIVE, certificate.tenant, principal, principal, after, most),
        )
        if len(rows) == most:  # the last one's may not all be here
            rows = [row for row in rows if row[1] != rows[-1][1]]
            after = rows[-1][1]
        else:
            after = b""
        return [self._listed(one) for one in self._proven(rows)], after

    def _listed(self, held: HeldAttribute) -> ListedAttribute:
        attribute = self._spaces.require(held.tenant)[held.name]
        values = held.value if isinstance(held.value, tuple) else (attribute.show(held.value),)
        return ListedAttribute(held.principal, held.name, values, held.not_after_ms)

    def held(self, principal: bytes) -> list[HeldAttribute]:
        """Everything that the principal holds now, whoever granted it."""
        return self._proven(
            self._core.store.rows(
                "SELECT tenant, principal, pseudonym, commitment, content FROM attributes"
                " WHERE principal = ? AND state = ?",
                (principal, LIVE),
            )
        )

    def _proven(self, rows: list[_Row]) -> list[HeldAttribute]:
        """The attributes of these rows that the ledger has now; `CannotOpen` if a row was moved or altered."""
        found = [held for held in map(self._prove, rows) if held is not None]
        now_ms = self._core.now_ms
        living = [held for held in found if not held.not_after_ms or now_ms < held.not_after_ms]
        return sorted(living, key=lambda one: (one.principal, one.name))

    def _prove(self, row: _Row) -> HeldAttribute | None:
        """What is proven once in this run stays so until the ledger touches it, or the row is another."""
        tenant, principal, pseudonym, commitment, content = row
        place = _Place(tenant, principal, pseudonym)
        known = self._known.get(place)
        if known is not None and known[0] == row:
            return known[1]
        name, value, salt = self._open(place, commitment, content)
        proven = self._core.ledger.row(place.key)
        if proven is None or proven[0] != attribute_commitment(salt, principal, name, value):
            return None
        held = HeldAttribute(tenant, principal, name, value, proven[1])
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[place] = row, held
        return held

    def _open(self, place: _Place, commitment: bytes, content: bytes) -> tuple[str, Value, bytes]:
        name, value, salt = wire.decode(self._core.master.unwrap_at(place.wrapping(commitment), content), "attribute")
        return name, tuple(value) if isinstance(value, list) else value, salt

    def _place(self, tenant: bytes, principal: bytes, name: str) -> _Place:
        certificate = self._subjects.find(principal)
        if certificate is None or certificate.kind is not SubjectKind.PRINCIPAL:
            raise Refused("there is no such principal", reason="no-such-principal")
        return _Place(tenant, principal, self._core.master.pseudonym(principal, name))

    # --- what time and the ledger say ---

    def tick(self) -> None:
        """Notice what has expired."""
        store, now_ms = self._core.store, self._core.now_ms
        due = "state = ? AND not_after_ms BETWEEN 1 AND ?"
        with store.transaction():
            tenants = store.rows(f"SELECT DISTINCT tenant FROM attributes WHERE {due}", (LIVE, now_ms))  # noqa: S608
            store.write(f"UPDATE attributes SET state = ? WHERE {due}", (EXPIRED, LIVE, now_ms))  # noqa: S608
            for (tenant,) in tenants:
                self._epochs.rotate(tenant)

    def recheck(self, principal: bytes) -> None:
        """It was revoked, or has other keys: what was made for it before opens nothing newer, in its tenant's turn."""
        held = self._core.store.row("SELECT 1 FROM attributes WHERE principal = ? AND state = ?", (principal, LIVE))
        if held is not None:
            self._epochs.rotate(self._core.store.scalar("SELECT tenant FROM subjects WHERE id = ?", (principal,)))

    def apply(self, tenant: bytes, principal: bytes, pseudonym: bytes) -> None:
        """Take over what the ledger holds of an attribute; a draft of it becomes live."""
        place, store = _Place(tenant, principal, pseudonym), self._core.store
        self._known.pop(place, None)
        before = self._standing(place)
        found: AttributeRow | None = self._core.ledger.row(place.key)
        commitment, not_after_ms, _ = found or AttributeRow(b"", 0, 0)
        store.write(
            f"DELETE FROM attributes WHERE {_AT} AND state != ? AND commitment != ?",  # noqa: S608
            (*place.columns, DRAFT, commitment),
        )
        store.write(
            f"UPDATE attributes SET state = ?, not_after_ms = ? WHERE {_AT} AND commitment = ?",  # noqa: S608
            (LIVE, not_after_ms, *place.columns, commitment),
        )
        if before is not None and self._standing(place) != before:
            self._epochs.rotate(tenant)

    def _standing(self, place: _Place) -> Value | None:
        """The value that was granted last, if it was not withdrawn."""
        row = self._core.store.row(
            f"SELECT commitment, content FROM attributes WHERE {_AT} AND state != ?",  # noqa: S608
            (*place.columns, DRAFT),
        )
        return None if row is None else self._open(place, *row)[1]


def _plain(value: Value) -> int | list[str]:
    return list(value) if isinstance(value, tuple) else value
