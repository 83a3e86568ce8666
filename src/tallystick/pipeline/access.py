"""An identity at work in Spark: the permit that a query reads under, and the keys that follow it.

Threat: keys that travel. What Spark ships, logs and shows are options, a schema and slices; a slice names the permit by
its identifier. Whoever runs a task asks the authority for the permit's keys itself, as the identity in `home`, and gets
them sealed to that identity. They live in the worker's memory, for few queries at a time, and are written nowhere.

The permit itself is kept as those of any subscriber are (client/grants.py): to ask each time would fill the ledger with
permits, and to give one back would begin a new epoch.
"""

from __future__ import annotations

from collections import OrderedDict

from tallystick.authority.grant import Grant
from tallystick.client.session import Session
from tallystick.crypto import hpke
from tallystick.errors import CannotOpen, Misuse, Refused, Unavailable
from tallystick.ledger.contracts.topics import ERASABLE
from tallystick.parcel.keyring import KeyRing
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation

OPEN_MAX = 4  # queries whose keys a worker holds at once
_FIRST_EPOCH = 1  # what lies in the log is older than the permit: ask for the keys of all epochs


class Access:
    """A session, a permit's keys and the topic's schemas. Closed by whoever opened it."""

    def __init__(self, session: Session, permit: bytes, grant: Grant) -> None:
        """`permit` is an identifier, `grant` what the authority gave under it."""
        self.session, self.permit = session, permit
        self.ring = KeyRing(session.node.lock)
        self.schemas: tuple[Schema, ...] = ()
        self.erased: set[tuple[bytes, int]] = set()
        self.token, self.partitions = grant.token, grant.partitions
        self._take(grant)
        if grant.flags & ERASABLE:  # its keys come in several answers
            self.update()

    def update(self) -> bool:
        """Ask the authority for keys of new epochs, new schemas and erasures; whether there was news."""
        news = False
        while (grant := self.session.authority.keys(self.permit, self.version)) and grant.version > self.version:
            self._take(grant)
            news = True
        return news

    def _take(self, grant: Grant) -> None:
        self.version = grant.version
        for epoch, seed in grant.private_keys:
            self.ring.add_topic_key(grant.token, epoch, hpke.PrivateKey.decode(seed))
        for one in grant.erasure_keys:
            self.ring.add_erasure_key(grant.token, one.publisher, one.period, hpke.PrivateKey.decode(one.key))
        for publisher, period in grant.erased:
            self.ring.forget_erasure_key(grant.token, publisher, period)
        self.erased |= set(grant.erased)
        if grant.schemas:
            self.schemas = tuple(Schema.decode(text) for text in grant.schemas)

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
        held = session.grants.obtain(Operation.SUBSCRIBE, topic, _FIRST_EPOCH)
        session.node.subscribe(held.grant.permit)
        return Access(session, held.permit.identifier, held.grant)
    except Refused as error:
        session.close()
        if error.reason == "unknown-topic":
            hint = "the topic's owner creates it (tally topic create) and grants the right (tally right grant)"
            raise Misuse(f'topic "{topic}" is unknown, or not to be known by this identity', hint=hint) from error
        raise
    except BaseException:
        session.close()
        raise


_open: OrderedDict[tuple[str, bytes], Access] = OrderedDict()


def join(home: str, permit: bytes, version: int = 0) -> Access:
    """A task's access under the driver's permit, as new as the driver's: a key that was destroyed since is dropped. The
    worker keeps it for the query's next task."""
    key = (home, permit)
    if key not in _open:
        session = Session.open(home)
        try:
            grant = session.authority.keys(permit, 0)
            if grant is None:
                raise Unavailable("the authority has no keys for the permit yet", retry_after_s=1.0)
            _open[key] = Access(session, permit, grant)
        except BaseException:
            session.close()
            raise
        while len(_open) > OPEN_MAX:
            _open.popitem(last=False)[1].close()
    _open.move_to_end(key)
    if _open[key].version < version:
        _open[key].update()
    return _open[key]
