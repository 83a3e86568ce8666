"""The log carrier: guards in front, the store behind, promises out.

A publish request goes through these steps (docs/life-of-a-record.md, 3 and 4):

  a. the routing guard: its envelope was not seen before;
  b. the publish guard, parcel by parcel;
  c. what is accepted is staged, and the lane's head moves on;
  d. the act is noted for the ledger;
  e. one sync makes parcels, notes and promises' marks durable, for all requests that wait;
  f. each parcel is answered by a promise, or the reason why not.

Invariant: nothing is promised that is not durable, and nothing durable is unnoted. If the sync fails, everything since
the last one is taken back, heads of lanes included, and nobody is promised anything. The carrier holds no key that
opens anything; its own signs promises and operations.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tallystick.carriers.acts import Acts, Asked
from tallystick.carriers.carrier import Fetched, LaneFront, NotStored, Outcome, Stored
from tallystick.carriers.log.anchored import Anchored
from tallystick.carriers.log.deposits import Deposits, permit_name, undo_name
from tallystick.carriers.log.heads import Heads
from tallystick.carriers.log.partition import Entry
from tallystick.carriers.log.segments import Place
from tallystick.carriers.log.selection import select
from tallystick.carriers.log.store import LogStore, Staged, Statistics
from tallystick.carriers.quotas import Quotas
from tallystick.carriers.scribe import Accusation, Scribe
from tallystick.carriers.voids import is_void
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Malformed, Refused, TallystickError, Unavailable
from tallystick.guards.advertise import advertise
from tallystick.guards.lanes import Ahead
from tallystick.guards.live import Live
from tallystick.guards.publish import Accepted, Contradiction, Repeated, publish
from tallystick.guards.rules import Act, GuardLimits, Right, Rules, check_topic
from tallystick.guards.subscribe import fetch, subscribe
from tallystick.guards.unadvertise import unadvertise
from tallystick.guards.unsubscribe import unsubscribe
from tallystick.ledger.contracts.operations import Role
from tallystick.ledger.entries import equivocation
from tallystick.ledger.transaction import parse
from tallystick.parcel.header import Header
from tallystick.parcel.labels import Wanted
from tallystick.parcel.locks import decode_lock, lock_hash
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import Disk
from tallystick.trust.permit import Operation, Permit, UndoOrder
from tallystick.trust.promise import Anchor, Promise, is_anchor, sign_promises
from tallystick.trust.receipt import EntryProof, Receipt

STORED_S = 10.0  # how long a sum of what tenants store is believed


@dataclass(frozen=True)
class LogSettings:
    fetch_bytes_max: int = 8 << 20  # one answer
    lane_scan_max: int = 65_536  # headers looked at to find a lane's parcel below an offset; about a second


@dataclass(frozen=True)
class CarrierStatistics:
    accepted: int  # parcels since the start
    refused: int
    operations_waiting: int
    envelopes_remembered: int
    lanes: int
    partitions_anchored: int


class LogCarrier:
    """Thread-safe: one lock around guards and staging; reads go past it."""

    def __init__(
        self,
        disk: Disk,
        store: LogStore,
        rules: Rules,
        scribe: Scribe,
        block: Callable[[], tuple[int, int]],
        node: bytes,
        key: SigningKey,
        *,
        limits: GuardLimits,
        quotas: Quotas,
        settings: LogSettings,
        anchored: dict[Place, tuple[int, int, int]],
        entry_proof: Callable[[int, int], EntryProof],
    ) -> None:
        """`block` tells height and time of the newest block; `anchored` is each partition's newest anchor (size,
        transaction, entry); `entry_proof` proves an entry."""
        self._store, self._rules, self._scribe, self._block = store, rules, scribe, block
        self._node, self._key = node, key
        self._limits, self._quotas, self._settings = limits, quotas, settings
        self._lock = threading.RLock()
        self._acts = Acts(rules, scribe, lambda: block()[1], limits)
        self._deposits = Deposits(store.blobs)
        self._anchored = Anchored(store, anchored, entry_proof)
        self._live = Live(limits.live_max, self._deposits.live_permit)
        self._heads = Heads(disk, store, limits.lanes_max, self._deposits.principal_of)
        self._lanes = self._heads.lanes
        self._accepted = self._refused = 0
        self._stored: Counter[bytes] = Counter()  # bytes by tenant
        self._stored_until = 0.0
        self.on_growth: Callable[[], None] = lambda: None  # called when something was stored or anchored

    # Publishing.

    def publish(
        self, requests: Sequence[tuple[Asked, bytes, Sequence[bytes]]]
    ) -> list[list[Outcome] | TallystickError]:
        """Judge and store the parcels of several requests (who asks, the topic named in the request, parcels) under
        one sync."""
        with self._lock:
            judged = [self._judge(asked, token, parcels) for asked, token, parcels in requests]
            try:
                self._sync()
            except Unavailable as error:
                return [error if isinstance(answer, list) else answer for answer in judged]
        self.on_growth()
        return [self._promise(answer) if isinstance(answer, list) else answer for answer in judged]

    def _judge(
        self, asked: Asked, token: bytes, parcels: Sequence[bytes]
    ) -> list[tuple[Parcel, Staged, bool] | NotStored] | TallystickError:
        act = self._acts.of(asked)
        try:
            self._acts.check_new(asked)
            return [self._judge_one(asked, act, token, data) for data in parcels]
        except TallystickError as error:
            return error

    def _judge_one(self, asked: Asked, act: Act, token: bytes, data: bytes) -> tuple[Parcel, Staged, bool] | NotStored:
        try:
            judged = publish(data, act, self._rules, self._live, self._lanes, self._deposits.has_lock, self._limits)
            header = judged.parcel.header
            if token not in [topic.token for topic in header.topics]:
                raise Malformed("parcel: not of the topic that the request names", reason="wrong-topic")
            if isinstance(judged, Repeated):
                staged = self._find(judged)
                again = True
            else:
                staged, again = self._stage(judged, act, asked), False
        except Contradiction as error:
            return self._contradict(error, asked, token)
        except Ahead as error:
            return NotStored(error.reason, str(error), error.expected)
        except Refused as error:
            self._acts.note(asked, token, Right.WRITE, Role.PUBLISHER, reason=error.reason)
            return NotStored(error.reason, str(error))
        return judged.parcel, staged, again

    def _stage(self, accepted: Accepted, act: Act, asked: Asked) -> Staged:
        parcel, header = accepted.parcel, accepted.parcel.header
        self._charge(accepted.permit.tenant, header.body_bytes, asked.now)
        places = [
            Place(topic.token, partition) for topic, partition in zip(header.topics, accepted.partitions, strict=True)
        ]
        staged = self._store.stage(
            places, parcel.hash, parcel.encode_front(), bytes(parcel.body), int(asked.now * 1000)
        )
        self._heads.advance(act.principal, header, staged)
        for place, offset in zip(places, staged.planned, strict=True):
            self._note_stored(asked, place, offset)
        return staged

    def _note_stored(self, asked: Asked, place: Place, offset: int) -> None:
        publisher, partition = Role.PUBLISHER, place.partition
        self._acts.note(asked, place.token, Right.WRITE, publisher, partition=partition, first=offset, end=offset + 1)

    def _find(self, repeated: Repeated) -> Staged:
        """Where the lane's head lies: the same answer as the first time."""
        header = repeated.parcel.header
        return self._heads.where(repeated.permit.principal, header.lane)

    def _is_settled(self, principal: bytes, lane: bytes) -> bool:
        return self._heads.is_settled(principal, lane)

    def _contradict(self, error: Contradiction, asked: Asked, token: bytes) -> NotStored | tuple[Parcel, Staged, bool]:
        """A signed parcel at a sequence that was taken: the same parcel again, or an equivocation."""
        header, principal = error.parcel.header, error.permit.principal
        if not self._is_settled(principal, header.lane):
            raise Unavailable("parcels of this lane are being stored", retry_after_s=0.1)
        places = [
            Place(topic.token, partition) for topic, partition in zip(header.topics, error.partitions, strict=True)
        ]
        offsets = [self._store.partition(place).find(error.parcel.hash) for place in places]
        if None not in offsets:
            staged = Staged(tuple(places), tuple(offset for offset in offsets if offset is not None))
            staged.settle(None)
            return error.parcel, staged, True
        other = self._find_sequence(places[0], principal, header)
        reason = "behind" if other is None else "equivocation"
        if other is not None:
            self._accuse(error.permit, other, error.parcel, int(asked.now * 1000))
        self._acts.note(asked, token, Right.WRITE, Role.PUBLISHER, reason=reason)
        return NotStored(reason, f"sequence {header.sequence} was taken by another parcel")

    def _accuse(self, permit: Permit, first: Parcel, second: Parcel, now_ms: int) -> None:
        """Take both signed headers to the ledger, unless it holds such a pair already."""
        if self._rules.convicted(permit.principal, first.header.lane, first.header.sequence):
            return
        entry = equivocation(
            *(permit.principal, permit.signing_key),
            *(first.header.encoded, first.signature, second.header.encoded, second.signature),
        )
        self._scribe.accuse(Accusation(permit.principal, now_ms, entry))

    def _find_sequence(self, place: Place, principal: bytes, header: Header) -> Parcel | None:
        """The front of the lane's parcel of this sequence, looking back from the end within bounds."""
        for _, other in self._scan_back(place, self._store.end_offset(place)):
            if other.header.lane == header.lane and self._deposits.principal_of(other.header) == principal:
                if other.header.sequence == header.sequence:
                    return other
                if other.header.sequence < header.sequence:
                    return None
        return None

    def _promise(self, answers: list[tuple[Parcel, Staged, bool] | NotStored]) -> list[Outcome]:
        """Promises for everything that is durable now, all under one signature."""
        height, time_ms = self._block()
        stored = [answer for answer in answers if not isinstance(answer, NotStored)]
        self._accepted += len(stored)
        self._refused += len(answers) - len(stored)
        given = [
            Promise(
                parcel.header.instance, self._node, place.token, place.partition, offset, parcel.hash, height, time_ms
            )
            for parcel, staged, _ in stored
            for place, offset in zip(staged.places, staged.offsets, strict=True)
        ]
        promises = iter(sign_promises(given, self._key) if given else ())
        return [
            answer
            if isinstance(answer, NotStored)
            else Stored(tuple(next(promises) for _ in answer[1].places), answer[2])
            for answer in answers
        ]

    # Permits and locks.

    def advertise(self, asked: Asked, token: bytes, data: bytes) -> None:
        self._admit(asked, token, data, Operation.ADVERTISE)

    def subscribe(self, asked: Asked, token: bytes, data: bytes) -> None:
        self._admit(asked, token, data, Operation.SUBSCRIBE)

    def _admit(self, asked: Asked, token: bytes, data: bytes, operation: Operation) -> None:
        """Admit a permit for the topic that the request names: that is the topic its signer can be held to."""
        is_publisher = operation is Operation.ADVERTISE
        right, role = (Right.WRITE, Role.PUBLISHER) if is_publisher else (Right.READ, Role.SUBSCRIBER)
        with self._lock:
            self._acts.check_new(asked)
            try:
                shown = Permit.decode(data)
                if shown.token != token:
                    raise Refused("permit: not for the topic that the request names", reason="wrong-topic")
                if self._deposits.is_undone(shown.identifier):  # the ledger may not have told us yet
                    raise Refused("permit: it was given back", reason="permit-ended")
                permit = (advertise if is_publisher else subscribe)(data, self._acts.of(asked), self._rules, self._live)
                self._stage_blob(permit_name(permit.identifier), data)
                self._acts.note(asked, token, right, role)
                self._sync()
            except Unavailable:
                self._live.remove(shown.identifier)
                raise
            except Refused as error:
                self._acts.note(asked, token, right, role, reason=error.reason)
                raise

    def undo(self, asked: Asked, data: bytes) -> None:
        """Obey an undo order: the permit is gone at once, here and after a restart."""
        with self._lock:
            self._acts.check_new(asked)
            order = UndoOrder.decode(data)
            unsubscribes = order.operation is Operation.SUBSCRIBE
            right, role = (Right.READ, Role.SUBSCRIBER) if unsubscribes else (Right.WRITE, Role.PUBLISHER)
            try:
                (unsubscribe if unsubscribes else unadvertise)(data, self._acts.of(asked), self._rules, self._live)
            except Refused as error:
                self._acts.note(asked, order.token, right, role, reason=error.reason)
                raise
            self._stage_blob(undo_name(order.identifier), data)
            self._sync()

    def put_locks(self, asked: Asked, token: bytes, identifier: bytes, locks: Sequence[bytes]) -> None:
        """Store locks for a publisher with a live advertisement; each lock once, whoever brings it."""
        with self._lock:
            self._acts.check_new(asked)
            act = self._acts.of(asked)
            check_topic(self._rules, act, token, Right.WRITE)
            permit = self._live.get(identifier)
            if permit is None or permit.principal != act.principal or permit.token != token:
                raise Refused("no live advertisement under this permit", reason="not-advertised")
            permit.check_covers(Operation.ADVERTISE, token)
            for data in locks:
                if len(data) > self._limits.lock_bytes_max:
                    raise Refused(f"lock: at most {self._limits.lock_bytes_max} bytes are taken", reason="too-large")
                decode_lock(data)
                self._charge(permit.tenant, len(data), asked.now)
                self._stage_blob(lock_hash(data), data)
            self._sync()

    def _stage_blob(self, name: bytes, data: bytes) -> None:
        self._store.stage_blob(name, data)

    def lock(self, name: bytes) -> bytes:
        return self._deposits.lock(name)

    def permit(self, identifier: bytes) -> bytes:
        return self._deposits.permit(identifier)

    # Fetching.

    def fetch(
        self,
        asked: Asked,
        token: bytes,
        partition: int,
        identifier: bytes,
        offset: int,
        *,
        bytes_max: int,
        stored: bool,
        headers: bool,
        size: int | None,
        end: int | None = None,
    ) -> Fetched:
        """Parcels from `offset` on and below `end`, without their bodies where the permit's labels do not ask for them;
        the fetch is noted. Long polls wait outside, for `on_growth`."""
        permit = self.check_fetch(asked, token, partition, identifier)
        place = Place(token, partition)
        anchored = self._anchored.tree_size(place, size)
        stored_end = self._store.end_offset(place)
        limit = stored_end if stored else anchored
        if end is not None:
            limit = min(limit, end)
        below = self._store.partition(place).below if stored_end else 0
        entries = []
        # A log that has lost leaves of the anchored tree proves nothing under it, and shows nothing as anchored. What
        # was retired is told by the mark, not by an error.
        is_whole = anchored <= stored_end
        if (stored or is_whole) and offset < limit and (headers or offset >= below):
            bytes_max = min(bytes_max, self._settings.fetch_bytes_max)
            if permit.labels and not headers:
                entries = select(partial(self._read, place), Wanted(permit.labels), offset, limit, bytes_max)
            else:
                entries = self._read(place, offset, limit, bytes_max, headers)
        proved = [entry for entry in entries if entry.offset < anchored]
        proof: list[bytes] = []
        if proved and is_whole:
            proof = self._store.partition(place).range_proof(proved[0].offset, proved[-1].offset + 1, anchored)
        if entries:
            last = entries[-1].offset + 1
            with self._lock:
                self._acts.note(
                    asked, token, Right.READ, Role.SUBSCRIBER, partition=partition, first=entries[0].offset, end=last
                )
        return Fetched(
            first=entries[0].offset if entries else offset,
            parcels=tuple(entry.parcel for entry in entries),
            anchored=anchored,
            proof=tuple(proof),
            end=stored_end,
            retired=below,
        )

    def _read(self, place: Place, offset: int, end: int, bytes_max: int, headers: bool) -> list[Entry]:
        return self._store.read(place, offset, bytes_max, headers, below=end)

    def check_fetch(self, asked: Asked, token: bytes, partition: int, identifier: bytes) -> Permit:
        """The subscribe guard's word on a fetch, and the permit that it is under; a refusal is noted."""
        with self._lock:
            try:
                return fetch(token, partition, identifier, self._acts.of(asked), self._rules, self._live)
            except Refused as error:
                self._acts.note(asked, token, Right.READ, Role.SUBSCRIBER, reason=error.reason)
                raise

    def lane_front(
        self,
        asked: Asked,
        token: bytes,
        partition: int,
        identifier: bytes,
        publisher: bytes,
        lane: bytes,
        below: int,
        size: int,
    ) -> LaneFront | None:
        """The last parcel of a lane below an offset, with its place in the tree of `size`."""
        self.check_fetch(asked, token, partition, identifier)
        place = Place(token, partition)
        for offset, parcel in self._scan_back(place, below):
            if parcel.header.lane == lane and self._deposits.principal_of(parcel.header) == publisher:
                anchored = self._anchored.tree_size(place, size)
                proof = self._store.partition(place).inclusion(offset, anchored)
                return LaneFront(offset, parcel.encode_front(), anchored, tuple(proof))
        return None

    def ends(self, token: bytes, partition: int) -> tuple[int, int]:
        """(anchored size, end of the log)."""
        place = Place(token, partition)
        return self._anchored.size(place), self._store.end_offset(place)

    # The ledger.

    def commit(self, now: float) -> bool:
        """Write what waits (operations, anchors of grown partitions) to the ledger; False if there was nothing."""
        with self._lock:
            transaction = self._scribe.prepare(self._grown(), int(now * 1000))
            if transaction is None:
                return False
            self._sync()
        try:
            submitted = self._scribe.submit(transaction)
        except Refused as error:
            with self._lock:
                self._scribe.refused(error, int(now * 1000))
            return True
        with self._lock:
            self._scribe.finish(int(now * 1000))
            for index, entry in enumerate(parse(transaction).entries):
                if is_anchor(entry):
                    self._anchored.remember(Anchor.decode_entry(entry), submitted.number, index)
        self.on_growth()
        return True

    def receipt(self, asked: Asked, token: bytes, partition: int, offset: int) -> Receipt:
        """The proof that the parcel at `offset` is anchored, under the newest published checkpoint."""
        self._check_describe(asked, token)
        return self._anchored.receipt(Place(token, partition), offset)

    def inclusion(
        self, asked: Asked, token: bytes, partition: int, size: int, offsets: Sequence[int]
    ) -> list[list[bytes]]:
        """Paths of several offsets in the tree of `size` parcels, which must be anchored."""
        self._check_describe(asked, token)
        return self._anchored.inclusion(Place(token, partition), size, offsets)

    def verdict(self, asked: Asked, token: bytes, partition: int, offset: int) -> str:
        """Why what lies at an anchored offset was refused; empty if it was not."""
        self._check_describe(asked, token)
        return self._anchored.verdict(Place(token, partition), offset)

    def _check_describe(self, asked: Asked, token: bytes) -> None:
        check_topic(self._rules, self._acts.of(asked), token, Right.DESCRIBE)

    def retirable(self, now_ms: int, bytes_max: int | None, age_max_ms: int | None) -> list[tuple[Place, int, bytes]]:
        """What retention proposes: (place, below, the tree's root at that size), of anchored parcels only."""
        return self._anchored.retirable(now_ms, bytes_max, age_max_ms)

    def retire(self, place: Place, below: int) -> None:
        """Give up bodies; the mark is on the ledger already."""
        self._store.retire(place, below)

    def statistics(self) -> CarrierStatistics:
        with self._lock:
            return CarrierStatistics(
                accepted=self._accepted,
                refused=self._refused,
                operations_waiting=self._scribe.waiting,
                envelopes_remembered=len(self._acts),
                lanes=len(list(self._heads.lanes.items())),
                partitions_anchored=len(self._anchored),
            )

    def store_statistics(self) -> Statistics:
        return self._store.statistics()

    def note_unreadable(self, asked: Asked, token: bytes, reason: str) -> None:
        """A publish request whose parcels could not even be told apart: somebody signed it all the same."""
        with self._lock:
            self._acts.check_new(asked)
            self._acts.note(asked, token, Right.WRITE, Role.PUBLISHER, reason=reason)

    def count_junk(self, reason: str, right: Right) -> None:
        """Count what nobody signed; never waits for the disk, so that junk stalls nobody."""
        self._scribe.count_junk(reason, int(right))

    def close(self) -> None:
        with self._lock:
            self._heads.save()
            self._store.close()

    def _grown(self) -> list[Anchor]:
        return self._anchored.grown()

    # Inside.

    def _charge(self, tenant: bytes, n_bytes: int, now: float) -> None:
        """Hold a tenant to its quota; what it stores is summed up anew from time to time, and counted on between."""
        if now >= self._stored_until:
            self._stored.clear()
            for place in self._store.places():
                topic = self._rules.topic(place.token)
                if topic is not None:
                    self._stored[topic.tenant] += self._bytes_stored(place)
            self._stored_until = now + STORED_S
        self._quotas.charge(tenant, n_bytes, self._stored[tenant], now)
        self._stored[tenant] += n_bytes

    def _bytes_stored(self, place: Place) -> int:
        return self._store.partition(place).bytes_stored()

    def _sync(self) -> None:
        """Make everything staged durable; if that fails, take back all that was built on it."""
        try:
            self._store.sync()
        except Unavailable:
            self._heads.revert()
            self._scribe.revert()
            raise
        self._heads.settle()

    def _headers(self, place: Place, first: int, below: int) -> Iterator[Entry]:
        """All of a range, over as many segments as it lies in."""
        while first < below:
            entries = self._store.read(place, first, 1 << 24, True, below=below)
            yield from entries
            first = entries[-1].offset + 1 if entries else below

    def _scan_back(self, place: Place, below: int) -> Iterator[tuple[int, Parcel]]:
        """Offsets and fronts below an offset, newest first, within bounds."""
        lowest = max(0, below - self._settings.lane_scan_max)
        step = 256
        while below > lowest:
            first = max(lowest, below - step)
            for entry in reversed(list(self._headers(place, first, below))):
                if not is_void(entry.header):
                    yield entry.offset, Parcel.decode_front(entry.header)
            below = first
