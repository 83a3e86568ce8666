"""What a node is without its threads and sockets: ledger, guards' rules, carrier, and the work between them.

Whoever drives it calls `work` from time to time, lets the ledger make its blocks, and serves `front` and `ledger` to
the world. A process does so with threads and HTTP (node.py); a simulation does so step by step, on a seeded disk and a
clock of its own. Nothing here waits but `settle`, which the driver lends: it returns when a transaction is in a block.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from tallystick.carriers.accounts import Quota, Quotas
from tallystick.carriers.front import Front
from tallystick.carriers.registry import serve
from tallystick.carriers.rules import LedgerRules, RightsCache
from tallystick.carriers.scribe import NoteJournal, Numbers, Scribe, ScribeSettings
from tallystick.carriers.storage import AnchorBook, Damaged, Newest, Place, Storage
from tallystick.errors import Misuse, Refused
from tallystick.guards.rules import GuardLimits
from tallystick.ledger import entries
from tallystick.ledger.block import Block, compose
from tallystick.ledger.contracts.anchors import ANCHORS, RETIRED, let_go
from tallystick.ledger.contracts.identity import IDENTITIES, NUMBERS
from tallystick.ledger.contracts.state import Key, R
from tallystick.ledger.contracts.topics import HOSTS
from tallystick.ledger.engine import NodeLedger, Submitted, find_entry, is_anchor_of
from tallystick.ledger.sqlite import LedgerSettings
from tallystick.node.instance import NodeKeys
from tallystick.node.settings import NodeSettings
from tallystick.runtime.conversation import RequestSigner
from tallystick.runtime.counting import Durations
from tallystick.runtime.disk import Disk
from tallystick.runtime.sources import Clock
from tallystick.trust.certificate import Certificate
from tallystick.trust.trustfile import TrustFile

log = logging.getLogger(__name__)

RETIRE_MS = 2_000  # how often what may go is looked for
_EVERYTHING = 1 << 20


class NodeCore:
    """Opening it recovers what an earlier process left on `disk` and in the ledger."""

    def __init__(
        self,
        trust: TrustFile,
        keys: NodeKeys,
        ledger: NodeLedger,
        disk: Disk,
        clock: Clock,
        settings: NodeSettings,
        *,
        settle: Callable[[Submitted], object],
        introduce: Sequence[Certificate] = (),
    ) -> None:
        """`introduce` are certificates that this node enrols on the ledger besides its own: without that of an
        authority, nobody could sign a request that the node would read."""
        self.trust, self.keys, self.ledger, self.clock, self.settings = trust, keys, ledger, clock, settings
        self._settle, self.limits, self._newest = settle, GuardLimits(), (-1, 0)
        self.identifier = keys.certificate.subject
        self._retired_ms, self._not_retired = 0, dict[Place, int]()
        self.commit_s = Durations()  # from a transaction of this node to its block
        self._numbers = Numbers(self._row(NUMBERS(self.identifier)) or 0)
        self._enrol([keys.certificate, *introduce])
        self._cache = RightsCache(self._row)
        self._cache_lock = threading.Lock()
        self._blocks = 0  # that changed something
        self._changed: deque[tuple[Block, tuple[bytes, ...]]] = deque()
        self.rules = LedgerRules(
            *(trust.instance, self._read, settings.late_epochs),
            node=self.identifier,
            tenants=[bytes.fromhex(tenant) for tenant in settings.tenants],
        )
        ledger.on_block(self._forget_changed)
        self.rules.learn_moved(HOSTS(*place) for place, _ in ledger.scan(HOSTS, most=_EVERYTHING))
        self.signer = RequestSigner(self.identifier, keys.key)
        self.served = serve(settings, self, disk)
        self.carrier, self.anchorer = self.served.front, self.served.anchorer

    # Work.

    def work(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Write operations, anchors and evidence to the ledger, then let go of what retention allows. What is missing
        of the index of lanes is made beside that, a step each time."""
        self.carrier.heads.index.build()
        while self.commit() and go_on():
            pass
        if not 0 <= self._now_ms - self._retired_ms < RETIRE_MS:
            self._retired_ms = self._now_ms
            self._retire()

    def _retire(self) -> None:
        """Give up what the owners of topics let go, by the same rule by which the ledger judges it."""
        _, time_ms = self.block()
        for place in self.carrier.storage.places():
            allowed = let_go(self._read, *place, time_ms)
            if self._not_retired.get(place) == allowed:
                continue
            try:
                self._retire_one(place, allowed)
            except (Refused, Damaged) as error:  # the owner changed its mind, or the partition is another node's by now
                self._not_retired[place] = allowed  # said once, and tried again when there is more to retire
                log.warning("%s: nothing retired: %s", place, error)

    def _retire_one(self, place: Place, allowed: int) -> None:
        if not self.rules.writes(*place, self.block()[1]):
            return  # the mark is another's to write
        if (found := self.carrier.anchored.retirable(place, allowed)) is None:
            return
        mark, (below, root) = self._read(RETIRED(*place)), found
        if mark is None or mark.below < below:  # else it is there since before a crash
            self.write([entries.retire(*place, below, root)])
        self.carrier.storage.retire(place, below)

    def commit(self) -> bool:
        """Write what waits to the ledger. Returns False if there was nothing."""
        now_ms, may_anchor = self._now_ms, self.rules.may_anchor
        anchors = [one for one in self.anchorer.grown() if may_anchor(one.token, one.partition, now_ms)]
        wrote = self.carrier.commit(anchors, self.clock.now())
        return self.anchorer.work(self._now_ms) or wrote

    def close(self) -> None:
        self.anchorer.close()
        self.carrier.close()
        self.ledger.close()

    # What the carrier is lent.

    def front(
        self, storage: Storage, journal: NoteJournal, anchors: Mapping[Place, Newest], *, quiet: bool = False
    ) -> Front:
        scribe = Scribe(
            self.trust.instance,
            self.signer,
            journal,
            self._submit,
            self._numbers,
            ScribeSettings(
                quiet=quiet,
                each=self.settings.operations == "each",
                keep_s=self.limits.delay_max_s + 2 * self.limits.skew_max_s,
            ),
        )
        quota = Quota(self.settings.tenant_bytes_stored_max, float(self.settings.tenant_bytes_per_s))
        anchored = AnchorBook(storage, anchors, self.ledger.receipt)
        return Front(storage, anchored, self.rules, scribe, self.signer, self.block, Quotas(quota), self.limits)

    def write(self, written: Sequence[bytes]) -> int:
        """Bring entries to the ledger in one transaction. Returns its number."""
        return self._submit(self._compose(*written)).number

    def block(self) -> tuple[int, int]:
        """Height and time of the newest block."""
        height = self.ledger.height
        if height != self._newest[0]:  # a relay asks for it with every frame
            self._newest = height, self.ledger.block(height).time_ms
        return self._newest

    # The ledger.

    def _enrol(self, certificates: Sequence[Certificate]) -> None:
        missing = [one for one in certificates if self._row(IDENTITIES(one.subject)) is None]
        if missing:
            transaction = self._compose(*(entries.enrol(certificate) for certificate in missing))
            self.ledger.submit(transaction, self._now_ms)
            self.ledger.flush(self._now_ms)

    def _row(self, key: Key[R]) -> R | None:
        return self.ledger.query(lambda state: state.row(key))

    def _submit(self, transaction: bytes) -> Submitted:
        with self.commit_s.timed(self.clock.monotonic):
            submitted = self.ledger.submit(transaction, self._now_ms)
            self._settle(submitted)
        return submitted

    def _compose(self, *entry: bytes) -> bytes:
        number = self._numbers.next(int(self.clock.now() * 1_000_000))
        return compose(self.trust.instance, self.identifier, number, entry, self.keys.key).data

    def anchors(self) -> dict[Place, Newest]:
        """Each partition's newest anchor."""
        found: dict[Place, Newest] = {}
        for (token, partition), row in self.ledger.scan(ANCHORS, most=_EVERYTHING):
            place = Place(token, partition)
            found[place] = Newest(row.size, *self._find_anchor(place, row.height))
        return found

    def _find_anchor(self, place: Place, height: int) -> tuple[int, int]:
        found = find_entry(self.ledger, height, lambda entry: is_anchor_of(entry, *place))
        if found is not None:
            return found
        raise Misuse(f"ledger: the anchor of {place} is not in block {height}", hint="run tally ledger fsck")

    def _read(self, key: Key[R]) -> R | None:
        """Through the cache, whose lock is not held while the ledger is asked: it may be a network away."""
        with self._cache_lock:
            self._forget()
            if self._cache.has(key, self._now_ms):
                return self._cache.get(key, self._now_ms)
            blocks = self._blocks
        row = self._cache.load(key)
        with self._cache_lock:
            self._forget()
            if self._blocks == blocks:  # else it may be of before a block that changed it
                self._cache.keep(key, row, self._now_ms)
        return row

    def has_key(self, subject: bytes) -> bool:
        """Whether the key of a subject, if it has one, is known without a look at the ledger."""
        with self._cache_lock:
            self._forget()
            return self._cache.has(IDENTITIES(subject), self._now_ms)

    def _forget(self) -> None:
        """What blocks changed; the caller holds the cache's lock."""
        while self._changed:
            self._cache.invalidate(*self._changed.popleft())
            self._blocks += 1

    def _forget_changed(self, block: Block, keys: Collection[bytes]) -> None:
        """Called under the ledger's lock, for which a reader may be waiting with the cache's: so only note it."""
        if keys:
            self._changed.append((block, tuple(keys)))
            self.rules.learn_moved(keys)

    @property
    def _now_ms(self) -> int:
        return int(self.clock.now() * 1000)


def ledger_settings(settings: NodeSettings) -> LedgerSettings:
    return LedgerSettings(
        block_entries=settings.block_entries, window_ms=settings.window_ms, block_ms=settings.block_ms
    )
