"""Which subscriptions get which flows of an advertisement: a tenant's matcher (thesis 6.3.4, Figs 18 and 19).

It sees what nobody else on the fabric sees: interests, what publishers say that they will publish, and policies. What
comes out names flows and subscriptions by identifiers. Three questions, each with its index of `policy/`:

- A publisher says what it will publish as a formula: which interests does it overlap? As a set of values: which
  interests does it satisfy? (Table 1 of the thesis has these pairings.)
- A subscriber says what it wants: which advertisements does that overlap?
- A publisher's policy says who may get it: which principals satisfy it, by what the tenant granted them?

An advertisement has a flow for each part of the content, cut as the topic's owner chose (`policy/clustering.py`) by the
interests that stood when it came, and one more for parcels that no label describes. A subscription gets the flows whose
part its interest touches, and that one more. What comes to it beyond its interest its reader counts (`unwanted`).

Invariant: never a pair too few for one whose policy is met, and never a pair for one whose policy is not. Routing is no
access right: what a subscriber may open is a matter of locks. Threat: formulas that call one column a number here and a
text there. What publishers say of a column counts; an interest that says otherwise is refused, or falls when they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tallystick.errors import Refused
from tallystick.policy.attribute import Attribute
from tallystick.policy.clustering import Cutting, cut, read_part, show_part
from tallystick.policy.evaluate import node_holds
from tallystick.policy.formula import Formula
from tallystick.policy.matching import InterestIndex, OverlapIndex, PolicyBook
from tallystick.policy.space import AttributeSet
from tallystick.policy.topic_code import TopicCode
from tallystick.wire import Fields, decode

STRINGS_MAX = 64  # by which an interest is covered
PRINCIPALS_MAX = 1 << 20  # in a directory

Content = Formula | AttributeSet | None  # None: anything
REST = ""  # the subspace of what no label describes


def read_content(data: bytes) -> Content:
    """What a publisher says that it will publish. Raises `Malformed`."""
    if not data:
        return None
    parts = decode(data, "content")
    is_set = isinstance(parts, list) and len(parts) == 2
    return AttributeSet.decode(data) if is_set else Formula.decode(data)


@dataclass(frozen=True)
class FabricOffer:
    """An advertisement: the flow of each subspace."""

    content: Content
    policy: Formula | None
    code: TopicCode | None
    flows: Mapping[str, bytes]


@dataclass(frozen=True)
class FabricInterest:
    principal: bytes
    interest: Formula | None
    covers: dict[TopicCode, Mapping[int, frozenset[str]]] = field(default_factory=dict, repr=False)

    def wants(self, code: TopicCode, subspace: str) -> bool:
        """Whether the interest may touch a subspace."""
        if self.interest is None:
            return True
        if code not in self.covers:
            self.covers[code] = code.covers(self.interest, STRINGS_MAX, 0.0)
        number, part = read_part(subspace)
        strings = self.covers[code].get(number)
        return strings is None or any(one.startswith(part) or part.startswith(one) for one in strings)


class TopicMatcher:
    """The advertisements and subscriptions of one topic, by name."""

    def __init__(self, policies: PolicyBook) -> None:
        self._policies = policies
        self.offers: dict[bytes, FabricOffer] = {}
        self.interests: dict[bytes, FabricInterest] = {}
        self._offered, self._wanted = OverlapIndex(), OverlapIndex()
        self._events = InterestIndex()  # the same interests, for sets of values
        self._types: dict[str, Attribute] = {}
        self._published: set[str] = set()  # columns of which a publisher said what they are

    def advertise(self, name: bytes, offer: FabricOffer) -> list[bytes]:
        """Take an advertisement. Returns the subscriptions that fell, since they took a column for something else.
        Raises `Refused` where another publisher does."""
        declared = [one.attribute for one in offer.code.dimensions] if offer.code is not None else []
        if isinstance(offer.content, Formula):
            declared += offer.content.space.attributes
        for one in declared:
            if one.name in self._published and self._types[one.name] != one:
                raise Refused(f'column "{one.name}" is of another type to its publishers', reason="wrong-type")
        changed = {one.name for one in declared if self._types.get(one.name, one) != one}
        named = {key: it.interest.space.attributes for key, it in self.interests.items() if it.interest}
        fallen = [key for key, names in named.items() if any(one.name in changed for one in names)]
        for key in fallen:
            self.remove(key)
        self._types |= {one.name: one for one in declared}
        self._published |= {one.name for one in declared}
        self.remove(name)
        self.offers[name] = offer
        if isinstance(offer.content, Formula):
            self._offered.add(name, offer.content)
        return fallen

    def subscribe(self, name: bytes, interest: FabricInterest) -> None:
        """Take a subscription. Raises `Refused`."""
        formula = interest.interest
        for one in formula.space.attributes if formula else ():
            if self._types.setdefault(one.name, one) != one:
                raise Refused(f'column "{one.name}" is of another type here', reason="wrong-type")
        self.remove(name)
        self.interests[name] = interest
        if formula is not None:
            self._wanted.add(name, formula)
            self._events.add(name, formula)

    def remove(self, name: bytes) -> None:
        self.offers.pop(name, None)
        self._offered.remove(name)
        found = self.interests.pop(name, None)
        if found is not None and found.interest is not None:
            self._wanted.remove(name)
            self._events.remove(name)

    def subspaces(self, code: TopicCode | None, content: Content, choice: Cutting) -> list[str]:
        """Those that an advertisement needs flows for, by the interests that stand; the one for all last."""
        if code is None or not code.dimensions or isinstance(content, AttributeSet):
            return [REST]
        offered = FabricInterest(b"", content)
        interests = (one.interest for one in self.interests.values() if one.interest is not None)
        parts = [show_part(part) for part in cut(code, interests, choice) if part[1]]
        return [*(one for one in parts if offered.wants(code, one)), REST]

    def flows_of(self, subscription: bytes) -> set[bytes]:
        """What a subscription gets."""
        it = self.interests[subscription]
        overlapping = set() if it.interest is None else set(self._offered.overlapping(it.interest))

        def touches(name: bytes, content: Content) -> bool:
            if it.interest is None or content is None:
                return True
            if isinstance(content, Formula):
                return name in overlapping
            return bool(node_holds(it.interest.root, dict(content.values)))

        offers = (offer for name, offer in self.offers.items() if touches(name, offer.content))
        return {flow for offer in offers for flow in self._pairs(offer, it)}

    def subscriptions_of(self, name: bytes) -> dict[bytes, set[bytes]]:
        """Who gets each flow of an advertisement."""
        offer, content = self.offers[name], self.offers[name].content
        found: dict[bytes, set[bytes]] = {flow: set() for flow in offer.flows.values()}
        if isinstance(content, AttributeSet):
            named = set(self._events.match(content))
        else:
            named = set(self.interests if content is None else self._wanted.overlapping(content))
        for key, it in self.interests.items():
            if it.interest is None or key in named:
                for flow in self._pairs(offer, it):
                    found[flow].add(key)
        return found

    def _pairs(self, offer: FabricOffer, it: FabricInterest) -> list[bytes]:
        if not self._policies.admits(offer.policy, it.principal):
            return []
        code = offer.code
        return [flow for one, flow in offer.flows.items() if one == REST or code is None or it.wants(code, one)]


def read_directory(data: bytes) -> list[tuple[bytes, AttributeSet]]:
    """Who holds which attributes, as a tenant's owner tells its dispatcher: wire [1, [[principal, attributes]…]]."""
    fields = Fields.parse(data, "directory", 2)
    fields.version(1)
    rows = [one.array(2) for one in fields.each(PRINCIPALS_MAX)]
    return [(row.octets(16), AttributeSet.decode(row.octets())) for row in rows]
