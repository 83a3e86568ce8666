"""Getting the switches from what they hold to what the flows need, and no further than fits.

Three ways. *Adding* is whole or not at all. *Settling* is for what must happen whatever fails: what can be written is
written, a switch that fails is left out of all trees until its table was read, and it is written again along the trees
that are left. Where a change does not fit while old and new rules stand side by side, rules that are not wanted any
more go first: rather a gap than a rule too many. *Sharing* begins before a table is full (planning.py), and ends when
it is half empty; while it lasts every change is planned from all tables, which costs more.

Threat: a switch that takes half of what it is told, or none, or does not say; another controller that leads now.
Invariant: `in_force` is what the switches are known to hold. A switch that did not say is *doubtful*: what it held and
what it was told both count as live (no epoch in them is used again), and nothing is written to it until its table was
read back. Whoever is superseded stops at once: `Superseded` goes up and nothing is rolled back, since the tables are
another's now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from tallystick.carriers.fabric.flows import FlowBook, Tables
from tallystick.carriers.fabric.planning import FlowPlan, PlanStep, difference, entries, make_plan, share
from tallystick.carriers.fabric.rules import TABLE_MAX, NotInForce, RuleTable, Superseded, SwitchDriver
from tallystick.carriers.fabric.trees import PortPlace, TreeKind, Wiring
from tallystick.errors import Refused, TallystickError, Unavailable


@dataclass
class FlowInstaller:
    drivers: Mapping[str, SwitchDriver]  # by name
    pause: Callable[[float], None]  # waits so many seconds
    drain_s: float = 0.05  # how long a frame may be under way
    aside: Callable[[Callable[[], None]], None] = lambda work: work()  # does something while others go on

    def __post_init__(self) -> None:
        self.in_force: Tables = {name: {} for name in self.drivers}
        self.filled: dict[str, int] = dict.fromkeys(self.drivers, 0)  # entries of `next_labels`
        self.doubtful: set[str] = set(self.drivers)  # until they were read
        self.writes = self._election = 0
        self._asked: set[str] = set()  # that have not answered yet
        self._answers: deque[tuple[str, RuleTable | TallystickError]] = deque()

    def epochs(self) -> set[int]:
        """In which entries may be live anywhere."""
        return {epoch for table in self.in_force.values() for epoch, _ in table}

    def lead(self, election: int) -> None:
        """Lead all switches that answer, and learn what they hold. Raises `Superseded` where another leads."""
        self._election, self.doubtful = election, set(self.drivers)
        for name in self.drivers:
            self._ask(name)
        self._take_answers()

    def read_back(self) -> bool:
        """Learn what doubtful switches hold; one that was away is led again. It is asked aside, since one that hangs
        must hold nobody up. Returns whether any answered."""
        for name in sorted(self.doubtful - self._asked):
            self._asked.add(name)
            self.aside(partial(self._ask, name))
        return self._take_answers()

    def _ask(self, name: str) -> None:
        try:
            self.drivers[name].lead(self._election)
            self._answers.append((name, self.drivers[name].read()))
        except TallystickError as error:
            self._answers.append((name, error))

    def _take_answers(self) -> bool:
        before = len(self.doubtful)
        while self._answers:
            name, answer = self._answers.popleft()
            self._asked.discard(name)
            if isinstance(answer, Superseded):
                raise answer
            if not isinstance(answer, TallystickError):
                self._know(name, answer)
        return len(self.doubtful) < before

    def carry_out(self, plan: FlowPlan) -> None:
        """All steps in order. Raises `Unavailable` at the first that fails; the rest is left undone."""
        for step in self._drained(plan):
            self._write(step)

    def carry_on(self, plan: FlowPlan) -> set[str]:
        """All steps that can be done. What takes rights away goes on where others fail. Returns who failed."""
        failed: set[str] = set()
        for step in self._drained(plan):
            try:
                self._write(step)
            except Unavailable:
                failed.add(step.switch)
        return failed

    def _drained(self, plan: FlowPlan) -> Iterator[PlanStep]:
        yield from plan.installing
        if plan.installing and plan.removing and self.drain_s:
            self.pause(self.drain_s)
        yield from plan.removing

    def _write(self, step: PlanStep) -> None:
        name = step.switch
        if name in self.doubtful or name not in self.drivers:
            raise Unavailable(f"switch {name}: it is not known what it holds")
        try:
            self.drivers[name].write(step.changes)
        except Unavailable as error:
            if isinstance(error, NotInForce) and error.in_force is not None:
                self._know(name, error.in_force)
            else:
                self.doubtful.add(name)
                self.in_force[name] = step.installed | self.in_force[name]  # it may have come that far
            raise
        self.writes += 1
        table, new = self.in_force[name], step.installed
        self.filled[name] += entries(new.values()) - entries(table.pop(key) for key in step.changes if key in table)
        table |= new

    def _know(self, name: str, table: RuleTable) -> None:
        self.in_force[name] = dict(table)
        self.filled[name] = entries(table.values())
        self.doubtful.discard(name)


class RuleSettler:
    """Between the book and the installer. From `share_at` of a table on, flows share rules."""

    def __init__(self, book: FlowBook, installer: FlowInstaller, tree: TreeKind, share_at: float) -> None:
        self._book, self._installer, self._tree, self._share_at = book, installer, tree, share_at
        self.wiring = Wiring.of(installer.drivers, ())
        self._far_ends: dict[PortPlace, PortPlace] = {}  # of links that were, too: old rules lead over them
        self.is_sharing = False

    def rewire(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self._far_ends |= wiring.far_ends

    def reroute(self) -> None:
        """Trees go by switches that obey."""
        usable = Wiring.of(self.wiring.switches - self._installer.doubtful, self.wiring.links)
        self._book.rewire(usable.trees(self._tree))

    def plan(self) -> FlowPlan:
        """From what is in force to what is wanted. Raises `Refused`."""
        installer = self._installer
        self.is_sharing |= max(installer.filled.values(), default=0) > self._share_at * TABLE_MAX
        if self.is_sharing:
            return self._full_plan()
        return make_plan(installer.in_force, self._book.take_changes(), self._far_ends, installer.filled)

    def _full_plan(self, *, removals: bool = False) -> FlowPlan:
        """Not by what changed, but by all that differs; or only by what is too much."""
        installer, tables = self._installer, self._book.tables
        self._book.take_changes()
        few = self._share_at * TABLE_MAX / 2
        self.is_sharing &= any(entries(table.values()) >= few for table in tables.values())
        if self.is_sharing:
            held = {(switch, rule.key) for switch, rule, meaning in self._book.placed() if meaning is not None}
            tables = share(tables, held, self._book.labels, self._far_ends)
        found = difference(installer.in_force, tables).items()
        changes = {switch: rules for switch, rules in found if switch not in installer.doubtful}
        if removals:
            changes = {one: {key: None for key in rules if rules[key] is None} for one, rules in changes.items()}
        return make_plan(installer.in_force, changes, self._far_ends, installer.filled)

    def settle(self, *, everything: bool = False) -> set[str]:
        """Write all that can be written; switches that fail are left out of the trees and it is written again. Returns
        those that failed."""
        failed: set[str] = set()
        for _ in range(1 + len(self._installer.drivers)):
            try:
                everything = everything or bool(failed or self._installer.doubtful)
                plan = self._full_plan() if everything else self.plan()
            except Refused:  # it does not fit while it changes: rather a gap than a rule too many
                failed |= self._installer.carry_on(self._full_plan(removals=True))
                try:
                    plan = self._full_plan()
                except Refused:
                    break
            more = self._installer.carry_on(plan)
            failed |= more
            if not more:
                break
            self.reroute()
        return failed
