"""Hosts over a fabric of simulated switches: from a permit to parcels, what is lost and mended, and what everybody on
the way may try (the use cases of the thesis, section 7.1).
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from fabric_parcels import parcel
from fabric_world import line, ring
from host_world import DAY_MS, NODE, Host, HostWorld, principal
from makers import seed, token
from without import without

from tallystick.carriers.fabric.control import ANSWER_KIND, seal_answer, split_message
from tallystick.carriers.fabric.exchanging import AgentLimits
from tallystick.carriers.fabric.fragments import FabricKey, FragmentHead, FragmentKind
from tallystick.carriers.fabric.repair import RepairLimits
from tallystick.carriers.fabric.route import (
    ETHERTYPE_CONTROL,
    RouteHeader,
    control,
    ethertype,
    publication,
    read_publication,
)
from tallystick.carriers.fabric.topology import PROBE_KIND, Probe
from tallystick.carriers.fabric.trees import PortPlace
from tallystick.crypto.signatures import SigningKey
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Arrived, Woken
from tallystick.trust.fabric import FabricAnswer

MANY = 2_000  # rows, in some hundred fragments


def pair(world: HostWorld, readers: tuple[str, ...] = ("reader",)) -> tuple[Host, list[Host]]:
    """A publisher at the first switch, and readers at the others."""
    last = sorted(world.wiring.switches)
    car = world.host("car", last[0])
    car.advertise("brakes")
    hosts = [world.host(name, last[-1 - at]) for at, name in enumerate(readers)]
    for one in hosts:
        one.subscribe("brakes")
    return car, hosts


def test_what_is_published_comes_to_whoever_subscribed_and_to_nobody_else() -> None:
    world = HostWorld(line(4))
    car, (reader, other) = pair(world, ("reader", "other"))
    stranger = world.host("eve", "s1")
    stranger.subscribe("tyres")
    before, heard = world.packet_ins, len(stranger.heard)
    car.publish("brakes", parcel(1), parcel(2, MANY))
    assert reader.got == other.got == [parcel(1), parcel(2, MANY)]
    assert stranger.got == []
    assert len(stranger.heard) == heard
    assert world.packet_ins == before


def test_who_subscribes_first_is_found_by_who_advertises_later() -> None:
    world = HostWorld(line(2))
    reader, car = world.host("reader", "s1"), world.host("car", "s0")
    reader.subscribe("brakes")
    car.advertise("brakes")
    car.publish("brakes", parcel(1))
    assert reader.got == [parcel(1)]


def test_a_new_route_epoch_reaches_the_hosts_and_loses_nothing() -> None:
    world = HostWorld(line(3))
    car, (reader,) = pair(world)
    before = reader.agent.requests.copy()
    car.publish("brakes", parcel(1))
    world.configurator.begin_epoch()
    world.run()
    car.publish("brakes", parcel(2))
    assert reader.got == [parcel(1), parcel(2)]
    assert all(one.answer is not None and one.answer.epoch == 2 for one in before.values())


# --- loss ---


def test_a_lossy_link_is_mended_by_parity_and_by_asking(seed: int) -> None:
    world, random = HostWorld(line(3), seed), Random(seed)
    car, (reader, other) = pair(world, ("reader", "other"))
    world.lose = lambda place, frame: place.switch == "s1" and random.random() < 0.1
    parcels = [parcel(number, MANY if number % 2 else 1) for number in range(6)]
    for one in parcels:
        car.publish("brakes", one)
        world.run(0.2)
    world.lose = lambda place, frame: False
    car.publish("brakes", parcel(9))  # names the one before it
    world.run(3.0)
    assert sorted(reader.got) == sorted(other.got) == sorted([*parcels, parcel(9)])
    assert sum(car.agent.statistics().dropped.values()) == 0


def test_a_parcel_that_was_lost_whole_is_missed_when_the_next_one_comes() -> None:
    world = HostWorld(line(2))
    car, (reader,) = pair(world)
    car.publish("brakes", parcel(1))
    world.lose = lambda place, frame: True
    car.publish("brakes", parcel(2))
    world.lose = lambda place, frame: False
    car.publish("brakes", parcel(3))
    world.run(1.0)
    assert sorted(reader.got) == sorted([parcel(1), parcel(2), parcel(3)])


def test_the_repair_goes_to_all_and_shows_the_publisher_to_nobody() -> None:
    world = HostWorld(line(4), limits=AgentLimits(group=0))
    readers = tuple(f"reader {number}" for number in range(3))
    car, hosts = pair(world, readers)
    lost = {4, 5}
    number = iter(range(10_000))
    world.lose = lambda place, frame: place.switch == "s0" and next(number) in lost
    before = [len(one.heard) for one in hosts]
    car.publish("brakes", parcel(1, MANY))
    world.run(1.0)
    assert all(one.got == [parcel(1, MANY)] for one in hosts)
    needed = len(hosts[0].heard) - before[0]
    assert all(len(one.heard) - at == needed for one, at in zip(hosts, before, strict=True))  # all heard the repair
    asked = [frame for place, frame in world.seen if place == "s0" and len(frame) < 120]
    assert 1 <= len(asked) <= 3
    assert not [1 for one in hosts for frame in one.heard if principal("car") in frame]


# --- switches that look, alter, repeat, misroute ---


def test_a_switch_sees_no_name_and_a_label_is_worth_nothing_elsewhere() -> None:
    """Use case 1, and what a label is worth."""
    world = HostWorld(line(3))
    car, (reader,) = pair(world)
    car.publish("brakes", parcel(1))
    header = Parcel.decode(parcel(1).parcel).header
    names = [token("brakes"), header.lane, header.topics[0].permit, principal("car"), principal("reader"), b"TLY"]
    assert not [name for _, frame in world.seen for name in names if name in frame]
    labels = {
        switch: {read_publication(frame)[0].label for at, frame in world.seen if at == switch}
        for switch in ("s0", "s1", "s2")
    }
    assert not labels["s0"] & labels["s1"]
    assert not labels["s1"] & labels["s2"]
    [label] = labels["s1"]
    world.enter(PortPlace("s2", 100), publication(RouteHeader(1, label), bytes(100)))
    world.run()
    assert reader.got == [parcel(1)]


def test_an_altered_payload_is_found_at_the_first_receiver_and_mended() -> None:
    """Use case 4."""
    world = HostWorld(line(3))
    car, (reader,) = pair(world)
    count = iter(range(10_000))

    def alter(place: PortPlace, frame: bytes) -> bytes:
        if place.switch != "s1" or next(count) % 5:
            return frame
        return frame[:-20] + bytes([frame[-20] ^ 1]) + frame[-19:]

    world.alter = alter
    car.publish("brakes", parcel(1, MANY))
    world.run(2.0)
    assert reader.got == [parcel(1, MANY)]
    assert reader.dropped["cannot-open"] > 5


def test_a_switch_that_alters_frames_is_named_with_its_neighbour_and_nobody_has_to_ask() -> None:
    """Use case 4, to its end: the reader's host complains, its dispatcher hands it on, verifying hosts look."""
    world = HostWorld(line(4))
    car, (reader,) = pair(world)
    for switch in world.wiring.switches:
        world.verifier(switch)
    [altering] = [place for place, end in world.wiring.far_ends.items() if (place.switch, end.switch) == ("s1", "s2")]

    def alter(place: PortPlace, frame: bytes) -> bytes:
        return frame[:-1] + bytes([frame[-1] ^ 1]) if place == altering and frame[12:14] == b"\x90\x04" else frame

    world.alter = alter
    for _ in range(40):
        for number in range(4):
            car.agent.publish(token("brakes"), parcel(number), world.now)
        car.act(Woken())
        world.run(0.25)
        if world.found:
            break
    [found] = world.found
    assert (found.before, found.to) == ("s1", "s2")
    assert reader.got == []


