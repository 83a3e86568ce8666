"""A subscriber's keys and schemas, and what it opens with them; what it lacks it asks the authority for, once.

A column group behind a policy that our attributes do not satisfy is closed: its columns are left out, by name, and the
others are as certain as ever, since each group is verified in full on its own.

A subscriber's interest: the rows of an opened batch that it means, exactly.

Labels spare a subscriber whole parcels, never rows, and they may let through what is not wanted; what is delivered is
decided here, after opening, whatever the topic has. The interest is read anew where the topic's schema has grown: a
column may be wider then, and its values are compared as what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from tallystick.authority.grant import Grant
from tallystick.client.grants import Held
from tallystick.client.policies import AttributeHolder
from tallystick.client.settings import SubscriberSettings
from tallystick.client.ties import ReaderTies
from tallystick.crypto import hpke
from tallystick.errors import CannotOpen, Refused, Unavailable
from tallystick.later import np
from tallystick.ledger.contracts.erasures import ERASURES
from tallystick.parcel.header import Header, ParcelKind
from tallystick.parcel.keys import KeyRing, KnownKeys, LaneKeys
from tallystick.parcel.missing import MissingKey
from tallystick.parcel.open import open_batch, open_columns, open_content
from tallystick.parcel.parcel import VerifiedParcel, describe
from tallystick.parcel.policy_seed import PolicyPlace
from tallystick.policy.content import read_interest, wanted_rows
from tallystick.policy.formula import Formula
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema

T = TypeVar("T")

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
        self._authority, self._view, self._settings = ties.authority, ties.view, settings
        attributes = AttributeHolder(
            ties.authority,
            ties.clock,
            settings.attributes_again_s,
            lambda epoch: attribute_epoch_begins_ms(self.held.grant, epoch),
        )
        self.ring = KeyRing(ties.carrier.lock, attributes.key)
        self.take(held)

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

    def rows(self, verified: VerifiedParcel) -> Opened:
        """The records of a data parcel, in the schema that the subscriber wants, without the columns that are closed to
        it; `MissingKey` or `CannotOpen`, and `NotEntitled` where closed columns are an error."""
        schema = self.schema(verified.header.schema_version, verified.header.schema_hash)
        target, begun = self._target_schema(schema), self._begun.pop(verified, None)
        if begun is not None:
            found, closed = begun.result()
        else:
            found, closed = self._opened(lambda: self._open(verified, self.ring, schema))
        kept = [group for group in range(len(target.groups)) if group not in closed]
        names = tuple(name for group in closed for name in target.groups[group])
        return Opened(None if found is None else found.upgraded(target.only(*kept)), names)

    def _open(self, verified: VerifiedParcel, keys: LaneKeys, schema: Schema) -> _Columns:
        fast = self._settings.verify == "fast"
        if self._settings.closed == "error":
            return open_batch(verified, keys, schema, fast=fast), ()
        return open_columns(verified, keys, schema, fast=fast)

    def content(self, verified: VerifiedParcel) -> bytes:
        """What a gap or a commit parcel says; `MissingKey` or `CannotOpen`."""
        return self._opened(lambda: open_content(verified, self.ring))

    def _opened(self, opening: Callable[[], T]) -> T:
        """Open a parcel, asking once for keys that we lack; `Unavailable` if one is to come."""
        try:
            return ask_once(opening, self.update_keys)
        except MissingKey as error:
            if self._is_coming(error.epoch):
                raise Unavailable(f"the authority has yet to begin epoch {error.epoch}", retry_after_s=1.0) from error
            raise

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
        """What the text means over this schema; raises `Misuse`."""
        if self._read is None or self._read[0] != schema:
            self._read = schema, read_interest(self.text, schema.arrow)
        return self._read[1]

    def only(self, batch: Batch, schema: Schema) -> tuple[Batch, Places | None]:
        """The rows that are meant and their places in the batch; None where it is all of them. `schema` is the topic's,
        of whose columns the batch may lack some."""
        if not self.text:
            return batch, None
        mask = wanted_rows(self.formula(schema), batch.data)
        return (batch, None) if mask.all() else (batch.filter(mask), np.flatnonzero(mask))
