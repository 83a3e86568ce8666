"""An identity at work in Spark: the permit that a query reads under, and the keys that follow it.

Threat: keys that travel. What Spark ships, logs and shows are options, a schema and slices; a slice names the permit by
its identifier. Whoever runs a task asks the authority for the permit's keys itself, as the identity in `home`, and gets
them sealed to that identity. They live in the worker's memory, for few queries at a time, and are written nowhere.

A permit is asked for once for an identity and topic and kept in the identity's folder: to ask each time would fill the
ledger with permits, and to give one back would begin a new epoch. It is worthless without the identity's own key.
"""

from __future__ import annotations

import fcntl
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tallystick.authority.grant import Grant
from tallystick.client.session import Session
from tallystick.crypto import hpke
from tallystick.crypto.hashes import named_hash
from tallystick.errors import CannotOpen, Misuse, Refused, Unavailable
from tallystick.parcel.keyring import KeyRing
from tallystick.record.schema import Schema
from tallystick.runtime.disk import RealDisk, read_all, write_atomic
from tallystick.trust.permit import Operation, Permit

FOLDER = "spark"  # in the identity's folder
OPEN_MAX = 4  # queries whose keys a worker holds at once
_RENEW_MS = 24 * 3600 * 1000  # a permit that ends sooner is replaced when a query is planned
_ENDED = ("permit-ended", "permit-expired", "unknown-permit")
_FIRST_EPOCH = 1  # what lies in the log is older than the permit: ask for the keys of all epochs


class Access:
    """A session, a permit's keys and the topic's schemas. Closed by whoever opened it."""

    def __init__(self, session: Session, permit: bytes) -> None:
        """`permit` is an identifier; raises `Refused` where it does not count any more."""
        self.session, self.permit = session, permit
        self.ring = KeyRing(session.node.lock)
        self.schemas: tuple[Schema, ...] = ()
        self.erased: set[tuple[bytes, int]] = set()
        self._version = 0
        grant = self._take()
        if grant is None:
            raise Unavailable("the authority has no keys for the permit yet", retry_after_s=1.0)
        self.token, self.partitions = grant.token, grant.partitions
        self.update()

    def update(self) -> bool:
        """Ask the authority for keys of new epochs, new schemas and erasures; whether there was news."""
        news = False
        while self._take() is not None:
            news = True
        return news

    def _take(self) -> Grant | None:
        grant = self.session.authority.keys(self.permit, self._version)
        if grant is None or grant.version <= self._version:
            return None
        self._version = grant.version
        for epoch, seed in grant.private_keys:
            self.ring.add_topic_key(grant.token, epoch, hpke.PrivateKey.decode(seed))
        for one in grant.erasure_keys:
            self.ring.add_erasure_key(grant.token, one.publisher, one.period, hpke.PrivateKey.decode(one.key))
        for publisher, period in grant.erased:
            self.ring.forget_erasure_key(grant.token, publisher, period)
        self.erased |= set(grant.erased)
        if grant.schemas:
            self.schemas = tuple(Schema.decode(text) for text in grant.schemas)
        return grant

    def schema(self, version: int, schema_hash: bytes) -> Schema:
        """The topic's schema that a header names."""
        for attempt in (1, 2):
            for schema in self.schemas:
                if (schema.version, schema.hash) == (version, schema_hash):
                    return schema
            if attempt == 1:
                self.update()
        raise CannotOpen(hint=f"the topic has no schema version {version} of this hash")

    def close(self) -> None:
        self.session.close()


def admit(home: str, topic: str) -> Access:
    """The driver's access: under the kept permit if it still counts, else under a new one."""
    session = Session.open(home)
    try:
        with locked(session.identity.home) as folder:
            permit = _kept(folder, topic, session)
            if permit is not None:
                try:
                    return _subscribed(session, permit)
                except Refused as error:
                    if error.reason not in _ENDED:
                        raise
            grant = session.authority.permit(Operation.SUBSCRIBE, topic, _FIRST_EPOCH)
            write_atomic(RealDisk(folder), _name(topic), grant.permit)
            return _subscribed(session, Permit.decode(grant.permit))
    except Refused as error:
        session.close()
        if error.reason == "unknown-topic":
            hint = "the topic's owner creates it (tally topic create) and grants the right (tally right grant)"
            raise Misuse(f'topic "{topic}" is unknown, or not to be known by this identity', hint=hint) from error
        raise
    except BaseException:
        session.close()
        raise


def _subscribed(session: Session, permit: Permit) -> Access:
    access = Access(session, permit.identifier)
    session.node.subscribe(permit.encode())
    return access


def _kept(folder: Path, topic: str, session: Session) -> Permit | None:
    disk = RealDisk(folder)
    if not disk.exists(_name(topic)):
        return None
    try:
        permit = Permit.decode(read_all(disk, _name(topic)))
    except Refused as error:
        path = folder / _name(topic)
        raise Misuse(f"{path}: not a permit", hint="remove the file, a new one is asked for") from error
    return permit if permit.not_after_ms > session.clock.now() * 1000 + _RENEW_MS else None


def _name(topic: str) -> str:
    return named_hash("tallystick spark permit 1", topic.encode()).hex()[:16] + ".permit"


@contextmanager
def locked(home: Path) -> Iterator[Path]:
    """The identity's folder for Spark, held by this process alone: the driver's parts run in several."""
    folder = home / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield folder


_open: OrderedDict[tuple[str, bytes], Access] = OrderedDict()


def join(home: str, permit: bytes) -> Access:
    """A task's access under the driver's permit; kept by the worker for the query's next task."""
    key = (home, permit)
    if key not in _open:
        session = Session.open(home)
        try:
            _open[key] = Access(session, permit)
        except BaseException:
            session.close()
            raise
        while len(_open) > OPEN_MAX:
            _open.popitem(last=False)[1].close()
    _open.move_to_end(key)
    return _open[key]
