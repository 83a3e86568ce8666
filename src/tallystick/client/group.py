"""A group: members share a topic's partitions by leases on the ledger.

Everything is a signed entry of the member's own: joining, renewing, leaving, and moving an offset, which is a
compare-and-set under the group's fence. A node can refuse to carry them, but it cannot move an offset, and a member
that lost its lease cannot commit.

`Assigned` knows which partitions a subscriber reads and from where. Alone it reads all of them. A member of a group
reads those that the ledger dealt to it and renews its lease from time to time; whose offset another member moved begins
again there.
"""

from __future__ import annotations

from collections.abc import Callable

from tallystick.client.fetching import Fetcher
from tallystick.client.reader import ParcelReader
from tallystick.client.settings import SubscriberSettings
from tallystick.client.ties import Author, View
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.groups import GROUPS, OFFSETS, GroupRow, OffsetRow
from tallystick.ledger.contracts.state import Key
from tallystick.runtime.sources import Clock, Entropy

LEASE_MS = 15_000  # a dead member's partitions are dealt anew after this


def group_id(tenant: bytes, name: str) -> bytes:
    """The identifier of a tenant's group."""
    return named_hash("tallystick group 1", tenant + name.encode())[:16]


class Member:
    """One process's membership in a group that reads one topic."""

    def __init__(
        self, author: Author, view: View, identifier: bytes, token: bytes, partitions: int, entropy: Entropy
    ) -> None:
        self._author, self._view = author, view
        self.identifier, self._token, self._partitions = identifier, token, partitions
        self.member = entropy.bytes(16)
        self.fence = 0
        self._principal = author.principal

    def join(self, lease_ms: int = LEASE_MS) -> list[int]:
        """Join or renew, making the group if there is none. Returns the partitions that are ours now."""
        self._make(lease_ms)
        try:
            self._author.write(entries.join(self.identifier, self.member))
        except Refused as error:
            if error.reason != "unknown-group":
                raise
            # Another member's, which we met in the block that was being made; the node fell before it was.
            raise Unavailable("the group was not made after all", retry_after_s=1.0) from error
        self._view.wait_for(GROUPS(self.identifier), self._lists_us)
        return self.assigned()

    def _make(self, lease_ms: int) -> None:
        if self._view.row(GROUPS(self.identifier)) is None:
            try:
                self._author.write(entries.group(self.identifier, lease_ms, [self._token]))
            except Refused as error:
                if error.reason != "group-exists":  # another member was quicker
                    raise

    def _lists_us(self, group: GroupRow | None) -> bool:
        return group is not None and [self._principal, self.member] in [item[:2] for item in group.members]

    def assigned(self) -> list[int]:
        """The partitions dealt to us, as the ledger stands; the fence is remembered."""
        group = self._view.row(GROUPS(self.identifier))
        if group is None:
            return []
        self.fence = group.fence
        members = [(principal, member) for principal, member, _ in group.members]
        me = (self._principal, self.member)
        return [p for p in range(self._partitions) if members and members[p % len(members)] == me]

    def offset(self, partition: int) -> int:
        """Where the group goes on in a partition."""
        return _standing(self._view.row(self._place(partition)))[0]

    def commit(self, partition: int, old: int, new: int) -> None:
        """Move the offset; `Refused` (`fenced`, `not-holder`, `offset-moved`) if it is no longer ours to move."""
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


class Assigned:
    """The readers of the partitions that are ours, by partition."""

    def __init__(
        self, fetcher: Fetcher, member: Member | None, partitions: int, clock: Clock, settings: SubscriberSettings
    ) -> None:
        self.readers: dict[int, ParcelReader] = {}
        self.member = member
        self._fetcher, self._partitions, self._clock, self._settings = fetcher, partitions, clock, settings
        self._committed: dict[int, int] = {}
        self._renew_at = 0.0
        self._fence = 0  # of the group when its partitions were last dealt to us

    def assign(self) -> bool:
        """Know which partitions are ours; a group's are renewed from time to time. Whether they were now."""
        if self.member is None:
            if not self.readers:
                self.readers = {p: self._fetcher.reader(p, self._start(p)) for p in range(self._partitions)}
            return False
        now = self._clock.monotonic()
        if now < self._renew_at:
            return False
        mine = set(self.member.join())
        if self.member.fence != self._fence:  # dealt anew: whose offset another member moved begins again there
            for partition in mine & set(self.readers):
                if self.member.offset(partition) != self._committed[partition]:
                    del self.readers[partition]
        for partition in set(self.readers) - mine:
            del self.readers[partition]
        for partition in sorted(mine - set(self.readers)):
            offset = self.member.offset(partition)
            self._committed[partition] = offset
            self.readers[partition] = self._fetcher.reader(partition, offset)
        # Last: a round that failed in the middle is done again as a whole.
        self._fence, self._renew_at = self.member.fence, now + self._settings.renew_s
        return True

    def _start(self, partition: int) -> int:
        match self._settings.start:
            case "earliest":
                return 0
            case "latest":
                anchor = self._fetcher.anchor(partition)
                return 0 if anchor is None else anchor.size
            case int(offset):
                return offset
        raise Misuse(f'start "{self._settings.start}" is unknown, expected earliest, latest or an offset')

    def is_stale(self) -> bool:
        """Dealt anew in a round that failed: first see what is still ours."""
        return self.member is not None and self.member.fence != self._fence

    def commit(self, positions: dict[int, int]) -> None:
        """Move the group's offsets; a signed compare-and-set for each partition, `Refused` if one is no longer ours."""
        if self.member is None:
            raise Misuse("only a member of a group commits offsets", hint="give the subscriber a group")
        for partition, offset in positions.items():
            old = self._committed[partition]
            if offset > old:
                try:
                    self.member.commit(partition, old, offset)
                except Refused:
                    self._renew_at = 0.0
                    del self.readers[partition]
                    raise
                self._committed[partition] = offset

    def seek(self, partition: int, offset: int) -> None:
        """Go on reading a partition from another offset; lanes are joined to their heads anew."""
        if partition not in self.readers:
            raise Misuse(f"partition {partition} is not read here")
        self.readers[partition] = self._fetcher.reader(partition, offset)