def test_whoever_finds_altered_frames_complains_and_whoever_hears_strange_ones_does_not() -> None:
    world = HostWorld(line(3))
    car, (reader,) = pair(world)
    car.publish("brakes", parcel(1, MANY))
    [route, _] = read_publication(next(frame for frame in reader.heard if frame[12:14] == b"\x90\x04"))
    before = world.packet_ins
    reader.hear(publication(RouteHeader(1, bytes(16)), bytes(100)))  # a guessed label
    reader.hear(b"runt")
    world.run()
    assert world.packet_ins == before
    epoch = int(world.now * 1000) // DAY_MS
    head = FragmentHead(FragmentKind.PIECE, bytes(16), epoch=epoch & 0xFF)
    forged = publication(route, FabricKey.of_mesh(seed("eve"), epoch).seal(head, bytes(100)))
    for _ in range(3):
        reader.hear(forged)
    world.run()
    assert world.packet_ins > before
    assert world.dispatcher.statistics().complaints == 1
    world.run(11.0)
    reader.hear(forged)
    world.run()
    assert world.dispatcher.statistics().complaints == 2


def test_a_switch_that_drops_duplicates_delays_and_replays_brings_nothing_false(seed: int) -> None:
    world, random = HostWorld(ring(4), seed), Random(seed)
    car, (reader,) = pair(world)
    kept: list[tuple[PortPlace, bytes]] = []

    def lose(place: PortPlace, frame: bytes) -> bool:
        if place in world.ports and len(frame) > 40:
            kept.append((place, frame))
        return random.random() < 0.05

    world.lose = lose
    for number in range(4):
        car.publish("brakes", parcel(number, 200))
    world.lose = lambda place, frame: False
    for place, frame in random.sample(kept, len(kept)):
        if place == reader.place:
            for _ in range(2):
                reader.hear(frame)
    world.run(2.0)
    assert sorted(reader.got) == sorted(parcel(number, 200) for number in range(4))


