"""The six guards: EventGuard's attacks, each refused with its reason, and what is taken."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from makers import INSTANCE, SCHEMA, TENANT, World, entropy, rows, seed, token

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused, TallystickError
from tallystick.guards.permits import advertise, fetch, subscribe, unadvertise, unsubscribe
from tallystick.guards.publish import Accepted, Ahead, Contradiction, Lanes, Repeated, publish
from tallystick.guards.route import Window
from tallystick.guards.rules import Act, GuardLimits, Live, TopicRules
from tallystick.parcel.parcel import Parcel
from tallystick.trust.certificate import Certificate, subject_id
from tallystick.trust.permit import Operation, Permit, UndoOrder
from tallystick.trust.right import Right

LIMITS = GuardLimits()


@dataclass
class Ledger:
    """The guards' view, as a test sets it."""

    world: World
    instance: bytes = INSTANCE
    rights: set[tuple[bytes, bytes, Right]] = field(default_factory=set)
    topics: dict[bytes, TopicRules] = field(default_factory=dict)
    black: set[bytes] = field(default_factory=set)
    over: set[bytes] = field(default_factory=set)
    convictions: set[tuple[bytes, bytes, int]] = field(default_factory=set)
    ended: set[bytes] = field(default_factory=set)
    epochs: set[int] = field(default_factory=lambda: {1})
    elsewhere: set[tuple[bytes, int]] = field(default_factory=set)  # partitions that this node does not carry
    unserved: set[bytes] = field(default_factory=set)  # tenants

    def authority(self, identifier: bytes) -> Certificate | None:
        certificate = self.world.authority
        return certificate if identifier == certificate.subject else None

    def blacklisted(self, principal: bytes) -> bool:
        return principal in self.black

    def is_over(self, principal: bytes, time_ms: int) -> bool:
        return principal in self.over

    def convicted(self, principal: bytes, lane: bytes, sequence: int) -> bool:
        return (principal, lane, sequence) in self.convictions

    def allows(self, principal: bytes, token: bytes, right: Right, host: str) -> bool:
        return (principal, token, right) in self.rights

    def topic(self, token: bytes) -> TopicRules | None:
        return self.topics.get(token)

    def carries(self, token: bytes, partition: int) -> bool:
        return (token, partition) not in self.elsewhere

    def carried(self, token: bytes) -> int | None:
        return next((partition for partition in range(4) if self.carries(token, partition)), None)

    def consents(self, tenant: bytes) -> bool:
        return tenant not in self.unserved

    def fall_window_ms(self) -> int:
        return 60_000

    def schema_known(self, token: bytes, version: int, schema_hash: bytes) -> bool:
        return (version, schema_hash) == (SCHEMA.version, SCHEMA.hash)

    def permit_ended(self, identifier: bytes) -> bool:
        return identifier in self.ended

    def epoch_taken(self, token: bytes, epoch: int, time_ms: int) -> bool:
        return epoch in self.epochs


def principal(who: str) -> bytes:
    return subject_id(INSTANCE, SigningKey.from_seed(seed(who)).public.raw)


def act(who: str, time_ms: int = 1000) -> Act:
    return Act(principal(who), "127.0.0.1", seed("request"), time_ms)


@dataclass
class Node:
    world: World = field(default_factory=World)
    live: Live = field(default_factory=lambda: Live(4))
    lanes: Lanes = field(default_factory=lambda: Lanes(3))

    def __post_init__(self) -> None:
        self.rules = Ledger(self.world)
        self.rules.topics[token("brakes")] = TopicRules(TENANT, 4, closed=False)
        for who, right in [("car", Right.WRITE), ("reader", Right.READ), ("rival", Right.READ)]:
            self.rules.rights |= {(principal(who), token("brakes"), r) for r in (right, Right.DESCRIBE)}

    def advertise(self, who: str = "car") -> Permit:
        return advertise(self.world.permit(who, "brakes").encode(), act(who), self.rules, self.live)

    def publish(self, parcel: Parcel, who: str = "car", **changes: object) -> Accepted | Repeated:
        result = publish(
            parcel.encode(),
            act(who),
            self.rules,
            self.live,
            self.lanes,
            self.world.locks.__contains__,
            replace(LIMITS, **changes),  # type: ignore[arg-type]
        )
        if isinstance(result, Accepted):
            self.lanes.advance(principal(who), result.parcel.header)
        return result


@pytest.fixture
def node() -> Node:
    return Node()


