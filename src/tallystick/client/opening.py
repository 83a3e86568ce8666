"""A subscriber's keys and schemas, and what it opens with them; what it lacks it asks the authority for, once.

A column group behind a policy that our attributes do not satisfy is closed: its columns are left out, by name, and the
others are as certain as ever, since each group is verified in full on its own.

A subscriber's interest: the rows of an opened batch that it means, exactly.

Labels spare a subscriber whole parcels, never rows, and they may let through what is not wanted; what is delivered is
decided here, after opening, whatever the topic has. The interest is read anew where the topic's schema has grown: a
column may be wider then, and its values are compared as what they are.

A reader's side (`AttributeHolder`): its attribute key is asked for when a lock needs it, taken on from epoch to epoch,
and kept in memory only.

A closed column group brings the question up with every parcel, so the authority is asked once for each attribute epoch
and again after `again_s`: attributes may have been granted, or withdrawn, since. While they stay as they are the key at
hand stays the very same object, which is how a key ring knows that what it was refused is still refused.

Clocks differ: a publisher may seal under an epoch that has just begun, or is about to, and the authority not hand out
its part yet. Within `SKEW_MS` of an epoch's beginning its absence is no refusal, it is waited out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from tallystick.authority.client import AuthorityClient
from tallystick.authority.grant import Grant
from tallystick.carriers.carrier import Carrier, Matched, Sharing
from tallystick.client.grants import Held
from tallystick.client.settings import SubscriberSettings
from tallystick.client.ties import ReaderTies
from tallystick.crypto import hpke
from tallystick.crypto.abe.group import available
from tallystick.crypto.abe.keys import AttributeKey
from tallystick.errors import CannotOpen, Refused, Unavailable
from tallystick.later import np
from tallystick.ledger.contracts.epochs import ERASURES
from tallystick.parcel.header import Header, ParcelKind
from tallystick.parcel.keys import KeyRing, KnownKeys, LaneKeys
from tallystick.parcel.locks import MissingKey, MissingShare, PolicyPlace
from tallystick.parcel.open import open_batch, open_columns, open_content
from tallystick.parcel.parcel import NoRoom, Oversized, Room, VerifiedParcel, describe
from tallystick.policy.content import read_interest, wanted_rows
from tallystick.policy.formula import Formula
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.runtime.sources import Clock

T = TypeVar("T")

log = logging.getLogger(__name__)

SKEW_MS = 10_000  # how far clocks may differ about when an attribute epoch begins
SHARE_MOMENT_S = 0.5  # how long opening waits for shares; then it is tried again later
NULL_BYTES = 8  # of a value in a column that older rows lack

_Columns = tuple[Batch | None, tuple[int, ...]]


@dataclass(frozen=True)
class Opened:
    """The columns of a parcel that opened, and the names of those that did not; no batch where none did."""

    batch: Batch | None
    closed: tuple[str, ...]


class Opener:
    """Opens the parcels of one topic. `held` is the grant with what came since, `ring` has its keys."""

    def __init__(
        self, ties: ReaderTies, held: Held, settings: SubscriberSettings, pool: ThreadPoolExecutor | None = None
    ) -> None:
        """With a `pool`, what was begun is opened there."""
        self._pool = pool
        self._begun: WeakKeyDictionary[VerifiedParcel, Future[_Columns]] = WeakKeyDictionary()
        self._room = Room(settings.opened_bytes_max)
        self._authority, self._view, self._settings = ties.authority, ties.view, settings
        self._sharing, self._clock = ties.sharing, ties.clock
        self._missed: dict[bytes, float] = {}  # share locks whose secrets have not come, and since when that is known
        attributes = AttributeHolder(
            ties.authority,
            ties.clock,
            settings.attributes_again_s,
            lambda epoch: attribute_epoch_begins_ms(self.held.grant, epoch),
        )
        self.ring = KeyRing(ties.carrier.lock, attributes.key)
        self.take(held)

    def begin_round(self) -> None:
        """Have all of the room again. What was opened ahead and not asked for is forgotten, or it would take some."""
        wait([one for one in self._begun.values() if not one.cancel()])
        self._begun.clear()
        self._room.begin()

    def begin(self, verified: VerifiedParcel) -> None:
        """Begin to open a parcel whose `rows` will be asked for, if all that it takes is here; nobody is asked."""
        header, is_large = verified.header, verified.header.body_bytes >= self._settings.handed_over_bytes_min
        if self._pool is None or header.kind is not ParcelKind.DATA or not is_large or verified in self._begun:
            return
        schema = self._known_schema(header.schema_version, header.schema_hash)
        keys = [(group, self.ring.known_key(header, group)) for group in range(len(header.groups))]
        known = KnownKeys((group, key) for group, key in keys if key is not None)
        if schema is not None and all(key is not None for _, key in keys):
            with suppress(RuntimeError):  # the subscriber was closed meanwhile
                self._begun[verified] = self._pool.submit(self._open, verified, known, schema)

    def rows(self, verified: VerifiedParcel, *, is_first: bool = True) -> Opened:
        """The records of a data parcel, in the schema that the subscriber wants, without the columns that are closed to
        it. Raises `MissingKey` or `CannotOpen`, `NotEntitled` where closed columns are an error, and `NoRoom` unless it
        is the first whose rows the round returns."""
        return within_room(lambda: self._rows(verified), is_first, self.begin_round)

    def _rows(self, verified: VerifiedParcel) -> Opened:
        schema = self.schema(verified.header.schema_version, verified.header.schema_hash)
        target, begun = self._target_schema(schema), self._begun.pop(verified, None)
        if begun is not None:
            found, closed = begun.result()
        else:
            found, closed = self._opened(verified, lambda: self._open(verified, self.ring, schema))
        kept = [group for group in range(len(target.groups)) if group not in closed]
        names = tuple(name for group in closed for name in target.groups[group])
        if found is None:
            return Opened(None, names)
        wanted = target.only(*kept)
        self._room.take(found.rows * NULL_BYTES * (len(wanted.arrow) - found.data.num_columns))
        return Opened(found.upgraded(wanted), names)

    def _open(self, verified: VerifiedParcel, keys: LaneKeys, schema: Schema) -> _Columns:
        fast = self._settings.verify == "fast"
        if self._settings.closed == "error":
            return open_batch(verified, keys, schema, fast=fast, room=self._room), ()
        return open_columns(verified, keys, schema, fast=fast, room=self._room)

    def content(self, verified: VerifiedParcel) -> bytes:
        """What a gap or a commit parcel says. Raises `MissingKey` or `CannotOpen`."""
        return self._opened(verified, lambda: open_content(verified, self.ring))

    def _opened(self, verified: VerifiedParcel, opening: Callable[[], T]) -> T:
        """Open a parcel, asking once for keys that we lack. Raises `Unavailable` if one is to come."""
        try:
            if self._sharing is None:
                return ask_once(opening, self.update_keys)
            source = ShareSource(self._sharing, self.held.permit.identifier, self.ring, self._clock)
            place = verified.publisher, verified.header
            return source.opened(*place, lambda: ask_once(opening, self.update_keys))
        except MissingShare as error:
            self._await_share(error)
            raise
        except MissingKey as error:
            if self._is_coming(error.epoch):
                raise Unavailable(f"the authority has yet to begin epoch {error.epoch}", retry_after_s=1.0) from error
            raise

    def _await_share(self, error: MissingShare) -> None:
        """Raise `Unavailable` while a secret may be on its way."""
        if self._sharing is not None:
            now = self._clock.monotonic()
            if now < self._missed.setdefault(error.lock, now) + self._settings.shares_wait_s:
                raise Unavailable(str(error), retry_after_s=0.1) from error

    def _is_coming(self, epoch: int | None) -> bool:
        """Whether the epoch is announced and its key not given out: by the authority's clock it has not begun, though
        by those of publisher and node it has. One whose key was lost is told of when a later one begins."""
        grant = self.held.grant
        held = max((number for number, _ in grant.private_keys), default=0)
        return epoch is not None and epoch > held and any(one.number == epoch for one in grant.epochs)

    def schema(self, version: int, schema_hash: bytes) -> Schema:
        """The topic's schema of this version, from the authority; the hash is the header's."""
        known = self._known_schema(version, schema_hash)
        if known is None and self.update_keys():
            known = self._known_schema(version, schema_hash)
        if known is None:
            raise CannotOpen(hint="the topic has no such schema version")
        return known

    def _known_schema(self, version: int, schema_hash: bytes) -> Schema | None:
        return next((one for one in self.held.schemas if (one.version, one.hash) == (version, schema_hash)), None)

    def _target_schema(self, schema: Schema) -> Schema:
        pinned, wanted = self._settings.schema_version, self.wanted_schema
        return wanted if pinned is None or schema.version <= pinned == wanted.version else schema

    @property
    def wanted_schema(self) -> Schema:
        """The schema that the subscriber asked for: the newest, or the version that it named."""
        pinned = self._settings.schema_version
        return next((one for one in self.held.schemas if one.version == pinned), self.held.schemas[-1])

    def take(self, held: Held) -> None:
        """Go on with this grant, of this permit or another; the keys at hand stay."""
        self.held = held
        add_keys(self.ring, held.permit.instance, held.grant)

    def update_keys(self, wait_ms: int = 0) -> bool:
        """Ask the authority for keys of new epochs, new schemas and erasures. Returns whether there was news."""
        update = self._authority.keys(self.held.permit.identifier, self.held.grant.version, wait_ms)
        if update is not None:
            self.take(self.held.updated(update))
        return update is not None

    def was_erased(self, error: MissingKey) -> bool:
        """Whether the ledger says that this key was destroyed on purpose."""
        if error.epoch is not None:
            return False
        return self._view.row(ERASURES(error.token, error.publisher, error.period)) is not None


def ask_once(opening: Callable[[], T], update: Callable[[], object]) -> T:
    """Open a parcel; a key that we lack may have been issued since, so ask for it, once."""
    try:
        return opening()
    except MissingKey:
        update()
        return opening()


@dataclass(frozen=True)
class ShareSource:
    """Where the secrets of share locks come from, under a permit, for a ring."""

    sharing: Sharing
    permit: bytes
    ring: KeyRing
    clock: Clock
    wait_s: float = SHARE_MOMENT_S

    def opened(self, publisher: bytes, header: Header, opening: Callable[[], T]) -> T:
        """Open a parcel with the secrets of its own publisher's locks; what is lacking is asked for, and waited for.
        Raises `MissingShare`."""
        for name in {name for group in header.groups for name in group.locks}:
            if (publisher, name) in self.sharing.opened:
                self.ring.add_share(name, self.sharing.opened[publisher, name])
        until = self.clock.monotonic() + self.wait_s
        while True:
            try:
                return opening()
            except MissingShare as error:
                if not self.bring(publisher, error.lock, until):
                    raise

    def bring(self, publisher: bytes, lock: bytes, until: float) -> bool:
        """Whether the secret of a lock is on the ring, if need be at the given time."""
        while (secret := self.sharing.want(publisher, lock, self.permit)) is None:
            if self.clock.monotonic() >= until:
                return False
            self.clock.pause(0.02)
        self.ring.add_share(lock, secret)
        return True


def within_room(opening: Callable[[], T], is_first: bool, begin_round: Callable[[], object]) -> T:
    """Open a parcel. Where there is no room for it, and nothing yet to return, it gets all of the room. Raises `NoRoom`
    if it must wait for the next round, `Oversized` if it would never fit."""
    try:
        return opening()
    except NoRoom:
        if not is_first:
            raise
    begin_round()
    try:
        return opening()
    except NoRoom as error:
        told = f"{error}; raise opened_bytes_max (in Spark the option openedBytesMax) if its publisher means it"
        raise Oversized(told) from error


def unopened(error: MissingKey, header: Header, *, erased: bool, hint: str | None = None) -> Refused:
    """What to tell of a parcel whose key we lack: destroyed on purpose, or not given to us."""
    if erased:
        return Refused(f"{describe(header)}: its key was destroyed on purpose", reason="erased")
    return CannotOpen(f"{describe(header)}: cannot open: {error}", hint=hint)


def add_keys(ring: KeyRing, instance: bytes, grant: Grant) -> None:
    """Put everything that a grant opens with on the ring, and take off what was destroyed."""
    for epoch, seed in grant.private_keys:
        ring.add_topic_key(grant.token, epoch, hpke.PrivateKey.decode(seed))
    for one in grant.erasure_keys:
        ring.add_erasure_key(grant.token, one.publisher, one.period, hpke.PrivateKey.decode(one.key))
    for policy in () if grant.policies is None else grant.policies.topics:
        if policy.capsule:
            place = PolicyPlace(instance, grant.token, policy.group, policy.version)
            ring.add_policy(place, policy.epoch, policy.capsule, policy.sealed_seed)
    for publisher, period in grant.erased:
        ring.forget_erasure_key(grant.token, publisher, period)


def attribute_epoch_begins_ms(grant: Grant, epoch: int) -> int | None:
    """When an attribute epoch begins, as far as that was announced."""
    return None if grant.policies is None else dict(grant.policies.epochs).get(epoch)


Places: TypeAlias = "np.ndarray[Any, np.dtype[np.intp]]"


class Interest:
    def __init__(self, text: str) -> None:
        """Everything, where the text is empty."""
        self.text = text
        self._read: tuple[Schema, Formula] | None = None

    def __bool__(self) -> bool:
        return bool(self.text)

    def formula(self, schema: Schema) -> Formula:
        """What the text means over this schema. Raises `Misuse`."""
        if self._read is None or self._read[0] != schema:
            self._read = schema, read_interest(self.text, schema.arrow)
        return self._read[1]

    def show(self, carrier: Carrier, held: Held) -> None:
        """Show a subscriber's permit to the carrier; one that matches is told what is wanted, too."""
        if self.text and isinstance(carrier, Matched):
            carrier.describe_interest(held.grant.permit, self.formula(held.schemas[-1]).encode())
        carrier.subscribe(held.grant.permit)

    def only(self, batch: Batch, schema: Schema) -> tuple[Batch, Places | None]:
        """The rows that are meant and their places in the batch, or None where it is all of them. The batch may lack
        columns of `schema`, the topic's."""
        if not self.text:
            return batch, None
        mask = wanted_rows(self.formula(schema), batch.data)
        return (batch, None) if mask.all() else (batch.filter(mask), np.flatnonzero(mask))


