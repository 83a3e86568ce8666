"""Attributes: what tenants declare, who holds which, and the keys that are made for them.

An attribute space is what a tenant declared that policies may speak of and keys may be made for.

Threat: a tenant that declares, and so grants, what another's policies ask for. A namespace is its tenant's name, which
the operator gave; nobody chooses one. Threat: an attribute declared anew as something else, so that old locks open to
keys that were never meant for them: what locks and keys rest on stays as it was; attributes may come, and categories
may get values.

Texts are wrapped in the store. A publisher is told the space of its own tenant and of the topic's; nobody learns here
who holds what.

Attributes are granted and withdrawn by the owners of tenants.

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

Attribute keys: what opens the locks that a principal satisfies, handed to that principal alone.

Threat: a key for what the caller does not hold. It is made of the attributes that the ledger shows for the caller at
this moment, for epochs that have begun, and sealed to the caller. Threat: pooling, with others or with one's own past.
Parts of keys with different randomness do not combine, and the randomness is that of holder *and* set of traits
(`crypto/abe/keys.py`): who lost an attribute gets another key, and no further parts for the old one. The holder is the
principal with its signing key, so new keys of a principal bring a new attribute key as well.

While the set stays, a further epoch is one group element. A key reaches back to the epoch that its holder asks for: who
holds an attribute now may open what was sealed for it before, as who may read a topic now may read its history.

Threat: a principal with thousands of traits that asks for its key again and again, 0.6 s of the authority's processor
each time. Parts are counted against a bucket of its own before any is made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tallystick import wire
from tallystick.authority.answers import (
    AttributeAnswer,
    AttributeValue,
    Caller,
    HeldPlace,
    ListedAttribute,
    attribute_commitment,
)
from tallystick.authority.attribute_epochs import AttributeEpochs
from tallystick.authority.codec import plain
from tallystick.authority.core import Core
from tallystick.authority.subjects import Subjects
from tallystick.crypto.abe.sharing import TRAITS_MAX
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Misuse, Refused
from tallystick.ledger.contracts.attributes import ATTRIBUTE_REFUSALS, ATTRIBUTES, AttributeRow
from tallystick.ledger.contracts.state import Key
from tallystick.policy.attribute import Attribute
from tallystick.policy.space import AttributeSet, AttributeSpace
from tallystick.policy.traits import traits_of
from tallystick.runtime.router import Rates
from tallystick.trust.certificate import SubjectKind

DRAFT, LIVE, EXPIRED = 0, 1, 2
_KNOWN_MAX = 200_000  # attributes remembered as proven, some 150 MB

_Row = tuple[bytes, bytes, bytes, bytes, bytes]  # tenant, principal, pseudonym, commitment, content


@dataclass(frozen=True)
class HeldAttribute:
    """One attribute of one principal, by name."""

    tenant: bytes
    principal: bytes
    name: str
    value: AttributeValue
    not_after_ms: int  # 0: without end
    height: int  # of its grant


class _Place(NamedTuple):
    """Where an attribute stands on the ledger."""

    tenant: bytes
    principal: bytes
    pseudonym: bytes

    @property
    def key(self) -> Key[AttributeRow]:
        return ATTRIBUTES(*self)

    def wrapping(self, commitment: bytes) -> list[bytes | int | str]:
        return ["attribute", *self, commitment]


_AT = "tenant = ? AND principal = ? AND pseudonym = ?"
_SELECT = "SELECT tenant, principal, pseudonym, commitment, content FROM attributes"  # a `_Row`


def namespace_of(tenant_name: str) -> str:
    """The namespace that belongs to a tenant: its name, as one word."""
    return re.sub(r"[^A-Za-z0-9_]", "_", tenant_name)


class AttributeSpaces:
    def __init__(self, core: Core, subjects: Subjects, epochs: AttributeEpochs) -> None:
        self._core, self._store, self._subjects, self._epochs = core, core.store, subjects, epochs
        self._opened: dict[bytes, tuple[bytes, AttributeSpace]] = {}  # tenant: the row as it was, and what it says

    def declare(self, caller: Caller, encoded: bytes) -> None:
        """Keep the attribute space of the caller's tenant; by the tenant's owner."""
        core, tenant = self._core, self._subjects.require_admin(caller).tenant
        self._epochs.require_library()
        if len(encoded) > core.limits.space_bytes_max:
            raise Misuse(f"attribute space: {len(encoded)} bytes, at most {core.limits.space_bytes_max} expected")
        space = AttributeSpace.decode(encoded)
        own = namespace_of(core.store.scalar("SELECT name FROM tenants WHERE id = ?", (tenant,)))
        others = {space.namespace, *(one.namespace for one in space.attributes)} - {own}
        if others:
            raise Refused(
                f'attribute space: namespace "{own}" expected, found "{min(others)}"',
                reason="namespace",
                hint=f'a tenant declares its own attributes: namespace = "{own}"',
            )
        with core.store.transaction():
            taken = core.store.scalar("SELECT tenant FROM attribute_spaces WHERE namespace = ?", (own,))
            if taken not in (None, tenant):  # "a-b" after "a_b"
                raise Refused(f'namespace "{own}" is another tenant\'s', reason="namespace")
            _check_successor(self.find(tenant), space)
            wrapped = core.keys.master.wrap_at(["space", tenant], encoded, core.entropy)
            values = (tenant, own, wrapped, core.touch_all())
            core.store.write("INSERT OR REPLACE INTO attribute_spaces VALUES (?, ?, ?, ?)", values)

    def find(self, tenant: bytes) -> AttributeSpace | None:
        """What the tenant declared. Raises `CannotOpen` if the row was moved or altered."""
        wrapped = self._store.scalar("SELECT space FROM attribute_spaces WHERE tenant = ?", (tenant,))
        if wrapped is None:
            return None
        known = self._opened.get(tenant)
        if known is None or known[0] != wrapped:
            space = AttributeSpace.decode(self._core.keys.master.unwrap_at(["space", tenant], wrapped))
            known = self._opened[tenant] = wrapped, space
        return known[1]

    def require(self, tenant: bytes) -> AttributeSpace:
        space = self.find(tenant)
        if space is None:
            raise Refused(
                "the tenant has declared no attributes", reason="no-attributes", hint="its owner does: tally attribute"
            )
        return space

    def declared(self, attribute: Attribute) -> Attribute | None:
        """What the tenant of its namespace declared under the attribute's name."""
        named = "SELECT tenant FROM attribute_spaces WHERE namespace = ?"
        tenant = self._store.scalar(named, (attribute.namespace,))
        known = () if tenant is None else self.require(tenant).attributes
        return next((one for one in known if one.name == attribute.name), None)

    def joined(self, tenants: tuple[bytes, ...], seen: int = 0) -> bytes:
        """The spaces of these tenants as one, bare names meaning the first's, empty where none changed since `seen`."""
        spaces = [space for space in map(self.find, dict.fromkeys(tenants)) if space is not None]
        if not spaces or all(self._changed(tenant) <= seen for tenant in tenants):
            return b""
        whole = spaces[0]
        for space in spaces[1:]:
            whole = whole.joined(space)
        return whole.encode()

    def _changed(self, tenant: bytes) -> int:
        return self._store.scalar("SELECT changed FROM attribute_spaces WHERE tenant = ?", (tenant,)) or 0


