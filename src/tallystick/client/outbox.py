"""A publisher's decisions: what becomes of rows and parcels on their way, without threads, clocks, disk or network.

A lane's parcels are one run of sequences. Three marks cut it, and a parcel's state is where its sequence lies:

    0 ……… stored ……… durable ……… sealed
      kept by the   in the spool,  in the spool, not
      carrier       may be sent    yet synced

A parcel leaves when an anchor covers it in each of its topics. The first parcel that is refused stops its lane: the
lane goes on, is sealed again in a new one, or ends.

A promise that no anchor kept is brought to the ledger, if one node gave it. A joint promise is no single relay's word:
in an overlay the first anchor wins, and whoever orders may have lied to those who signed, or be gone. So there the
parcel is sent again, and takes whatever place it gets.

Two hands carry out what is decided, one effect at a time each. The sealing hand takes `next_seal` (`hands.Sealer`), the
sending hand takes `next_send` (`hands.Sender`); whoever drives them (publish.py) brings the outcome back as the event
that stands beside the effect. Nothing here is thread-safe; every call takes microseconds.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tallystick.carriers.carrier import NotStored, Outcome
from tallystick.client.grants import RIGHT_HINT, RIGHT_REASONS
from tallystick.client.lane_keys import OwnPolicy
from tallystick.client.settings import PublisherSettings
from tallystick.client.spool import RowsMark
from tallystick.errors import Forged, Misuse, Refused, TallystickError, Unavailable
from tallystick.parcel.header import LaneRef, TopicRef
from tallystick.parcel.seal import Gap, Packed
from tallystick.record.batch import Batch
from tallystick.trust.promise import JointPromise, Promise

log = logging.getLogger(__name__)

QUOTA_PAUSE_S = 30.0
EPOCH_PAUSE_S = 1.0

HELD_BACK = "held-back"  # the reason of a parcel that must not be sent as it is
DISPLACED = "displaced"  # the reason of a parcel whose place an anchor gave to another

Place = tuple[bytes, int, int]  # token, partition, offset


class PermitsHeld(Protocol):
    """What a publisher holds (`grants.Advertised`)."""

    def is_current(self, topics: Sequence[TopicRef]) -> bool:
        """Whether these epochs are the ones to seal under now."""

    def covers(self, topics: Sequence[TopicRef]) -> bool:
        """Whether the permits of these topics are the ones we hold."""


# ── What callers wait for ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Delivery:
    """What became of rows: the parcel that holds them, and where it lies in each topic."""

    parcel: bytes
    lane: bytes
    sequence: int
    rows: int
    offsets: tuple[Place, ...]
    earlier: bool = False  # an earlier process sealed it, and left it in the spool


OnDelivery = Callable[[TallystickError | None, Delivery | None], None]


@dataclass
class Waiter:
    """Who waits for rows that may travel in several parcels: told once, when all are delivered or the first is not."""

    callbacks: list[OnDelivery]
    left: int = 1  # parcels that are not delivered yet
    earlier: bool = False  # nobody: an earlier process took the rows


# ── What is to be sealed, and what was ───────────────────────────────────────────────────────────────────────────


@dataclass(eq=False)
class Rows:
    """A batch for the lane of this number."""

    number: int
    batch: Batch
    size_bytes: int
    waiter: Waiter
    mark: RowsMark | None = None
    packed: Callable[[], Packed] | None = None  # the same rows packed ahead, as soon as somebody began to


@dataclass(eq=False)
class Commit:
    """The commit parcel of the settings' write. Its caller waits for it."""

    content: bytes
    waiter: Waiter
    parcel: Spooled | None = None  # when it is sealed
    error: TallystickError | None = None


class CloseLanes(NamedTuple):
    """A closing parcel in every lane that has parcels."""


class ChangePolicy(NamedTuple):
    """What is sealed from here on is sealed under another policy of the publisher's own."""

    own: OwnPolicy | None


Order = Rows | Gap | Commit | CloseLanes | ChangePolicy


