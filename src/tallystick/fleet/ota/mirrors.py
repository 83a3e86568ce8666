"""Mirrors: the servers of a fleet's objects, and which of them is the seeder.

Source: 000, "Architecture of Synapse's platform". A topic of dockets says what there is to serve. A mirror fetches an
object that it does not have from the others, as a vehicle does, and serves its folder with any web server. The mirrors
are a group on that topic: who holds partition 0 is the seeder, and the group's fence, which the ledger raises with
every change, stands in its seeds. The paper's Paxos and leader election are the ledger's consensus and its leases.

Threat: two seeders. A mirror that cannot renew takes its seeds away when its lease has run out by its own clock,
counted from before it asked; seeds that a crash left behind go first of all. One that lies about it is met by the
fence: a vehicle that heard of a higher one does not follow it, and what it deals is advice in any case
(`objects/fetch.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from tallystick.client.group import LEASE_MS, Member
from tallystick.errors import Malformed, Unavailable
from tallystick.objects.fetching import Fetching, FolderKeeper
from tallystick.objects.layout import Docket, slips_file
from tallystick.objects.outcomes import ServerNamed
from tallystick.objects.ranges import SERVERS_MAX, seed_file
from tallystick.objects.serving import make_seed
from tallystick.objects.sources import Source
from tallystick.objects.store import ObjectStore
from tallystick.runtime.disk import Disk, read_all, write_atomic
from tallystick.runtime.sources import Clock

MIRRORS = "mirrors"  # the name of the group, and of the topic where there is but one
SCHEMA = "docket binary not null"

log = logging.getLogger(__name__)


def docket_row(docket: Docket) -> dict[str, Any]:
    """What is published on the topic."""
    return {"docket": docket.encode()}


def read_dockets(rows: Iterable[Mapping[str, Any]]) -> Iterator[Docket]:
    """The dockets in rows of the topic. One that is malformed is logged, and those behind it count."""
    for row in rows:
        try:
            yield Docket.decode(row["docket"])
        except Malformed as error:
            log.warning("mirrors: %s", error)


class ImageMirror:
    """One server. `others` are all that it may fetch from, by the hex of their principals, as seeds name them."""

    def __init__(self, member: Member, disk: Disk, tenant: bytes, others: Mapping[str, Source], clock: Clock) -> None:
        self._member, self._disk, self._tenant, self._others, self._clock = member, disk, tenant, others, clock
        self._store = ObjectStore(disk)
        self._held: dict[bytes, Docket] = {}
        self._seeded: dict[bytes, tuple[int, Sequence[str]]] = {}  # fence and servers of the seeds that lie here
        self._until = 0.0  # when the lease runs out
        for name in disk.listdir(""):
            if name.endswith(".seed"):
                disk.remove(name)

    @property
    def is_seeder(self) -> bool:
        return self._clock.monotonic() < self._until

    def take(self, docket: Docket, on_named: Callable[[ServerNamed], None] = lambda named: None) -> None:
        """Have this object: what is not here is fetched from the others. Raises `Unavailable` and `Refused`, the latter
        where the tenant's quota is too small."""
        self._store.admit(docket, self._tenant, self._clock.now())
        if not self._disk.exists(slips_file(docket.root)):
            with closing(FolderKeeper(self._disk, docket)) as keeper:
                Fetching(docket, self._others, keeper, self._clock, on_named=on_named).run()
        self._held[docket.root] = docket

    def renew(self) -> bool:
        """Renew the lease, and seed what is here if it holds partition 0. Returns whether it does. Raises
        `Unavailable`; a lease that has run out meanwhile takes the seeds with it."""
        asked_at = self._clock.monotonic()
        try:
            holds = 0 in self._member.join()
        except Unavailable:
            if not self.is_seeder:
                self._stand_down()
            raise
        if holds:
            self._until = asked_at + LEASE_MS / 1000
            self._seed()
        else:
            self._stand_down()
        return holds

    def leave(self) -> None:
        """Take the seeds away and give the lease back."""
        self._stand_down()
        self._member.leave()

    def _seed(self) -> None:
        servers = [principal.hex() for principal in self._member.principals[:SERVERS_MAX]]
        for root, docket in self._held.items():
            if self._seeded.get(root) != (self._member.fence, servers):
                slips = read_all(self._disk, slips_file(root))
                seed = make_seed(docket, slips, servers, self._member.fence)
                write_atomic(self._disk, seed_file(root), seed.encode())
                self._seeded[root] = self._member.fence, servers

    def _stand_down(self) -> None:
        self._until = 0.0
        for root in list(self._seeded):
            self._disk.remove(seed_file(root))
            del self._seeded[root]