def reason_of(caught: pytest.ExceptionInfo[TallystickError]) -> str:
    assert isinstance(caught.value, Refused)
    return caught.value.reason


def test_publish_in_order_once_and_in_its_partition(node: Node) -> None:
    node.advertise()
    lane = node.world.lane()
    first = lane.seal(rows(0, 3), now_ms=1, entropy=entropy(0))
    second = lane.seal(rows(3, 3), now_ms=2, entropy=entropy(1))
    third = lane.seal(rows(6, 3), now_ms=3, entropy=entropy(2))
    accepted = node.publish(first)
    assert isinstance(accepted, Accepted)
    assert accepted.partitions == (first.header.partition(4),)
    assert isinstance(node.publish(first), Repeated)  # a retry blames nobody
    with pytest.raises(Ahead) as ahead:
        node.publish(third)
    assert ahead.value.expected == 1
    node.publish(second)
    node.publish(third)
    with pytest.raises(Contradiction):
        node.publish(first)  # an old parcel replayed: the log will say whether it is the same


def test_close_ends_a_lane_and_lanes_are_bounded(node: Node) -> None:
    node.advertise()
    lane = node.world.lane()
    node.publish(lane.seal_close(now_ms=1, entropy=entropy(0)))
    with pytest.raises(Refused) as caught:
        node.publish(lane.seal(rows(0, 1), now_ms=2, entropy=entropy(1)))
    assert reason_of(caught) == "lane-closed"
    for number in range(2):
        node.publish(node.world.lane(lane=bytes([number]) * 16).seal_heartbeat(now_ms=1, entropy=entropy(number)))
    with pytest.raises(Refused) as caught:
        node.publish(node.world.lane(lane=b"x" * 16).seal_heartbeat(now_ms=1, entropy=entropy(9)))
    assert reason_of(caught) == "too-many-lanes"


def publish_refusals() -> list[tuple[str, str]]:
    return [
        ("not advertised", "not-advertised"),
        ("no right", "no-right"),
        ("not described", "unknown-topic"),
        ("blacklisted", "blacklisted"),
        ("closed", "topic-closed"),
        ("epoch over", "epoch-over"),
        ("permit expired", "permit-expired"),
        ("too large", "too-large"),
        ("lock missing", "unknown-lock"),
        ("another instance", "wrong-instance"),
        ("forged", "bad-signature"),
        ("somebody else's permit", "not-yours"),
        ("altered body", "altered"),
    ]


@pytest.mark.parametrize(("attack", "reason"), publish_refusals())
def test_publish_refusals(node: Node, attack: str, reason: str) -> None:
    permit = node.advertise()
    parcel = node.world.lane().seal(rows(0, 3), now_ms=1, entropy=entropy(0))
    who, changes = "car", {}
    match attack:
        case "not advertised":
            node.live.remove(permit.identifier)
        case "no right":
            node.rules.rights.discard((principal("car"), token("brakes"), Right.WRITE))
        case "not described":
            node.rules.rights.discard((principal("car"), token("brakes"), Right.DESCRIBE))
        case "blacklisted":
            node.rules.black.add(principal("car"))
        case "closed":
            node.rules.topics[token("brakes")] = TopicRules(TENANT, 4, closed=True)
        case "epoch over":
            node.rules.epochs = {2}
        case "permit expired":
            node.live.remove(permit.identifier)
            node.live.add(node.world.permit("car", "brakes", not_after_ms=5))
        case "too large":
            changes = {"parcel_bytes_max": 100}
        case "lock missing":
            node.world.locks.clear()
        case "another instance":
            node.rules.instance = bytes(32)
        case "forged":
            parcel = Parcel(parcel.header, bytes(64), parcel.body)
        case "somebody else's permit":
            who = "rival"
        case "altered body":
            parcel = Parcel(parcel.header, parcel.signature, bytes(len(parcel.body)))
    with pytest.raises(TallystickError) as caught:
        node.publish(parcel, who, **changes)
    assert reason_of(caught) == reason


def test_a_plain_record_is_refused(node: Node) -> None:
    node.advertise()
    arguments = (act("car"), node.rules, node.live, node.lanes, node.world.locks.__contains__, LIMITS)
    with pytest.raises(Refused) as caught:
        publish(b'{"speed": 3, "note": "not sealed at all"}', *arguments)
    assert reason_of(caught) == "plain"


