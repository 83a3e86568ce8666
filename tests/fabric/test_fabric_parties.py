"""The security use cases of the thesis, section 7.1, between hosts, switches and controllers: every sender with every
receiver. What labels and tables alone decide stands in test_fabric_use_cases.py.

A frame has one of six ways: a publisher asks the controller and is answered, so does a subscriber, a publication goes
from publisher to subscriber, and a request for repair from subscriber to publisher.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from fabric_parcels import parcel
from fabric_world import line
from host_world import Host, HostWorld, principal
from makers import seed, token
from test_fabric_hosts import forged_answer, hear_message, labels_of
from test_fabric_matcher import TRAITS, policy

from tallystick.carriers.fabric.exchanging import AgentLimits
from tallystick.carriers.fabric.fragments import FabricKey
from tallystick.carriers.fabric.matcher import read_directory
from tallystick.carriers.fabric.route import ETHERTYPE_CONTROL, RouteHeader, ethertype, publication, read_publication
from tallystick.carriers.fabric.rules import FlowRule, Superseded
from tallystick.carriers.fabric.trees import PortPlace
from tallystick.errors import Refused
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Woken
from tallystick.trust.permit import Operation
from tallystick.wire import encode

WAYS = [
    *(("publisher", "controller"), ("controller", "publisher"), ("subscriber", "controller")),
    *(("controller", "subscriber"), ("publisher", "subscriber"), ("subscriber", "publisher")),
]
Way = tuple[str, str]
ROWS = 300  # in some twenty fragments


class Tapped(HostWorld):
    """Every frame that a switch has is seen here, and may be altered, by its way."""

    def __init__(self, alters: Way | None = None) -> None:
        super().__init__(line(3), limits=AgentLimits(group=0))
        self.frames: list[tuple[Way, bytes]] = []
        self.alters = alters
        self.altered = 0
        self.car, self.reader = self.host("car", "s0"), self.host("reader", "s2")

    def way(self, place: PortPlace, frame: bytes) -> Way:
        is_car = place.switch == "s0"
        if ethertype(frame) == ETHERTYPE_CONTROL:
            return ("publisher" if is_car else "subscriber", "controller")
        return WAYS[4] if len(frame) > 120 else WAYS[5]

    def tap(self, way: Way, frame: bytes) -> bytes:
        self.frames.append((way, frame))
        if way != self.alters:
            return frame
        self.altered += 1
        return frame[:-9] + bytes([frame[-9] ^ 1]) + frame[-8:]

    def enter(self, place: PortPlace, frame: bytes) -> None:
        with suppress(Refused):  # as the controller drops what is malformed
            super().enter(place, self.tap(self.way(place, frame), frame))

    def leave(self, place: PortPlace, frame: bytes) -> None:
        if ethertype(frame) == ETHERTYPE_CONTROL:
            frame = self.tap(("controller", "publisher" if place.switch == "s0" else "subscriber"), frame)
        super().leave(place, frame)

    def talk(self) -> None:
        """All six ways: a fragment is lost, and asked for."""
        self.car.advertise("brakes")
        self.reader.subscribe("brakes")
        self.publish(1)

    def publish(self, number: int) -> None:
        lost = iter([False] * 4 + [True] + [False] * 10_000)
        self.lose = lambda place, frame: place == self.reader.place and frame[13] == 4 and next(lost)
        if self.car.agent.publish(token("brakes"), parcel(number, ROWS), self.now):  # it may have no label yet
            self.car.act(Woken())
        self.run(1.5)


@pytest.fixture(scope="module")
def tapped() -> Tapped:
    found = Tapped()
    found.talk()
    assert found.reader.got == [parcel(1, ROWS)]
    return found


@pytest.mark.parametrize("way", WAYS)
def test_use_case_1_a_curious_switch_reads_nothing_on_any_way(tapped: Tapped, way: Way) -> None:
    """Use case 1: "all messages forwarded in the data plane are encrypted, and switches will not have keys"."""
    frames = [frame for one, frame in tapped.frames if one == way]
    header = Parcel.decode(parcel(1, ROWS).parcel).header
    words = [token("brakes"), header.lane, header.topics[0].permit, principal("car"), principal("reader")]
    words += [b"brakes", b"TLY", seed("mesh key brakes"), seed("1 0").hex().encode(), parcel(1, ROWS).parcel[:32]]
    assert frames
    assert not [word for frame in frames for word in words if word in frame]


def test_use_case_1_the_tables_of_a_switch_hold_labels_and_ports_alone(tapped: Tapped) -> None:
    """Use case 1: what a switch was told has no name, no key and no interest in it either."""
    told = b"".join(
        rule.label + b"".join(label for _port, label in rule.out)
        for switch in tapped.switches.values()
        for rule in switch.table.values()
    )
    assert not [1 for word in (token("brakes"), principal("car"), seed("mesh key brakes")[:8]) if word in told]


def strangers(world: HostWorld) -> dict[str, Host]:
    """Publisher and subscriber of other topics, and one that joined nothing."""
    found = {name: world.host(name, "s1", 101 + at) for at, name in enumerate(("subscriber", "publisher", "idle"))}
    found["subscriber"].subscribe("tyres")
    found["publisher"].advertise("lights")
    return found


@pytest.mark.parametrize("one", ["subscriber", "publisher", "idle"])
@pytest.mark.parametrize("other", ["subscriber", "publisher", "idle"])
def test_use_case_2_those_who_put_their_keys_together_open_no_more_than_each_alone(one: str, other: str) -> None:
    """Use case 2: "different parties try to combine their keys". Whatever two of them hold, of labels and carrier keys,
    opens nothing of a topic that neither has. (Keys of attributes: tests/crypto/abe/test_capsule.py.)"""
    world = Tapped()
    world.talk()
    both = strangers(world)
    fool = both[one]
    fool.keys("tyres", "lights", "horns")  # all that either could have
    labels = {label for host in (both[one], both[other]) for label in own_labels(host)}
    heard = [frame for way, frame in world.frames if way == WAYS[4]]
    for frame in heard:
        route, payload = read_publication(frame)
        for label in {route.label, *labels}:
            fool.hear(publication(RouteHeader(route.epoch, label), payload))
    assert fool.got == []


def own_labels(host: Host) -> set[bytes]:
    answers = [one.answer for one in host.agent.requests.values() if one.answer is not None]
    return {label for answer in answers for label in answer.receive}


def test_use_case_2_two_who_satisfy_half_a_policy_each_get_no_flow_together() -> None:
    """Use case 2: the dispatcher matches each principal by itself, as each key has its own random number."""
    world = HostWorld(line(3))
    car, ann, ben = world.host("car", "s0"), world.host("ann", "s1"), world.host("ben", "s2")
    people = {"ann": {"role": ["doctor"], "level": 1}, "ben": {"role": ["visitor"], "level": 9}}
    directory = encode([1, [[principal(who), TRAITS.values(held).encode()] for who, held in people.items()]])  # type: ignore[arg-type]
    world.obey(world.dispatcher.set_principals(read_directory(directory)))
    for host in (ann, ben):
        host.subscribe("brakes")
    car.advertise("brakes", policy=policy("acme.role = doctor and acme.level >= 2"))
    before = len(ann.heard), len(ben.heard)
    car.publish("brakes", parcel(1))
    assert (len(ann.heard), len(ben.heard)) == before
    assert ann.got == ben.got == []


@pytest.mark.parametrize("way", WAYS)
def test_use_case_3_a_frame_that_a_switch_sends_to_whoever_it_likes_does_nothing_there(way: Way) -> None:
    """Use case 3: "a packet, either an advertisement packet, subscription packet or publication packet, is incorrectly
    sent" to a publisher or a subscriber, of this topic or of another, or to a switch beside the way."""
    world = Tapped()
    world.talk()
    receivers = {"car": world.car, "reader": world.reader, **strangers(world)}
    for host in receivers.values():
        host.got.clear()
    before = {who: own_labels(host) for who, host in receivers.items()}
    acts, frames = list(world.door.acts), [frame for one, frame in world.frames if one == way]
    for host in receivers.values():
        for frame in frames:
            host.hear(frame)
    if way in WAYS[4:]:
        for frame in frames:
            for switch in ("s1", "s2"):  # as if a host there had sent it
                world.enter(PortPlace(switch, 107), frame)
    world.run(1.0)
    assert all(host.got == [] for host in receivers.values())
    assert {who: own_labels(host) for who, host in receivers.items()} == before
    assert world.door.acts == acts