def test_a_switch_that_sends_frames_to_others_opens_nothing_there() -> None:
    """Use cases 2 and 3: to a publisher, to a subscriber of another topic, to both together."""
    world = HostWorld(line(3))
    car, (reader,) = pair(world)
    other = world.host("eve", "s1")
    told = other.subscribe("tyres").answer
    assert told is not None
    car.publish("brakes", parcel(1))
    [frame] = [frame for frame in reader.heard if frame[12:14] == b"\x90\x04"][:1]
    route, payload = read_publication(frame)
    for host, label in ((other, route.label), (other, told.receive[0]), (car, route.label)):
        host.hear(publication(RouteHeader(route.epoch, label), payload))
    assert other.got == car.got == []
    assert other.dropped["unknown-label"] == 1
    assert other.dropped["cannot-open"] + other.dropped["not-opened"] == 1


def test_without_a_label_that_was_told_nothing_is_looked_at() -> None:
    world = HostWorld(line(2))
    car, (reader,) = pair(world)
    for number in range(100):
        reader.hear(publication(RouteHeader(1, b"%16d" % number), bytes(200)))
    assert reader.dropped == {"unknown-label": 100}
    for junk in (
        b"",
        bytes(13),
        bytes(60),
        control(b""),
        control(bytes(60)),
        publication(RouteHeader(1, bytes(16)), b""),
    ):
        reader.hear(junk)
    assert reader.got == []
    car.publish("brakes", parcel(1))
    assert reader.got == [parcel(1)]


def test_an_unauthorised_publisher_guesses_labels_in_vain() -> None:
    """Use case 5: 16 bits are guessed within 65,536 frames, 128 bits are not."""
    world = HostWorld(line(2))
    _car, (reader,) = pair(world)
    table = world.switches["s0"].table
    [first] = [rule.label for rule in table.values() if len(rule.out) == 1 and rule.out[0][0] == 1][:1]
    random = Random(1)
    assert not any((1, random.randbytes(16)) in table for _ in range(1 << 17))
    short = {int.from_bytes(label[:2]) for _, label in table}
    assert any(guess in short for guess in range(1 << 16))
    strange = FabricKey.of_mesh(seed("guess"), 19_675)
    assert strange is not None
    world.enter(PortPlace("s0", 100), publication(RouteHeader(1, first), bytes(200)))  # even a right guess
    world.run()
    assert reader.got == []
    assert sum(reader.dropped.values()) == 1


# --- what is not the dispatcher's word ---


def forged_answer(world: HostWorld, host: Host, **changes: object) -> bytes:
    """The message of an answer that somebody makes up, or of one that the dispatcher made."""
    request = next(reversed(host.agent.requests))
    answer = FabricAnswer(world.keys.instance, request, int(world.now * 1000), 1 << 50, 9, (), (bytes(16),))
    signer = changes.pop("signer", SigningKey.from_seed(seed("eve")))
    assert isinstance(signer, SigningKey)
    signed = replace(answer, **changes).sign(signer)  # type: ignore[arg-type]
    return seal_answer(signed, host.agent.keys.public)


def hear_message(host: Host, message: bytes) -> None:
    for piece in split_message(ANSWER_KIND, NODE, message, 1_400):
        host.hear(control(piece))