def test_a_stolen_lane_identifier_harms_nobody(node: Node) -> None:
    """The lane's name is in clear headers; a rival that uses it first, or later, has a lane of its own."""
    node.rules.rights |= {(principal("rival"), token("brakes"), Right.WRITE)}
    node.advertise("car")
    node.advertise("rival")
    lane = seed("lane car")[:16]
    node.publish(node.world.lane("rival", lane=lane).seal(rows(9, 1), now_ms=1, entropy=entropy(7)), "rival")
    honest = node.world.lane("car", lane=lane)
    assert isinstance(node.publish(honest.seal(rows(0, 1), now_ms=1, entropy=entropy(0))), Accepted)


def test_copied_permits_are_worthless(node: Node) -> None:
    """EventGuard's permit signs the token alone; ours names the principal, and the envelope says who asks."""
    copied = node.world.permit("reader", "brakes", Operation.SUBSCRIBE).encode()
    with pytest.raises(Refused) as caught:
        subscribe(copied, act("rival"), node.rules, node.live)
    assert reason_of(caught) == "not-yours"
    subscribe(copied, act("reader"), node.rules, node.live)
    with pytest.raises(Refused) as caught:
        fetch(token("brakes"), 0, Permit.decode(copied).identifier, act("rival"), node.rules, node.live)
    assert reason_of(caught) == "not-subscribed"
    identifier = Permit.decode(copied).identifier
    assert fetch(token("brakes"), 0, identifier, act("reader"), node.rules, node.live).principal == principal("reader")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"not_after_ms": 5}, "permit-expired"),
        ({"tenant": b"u" * 16}, "wrong-permit"),
        ({"operation": Operation.ADVERTISE}, "wrong-permit"),
        ({"authority": b"a" * 16}, "unknown-authority"),
        ({"instance": bytes(32)}, "wrong-instance"),
    ],
)
def test_phony_subscriptions(node: Node, changes: dict[str, object], reason: str) -> None:
    permit = node.world.permit("reader", "brakes", **{"operation": Operation.SUBSCRIBE, **changes})  # type: ignore[arg-type]
    with pytest.raises(Refused) as caught:
        subscribe(permit.encode(), act("reader"), node.rules, node.live)
    assert reason_of(caught) == reason


def test_a_permit_that_the_authority_did_not_sign(node: Node) -> None:
    node.world.authority_key = SigningKey.from_seed(seed("authority"))
    honest = node.world.permit("reader", "brakes", Operation.SUBSCRIBE)
    forged = replace(honest).sign(SigningKey.from_seed(seed("rival")))
    with pytest.raises(Refused) as caught:
        subscribe(forged.encode(), act("reader"), node.rules, node.live)
    assert reason_of(caught) == "forged"


def undo_order(node: Node, permit: Permit, signer: SigningKey | None = None, **changes: object) -> bytes:
    values: dict[str, object] = {
        "instance": INSTANCE,
        "identifier": permit.identifier,
        "operation": permit.operation,
        "token": permit.token,
        "tenant": permit.tenant,
        "principal": permit.principal,
        "time_ms": 5,
        "authority": permit.authority,
    }
    order = UndoOrder(**{**values, **changes})  # type: ignore[arg-type]
    return order.sign(signer or node.world.authority_key).encode()


def test_undo_orders(node: Node) -> None:
    mine = node.world.permit("reader", "brakes", Operation.SUBSCRIBE)
    theirs = node.world.permit("rival", "brakes", Operation.SUBSCRIBE)
    for who, permit in (("reader", mine), ("rival", theirs)):
        subscribe(permit.encode(), act(who), node.rules, node.live)
    arguments = (node.rules, node.live)
    with pytest.raises(Refused) as caught:  # not the authority's word
        unsubscribe(undo_order(node, mine, SigningKey.from_seed(seed("rival"))), act("reader"), *arguments)
    assert reason_of(caught) == "forged"
    with pytest.raises(Refused) as caught:  # S' brings its own order and names the victim's permit
        unsubscribe(undo_order(node, theirs, identifier=mine.identifier), act("rival"), *arguments)
    assert reason_of(caught) == "wrong-permit"
    with pytest.raises(Refused) as caught:  # S' replays the victim's order after the victim subscribed anew
        unsubscribe(undo_order(node, mine), act("rival"), *arguments)
    assert reason_of(caught) == "not-yours"
    with pytest.raises(Refused) as caught:
        unadvertise(undo_order(node, mine), act("reader"), *arguments)
    assert reason_of(caught) == "wrong-permit"
    unsubscribe(undo_order(node, mine), act("reader"), *arguments)
    unsubscribe(undo_order(node, mine), act("reader"), *arguments)  # twice is no fault
    with pytest.raises(Refused) as caught:
        fetch(token("brakes"), 0, mine.identifier, act("reader"), *arguments)
    assert reason_of(caught) == "not-subscribed"
    assert node.live.get(theirs.identifier) is not None


