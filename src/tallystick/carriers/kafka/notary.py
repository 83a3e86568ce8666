"""The notary: the guards' work behind Kafka, where nothing of ours stands in front.

Threat: clients that write to Kafka what they may not; a Kafka that alters, drops, repeats or reorders; a second notary
that goes on where this one was thought dead. For every partition of a sealed topic the notary reads on from the end of
its index, judges each record as the publish guard would, and writes one anchor: size, root, the size it continues, and
the offsets that it refuses. What it refuses is so marked before any reader, who stays below the anchor, can open it.

Leaf i is offset i: the parcel's hash; a void where the record was refused, or where there is none. The root is thus a
function of the records and of the refusals in the anchor, and any notary can compute it again. Of several, the first to
write wins; the others learn the refusals from the ledger, and hold the records that they read to the root (`catch_up`).
Where they find another root, Kafka showed two notaries different records, or changed them in between.

Trees, proofs and the heads of lanes come from the index (storage.py), which grows behind the ledger. Left out: judging
anew what another notary let pass; readers do that.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tallystick.carriers.accounts import Deposits
from tallystick.carriers.carrier import Void
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.consumers import Record, Tail
from tallystick.carriers.kafka.passage import Passage
from tallystick.carriers.kafka.storage import KafkaIndex
from tallystick.carriers.rules import LedgerRules
from tallystick.carriers.storage import Place
from tallystick.errors import Refused, Withheld
from tallystick.guards.publish import Contradiction, Lanes, Repeated, check_sender, judge
from tallystick.guards.rules import Act, GuardLimits, Live, TopicRules
from tallystick.ledger import entries
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.counting import Counts
from tallystick.trust.promise import REFUSALS_MAX, Anchor, Refusal
from tallystick.trust.right import Right

log = logging.getLogger(__name__)

HOST = "kafka"  # where a direct client's act came from, as far as anybody can tell
READ_BYTES = 64 << 20  # of one partition at once, where an index catches up
WAITING_BYTES = 256 << 20  # of records in memory, where the ledger does not take anchors or others are to write them


@dataclass(frozen=True)
class Judged:
    """One offset: a parcel of `principal`, a void, or both where the parcel lies here a second time."""

    offset: int
    parcel: Parcel | None = None
    void: Void | None = None
    principal: bytes = b""
    passed: bool = False  # a gateway wrote the operation down

    @property
    def is_new(self) -> bool:
        """Whether it is a parcel that readers shall open here."""
        return self.parcel is not None and self.void is None

    @property
    def reason(self) -> str:
        """Why it was refused, if it was."""
        return "" if self.void is None else self.void.reason

    @property
    def hash(self) -> bytes:
        return self._shown.hash

    @property
    def header(self) -> bytes:
        """What the index keeps."""
        return self._shown.encode() if isinstance(self._shown, Void) else self._shown.encode_front()

    @property
    def _shown(self) -> Parcel | Void:
        found = self.void or self.parcel
        assert found is not None
        return found


def _empty(first: int, end: int) -> list[Judged]:
    """Offsets at which nothing is to be seen."""
    return [Judged(offset, void=Void()) for offset in range(first, end)]


def is_passed(data: bytes | None, parcel: bytes, place: Place, rules: LedgerRules) -> bool:
    """Whether these bytes are the word, for a parcel of this hash, of a node that carries the partition: any other node
    judges topics of its own."""
    if data is None:
        return False
    try:
        passage = Passage.decode(data)
        key = rules.node_key(passage.node)
        if key is None or not rules.is_carried_by(passage.node, *place):
            return False
        passage.verify(parcel, key)
    except Refused:
        return False
    return True


class Judgement(NamedTuple):
    """Consecutive offsets of a partition, as far as one anchor can tell."""

    place: Place
    items: list[Judged]
    anchor: Anchor


class Notary:
    """Driven from outside, by one thread: `catch_up` with the ledger, then `judge` what is new, write it, `take` it."""

    def __init__(
        self,
        kafka: KafkaClient,
        index: KafkaIndex,
        rules: LedgerRules,
        live: Live,
        deposits: Deposits,
        limits: GuardLimits,
        contradicted: Callable[[Contradiction, Place], bool],
        lies: Callable[[Place, bytes, Parcel], bool],
    ) -> None:
        """`contradicted` hears of a signed parcel at a sequence that is taken, and says whether it is the one that lies
        there; `lies` says that of a principal's parcel and accuses nobody."""
        self._kafka, self._index, self._rules, self._live = kafka, index, rules, live
        self._deposits, self._limits, self._contradicted, self._lies = deposits, limits, contradicted, lies
        self._passed_rules = PassedRules(rules.instance, rules.read)
        self._tail = Tail(kafka.consumer())
        self._waiting: dict[Place, list[Record]] = {}  # read, and not yet judged for good
        self._taken, self._refused = 0, Counts()

    # New records.

    def poll(self, places: Collection[Place], timeout_s: float) -> bool:
        """Read on in these partitions, unless too much waits already; nothing waits of others. Returns whether anything
        waits to be judged."""
        self._waiting = {place: self._waiting[place] for place in places if place in self._waiting}
        if self._waiting_bytes < WAITING_BYTES:
            self._tail.follow({place: self._read_end(place) for place in places})
            for place, records in self._tail.poll(timeout_s).items():
                self._waiting.setdefault(place, []).extend(_rising(records, self._read_end(place)))
        return any(self._waiting.values())

    def judge(self, time_ms: int, is_due: Callable[[Place], bool] = lambda _: True) -> list[Judgement]:
        """What to write about each partition in which records wait and that is due."""
        paced = self._rules.may_anchor
        waiting = [place for place, records in self._waiting.items() if records and paced(*place, time_ms)]
        waiting = [place for place in waiting if is_due(place)]
        return [self._judge_partition(place, time_ms) for place in waiting]

    def _judge_partition(self, place: Place, time_ms: int) -> Judgement:
        before = self._index.end(place)
        lanes = Lanes(self._limits.lanes_max, self._index.lanes(place))
        items: list[Judged] = []
        refused: list[Refusal] = []
        taken: set[bytes] = set()
        for record in self._waiting[place]:
            items += _empty(before + len(items), record.offset)
            one = self._judge(record, place, lanes, taken, time_ms)
            if one.reason and not _add(refused, one):
                break
            if one.is_new:
                taken.add(one.hash)
            items.append(one)
        root = self._index.root_with(place, [one.hash for one in items])
        anchor = Anchor(place.token, place.partition, before + len(items), root, before, tuple(refused))
        return Judgement(place, items, anchor)

    def _judge(self, record: Record, place: Place, lanes: Lanes, taken: set[bytes], time_ms: int) -> Judged:
        """The publish guard's word on a record."""
        try:
            parcel = Parcel.decode(record.value)
            permit = self._live.get(parcel.header.topics[0].permit)
            if permit is None:
                raise Refused("no live advertisement under this permit", reason="not-advertised")
            principal, passed = permit.principal, is_passed(record.passage, parcel.hash, place, self._rules)
            act = Act(principal, HOST, parcel.hash, time_ms)
            rules = self._passed_rules if passed else self._rules
            try:
                check_sender(len(record.value), act, rules, self._limits)
                judged = judge(parcel, act, rules, self._live, lanes, self._deposits.has_lock)
                partitions, repeated = judged.partitions, isinstance(judged, Repeated)
            except Contradiction as error:
                if parcel.hash not in taken and not self._contradicted(error, place):
                    raise Refused(str(error), reason="equivocation") from error
                partitions, repeated = error.partitions, True
            places = [(t.token, number) for t, number in zip(parcel.header.topics, partitions, strict=True)]
            if tuple(place) not in places:
                raise Refused("the lane does not belong in this partition", reason="wrong-partition")
        except Refused as error:
            return Judged(record.offset, void=Void.refused(record.value, error.reason))
        if repeated:
            return Judged(record.offset, parcel, Void.repeated(parcel.hash), principal, passed)
        lanes.advance(principal, parcel.header)
        return Judged(record.offset, parcel, None, principal, passed)

    def _is_known(self, place: Place, principal: bytes, parcel: Parcel, taken: set[bytes]) -> bool:
        """Whether the same parcel was taken before: Kafka may hold it twice, and that blames nobody."""
        head = self._index.lanes(place).head(principal, parcel.header.lane)
        behind = head is not None and parcel.header.sequence <= head.sequence
        return parcel.hash in taken or (behind and self._lies(place, principal, parcel))

    # What was written.

    def operations(self, judgement: Judgement, now_ms: int) -> list[bytes]:
        """The operations of direct clients in it: one entry for each principal, and one for each reason of a refusal.
        Gateways write their own."""
        place, _, _ = judgement
        accepted: dict[bytes, list[Judged]] = {}
        reasons: Counter[str] = Counter()
        for one in judgement.items:
            if one.is_new and not one.passed:
                accepted.setdefault(one.principal, []).append(one)
            elif one.reason:
                reasons[one.reason] += 1
        written = [
            entries.published(principal, *place, [(one.offset, one.hash) for one in items], now_ms, HOST)
            for principal, items in accepted.items()
        ]
        return written + [
            entries.junk(reason, count, int(Right.WRITE), time_ms=now_ms) for reason, count in reasons.items()
        ]

    def take(self, judgement: Judgement, now_ms: int) -> None:
        """The anchor is on the ledger: the index grows, and the records need not wait any more."""
        place, items, anchor = judgement
        self._index.grow(place, [(one.hash, one.header) for one in items], now_ms)
        for one in items:
            if one.reason:
                self._refused.add(one.reason)
            else:
                self._taken += 1
            if one.parcel is not None and one.is_new:
                self._index.learn(place, one.principal, one.parcel.header)
        self._waiting[place] = [record for record in self._waiting.get(place, []) if record.offset >= anchor.size]

    def catch_up(self, anchor: Anchor, now_ms: int) -> list[Judged]:
        """Bring the index up to an anchor that another notary wrote (or this one, before a crash). Returns what is new
        in it.

        Raises `Withheld` where Kafka shows other records than that notary saw.
        """
        place = Place(anchor.token, anchor.partition)
        end = self._index.end(place)
        if anchor.size <= end:
            return []
        if anchor.before != end:
            raise Withheld(f"{place}: the index ends at {end}, the anchor continues {anchor.before}", reason="missing")
        items: list[Judged] = []
        taken: set[bytes] = set()
        for record in _rising(self._records_below(place, end, anchor.size), end):
            items += _empty(end + len(items), record.offset)
            items.append(self._recall(record, place, anchor.refused, taken))
        items += _empty(end + len(items), anchor.size)
        if self._index.root_with(place, [one.hash for one in items]) != anchor.root:
            self._waiting.pop(place, None)  # another time from Kafka itself
            raise Withheld(
                f"{place}: the records from offset {end} to {anchor.size} are not those that were anchored",
                reason="altered",
            )
        self.take(Judgement(place, items, anchor), now_ms)
        return items

    def _records_below(self, place: Place, first: int, end: int) -> Iterator[Record]:
        """The visible records of a range: those that wait here, if they reach so far, else read again."""
        waiting = self._waiting.get(place)
        if waiting and waiting[-1].offset + 1 >= end:
            yield from [record for record in waiting if record.offset < end]
            return
        self._waiting.pop(place, None)
        while first < end:
            records = self._kafka.read(place, first, end, READ_BYTES)
            yield from records
            first = records[-1].offset + 1 if records else end

    def _recall(self, record: Record, place: Place, refused: Sequence[Refusal], taken: set[bytes]) -> Judged:
        """What another notary said of a record."""
        for refusal in refused:
            if refusal.first <= record.offset < refusal.end:
                return Judged(record.offset, void=Void.refused(record.value, refusal.reason))
        try:
            parcel = Parcel.decode(record.value)
            principal = self._deposits.principal_of(parcel.header)
        except Refused as error:
            raise Withheld(f"offset {record.offset}: anchored as a parcel, and is none", reason="altered") from error
        again = Void.repeated(parcel.hash) if self._is_known(place, principal, parcel, taken) else None
        taken.add(parcel.hash)
        return Judged(record.offset, parcel, again, principal)

    def statistics(self) -> dict[str, Any]:
        counted = {"records_taken": self._taken, "records_refused": self._refused.snapshot()}
        waiting = sum(map(len, list(self._waiting.values())))
        return {**counted, "records_waiting": waiting, "bytes_waiting": self._waiting_bytes}

    # Inside.

    @property
    def _waiting_bytes(self) -> int:
        return sum(len(record.value) for records in list(self._waiting.values()) for record in records)

    def close(self) -> None:
        self._tail.close()

    def _read_end(self, place: Place) -> int:
        waiting = self._waiting.get(place)
        return waiting[-1].offset + 1 if waiting else self._index.end(place)


