"""The publish guard (EventGuard 4.4, BPS Algorithm 1).

Cheapest first: size, version, known permit, right, sequence, epoch, and only then the signature; a flood of junk
costs a parse. One parcel is judged alone, so a mixed request is taken in part, with a result per parcel (BPS
Algorithm 1 filters messages one by one).

The sequence comes before everything that may change under a parcel that is stored already: a publisher whose answer
was lost asks again, maybe after the epoch ended, and must hear that it is stored. "Epoch over" would make it seal the
same rows a second time.

What it does not do: judge a parcel's own time. A parcel may be days old, from a car without network; freshness is
that of the envelope. Order comes from sequences, validity from block time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tallystick.errors import Malformed, Refused
from tallystick.guards.lanes import Behind, Duplicate, Lanes
from tallystick.guards.live import Live
from tallystick.guards.rules import Act, GuardLimits, Rules, check_principal, check_topic
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.verify import check_signature
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.right import Right


@dataclass(frozen=True)
class Accepted:
    """A parcel that may be stored: in this partition of each of its topics."""

    parcel: Parcel
    permit: Permit
    partitions: tuple[int, ...]  # one per topic of the header


@dataclass(frozen=True)
class Repeated:
    """The head of its lane once more."""

    parcel: Parcel
    permit: Permit
    partitions: tuple[int, ...]


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
    return judge(Parcel.decode(data), act, rules, live, lanes, has_lock)


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
    if isinstance(repeated, Duplicate):
        check_signature(parcel, permit.verify_key)
        return Repeated(parcel, permit, partitions)
    _check_current(header, act, rules)
    check_signature(parcel, permit.verify_key)
    for group in header.groups:
        for lock in group.locks:
            if not has_lock(lock):
                raise Refused(
                    f"lock {lock.hex()[:8]} is not here",
                    reason="unknown-lock",
                    hint="send the lock before its parcels",
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
        if rules.permit_ended(topic.permit):  # revoked since it was admitted, with its key or its right
            raise Refused("permit: undone, revoked or never issued", reason="permit-ended")
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