@pytest.mark.parametrize("way", WAYS)
def test_use_case_4_what_is_altered_on_any_way_has_no_effect_and_goes_well_once_it_stops(way: Way) -> None:
    """Use case 4: "might alter the payload, even though it is encrypted, and resend it to the switch"."""
    world = Tapped(way)
    world.talk()
    assert world.altered
    assert set(world.reader.got) <= {parcel(1, ROWS)}
    assert set(world.door.acts) <= {("ADVERTISE", ""), ("SUBSCRIBE", "")}
    if way[1] == "controller":
        assert len(world.door.acts) == 1  # the other's
    if way == WAYS[4]:
        assert world.reader.got == []
        assert world.reader.dropped["cannot-open"] + world.reader.dropped["not-opened"] >= 10
    world.alters = None
    for _ in range(5):  # requests are sent again
        world.car.act(Woken())
        world.reader.act(Woken())
        world.run(1.0)
    world.publish(2)
    assert parcel(2, ROWS) in world.reader.got


# --- use case 5: unauthenticated parties, each to each ---


def stranger(world: Tapped) -> Host:
    """A host that nobody enrolled, at a port beside the publisher's."""
    eve = world.host("eve", "s0", 105)
    del world.known[principal("eve")]
    return eve


def first_label(world: Tapped) -> bytes:
    [answer] = [one.answer for one in world.car.agent.requests.values()]
    assert answer is not None
    return answer.send[0][-1]


