"""Kafka held to the ledger: its topics, its access control, and its copies of groups' offsets.

Every `check` compares what Kafka has with what the ledger says, undoes the difference, and names what neither ledger
nor notary asked for: a *drift*.

*Topics* are made once, kept as they were made, and known again. Threat: whoever administers Kafka switches compaction
or retention on for a sealed topic, adds partitions, so that lanes would land elsewhere, deletes the topic, or deletes
it and makes another of the same name. The last looks most harmless: the new one begins at offset 0, where other records
are anchored, and once it has grown past the old end, reading and writing on would pass for a continuation. Kafka gives
each topic an identity when it is made (KIP-516); this node keeps the first that it sees beside its index. A topic that
is gone, or has another identity, is *lost*: nothing is taken for it, read from it or anchored in it any more, and
no notary makes it again. Settings are put back; added partitions cannot be taken away, and are told.

Left out: what is written to the new topic between the deed and the next look, some second; a node that sees a topic for
the first time after the deed (it finds that the records are not those that were anchored, `notary.catch_up`).

*Rights* become access control entries. Threat: an administrator of Kafka who grants what the ledger does not (BPS 2.3,
threat 1), or takes away what it does.

Only what concerns this instance is looked at: entries on its topics and groups, whoever they are for; entries of its
principals on anything; and entries for everybody (`User:*`) that reach its topics, groups or the cluster by a wildcard
or a prefix. So several instances and other applications may share a Kafka. A difference is acted on when it is there
twice in a row: gateways learn of a block, and brokers of an entry, some moments one after the other.

Kafka's users are principals: `User:<identifier in hex>`. READ and WRITE on the ledger become READ and WRITE on the
topic, each with DESCRIBE; who may write may also write under several topics together, in transactions whose identifiers
begin with its own. A principal whose certificate was revoked or is over has no entries and no password any more, a
blacklisted one has one entry that denies everything, and no password: connections end when Kafka next asks for it
(`connections.max.reauth.ms`). Left out: what Kafka's super users read, and other named users to whom its operator gave
a wildcard; a gateway that is no super user is one of them.

Groups' offsets are shown in Kafka so that its own tools see how far behind a group is. Threat: somebody moves a group's
offset in Kafka (BPS 2.3, threat 2), so that whoever believes it reads rows twice or never. Members believe the ledger,
where an offset moves by its holder's own signed entry. What stands in Kafka is a copy, written by the notary for direct
readers and a gateway's alike, under the group's identifier in hex; no principal has Kafka's leave to commit. A copy
that no notary moved is a drift: told, and put back.

Of several notaries one may be a block ahead. What lies between where this one last saw the copy and where the ledger
has the offset now may be another's, and is brought up to date without a word; what lies outside, twice in a row, is
not. Left out: a copy that was moved before the notary started, or moved and put back between two looks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tallystick.carriers.kafka.administration import (
    GROUPS_AT_ONCE,
    TOPIC_SETTINGS,
    AccessEntry,
    Administration,
    FoundTopic,
    Spot,
    token_of,
)
from tallystick.carriers.kafka.failures import REPLICAS
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Place
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import TallystickError, Unavailable

log = logging.getLogger(__name__)

ANY_S = 5.0  # for any broker to answer
GONE, REPLACED = "is gone", "was deleted, and another was made under its name"
USER, ANYBODY = "User:", "User:*"
REFRESH_LOOKS = 20_000  # some hours: Kafka forgets an idle group's offsets after a week (offsets.retention.minutes)


@dataclass(frozen=True)
class Drift:
    """Something in Kafka that the ledger does not say; `token` is empty where it concerns no one topic."""

    reason: str  # acl-added, acl-removed, offset-moved; topic-changed, -deleted, -replaced, partitions-added
    what: str
    token: bytes = b""


def identity_name(token: bytes) -> bytes:
    """Under which the store keeps the identity of a topic."""
    return named_hash("tallystick kafka topic blob 1", token)


class KafkaTopics:
    """One node's; `check` and `make` belong to one thread, `trouble` may be asked by any."""

    def __init__(self, kafka: Administration, beside: LogStore, is_anchored: Callable[[bytes], bool]) -> None:
        """`beside` keeps the identities; `is_anchored` tells whether the ledger knows of records in a topic."""
        self._kafka, self._beside, self._is_anchored = kafka, beside, is_anchored
        self._lost: dict[bytes, str] = {}  # and what happened to them
        self._offline: frozenset[Place] = frozenset()
        self.away: Unavailable | None = None  # why the last look found no Kafka, if it did not
        self._grown: set[bytes] = set()  # topics whose added partitions were told

    def make(self, token: bytes, partitions: int, replicas: int) -> None:
        """Make a topic that never was; what was there once is not put back."""
        if self._identity(token) is None and not self._is_anchored(token):
            self._kafka.make_topic(token, partitions, replicas)

    def is_lost(self, token: bytes) -> bool:
        return token in self._lost

    def trouble(self, place: Place) -> Unavailable | None:
        """Why nothing can be written there now, as far as the last look tells."""
        if place.token in self._lost:
            return _lost(place.token, self._lost[place.token])
        if place in self._offline:
            return Unavailable(f"kafka: {place}: no broker serves it", retry_after_s=1.0, hint=REPLICAS)
        return self.away

    def replaced(self, token: bytes) -> Unavailable:
        """Kafka gave an offset that was anchored before: the topic is another one."""
        return _lost(token, REPLACED)

    def check(self, wanted: Mapping[bytes, int]) -> Iterable[Drift]:
        """Look at these topics (token → partitions on the ledger). Yields what was changed behind the ledger's back, as
        it is found: the rest of the look may fail."""
        try:
            found = self._kafka.find_topics(list(wanted))
        except Unavailable:  # perhaps only the controller is away, without whom brokers go on
            self.away = self._ask_any()
            raise
        self.away = None
        yield from self._check_lost(wanted, found)
        kept = {token: topic for token, topic in found.items() if token not in self._lost}
        self._offline = frozenset(Place(token, one) for token, topic in kept.items() for one in topic.offline)
        yield from self._check_partitions(wanted, kept)
        yield from self._check_settings(kept)

    def _ask_any(self) -> Unavailable | None:
        try:
            self._kafka.broker_count(ANY_S)
        except Unavailable as error:
            return error
        return None

    def _check_lost(self, wanted: Mapping[bytes, int], found: Mapping[bytes, FoundTopic]) -> list[Drift]:
        before = self._lost
        closed = {token: what for token, what in before.items() if token not in wanted}
        lost = {token: what for token in wanted if (what := self._what_happened(token, found.get(token)))}
        self._lost = closed | lost
        return [
            Drift("topic-deleted" if token not in found else "topic-replaced", f"topic {token.hex()} {what}", token)
            for token, what in sorted(lost.items())
            if before.get(token) != what
        ]

    def _what_happened(self, token: bytes, found: FoundTopic | None) -> str | None:
        """How a topic was lost, if it was; one that is seen for the first time is remembered."""
        known = self._identity(token)
        if found is None:
            return GONE if known is not None or self._is_anchored(token) else None
        if known is None:
            self._beside.deposit(identity_name(token), found.identity)  # durable with whatever is synced next
        elif known != found.identity:
            return REPLACED
        return None

    def _identity(self, token: bytes) -> bytes | None:
        return self._beside.blobs.get(identity_name(token))

    def _check_settings(self, kept: Mapping[bytes, FoundTopic]) -> Iterable[Drift]:
        for token, settings in self._kafka.topic_settings(list(kept)).items():
            changed = {name: value for name, value in settings.items() if value != TOPIC_SETTINGS[name]}
            if changed:
                self._kafka.restore_settings(token)
                what = ", ".join(f"{name} was {value}" for name, value in sorted(changed.items()))
                yield Drift("topic-changed", f"topic {token.hex()}: {what}", token)

    def _check_partitions(self, wanted: Mapping[bytes, int], kept: Mapping[bytes, FoundTopic]) -> list[Drift]:
        grown = {token for token, topic in kept.items() if topic.partitions != wanted[token]} - self._grown
        self._grown |= grown
        return [
            Drift(
                "partitions-added",
                f"topic {token.hex()}: {kept[token].partitions} partitions, {wanted[token]} on the ledger",
                token,
            )
            for token in sorted(grown)
        ]


