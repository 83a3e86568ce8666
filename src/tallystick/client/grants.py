"""Grants that outlive their process: one permit per identity, topic and operation, not one per start.

A publisher must start where nobody can be reached: a car in a garage seals for epochs that it was told of last week.
So the grant is kept in the identity folder, wrapped under the publisher's own key. Of a subscriber's grant only the
permit and its undo token are kept; private halves are asked for again at each start, and live in memory. Processes of
one identity share what is kept: two that start at the same moment may ask for a permit each, and one of them is kept.

`Advertised` are the permits under which a publisher seals: obtained, shown to the node, and kept up to date. `Held`
is a grant as its holder keeps it: which epoch, period and schema count now.

Threat: an authority, or whoever speaks with its key, that gives one publisher another public key than all the others,
and opens what is sealed to it. The ledger has the hash of every epoch's key, and of the attribute authority's; a
publisher's grant counts once they agree (`check_keys`), and only such a grant is kept. Where the contract `keys` is in
force the ledger has the hashes of erasure keys and of topic policies' keys too; before, they are the authority's signed
word.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tallystick.authority.answers import authority_hash, erasure_key_name, key_hash, policy_key_name
from tallystick.authority.client import AuthorityClient
from tallystick.authority.grant import Grant, GrantEpoch, GrantErasureKey
from tallystick.carriers.carrier import Matched, Offer
from tallystick.client.ties import Ties, View
from tallystick.crypto.symmetric import named_hash, unwrap, wrap
from tallystick.errors import CannotOpen, Forged, Malformed, Refused, TallystickError, Unavailable, Withheld
from tallystick.identity.folder import Identity
from tallystick.ledger.contracts.attributes import ATTRIBUTE_EPOCHS, AttributeEpochRow
from tallystick.ledger.contracts.epochs import EPOCHS, TOPIC_KEYS, EpochRow, TopicKeyRow
from tallystick.ledger.contracts.settings import KEYS_CONTRACT, VERSIONS, is_in_force
from tallystick.ledger.contracts.state import Key
from tallystick.ledger.contracts.topics import ERASABLE, PADDED
from tallystick.parcel.header import TopicRef
from tallystick.parcel.labels import Wanted
from tallystick.record.schema import Schema
from tallystick.runtime.disk import Disk, read_all, write_atomic
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.permit import Operation, Permit

# Refusals after which a client asks no more: whoever goes on without the right ends on the blacklist.
RIGHT_REASONS = ("no-right", "unknown-topic", "blacklisted")
RIGHT_HINT = "the topic's owner gives rights: tally right grant; then start again"


def without_right(error: TallystickError) -> Refused | None:
    """The refusal to end with and what to do about it, if that is what the error means."""
    if isinstance(error, Refused) and error.reason in RIGHT_REASONS:
        return Refused(str(error), reason=error.reason, hint=RIGHT_HINT)
    return None


@dataclass(frozen=True)
class Held:
    """A grant as its holder keeps it: the first one, with every update folded in."""

    grant: Grant
    permit: Permit
    schemas: tuple[Schema, ...]

    @classmethod
    def of(cls, grant: Grant) -> Held:
        return cls(grant, Permit.decode(grant.permit), tuple(Schema.decode(text) for text in grant.schemas))

    def updated(self, update: Grant) -> Held:
        """Fold an update in: what it names replaces or adds, the rest stays."""
        if update.token != self.grant.token:
            raise Forged("grant: the update is for another topic")
        schemas = tuple(Schema.decode(text) for text in update.schemas) if update.schemas else self.schemas
        return Held(self.grant.updated(update), self.permit, schemas)

    def epoch(self, now_ms: int) -> GrantEpoch:
        """The epoch to seal under now."""
        for one in reversed(self.grant.epochs):
            if one.not_before_ms <= now_ms and (not one.not_after_ms or now_ms < one.not_after_ms):
                return one
        raise Unavailable("no epoch of the topic is current", hint="the authority must be reached for its keys")

    def erasure_key(self, publisher: bytes, now_ms: int) -> GrantErasureKey:
        """The key of this publisher's current period."""
        for one in reversed(self.grant.erasure_keys):
            if one.publisher == publisher and one.not_before_ms <= now_ms < one.not_after_ms:
                return one
        raise Unavailable("no erasure period of the topic is current")

    @property
    def is_erasable(self) -> bool:
        return bool(self.grant.settings.flags & ERASABLE)

    @property
    def is_padded(self) -> bool:
        return bool(self.grant.settings.flags & PADDED)