@dataclass(eq=False)
class Spooled:
    """A sealed parcel on its way."""

    lane: bytes
    sequence: int
    parcel: bytes  # its hash
    rows: int
    size_bytes: int
    topics: tuple[TopicRef, ...]
    locks: tuple[bytes, ...]  # those of the lane key that it was sealed under
    waiter: Waiter
    closes: bool = False
    offsets: tuple[Place, ...] = ()  # where the carrier put it
    unanchored: set[Place] = field(default_factory=set)
    promises: tuple[Promise | JointPromise, ...] = ()
    promised_at: float = 0.0
    is_told: bool = False  # that it was delivered
    is_held_back: bool = False  # sealed under a share lock that relays have no shares of: it must not be sent

    @property
    def is_joint(self) -> bool:
        """Whether an overlay's relays promised it together, in one topic at the least."""
        return any(isinstance(promise, JointPromise) for promise in self.promises)


@dataclass(frozen=True)
class RowCounts:
    """What became of rows: each of them is stored, waits, or was not taken."""

    stored: int = 0  # the carrier has them
    anchored: int = 0  # and an anchor was checked that covers them; these are among the stored
    waiting: int = 0  # in the spool, or not sealed yet
    not_taken: int = 0  # refused for good, or dropped for want of room: nobody sends them again


@dataclass(frozen=True)
class PublisherStatistics:
    """What waits where now, and what was done by this process; numbers of parcels where no rows are named."""

    produced: RowCounts  # the rows that this process was given
    earlier: RowCounts  # those that it found in the spool
    rows: int  # not sealed yet; these are among the produced that wait
    lanes: int
    unsent: int
    unproved: int  # stored, and no anchor was checked that covers them
    spool_bytes: int
    last_error: str
    sealed: int = 0
    stored: int = 0
    anchored: int = 0
    refused: int = 0  # answers, each for the first parcel that was not taken
    rows_dropped: int = 0  # for want of room; a gap says so


@dataclass
class LaneTrack:
    """How far a lane has come. `parcels` are those that no anchor covers yet."""

    parcels: dict[int, Spooled] = field(default_factory=dict)
    stored: int = 0
    durable: int = 0
    sealed: int = 0
    head: LaneRef | None = None  # the last parcel that was stored
    locks_sent: set[bytes] = field(default_factory=set)
    last_s: float = 0.0  # when something was sealed
    closed: bool = False  # takes nothing new
    halted: bool = False  # sends nothing until its refusal is dealt with

    @property
    def unsent(self) -> list[Spooled]:
        return [one for sequence, one in self.parcels.items() if sequence >= self.stored]

    @property
    def unproved(self) -> list[Spooled]:
        """Stored, and not covered by an anchor."""
        return [one for sequence, one in self.parcels.items() if sequence < self.stored]


# ── Effects of the sealing hand ──────────────────────────────────────────────────────────────────────────────────


class SealRun(NamedTuple):
    """Seal these in order, as many as time allows."""

    rows: list[Rows]


class SealBeats(NamedTuple):
    """Seal a heartbeat in each of these lanes: they were silent too long."""

    lanes: list[bytes]


class SealAgain(NamedTuple):
    """Seal what waits in a lane again, in a new lane that names the old one's head."""

    lane: bytes
    waiting: list[Spooled]
    head: LaneRef | None


class EndLane(NamedTuple):
    """Let nothing count that waits in a lane."""

    lane: bytes
    waiting: list[Spooled]
    error: TallystickError
    final: bool  # the publisher ends with it


Sealing = SealRun | SealBeats | SealAgain | EndLane | Gap | Commit | CloseLanes | ChangePolicy


# ── Effects of the sending hand ──────────────────────────────────────────────────────────────────────────────────


class SyncSpool(NamedTuple):
    """Make what is sealed durable, up to these marks by lane."""

    marks: dict[bytes, int]


class SendParcels(NamedTuple):
    """Hand parcels of a lane to the carrier, behind the locks that they name and it lacks."""

    lane: bytes
    topic: TopicRef
    locks: list[bytes]
    parcels: list[Spooled]


