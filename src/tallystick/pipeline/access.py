"""An identity at work in Spark: the permit that a query reads under, and the keys that follow it.

Threat: keys that travel. What Spark logs and shows are options, a schema and slices; a slice names the permit by its
identifier. Where `home` is at hand, whoever runs a task asks the authority for the permit's keys itself, as that
identity, and gets them sealed to it; where only the driver has `home`, tasks get what the driver lends (`loan`). Keys
live in the worker's memory, for few queries at a time, and are written nowhere. The secrets of share locks come over
the overlay, to whoever has `home`; a driver gathers those of the lane keys that it planned, and lends them too.

The permit itself is kept as those of any subscriber are (client/grants.py): to ask each time would fill the ledger with
permits, and to give one back would begin a new epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TypeVar

from tallystick.authority.grant import Grant
from tallystick.carriers.carrier import Fetch, Fetched, Matched
from tallystick.client.fetching import check_tenant
from tallystick.client.opening import AttributeHolder, Interest, ShareSource, add_keys, attribute_epoch_begins_ms
from tallystick.client.session import Session
from tallystick.crypto.abe.keys import AttributeKey
from tallystick.errors import CannotOpen, Misuse, Refused, Unavailable
from tallystick.ledger.contracts.topics import ERASABLE
from tallystick.parcel.header import Header
from tallystick.parcel.keys import LANE_KEYS_MAX, KeyRing
from tallystick.parcel.labels import Wanted
from tallystick.parcel.locks import Lock, ShareLock, decode_lock
from tallystick.pipeline.loan import Borrowed, Loan, lend
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation

ATTRIBUTES_AGAIN_S = 30.0  # what is closed may have been opened to us since: ask so often
OPEN_MAX = 4  # queries whose keys a worker holds at once
FETCH_BYTES = 4 << 20
SHARES_WAIT_S = 30.0  # for the secret of a share lock, and for those of all that were planned
K = TypeVar("K")
W = TypeVar("W")
T = TypeVar("T", bound="TopicKeys")

_FIRST_EPOCH = 1  # what lies in the log is older than the permit: ask for the keys of all epochs


class TopicKeys:
    """What a task works with: a permit's keys, the topic's schemas, the way to its parcels. Who opened it closes it."""

    def __init__(
        self,
        way: Session | Borrowed,
        instance: bytes,
        permit: bytes,
        grant: Grant,
        attribute_key: Callable[[int], AttributeKey | None],
    ) -> None:
        """`permit` is an identifier, `grant` what the authority gave under it."""
        self._way, self._instance, self.permit = way, instance, permit
        self.node = way.node
        self.ring = KeyRing(way.node.lock, attribute_key)
        self.schemas: tuple[Schema, ...] = ()
        self.erased: set[tuple[bytes, int]] = set()
        self.token, self.partitions = grant.token, grant.settings.partitions
        self._take(grant)

    def update(self) -> bool:
        """Whether there was news: what is lent grows with the driver's next slice alone."""
        return False

    def _take(self, grant: Grant) -> None:
        self.version = grant.version
        add_keys(self.ring, self._instance, grant)
        self.erased |= set(grant.erased)
        if grant.schemas:
            self.schemas = tuple(Schema.decode(text) for text in grant.schemas)

    def opened(self, publisher: bytes, header: Header, opening: Callable[[], W]) -> W:
        """Open a parcel of this publisher with what is at hand."""
        return opening()

    def schema(self, version: int, schema_hash: bytes) -> Schema:
        """The topic's schema that a header names."""
        while True:
            for schema in self.schemas:
                if (schema.version, schema.hash) == (version, schema_hash):
                    return schema
            if not self.update():
                raise CannotOpen(hint=f"the topic has no schema version {version} of this hash")

    def fetch(
        self,
        partition: int,
        offset: int,
        end: int,
        size: int | None,
        *,
        stored: bool,
        headers: bool = False,
        bytes_max: int = FETCH_BYTES,
    ) -> Fetched:
        """Parcels of the topic, or their headers, as a carrier fetches them."""
        place = (self.token, partition, self.permit, offset, bytes_max)
        return self._way.carrier.fetch(Fetch(*place, stored=stored, headers=headers, size=size, end=end))

    def close(self) -> None:
        self._way.close()


