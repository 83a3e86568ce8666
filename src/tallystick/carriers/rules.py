"""The guards' view of the ledger: rights, permits, epochs and topics out of its state.

`read` brings a row of the state by its key, through a cache that new blocks invalidate at once (BPS 4.3); what is
decided here is only what the values mean.

The cache holds rows of the state with an expiry. Threat: a right that was taken and still works. Two bounds:
`invalidate`, fed by every new block, forgets exactly what the block changed; where blocks do not arrive, an entry ends
after `expiry_ms` and is asked for again, and what cannot be asked is refused (`Unavailable` passes through): the cache
fails closed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from tallystick.crypto.signatures import VerifyKey
from tallystick.guards.rules import TopicRules
from tallystick.ledger.block import Block
from tallystick.ledger.contracts import access, leases
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.epochs import EPOCHS, LAST_EPOCHS, End
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.permits import PERMITS, Status
from tallystick.ledger.contracts.plans import ENTRUSTED, RELAYS
from tallystick.ledger.contracts.reputation import EQUIVOCATIONS, STANDINGS
from tallystick.ledger.contracts.settings import CHOSEN, SETTINGS
from tallystick.ledger.contracts.state import NOBODY, Key, R, RowReader
from tallystick.ledger.contracts.topics import HOSTS, SCHEMAS, TOPICS
from tallystick.trust.certificate import Certificate, SubjectKind
from tallystick.trust.right import Right

KEYS_MAX = 65_536  # some 20 MB
EXPIRY_MS = 10_000  # shorter than any revocation bound in use


class RightsCache:
    """Reads through `load` (one row of the state by its key); single-threaded, but for `load` itself."""

    def __init__(
        self, load: Callable[[Key[Any]], Any], *, expiry_ms: int = EXPIRY_MS, keys_max: int = KEYS_MAX
    ) -> None:
        self._load = load
        self._expiry_ms = expiry_ms
        self._keys_max = keys_max
        self._held: dict[bytes, tuple[int, Any]] = {}  # key → end of its time, row; oldest first

    def get(self, key: Key[R], now_ms: int) -> R | None:
        """The row of any key of the state."""
        if self.has(key, now_ms):
            known: R | None = self._held[key][1]
            return known
        row = self.load(key)
        self.keep(key, row, now_ms)
        return row

    def has(self, key: bytes, now_ms: int) -> bool:
        held = self._held.get(key)
        return held is not None and now_ms < held[0]

    def load(self, key: Key[R]) -> R | None:
        """The row as the ledger has it, past the cache; for any thread."""
        row: R | None = self._load(key)
        return row

    def keep(self, key: Key[R], row: R | None, now_ms: int) -> None:
        self._held.pop(key, None)
        if len(self._held) >= self._keys_max:
            del self._held[next(iter(self._held))]
        self._held[key] = (now_ms + self._expiry_ms, row)

    def invalidate(self, block: Block, keys: Collection[bytes]) -> None:
        """A block changed these keys; give it to an engine's `on_block`."""
        for key in keys:
            self._held.pop(key, None)


EPOCHS_BACK_MAX = 64  # how far an epoch may lie behind the newest before it is refused without a look

CURRENT_MS = 1_000  # how long the current epoch is remembered, unless it ends meanwhile


LOOKED_AT_MAX = 256  # partitions of a topic that are asked for one that this node carries