KeyRow = EpochRow | AttributeEpochRow | TopicKeyRow


def announced_keys(grant: Grant, before: Grant | None, authority: bytes) -> list[tuple[Key[KeyRow], bytes, str]]:
    """Where the ledger has the hashes of a grant's keys that were not in the one before: place, hash and name."""
    known = set() if before is None else {(one.number, one.public) for one in before.epochs}
    places: list[tuple[Key[KeyRow], bytes, str]] = [
        (EPOCHS(grant.token, one.number), key_hash(one.public), f"epoch {one.number} of topic {grant.token.hex()}")
        for one in grant.epochs
        if (one.number, one.public) not in known
    ]
    policies, old = grant.policies, None if before is None else before.policies
    if policies and policies.public and policies.epochs and (old is None or old.public != policies.public):
        newest = max(number for number, _ in policies.epochs)  # one key serves them all
        place = ATTRIBUTE_EPOCHS(authority, newest)
        places.append((place, authority_hash(policies.public), f"attribute epoch {newest}"))
    return places


def announced_beside(grant: Grant, before: Grant | None) -> list[tuple[Key[KeyRow], bytes, str]]:
    """The same for the keys of erasure periods and topic policies."""
    known = set() if before is None else {*before.erasure_keys, *(before.policies.topics if before.policies else ())}
    topic = f"of topic {grant.token.hex()}"
    erasure = [
        (erasure_key_name(one.publisher, one.period), one.key, f"erasure period {one.period} {topic}")
        for one in grant.erasure_keys
        if one not in known
    ]
    policies = [
        (
            policy_key_name(one.group, one.version, one.epoch),
            one.public,
            f"policy of group {one.group} {topic} in attribute epoch {one.epoch}",
        )
        for one in (grant.policies.topics if grant.policies else ())
        if one.public and one not in known
    ]
    return [(TOPIC_KEYS(grant.token, name), key_hash(key), what) for name, key, what in (*erasure, *policies)]


def check_keys(held: Held, before: Held | None, view: View, authority: bytes) -> Held:
    """A publisher's grant, if its keys are those that the ledger announces; what was checked `before` is not again.

    Raises `Forged` (`wrong-key`) for another key, and `Unavailable` where the ledger cannot be asked or does not show
    the epoch yet. A reader seals nothing.
    """
    if held.permit.operation is not Operation.ADVERTISE:
        return held
    checked = None if before is None else before.grant
    try:
        beside = announced_beside(held.grant, checked)
        if beside:
            versions, head = view.row_at(VERSIONS())
            beside = beside if is_in_force(versions, KEYS_CONTRACT, head.height) else []
        for place, expected, what in (*announced_keys(held.grant, checked, authority), *beside):
            row = view.wait_for(place, lambda row: row is not None)
            if row is None or row.key_hash != expected:
                raise Forged(
                    f"{what}: the authority gives another key than the ledger announces",
                    reason="wrong-key",
                    hint="nothing is sealed to it; tell the topic's owner and the authority's operator",
                )
    except Withheld as error:
        if error.reason != "stale-head":
            raise
        raise Unavailable(str(error), hint=error.hint) from error
    return held


log = logging.getLogger(__name__)

_AAD = b"tallystick kept grant 2"  # 1 was kept without having been held to the ledger


