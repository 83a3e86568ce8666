"""One flow: the part of its tree that leads to somebody, and the rules for it at each switch.

Each switch on the way has one rule that leads down, to the children and to the hosts here; every out-port has its next
label. Others lead up to the publisher, for requests for repair: one for each child, and one for the hosts here.

A host port lets one copy out under one label: where several subscriptions of a port match a flow, the label stands for
this set of them. What a publisher's own port would get back is left out; its host has it already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from tallystick.carriers.fabric.labels import RouteLabels
from tallystick.carriers.fabric.requests import FlowRequest
from tallystick.carriers.fabric.rules import FlowRule, RuleKey
from tallystick.carriers.fabric.trees import PortPlace, RouteTree

DOWN = "down"  # what is stopped when a flow's first rule is; a rule up is called by its switch


@dataclass(slots=True)
class Branch:
    """A flow at one switch."""

    children: dict[int, str] = field(default_factory=dict)  # by port
    hosts: dict[int, set[bytes]] = field(default_factory=dict)  # by port: the subscriptions
    names: dict[int, dict[int, bytes]] = field(default_factory=dict)  # of ports, by epoch: their labels, as made before


@dataclass(slots=True, eq=False)
class StandingRequest:
    """A request in force, and what it is paired with."""

    owner: str
    request: FlowRequest
    pairs: set[bytes] = field(default_factory=set)

    @property
    def place(self) -> PortPlace:
        return PortPlace(self.request.switch, self.request.port)


@dataclass(slots=True, eq=False)
class KnownFlow(StandingRequest):
    tree: RouteTree = field(kw_only=True)
    branches: dict[str, Branch] = field(default_factory=dict)
    placed: dict[str, dict[RuleKey, tuple[FlowRule, str]]] = field(default_factory=dict)  # `rules`, by switch
    stopped: set[str] = field(default_factory=set)  # by floods.py

    def at(self, place: PortPlace) -> Set[bytes]:
        """The subscriptions that get it at this port."""
        branch = self.branches.get(place.switch)
        return branch.hosts.get(place.port, set()) if branch is not None else set()

    def join(self, subscription: bytes, place: PortPlace) -> set[str]:
        """Add a path from the root (Algorithm 2); returns the switches whose rules it changes."""
        tree = self.tree
        if not tree.covers(place.switch) or place == self.place:
            return set()
        branch = self.branches.setdefault(place.switch, Branch())
        branch.hosts.setdefault(place.port, set()).add(subscription)
        branch.names.pop(place.port, None)
        touched, switch = {place.switch}, place.switch
        while switch != tree.root:
            step = tree.steps[switch]
            parent = self.branches.setdefault(step.parent, Branch())
            if step.down in parent.children:
                break
            parent.children[step.down] = switch
            touched.add(step.parent)
            switch = step.parent
        return touched

    def leave(self, subscription: bytes, place: PortPlace) -> set[str]:
        """Take away what nobody else needs; returns the switches whose rules it changes."""
        if subscription not in self.at(place):
            return set()
        branch = self.branches[place.switch]
        branch.hosts[place.port].discard(subscription)
        branch.names.pop(place.port, None)
        if not branch.hosts[place.port]:
            del branch.hosts[place.port]
        touched, switch = {place.switch}, place.switch
        while not (branch.hosts or branch.children):
            del self.branches[switch]
            if switch == self.tree.root:
                break
            step = self.tree.steps[switch]
            switch, branch = step.parent, self.branches[step.parent]
            del branch.children[step.down]
            touched.add(switch)
        return touched

    def rules(self, labels: RouteLabels, switch: str, epochs: Sequence[int]) -> Iterator[tuple[FlowRule, str]]:
        """Its rules at a switch; for those that hosts send to, with what they are called when they are stopped."""
        branch, tree, name = self.branches.get(switch), self.tree.identifier, self.request.identifier
        if branch is None:
            return
        step = self.tree.steps.get(switch)  # none at the root
        for epoch in epochs:
            if step is not None or DOWN not in self.stopped:
                out = [(port, labels.down(name, child, epoch, tree)) for port, child in branch.children.items()]
                out += [(port, self._last(labels, switch, port, epoch)) for port in branch.hosts]
                first = labels.first(name, switch, epoch)
                label = first if step is None else labels.down(name, switch, epoch, tree)
                yield FlowRule(epoch, label, tuple(sorted(out))), DOWN if step is None else ""
            way = self.request.port, labels.repair(name, switch, epoch)
            if step is not None:
                way = step.up, labels.up(name, step.parent, epoch, tree, step.down)
            for came in branch.children:
                yield FlowRule(epoch, labels.up(name, switch, epoch, tree, came), (way,)), ""
            if branch.hosts and switch not in self.stopped:
                yield FlowRule(epoch, labels.up(name, switch, epoch, tree), (way,)), switch

    def _last(self, labels: RouteLabels, switch: str, port: int, epoch: int) -> bytes:
        branch = self.branches[switch]
        known = branch.names.setdefault(port, {})
        if epoch not in known:
            known[epoch] = labels.last(branch.hosts[port], switch, port, epoch)
        return known[epoch]