def _rising(records: Iterable[Record], first: int) -> Iterator[Record]:
    """Each offset once, from `first` on: a broker whose disk was full comes back with a record two or three times under
    one offset, and a hostile one shows what it likes."""
    for record in records:
        if record.offset >= first:
            yield record
            first = record.offset + 1


def _add(refused: list[Refusal], one: Judged) -> bool:
    """Tell of one more refusal. Returns False where an anchor can tell no more."""
    last = refused[-1] if refused else None
    if last is not None and (last.end, last.reason) == (one.offset, one.reason):
        refused[-1] = last._replace(end=one.offset + 1)
        return True
    if len(refused) == REFUSALS_MAX:
        return False
    refused.append(Refusal(one.offset, one.offset + 1, one.reason))
    return True


class PassedRules(LedgerRules):
    """The rules for what a gateway's guards took: rights, permits and epochs were judged then."""

    def blacklisted(self, principal: bytes) -> bool:
        return False

    def is_over(self, principal: bytes, time_ms: int) -> bool:
        return False

    def allows(self, principal: bytes, token: bytes, right: Right, host: str) -> bool:
        return True

    def topic(self, token: bytes) -> TopicRules | None:
        topic = super().topic(token)
        return None if topic is None else replace(topic, closed=False)

    def permit_ended(self, identifier: bytes) -> bool:
        return False

    def epoch_taken(self, token: bytes, epoch: int, time_ms: int) -> bool:
        return True
