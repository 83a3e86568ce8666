"""Attributes and policies on a whole instance: what their owners do, by name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from stack import Stack, wait_until

from tallystick.authority.client import grant_entries, policy_entry, withdraw_entries
from tallystick.client.session import Session
from tallystick.errors import Refused
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace

SPACE = """
namespace = "acme"
[role]
kind = "category"
values = ["garage", "insurer", "police"]
[clearance]
kind = "integer"
bits = 8
"""


class Attributes:
    """The attributes that one tenant declares and grants."""

    def __init__(self, stack: Stack, owner: Session) -> None:
        self.stack, self.owner, self.space = stack, owner, AttributeSpace.read(SPACE)
        owner.authority.declare_attributes(self.space.encode())

    def give(self, to: Session, **values: Any) -> None:
        """Grant, and wait until the authority has followed."""
        tenant, principal, salt = self.owner.identity.tenant, to.identity.principal, self.stack.entropy.bytes(32)
        before = to.authority.attribute_key().identifier
        held = self.space.grant(values)
        self.owner.author.write(*grant_entries(self.owner.authority, tenant, principal, held, salt))
        wait_until(lambda: to.authority.attribute_key().identifier not in (before, b""))

    def take(self, who: Session, *names: str) -> None:
        """Withdraw, and wait until the epoch that follows has begun."""
        tenant, principal = self.owner.identity.tenant, who.identity.principal
        before = who.authority.attribute_key().epoch
        self.owner.author.write(*withdraw_entries(self.owner.authority, tenant, principal, list(names)))
        wait_until(lambda: who.authority.attribute_key().epoch > before)

    def set_policy(self, token: bytes, group: int, text: str) -> None:
        """Set a topic's policy, and wait until the authority hands out its keys."""
        formula, salt = parse(text, self.space) if text else None, self.stack.entropy.bytes(32)
        wait_until(lambda: self._is_known(token))
        self.owner.author.write(policy_entry(self.owner.authority, token, group, formula, salt))
        wait_until(lambda: any(one.group == group for one in self.owner.authority.topic_policies(token)))

    def _is_known(self, token: bytes) -> bool:
        with suppress(Refused):
            self.owner.authority.topic_policies(token)
            return True
        return False
