"""What a node keeps of its principals: their acts, what they deposited, and what their tenants may use.

Acts are signed requests: each counts once, is judged as the act of its signer, and is noted for the ledger.
Threats: a recorded request sent again; an operator who writes against a principal what it did not do. Invariants: an
envelope is taken once within its window, across restarts; a refusal is held against a principal only where its own
signed request names the topic and the right that it lacks, and then that request goes with it as evidence.

Deposits are what principals leave at a node beside parcels: permits, undo orders and locks, each a blob under a name
that follows from it. A permit stays when it is given back, since it says whose the stored parcels are; the undo order
beside it says that it counts no more.

Quotas say what a tenant may store and send, with a reserve that no tenant can eat. Threat: one tenant that fills the
disk or the line for all. Each tenant has bytes stored and bytes per second; the store keeps a reserve free beyond all
quotas (`carriers.log.limits.reserve_bytes`), so that the ledger goes on when tenants are at their limits. A tenant over
its rate is told when to come back, one over its store is refused until retention frees some. Time is handed in.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tallystick import wire
from tallystick.carriers.scribe import ActNote, Scribe, window_entries
from tallystick.carriers.storage import BlobReader
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Malformed, Refused, Unavailable
from tallystick.guards.route import Window
from tallystick.guards.rules import Act, GuardLimits, Rules
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.contracts.operations import asked as named_in
from tallystick.parcel.header import Header
from tallystick.runtime.disk import Disk, read_all, write_atomic
from tallystick.runtime.router import Buckets, Rate
from tallystick.trust.envelope import Envelope
from tallystick.trust.permit import Permit
from tallystick.trust.right import Right

log = logging.getLogger(__name__)


def permit_name(identifier: bytes) -> bytes:
    return named_hash("tallystick permit blob 1", identifier)


def undo_name(identifier: bytes) -> bytes:
    return named_hash("tallystick undo blob 1", identifier)


class Deposits:
    """Those that are committed."""

    def __init__(self, blobs: BlobReader) -> None:
        self._blobs = blobs

    def lock(self, name: bytes) -> bytes:
        return self._get(name, "lock")

    def has_lock(self, name: bytes) -> bool:
        return name in self._blobs

    def permit(self, identifier: bytes) -> bytes:
        return self._get(permit_name(identifier), "permit")

    def is_undone(self, identifier: bytes) -> bool:
        """Whether the permit was given back, though the ledger may not say so yet."""
        return undo_name(identifier) in self._blobs

    def live_permit(self, identifier: bytes) -> Permit | None:
        """An admitted permit, unless it was given back."""
        data = self._blobs.get(permit_name(identifier))
        return None if data is None or self.is_undone(identifier) else Permit.decode(data)

    def principal_of(self, header: Header) -> bytes:
        """Who published a stored parcel; its permit was checked when it was admitted, and stays after an undo."""
        return Permit.decode(self.permit(header.topics[0].permit)).principal

    def _get(self, name: bytes, what: str) -> bytes:
        data = self._blobs.get(name)
        if data is None:
            raise Refused(f"no such {what}", reason="not-found")
        return data


_LOCKS_PATH = "lock-bytes"


class LockBytes:
    """How many bytes of locks each tenant has left here, across restarts.

    Locks lie in one file for all tenants. What a lock names says nothing of who pays for it, since its publisher may
    name another tenant's topic. So the sums lie beside that file; they are written now and then, and when the node
    ends. A node that is killed forgets the locks of the last seconds. `save` is at the disk: no lock that others want
    is held over it.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk, self._is_saved = disk, True
        self._lock = threading.Lock()
        self.by_tenant: Counter[bytes] = Counter(self._load())

    def add(self, tenant: bytes, n_bytes: int) -> None:
        with self._lock:
            self.by_tenant[tenant] += n_bytes
            self._is_saved = self._is_saved and not n_bytes

    def save(self) -> None:
        """Write the sums, if there is anything new in them."""
        with self._lock:
            if self._is_saved:
                return
            sums, self._is_saved = [list(one) for one in sorted(self.by_tenant.items())], True
        try:
            write_atomic(self._disk, _LOCKS_PATH, wire.encode([1, sums]))
        except OSError as error:
            self._is_saved = False
            log.warning("bytes of locks: not saved (%s); they are tried again", error.strerror)

    def _load(self) -> dict[bytes, int]:
        if not self._disk.exists(_LOCKS_PATH):
            return {}
        try:
            fields = wire.Fields.parse(read_all(self._disk, _LOCKS_PATH), "bytes of locks", 2)
            fields.version(1)
            rows = [one.array(2) for one in fields.each(1 << 20)]
            return {row.octets(16): row.number() for row in rows}
        except Malformed as error:
            log.warning("%s; locks that lie here count for nobody", error)
            return {}


BLAMED_MAX = 65_536  # of whom it is remembered when evidence was last kept; some 10 MB
TENANTS_MAX = 65_536  # whose rate is remembered


@dataclass(frozen=True)
class Quota:
    bytes_stored_max: int = 64 << 30  # a tenant's share of one node's disk
    bytes_per_s: float = 64 << 20  # what one disk syncs in passing
    burst_s: float = 10.0  # how many seconds' worth may come at once after a silence


