"""What stands in the program's tables, and what a data plane offers to whoever fills them.

The program (program/pubsub.p4) has two tables and multicast groups. Keys are the bytes that a frame has: epoch and
label as they follow each other in the route header. A data plane takes one entry at a time, each at once and whole, as
a P4 target does; in which order entries come is the controller's business (`RuleEntries`), so that no frame meets half
a rule.

What is behind a label stands before the label leads there: `next_labels` and groups first, then `publications`, and
what nobody leads to any more goes last. There is one multicast group for each set of ports. What stands in the tables
and is no rule (another's, or left over from a crash) is a stray, and goes with the next write.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, NamedTuple, Protocol

from tallystick.carriers.fabric.rules import GROUPS_MAX, FlowRule, PacketIn, RuleChanges, RuleKey
from tallystick.errors import Misuse, Unavailable

MATCH = struct.Struct("!H16s")  # epoch, label
FRAME_BYTES_MAX = 9_216  # a jumbo frame with its header; what is longer is dropped


class Entries(Enum):
    NEXT_LABELS = "next_labels"
    GROUPS = "groups"
    PUBLICATIONS = "publications"


class RouteVerdict(IntEnum):
    """The actions of `publications`."""

    DROP = 0
    FORWARD = 1  # to a port
    MULTICAST = 2  # to a group


class RouteAction(NamedTuple):
    verdict: RouteVerdict
    argument: int = 0


class NextKey(NamedTuple):
    match: bytes
    port: int


class SwitchEntry(NamedTuple):
    kind: Entries
    key: Any  # of PUBLICATIONS a match (18 bytes), of NEXT_LABELS a NextKey, of GROUPS a number
    value: Any  # a RouteAction; the next label; (port, instance) for each copy of the group


EntryTables = dict[Entries, dict[Any, Any]]


def no_entries() -> EntryTables:
    return {kind: {} for kind in Entries}


def match_of(key: RuleKey) -> bytes:
    return MATCH.pack(*key)


def key_of(match: bytes) -> RuleKey:
    epoch, label = MATCH.unpack(match)
    return epoch, label


@dataclass(frozen=True, slots=True)
class PlaneStatistics:
    """Frames since the start. Datagrams are an emulation, and `kind` says so."""

    kind: str
    received: int
    unmatched: Mapping[int, int]  # by port: no rule for their label
    malformed: int  # too short, too long, of another version or another kind
    to_controller: int


class DataPlane(Protocol):
    """For one thread at a time, but for frames."""

    kind: str
    tables: EntryTables  # all that was put and not deleted; `put` and `delete` alone change it

    def put(self, entry: SwitchEntry) -> None:
        """Set an entry, in place of what has its key. Raises `Unavailable` if there is no room for it."""

    def delete(self, kind: Entries, key: Any) -> None: ...

    def counters(self) -> Mapping[bytes, tuple[int, int]]:
        """(packets, bytes) that each entry of `publications` matched; a `put` over one leaves them as they are."""

    def send(self, port: int, frame: bytes) -> None:
        """Let a frame of the controller's leave by a port, through the egress table."""

    def start(self, packet_in: PacketIn) -> None: ...

    def statistics(self) -> PlaneStatistics: ...

    def close(self) -> None: ...


# --- flow rules as entries ---

Copies = tuple[tuple[int, int], ...]  # of a group: (port, instance)


class EntryChange(NamedTuple):
    kind: Entries
    key: Any
    old: Any  # None: it is inserted
    new: Any  # None: it is deleted


class RuleEntries:
    """What stands in a switch's tables, as entries and as rules."""

    def __init__(self, entries: Iterable[tuple[Entries, Any, Any]]) -> None:
        self._tables = no_entries()
        for kind, key, value in entries:
            self._tables[kind][key] = value
        self._groups: dict[Copies, int] = {copies: number for number, copies in self._tables[Entries.GROUPS].items()}
        self._strays = {(kind, key) for kind, table in self._tables.items() for key in table}
        self.rules: dict[RuleKey, FlowRule] = {}
        self._uses: Counter[Copies] = Counter()
        for match, (verdict, argument) in self._tables[Entries.PUBLICATIONS].items():
            self._recognise(match, verdict, argument)

    def _recognise(self, match: bytes, verdict: RouteVerdict, argument: int) -> None:
        """Take note of a rule, if this is one as we write them and all that it needs is there."""
        is_group = verdict is RouteVerdict.MULTICAST
        copies = self._tables[Entries.GROUPS].get(argument, ()) if is_group else ((argument, 0),)
        after = self._tables[Entries.NEXT_LABELS]
        try:
            rule = FlowRule(*key_of(match), tuple((port, after[NextKey(match, port)]) for port, _instance in copies))
        except (KeyError, Misuse):
            return
        if not is_group or (len(copies) > 1 and _copies(rule) == copies and self._groups[copies] == argument):
            self._strays -= {*_entries(rule, argument), (Entries.GROUPS, argument if is_group else 0)}
            self.rules[rule.key] = rule
            self._uses[copies] += 1

    def change(self, wanted: RuleChanges) -> list[list[EntryChange]]:
        """Have other rules. Returns what leads there, in stages: all of one stage is in force before the next begins.
        Raises `Unavailable` where no group is left; a later failure leaves this worth nothing."""
        goal: dict[tuple[Entries, Any], Any] = dict.fromkeys(self._strays)
        touched: set[Copies] = set()
        free = (number for number in range(1, GROUPS_MAX + 1) if number not in self._tables[Entries.GROUPS])
        for key in wanted:
            if old := self.rules.pop(key, None):
                goal.update(dict.fromkeys(_entries(old, 0)))
                self._uses[_copies(old)] -= 1
                touched.add(_copies(old))
        for rule in filter(None, wanted.values()):
            self.rules[rule.key] = rule
            self._uses[_copies(rule)] += 1
            goal.update(_entries(rule, self._number(_copies(rule), free)))
            touched.add(_copies(rule))
        for copies in touched:
            if number := self._groups.get(copies):
                goal[Entries.GROUPS, number] = copies if self._uses[copies] else None

        stages: list[list[EntryChange]] = [[], [], []]
        for (kind, key), new in goal.items():
            before = self._tables[kind].pop(key, None)
            if new is not None:
                self._tables[kind][key] = new
            elif kind is Entries.GROUPS and self._groups.get(before) == key:
                del self._groups[before]
            if before != new:
                at = 1 if kind is Entries.PUBLICATIONS else 2 if new is None else 0
                stages[at].append(EntryChange(kind, key, before, new))
        self._strays.clear()
        return [stage for stage in stages if stage]

    def _number(self, copies: Copies, free: Iterator[int]) -> int:
        """Of the group for these copies; 0 for a single copy, which needs none."""
        if len(copies) > 1 and copies not in self._groups:
            number = next(free, None)
            if number is None:
                raise Unavailable(f"a switch has at most {GROUPS_MAX} multicast groups")
            self._groups[copies] = number
        return self._groups.get(copies, 0)


def _copies(rule: FlowRule) -> Copies:
    return tuple((port, 0) for port in rule.ports)


def _entries(rule: FlowRule, group: int) -> dict[tuple[Entries, Any], Any]:
    """The entries of a rule, but for its group."""
    match, is_one = match_of(rule.key), len(rule.out) == 1
    verdict = (RouteVerdict.FORWARD, rule.ports[0]) if is_one else (RouteVerdict.MULTICAST, group)
    labels = {(Entries.NEXT_LABELS, NextKey(match, port)): label for port, label in rule.out}
    return {(Entries.PUBLICATIONS, match): RouteAction(*verdict), **labels}
