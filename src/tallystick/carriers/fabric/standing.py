"""The permits that stand at a dispatcher, and what they ask of the configurator.

Identifiers of flows and subscriptions follow from the dispatcher's secret and the permit, so they look random to the
operator, and a dispatcher that starts again asks for the same. A pair of a flow and a subscription is asked for by
whichever came later, since either side may name the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from tallystick.carriers.fabric.control import FabricAsk
from tallystick.carriers.fabric.matcher import FabricInterest, FabricOffer, TopicMatcher, read_content
from tallystick.carriers.fabric.requests import MATCHES_MAX, SWITCH_NAME_MAX, FlowAnswer, FlowKind, FlowRequest
from tallystick.carriers.fabric.rules import PORT_MAX
from tallystick.crypto.symmetric import derive
from tallystick.errors import Malformed, Refused
from tallystick.policy.clustering import Cutting
from tallystick.policy.formula import Formula
from tallystick.policy.matching import PolicyBook
from tallystick.policy.space import AttributeSet
from tallystick.policy.topic_code import TopicCode
from tallystick.trust.fabric import LABELS_TOLD_MAX
from tallystick.trust.permit import Operation, Permit
from tallystick.wire import Octets32, WireObject, inside, number, text


@dataclass(frozen=True)
class StandingLimits:
    permits_max: int = 262_144
    principal_max: int = 256  # permits that one principal may have at once
    rate: int = 50_000  # frames a second that a flow may send
    cuttings: Mapping[bytes, Cutting] = field(default_factory=dict)  # by topic; b"" for all others


# What a host is to know, as it stands in its answer: the route epoch, labels to send and to receive under, a refusal.
Told = tuple[int, tuple[tuple[bytes, str, bytes], ...], tuple[bytes, ...], str]


@dataclass
class Asker(WireObject):
    """A live permit, its holder's place, and what the configurator said. All but that is kept for a dispatcher that
    starts again."""

    what = "standing permit"
    switch: Annotated[str, text(SWITCH_NAME_MAX)]
    port: Annotated[int, number(PORT_MAX)]
    request: Octets32  # the hash of the signed request
    ask: Annotated[FabricAsk, inside(FabricAsk.decode)]
    permit: Permit = field(init=False)
    flows: dict[bytes, str] = field(default_factory=dict)  # identifier: subspace; of a subscription, its own alone
    answers: dict[bytes, FlowAnswer] = field(default_factory=dict)
    told: Told | None = None

    def __post_init__(self) -> None:
        self.permit = Permit.decode(self.ask.shown)

    @property
    def place(self) -> tuple[str, int]:
        return self.switch, self.port


class StandingPermits:
    def __init__(self, secret: bytes, limits: StandingLimits = StandingLimits()) -> None:
        self._secret, self._limits = secret, limits
        self.policies = PolicyBook()
        self._topics: dict[bytes, TopicMatcher] = {}
        self.askers: dict[bytes, Asker] = {}  # by permit
        self._of: dict[bytes, bytes] = {}  # identifier of a flow or subscription: permit
        self._held: Counter[bytes] = Counter()  # permits of a principal

    def enter(self, asker: Asker) -> tuple[list[FlowRequest], list[bytes]]:
        """Take a permit, in the place of what it asked before. Returns what to ask for, and the permits that fell.
        Raises `Refused` or `Malformed`, and then nothing has changed."""
        permit, name = asker.permit, asker.permit.identifier
        self._check_number(permit)
        topic = self._topics.setdefault(permit.token, TopicMatcher(self.policies))
        content, fallen = read_content(asker.ask.content), []
        if permit.operation is Operation.SUBSCRIBE:
            if isinstance(content, AttributeSet):
                raise Malformed("fabric request: an interest is a formula")
            asker.flows = {self._identifier(name, "subscription"): ""}
            topic.subscribe(name, FabricInterest(permit.principal, content))
        else:
            code = TopicCode.decode(asker.ask.code) if asker.ask.code else None
            policy = Formula.decode(asker.ask.policy) if asker.ask.policy else None
            cuttings = self._limits.cuttings
            choice = cuttings.get(permit.token) or cuttings.get(b"", Cutting())
            parts = topic.subspaces(code, content, choice)
            flows = {one: self._identifier(name, f"flow {one}") for one in parts}
            fallen = topic.advertise(name, FabricOffer(content, policy, code, flows))
            asker.flows = {flow: one for one, flow in flows.items()}
        old = self.askers.get(name)
        left = [] if old is None else [one for one in old.flows if one not in asker.flows]
        self._held[permit.principal] += old is None
        self.askers[name] = asker
        self._of |= dict.fromkeys(asker.flows, name)
        return [*self._withdrawals(left), *self.requests(asker)], fallen

    def _check_number(self, permit: Permit) -> None:
        is_new = permit.identifier not in self.askers
        is_full = self._held[permit.principal] >= self._limits.principal_max
        if is_new and (is_full or len(self.askers) >= self._limits.permits_max):
            raise Refused("more permits than a principal may have on the fabric", reason="too-many-permits")

    def withdraw(self, name: bytes) -> list[FlowRequest]:
        asker = self.askers.pop(name, None)
        if asker is None:
            return []
        self._topics[asker.permit.token].remove(name)
        self._held[asker.permit.principal] -= 1
        return self._withdrawals(list(asker.flows))

    def _withdrawals(self, identifiers: list[bytes]) -> list[FlowRequest]:
        for one in identifiers:
            self._of.pop(one, None)
        return [FlowRequest(FlowKind.WITHDRAW, one) for one in identifiers]

    def requests(self, asker: Asker) -> Iterator[FlowRequest]:
        """Ask for a permit's flows, or for its subscription, with all that they match."""
        name, topic = asker.permit.identifier, self._topics[asker.permit.token]
        end = *asker.place, asker.permit.not_after_ms
        if asker.permit.operation is Operation.SUBSCRIBE:
            (identifier,) = asker.flows
            flows = sorted(topic.flows_of(name))[:MATCHES_MAX]
            yield FlowRequest(FlowKind.SUBSCRIBE, identifier, *end, 0, frozenset(flows))
            return
        for flow, names in topic.subscriptions_of(name).items():
            found = sorted(self._identifier(one, "subscription") for one in names)
            matches = frozenset(found[:MATCHES_MAX])
            yield FlowRequest(FlowKind.ADVERTISE, flow, *end, self._limits.rate, matches)
            for one in found[MATCHES_MAX:]:
                yield from self.requests(self.askers[self._of[one]])

    def answered(self, answer: FlowAnswer) -> Asker | None:
        """Whom to tell: once all of its flows are there, and whenever something changes."""
        asker = self.askers.get(self._of.get(answer.identifier, b""))
        if asker is None:
            return None
        asker.answers[answer.identifier] = answer
        if asker.answers.keys() < asker.flows.keys():
            return None
        answers = [asker.answers[one] for one in asker.flows]
        send = [(flow, asker.flows.get(flow, ""), label) for one in answers for flow, label in one.send]
        receive = sorted({label for one in answers for label in one.receive})
        labels = tuple(send[:LABELS_TOLD_MAX]), tuple(receive[:LABELS_TOLD_MAX])
        refused = next((one.refused for one in answers if one.refused), "")
        told = max(one.epoch for one in answers), *labels, refused
        if told == asker.told:
            return None
        asker.told = told
        return asker

    def _identifier(self, permit: bytes, what: str) -> bytes:
        return derive(self._secret, "tallystick fabric flow 1", permit, what.encode())[:16]
