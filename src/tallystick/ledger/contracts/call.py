"""What a contract sees while it runs: the state, the author, the block's height and time, the entry's place.

A handler takes a `Call` and the entry's decoded array, changes the state, and raises `Refused` with a reason code
where the rules say no. It reads nothing else: same state, transaction, height and time, same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tallystick.errors import Refused
from tallystick.ledger.contracts.state import State
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind

NOBODY = bytes(16)  # an operator that was not authenticated; a topic that was not named


@dataclass(slots=True)
class Call:
    """One transaction on its way through the contracts; `index` and `entry_hash` are those of the running entry."""

    state: State
    instance: bytes
    author: bytes
    author_kind: int
    author_tenant: bytes
    height: int
    time_ms: int
    first: int  # place in its block of the transaction's first entry
    index: int = 0
    entry_hash: bytes = b""
    carried: set[tuple[bytes, int]] = field(default_factory=set)  # partitions of which the author is a node
    links: dict[bytes, HistoryLink] = field(default_factory=dict)  # by token
    accepted: dict[bytes, int] = field(default_factory=dict)  # requests by operator
    refused: int = 0  # operations that tell of a refusal

    def require_operator(self) -> None:
        """The instance's operator: an authority that the root certified for all tenants."""
        if self.author_kind != SubjectKind.AUTHORITY or self.author_tenant != ALL_TENANTS:
            raise Refused("only an authority of all tenants may do this", reason="not-operator")

    def require_authority_of(self, tenant: bytes) -> None:
        if self.author_kind != SubjectKind.AUTHORITY or self.author_tenant not in (ALL_TENANTS, tenant):
            raise Refused(f"only an authority of tenant {tenant.hex()} may do this", reason="not-authority")


class HistoryRow(NamedTuple):
    """The last operation of a topic, and the chain up to it."""

    height: int
    entry: int  # its place in the block
    operations: int  # so many
    chain: bytes


@dataclass(slots=True)
class HistoryLink:
    """A topic's history while a transaction adds to it."""

    previous: HistoryRow | None  # as it was before this transaction
    chain: bytes
    indices: list[int] = field(default_factory=list)  # its operations in this transaction


Handler = Callable[[Call, list[Any]], None]
