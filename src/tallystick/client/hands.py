"""A publisher's two hands, which carry out what its outbox decides. One thread at a time uses each.

`Sealer`, step 2 of docs/life-of-a-record.md: orders become parcels of its lanes, in the spool. Invariants: a sequence
of a lane is sealed once, and counts when it is appended; nothing is sealed under a key that a restart would not find; a
lane is on record in the spool before anything is sealed in it; from which sequence on nothing of a lane counts is one
durable step, so that no row counts twice whenever the process dies.

Half of sealing is done ahead: columns are laid out and compressed while the parcel before them is sealed. That half
needs neither the lane's keys nor its sequence, so another thread can do it, on another core.

`Sender`, steps 3 and 4: parcels go to the carrier, what it promises is checked, and what was stored is held to the
ledger. What follows from an answer is decided in outbox.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from tallystick.carriers.carrier import NotStored, Outcome, Sharing
from tallystick.client import outbox as effects
from tallystick.client.grants import Advertised
from tallystick.client.lane_keys import Labelling, LaneShare, OwnLane, OwnPolicy, draw_secrets, open_lane, policy_state
from tallystick.client.outbox import Outbox, Rows, Spooled, Waiter
from tallystick.client.settings import PublisherSettings
from tallystick.client.spool import RowsMark, Spool, UnsureSpool
from tallystick.client.ties import Ties
from tallystick.crypto.blocks import Coding
from tallystick.crypto.coding import encode as encode_body
from tallystick.crypto.merkle import leaf_hash, verify_inclusion
from tallystick.errors import Forged, Refused, Unavailable, Withheld
from tallystick.ledger import entries
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.parcel.header import LaneRef, ParcelKind, TopicRef
from tallystick.parcel.keys import KnownKeys
from tallystick.parcel.open import open_batch, open_content
from tallystick.parcel.parcel import Parcel, VerifiedParcel
from tallystick.parcel.seal import Gap, Packed, pack
from tallystick.parcel.verify import verify_own
from tallystick.record.schema import Schema
from tallystick.trust.promise import JointPromise, Promise

if TYPE_CHECKING:
    from tallystick.carriers.overlay.known_plans import KnownPlans

log = logging.getLogger(__name__)

HELD_S = 0.02  # how long a run may take, some parcels: what was sealed is synced and sent behind it
AHEAD = 3  # batches: one that is sealed, one that is packed, one that waits for that


class Sealer:
    """Seals into the lanes of one publisher, opening and refreshing them as need be."""

    def __init__(
        self,
        ties: Ties,
        advertised: Advertised,
        labelling: Labelling,
        spool: Spool,
        settings: PublisherSettings,
        *,
        background: bool,
    ) -> None:
        self._ties, self._advertised, self._labelling = ties, advertised, labelling
        self._spool, self._settings = spool, settings
        self._lanes: dict[bytes, OwnLane] = {}  # in the order of their numbers, closed ones among them
        self._pool = ThreadPoolExecutor(1, "publisher packs") if background else None
        self.own_policy: OwnPolicy | None = None  # counts from the next parcel on

    def recover(self) -> Iterator[tuple[bytes, list[Spooled], int, bool]]:
        """Take up the spool of an earlier process: its lanes go on, its parcels are sent again. Returns of each lane
        its name, its parcels that no anchor covers, where it goes on, and whether it is closed."""
        kept = {name: self._kept_lane(name) for name in self._spool.lanes()}
        for name, own in kept.items():
            if [topic.token for topic in own.lane.topics] != self._advertised.tokens:
                continue  # of another publisher that shares this folder
            old = kept.get(own.replaces) if own.replaces is not None else None
            if old is not None and old.end is None:
                self._spool.drop_lane(name)  # the old lane still counts: nothing of this one was sent
                continue
            self._lanes[name] = own
            yield name, list(self._kept_parcels(own)), own.lane.sequence, own.closed

    def _kept_lane(self, name: bytes) -> OwnLane:
        newest = self._spool.newest(name)
        record = self._spool.lane_record(name)
        return OwnLane.decode(self._ties.identity, record, None if newest is None else newest.header)

    def _kept_parcels(self, own: OwnLane) -> Iterator[Spooled]:
        name, locks = own.lane.lane, tuple(lock for one in own.secrets for lock in one.locks)
        for sequence in self._spool.kept(name):
            if own.end is not None and sequence >= own.end:
                self._spool.forget(name, sequence)
                continue
            data = self._spool.read(name, sequence)
            parcel = Parcel.decode(data)
            header, rows = parcel.header, own.rows_of(parcel, self._ties.identity)
            waiter = Waiter([], earlier=True)
            one = Spooled(name, sequence, header.hash, rows, len(data), header.topics, locks, waiter)
            one.is_held_back = own.is_held_back(header)
            yield one

    def carry_out(self, effect: effects.Sealing, sealed: list[Spooled]) -> None:
        """Do what is asked. What was sealed is in `sealed`, also where `Unavailable` is raised behind it."""
        match effect:
            case effects.SealRun(rows):
                self._seal_run(rows, sealed)
            case effects.SealBeats(lanes):
                for name in lanes:
                    own = self._refreshed(self._lanes[name])
                    sealed.append(self._seal(own, own.lane.seal_heartbeat, checkpoint=self._ties.view.accepted))
            case effects.SealAgain():
                sealed += self._seal_again(effect)
            case effects.EndLane(lane, waiting):
                self._end(self._lanes[lane], waiting)
            case Gap():
                own = self._lane(0)
                sealed.append(self._seal(own, own.lane.seal_gap, effect))
            case effects.Commit(content, waiter):
                own = self._lane(0)
                sealed.append(self._seal(own, own.lane.seal_commit, content, waiter=waiter, **self._marks))
            case effects.CloseLanes():
                for own in self._active:
                    if own.lane.sequence:
                        sealed.append(self._seal(self._refreshed(own), own.lane.seal_close))
                        own.closed = True
            case effects.ChangePolicy(policy):
                self.own_policy = policy

    def last_commit(self) -> tuple[bytes, int] | None:
        """The write and batch of the last commit parcel that was sealed here, by whichever process; as far as no other
        parcel followed it."""
        for own in self._active:
            newest = self._spool.newest(own.lane.lane)
            if newest is not None and newest.header.kind is ParcelKind.COMMIT:
                return newest.header.write
        return None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    # ── Parcels ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _seal_run(self, rows: Sequence[Rows], sealed: list[Spooled]) -> None:
        until = self._ties.clock.monotonic() + HELD_S
        for number, one in enumerate(rows):
            for ahead in rows[number : number + AHEAD]:
                ahead.packed = ahead.packed or self._pack(ahead)
            sealed.append(self._seal_rows(one))
            if self._ties.clock.monotonic() >= until:
                return

    def _pack(self, rows: Rows) -> Callable[[], Packed]:
        packing = partial(pack, rows.batch, self._settings.codec)
        is_small = rows.size_bytes < self._settings.handed_over_bytes_min
        return packing if self._pool is None or is_small else self._pool.submit(packing).result

    def _seal_rows(self, rows: Rows) -> Spooled:
        own = self._lane(rows.number)
        batch = rows.batch.upgraded(own.lane.schema)  # the topic's schema may have grown while the rows waited
        labels = self._labelling.labels(batch, own.lane.topics)
        assert rows.packed is not None
        content = rows.packed() if batch is rows.batch else batch
        marks = {"labels": labels, **self._marks}
        return self._seal(own, own.lane.seal, content, rows=batch.rows, waiter=rows.waiter, mark=rows.mark, **marks)

    @property
    def _marks(self) -> dict[str, Any]:
        """What a header says beside its content: the checkpoint that we accepted, and the write it is pending for."""
        return {"checkpoint": self._ties.view.accepted, "write": self._settings.write}

    def _seal(
        self,
        own: OwnLane,
        seal: Callable[..., Parcel],
        *content: object,
        rows: int = 0,
        waiter: Waiter | None = None,
        mark: RowsMark | None = None,
        **options: Any,
    ) -> Spooled:
        """Seal the next parcel of a lane, with so many rows, and append it to the spool. If the disk does not take it,
        nobody will ever see it, and the lane stays where it was."""
        lane, ties = own.lane, self._ties
        before, lane.code = (lane.sequence, lane.previous), self._code
        try:
            parcel = seal(*content, now_ms=self._now_ms, entropy=ties.entropy.bytes(32), **options)
            self._spool.append(parcel, mark)
        except Unavailable:
            lane.sequence, lane.previous = before
            raise
        size = len(parcel.header.encoded) + len(parcel.body) + 80
        own.parcels += 1
        own.size_bytes += size
        header, locks = parcel.header, own.secrets[-1].locks
        closes = header.kind is ParcelKind.CLOSE
        waiter = waiter or Waiter([])
        one = Spooled(lane.lane, header.sequence, parcel.hash, rows, size, header.topics, locks, waiter, closes)
        one.is_held_back = bool(header.groups) and own.secrets[-1].is_held_back
        return one

    def _code(self, body: bytes) -> Coding | None:
        """The marks of a large body's coded blocks, where the carrier takes content apart."""
        at_least, sharing = self._settings.coded_bytes, self._ties.sharing
        if not at_least or len(body) < at_least or sharing is None:
            return None
        try:
            split = sharing.parts(len(body))
        except (Unavailable, Withheld):  # relays carry it whole
            return None
        return None if split is None else encode_body(body, *split).coding

    # ── Lanes ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _active(self) -> list[OwnLane]:
        """Those that take parcels, by number."""
        return [own for own in self._lanes.values() if not own.closed]

    def _lane(self, number: int) -> OwnLane:
        """The lane with this number, opened or refreshed as need be."""
        while number >= len(active := self._active):
            self._add(self._open_lane())
        return self._refreshed(active[number])

    def _add(self, own: OwnLane) -> None:
        """Take up a new lane, and let go of those that are done: the sender has dropped them from the spool."""
        kept = set(self._spool.lanes())
        self._lanes = {name: one for name, one in self._lanes.items() if name in kept} | {own.lane.lane: own}

    def _open_lane(self, replaces: bytes | None = None, head: LaneRef | None = None) -> OwnLane:
        """A new lane, on record before anything is sealed in it."""
        ties, held, codec = self._ties, self._advertised.held, self._settings.codec
        locks: dict[str, Any] = {"own": self.own_policy, "sharing": self._sharing}
        lane, secrets = open_lane(ties.identity, held, self._now_ms, ties.entropy, codec=codec, continues=head, **locks)
        own = OwnLane(lane, [secrets], replaces=replaces)
        self._record(own)
        return own

    def _record(self, own: OwnLane) -> None:
        """Write down what a restart must know of a lane."""
        self._spool.put_lane(own.lane.lane, own.encode(self._ties.identity, self._ties.entropy))

    def _refreshed(self, own: OwnLane) -> OwnLane:
        """The lane under new keys where the epoch, the erasure period, a policy, the attribute epoch, the schema or the
        overlay's plan changed, or the old ones served long enough."""
        identity, settings, held, now_ms = self._ties.identity, self._settings, self._advertised.held, self._now_ms
        lane, schema = own.lane, self._advertised.schema
        same_epoch = self._advertised.is_current(lane.topics)
        period = held[0].erasure_key(identity.principal, now_ms).period if held[0].is_erasable else None
        worn = own.parcels >= settings.lane_parcels_max or own.size_bytes >= settings.lane_bytes_max
        policies = policy_state(held, schema, self.own_policy, now_ms)
        same_locks = (period, policies) == (own.secrets[-1].period, own.secrets[-1].policies)
        may_stay = schema.hash == lane.schema.hash and same_epoch and same_locks
        if may_stay and not worn and not self._is_share_over(own.secrets[-1].share, lane.topics):
            return own
        drawn = self._ties.entropy, self.own_policy, self._sharing
        fresh = draw_secrets(identity, lane.lane, held, schema, now_ms, *drawn)
        if may_stay and fresh.is_held_back and not own.secrets[-1].is_held_back:
            return own  # no relay is there to take new shares: what relays have serves on
        before = lane.schema, lane.topics, lane.keys, own.secrets
        lane.change_schema(schema)
        lane.refresh(fresh.topics, fresh.keys)
        own.secrets = [*own.secrets, fresh] if self._spool.kept(lane.lane) else [fresh]
        try:
            self._record(own)
        except Unavailable:  # nothing may be sealed under a key that a restart would not find
            lane.schema, lane.topics, lane.keys, own.secrets = before
            raise
        own.parcels = own.size_bytes = 0
        return own

    @property
    def _sharing(self) -> Sharing | None:
        return self._ties.sharing if self._settings.share_locks else None

    def _is_share_over(self, share: LaneShare | None, topics: Sequence[TopicRef]) -> bool:
        """Whether a lane key needs a share lock that it has not, or another one: relays forget shares in time."""
        if self._sharing is None:
            return share is not None
        if share is not None and self._now_ms - share.created_ms > self._settings.share_lock_s * 1000:
            return True
        try:
            version = self._sharing.version_for([topic.token for topic in topics])
        except (Unavailable, Withheld):  # the one at hand will do
            return False
        return version != (None if share is None else share.plan)

    # ── What must be sealed again, and what is given up ──────────────────────────────────────────────────────────

    def _seal_again(self, effect: effects.SealAgain) -> list[Spooled]:
        """Open our own parcels that wait and seal their rows again. The old sequences are never sealed twice, and no
        row counts twice: the new lane is written whole before the old one is ended, which is one durable step. If this
        process dies before it, the next one finds that the old lane was not ended and drops the new one, of which
        nothing was sent."""
        old = self._lanes[effect.lane]
        fresh = self._open_lane(effect.lane, effect.head)
        ring, keys = old.ring, self._ties.identity.own_keys
        copies: list[Spooled] = []
        try:
            for one in effect.waiting:
                parcel = verify_own(Parcel.decode(self._spool.read(effect.lane, one.sequence)), keys)
                copies += self._seal_copy(fresh, parcel, ring, old.lane.schema, one.waiter)
            self._spool.sync()
            self._end(old, effect.waiting)
        except UnsureSpool:
            raise
        except Unavailable:
            self._spool.drop_lane(fresh.lane.lane)
            raise
        self._add(fresh)
        return copies

    def _seal_copy(
        self, fresh: OwnLane, parcel: VerifiedParcel, ring: KnownKeys, schema: Schema, waiter: Waiter
    ) -> Iterator[Spooled]:
        header = parcel.header
        match header.kind:
            case ParcelKind.DATA:
                batch = open_batch(parcel, ring, schema).upgraded(fresh.lane.schema)
                labels = self._labelling.labels(batch, fresh.lane.topics)
                marks: dict[str, Any] = {"labels": labels, "write": header.write}
                yield self._seal(fresh, fresh.lane.seal, batch, rows=batch.rows, waiter=waiter, **marks)
            case ParcelKind.COMMIT if header.write is not None:
                content = open_content(parcel, ring)
                yield self._seal(fresh, fresh.lane.seal_commit, content, waiter=waiter, write=header.write)
            case ParcelKind.GAP:
                yield self._seal(fresh, fresh.lane.seal_gap, Gap.decode(open_content(parcel, ring)))

    def _end(self, own: OwnLane, waiting: Sequence[Spooled]) -> None:
        """Let nothing that waits in a lane count, here and after a restart."""
        own.end = waiting[0].sequence if waiting else own.lane.sequence
        try:
            self._record(own)
        except Unavailable:
            own.end = None
            raise
        own.closed = True

    @property
    def _now_ms(self) -> int:
        return int(self._ties.clock.now() * 1000)


