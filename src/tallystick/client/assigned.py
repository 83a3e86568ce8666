"""Which partitions a subscriber reads, from where, and the offsets that its group remembers.

Alone it reads all of them. A member of a group reads those that the ledger dealt to it and renews its lease from time
to time; whose offset another member moved begins again there.
"""

from __future__ import annotations

from tallystick.client.fetching import Fetcher
from tallystick.client.group import Member
from tallystick.client.reader import ParcelReader
from tallystick.client.settings import SubscriberSettings
from tallystick.errors import Misuse, Refused
from tallystick.runtime.clock import Clock


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