def _lost(token: bytes, what: str) -> Unavailable:
    hint = "close it (tally topic close) and create another: Kafka cannot give back what it held"
    return Unavailable(f"kafka: topic {token.hex()} {what}", hint=hint)  # no delay would help


@dataclass(frozen=True)
class WantedAccess:
    """What the ledger says: (principal, token) → operations, topics with their partitions, who there is and whether its
    certificate still counts, who of them is blacklisted, and where groups stand."""

    rights: Mapping[tuple[bytes, bytes], frozenset[str]]
    partitions: Mapping[bytes, int]
    principals: Mapping[bytes, bool] = field(default_factory=dict)
    blacklisted: Collection[bytes] = ()
    offsets: Mapping[Spot, int] = field(default_factory=dict)

    def entries(self) -> frozenset[AccessEntry]:
        denied = {AccessEntry(USER + principal.hex(), "*", "ALL", False) for principal in self.blacklisted}
        allowed = {
            AccessEntry(USER + principal.hex(), token.hex(), operation)
            for (principal, token), operations in self.rights.items()
            for operation in (*operations, "DESCRIBE")
            if operations
        }
        together = {
            AccessEntry(
                USER + principal.hex(), principal.hex(), "WRITE", pattern="PREFIXED", resource="TRANSACTIONAL_ID"
            )
            for (principal, _), operations in self.rights.items()
            if "WRITE" in operations
        }
        return frozenset(allowed | denied | together)

    def without_password(self) -> frozenset[str]:
        """The users whom Kafka shall not know any more."""
        over = {principal for principal, is_live in self.principals.items() if not is_live}
        return frozenset(one.hex() for one in over.union(self.blacklisted))

    def concerns(self, found: Iterable[AccessEntry]) -> frozenset[AccessEntry]:
        """The entries that are this instance's business."""
        users = {USER + principal.hex() for principal in self.principals}
        names = {
            "TOPIC": {token.hex() for token in self.partitions},
            "GROUP": {spot.group.hex() for spot in self.offsets},
        }
        return frozenset(entry for entry in found if entry.user in users or _reaches(entry, names))