class AttributeHolder:
    def __init__(
        self, authority: AuthorityClient, clock: Clock, again_s: float, begins_ms: Callable[[int], int | None]
    ) -> None:
        """`begins_ms` tells when an attribute epoch begins, as far as that was announced."""
        self._authority, self._clock, self._again_s, self._begins_ms = authority, clock, again_s, begins_ms
        self._identifier = b""
        self._key: AttributeKey | None = None
        self._asked: dict[int, float] = {}  # attribute epoch: when
        self._whole_to, self._whole_at = 0, float("-inf")  # up to which epoch the key has every part, asked for when
        self._told = False

    def key(self, epoch: int) -> AttributeKey | None:
        """Our key, with the part of this attribute epoch where it has begun and we hold any attribute."""
        if not available():
            if not self._told:
                log.warning("columns under policies stay closed: they need pymcl (pip install 'tallystick[policy]')")
            self._told = True
            return None
        now = self._clock.monotonic()
        if now >= self._asked.get(epoch, float("-inf")) + self._again_s:
            try:
                self._ask(epoch)
            except Unavailable:  # what we have still opens what it opened
                if self._key is None or epoch not in self._key.epochs:
                    raise
            self._check_begun(epoch)
            self._asked[epoch] = now
        return self._key

    def whole(self) -> AttributeKey | None:
        """Our key with the part of every epoch that has begun: what a driver lends to those who cannot ask."""
        now = self._clock.monotonic()
        if available() and now >= self._whole_at + self._again_s:
            while True:
                before = self._whole_to
                current = self._ask(before + 1)
                if self._whole_to in (before, current):
                    break
            self._whole_at = now
        return self._key

    def _check_begun(self, epoch: int) -> None:
        begins_ms = self._begins_ms(epoch)
        if self._key is None or epoch in self._key.epochs or begins_ms is None:
            return
        if abs(self._clock.now() * 1000 - begins_ms) < SKEW_MS:
            raise Unavailable(f"attribute epoch {epoch} is only just beginning", retry_after_s=1.0)

    def _ask(self, epoch: int) -> int:
        """The current epoch, and with it our key in the epochs from this one on, as many as one answer has."""
        answer = self._authority.attribute_key(self._identifier, epoch)
        if not answer.identifier:
            self._identifier, self._key, self._whole_to = b"", None, answer.epoch
        elif answer.key:  # another set of attributes: parts of the old key do not fit
            self._identifier, self._key, self._whole_to = answer.identifier, AttributeKey.decode(answer.key), 0
            self._asked.clear()
        else:
            for number, part in answer.parts:
                if self._key is not None and number not in self._key.epochs:
                    self._key = self._key.with_epoch(number, part)
                    self._asked.setdefault(number, self._clock.monotonic())
        while self._key is not None and self._whole_to + 1 in self._key.epochs:
            self._whole_to += 1
        return answer.epoch