def _check_successor(old: AttributeSpace | None, new: AttributeSpace) -> None:
    known = {one.name: one for one in new.attributes}
    for attribute in () if old is None else old.attributes:
        if not is_same_or_wider(known.get(attribute.name), attribute):
            raise Misuse(
                f'attribute "{attribute.name}" was declared otherwise, and locks and keys rest on it',
                hint="declare it as before (a category may get more values), or under a new name",
            )


def is_same_or_wider(found: Attribute | None, attribute: Attribute) -> bool:
    """Whether `found` is the attribute, with at least its values."""
    if found is None or not set(attribute.values) <= set(found.values):
        return False
    return replace(found, values=attribute.values) == attribute


class Attributes:
    def __init__(self, core: Core, subjects: Subjects, spaces: AttributeSpaces, epochs: AttributeEpochs) -> None:
        self._core, self._store, self._subjects, self._spaces, self._epochs = core, core.store, subjects, spaces, epochs
        limits = core.limits
        self._rates = Rates(limits.attribute_parts_per_s, limits.attribute_parts_burst, limits.principals_max)
        self._known: dict[_Place, tuple[_Row, HeldAttribute]] = {}

    # --- requests ---

    def draft(self, caller: Caller, principal: bytes, encoded: bytes, salt: bytes) -> tuple[bytes, ...]:
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
            count = "SELECT count(*) FROM attributes WHERE tenant = ? AND principal = ?"
            kept = core.store.scalar(count, (tenant, principal))
            if kept > core.limits.attributes_max:
                raise Refused(
                    f"at most {core.limits.attributes_max} attributes of one tenant for one principal",
                    reason="too-many-attributes",
                )
            self._check_share(tenant, principal, held)
        return tuple(place.pseudonym for place in places)

    def _check_share(self, tenant: bytes, principal: bytes, wanted: AttributeSet) -> None:
        """Refuse what would not fit the principal's key, so that whoever grants hears of it."""
        most = TRAITS_MAX if self._home(principal) == tenant else self._core.limits.foreign_traits_max
        before = {one.name: one.value for one in self._granted(principal) if one.tenant == tenant}
        count = len(self._traits_of(tenant, tuple(sorted((before | dict(wanted.values)).items()))))
        if count > most:
            raise Refused(
                f"the tenant's share of the principal's key has {most} traits, and {count} would be needed",
                reason="too-many-attributes",
                hint="grant fewer values, or numbers of fewer bits",
            )

    def _keep_draft(self, place: _Place, name: str, value: AttributeValue, salt: bytes) -> None:
        core, commitment = self._core, attribute_commitment(salt, place.principal, name, value)
        content = wire.encode([name, plain(value), salt])
        core.store.write(f"DELETE FROM attributes WHERE {_AT} AND state = ?", (*place, DRAFT))  # noqa: S608
        wrapped = core.keys.master.wrap_at(place.wrapping(commitment), content, core.entropy)
        values = (*place, commitment, wrapped, DRAFT)
        core.store.write("INSERT OR IGNORE INTO attributes VALUES (?, ?, ?, ?, ?, 0, ?)", values)

    def pseudonyms(self, caller: Caller, principal: bytes, names: Sequence[str]) -> tuple[bytes, ...]:
        """Which entries on the ledger stand for these attributes of a principal; by the owner of their tenant."""
        tenant = self._subjects.require_admin(caller).tenant
        space = self._spaces.require(tenant)
        return tuple(self._place(tenant, principal, space.resolve(name).name).pseudonym for name in names)

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
        rows = self._store.rows(
            f"{_SELECT} WHERE state = ? AND tenant = ? AND (? = x'' OR principal = ?) AND principal > ?"
            " ORDER BY principal LIMIT ?",
            (LIVE, certificate.tenant, principal, principal, after, most),
        )
        after = b""
        if len(rows) == most:  # the last one's may not all be here
            rows = [row for row in rows if row[1] != rows[-1][1]]
            after = rows[-1][1]
        return [self._listed(one) for one in self._proven(rows)], after

    def holding(self, caller: Caller, principal: bytes) -> list[HeldPlace]:
        """What a principal holds, also of tenants that it refuses; by itself or the owner of its tenant."""
        certificate, holder = self._subjects.require_caller(caller), self._subjects.find(principal)
        if principal != caller.principal and (
            holder is None or holder.tenant != certificate.tenant or not self._subjects.is_admin(certificate)
        ):
            raise Refused("only the owner of a tenant lists what its principals hold", reason="not-owner")
        master = self._core.keys.master
        return [
            HeldPlace(one.tenant, master.pseudonym(principal, one.name), one.name, *self._shown(one))
            for one in self._granted(principal)
        ]

    def _shown(self, held: HeldAttribute) -> tuple[tuple[str, ...], int]:
        listed = self._listed(held)
        return listed.values, listed.not_after_ms

    def _listed(self, held: HeldAttribute) -> ListedAttribute:
        attribute = self._spaces.require(held.tenant)[held.name]
        values = held.value if isinstance(held.value, tuple) else (attribute.show(held.value),)
        return ListedAttribute(held.principal, held.name, values, held.not_after_ms)

    def held(self, principal: bytes) -> list[HeldAttribute]:
        """Everything that the principal holds now, whoever granted it, but of tenants that it or its own refuses."""
        found, home = self._granted(principal), self._home(principal)
        others = {one.tenant for one in found} - {home}
        refused = {tenant for tenant in others if self._refuses(principal, home, tenant)}
        return [one for one in found if one.tenant not in refused]

    def _granted(self, principal: bytes) -> list[HeldAttribute]:
        return self._proven(self._store.rows(f"{_SELECT} WHERE principal = ? AND state = ?", (principal, LIVE)))

    def _home(self, principal: bytes) -> bytes:
        tenant: bytes = self._store.scalar("SELECT tenant FROM subjects WHERE id = ?", (principal,))
        return tenant

    def _refuses(self, principal: bytes, home: bytes, tenant: bytes) -> bool:
        rows = (self._core.ledger.row(ATTRIBUTE_REFUSALS(holder, tenant)) for holder in (principal, home))
        return any(row is not None for row in rows)

    def _proven(self, rows: list[_Row]) -> list[HeldAttribute]:
        """The attributes of these rows that the ledger has now. Raises `CannotOpen` if a row was moved or altered."""
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
        if proven is None or proven.commitment != attribute_commitment(salt, principal, name, value):
            return None
        held = HeldAttribute(tenant, principal, name, value, proven.not_after_ms, proven.height)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[place] = row, held
        return held

    def _open(self, place: _Place, commitment: bytes, content: bytes) -> tuple[str, AttributeValue, bytes]:
        name, value, salt = wire.decode(
            self._core.keys.master.unwrap_at(place.wrapping(commitment), content), "attribute"
        )
        return name, tuple(value) if isinstance(value, list) else value, salt

    def _place(self, tenant: bytes, principal: bytes, name: str) -> _Place:
        certificate = self._subjects.find(principal)
        if certificate is None or certificate.kind is not SubjectKind.PRINCIPAL:
            raise Refused("there is no such principal", reason="no-such-principal")
        return _Place(tenant, principal, self._core.keys.master.pseudonym(principal, name))

    # --- keys ---

    def key(self, caller: Caller, known: bytes, first: int) -> AttributeAnswer:
        """The caller's key for the epochs from `first` (0: the current one) that have begun, as many as fit.

        `known` is the identifier of the key that the caller has, or empty. Raises `Unavailable` beyond its share.
        """
        certificate, current = self._subjects.require_caller(caller), self._epochs.current()
        traits = self._traits(caller.principal)
        if current is None or not traits:
            return AttributeAnswer(b"", b"", (), current or 0)
        holder = caller.principal + certificate.signing_key
        identifier = named_hash("tallystick attribute key identifier 1", wire.encode([holder, sorted(traits)]))[:16]
        first = first or current
        epochs = range(first, min(current, first + self._core.limits.attribute_epochs_max - 1) + 1)
        parts_made = len(epochs) + (len(traits) if known != identifier else 0)
        with self._store.lock:
            self._rates.charge(caller.principal, self._core.clock.monotonic(), parts_made)
        if known != identifier:
            key = self._epochs.key.issue(holder, traits, epochs).encode()
            return AttributeAnswer(identifier, key, (), current)
        parts = tuple((epoch, self._epochs.key.refresh(holder, traits, epoch)) for epoch in epochs)
        return AttributeAnswer(identifier, b"", parts, current)

    def _traits(self, principal: bytes) -> frozenset[bytes]:
        """What the principal's key is made of: all that its own tenant granted, then of others' what fits.

        Threat: grants of another tenant that leave no room in the key. Those of the principal's own come first, each
        other tenant has a share, and whoever granted first keeps it; what does not fit is left out.
        """
        held, home = self.held(principal), self._home(principal)
        first = {one.tenant: one.height for one in sorted(held, key=lambda one: one.height, reverse=True)}
        found: set[bytes] = set()
        for tenant in sorted(first, key=lambda one: (one != home, first[one], one)):
            share = TRAITS_MAX - len(found)
            if tenant != home:
                share = min(share, self._core.limits.foreign_traits_max)
            for one in (one for one in held if one.tenant == tenant):
                traits = self._traits_of(tenant, ((one.name, one.value),))
                if len(traits) <= share:
                    found |= traits
                    share -= len(traits)
        return frozenset(found)

    def _traits_of(self, tenant: bytes, values: tuple[tuple[str, AttributeValue], ...]) -> frozenset[bytes]:
        return traits_of(AttributeSet(values), self._spaces.require(tenant))

    # --- what time and the ledger say ---

    def tick(self) -> None:
        """Notice what has expired."""
        store, now_ms = self._store, self._core.now_ms
        due = "state = ? AND not_after_ms BETWEEN 1 AND ?"
        with store.transaction():
            tenants = store.column(f"SELECT DISTINCT tenant FROM attributes WHERE {due}", (LIVE, now_ms))  # noqa: S608
            store.write(f"UPDATE attributes SET state = ? WHERE {due}", (EXPIRED, LIVE, now_ms))  # noqa: S608
            for tenant in tenants:
                self._epochs.rotate(tenant)

    def recheck(self, principal: bytes) -> None:
        """It was revoked, or has other keys: what was made for it before opens nothing newer, in its tenant's turn."""
        held = self._store.row("SELECT 1 FROM attributes WHERE principal = ? AND state = ?", (principal, LIVE))
        if held is not None:
            self._epochs.rotate(self._home(principal))

    def apply(self, tenant: bytes, principal: bytes, pseudonym: bytes) -> None:
        """Take over what the ledger holds of an attribute; a draft of it becomes live."""
        place, store = _Place(tenant, principal, pseudonym), self._store
        self._known.pop(place, None)
        before = self._standing(place)
        found: AttributeRow | None = self._core.ledger.row(place.key)
        commitment, not_after_ms, _ = found or AttributeRow(b"", 0, 0)
        withdrawn = f"DELETE FROM attributes WHERE {_AT} AND state != ? AND commitment != ?"  # noqa: S608
        store.write(withdrawn, (*place, DRAFT, commitment))
        granted = f"UPDATE attributes SET state = ?, not_after_ms = ? WHERE {_AT} AND commitment = ?"  # noqa: S608
        store.write(granted, (LIVE, not_after_ms, *place, commitment))
        if before is not None and self._standing(place) != before:
            self._epochs.rotate(tenant)

    def _standing(self, place: _Place) -> AttributeValue | None:
        """The value that was granted last, if it was not withdrawn."""
        standing = f"SELECT commitment, content FROM attributes WHERE {_AT} AND state != ?"  # noqa: S608
        row = self._store.row(standing, (*place, DRAFT))
        return None if row is None else self._open(place, *row)[1]