def _reaches(entry: AccessEntry, names: Mapping[str, Collection[str]]) -> bool:
    """Whether an entry names something of ours, or gives everybody something wide that covers it."""
    ours = names.get(entry.resource, ())
    if entry.name in ours and entry.pattern == "LITERAL":
        return True
    if entry.user != ANYBODY:
        return False
    if entry.resource not in names:  # the cluster; identifiers of transactions, which begin with a principal's
        return entry.name == "*" or entry.resource == "BROKER"
    if entry.pattern == "LITERAL":
        return entry.name == "*"
    return any(name.startswith(entry.name) for name in ours)


class Reconciler:
    """One notary's; several do no harm, since all bring Kafka to the same state."""

    def __init__(self, kafka: Administration, wanted: Callable[[], WantedAccess]) -> None:
        self._kafka, self._wanted = kafka, wanted
        self._initial: frozenset[AccessEntry] | None = None  # there when this reconciler began: nobody can say by whom
        self._ever_wanted: set[AccessEntry] = set()  # since then; what the owner withdrew is no drift
        self._seen: set[AccessEntry] = set()  # wanted, and found in Kafka
        self._told: frozenset[AccessEntry] = frozenset()  # taken away, and still shown
        self._added: frozenset[AccessEntry] = frozenset()  # differences at the last look
        self._missing: frozenset[AccessEntry] = frozenset()
        self._forgotten: frozenset[str] = frozenset()  # users whose passwords are gone
        self._offsets = Offsets(kafka)

    def check(self) -> Iterable[Drift]:
        """Bring Kafka to what the ledger says. Yields what was changed behind the ledger's back, as it is found: the
        rest of the round may fail."""
        wanted = self._wanted()
        yield from self._check_entries(wanted)
        yield from self._offsets.check(wanted.offsets)

    def _check_entries(self, wanted: WantedAccess) -> list[Drift]:
        desired, found = wanted.entries(), wanted.concerns(self._kafka.access_entries())
        if self._initial is None:
            self._initial = found
        added, self._added = (found - desired) & self._added, found - desired
        missing, self._missing = (desired - found) & self._missing, desired - found
        self._kafka.change_access(missing, added)
        ended = wanted.without_password()
        self._kafka.forget_users(sorted(ended - self._forgotten))
        self._forgotten = ended  # one that counts again, and asks for a password, may end once more
        odd, lost = added - self._ever_wanted - self._initial - self._told, missing & self._seen
        self._told = (self._told & found) | odd
        self._ever_wanted |= desired
        self._seen = (self._seen | (desired & found)) - lost
        drift = [Drift("acl-added", _say(entry), _token(entry)) for entry in sorted(odd)]
        return drift + [Drift("acl-removed", _say(entry), _token(entry)) for entry in sorted(lost)]


