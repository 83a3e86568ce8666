"""Attribute spaces: what each tenant declared that policies may speak of and keys may be made for.

Threat: a tenant that declares, and so grants, what another's policies ask for. A namespace is its tenant's name, which
the operator gave; nobody chooses one. Threat: an attribute declared anew as something else, so that old locks open to
keys that were never meant for them: what locks and keys rest on stays as it was; attributes may come, and categories
may get values.

Texts are wrapped in the store. A publisher is told the space of its own tenant and of the topic's; nobody learns here
who holds what.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tallystick.authority.answers import Caller
from tallystick.authority.attribute_epochs import AttributeEpochs
from tallystick.authority.core import Core
from tallystick.authority.subjects import Subjects
from tallystick.errors import Misuse, Refused
from tallystick.policy.attribute import Attribute
from tallystick.policy.space import AttributeSpace


def namespace_of(tenant_name: str) -> str:
    """The namespace that belongs to a tenant: its name, as one word."""
    return re.sub(r"[^A-Za-z0-9_]", "_", tenant_name)


class AttributeSpaces:
    def __init__(self, core: Core, subjects: Subjects, epochs: AttributeEpochs) -> None:
        self._core = core
        self._subjects = subjects
        self._epochs = epochs
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
            wrapped = core.master.wrap_at(["space", tenant], encoded, core.entropy)
            core.store.write(
                "INSERT OR REPLACE INTO attribute_spaces VALUES (?, ?, ?, ?)", (tenant, own, wrapped, core.touch_all())
            )

    def find(self, tenant: bytes) -> AttributeSpace | None:
        """What the tenant declared; `CannotOpen` if the row was moved or altered."""
        wrapped = self._core.store.scalar("SELECT space FROM attribute_spaces WHERE tenant = ?", (tenant,))
        if wrapped is None:
            return None
        known = self._opened.get(tenant)
        if known is None or known[0] != wrapped:
            space = AttributeSpace.decode(self._core.master.unwrap_at(["space", tenant], wrapped))
            known = self._opened[tenant] = wrapped, space
        return known[1]

    def require(self, tenant: bytes) -> AttributeSpace:
        space = self.find(tenant)
        if space is None:
            raise Refused(
                "the tenant has declared no attributes", reason="no-attributes", hint="its owner does: tally attribute"
            )
        return space

    def joined(self, tenants: tuple[bytes, ...], seen: int = 0) -> bytes:
        """The spaces of these tenants as one, bare names meaning the first's; empty where none changed since `seen`."""
        spaces = [space for space in map(self.find, dict.fromkeys(tenants)) if space is not None]
        if not spaces or all(self._changed(tenant) <= seen for tenant in tenants):
            return b""
        whole = spaces[0]
        for space in spaces[1:]:
            whole = whole.joined(space)
        return whole.encode()

    def _changed(self, tenant: bytes) -> int:
        return self._core.store.scalar("SELECT changed FROM attribute_spaces WHERE tenant = ?", (tenant,)) or 0


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