class Sender:
    """Asks carrier, authority and ledger on behalf of one publisher."""

    def __init__(self, ties: Ties, advertised: Advertised, spool: Spool, outbox: Outbox) -> None:
        self._ties, self._advertised, self._spool, self._outbox = ties, advertised, spool, outbox
        self._instance = ties.identity.instance
        self._keys = {node.subject: node.verify_key for node in ties.identity.nodes}
        self._vow: tuple[bytes, bytes, bytes] | None = None  # the last signature that held: node, signature, message
        self._plans: KnownPlans | None = None

    def carry_out(self, effect: effects.SendingEffect) -> Callable[[], None]:
        """Do what is asked. Returns the event that tells the outbox what came of it."""
        outbox, clock = self._outbox, self._ties.clock
        match effect:
            case effects.SyncSpool():
                self._spool.sync()
                return partial(outbox.synced, effect)
            case effects.SendParcels():
                took_locks, outcomes = self._send(effect)
                return partial(outbox.sent, effect, took_locks, outcomes, clock.monotonic())
            case effects.ShowPermits():
                self._advertised.show()
                return outbox.shown
            case effects.RenewPermits():
                try:
                    self._advertised.obtain_again()
                except Refused as refusal:  # the right is gone
                    return partial(outbox.renewed, effect, refusal)
                return partial(outbox.renewed, effect, None)
            case effects.LearnEpoch():
                self._advertised.update()
                return partial(outbox.learnt, effect, clock.monotonic())
            case effects.CheckAnchor():
                proved, judged = self._check(effect)
                return partial(outbox.checked, effect, proved, judged, clock.monotonic())
            case effects.AccuseNode():
                return partial(outbox.accused, effect, self._accuse(effect))
            case effects.ForgetCopies(lane, sequences, drop):  # what cannot be deleted now does no harm
                for sequence in sequences:
                    self._spool.forget(lane, sequence)
                if drop:
                    self._spool.drop_lane(lane)
        return _say_nothing

    def _send(self, effect: effects.SendParcels) -> tuple[bool, list[Outcome]]:
        """Whether the locks were taken, and the answer for each parcel, up to the first that was refused. Promises are
        held to their parcels before they count."""
        token, carrier, took_locks = effect.topic.token, self._ties.carrier, True
        sendable = self._sendable(effect.parcels)
        if not sendable:
            if self._ties.sharing is not None:
                self._ties.sharing.check()
            return False, [NotStored(effects.HELD_BACK, "relays had no shares of its lane key")]
        try:
            if effect.locks:
                carrier.put_locks(token, effect.topic.permit, effect.locks)
        except Refused as error:
            if error.reason != "permit-ended":
                return False, [NotStored(error.reason, str(error))]
            took_locks = False  # the first new parcel hears the same; what is stored already must not be sealed again
        parcels = [self._spool.read(one.lane, one.sequence) for one in sendable]
        outcomes: list[Outcome] = []
        for one, outcome in zip(sendable, carrier.publish(token, parcels), strict=False):
            outcomes.append(outcome)
            if isinstance(outcome, NotStored):
                break
            if not outcome.offsets and not outcome.final:  # where nobody promises, the anchor alone will tell
                self._check_promises(one, outcome.promises)
        return took_locks, outcomes

    def _sendable(self, parcels: Sequence[Spooled]) -> list[Spooled]:
        """Those before the first that is sealed under a share lock of which relays have no shares."""
        return list(takewhile(lambda one: not one.is_held_back, parcels))

    def _check_promises(self, one: Spooled, promises: Sequence[Promise | JointPromise]) -> None:
        """Hold the node to its word: signed, for this parcel, for each of its topics. A joint promise is signed by
        enough relays of the virtual node that the ledger entrusts the topic to."""
        if [promise.token for promise in promises] != [topic.token for topic in one.topics]:
            raise Forged("the node's promises are not for the parcel's topics", reason="bad-promise")
        for promise in promises:
            if promise.parcel != one.parcel or promise.instance != self._instance:
                raise Forged("the node's promise is for another parcel", reason="bad-promise")
            if isinstance(promise, JointPromise):
                self._known_plans.check_promise(promise)
                continue
            key = self._keys.get(promise.node)
            if key is None:
                raise Forged("the node's promise is another's", reason="bad-promise")
            vow = (promise.node, *promise.signed_statement())
            if vow != self._vow:  # the promises of one answer share a signature
                promise.verify(key)
                self._vow = vow

    @property
    def _known_plans(self) -> KnownPlans:
        from tallystick.carriers.overlay.known_plans import KnownPlans  # few publish to an overlay

        self._plans = self._plans or KnownPlans(self._ties.view, self._ties.clock)
        return self._plans

    def _check(self, effect: effects.CheckAnchor) -> tuple[list[tuple[Spooled, int]], tuple[Spooled, NotStored] | None]:
        """What the partition's proved anchor covers, and the first parcel of which the notary says that it refused it.
        One proved anchor, one path per parcel. Where something else is anchored in a promised place, a joint promise is
        told to be displaced; for another's `Forged` is raised."""
        anchor = self._ties.view.row(ANCHORS(effect.token, effect.partition))
        below = [(one, offset) for one, offset in effect.parcels if anchor is not None and offset < anchor.size]
        if anchor is None or not below:
            return [], None
        place, carrier = (effect.token, effect.partition), self._ties.carrier
        proved: list[tuple[Spooled, int]] = []
        paths = carrier.inclusion(*place, anchor.size, [offset for _, offset in below])
        for (one, offset), path in zip(below, paths, strict=True):
            try:
                verify_inclusion(leaf_hash(one.parcel), offset, anchor.size, path, anchor.root)
            except Forged:
                if one.is_joint:
                    message = f"offset {offset} was promised, and went to another parcel"
                    return proved, (one, NotStored(effects.DISPLACED, message))
                reason = "" if one.promises else carrier.verdict(*place, offset)
                if not reason:
                    raise
                return proved, (one, NotStored(reason, f"the notary refused offset {offset}: {reason}"))
            proved.append((one, offset))
        return proved, None

    def _accuse(self, effect: effects.AccuseNode) -> bool:
        """Bring a promise to the ledger: the node signed it, and the contract can judge it. Whether that was done; the
        accused node carries the accusation, and may be away."""
        if self._ties.author is None:
            return False
        promise = next(one for one in effect.parcel.promises if isinstance(one, Promise))
        log.error("offset %d was promised and is not anchored", promise.offset)
        try:
            self._ties.author.write(entries.broken_promise(promise))
        except Refused as error:
            log.warning("the ledger does not hold the promise broken: %s", error)
        return True


def _say_nothing() -> None:
    """What needs no answer."""
