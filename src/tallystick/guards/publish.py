"""The publish guard (EventGuard 4.4, BPS Algorithm 1).

Cheapest first: size, version, known permit, right, sequence, epoch, and only then the signature; a flood of junk
costs a parse. One parcel is judged alone, so a mixed request is taken in part, with a result per parcel (BPS
Algorithm 1 filters messages one by one).

The sequence comes before everything that may change under a parcel that is stored already: a publisher whose answer
was lost asks again, maybe after the epoch ended, and must hear that it is stored. "Epoch over" would make it seal the
same rows a second time.

What it does not do: judge a parcel's own time. A parcel may be days old, from a car without network; freshness is
that of the envelope. Order comes from sequences, validity from block time.

`Lanes` holds the last head of every lane, which stops replays of old parcels whatever their envelope. It is keyed by
publisher and lane, so that nobody can take another's lane identifier. A carrier that keeps the log can always rebuild
it from headers; it is never forgotten, only bounded by what a principal may open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tallystick.errors import Malformed, Refused
from tallystick.guards.rules import (
    Act,
    GuardLimits,
    Live,
    Rules,
    check_carried,
    check_permit,
    check_principal,
    check_topic,
)
from tallystick.parcel.header import Header, ParcelKind
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.verify import check_signature
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.right import Right


@dataclass(frozen=True, slots=True)
class Head:
    """The last parcel of a lane: its sequence and hash; after `closed` nothing follows."""

    sequence: int
    parcel: bytes
    closed: bool


class Lanes:
    """Over a `base`, only what goes beyond it is kept here, and whichever is further on counts."""

    def __init__(self, lanes_max: int, base: Lanes | None = None) -> None:
        self._lanes_max, self._base = lanes_max, base
        self._heads: dict[tuple[bytes, bytes], Head] = {}
        self._opened: defaultdict[bytes, set[bytes]] = defaultdict(set)  # by principal, less those of the base

    def head(self, principal: bytes, lane: bytes) -> Head | None:
        head = self._heads.get((principal, lane))
        if self._base is None:
            return head
        below = self._base.head(principal, lane)
        return below if head is None or (below is not None and below.sequence >= head.sequence) else head

    def advance(self, principal: bytes, header: Header) -> None:
        """Remember an accepted parcel as the lane's head."""
        self.restore(principal, header.lane, Head(header.sequence, header.hash, header.kind is ParcelKind.CLOSE))

    def restore(self, principal: bytes, lane: bytes, head: Head | None) -> None:
        """Put a lane's head back to what it was; None forgets the lane."""
        self._opened[principal].discard(lane)
        if head is None:
            self._heads.pop((principal, lane), None)
            return
        self._heads[principal, lane] = head
        if self._base is None or self._base.head(principal, lane) is None:
            self._opened[principal].add(lane)

    def opened(self, principal: bytes) -> int:
        """How many lanes a principal has opened."""
        return len(self._opened.get(principal, ())) + (0 if self._base is None else self._base.opened(principal))

    def items(self) -> Iterator[tuple[bytes, bytes, Head]]:
        """Every lane: (principal, lane, head)."""
        return ((principal, lane, head) for (principal, lane), head in self._heads.items())

    def check_next(self, principal: bytes, header: Header) -> bool:
        """Return False if the parcel is exactly the next one, True if it is the head once more, which blames nobody and
        is answered with its first offset. An earlier one is `Refused` as `behind`: whether it repeats or contradicts
        what lies there, the carrier finds out from the log. One ahead is answered with the sequence expected, without
        blame."""
        head = self.head(principal, header.lane)
        if head is None:
            if self.opened(principal) >= self._lanes_max:
                raise Refused(f"at most {self._lanes_max} lanes for one principal", reason="too-many-lanes")
            expected = 0
        else:
            expected = head.sequence + 1
            if (header.sequence, header.hash) == (head.sequence, head.parcel):
                return True
        if header.sequence > expected:
            raise Ahead(expected)
        if header.sequence < expected:
            raise Behind(header.sequence)
        if head is not None and header.previous != head.parcel:
            raise Refused("the parcel does not follow the lane's head", reason="broken-chain")
        if head is not None and head.closed:
            raise Refused("the lane is closed", reason="lane-closed", hint="open a new lane")
        return False


class Ahead(Refused):
    """Parcels before this one have not arrived; the answer names the sequence expected."""

    reason = "ahead"

    def __init__(self, expected: int) -> None:
        super().__init__(f"sequence {expected} expected")
        self.expected = expected


class Behind(Refused):
    """A parcel at or below the lane's head: a replay, a late duplicate, or an equivocation."""

    reason = "behind"

    def __init__(self, sequence: int) -> None:
        super().__init__(f"sequence {sequence} was taken already")
        self.sequence = sequence