class LedgerRules:
    def __init__(
        self,
        instance: bytes,
        read: RowReader,
        late_epochs: int = 1,
        *,
        node: bytes = NOBODY,
        tenants: Collection[bytes] = (),
    ) -> None:
        """`late_epochs`: parcels of so many epochs that ended by schedule are still taken. `node` is this one, and
        carries topics of these `tenants`, or of all where none is named."""
        self.instance = instance
        self.read = read
        self.is_open = False  # of a carrier that stores nothing and writes nothing: every node takes what comes to it
        self._late_epochs, self._node, self._tenants = late_epochs, node, frozenset(tenants)
        self._assigned: defaultdict[bytes, set[int]] = defaultdict(set)  # partitions that name this node one by one
        self._moved: deque[tuple[bytes, int]] = deque()
        self._current: dict[bytes, tuple[int, int, int]] = {}  # token → (epoch, from ms, until ms)

    def verify_key(self, subject: bytes) -> VerifyKey | None:
        """The key under which an enrolled, unrevoked subject signs its requests."""
        row = self.read(IDENTITIES(subject))
        return None if row is None or row.enrolled == 0 or row.revoked else VerifyKey(row.key)

    def node_key(self, subject: bytes) -> VerifyKey | None:
        """The key of an enrolled, unrevoked node; nobody else's word stands for its guards."""
        row = self.read(IDENTITIES(subject))
        return None if row is None or row.kind != SubjectKind.NODE else self.verify_key(subject)

    def share_of(self, subject: bytes) -> bytes:
        """By whose share its requests are counted: a principal's by its tenant's, those of others by their own."""
        row = self.read(IDENTITIES(subject))
        return subject if row is None or row.kind != SubjectKind.PRINCIPAL else row.tenant

    def is_carried_by(self, node: bytes, token: bytes, partition: int) -> bool:
        """Whether the ledger names this node for the partition, or for a topic that travels over an overlay, whether it
        is a relay there; which of them writes for it is the lease's to say."""
        nodes = self.read(HOSTS(token, partition))
        if nodes is None:
            topic = self.read(TOPICS(token))
            if topic is None or partition >= topic.partitions:
                return False
            nodes = topic.nodes
        word = self.read(ENTRUSTED(token))
        if word is None or word.overlay == NOBODY:
            return node in nodes
        return self.read(RELAYS(node)) == word.overlay

    def authority(self, identifier: bytes) -> Certificate | None:
        row = self.read(IDENTITIES(identifier))
        if row is None or row.kind != SubjectKind.AUTHORITY or row.revoked:
            return None
        # The ledger checked the certificate when it enrolled it; what the guards need of it is in the state.
        times = row.not_before_ms, row.not_after_ms
        return Certificate(
            self.instance, SubjectKind.AUTHORITY, identifier, row.tenant, row.key, b"", *times, row.issuer
        )

    def blacklisted(self, principal: bytes) -> bool:
        row = self.read(STANDINGS(principal))
        return row is not None and row.blacklisted != 0

    def is_over(self, principal: bytes, time_ms: int) -> bool:
        row = self.read(IDENTITIES(principal))
        return row is None or not row.is_live(time_ms)

    def convicted(self, principal: bytes, lane: bytes, sequence: int) -> bool:
        return self.read(EQUIVOCATIONS(principal, lane, sequence)) is not None

    def allows(self, principal: bytes, token: bytes, right: Right, host: str) -> bool:
        row = self.read(access.RIGHTS(token, principal))
        return row is not None and access.decide(row.rules, int(right), host)

    def topic(self, token: bytes) -> TopicRules | None:
        row = self.read(TOPICS(token))
        return None if row is None else TopicRules(row.tenant, row.partitions, row.closed != 0)

    def may_anchor(self, token: bytes, partition: int, now_ms: int) -> bool:
        """Whether the pace that a topic's owner chose lets a partition be anchored again. Promises must be kept in time
        whatever the pace, so a partition waits for half of that time at most."""
        topic, last = self.read(TOPICS(token)), self.read(ANCHORS(token, partition))
        if topic is None or last is None or not topic.anchor_pace_ms:
            return True
        promised_ms = self.read(CHOSEN(b"anchor_ms")) or SETTINGS["anchor_ms"].default
        return not 0 <= now_ms - last.time_ms < min(topic.anchor_pace_ms, promised_ms // 2)  # a clock may go back

    def carries(self, token: bytes, partition: int) -> bool:
        if self.is_open:
            topic = self.read(TOPICS(token))
            return topic is not None and partition < topic.partitions
        return self.is_carried_by(self._node, token, partition)

    def writes(self, token: bytes, partition: int, time_ms: int) -> bool:
        """Whether this node writes for the partition: one that carries it, or of an overlay's relays the one with the
        lease."""
        if self.is_open:
            return False
        word = self.read(ENTRUSTED(token))
        if word is None or word.overlay == NOBODY:
            return self.carries(token, partition)
        row = leases.find(self.read, token, partition, time_ms)
        return row is not None and row.holder == self._node

    def carried(self, token: bytes) -> int | None:
        topic = self.read(TOPICS(token))
        while self._moved:
            moved, partition = self._moved.popleft()
            own = self._assigned[moved]
            (own.add if self.carries(moved, partition) else own.discard)(partition)
        own, count = self._assigned.get(token, set()), 0 if topic is None else topic.partitions
        looked_at = (*sorted(own)[:1], *range(min(count, LOOKED_AT_MAX)))
        return next((partition for partition in looked_at if self.carries(token, partition)), None)

    def consents(self, tenant: bytes) -> bool:
        return not self._tenants or tenant in self._tenants

    def learn_moved(self, keys: Iterable[bytes]) -> None:
        """These rows of the ledger are new or were changed: some may say who carries a partition."""
        self._moved.extend(HOSTS.parts(key) for key in keys if key.startswith(HOSTS.prefix()))

    def fall_window_ms(self) -> int:
        chosen = self.read(CHOSEN(b"fall_window_ms"))
        return SETTINGS["fall_window_ms"].default if chosen is None else chosen

    def schema_known(self, token: bytes, version: int, schema_hash: bytes) -> bool:
        row = self.read(SCHEMAS(token, version))
        return row is not None and row.hash == schema_hash

    def permit_ended(self, identifier: bytes) -> bool:
        row = self.read(PERMITS(identifier))
        return row is None or row.status != Status.ISSUED

    def epoch_taken(self, token: bytes, epoch: int, time_ms: int) -> bool:
        """The current epoch, or one of the last `late_epochs` with no revocation since: a revoked reader holds the
        keys of every epoch up to the one that its revocation ended."""
        current = self._current_epoch(token, time_ms)
        if current is None or not 0 < epoch <= current or current - epoch > self._late_epochs:
            return False
        return not any(self._was_revoked(token, number, time_ms) for number in range(epoch, current + 1))

    def _current_epoch(self, token: bytes, time_ms: int) -> int | None:
        """The newest epoch that has begun; remembered for a moment, or until the next one begins."""
        known = self._current.get(token)
        if known is not None and known[1] <= time_ms < known[2] and not self._was_ended(token, known[0], time_ms):
            return known[0]
        last, until = self.read(LAST_EPOCHS(token)) or 0, time_ms + CURRENT_MS
        for epoch in range(last, max(0, last - EPOCHS_BACK_MAX), -1):
            row = self.read(EPOCHS(token, epoch))
            if row is None:
                return None
            begins = row.begins_ms(self.read(EPOCHS(token, epoch - 1)))
            if begins <= time_ms:
                self._current[token] = (epoch, begins, until)
                return epoch
            until = min(until, begins)
        return None

    def _was_ended(self, token: bytes, epoch: int, time_ms: int) -> bool:
        row = self.read(EPOCHS(token, epoch))
        return row is None or 0 < row.end_ms <= time_ms

    def _was_revoked(self, token: bytes, epoch: int, time_ms: int) -> bool:
        row = self.read(EPOCHS(token, epoch))
        return row is None or (row.how == End.REVOCATION and row.end_ms <= time_ms)