class Access(TopicKeys):
    """The same with a session of its own, which can ask for more."""

    def __init__(self, session: Session, permit: bytes, grant: Grant, labels: tuple[bytes, ...] = ()) -> None:
        """`labels` are the permit's, where the query has an interest."""
        self.session, self.wanted = session, Wanted(labels)
        self.is_part = bool(labels) and isinstance(session.carrier, Matched)  # what is not of interest does not come
        self._held = grant  # all that was given so far, without what was destroyed since
        self._attributes = AttributeHolder(
            session.authority,
            session.clock,
            ATTRIBUTES_AGAIN_S,
            lambda epoch: attribute_epoch_begins_ms(self._held, epoch),
        )
        super().__init__(session, session.identity.instance, permit, grant, self._attributes.key)
        self._named: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()  # locks of what was planned, by publisher
        self._source: ShareSource | None = None
        if session.sharing is not None:
            self._source = ShareSource(session.sharing, permit, self.ring, session.clock, SHARES_WAIT_S)
        if grant.settings.flags & ERASABLE:  # its keys come in several answers
            self.update()

    def update(self) -> bool:
        """Ask the authority for keys of new epochs, new schemas and erasures. Returns whether there was news."""
        news = False
        while (grant := self.session.authority.keys(self.permit, self.version)) and grant.version > self.version:
            self._take(grant)
            news = True
        return news

    def _take(self, grant: Grant) -> None:
        super()._take(grant)
        held = self._held.updated(grant)
        left = tuple(one for one in held.erasure_keys if (one.publisher, one.period) not in self.erased)
        self._held = replace(held, erasure_keys=left)

    def opened(self, publisher: bytes, header: Header, opening: Callable[[], W]) -> W:
        return opening() if self._source is None else self._source.opened(publisher, header, opening)

    def note_locks(self, publisher: bytes, header: Header) -> None:
        """What was planned needs these: some may be share locks, whose secrets tasks are lent."""
        if self._source is not None:
            self._named |= dict.fromkeys((publisher, name) for group in header.groups for name in group.locks)
            while len(self._named) > LANE_KEYS_MAX:
                self._named.popitem(last=False)

    def _shares(self) -> Iterator[tuple[bytes, bytes]]:
        """The secrets of share locks of what was planned, as far as their shares come in time."""
        until = self.session.clock.monotonic() + SHARES_WAIT_S
        for publisher, name in list(self._named):
            if self._source is None or not isinstance(self._lock(name), ShareLock):
                del self._named[publisher, name]
            elif self._source.bring(publisher, name, until):
                yield name, self._source.sharing.opened[publisher, name]

    def _lock(self, name: bytes) -> Lock | None:
        try:
            return decode_lock(self.session.carrier.lock(name), name)
        except Refused:
            return None  # the task that opens what it closes will say so

    def loan(self) -> Loan:
        """What tasks need of this identity to read what was planned by now."""
        key = None if self._held.policies is None else self._attributes.whole()
        opening = self.permit, self._held, b"" if key is None else key.encode()
        return lend(self.session, *opening, tuple(self._shares()))


class _Lent(TopicKeys):
    """The same from what the driver lent."""

    def __init__(self, loan: Loan, grant: Grant) -> None:
        self._lent = loan.attributes
        key = AttributeKey.decode(loan.attributes) if loan.attributes else None
        super().__init__(Borrowed.by(loan), loan.instance, loan.permit, grant, lambda epoch: key)

    def take_shares(self, shares: Sequence[tuple[bytes, bytes]]) -> None:
        for lock, secret in shares:
            self.ring.add_share(lock, secret)

    def is_older(self, loan: Loan, grant: Grant) -> bool:
        return self.version < grant.version or (self.version == grant.version and self._lent != loan.attributes)


@contextmanager
def _opening(home: str, topic: str) -> Iterator[Session]:
    """Open a topic's session for whoever keeps it. Where the body raises, the session is closed."""
    with ExitStack() as kept:
        yield kept.enter_context(Session.open(home, topic=topic))
        kept.pop_all()


@contextmanager
def telling_mistakes(topic: str) -> Iterator[None]:
    """What a query got wrong itself, and the authority refuses, is told as its `Misuse`."""
    try:
        yield
    except Refused as error:
        if error.reason == "unknown-topic":
            hint = "the topic's owner creates it (tally topic create) and grants the right (tally right grant)"
            raise Misuse(f'topic "{topic}" is unknown, or not to be known by this identity', hint=hint) from error
        if error.reason == "misuse":  # the interest
            raise Misuse(str(error), hint=error.hint) from error
        raise


def admit(home: str, topic: str, interest: str = "") -> Access:
    """The driver's access: under the kept permit if it still counts, else under a new one."""
    with _opening(home, topic) as session, telling_mistakes(topic):
        held = session.grants.obtain(Operation.SUBSCRIBE, topic, _FIRST_EPOCH, interest)
        check_tenant(session.view, held.permit)
        Interest(interest).show(session.carrier, held)
        return Access(session, held.permit.identifier, held.grant, held.permit.labels)


_joined: OrderedDict[tuple[str, bytes], Access] = OrderedDict()
_borrowed: OrderedDict[tuple[bytes, bytes], _Lent] = OrderedDict()


def join(home: str, topic: str, permit: bytes, version: int = 0) -> Access:
    """A task's access under the driver's permit, as new as the driver's: a key that was destroyed since is dropped. The
    worker keeps it for the query's next task."""
    key = (home, permit)
    if key not in _joined:
        with _opening(home, topic) as session:
            grant = session.authority.keys(permit, 0)
            if grant is None:
                raise Unavailable("the authority has no keys for the permit yet", retry_after_s=1.0)
            _joined[key] = Access(session, permit, grant)
    access = _used(_joined, key)
    if access.version < version:
        access.update()
    return access


def borrow(loan: Loan) -> TopicKeys:
    """The same from what the driver lent. A newer loan replaces an older one."""
    key, grant = (loan.principal, loan.permit), Grant.decode(loan.grant)
    if key in _borrowed and _borrowed[key].is_older(loan, grant):
        _borrowed.pop(key).close()
    if key not in _borrowed:
        _borrowed[key] = _Lent(loan, grant)
    _borrowed[key].take_shares(loan.shares)
    return _used(_borrowed, key)


def _used(kept: OrderedDict[K, T], key: K) -> T:
    """Return what is kept under the key, and close what was used longest ago where there is too much."""
    kept.move_to_end(key)
    while len(kept) > OPEN_MAX:
        kept.popitem(last=False)[1].close()
    return kept[key]
