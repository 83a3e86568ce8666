"""Who of several controllers leads: a lease with a fencing number.

Threat: two controllers that both believe they lead, one of them because its clock or its network stood still.
Invariant: every change of holder raises the number, and the number is the P4Runtime election of the one who holds it.
A switch takes writes of the greatest it has seen, so a late leader is refused by the first switch it writes to,
whatever its clock says. The lease itself only keeps two from taking turns without end.

The lease is one small file that the operator's controllers share; whoever changes it holds its lock, and it is replaced
as a whole. On a file system that loses its locks two may lead in turn; the numbers still differ, since each is written
before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tallystick.errors import blame
from tallystick.runtime.disk import Disk, read_all, write_atomic
from tallystick.wire import Number, WireObject, octets

_LEASE, _LOCK = "controller.lease", "controller.lock"


@dataclass(frozen=True)
class ControllerLease(WireObject):
    what = "controller lease"
    fence: Number
    holder: Annotated[bytes, octets(at_most=64)]
    until_ms: Number

    def taken(self, holder: bytes, now_ms: int, lease_ms: int) -> ControllerLease | None:
        """The lease as it is after this holder asked for it: longer where it is theirs, with the next number where it
        has run out; None where it is another's."""
        is_live = now_ms < self.until_ms
        if is_live and self.holder != holder:
            return None
        return ControllerLease(self.fence + (not is_live), holder, now_ms + lease_ms)


NOBODY = ControllerLease(0, b"", 0)


class LeaseFile:
    """The lease in a folder that the controllers share. Raises what the disk raises, as `Misuse` or `Unavailable`."""

    def __init__(self, disk: Disk, holder: bytes, lease_ms: int = 10_000) -> None:
        self._disk, self._holder, self._lease_ms = disk, holder, lease_ms

    def take(self, now_ms: int) -> int | None:
        """Take or keep the lease: the fencing number, or None while another holds it."""
        try:
            with self._disk.held(_LOCK):
                is_there = self._disk.exists(_LEASE)
                lease = ControllerLease.decode(read_all(self._disk, _LEASE)) if is_there else NOBODY
                taken = lease.taken(self._holder, now_ms, self._lease_ms)
                if taken is not None:
                    write_atomic(self._disk, _LEASE, taken.encode())
        except OSError as error:
            raise blame(error, "controller lease: ") from error
        return None if taken is None else taken.fence
