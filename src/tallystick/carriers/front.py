"""The front of a node: guards before the storage, promises after it; the same for every carrier that stores.

A publish request goes through these steps (docs/life-of-a-record.md, 3 and 4):

  a. the routing guard: its envelope was not seen before;
  b. the publish guard, parcel by parcel; the lane's head moves on with each that is taken;
  c. the storage brings what was taken to where it will lie, which may be a round trip away: no lock is held;
  d. each gets its offsets, and the act is noted for the ledger;
  e. one sync makes parcels, notes and promises' marks durable, for all requests that wait;
  f. each parcel is answered by a promise, or the reason why not.

Invariant: nothing is promised that is not durable, and nothing durable is unnoted. A parcel that could not be stored
takes its lane's head back, and those behind it in the lane fail with it. If the sync fails, everything since the last
one is taken back, and nobody is promised anything. The front holds no key that opens anything; its own signs promises
and operations.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tallystick.carriers.accounts import Acts, Asked, Deposits, LockBytes, Quotas, permit_name, undo_name
from tallystick.carriers.carrier import (
    Fetch,
    Fetched,
    LaneFront,
    LaneSought,
    NotStored,
    Outcome,
    Stored,
    is_void,
    split_frames,
)
from tallystick.carriers.heads import READS_MAX, Heads, ReadsLeft
from tallystick.carriers.scribe import Accusation, Scribe
from tallystick.carriers.storage import AnchorBook, Entry, Location, Place, Storage, Taken, select
from tallystick.errors import Malformed, Refused, TallystickError, Unavailable
from tallystick.guards.permits import advertise, fetch, subscribe, unadvertise, unsubscribe
from tallystick.guards.publish import Ahead, Contradiction, Repeated, publish
from tallystick.guards.rules import (
    Act,
    GuardLimits,
    Live,
    Rules,
    check_carried,
    check_permit,
    check_principal,
    check_topic,
)
from tallystick.ledger.block import parse
from tallystick.ledger.entries import equivocation
from tallystick.parcel.header import Header
from tallystick.parcel.labels import Wanted
from tallystick.parcel.locks import decode_lock, lock_hash
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.conversation import RequestSigner
from tallystick.runtime.counting import Counts
from tallystick.runtime.router import Buckets, Rate
from tallystick.trust.permit import Operation, Permit, UndoOrder
from tallystick.trust.promise import Anchor, Promise, is_anchor, sign_promises
from tallystick.trust.right import Right

log = logging.getLogger(__name__)

STORED_S = 10.0  # how long a sum of what tenants store is believed
FETCH_BYTES_MAX = 8 << 20  # one answer
ASKING = Rate(per_s=4_096, most=65_536)  # reads for what a principal asks of lanes: a tenth of a core, 2 s at once
ASKING_MAX = 65_536  # principals whose rate is remembered

Judged = tuple[Parcel, Location | Taken, bool]  # where it lies or will, and whether it was there before


@dataclass(frozen=True)
class FrontStatistics:
    accepted: int  # parcels since the start
    refused: Mapping[str, int]  # by reason
    operations_waiting: int
    envelopes_remembered: int
    lanes: int
    partitions_anchored: int
    anchors_aside: int  # partitions that have grown, and whose anchors the ledger does not take from this node


class AsksTooMuch(Unavailable):
    """A principal's questions about lanes have cost what it may use for now."""


