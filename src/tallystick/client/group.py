"""A group: members share a topic's partitions by leases on the ledger.

Everything is a signed entry of the member's own: joining, renewing, leaving, and moving an offset, which is a
compare-and-set under the group's fence. A node can refuse to carry them, but it cannot move an offset, and a member
that lost its lease cannot commit.

Where a carrier keeps groups at the principal's own node (the mesh), the same entries go there unsigned, under the same
rules, and what stands is that node's word (`NodeBook`).

A member reads the partitions that the ledger dealt to it and renews its lease from time to time. A partition whose
offset another member moved is read again from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tallystick import wire
from tallystick.carriers.carrier import GROUPS_PATH
from tallystick.carriers.remote import RemoteNode
from tallystick.client.reader import ParcelReader
from tallystick.client.ties import Author, Ties, View
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Malformed, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.groups import GROUPS, OFFSETS, OffsetRow
from tallystick.ledger.contracts.state import Key, R

LEASE_MS = 15_000  # a dead member's partitions are dealt anew after this
_NAMES = "groups"  # a file in an identity's folder: the names of groups that it met, one JSON text a line


def group_id(tenant: bytes, name: str) -> bytes:
    """The identifier of a tenant's group."""
    return named_hash("tallystick group 1", tenant + name.encode())[:16]


def known_names(home: Path) -> list[str]:
    """The names of groups that the identity in `home` met. The ledger has hashes of them."""
    with suppress(OSError, ValueError):
        return [str(json.loads(line)) for line in (home / _NAMES).read_text().splitlines()]
    return []


def note_name(home: Path, name: str) -> None:
    """Remember a group's name; where that cannot be written, it is not known the next time."""
    if name not in known_names(home):
        with suppress(OSError), (home / _NAMES).open("a") as file:
            file.write(json.dumps(name) + "\n")


class NodeBook:
    """Groups as the principal's own node keeps them: it writes, and shows what stands, at once."""

    def __init__(self, node: RemoteNode) -> None:
        self._node = node

    def write(self, *entry: bytes) -> None:
        """Raises `Refused` as the ledger's contract does."""
        self._ask(list(entry), [])

    def row(self, key: Key[R]) -> R | None:
        return self.rows([key])[0]

    def rows(self, keys: Sequence[Key[R]]) -> list[R | None]:
        return [key.read(value) for key, value in zip(keys, self._ask([], [bytes(key) for key in keys]), strict=True)]

    def wait_for(self, key: Key[R], accept: Callable[[R | None], bool]) -> R | None:
        """As a view of the ledger has it; but here is nothing to wait for."""
        if not accept(row := self.row(key)):
            raise Unavailable("the node does not show what was written", retry_after_s=1.0)
        return row

    def _ask(self, entry: list[bytes], keys: list[bytes]) -> list[Any]:
        answer = wire.decode(self._node.post(GROUPS_PATH, wire.encode([1, entry, keys])), "groups")
        if not isinstance(answer, list) or len(answer) != len(keys):
            raise Malformed("groups: a row for each key expected")
        return answer


def _books(ties: Ties) -> tuple[Author | NodeBook, View | NodeBook]:
    """Where a group's rows are written, and where they are read."""
    if not ties.anchors:
        return NodeBook(ties.node), NodeBook(ties.node)
    assert ties.author is not None  # who only reads has no group
    return ties.author, ties.view