def test_unadvertise_stops_publishing(node: Node) -> None:
    permit = node.advertise()
    unadvertise(undo_order(node, permit), act("car"), node.rules, node.live)
    with pytest.raises(Refused) as caught:
        node.publish(node.world.lane().seal(rows(0, 1), now_ms=1, entropy=entropy(0)))
    assert reason_of(caught) == "not-advertised"


def test_live_permits_in_memory_are_bounded_and_the_rest_is_read_again() -> None:
    world = World()
    stored = {permit.identifier: permit for permit in (world.permit("car", name) for name in "abc")}
    live = Live(2, stored.get)
    for permit in stored.values():
        live.add(permit)
    assert len(live) == 2
    first = next(iter(stored))
    assert live.get(first) == stored.pop(first)
    live.remove(first)
    assert live.get(first) is None


class TestWindow:
    def test_replays_are_refused_for_as_long_as_the_envelope_is_fresh(self) -> None:
        window = Window(delay_max_s=60, skew_max_s=5, share_max=10)
        window.check(b"a", b"1", 0.0)
        with pytest.raises(Refused) as caught:
            window.check(b"a", b"1", 69.0)
        assert reason_of(caught) == "duplicate"
        window.check(b"a", b"1", 71.0)  # its envelope would be stale by now

    def test_nobody_burns_anothers_identifier(self) -> None:
        window = Window(60, 5, 10)
        window.check(b"thief", b"1", 0.0)
        window.check(b"owner", b"1", 0.0)

    def test_a_full_share_refuses_its_owner_alone_and_forgets_nothing_early(self) -> None:
        window = Window(60, 5, 3)
        for number in range(3):
            window.check(b"flood", bytes([number]), 1.0)
        with pytest.raises(Refused) as caught:
            window.check(b"flood", b"x", 1.0)
        assert reason_of(caught) == "too-many-requests"
        window.check(b"calm", b"1", 1.0)
        with pytest.raises(Refused):
            window.check(b"flood", bytes([0]), 2.0)
        assert len(window) == 4

    def test_several_notes_of_one_request_are_one_entry(self) -> None:
        window = Window(60, 5, 10)
        window.restore([(10.0, b"a", b"1"), (10.0, b"a", b"1"), (11.0, b"a", b"1")])
        assert len(window) == 1
        window.check(b"a", b"2", 200.0)  # forgetting finds each entry once

    def test_it_survives_a_restart(self) -> None:
        window, after = Window(60, 5, 10), Window(60, 5, 10)
        window.check(b"a", b"1", 10.0)
        after.restore(window.entries())
        with pytest.raises(Refused):
            after.check(b"a", b"1", 11.0)
        Window(60, 5, 10).check(b"a", b"1", 11.0)  # without it the replay would pass


def test_what_is_not_carried_here_is_refused_at_every_guard(node: Node) -> None:
    node.advertise()
    reader = subscribe(
        node.world.permit("reader", "brakes", Operation.SUBSCRIBE).encode(), act("reader"), node.rules, node.live
    )
    lane = node.world.lane()
    first, second = (lane.seal(rows(n, 1), now_ms=n, entropy=entropy(n)) for n in (1, 2))
    partition = first.header.partition(4)
    assert isinstance(node.publish(first), Accepted)
    node.rules.elsewhere.add((token("brakes"), partition))
    assert isinstance(node.publish(first), Repeated)  # it is stored here, and its publisher is told so
    with pytest.raises(Refused) as caught:
        node.publish(second)
    assert reason_of(caught) == "not-carried"
    fetch(token("brakes"), (partition + 1) % 4, reader.identifier, act("reader"), node.rules, node.live)
    with pytest.raises(Refused) as caught:
        fetch(token("brakes"), partition, reader.identifier, act("reader"), node.rules, node.live)
    assert reason_of(caught) == "not-carried"
    node.advertise()  # the other partitions are still here
    node.rules.elsewhere |= {(token("brakes"), other) for other in range(4)}
    with pytest.raises(Refused) as caught:
        node.advertise()
    assert reason_of(caught) == "not-carried"


def test_a_tenant_that_the_operator_does_not_serve_is_refused(node: Node) -> None:
    node.rules.unserved.add(TENANT)
    with pytest.raises(Refused) as caught:
        node.advertise()
    assert reason_of(caught) == "not-carried"