class ShowPermits(NamedTuple):
    """Show our permits to the carrier again."""


class RenewPermits(NamedTuple):
    """Ask for new permits: those under which this lane is sealed were revoked."""

    lane: bytes


class LearnEpoch(NamedTuple):
    """Ask for news of epochs: that of this parcel is not taken any more."""

    refused: Spooled


class ForgetCopies(NamedTuple):
    """Delete copies from the spool, and the lane with them if it is done."""

    lane: bytes
    sequences: list[int]
    drop: bool


class CheckAnchor(NamedTuple):
    """Hold parcels, each with its offset, to the anchor of their partition."""

    token: bytes
    partition: int
    parcels: list[tuple[Spooled, int]]


class AccuseNode(NamedTuple):
    """Bring the promise of a parcel to the ledger: no anchor kept it."""

    parcel: Spooled


SendingEffect = (
    SyncSpool | SendParcels | ShowPermits | RenewPermits | LearnEpoch | ForgetCopies | CheckAnchor | AccuseNode
)


class Outbox:
    """Decides for one publisher."""

    def __init__(
        self, settings: PublisherSettings, permits: PermitsHeld, on_delivery: OnDelivery | None = None
    ) -> None:
        self._settings, self._permits, self._on_delivery = settings, permits, on_delivery
        self._orders: deque[Order] = deque()  # in the order they came; one leaves when it is sealed
        self.remedies: deque[Callable[[], SealAgain | EndLane]] = deque()  # come before orders
        self._errands: deque[ShowPermits | RenewPermits | LearnEpoch | ForgetCopies] = deque()  # come before sending
        # Partitions to be held to their anchors now, and then the promises that are overdue.
        self._checks: deque[tuple[bytes, int] | AccuseNode] = deque()
        self._check_at = self._not_before = 0.0
        self._dropped: Gap | None = None
        self.reports: list[tuple[OnDelivery, TallystickError | None, Delivery | None]] = []  # for the caller's thread
        self.counts: Counter[str] = Counter()  # of parcels, as the statistics name them
        self._anchored_rows: Counter[bool] = Counter()  # by whether an earlier process took them
        self._final_rows: Counter[bool] = Counter()  # stored, and never to be anchored
        self._ended_rows: Counter[bool] = Counter()
        self._last_error = ""
        self.tracks: dict[bytes, LaneTrack] = {}
        self.waiting_bytes = 0  # of rows that are not sealed yet
        self.failure: TallystickError | None = None  # something that no retry mends
        self._ending = False  # a refusal ends this publisher: nothing more is asked

    # ── The caller's events ──────────────────────────────────────────────────────────────────────────────────────

    def order(self, *orders: Order) -> None:
        """Take what is to be sealed, behind what came before."""
        self._orders.extend(orders)
        self.waiting_bytes += sum(one.size_bytes for one in orders if isinstance(one, Rows))

    def is_kept(self, commit: Commit) -> bool:
        """Whether a commit parcel is durable. Raises what kept it from being sealed."""
        if commit.error is not None:
            raise commit.error
        one = commit.parcel
        return one is not None and (one.lane not in self.tracks or one.sequence < self.tracks[one.lane].durable)

    def withdraw(self, commit: Commit) -> None:
        """Whoever ordered it does not wait for it any more."""
        if commit in self._orders:
            self._orders.remove(commit)

    def drop(self, rows: int, now_ms: int) -> None:
        """Rows had to be dropped for want of room; a gap says so when there is room again."""
        before = self._dropped or Gap(0, now_ms, now_ms, "")
        self._dropped = Gap(before.rows + rows, before.from_ms, now_ms, "spool full")
        self.counts["rows_dropped"] += rows

    def recover(self, lane: bytes, parcels: Sequence[Spooled], end: int, closed: bool, now: float) -> None:
        """A lane of an earlier process, which goes on at `end`: its parcels are durable, and are sent again."""
        first, end = (parcels[0].sequence, parcels[-1].sequence + 1) if parcels else (end, end)
        by_sequence = {one.sequence: one for one in parcels}
        self.tracks[lane] = LaneTrack(by_sequence, first, end, end, last_s=now, closed=closed)
        self._forget(lane, [])

    # ── Sealing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def next_seal(self, now: float, *, has_room: bool) -> Sealing | None:
        """What the sealing hand does next. `has_room` tells whether the spool takes more than parcels that wait."""
        if self.failure is not None:
            return None
        if self.remedies:
            return self.remedies[0]()
        if self._ending:
            return None
        if self._dropped is not None and has_room:
            self._orders.appendleft(self._dropped)
            self._dropped = None
        if self._orders:
            first = self._orders[0]
            return SealRun(self._rows_ahead()) if isinstance(first, Rows) else first
        spoken_s = now - self._settings.heartbeat_s
        takers = {name: track for name, track in self.tracks.items() if not (track.closed or track.halted)}
        silent = [name for name, track in takers.items() if track.last_s <= spoken_s]
        return SealBeats(silent) if silent else None

    def _rows_ahead(self) -> list[Rows]:
        ahead: list[Rows] = []
        for one in self._orders:
            if not isinstance(one, Rows) or len(ahead) == self._settings.request_parcels_max:
                break
            ahead.append(one)
        return ahead

    def sealed(
        self, effect: Sealing, parcels: Sequence[Spooled], now: float, error: TallystickError | None = None
    ) -> None:
        """Parcels were sealed and written to the spool. Behind an error the rest waits, but for a commit, whose caller
        is told."""
        whole = error is None
        for one in parcels:
            track = self.tracks.setdefault(one.lane, LaneTrack())
            track.parcels[one.sequence] = one
            track.sealed, track.last_s, track.closed = one.sequence + 1, now, one.closes
        self.counts["sealed"] += len(parcels)
        match effect:
            case SealRun(rows):
                for row in rows[: len(parcels)]:
                    self._orders.popleft()
                    self.waiting_bytes -= row.size_bytes
            case SealAgain(lane, waiting) if whole:
                self._leave(lane, waiting)
            case EndLane(lane, waiting, reason, final) if whole:
                for one in waiting:
                    self._ended_rows[one.waiter.earlier] += one.rows
                    self._report(one.waiter, reason, None)
                self._leave(lane, waiting)
                if final:
                    self.fail(reason)
            case Commit():
                effect.parcel, effect.error = next(iter(parcels), None), error
                self._orders.popleft()
            case Gap() | CloseLanes() | ChangePolicy() if whole:
                self._orders.popleft()

    def _leave(self, lane: bytes, waiting: Sequence[Spooled]) -> None:
        """The remedy was applied: nothing that waited in the lane counts there any more."""
        self.remedies.popleft()
        track = self.tracks[lane]
        for one in waiting:
            del track.parcels[one.sequence]
        track.closed, track.halted, track.sealed, track.durable = True, False, track.stored, track.stored
        self._forget(lane, [one.sequence for one in waiting])

    # ── Sending ──────────────────────────────────────────────────────────────────────────────────────────────────

    def next_send(self, now: float, served: Collection[bytes] = ()) -> SendingEffect | None:
        """What the sending hand does next; lanes that were `served` in this round have had their request."""
        if self.failure is None and (unsynced := self.unsynced()) is not None:
            return unsynced
        if self._ending or self.failure is not None or now < self._not_before:
            return None
        if self._errands:
            return self._errands.popleft() if isinstance(self._errands[0], ForgetCopies) else self._errands[0]
        for lane, track in self.tracks.items():
            if lane not in served and not track.halted and track.stored < track.durable:
                return self._request(lane, track)
        return self._next_check(now)

    def unsynced(self) -> SyncSpool | None:
        """What is sealed and may not be sent yet."""
        marks = {lane: track.sealed for lane, track in self.tracks.items() if track.durable < track.sealed}
        return SyncSpool(marks) if marks else None

    def _request(self, lane: bytes, track: LaneTrack) -> SendParcels:
        parcels: list[Spooled] = []
        size = 0
        for sequence in range(track.stored, track.durable):
            one = track.parcels[sequence]
            size += one.size_bytes
            if parcels and size > self._settings.request_bytes_max:
                break
            parcels.append(one)
            if len(parcels) == self._settings.request_parcels_max:
                break
        topic = parcels[-1].topics[0]  # under the newest permit that they are sealed under
        locks = dict.fromkeys(lock for one in parcels for lock in one.locks if lock not in track.locks_sent)
        return SendParcels(lane, topic, list(locks), parcels)

    def synced(self, effect: SyncSpool) -> None:
        for lane, mark in effect.marks.items():
            if lane in self.tracks:
                track = self.tracks[lane]
                track.durable = max(track.durable, min(mark, track.sealed))

    def sent(self, effect: SendParcels, took_locks: bool, outcomes: Sequence[Outcome], now: float) -> None:
        """The carrier answered for each parcel in order, up to the first that it refused. What is wrong with locks that
        it did not take is wrong with the parcels that need them."""
        if took_locks:
            self.tracks[effect.lane].locks_sent.update(effect.locks)
        for one, outcome in zip(effect.parcels, outcomes, strict=False):
            if isinstance(outcome, NotStored):
                self._refused(effect.lane, one, outcome, now)
                return
            track = self.tracks[effect.lane]
            one.promises, one.promised_at = outcome.promises, now
            promised = tuple((promise.token, promise.partition, promise.offset) for promise in outcome.promises)
            one.offsets = outcome.offsets or promised
            one.unanchored = set(one.offsets)
            track.stored, track.head = one.sequence + 1, LaneRef(one.lane, one.sequence, one.parcel)
            self.counts["stored"] += 1
            if outcome.final and self._settings.acks == "anchored":
                self.fail(Misuse("this carrier anchors nothing", hint="acks=stored is all that it can tell"))
                return
            if outcome.final:
                self._let_go(one, track)
            elif self._settings.acks == "stored":
                self._delivered(one)

    def _let_go(self, one: Spooled, track: LaneTrack) -> None:
        """The carrier anchors nothing: what it took is delivered, and its copy goes."""
        self._delivered(one)
        del track.parcels[one.sequence]
        self._final_rows[one.waiter.earlier] += one.rows
        self._forget(one.lane, [one.sequence])

    def pause(self, error: Unavailable, now: float) -> None:
        """Ask nobody for a while."""
        wait_s = self._settings.retry_s if error.retry_after_s is None else error.retry_after_s
        log.info("waiting %.1f s: %s", wait_s, error)
        self._not_before, self._last_error = now + wait_s, str(error)

    # ── Refusals ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _refused(self, lane: bytes, one: Spooled, refusal: NotStored, now: float) -> None:
        """What to do about a refusal, by its reason."""
        track, expected = self.tracks[lane], refusal.expected or 0
        self.counts["refused"] += 1
        self._last_error = refusal.message
        match refusal.reason:
            case "ahead" if expected < track.stored and expected in track.parcels:
                track.stored = expected  # the node has less than we thought: it said so, and the spool still has it
            case "ahead":
                self._end(lane, Forged(f"the node lost parcel {expected}, which it had promised", reason="lost"))
            case reason if reason == DISPLACED:  # and sent again: it waits in the spool
                self.pause(Unavailable(refusal.message), now)
            case reason if reason == HELD_BACK:  # relays are there again, and will take other shares
                self._seal_again(lane)
            case "unknown-lock":
                track.locks_sent.clear()
            case "not-advertised" | "permit-ended" if not self._permits.covers(one.topics):
                self._seal_again(lane)  # under a permit of an earlier process, which has ended
            case "permit-ended":  # of ours: where the right was given back since, a new one is to be had
                track.halted = True
                self._errands.append(RenewPermits(lane))
            case "not-advertised":
                self._errands.append(ShowPermits())
            case "quota":
                self.pause(Unavailable(refusal.message, retry_after_s=QUOTA_PAUSE_S), now)
            case "epoch-over" if self._permits.is_current(one.topics):
                self._errands.append(LearnEpoch(one))
            case "epoch-over":
                self._seal_again(lane)
            case reason if reason in RIGHT_REASONS:
                self._end(lane, Refused(refusal.message, reason=reason, hint=RIGHT_HINT), final=True)
            case reason:  # nothing can follow a parcel that was refused for good: the rest fails, a new lane goes on
                self._end(lane, Refused(refusal.message, reason=reason))

    def shown(self) -> None:
        self._errands.popleft()

    def renewed(self, effect: RenewPermits, refusal: Refused | None) -> None:
        self._errands.popleft()
        if refusal is None:
            self._seal_again(effect.lane)
        else:
            self._end(effect.lane, refusal, final=True)

    def learnt(self, effect: LearnEpoch, now: float) -> None:
        """Seal again, once we know of another epoch."""
        self._errands.popleft()
        if self._permits.is_current(effect.refused.topics):
            unknown = "the authority has not told us of the next epoch yet"
            self.pause(Unavailable(unknown, retry_after_s=EPOCH_PAUSE_S), now)
        else:
            self._seal_again(effect.refused.lane)

    def _seal_again(self, lane: bytes) -> None:
        track = self.tracks[lane]
        track.halted = True  # what is sealed until the hand gets to it waits there too
        self.remedies.append(lambda: SealAgain(lane, track.unsent, track.head))

    def _end(self, lane: bytes, error: TallystickError, *, final: bool = False) -> None:
        """End a lane, or where this is `final` the publisher: without the right every further request, heartbeats too,
        is held against whoever signs it."""
        log.warning("lane %s ends: %s", lane.hex()[:8], error)
        track = self.tracks[lane]
        track.halted, self._ending = True, self._ending or final
        self.remedies.append(lambda: EndLane(lane, track.unsent, error, final))

    # ── Anchors ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _next_check(self, now: float) -> CheckAnchor | AccuseNode | None:
        """Every `anchor_check_s` one partition after the other, and then the promises that are overdue."""
        if now >= self._check_at:
            unproved = self._unproved
            if not unproved:
                return None
            self._check_at = now + self._settings.anchor_check_s
            late = [one for one in unproved if one.promises and now - one.promised_at > self._settings.promise_s]
            for one in late:
                if one.is_joint:
                    self._send_again(one)
            places = sorted({place[:2] for one in unproved for place in one.unanchored})
            self._checks = deque([*places, *(AccuseNode(one) for one in late if not one.is_joint)])
        while self._checks:
            check = self._checks.popleft()
            if isinstance(check, AccuseNode):
                if check.parcel.unanchored:
                    return check
                continue
            found = [(one, place) for one in self._unproved for place in one.unanchored if place[:2] == check]
            if found:
                return CheckAnchor(*check, [(one, offset) for one, (_, _, offset) in found])
        return None

    def _send_again(self, one: Spooled) -> None:
        """It counts as stored no more, and nothing behind it does."""
        track = self.tracks[one.lane]
        track.stored = min(track.stored, one.sequence)

    @property
    def _unproved(self) -> list[Spooled]:
        """Stored, and not covered by an anchor."""
        return [one for track in self.tracks.values() for one in track.unproved]

    def checked(
        self,
        effect: CheckAnchor,
        proved: Sequence[tuple[Spooled, int]],
        judged: tuple[Spooled, NotStored] | None,
        now: float,
    ) -> None:
        """An anchor covers these parcels at these offsets; a copy may go when it is covered in every topic. One may be
        `judged`: nobody promised it, and the notary says that it refused it; or its place is another's."""
        done: dict[bytes, list[int]] = {}
        for one, offset in proved:
            track = self.tracks.get(one.lane)
            if track is None or track.parcels.get(one.sequence) is not one or one.sequence >= track.stored:
                continue  # sealed again, or to be sent again, since it was asked for
            one.unanchored.discard((effect.token, effect.partition, offset))
            if not one.unanchored:
                del track.parcels[one.sequence]
                done.setdefault(one.lane, []).append(one.sequence)
                self.counts["anchored"] += 1
                self._anchored_rows[one.waiter.earlier] += one.rows
                if self._settings.acks == "anchored":
                    self._delivered(one)
        for lane, sequences in done.items():
            self._forget(lane, sequences)
        if judged is not None:
            one, refusal = judged
            track = self.tracks.get(one.lane)
            if track is not None and not track.halted and one in track.unproved:
                self._send_again(one)
                self._refused(one.lane, one, refusal, now)

    def accused(self, effect: AccuseNode, told: bool) -> None:
        if told:
            effect.parcel.promises = ()

    def _forget(self, lane: bytes, sequences: list[int]) -> None:
        track = self.tracks[lane]
        drop = track.closed and not track.parcels
        if drop:
            del self.tracks[lane]
        if drop or sequences:
            self._errands.append(ForgetCopies(lane, sequences, drop))

    # ── What callers are told ─────────────────────────────────────────────────────────────────────────────────────

    def _delivered(self, one: Spooled) -> None:
        """Tell whoever waits, once: it may be sent again."""
        if one.is_told:
            return
        one.is_told, earlier = True, one.waiter.earlier
        self._report(one.waiter, None, Delivery(one.parcel, one.lane, one.sequence, one.rows, one.offsets, earlier))
        one.waiter = Waiter([], earlier=earlier)  # nobody, whatever becomes of it

    def _report(self, waiter: Waiter, error: TallystickError | None, delivery: Delivery | None) -> None:
        if self._on_delivery is not None:
            self.reports.append((self._on_delivery, error, delivery))
        waiter.left -= 1
        if error is not None or waiter.left == 0:
            self.reports.extend((callback, error, delivery) for callback in waiter.callbacks)
            waiter.callbacks = []

    def fail(self, error: TallystickError) -> None:
        """Stop for good: everybody who waits is told."""
        log.error("the publisher stops: %s", error)
        self.failure, self._last_error = error, str(error)
        for track in self.tracks.values():
            for one in track.unsent:
                self._report(one.waiter, error, None)

    @property
    def has_orders(self) -> bool:
        return bool(self._orders or self.remedies)

    @property
    def pending(self) -> int:
        """Orders that wait, and parcels that are not delivered."""
        unanchored = sum(len(track.parcels) for track in self.tracks.values())
        return len(self._orders) + (unanchored if self._settings.acks == "anchored" else self._unsent)

    @property
    def _unsent(self) -> int:
        return sum(track.sealed - track.stored for track in self.tracks.values())

    def statistics(self, rows: int, spool_bytes: int) -> PublisherStatistics:
        """Beside rows that gather and the spool's bytes."""
        rows += sum(one.batch.rows for one in self._orders if isinstance(one, Rows))
        return PublisherStatistics(
            produced=self._row_counts(False, rows, self.counts["rows_dropped"]),
            earlier=self._row_counts(True),
            rows=rows,
            lanes=len(self.tracks),
            unsent=self._unsent,
            unproved=len(self._unproved),
            spool_bytes=spool_bytes,
            last_error=self._last_error,
            **self.counts,
        )

    def _row_counts(self, earlier: bool, unsealed: int = 0, dropped: int = 0) -> RowCounts:
        """Counted where the parcels are now: one that must be sent again is stored no more."""
        anchored, unproved, unsent = self._anchored_rows[earlier], 0, 0
        for track in self.tracks.values():
            unproved += sum(one.rows for one in track.unproved if one.waiter.earlier is earlier)
            unsent += sum(one.rows for one in track.unsent if one.waiter.earlier is earlier)
        stored = anchored + unproved + self._final_rows[earlier]
        return RowCounts(stored, anchored, unsent + unsealed, self._ended_rows[earlier] + dropped)