class Front:
    """Thread-safe: one lock around guards and notes, never held while the disk syncs; one around what is made durable
    together; and one around publishing, of which there is one at a time. Reads wait for the first alone.

    Whoever holds several took them in the order publishing, syncing, guards and notes.
    """

    def __init__(
        self,
        storage: Storage,
        anchored: AnchorBook,
        rules: Rules,
        scribe: Scribe,
        signer: RequestSigner,
        block: Callable[[], tuple[int, int]],
        quotas: Quotas,
        limits: GuardLimits,
    ) -> None:
        """`signer` is the node; `block` tells height and time of the newest block."""
        self.storage, self.anchored, self.rules, self.scribe = storage, anchored, rules, scribe
        self._signer, self.block, self._quotas, self.limits = signer, block, quotas, limits
        self.lock = threading.RLock()
        self._syncing = threading.Lock()  # taken before `lock`, by whoever needs both
        self._publishing = threading.Lock()
        self._acts = Acts(rules, scribe, lambda: block()[1], limits)
        self.deposits = Deposits(storage.blobs)
        self.live = Live(limits.live_max, self.deposits.live_permit)
        self.heads = Heads(storage, limits.lanes_max, self.deposits.principal_of)
        self._asking: Buckets[bytes] = Buckets(ASKING_MAX)
        self._counting = threading.Lock()
        self._accepted, self._refused = 0, Counts()
        self._stored: Counter[bytes] = Counter()  # bytes by tenant
        self._locks = LockBytes(storage.disk)
        self._stored_until = self._locks_until = 0.0
        self._moved: set[Place] = set()  # partitions that have grown here and are other nodes' now
        self.serve_only = self._acts.serve_only
        self.on_growth: Callable[[], None] = lambda: None  # called when something was stored or anchored

    # Publishing.

    def publish(self, requests: Sequence[tuple[Asked, bytes, bytes]]) -> list[list[Outcome] | TallystickError]:
        """Judge and store the parcels of several requests (who asks, the topic named in the request, framed parcels)
        under one sync."""
        taken: list[tuple[Asked, Taken]] = []
        with self._publishing:
            with self.lock:
                judged = [self._judge(asked, token, body, taken) for asked, token, body in requests]
            self.storage.carry([one for _, one in taken])
            self._store(taken)
        self.on_growth()
        return [self._answer(answer) if isinstance(answer, list) else answer for answer in judged]

    def _judge(
        self, asked: Asked, token: bytes, body: bytes, taken: list[tuple[Asked, Taken]]
    ) -> list[Judged | NotStored] | TallystickError:
        try:
            act = self._acts.of(asked)
            self._acts.check_new(asked)
            return [self._judge_one(asked, act, token, data, taken) for data in self._split(asked, token, body)]
        except TallystickError as error:
            return error

    def _split(self, asked: Asked, token: bytes, body: bytes) -> list[bytes]:
        with self._noting(asked, token, Right.WRITE):  # parcels that cannot be told apart: somebody signed them anyway
            return split_frames(body)

    def _judge_one(
        self, asked: Asked, act: Act, token: bytes, data: bytes, taken: list[tuple[Asked, Taken]]
    ) -> Judged | NotStored:
        lanes = self.heads.lanes
        try:
            judged = publish(data, act, self.rules, self.live, lanes, self.deposits.has_lock, self.limits)
            header = judged.parcel.header
            if token not in [topic.token for topic in header.topics]:
                raise Malformed("parcel: not of the topic that the request names", reason="wrong-topic")
            if isinstance(judged, Repeated):  # the same answer as the first time
                return judged.parcel, self.heads.where(act.principal, header.lane), True
            self.charge(judged.permit.tenant, len(data) * len(header.topics), asked.now)
        except Contradiction as error:
            return self._contradict(error, asked, token)
        except Ahead as error:
            return NotStored(error.reason, str(error), error.expected)
        except Refused as error:
            self._acts.note(asked, token, Right.WRITE, reason=error.reason)
            return NotStored(error.reason, str(error))
        one = Taken(judged.parcel, act.principal, places_of(header, judged.partitions), int(asked.now * 1000))
        self.heads.advance(one)
        taken.append((asked, one))
        return judged.parcel, one, False

    def _store(self, taken: Sequence[tuple[Asked, Taken]]) -> None:
        """Bring what was taken under one sync, and note each act with the offsets that it got."""
        missing: dict[tuple[bytes, bytes], TallystickError] = {}  # lanes: nothing counts behind what is missing
        with self._syncing:
            with self.lock:
                for asked, one in taken:
                    lane = one.principal, one.parcel.header.lane
                    one.error = missing.get(lane) or one.error or self._store_one(asked, one)
                    if one.error is not None:
                        missing[lane] = one.error
            try:
                self._sync()
            except Unavailable as error:
                for _, one in taken:
                    one.error = one.error or error
            with self.lock:
                self._settle_heads([one for _, one in taken])

    def _settle_heads(self, taken: Sequence[Taken]) -> None:
        for one in taken:
            header = one.parcel.header
            if one.error is not None:
                self.heads.take_back(one.principal, header.lane)
            elif all(offset < self.storage.end(place) for place, offset in zip(one.places, one.offsets, strict=True)):
                self.heads.stored(one.principal, header, Location(one.places, one.offsets))

    def _store_one(self, asked: Asked, one: Taken) -> TallystickError | None:
        try:
            self.storage.store(one)
        except Unavailable as error:
            return error
        for place, offset in zip(one.places, one.offsets, strict=True) if self.storage.notes_publishers else ():
            self._acts.note(asked, place.token, Right.WRITE, partition=place.partition, first=offset, end=offset + 1)
        return None

    def _contradict(self, error: Contradiction, asked: Asked, token: bytes) -> Judged | NotStored:
        """A signed parcel at a sequence that was taken: the same parcel again, or an equivocation."""
        header, principal = error.parcel.header, error.permit.principal
        places = places_of(header, error.partitions)
        with self.asking(principal, asked.now) as work:
            found = [self._find(place, principal, error.parcel, work) for place in places]
        same = [offset for offset, parcel in filter(None, found) if parcel.hash == error.parcel.hash]
        if len(same) == len(places):
            return error.parcel, Location(places, tuple(same)), True
        if not self.heads.is_stored(principal, header.lane):
            raise Unavailable("parcels of this lane are being stored", retry_after_s=0.1)
        other = next((parcel for _, parcel in filter(None, found) if parcel.hash != error.parcel.hash), None)
        reason = "behind" if other is None else "equivocation"
        if other is not None:
            self.accuse(error.permit, other, error.parcel, int(asked.now * 1000))
        self._acts.note(asked, token, Right.WRITE, reason=reason)
        return NotStored(reason, f"sequence {header.sequence} was taken by another parcel")

    def accuse(self, permit: Permit, first: Parcel, second: Parcel, now_ms: int) -> None:
        """Take both signed headers to the ledger, unless it holds such a pair already."""
        if self.rules.convicted(permit.principal, first.header.lane, first.header.sequence):
            return
        entry = equivocation(
            *(permit.principal, permit.signing_key),
            *(first.header.encoded, first.signature, second.header.encoded, second.signature),
        )
        self.scribe.accuse(Accusation(permit.principal, now_ms, entry))

    def _find(self, place: Place, principal: bytes, parcel: Parcel, work: ReadsLeft) -> tuple[int, Parcel] | None:
        """Where the parcel lies, or the one that has its sequence."""
        offset = self.storage.underway(place, parcel.hash)
        return self.find_sequence(place, principal, parcel.header, work) if offset is None else (offset, parcel)

    def find_sequence(
        self, place: Place, principal: bytes, header: Header, work: ReadsLeft
    ) -> tuple[int, Parcel] | None:
        """Offset and front of the lane's parcel that has this header's sequence."""
        offset = self.heads.index.find(place, principal, header, work)
        if offset is None:
            return None
        found = self._front_at(place, offset, principal, header.lane, work)
        if found.header.sequence != header.sequence:
            raise self.heads.index.distrust(place, offset)
        return offset, found

    def _front_at(self, place: Place, offset: int, principal: bytes, lane: bytes, work: ReadsLeft) -> Parcel:
        """The front at an offset where the index says that a parcel of the lane lies."""
        work.spend()
        for entry in self.storage.read(place, offset, 1, headers_only=True, below=offset + 1):
            if not is_void(entry.header):
                found = Parcel.decode_front(entry.header)
                if found.header.lane == lane and self.deposits.principal_of(found.header) == principal:
                    return found
        raise self.heads.index.distrust(place, offset)

    @contextmanager
    def asking(self, principal: bytes, now: float) -> Iterator[ReadsLeft]:
        """Hold a principal to its rate of questions about lanes, by the reads that they cost."""
        with self._counting:
            wait_s = self._asking.wait_s(principal, ASKING, 1, now)
        if wait_s:
            raise AsksTooMuch("the principal has more parcels looked up than it may", retry_after_s=wait_s)
        work = ReadsLeft()
        try:
            yield work
        finally:
            with self._counting:
                self._asking.take(principal, ASKING, 1 + READS_MAX - work.reads, now)

    def _answer(self, judged: Sequence[Judged | NotStored]) -> list[Outcome] | TallystickError:
        """Promises for everything in a request, this node's own under one signature; or why some parcel of it is not
        stored."""
        stored = [one for one in judged if not isinstance(one, NotStored)]
        for _, lies, _ in stored:
            if isinstance(lies, Taken) and lies.error is not None:
                return lies.error
        self._accepted += len(stored)
        for one in judged:
            if isinstance(one, NotStored):
                self._refused.add(one.reason)
        if self.scribe.is_quiet:  # nothing will be anchored: there is nothing to promise
            return [one if isinstance(one, NotStored) else Stored((), one[2]) for one in judged]
        height, time_ms = self.block()
        places = [(parcel, *at) for parcel, lies, _ in stored for at in zip(lies.places, lies.offsets, strict=True)]
        joint = [self.storage.promised(place, offset) for _, place, offset in places]
        given = [
            Promise(
                *(parcel.header.instance, self._signer.principal, place.token, place.partition, offset, parcel.hash),
                *(height, time_ms),
            )
            for (parcel, place, offset), one in zip(places, joint, strict=True)
            if one is None
        ]
        own = iter(sign_promises(given, self._signer.key) if given else ())
        promises = iter([one or next(own) for one in joint])
        return [
            one if isinstance(one, NotStored) else Stored(tuple(next(promises) for _ in one[1].places), one[2])
            for one in judged
        ]

    # Permits and locks.

    def admit(self, asked: Asked, token: bytes, data: bytes, operation: Operation) -> None:
        """Admit a permit for the topic that the request names: that is the topic its signer can be held to."""
        is_publisher = operation is Operation.ADVERTISE
        guard, right = (advertise, Right.WRITE) if is_publisher else (subscribe, Right.READ)
        with self.lock:
            self._acts.check_new(asked)
            with self._noting(asked, token, right):
                shown = Permit.decode(data)
                if shown.token != token:
                    raise Refused("permit: not for the topic that the request names", reason="wrong-topic")
                if self.deposits.is_undone(shown.identifier):  # the ledger may not have told us yet
                    raise Refused("permit: it was given back", reason="permit-ended")
                permit = guard(data, self._acts.of(asked), self.rules, self.live)
        try:
            self._deposit({permit_name(permit.identifier): data}, lambda: self._acts.note(asked, token, right))
        except Unavailable:
            self.live.remove(permit.identifier)
            raise

    def undo(self, asked: Asked, data: bytes) -> None:
        """Obey an undo order: the permit is gone at once, here and after a restart."""
        with self.lock:
            self._acts.check_new(asked)
            order = UndoOrder.decode(data)
            is_publisher = order.operation is Operation.ADVERTISE
            guard, right = (unadvertise, Right.WRITE) if is_publisher else (unsubscribe, Right.READ)
            with self._noting(asked, order.token, right):
                guard(data, self._acts.of(asked), self.rules, self.live)
        self._deposit({undo_name(order.identifier): data})

    def put_locks(self, asked: Asked, token: bytes, identifier: bytes, locks: Sequence[bytes]) -> None:
        """Store locks for a publisher with a live advertisement, each lock once, whoever brings it. For new ones the
        permit may not have ended."""
        with self.lock:
            self._acts.check_new(asked)
            act = self._acts.of(asked)
            check_topic(self.rules, act, token, Right.WRITE)
            check_carried(self.rules, token)
            permit = self.live.get(identifier)
            if permit is None or permit.principal != act.principal or permit.token != token:
                raise Refused("no live advertisement under this permit", reason="not-advertised")
            permit.check_covers(Operation.ADVERTISE, token)
            for data in locks:
                if len(data) > self.limits.lock_bytes_max:
                    raise Refused(f"lock: at most {self.limits.lock_bytes_max} bytes are taken", reason="too-large")
                decode_lock(data)
            blobs = {lock_hash(data): data for data in locks}
            new = sum(len(data) for name, data in blobs.items() if not self.deposits.has_lock(name))
            if new:  # whose parcels are stored has left its locks before, and must hear of the parcels first
                check_principal(self.rules, act)
                permit.check_time(act.time_ms)
                check_permit(self.rules, identifier)
            self.charge(permit.tenant, new, asked.now)
        self._deposit(blobs)
        with self.lock:
            self._locks.add(permit.tenant, new)

    def _deposit(self, blobs: Mapping[bytes, bytes], note: Callable[[], None] = lambda: None) -> None:
        """Make blobs durable, and the note of the act that brought them: at other nodes first, if they share any, so
        that nobody is told that something counts which they do not know."""
        self.storage.share(blobs)
        with self._durable():
            for name, data in blobs.items():
                self.storage.deposit(name, data)
            note()

    # Fetching.

    def fetch(self, asked: Asked, wanted: Fetch) -> Fetched:
        """The parcels, without their bodies where the permit's labels do not ask for them; the fetch is noted. Long
        polls wait outside, for `on_growth`."""
        permit = self.check_fetch(asked, wanted)
        place, offset = Place(wanted.token, wanted.partition), wanted.offset
        anchored = self.anchored.tree_size(place, wanted.size)
        stored_end = self.storage.end(place)
        limit = stored_end if wanted.stored else anchored
        if wanted.end is not None:
            limit = min(limit, wanted.end)
        below = self.storage.tree(place).below if stored_end else 0
        entries: list[Entry] = []
        # A log that has lost leaves of the anchored tree proves nothing under it, and shows nothing as anchored. What
        # was retired is told by the mark, not by an error.
        is_whole = anchored <= stored_end
        if (wanted.stored or is_whole) and offset < limit and (wanted.headers or offset >= below):
            bytes_max = min(wanted.bytes_max, FETCH_BYTES_MAX)
            if permit.labels and not wanted.headers:
                entries = select(self.storage, place, Wanted(permit.labels), offset, limit, bytes_max)
            else:
                entries = self.storage.read(place, offset, bytes_max, wanted.headers, below=limit)
        proved = [entry for entry in entries if entry.offset < anchored]
        proof: list[bytes] = []
        if proved and is_whole:
            proof = self.storage.tree(place).range_proof(proved[0].offset, proved[-1].offset + 1, anchored)
        first = entries[0].offset if entries else offset
        if entries:
            end = entries[-1].offset + 1
            with self.lock:
                self._acts.note(asked, place.token, Right.READ, partition=place.partition, first=first, end=end)
        parcels = tuple(entry.parcel for entry in entries)
        return Fetched(first, parcels, anchored, tuple(proof), end=stored_end, retired=below)

    def check_fetch(self, asked: Asked, wanted: Fetch | LaneSought) -> Permit:
        """The subscribe guard's word on a fetch, and the permit that it is under; a refusal is noted."""
        with self.lock, self._noting(asked, wanted.token, Right.READ):
            act = self._acts.of(asked)
            return fetch(wanted.token, wanted.partition, wanted.permit, act, self.rules, self.live)

    def lane_front(self, asked: Asked, sought: LaneSought) -> LaneFront | None:
        """The last parcel of a lane below an offset, with its place in the tree of `size`. A node that has less than
        that cannot say that there is none."""
        self.check_fetch(asked, sought)
        place, publisher, lane = Place(sought.token, sought.partition), sought.publisher, sought.lane
        anchored = self.anchored.tree_size(place, sought.size)
        with self.asking(asked.envelope.principal, asked.now) as work:
            if self.heads.lanes.head(publisher, lane) is None:
                return None
            offset = self.heads.index.last_below(place, publisher, lane, sought.below, work)
            if offset is None:
                return None
            parcel = self._front_at(place, offset, publisher, lane, work)
        proof = self.storage.tree(place).inclusion(offset, anchored)
        return LaneFront(offset, parcel.encode_front(), anchored, tuple(proof))

    def ends(self, token: bytes, partition: int) -> tuple[int, int]:
        """(anchored size, end of the log)."""
        place = Place(token, partition)
        return self.anchored.size(place), self.storage.end(place)

    # The ledger.

    def commit(self, anchors: Sequence[Anchor], now: float) -> bool:
        """Write what waits to the ledger, operations and these anchors. Returns False if there was nothing."""
        if now >= self._locks_until:
            self._locks.save()
            self._locks_until = now + STORED_S
        with self._durable():
            transaction = self.scribe.prepare(self._own(anchors), int(now * 1000))
        if transaction is None:
            return False
        try:
            submitted = self.scribe.submit(transaction)
        except Refused as error:
            with self.lock:
                self.scribe.refused(error, int(now * 1000))
            return True
        with self.lock:
            self.scribe.finish(int(now * 1000))
            for index, entry in enumerate(parse(transaction).entries):
                if is_anchor(entry):
                    self.anchored.remember(Anchor.decode_entry(entry), submitted.number, index)
        self.on_growth()
        return True

    def _own(self, anchors: Sequence[Anchor]) -> list[Anchor]:
        """The anchors of partitions that are still this node's; the others stand aside, and the log says so once."""
        places = [Place(one.token, one.partition) for one in anchors]
        moved = {place for place in places if not self.rules.carries(*place)}
        for place in moved - self._moved:
            log.error("%s: the ledger names other nodes for it: what lies here above its anchor stays without", place)
        self._moved = moved
        return [one for one, place in zip(anchors, places, strict=True) if place not in moved]

    def described(self, asked: Asked, token: bytes) -> AnchorBook:
        """What can be proved of a topic, for whoever may describe it."""
        check_topic(self.rules, self._acts.of(asked), token, Right.DESCRIBE)
        return self.anchored

    def statistics(self) -> FrontStatistics:
        """Counters, without the lock: whoever watches a node that is busy must not wait for it, nor hold it up."""
        return FrontStatistics(
            accepted=self._accepted,
            refused=self._refused.snapshot(),
            operations_waiting=self.scribe.waiting,
            envelopes_remembered=len(self._acts),
            lanes=len(self.heads),
            partitions_anchored=len(self.anchored),
            anchors_aside=len(self._moved | self.scribe.aside),
        )

    def close(self) -> None:
        with self.syncing():
            self.heads.save()
            self._locks.save()
            self.storage.close()

    # Inside.

    @contextmanager
    def _noting(self, asked: Asked, token: bytes, right: Right) -> Iterator[None]:
        """Write a refusal down as an act of whoever asked."""
        try:
            yield
        except Refused as error:
            self._acts.note(asked, token, right, reason=error.reason)
            raise

    def charge(self, tenant: bytes, n_bytes: int, now: float) -> None:
        """Hold a tenant to its quota; what it stores is summed up anew from time to time, and counted on between."""
        if now >= self._stored_until:
            self._stored = self._locks.by_tenant.copy()
            for place in self.storage.places():
                topic = self.rules.topic(place.token)
                if topic is not None:
                    self._stored[topic.tenant] += self.storage.bytes_stored(place)
            self._stored_until = now + STORED_S
        self._quotas.charge(tenant, n_bytes, self._stored[tenant], now)
        self._stored[tenant] += n_bytes

    @contextmanager
    def _durable(self) -> Iterator[None]:
        """What is deposited and noted within is durable after it, or an error says that nothing of it is."""
        with self._syncing:
            with self.lock:
                yield
            self._sync()

    def _sync(self) -> None:
        """Make everything durable that was stored, deposited and noted; if that fails, nothing was noted either, nor
        what was noted meanwhile. The disk may take its time: the lock of guards and notes is not held."""
        try:
            self.storage.sync()
        except Unavailable:
            with self.lock:
                self.scribe.revert()
            raise

    @contextmanager
    def syncing(self) -> Iterator[None]:
        """For whoever syncs the storage itself: nobody else has anything on its way there meanwhile."""
        with self.storing(), self.lock:
            yield

    @contextmanager
    def storing(self) -> Iterator[None]:
        """As `syncing`, for who takes the lock of guards and notes itself, and leaves it while the disk works."""
        with self._syncing:
            yield


def places_of(header: Header, partitions: Sequence[int]) -> tuple[Place, ...]:
    return tuple(Place(topic.token, partition) for topic, partition in zip(header.topics, partitions, strict=True))