def _say(entry: AccessEntry) -> str:
    what = {"TOPIC": "topic", "GROUP": "group", "BROKER": "cluster", "TRANSACTIONAL_ID": "transaction"}[entry.resource]
    which = f"{what}s that begin with" if entry.pattern == "PREFIXED" else what
    return f"{entry.user} {'may' if entry.allowed else 'may not'} {entry.operation} {which} {entry.name}"


def _token(entry: AccessEntry) -> bytes:
    return (token_of(entry.name) if entry.resource == "TOPIC" else None) or b""


class Offsets:
    """One notary's copies; an offset that is not there is taken for 0, as Kafka's tools take it."""

    def __init__(self, kafka: Administration) -> None:
        self._kafka = kafka
        self._looks = self._turn = 0
        self._stood: dict[Spot, int] = {}  # where Kafka and the ledger last agreed
        self._odd: dict[Spot, int] = {}  # found elsewhere at the last look
        self._told: dict[Spot, int] = {}

    def check(self, wanted: Mapping[Spot, int]) -> list[Drift]:
        """Bring Kafka to what the ledger says of some groups, in turn. Returns what was moved behind the ledger's
        back."""
        groups = self._next_groups({spot.group for spot in wanted})
        looked_at = {spot: offset for spot, offset in wanted.items() if spot.group in groups}
        found, stale, moved = self._kafka.group_offsets(looked_at), dict[Spot, int](), list[Drift]()
        self._looks += 1
        for spot, expected in looked_at.items():
            shown = found.get(spot, 0)
            if shown == expected:
                self._agree(spot, shown)
                if expected and self._looks % REFRESH_LOOKS == 0:
                    stale[spot] = expected
            elif self._may_be_ours(spot, shown, expected):
                stale[spot] = expected
            elif self._odd.get(spot) != shown:
                self._odd[spot] = shown
            else:
                stale[spot] = expected
                if self._told.get(spot) != shown:
                    self._told[spot] = shown
                    moved.append(_moved(spot, shown, expected))
        for group in sorted({spot.group for spot in stale}):
            self._put({spot: offset for spot, offset in stale.items() if spot.group == group})
        return moved

    def _may_be_ours(self, spot: Spot, shown: int, expected: int) -> bool:
        stood = self._stood.get(spot)
        return stood is None or min(stood, expected) <= shown <= max(stood, expected)

    def _next_groups(self, groups: Collection[bytes]) -> set[bytes]:
        waiting = sorted(groups)
        self._turn %= max(1, len(waiting))
        chosen = (waiting[self._turn :] + waiting[: self._turn])[:GROUPS_AT_ONCE]  # with more, each has its turn
        self._turn += len(chosen)
        return set(chosen)

    def _put(self, offsets: Mapping[Spot, int]) -> None:
        try:
            self._kafka.set_group_offsets(offsets)
        except TallystickError as error:  # somebody reads in the group's name now: it is told, and tried again
            log.warning("%s", error)
            return
        for spot, offset in offsets.items():
            self._agree(spot, offset)

    def _agree(self, spot: Spot, offset: int) -> None:
        self._stood[spot] = offset
        self._odd.pop(spot, None)
        self._told.pop(spot, None)


def _moved(spot: Spot, found: int, expected: int) -> Drift:
    place = spot.place
    what = f"{found} in partition {place.partition} of topic {place.token.hex()}, {expected} on the ledger"
    return Drift("offset-moved", f"group {spot.group.hex()}: {what}", place.token)
