"""Kafka's own rules kept to the ledger's: rights as access control entries.

Threat: an administrator of Kafka who grants what the ledger does not (BPS 2.3, threat 1), or takes away what it does.
Every `check` compares what Kafka has with what the ledger says, undoes the difference, and names what nobody of ours
did: a *drift*. What happens to the topics themselves is looked after next door (`topics`).

Only what concerns this instance is looked at: entries on its topics and groups, whoever they are for; entries of its
principals on anything; and entries for everybody (`User:*`) that reach its topics, groups or the cluster by a wildcard
or a prefix. So several instances and other applications may share a Kafka. A difference is acted on when it is there
twice in a row: gateways learn of a block, and brokers of an entry, some moments one after the other. Offsets of groups
are kept in the same round (`offsets`).

Kafka's users are principals: `User:<identifier in hex>`. READ and WRITE on the ledger become READ and WRITE on the
topic, each with DESCRIBE; who may write may also write under several topics together, in transactions whose identifiers
begin with its own. A blacklisted principal has one entry that denies everything, and no password any more: its
connections end when Kafka next asks for it (`connections.max.reauth.ms`). Left out: what Kafka's super users read, and
other named users to whom its operator gave a wildcard; a gateway that is no super user is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tallystick.carriers.kafka.administration import AccessEntry, Administration, Spot, token_of
from tallystick.carriers.kafka.offsets import Offsets

USER, ANYBODY = "User:", "User:*"


@dataclass(frozen=True)
class Drift:
    """Something in Kafka that the ledger does not say; `token` is empty where it concerns no one topic."""

    reason: str  # acl-added, acl-removed, offset-moved; topic-changed, -deleted, -replaced, partitions-added
    what: str
    token: bytes = b""


@dataclass(frozen=True)
class WantedAccess:
    """What the ledger says: (principal, token) → operations, topics with their partitions, who there is, who of them is
    blacklisted, and where groups stand."""

    rights: Mapping[tuple[bytes, bytes], frozenset[str]]
    partitions: Mapping[bytes, int]
    principals: Collection[bytes] = ()
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
        self._denied: set[str] = set()
        self._offsets = Offsets(kafka)
        self._untold: list[Drift] = []  # found, where the rest of the round failed

    def check(self) -> list[Drift]:
        """Bring Kafka to what the ledger says. Returns what was changed behind the ledger's back."""
        wanted = self._wanted()
        self._untold += self._check_entries(wanted)
        self._untold += self._check_offsets(wanted)
        told, self._untold = self._untold, []
        return told

    def _check_entries(self, wanted: WantedAccess) -> list[Drift]:
        desired, found = wanted.entries(), wanted.concerns(self._kafka.access_entries())
        if self._initial is None:
            self._initial = found
        added, self._added = (found - desired) & self._added, found - desired
        missing, self._missing = (desired - found) & self._missing, desired - found
        self._kafka.change_access(missing, added)
        for entry in desired:
            if not entry.allowed and entry.user not in self._denied:
                self._kafka.forget_user(entry.user.removeprefix(USER))
                self._denied.add(entry.user)
        odd, lost = added - self._ever_wanted - self._initial - self._told, missing & self._seen
        self._told = (self._told & found) | odd
        self._ever_wanted |= desired
        self._seen = (self._seen | (desired & found)) - lost
        drift = [Drift("acl-added", _say(entry), _token(entry)) for entry in sorted(odd)]
        return drift + [Drift("acl-removed", _say(entry), _token(entry)) for entry in sorted(lost)]

    def _check_offsets(self, wanted: WantedAccess) -> list[Drift]:
        return [
            Drift(
                "offset-moved",
                f"group {one.spot.group.hex()}: {one.found} in partition {one.spot.place.partition} of topic"
                f" {one.spot.place.token.hex()}, {one.expected} on the ledger",
                one.spot.place.token,
            )
            for one in self._offsets.check(wanted.offsets)
        ]


def _say(entry: AccessEntry) -> str:
    what = {"TOPIC": "topic", "GROUP": "group", "BROKER": "cluster", "TRANSACTIONAL_ID": "transaction"}[entry.resource]
    which = f"{what}s that begin with" if entry.pattern == "PREFIXED" else what
    return f"{entry.user} {'may' if entry.allowed else 'may not'} {entry.operation} {which} {entry.name}"


def _token(entry: AccessEntry) -> bytes:
    return (token_of(entry.name) if entry.resource == "TOPIC" else None) or b""


def operations_of(value: Any, decide: Callable[[Any, int, str], bool], host: str) -> frozenset[str]:
    """What a right on the ledger (its rules) allows on Kafka."""
    return frozenset(name for name, right in (("READ", 1), ("WRITE", 2)) if decide(value, right, host))