def publishes(world: Tapped, to: Host, label: bytes) -> None:
    eve = stranger(world)
    key = FabricKey.of_mesh(seed("guess"), 19_675)
    assert key is not None
    frame = publication(RouteHeader(1, label), bytes(200))
    world.enter(eve.place, frame)
    to.hear(frame)
    world.run()


def asks(world: Tapped, operation: Operation) -> None:
    eve = stranger(world)
    eve.keys("brakes")
    eve.ask(eve.request(operation, "brakes"))
    world.run(2.0)
    assert own_labels(eve) == set()
    assert all(one.answer is None for one in eve.agent.requests.values())


def asks_for_repair(world: Tapped, to: Host) -> None:
    """With a label that leads to the publisher, and no key."""
    eve = stranger(world)
    asked = next(frame for way, frame in world.frames if way == WAYS[5])
    route, payload = read_publication(asked)
    made_up = publication(route, payload[:-16] + bytes(16))
    world.enter(eve.place, made_up)
    to.hear(made_up)
    world.run()


def rules(world: Tapped) -> None:
    """A controller that holds no lease, at a switch."""
    driver = world.switches["s0"].driver()
    with pytest.raises(Superseded):
        driver.lead(0)
    with pytest.raises(Superseded):
        driver.write({(1, bytes(16)): FlowRule(1, bytes(16), ((100, bytes(16)),))})


FORGERIES: dict[Way, Callable[[Tapped], None]] = {
    ("publisher", "subscriber"): lambda world: publishes(world, world.reader, labels_of(world.reader)[0]),
    ("publisher", "publisher"): lambda world: publishes(world, world.car, first_label(world)),
    ("publisher", "controller"): lambda world: asks(world, Operation.ADVERTISE),
    ("subscriber", "publisher"): lambda world: asks_for_repair(world, world.car),
    ("subscriber", "subscriber"): lambda world: asks_for_repair(world, world.reader),
    ("subscriber", "controller"): lambda world: asks(world, Operation.SUBSCRIBE),
    ("controller", "publisher"): lambda world: hear_message(world.car, forged_answer(world, world.car)),
    ("controller", "subscriber"): lambda world: hear_message(world.reader, forged_answer(world, world.reader)),
    ("controller", "controller"): rules,
}


@pytest.mark.parametrize("way", FORGERIES)
def test_use_case_5_who_is_not_known_is_not_heard(way: Way) -> None:
    """Use case 5: "the sending party can be the subscriber, publisher or controller, and the receiving party idem"."""
    world = Tapped()
    world.talk()
    tables = {switch: dict(one.table) for switch, one in world.switches.items()}
    acts, labels, sent = list(world.door.acts), labels_of(world.reader), world.car.agent.statistics().sent
    FORGERIES[way](world)
    assert world.reader.got == [parcel(1, ROWS)]
    assert world.car.got == []
    assert {switch: dict(one.table) for switch, one in world.switches.items()} == tables
    assert (world.door.acts, labels_of(world.reader)) == (acts, labels)
    assert world.car.agent.statistics().sent == sent  # nobody is repaired
    world.publish(2)
    assert world.reader.got == [parcel(1, ROWS), parcel(2, ROWS)]
