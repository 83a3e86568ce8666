"""In which order rules go into the switches, whether they fit, and which flows may share them.

Threat: between two writes the tables of different switches are of different times, and a frame under way meets both. A
rule that leads to one that is not there loses frames; old and new rules that are mixed send them in circles. Invariant:
a rule is installed after those it leads to, and removed before them, so that from the leaves up to the publisher's
switch, which is last, every step leaves each first label with the whole of one tree behind it. Labels hold the rest: a
tree's rules refer to no other tree's (labels.py). A rule that stays under its name is changed in one write of one
entry, and between the last installation and the first removal frames under way have time to arrive.

Bound: the program's `next_labels` has one entry for each out-port of each live label of each live epoch, 65,536 in all
(the given size of both tables); what would go beyond, old and new rules together as they are while it changes, is
refused before anything is written. Flows may share rules: those that go the same way, under the same labels to the
same ports, from some switch on to the end. Nobody gets anything that was not meant for them, so there are no false
deliveries to count. First labels, and labels up that hosts hold, are never shared.

`follow` is the checker of the invariant: tests use it after every step of every plan, and `tally fabric trace`. It
follows a label through the tables. Faults: a *loop* (a frame comes to a switch where it has been), a *miss* (a label
led to a switch that does not know it, so frames are lost), a *mixed tree* (a frame comes to a switch by two ways, or to
a host twice).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tallystick import wire
from tallystick.carriers.fabric.flows import Changes, Tables
from tallystick.carriers.fabric.labels import RouteLabels
from tallystick.carriers.fabric.rules import TABLE_MAX, FlowRule, RuleChanges, RuleKey, RuleTable, changed
from tallystick.carriers.fabric.trees import PortPlace
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Refused

RulePlace = tuple[str, RuleKey]  # (switch, key)
PlacedRules = Mapping[RulePlace, FlowRule]
FarEnds = Mapping[PortPlace, PortPlace]


@dataclass(frozen=True)
class PlanStep:
    """One write to one switch."""

    switch: str
    changes: RuleChanges

    @property
    def installed(self) -> dict[RuleKey, FlowRule]:
        return {key: rule for key, rule in self.changes.items() if rule is not None}


@dataclass(frozen=True)
class FlowPlan:
    """First all of `installing`, in order; then all of `removing`, in order."""

    installing: tuple[PlanStep, ...]
    removing: tuple[PlanStep, ...]


def make_plan(in_force: Tables, changes: Changes, far_ends: FarEnds, filled: Mapping[str, int]) -> FlowPlan:
    """How to get from what is in force to the changes; `filled` are the entries of each switch. Raises `Refused`
    (`table-full`)."""
    wanted = {(switch, key): rule for switch, rules in changes.items() for key, rule in rules.items()}
    held = {(switch, key): rule for switch, key in wanted if (rule := in_force.get(switch, {}).get(key)) is not None}
    install = {one: rule for one, rule in wanted.items() if rule is not None and rule != held.get(one)}
    remove = {one: rule for one, rule in held.items() if wanted[one] is None}
    _check_room(held, install, filled)
    up, down = _steps(heights(install, far_ends), 1), _steps(heights(remove, far_ends), -1)
    return FlowPlan(
        tuple(PlanStep(switch, {key: install[switch, key] for _, key in found}) for switch, found in up),
        tuple(PlanStep(switch, dict.fromkeys(key for _, key in found)) for switch, found in down),
    )


def _steps(height: Mapping[RulePlace, int], direction: int) -> Iterable[tuple[str, list[RulePlace]]]:
    """The rules of one height at one switch are written together; they do not lead to one another."""
    found: dict[tuple[int, str], list[RulePlace]] = {}
    for one, rank in height.items():
        found.setdefault((rank * direction, one[0]), []).append(one)
    return [(switch, sorted(found[rank, switch])) for rank, switch in sorted(found)]


def heights(rules: PlacedRules, far_ends: FarEnds) -> dict[RulePlace, int]:
    """How many rules, of these, a frame may meet after each. Circles, which tables that were read back may hold, are
    cut somewhere."""
    found: dict[RulePlace, int] = {}
    entered: set[RulePlace] = set()
    for start in rules:
        waiting = [start]
        while waiting:
            one = waiting[-1]
            behind = [next_ for next_ in leads_to(one[0], rules[one], far_ends) if next_ in rules]
            unknown = [next_ for next_ in behind if next_ not in entered]
            entered.add(one)
            if unknown:
                waiting += unknown
            else:
                waiting.pop()
                found.setdefault(one, 1 + max((found.get(next_, 0) for next_ in behind), default=-1))
    return found


def leads_to(switch: str, rule: FlowRule, far_ends: FarEnds) -> list[RulePlace]:
    """The rules at other switches to which one leads."""
    there = [(far_ends.get(PortPlace(switch, port)), label) for port, label in rule.out]
    return [(end.switch, (rule.epoch, label)) for end, label in there if end is not None]


def _check_room(held: PlacedRules, install: PlacedRules, filled: Mapping[str, int]) -> None:
    more: Counter[str] = Counter()
    for one, rule in install.items():
        more[one[0]] += len(set(rule.ports) - set(held[one].ports if one in held else ()))
    for switch, count in more.items():
        total = count + filled.get(switch, 0)
        if count and total > TABLE_MAX:
            message = f"switch {switch}: {total} entries needed, {TABLE_MAX} fit"
            raise Refused(message, reason="table-full", hint="cluster topics coarser, or wait for an epoch to end")


def entries(rules: Iterable[FlowRule]) -> int:
    """What they take in `next_labels`, the fuller of a switch's two tables."""
    return sum(len(rule.out) for rule in rules)


