"""What a node is without its threads and sockets: ledger, guards' rules, log carrier, and the work between them.

Whoever drives it calls `work` from time to time, lets the ledger make its blocks, and serves `carrier` and `ledger` to
the world. A process does so with threads and HTTP (node.py); a simulation does so step by step, on a seeded disk and a
clock of its own. Nothing here waits but `settle`, which the driver lends: it returns when a transaction is in a block.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from tallystick.carriers.log.carrier import LogCarrier, LogSettings
from tallystick.carriers.log.segments import Place
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.quotas import Quota, Quotas
from tallystick.carriers.rules import LedgerRules
from tallystick.carriers.scribe import Numbers, Scribe, ScribeSettings
from tallystick.errors import Misuse
from tallystick.guards.rules import GuardLimits
from tallystick.ledger import entries
from tallystick.ledger.block import Block
from tallystick.ledger.cache import RightsCache
from tallystick.ledger.engine import NodeLedger, Submitted
from tallystick.ledger.sqlite import LedgerSettings
from tallystick.ledger.transaction import compose, parse
from tallystick.node.instance import NodeKeys
from tallystick.node.settings import NodeSettings
from tallystick.runtime.clock import Clock
from tallystick.runtime.disk import Disk
from tallystick.trust.certificate import Certificate
from tallystick.trust.promise import NOTARISE_PREFIX, Anchor, is_anchor, is_notarised
from tallystick.trust.receipt import EntryProof
from tallystick.trust.trustfile import TrustFile

if TYPE_CHECKING:
    from tallystick.carriers.kafka.client import KafkaClient

log = logging.getLogger(__name__)

BLOCKS_AT_ONCE = 256


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
        settle: Callable[[Submitted], None],
        introduce: Sequence[Certificate] = (),
        limits: GuardLimits = GuardLimits(),
    ) -> None:
        """`introduce` are certificates that this node enrols on the ledger besides its own: without that of an
        authority, nobody could sign a request that the node would read."""
        self.trust, self.keys, self.ledger, self.clock, self.settings = trust, keys, ledger, clock, settings
        self._settle, self.limits = settle, limits
        last = self._state_value(b"number/" + self.identifier)
        self._numbers = Numbers(last if isinstance(last, int) else 0)
        self._enrol([keys.certificate, *introduce])
        self._cache = RightsCache(self._state_value)
        self._cache_lock = threading.Lock()
        self._changed: deque[tuple[Block, tuple[bytes, ...]]] = deque()
        ledger.on_block(self._forget_changed)
        self.rules = LedgerRules(trust.instance, self._read, settings.late_epochs)
        self.kafka = self._find_kafka()
        self.carrier = self._open_carrier(disk)

    @property
    def identifier(self) -> bytes:
        return self.keys.certificate.subject

    # Work.

    def work(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Write operations, anchors and evidence to the ledger, then let go of what retention allows."""
        while self.carrier.commit(self.clock.now()) and go_on():
            pass
        for place, below, root in self.carrier.retirable(
            self._now_ms, self.settings.retention_bytes or None, self.settings.retention_s * 1000 or None
        ):
            self._submit(self._compose(entries.retire(place.token, place.partition, below, root)))
            self.carrier.retire(place, below)

    def close(self) -> None:
        self.carrier.close()
        self.ledger.close()

    # Wiring.

    def _find_kafka(self) -> KafkaClient | None:
        """The Kafka that the settings name, if they name one."""
        if self.settings.carrier == "log":
            return None
        from tallystick.node.kafka import open_client

        return open_client(self.settings)

    def _open_carrier(self, disk: Disk) -> LogCarrier:
        anchors = self._anchors()
        # The notary's index grows behind the ledger, so it may be shorter than what is anchored.
        sizes = {place: size for place, (size, _, _) in anchors.items()} if self.kafka is None else {}
        store = LogStore(disk, anchored=sizes)
        for line in store.recovery.lines():
            log.warning("log: %s", line)
        keep_s = self.limits.delay_max_s + 2 * self.limits.skew_max_s
        scribe = Scribe(
            self.trust.instance,
            self.identifier,
            self.keys.key,
            store.journal,
            self._submit,
            self._numbers,
            ScribeSettings(each=self.settings.operations == "each", keep_s=keep_s),
        )
        quota = Quota(self.settings.tenant_bytes_stored_max, float(self.settings.tenant_bytes_per_s))
        parts = (disk, store, self.rules, scribe, self._newest_block, self.identifier, self.keys.key)
        options: dict[str, Any] = {
            "limits": self.limits,
            "quotas": Quotas(quota),
            "settings": LogSettings(),
            "anchored": anchors,
            "entry_proof": self._entry_proof,
        }
        if self.kafka is None:
            return LogCarrier(*parts, **options)
        from tallystick.node.kafka import LedgerForKafka, open_carrier

        return open_carrier(
            self.kafka,
            LedgerForKafka(self.ledger, self.identifier),
            *parts,
            write=lambda written: self._submit(self._compose(*written)).number,
            follow=self._notarised,
            node_key=self.rules.node_key,
            **options,
        )

    # The ledger.

    def _enrol(self, certificates: Sequence[Certificate]) -> None:
        missing = [one for one in certificates if self._state_value(b"identity/" + one.subject) is None]
        if missing:
            transaction = self._compose(*(entries.enrol(certificate) for certificate in missing))
            self.ledger.submit(transaction, self._now_ms)
            self.ledger.flush(self._now_ms)

    def _state_value(self, key: bytes) -> object:
        return self.ledger.query(lambda state: state.get(key))

    def _submit(self, transaction: bytes) -> Submitted:
        submitted = self.ledger.submit(transaction, self._now_ms)
        self._settle(submitted)
        return submitted

    def _compose(self, *entry: bytes) -> bytes:
        number = self._numbers.next(int(self.clock.now() * 1_000_000))
        return compose(self.trust.instance, self.identifier, number, entry, self.keys.key).data

    def _anchors(self) -> dict[Place, tuple[int, int, int]]:
        """Each partition's newest anchor and where its entry lies: (size, transaction, entry)."""
        found: dict[Place, tuple[int, int, int]] = {}
        most = 1 << 20
        for key, value in self.ledger.scan(b"anchor/", most):
            place = Place(key[7:23], int.from_bytes(key[23:27], "big"))
            number, index = self._find_anchor(place, value[2])
            found[place] = (value[0], number, index)
        return found

    def _find_anchor(self, place: Place, height: int) -> tuple[int, int]:
        encoded, transactions = self.ledger.blocks(height, 1)[0]
        first = Block.decode(encoded).first
        for number, data in reversed(list(enumerate(transactions, first))):
            for index, entry in reversed(list(enumerate(parse(data).entries))):
                if is_anchor(entry):
                    anchor = Anchor.decode_entry(entry)
                    if (anchor.token, anchor.partition) == place:
                        return number, index
        raise Misuse(f"ledger: the anchor of {place} is not in block {height}", hint="run tally ledger fsck")

    def _notarised(self, above: int) -> tuple[int, list[tuple[Anchor, int, int]]]:
        """The ledger's height, and the notaries' anchors in blocks above `above`, each with transaction and entry."""
        found: list[tuple[Anchor, int, int]] = []
        top = self.ledger.height
        for first in range(above + 1, top + 1, BLOCKS_AT_ONCE):
            for encoded, transactions in self.ledger.blocks(first, min(BLOCKS_AT_ONCE, top + 1 - first)):
                for number, data in enumerate(transactions, Block.decode(encoded).first):
                    if NOTARISE_PREFIX in data:
                        entries_in = enumerate(parse(data).entries)
                        found += [(Anchor.decode_entry(e), number, i) for i, e in entries_in if is_notarised(e)]
        return top, found

    def _entry_proof(self, number: int, index: int) -> EntryProof:
        return self.ledger.receipt(number, index)

    def _newest_block(self) -> tuple[int, int]:
        height = self.ledger.height
        return height, self.ledger.block(height).time_ms

    def _read(self, key: bytes) -> object:
        with self._cache_lock:
            while self._changed:
                self._cache.invalidate(*self._changed.popleft())
            return self._cache.get(key, self._now_ms)

    def _forget_changed(self, block: Block, keys: Collection[bytes]) -> None:
        """Called under the ledger's lock, for which a reader may be waiting with the cache's: so only note it."""
        if keys:
            self._changed.append((block, tuple(keys)))

    @property
    def _now_ms(self) -> int:
        return int(self.clock.now() * 1000)


def ledger_settings(settings: NodeSettings) -> LedgerSettings:
    return LedgerSettings(
        block_entries=settings.block_entries, window_ms=settings.window_ms, block_ms=settings.block_ms
    )
