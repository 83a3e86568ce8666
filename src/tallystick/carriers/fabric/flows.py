"""Which rules the flows need: Algorithms 1 and 2 of the thesis, put right.

Algorithm 1 assigns each path to the subscribers' groups and never to the rules, and Algorithm 2 walks all rules without
asking whether the advertisement matches. Here a flow has the union of its tree's paths to its subscribers; a new
subscription adds, to the flows that it was matched with and to no others, the part of its path that is not there yet,
and one that goes takes away the part that nobody else needs. What changed is noted as (switch, rule), so that the cost
of a subscription is the length of a path and not the number of subscribers; tests hold the result to rules made from
nothing, on random sequences.

Threat: a dispatcher that touches what is another's, or fills the tables. Invariant: flows and subscriptions belong to
the dispatcher that made them, pairs are made between things of one owner, and each owner has so many and no more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tallystick.carriers.fabric.known_flows import KnownFlow, StandingRequest
from tallystick.carriers.fabric.labels import RouteLabels
from tallystick.carriers.fabric.requests import FlowAnswer, FlowKind, FlowRequest
from tallystick.carriers.fabric.rules import FlowRule, RuleChanges, RuleKey
from tallystick.carriers.fabric.trees import TreeOf
from tallystick.errors import Refused


@dataclass(frozen=True)
class FlowLimits:
    flows_max: int = 16_384  # of one owner: a quarter of a table
    subscriptions_max: int = 131_072  # of one owner
    pairs_max: int = 524_288  # of one owner: flows that a subscription was matched with, over all of them


Tables = dict[str, dict[RuleKey, FlowRule]]  # by switch
Changes = dict[str, RuleChanges]  # by switch


class FlowBook:
    """All flows and subscriptions, and the rules that they need in the live epochs. `tree` gives a root's tree."""

    def __init__(self, labels: RouteLabels, tree: TreeOf, epoch: int, limits: FlowLimits = FlowLimits()) -> None:
        self.labels, self._tree, self._limits = labels, tree, limits
        self.epochs: Sequence[int] = (epoch,)  # the newest last
        self.flows: dict[bytes, KnownFlow] = {}
        self.subscriptions: dict[bytes, StandingRequest] = {}
        self._changes: Changes = {}
        self._touched: defaultdict[KnownFlow, set[str]] = defaultdict(set)  # whose rules are to be made anew, and where
        self._heard: set[bytes] = set()  # whose answers may have changed
        self._named: dict[bytes, set[bytes]] = {}  # by identifier: who names it as a match
        self._counts: Counter[tuple[str, FlowKind]] = Counter()  # of an owner: flows and subscriptions
        self._pairs: Counter[str] = Counter()  # of an owner

    # --- requests ---

    def find(self, identifier: bytes) -> StandingRequest | None:
        return self.flows.get(identifier) or self.subscriptions.get(identifier)

    def apply(self, owner: str, request: FlowRequest) -> FlowRequest:
        """Take a request, whole or not at all. Returns the one that takes it back. Raises `Refused`."""
        before = self.find(request.identifier)
        if before is not None and before.owner != owner:
            raise Refused("flow request: another dispatcher's", reason="not-owner")
        back = FlowRequest(FlowKind.WITHDRAW, request.identifier) if before is None else before.request
        if request.kind is not FlowKind.WITHDRAW:
            if before is not None and before.request.kind is not request.kind:
                raise Refused("flow request: a flow is no subscription", reason="identifier-taken")
            if back == request:  # said again; a flow that was stopped stays so
                self._heard.add(request.identifier)
                return back
            self._check_room(owner, request, before)
        if before is not None:
            self._remove(request.identifier, before)
        if request.kind is not FlowKind.WITHDRAW:
            self._add(owner, request)
        return back

    def _check_room(self, owner: str, request: FlowRequest, before: StandingRequest | None) -> None:
        limits, kind = self._limits, request.kind
        most = limits.flows_max if kind is FlowKind.ADVERTISE else limits.subscriptions_max
        count = self._counts[owner, kind] - (before is not None)
        pairs = self._pairs[owner] + len(request.matches) - (len(before.pairs) if before is not None else 0)
        if count >= most or pairs > limits.pairs_max:
            raise Refused(f"flow request: the dispatcher has {count}, and {pairs} pairs", reason="too-many-flows")

    def _add(self, owner: str, request: FlowRequest) -> None:
        identifier, is_flow = request.identifier, request.kind is FlowKind.ADVERTISE
        for name in request.matches:
            self._named.setdefault(name, set()).add(identifier)
        if is_flow:
            self.flows[identifier] = KnownFlow(owner, request, tree=self._tree(request.switch))
        else:
            self.subscriptions[identifier] = StandingRequest(owner, request)
        self._counts[owner, request.kind] += 1
        self._heard.add(identifier)
        for other in request.matches | self._named.get(identifier, set()):
            flow, subscription = (identifier, other) if is_flow else (other, identifier)
            self._pair(flow, subscription)

    def _remove(self, identifier: bytes, it: StandingRequest) -> None:
        is_flow = identifier in self.flows
        for one in list(it.pairs):
            self._part(*((identifier, one) if is_flow else (one, identifier)))
        for name in it.request.matches:
            self._named[name].discard(identifier)
            if not self._named[name]:
                del self._named[name]
        self._counts[it.owner, it.request.kind] -= 1
        self._heard.discard(identifier)
        del (self.flows if is_flow else self.subscriptions)[identifier]

    def _pair(self, flow: bytes, subscription: bytes) -> None:
        it, other = self.flows.get(flow), self.subscriptions.get(subscription)
        if it is None or other is None or it.owner != other.owner:
            return
        it.pairs.add(subscription)
        other.pairs.add(flow)
        self._pairs[it.owner] += 1
        self._touched[it] |= it.join(subscription, other.place)
        self._heard |= {subscription, *it.at(other.place)}

    def _part(self, flow: bytes, subscription: bytes) -> None:
        it, other = self.flows[flow], self.subscriptions[subscription]
        self._heard |= {subscription, *it.at(other.place)}
        self._touched[it] |= it.leave(subscription, other.place)
        it.pairs.discard(subscription)
        other.pairs.discard(flow)
        self._pairs[it.owner] -= 1

    # --- wiring, epochs ---

    def rewire(self, tree: TreeOf) -> None:
        """Other links: the flows whose trees are others now are laid anew."""
        self._tree = tree
        for flow in self.flows.values():
            found = tree(flow.request.switch)
            if flow.tree.identifier == found.identifier:
                continue
            touched = set(flow.branches)
            flow.tree, flow.branches = found, {}
            for one in flow.pairs:
                touched |= flow.join(one, self.subscriptions[one].place)
            self._touched[flow] |= touched
            self._heard |= flow.pairs

    def live(self, epochs: Sequence[int]) -> None:
        """These epochs are live, the newest last."""
        self.epochs = tuple(epochs)
        for flow in self.flows.values():
            for branch in flow.branches.values():
                branch.names.clear()
            self._touched[flow] |= set(flow.branches)
        self._heard |= self.flows.keys() | self.subscriptions.keys()

    def stop(self, flow: bytes, what: str) -> None:
        """Take a flow's first rule away (`DOWN`), or its rule up at a switch, until another request takes its place."""
        it = self.flows[flow]
        it.stopped.add(what)
        self._touched[it] |= set(it.branches)

    # --- rules ---

    @property
    def tables(self) -> Tables:
        found: Tables = {}
        for switch, rule, _ in self.placed():
            found.setdefault(switch, {})[rule.key] = rule
        return found

    def placed(self) -> Iterator[tuple[str, FlowRule, tuple[bytes, str] | None]]:
        """All rules, each with its switch; those that hosts send to with the flow, and how `stop` calls it."""
        self._make_rules()
        for name, flow in self.flows.items():
            for switch, rules in flow.placed.items():
                for rule, what in rules.values():
                    yield switch, rule, (name, what) if what else None

    def _make_rules(self) -> None:
        """However often a switch was touched, its rules are made once, when somebody asks."""
        for flow, touched in self._touched.items():
            for switch in touched:
                old, changes = flow.placed.pop(switch, {}), self._changes.setdefault(switch, {})
                new = {one.key: (one, what) for one, what in flow.rules(self.labels, switch, self.epochs)}
                changes |= dict.fromkeys(old.keys() - new.keys())
                changes |= {key: one for key, (one, what) in new.items() if old.get(key) != (one, what)}
                if new:
                    flow.placed[switch] = new
        self._touched.clear()

    def take_changes(self) -> Changes:
        """What changed in the tables since it was last asked."""
        self._make_rules()
        changes, self._changes = self._changes, {}
        return {switch: rules for switch, rules in changes.items() if rules}

    def take_heard(self) -> set[bytes]:
        """Whose answers may have changed since it was last asked."""
        heard, self._heard = self._heard, set()
        return {one for one in heard if self.find(one) is not None}

    def answer(self, identifier: bytes) -> FlowAnswer:
        """What the owner of a flow or a subscription is to know, in the newest epoch."""
        epoch, labels = self.epochs[-1], self.labels
        if (flow := self.flows.get(identifier)) is not None:
            switch = flow.request.switch
            first, repair = labels.first(identifier, switch, epoch), labels.repair(identifier, switch, epoch)
            return FlowAnswer(identifier, epoch, ((identifier, first),), (repair,))
        it = self.subscriptions[identifier]
        place, send, sets = it.place, [], {frozenset((identifier,))}
        for name in sorted(it.pairs):
            flow = self.flows[name]
            if identifier in (there := flow.at(place)):
                send.append((name, labels.up(name, place.switch, epoch, flow.tree.identifier)))
                sets.add(frozenset(there))
        receive = sorted(labels.last(one, *place, epoch) for one in sets)
        return FlowAnswer(identifier, epoch, tuple(send), tuple(receive))