class Grants:
    """The grants of one identity, in a folder of their own."""

    def __init__(
        self, identity: Identity, authority: AuthorityClient, view: View, disk: Disk, clock: Clock, entropy: Entropy
    ) -> None:
        self._identity, self._authority, self._view, self._disk = identity, authority, view, disk
        self._clock, self._entropy = clock, entropy
        self._lock = threading.Lock()

    def obtain(
        self,
        operation: Operation,
        topic: str | bytes,
        first_epoch: int = 0,
        interest: str = "",
        *,
        again: bool = False,
    ) -> Held:
        """The grant kept from an earlier time, brought up to date; a new permit where there is none that counts, or
        where one is asked for `again`.

        A publisher whose authority cannot be reached gets what was kept; a subscriber would have no keys.
        """
        name = _name(operation, topic, first_epoch, interest)
        kept = None if again else self._load(name)
        if kept is not None and isinstance(topic, str) and kept.permit.tenant != self._identity.tenant:
            kept = None  # an older release asked, and believed that the name led there
        try:
            held = None if kept is None or self._ends_soon(kept.permit) else self._updated(kept)
            if held is None or self._is_outrun(held):
                held = Held.of(self._authority.permit(operation, topic, first_epoch, interest))
            check_keys(held, kept, self._view, self._identity.authority.subject)
        except Unavailable as error:
            if kept is None or operation is not Operation.ADVERTISE:
                raise
            log.warning("going on with the keys at hand: %s", error)
            return kept
        return self._keep(name, held)

    def _updated(self, kept: Held) -> Held | None:
        """What was kept, with what came since, or None where its permit does not count any more."""
        try:
            update = self._authority.keys(kept.permit.identifier, 0)
        except Refused as error:
            log.info("asking for a new permit: %s", error)
            return None
        return kept if update is None else kept.updated(update)

    def _ends_soon(self, permit: Permit) -> bool:
        """A permit in the last tenth of its time is replaced, so that a query or a drive does not outlive it."""
        left_ms = permit.not_after_ms - self._clock.now() * 1000
        return left_ms * 10 < permit.not_after_ms - permit.not_before_ms

    def _is_outrun(self, held: Held) -> bool:
        """Whether the permit has labels, and none for the topic's current epoch."""
        labels = held.permit.labels
        return bool(labels) and Wanted(labels).newest[0] < held.epoch(int(self._clock.now() * 1000)).number

    def save(self, held: Held, topic: str | bytes) -> None:
        """Keep a publisher's grant with what came since."""
        self._keep(_name(held.permit.operation, topic, 0), held)

    def _keep(self, name: str, held: Held) -> Held:
        grant = held.grant
        if held.permit.operation is Operation.SUBSCRIBE:
            grant = replace(grant, private_keys=(), erasure_keys=())
        data = wrap(self._identity.spool_key, grant.encode(), _AAD, self._entropy.bytes(32))
        try:
            with self._lock, self._disk.held("lock"):
                write_atomic(self._disk, name, data)
        except OSError as error:  # a full disk: the next start asks anew
            log.warning("the grant was not kept: %s", error.strerror)
        return held

    def _load(self, name: str) -> Held | None:
        if not self._disk.exists(name):
            return None
        try:
            plain = unwrap(self._identity.spool_key, read_all(self._disk, name), _AAD)
            held = Held.of(Grant.decode(plain))
        except (CannotOpen, Malformed) as error:
            log.warning("a kept grant cannot be read, asking anew: %s", error)
            return None
        return held if self._clock.now() * 1000 < held.permit.not_after_ms else None


def _name(operation: Operation, topic: str | bytes, first_epoch: int, interest: str = "") -> str:
    topic_bytes = topic.encode() if isinstance(topic, str) else topic
    content = bytes([operation, isinstance(topic, str)]) + first_epoch.to_bytes(4, "big") + topic_bytes
    if interest:
        content += named_hash("tallystick kept interest 1", interest.encode())
    return named_hash("tallystick kept grant 1", content).hex()[:32]