class Quotas:
    def __init__(self, default: Quota, by_tenant: dict[bytes, Quota] | None = None) -> None:
        self._default = default
        self._by_tenant = dict(by_tenant or {})
        self._buckets: Buckets[bytes] = Buckets(TENANTS_MAX)

    def charge(self, tenant: bytes, n_bytes: int, stored: int, now: float) -> None:
        """Take `n_bytes` from the tenant's allowance. Raises `Unavailable` (come back later) or `Refused` (full)."""
        quota = self._by_tenant.get(tenant, self._default)
        if stored + n_bytes > quota.bytes_stored_max:
            raise Refused(
                f"the tenant stores {stored} bytes of {quota.bytes_stored_max}",
                reason="quota",
                hint="let go with tally topic release or retain, or ask the operator for a larger quota",
            )
        rate = Rate(quota.bytes_per_s, quota.bytes_per_s * quota.burst_s)
        # A parcel larger than the burst would never pass: let it through when the bucket is full.
        wait_s = self._buckets.charge(tenant, rate, n_bytes, now, needed=min(n_bytes, rate.most))
        if wait_s:
            raise Unavailable(f"the tenant sends more than {quota.bytes_per_s:g} bytes/s", retry_after_s=wait_s)


@dataclass(frozen=True)
class Asked:
    """A verified request: its envelope, where it came from, and the wall clock when it came."""

    envelope: Envelope
    host: str
    now: float


_ROLES = {Right.WRITE: OperatorRole.PUBLISHER, Right.READ: OperatorRole.SUBSCRIBER}


class Acts:
    """Single-threaded by the carrier's lock, except `of`."""

    def __init__(self, rules: Rules, scribe: Scribe, time_ms: Callable[[], int], limits: GuardLimits) -> None:
        """`time_ms` is the time of the newest block."""
        self._rules, self._scribe, self._time_ms = rules, scribe, time_ms
        self._window = Window(limits.delay_max_s, limits.skew_max_s, limits.window_share_max)
        self._window.restore(window_entries(scribe.recover()))
        self._served: bytes | None = None
        self._blamed: dict[tuple[bytes, bytes], int] = {}  # when evidence was last kept, by principal and token

    def __len__(self) -> int:
        """How many requests are remembered."""
        return len(self._window)

    def check_new(self, asked: Asked) -> None:
        """The routing guard's word: `Refused` if the request was seen before, or cannot be known not to have been."""
        self._window.check(asked.envelope.principal, asked.envelope.nonce, asked.now)

    def serve_only(self, principal: bytes) -> None:
        """The node is this principal's own: from what it has of a topic others could tell that its owner is there."""
        self._served = principal

    def of(self, asked: Asked) -> Act:
        """The request as the guards see it. Raises `Refused` where the node is another's own."""
        self._check_served(asked)
        return Act(asked.envelope.principal, asked.host, asked.envelope.base_hash, self._time_ms())

    def _check_served(self, asked: Asked) -> None:
        if self._served not in (None, asked.envelope.principal):
            raise Refused("this node serves another principal alone", reason="not-served")

    def note(
        self,
        asked: Asked,
        token: bytes,
        right: Right,
        *,
        reason: str = "",
        partition: int = 0,
        first: int = 0,
        end: int = 0,
    ) -> None:
        """Write down what was asked for, and the `reason` if it was refused."""
        topic, operator = self._rules.topic(token), asked.envelope.principal
        # The history of a topic that does not exist, or is not carried here, is not this node's to write: count it,
        # blame nobody. Not every act is about a partition: such a one is told of a partition that is carried here.
        if topic is not None and not self._rules.carries(token, partition):
            partition = -1 if (found := self._rules.carried(token)) is None else found
        if topic is None or partition < 0:
            self._scribe.count_junk(reason, int(right))
            return
        # Whatever the guard stumbled over first: the contract asks for the right alone, and so does the evidence.
        blamed = (
            reason not in ("", "blacklisted")
            and named_in(asked.envelope) == (token, int(right))
            and not self._rules.allows(operator, token, right, asked.host)
            and self._is_first(operator, token, int(asked.now * 1000))
        )
        self._scribe.note(
            ActNote(
                operator=operator,
                role=_ROLES[right],
                token=token,
                operation=int(right),
                reason=reason,
                host=asked.host,
                partition=partition,
                first=first,
                end=end,
                time_ms=int(asked.now * 1000),
                request=asked.envelope.base_hash,
                nonce=asked.envelope.nonce,
                evidence=asked.envelope.evidence() if blamed else b"",
            )
        )

    def _is_first(self, operator: bytes, token: bytes, now_ms: int) -> bool:
        """Whether evidence would count: a principal that is refused again and again fills no ledger with it."""
        last_ms, window_ms = self._blamed.get((operator, token)), self._rules.fall_window_ms()
        if last_ms is not None and now_ms < last_ms + window_ms:
            return False
        if len(self._blamed) >= BLAMED_MAX:
            self._blamed.clear()
        self._blamed[operator, token] = now_ms
        return True