def labels_of(host: Host) -> tuple[bytes, ...]:
    answer = next(reversed(host.agent.requests.values())).answer
    return () if answer is None else answer.receive


def test_only_the_dispatcher_tells_labels_and_only_for_what_was_asked() -> None:
    world = HostWorld(line(2))
    _, (reader,) = pair(world)
    told, honest = labels_of(reader), world.keys.signing
    hear_message(reader, forged_answer(world, reader))
    hear_message(reader, forged_answer(world, reader, signer=honest, request=bytes(32)))
    hear_message(reader, forged_answer(world, reader, signer=honest, issued_ms=1))
    hear_message(reader, forged_answer(world, reader, signer=honest, instance=bytes(32)))
    assert labels_of(reader) == told
    with without("the dispatcher's signature on answers"):
        hear_message(reader, forged_answer(world, reader))
    assert labels_of(reader) == (bytes(16),)


def test_an_older_answer_does_not_come_back() -> None:
    world = HostWorld(line(2))
    _, (reader,) = pair(world)
    old = [frame for frame in reader.heard if frame[12:14] == b"\x90\x03"]
    before = labels_of(reader)
    world.configurator.begin_epoch()
    world.run()
    told = labels_of(reader)
    assert told != before
    for frame in old:
        reader.hear(frame)
    assert labels_of(reader) == told
    assert reader.dropped["stale"] == 1
    with without("the time of answers"):
        for frame in old:
            reader.hear(frame)
    assert labels_of(reader) == before


# --- control frames that are lost ---


@pytest.mark.parametrize("way", ["request", "answer"])
def test_a_request_or_an_answer_that_is_lost_is_sent_again(way: str) -> None:
    world = HostWorld(line(2))
    car = world.host("car", "s0")
    car.keys("brakes")
    count = iter(range(100))
    if way == "answer":
        world.lose = lambda place, frame: place == car.place and next(count) < 1
    request = car.request(2, "brakes")  # type: ignore[arg-type]
    if way == "request":
        car.agent.ask(request, world.now)
        car.agent.receive(Woken(), world.now)  # what leaves now, nobody carries
    else:
        car.ask(request)
    world.at(world.now + 0.5, lambda: car.act(Woken()))
    world.run(3.0)
    assert request.has_labels
    assert world.door.acts == [("ADVERTISE", "")]


@pytest.mark.parametrize("is_asked_again", [True, False])
def test_labels_that_were_told_once_and_lost_are_asked_for_again(is_asked_again: bool) -> None:
    """A reader hears of a later publisher's flow without having asked. If that is lost, it cannot ask for repairs."""
    world = HostWorld(line(2))
    car, reader = world.host("car", "s0"), world.host("reader", "s1")
    reader.subscribe("brakes")
    world.run(1.0)
    world.lose = lambda place, frame: place == reader.place and ethertype(frame) == ETHERTYPE_CONTROL
    car.advertise("brakes")
    world.run(1.0)
    if not is_asked_again:
        reader.agent._receiver._soon_s = math.inf
    for number in range(3):
        lost = iter(range(40))  # of each parcel, more than parity mends
        world.lose = lambda place, frame, lost=lost: (  # type: ignore[misc]
            place == reader.place and ethertype(frame) != ETHERTYPE_CONTROL and next(lost, None) is not None
        )
        car.publish("brakes", parcel(number, MANY))
        world.run(2 * reader.agent.limits.complain_s)
    assert reader.got == ([parcel(1, MANY), parcel(2, MANY)] if is_asked_again else [])


def test_a_host_answers_a_probe_and_no_proof() -> None:
    world = HostWorld(line(1))
    car = world.host("car", "s0")
    probe = Probe(PROBE_KIND, bytes(16), 1, bytes(16))
    sent = list(car.agent.receive(Arrived("wire", control(probe.encode())), world.now))
    assert len(sent) == 1
    assert not car.agent.receive(Arrived("wire", control(probe._replace(kind=2).encode())), world.now)


def test_what_waits_to_leave_is_bounded() -> None:
    world = HostWorld(line(2), limits=AgentLimits(waiting_max=50, repair=RepairLimits(kept_bytes_max=1)))
    car, _ = pair(world)
    car.agent.publish(token("brakes"), parcel(1, MANY), world.now)
    assert car.agent.room == 0
    assert car.dropped["no-room"] == 1