class KeySource(Protocol):
    """Where permits and keys come from: an authority, or who has them from one."""

    def permit(self, operation: Operation, topic: str | bytes) -> Grant: ...

    def keys(self, permit: bytes, seen: int, wait_ms: int = 0) -> Grant | None: ...


class Advertised:
    """The grants of one publisher, in the order of their tokens, which is that of a lane's topics."""

    def __init__(self, topics: str | Sequence[str], ties: Ties) -> None:
        self._carrier, self._authority, self._grants = ties.carrier, ties.authority, ties.grants
        self._clock, self._view, self._issuer = ties.clock, ties.view, ties.identity.authority.subject
        names = [topics] if isinstance(topics, str) else list(topics)
        obtained = [(self._obtain(name), name) for name in names]
        obtained.sort(key=lambda pair: pair[0].grant.token)
        self.held, self._names = [held for held, _ in obtained], [name for _, name in obtained]
        self.closed = False  # then what comes late is not kept: another process may have taken over
        self._said: tuple[bytes, bytes] | None = None  # what will be published, and who may get it

    def say(self, content: bytes, policy: bytes) -> None:
        """Show our permits to the node for the first time; later on say otherwise what goes under them, to a carrier
        that matches."""
        before, self._said = self._said, (content, policy)
        if before is not None and (before == self._said or not isinstance(self._carrier, Matched)):
            return
        try:
            self.show()
        except Unavailable as error:  # rows gather in the spool until the node can be reached
            if self._grants is None:
                raise
            log.warning("not advertised yet: %s", error)

    def _obtain(self, name: str) -> Held:
        if self._grants is not None:
            return self._grants.obtain(Operation.ADVERTISE, name)
        held = Held.of(self._authority.permit(Operation.ADVERTISE, name))
        return check_keys(held, None, self._view, self._issuer)

    def obtain_again(self) -> None:
        """New permits, where those at hand ended. Raises `Refused` if the right is gone."""
        self.held = [self._obtain(name) for name in self._names]

    def show(self) -> None:
        """Show our permits to the node."""
        for held in self.held:
            if isinstance(self._carrier, Matched):
                labels = held.grant.labels
                code, keys = (b"", ()) if labels is None else (labels.code, labels.keys)
                self._carrier.describe_offer(held.grant.permit, Offer(code, keys, *(self._said or ())))
            self._carrier.advertise(held.grant.permit)

    def update(self, wait_ms: int = 0) -> bool:
        """Ask the authority for news of epochs and schemas. Returns whether there was any. Raises `Forged` for a key
        that is not the ledger's."""
        news = False
        for number, held in enumerate(self.held):
            update = self._authority.keys(held.permit.identifier, held.grant.version, wait_ms)
            if update is not None:
                self.held[number] = check_keys(held.updated(update), held, self._view, self._issuer)
                if self._grants is not None and not self.closed:
                    self._grants.save(self.held[number], self._names[number])
                news = True
        return news

    @property
    def tokens(self) -> list[bytes]:
        return [held.grant.token for held in self.held]

    @property
    def schema(self) -> Schema:
        """The newest version of the topics' schema, as far as the authority's news have come."""
        return self.held[0].schemas[-1]

    def is_current(self, topics: Sequence[TopicRef]) -> bool:
        """Whether these epochs are the ones to seal under now."""
        now_ms = int(self._clock.now() * 1000)
        epochs = {held.grant.token: held.epoch(now_ms).number for held in self.held}
        return all(epochs[topic.token] == topic.epoch for topic in topics)

    def covers(self, topics: Sequence[TopicRef]) -> bool:
        """Whether the permits of these topics are the ones we hold."""
        held = {one.permit.identifier for one in self.held}
        return all(topic.permit in held for topic in topics)