@dataclass(frozen=True)
class JudgedParcel:
    """A parcel that blames nobody, its permit, and the partition where it lies in each of its topics."""

    parcel: Parcel
    permit: Permit
    partitions: tuple[int, ...]  # one per topic of the header


class Accepted(JudgedParcel):
    """A parcel that may be stored."""


class Repeated(JudgedParcel):
    """The head of its lane once more."""


class Contradiction(Refused):
    """A validly signed parcel at a sequence already taken; with the one that lies there it may prove equivocation."""

    reason = "behind"

    def __init__(self, parcel: Parcel, permit: Permit, partitions: tuple[int, ...]) -> None:
        super().__init__(f"sequence {parcel.header.sequence} was taken already")
        self.parcel, self.permit, self.partitions = parcel, permit, partitions


def publish(
    data: bytes | memoryview,
    act: Act,
    rules: Rules,
    live: Live,
    lanes: Lanes,
    has_lock: Callable[[bytes], bool],
    limits: GuardLimits,
) -> Accepted | Repeated:
    """Judge one parcel; the caller stores what is `Accepted` and then advances the lane."""
    check_sender(len(data), act, rules, limits)
    judged = judge(Parcel.decode(data), act, rules, live, lanes, has_lock)
    if isinstance(judged, Accepted):  # what is stored already was taken while it was carried here
        for topic, partition in zip(judged.parcel.header.topics, judged.partitions, strict=True):
            check_carried(rules, topic.token, partition)
    return judged


def check_sender(size_bytes: int, act: Act, rules: Rules, limits: GuardLimits) -> None:
    """What can be told of a parcel without reading it."""
    if size_bytes > limits.parcel_bytes_max:
        raise Refused(
            f"parcel: {size_bytes} bytes, at most {limits.parcel_bytes_max} are taken",
            reason="too-large",
            hint="seal fewer records a parcel",
        )
    check_principal(rules, act)


def judge(
    parcel: Parcel, act: Act, rules: Rules, live: Live, lanes: Lanes, has_lock: Callable[[bytes], bool]
) -> Accepted | Repeated:
    """The rest of `publish`."""
    header = parcel.header
    if header.instance != rules.instance:
        raise Malformed("parcel: of another instance", reason="wrong-instance")
    permit, partitions = _check_permits(header, act, rules, live)
    try:
        repeated = lanes.check_next(act.principal, header)
    except Behind:
        # Only a signature makes this anybody's doing; then the carrier compares it with what lies there.
        check_signature(parcel, permit.verify_key)
        raise Contradiction(parcel, permit, partitions) from None
    if repeated:
        check_signature(parcel, permit.verify_key)
        return Repeated(parcel, permit, partitions)
    _check_current(header, act, rules)
    check_signature(parcel, permit.verify_key)
    for group in header.groups:
        for lock in group.locks:
            if not has_lock(lock):
                raise Refused(
                    f"lock {lock.hex()[:8]} is not here", reason="unknown-lock", hint="send the lock before its parcels"
                )
    parcel.check_body()
    return Accepted(parcel, permit, partitions)


def _check_permits(header: Header, act: Act, rules: Rules, live: Live) -> tuple[Permit, tuple[int, ...]]:
    """All topics of the lane or none (EventGuard 4.4 publishes under several)."""
    partitions = []
    permit: Permit | None = None
    for topic in header.topics:
        permit = live.get(topic.permit)
        if permit is None or permit.operation is not Operation.ADVERTISE:
            raise Refused("no live advertisement under this permit", reason="not-advertised", hint="advertise first")
        if permit.principal != act.principal:
            raise Refused("the permit was issued to another principal", reason="not-yours")
        permit.check_covers(Operation.ADVERTISE, topic.token, topic.epoch)
        permit.check_time(act.time_ms)
        partitions.append(header.partition(check_topic(rules, act, topic.token, Right.WRITE).partitions))
    assert permit is not None  # a header has at least one topic
    return permit, tuple(partitions)


def _check_current(header: Header, act: Act, rules: Rules) -> None:
    """What a new parcel must agree with: an open topic, a permit that counts, one of its schemas, a current epoch."""
    for topic in header.topics:
        known = rules.topic(topic.token)
        if known is None or known.closed:
            raise Refused("the topic is closed", reason="topic-closed")
        check_permit(rules, topic.permit)
        if not rules.schema_known(topic.token, header.schema_version, header.schema_hash):
            raise Refused(
                f"schema version {header.schema_version} is not the topic's",
                reason="wrong-schema",
                hint="ask the authority for the topic's schemas",
            )
        if not rules.epoch_taken(topic.token, topic.epoch, act.time_ms):
            raise Refused(
                f"epoch {topic.epoch} is over", reason="epoch-over", hint="seal again under the current epoch"
            )