def share(tables: Tables, held: Collection[RulePlace], labels: RouteLabels, far_ends: FarEnds) -> Tables:
    """The same deliveries with fewer rules: from the leaves up, rules of one switch that lead to the same ports under
    the same labels become one. `held` are those whose labels hosts know."""
    rules = {(switch, key): rule for switch, table in tables.items() for key, rule in table.items()}
    new_label: dict[RulePlace, bytes] = {}
    shared: Tables = {}

    def renamed(switch: str, rule: FlowRule) -> tuple[tuple[int, bytes], ...]:
        ends = {port: far_ends.get(PortPlace(switch, port), PortPlace("", 0)) for port in rule.ports}
        return tuple((port, new_label.get((ends[port].switch, (rule.epoch, one)), one)) for port, one in rule.out)

    for switch, places in _steps(heights(rules, far_ends), 1):  # what rules lead to comes before them
        alike: dict[tuple[int, tuple[tuple[int, bytes], ...]], list[RulePlace]] = {}
        for one in places:
            alike.setdefault((one[1][0], renamed(switch, rules[one])), []).append(one)
        for (epoch, out), members in alike.items():
            free = [one for one in members if one not in held]
            named = named_hash("tallystick shared rule 1", wire.encode([list(one) for one in out]))
            label = labels.shared(named, switch, epoch) if len(free) > 1 else b""
            for one in members:
                new_label[one] = label if label and one in free else one[1][1]
                shared.setdefault(switch, {})[epoch, new_label[one]] = FlowRule(epoch, new_label[one], out)
    return shared


def difference(old: Tables, new: Tables) -> Changes:
    """What makes the one of the other."""
    return {one: changed(old.get(one, {}), new.get(one, {})) for one in old.keys() | new.keys()}


# --- the checker ---


@dataclass(frozen=True)
class TracedHop:
    switch: str
    label: bytes
    came: PortPlace | None  # from the switch before
    out: tuple[tuple[int, bytes], ...]
    depth: int


@dataclass(frozen=True)
class RouteTrace:
    hops: tuple[TracedHop, ...]
    delivered: tuple[tuple[PortPlace, bytes], ...]  # host ports and the labels there, in order
    faults: tuple[str, ...]


def follow(tables: Mapping[str, RuleTable], far_ends: FarEnds, switch: str, epoch: int, label: bytes) -> RouteTrace:
    """Everything that becomes of a frame that a host sends to this switch. Work is bounded by the switches."""
    hops: list[TracedHop] = []
    delivered: list[tuple[PortPlace, bytes]] = []
    faults: list[str] = []
    seen: set[str] = set()
    waiting: list[tuple[str, bytes, PortPlace | None, tuple[str, ...]]] = [(switch, label, None, ())]
    while waiting:
        here, label, came, path = waiting.pop(0)
        if here in seen:
            faults.append(f"loop at {here}" if here in path else f"mixed tree: two ways to {here}")
            continue
        seen.add(here)
        rule = tables.get(here, {}).get((epoch, label))
        if rule is None:
            if came is not None:
                faults.append(f"miss at {here}: label {label.hex()} from {came.switch}")
            continue
        hops.append(TracedHop(here, label, came, rule.out, len(path)))
        for port, next_label in rule.out:
            end = far_ends.get(PortPlace(here, port))
            if end is None:
                delivered.append((PortPlace(here, port), next_label))
            else:
                waiting.append((end.switch, next_label, PortPlace(here, port), (*path, here)))
    return RouteTrace(tuple(hops), tuple(sorted(delivered)), tuple(faults))