class Member:
    """One process's membership in a group that reads one topic."""

    def __init__(self, ties: Ties, group: str, token: bytes, partitions: int, renew_s: float) -> None:
        self._author, self._view = _books(ties)
        self._clock, self._renew_s = ties.clock, renew_s
        self.identifier, self._token, self._partitions = group_id(ties.identity.tenant, group), token, partitions
        self.member, self._principal = ties.entropy.bytes(16), ties.identity.principal
        self.fence, self.principals = 0, list[bytes]()  # of all members, as the ledger last showed the group
        self._dealt = 0  # the fence when the partitions that we read were dealt to us
        self._renew_at = 0.0
        self._committed: dict[int, int] = {}

    def assign(self, readers: dict[int, ParcelReader], open_reader: Callable[[int, int], ParcelReader]) -> bool:
        """Let there be a reader for each partition that is ours; the lease is renewed from time to time. Returns
        whether it was now."""
        now = self._clock.monotonic()
        if now < self._renew_at:
            return False
        mine = set(self.join())
        if self.fence != self._dealt:  # dealt anew: whose offset another member moved begins again there
            for partition in mine & set(readers):
                if self.offset(partition) != self._committed[partition]:
                    del readers[partition]
        for partition in set(readers) - mine:
            del readers[partition]
        for partition in sorted(mine - set(readers)):
            self._committed[partition] = self.offset(partition)
            readers[partition] = open_reader(partition, self._committed[partition])
        # Last: a round that failed in the middle is done again as a whole.
        self._dealt, self._renew_at = self.fence, now + self._renew_s
        return True

    @property
    def is_stale(self) -> bool:
        """Whether partitions were dealt anew in a round that failed: first see what is still ours."""
        return self.fence != self._dealt

    def commit(self, positions: dict[int, int], readers: dict[int, ParcelReader]) -> None:
        """Move the group's offsets; a signed compare-and-set for each partition, `Refused` if one is no longer ours."""
        for partition, offset in positions.items():
            if offset > self._committed[partition]:
                try:
                    self._move_to(partition, offset)
                except Refused:
                    self._renew_at = 0.0
                    del readers[partition]
                    raise
                self._committed[partition] = offset

    def join(self) -> list[int]:
        """Join or renew, making the group if there is none. Returns the partitions that are ours now."""
        self._make()
        try:
            self._author.write(entries.join(self.identifier, self.member))
        except Refused as error:
            if error.reason != "unknown-group":
                raise
            # Another member's, which we met in the block that was being made; the node fell before it was.
            raise Unavailable("the group was not made after all", retry_after_s=1.0) from error
        me = [self._principal, self.member]
        self._view.wait_for(
            GROUPS(self.identifier), lambda group: group is not None and me in [one[:2] for one in group.members]
        )
        return self._mine()

    def _make(self) -> None:
        if self._view.row(GROUPS(self.identifier)) is None:
            try:
                self._author.write(entries.group(self.identifier, LEASE_MS, [self._token]))
            except Refused as error:
                if error.reason != "group-exists":  # another member was quicker
                    raise

    def _mine(self) -> list[int]:
        """The partitions dealt to us, as the ledger stands; the fence is remembered."""
        group = self._view.row(GROUPS(self.identifier))
        if group is None:
            return []
        self.fence, self.principals = group.fence, list(dict.fromkeys(one[0] for one in group.members))
        members = [(principal, member) for principal, member, _ in group.members]
        me = (self._principal, self.member)
        return [p for p in range(self._partitions) if members and members[p % len(members)] == me]

    def offset(self, partition: int) -> int:
        """Where the group goes on in a partition."""
        return _standing(self._view.row(self._place(partition)))[0]

    def _move_to(self, partition: int, new: int) -> None:
        """Move the offset. Raises `Refused` (`fenced`, `not-holder`, `offset-moved`) if it is not ours any more."""
        old = self._committed[partition]
        while old != new:
            try:
                self._move(partition, old, new)
                return
            except Refused as error:
                if error.reason != "offset-moved":
                    raise
                # Under our own fence nobody but us moves it: an earlier attempt got through, and only its answer did
                # not. Entries are judged by the block that is being made, and what the ledger shows may lie behind.
                found, fence = _standing(self._view.wait_for(self._place(partition), _moved_from(old)))
                if fence != self.fence or found > new:
                    raise
                old = found

    def _move(self, partition: int, old: int, new: int) -> None:
        self._author.write(
            entries.commit_offset(
                self.identifier, self.member, self._token, partition, fence=self.fence, old=old, new=new
            )
        )

    def _place(self, partition: int) -> Key[OffsetRow]:
        """Where the ledger holds the group's offset."""
        return OFFSETS(self.identifier, self._token, partition)

    def leave(self) -> None:
        self._author.write(entries.leave(self.identifier, self.member))


def _standing(row: OffsetRow | None) -> tuple[int, int]:
    """A group's offset in a partition, and the fence under which it was moved there."""
    return (0, 0) if row is None else (row.offset, row.fence)


def _moved_from(offset: int) -> Callable[[OffsetRow | None], bool]:
    return lambda row: _standing(row)[0] != offset
