"""The dispatcher: who is heard, what stands, and what the operator's configurator does not learn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fabric_world import line
from host_world import NODE, Host, HostWorld, principal
from makers import INSTANCE, seed, token
from without import without

from tallystick.carriers.fabric.control import (
    COMPLAINT_PATH,
    MESSAGE_BYTES,
    PIECES_MAX,
    REQUEST_KIND,
    ControlPiece,
    ControlPieces,
    FabricAsk,
    open_ask,
    path_of,
    split_message,
)
from tallystick.carriers.fabric.dispatcher import DispatcherKeys
from tallystick.carriers.fabric.requests import REPEAT, FlowAnswer, FlowKind, FlowRequest, PortPiece, read_frame, wrap
from tallystick.carriers.fabric.trees import PortPlace
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import CannotOpen, Forged, Malformed, Refused
from tallystick.policy.attribute import integer, string
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.runtime.effects import Arrived, Woken
from tallystick.trust.fabric import DispatcherCard
from tallystick.trust.permit import Operation, UndoOrder

CONTENT = AttributeSpace.of("", integer("speed", 16, least=0), string("street"))


def pieces_of(message: bytes, node: bytes = NODE) -> list[bytes]:
    return split_message(REQUEST_KIND, node, message, 1_400)


def bring(world: HostWorld, place: PortPlace, message: bytes) -> None:
    for piece in pieces_of(message):
        world.heard_by_dispatcher(Arrived("configurator", PortPiece(*place, piece).encode()))
    world.run()


@pytest.fixture
def world() -> HostWorld:
    return HostWorld(line(2))


@pytest.fixture
def car(world: HostWorld) -> Host:
    car = world.host("car", "s0")
    car.keys("brakes")
    return car


# --- messages ---


def test_requests_and_answers_have_one_size_whatever_is_in_them(world: HostWorld, car: Host) -> None:
    interest = parse("speed > 100 and street = a", CONTENT, "interest").encode()
    asks = [car.request(Operation.ADVERTISE, "brakes"), car.request(Operation.SUBSCRIBE, "tyres", interest)]
    assert {len(one.asked.message) for one in asks} == {MESSAGE_BYTES}
    car.ask(asks[0])
    world.run()
    world.rules.without_right.add(principal("car"))
    car.ask(asks[1])
    world.run()
    told = [one for one in map(read_frame, world.said) if isinstance(one, PortPiece)]
    assert len({len(one.payload) for one in told}) <= 4  # full and last pieces, of both ways
    assert [one.answer and one.answer.refused for one in asks] == ["", "unknown-topic"]


def test_a_request_opens_for_its_dispatcher_alone_and_holds_as_it_was_signed(world: HostWorld, car: Host) -> None:
    message = car.request(Operation.ADVERTISE, "brakes").asked.message
    opened = open_ask(message, world.keys.sealing, INSTANCE, NODE, world.known.get)
    assert (opened.operation, opened.token, opened.envelope.principal) == (2, token("brakes"), principal("car"))
    other = DispatcherKeys(INSTANCE, b"another node....", SigningKey.from_seed(seed("other")))
    for private, node in ((other.sealing, NODE), (world.keys.sealing, other.node)):
        with pytest.raises(CannotOpen):
            open_ask(message, private, INSTANCE, node, world.known.get)
    with pytest.raises(CannotOpen):
        open_ask(message[:-1] + bytes([message[-1] ^ 1]), world.keys.sealing, INSTANCE, NODE, world.known.get)
    with pytest.raises(Refused, match="not known"):
        open_ask(message, world.keys.sealing, INSTANCE, NODE, lambda _: None)


def test_a_request_to_another_dispatcher_is_not_passed_on_as_ours(world: HostWorld, car: Host) -> None:
    """A dispatcher that hands a host's request to another, as if it were meant for that one."""
    other = DispatcherKeys(INSTANCE, b"another node....", SigningKey.from_seed(seed("other")))
    permit = world.world.permit("car", "brakes")
    ask = FabricAsk(permit.encode(), car.agent.keys.public)
    meant = ask.seal(path_of(Operation.ADVERTISE, token("brakes")), other.card, car.who, world.now, bytes(16))
    plain = hpke.open_(other.sealing, meant.message, _info(other.node))
    passed_on = hpke.seal(world.keys.sealing.public, plain, _info(NODE))
    with pytest.raises(Refused, match="another dispatcher"):
        open_ask(passed_on, world.keys.sealing, INSTANCE, NODE, world.known.get)
    with without("the address of requests to a dispatcher"):
        open_ask(passed_on, world.keys.sealing, INSTANCE, NODE, world.known.get)


def _info(node: bytes) -> bytes:
    from tallystick import wire

    return wire.encode(["tallystick fabric request 1", INSTANCE, node])


def test_a_card_is_its_node_s_word(world: HostWorld) -> None:
    card = DispatcherCard.decode(world.keys.card.encode())
    card.check(world.keys.signing.public)
    mallory = SigningKey.from_seed(seed("mallory"))
    with pytest.raises(Forged):
        replace(card, sealing=hpke.PrivateKey.generate(bytes(32)).public.encode()).sign(mallory).check(
            world.keys.signing.public
        )


def test_pieces_wait_for_each_other_a_few_of_each_port_and_for_a_while() -> None:
    pieces = ControlPieces(each_max=4, wait_s=5.0)
    message = bytes(range(256)) * 32
    parts = [ControlPiece.decode(one + bytes(20)) for one in pieces_of(message)]
    assert [pieces.add("p", one, 0.0) for one in reversed(parts)][-1] == message
    for number in range(100):
        pieces.add("p", replace(parts[0], handle=b"%16d" % number), 0.0)
    assert len(pieces._open["p"]) == 4
    pieces.give_up(6.0)
    assert not pieces._open
    for junk in (b"", bytes(38), pieces_of(message)[0][:-1], bytes([1, 16]) + bytes(32) + bytes([PIECES_MAX + 1] * 2)):
        with pytest.raises(Malformed):
            ControlPiece.decode(junk)


# --- who is heard ---


def test_what_nobody_signed_gets_no_answer(world: HostWorld, car: Host) -> None:
    request = car.request(Operation.ADVERTISE, "brakes")
    del world.known[principal("car")]
    world.said.clear()
    bring(world, car.place, request.asked.message)
    bring(world, car.place, bytes(MESSAGE_BYTES))
    for junk in (b"", b"\x80", REPEAT[:-1], PortPiece("s0", 100, b"junk").encode()):
        world.heard_by_dispatcher(Arrived("configurator", junk))
    assert not any(map(_is_told, world.said))
    assert sum(world.dispatcher.statistics().dropped.values()) == 6
    assert world.door.acts == []


def _is_told(frame: bytes) -> bool:
    try:
        said = read_frame(frame)
    except Malformed:
        return False
    return isinstance(said, PortPiece) and said.payload[1:2] == b"\x11"


def test_a_request_that_is_sent_again_from_another_port_moves_nobody(world: HostWorld, car: Host) -> None:
    request = car.ask(car.request(Operation.ADVERTISE, "brakes"))
    world.run()
    [asker] = world.dispatcher.standing.askers.values()
    bring(world, PortPlace("s1", 100), request.asked.message)
    assert (asker.switch, asker.port) == ("s0", 100)
    assert [*world.dispatcher.standing.askers.values()] == [asker]
    assert world.dispatcher.statistics().dropped == {"duplicate": 1}
    with without("the window of envelopes"):
        bring(world, PortPlace("s1", 100), request.asked.message)
    [moved] = world.dispatcher.standing.askers.values()
    assert moved.switch == "s1"


def test_an_old_request_is_not_heard(world: HostWorld, car: Host) -> None:
    request = car.request(Operation.ADVERTISE, "brakes")
    world.now += 120
    bring(world, car.place, request.asked.message)
    assert world.dispatcher.statistics().dropped == {"stale": 1}


def test_a_port_that_asks_and_asks_is_not_heard_for_a_while(world: HostWorld, car: Host) -> None:
    other = world.host("other", "s1")
    for _ in range(60):
        bring(world, car.place, bytes(MESSAGE_BYTES))
        world.now -= 0.5
    assert world.dispatcher.statistics().dropped["too-many-requests"] > 100
    assert other.subscribe("brakes").answer is not None
    with without("the rate of a port"):
        before = world.dispatcher.statistics().dropped["too-many-requests"]
        bring(world, car.place, bytes(MESSAGE_BYTES))
        assert world.dispatcher.statistics().dropped["too-many-requests"] == before


def test_refusals_are_told_to_the_host_and_noted(world: HostWorld, car: Host) -> None:
    eve = world.host("eve", "s1")
    stolen = world.world.permit("car", "brakes")
    request = eve.ask(eve.request(Operation.ADVERTISE, "brakes", permit=stolen))
    world.rules.without_right.add(principal("car"))
    other = car.ask(car.request(Operation.SUBSCRIBE, "brakes"))
    world.run()
    assert [one.answer and one.answer.refused for one in (request, other)] == ["not-yours", "unknown-topic"]
    assert world.door.acts == [("ADVERTISE", "not-yours"), ("SUBSCRIBE", "unknown-topic")]
    assert not world.dispatcher.standing.askers


def test_a_principal_has_a_number_of_permits(world: HostWorld, car: Host) -> None:
    limit = world.dispatcher.limits.principal_max
    world.dispatcher.standing._held[principal("car")] = limit
    request = car.ask(car.request(Operation.ADVERTISE, "brakes"))
    world.run()
    assert request.answer is not None
    assert request.answer.refused == "too-many-permits"


# --- what stands ---


def rules_of(world: HostWorld) -> int:
    return sum(len(switch.table) for switch in world.switches.values())


@pytest.mark.parametrize("how", ["undo", "revoked", "right", "expired"])
def test_a_permit_that_ends_leaves_no_rule(world: HostWorld, car: Host, how: str) -> None:
    car.advertise("brakes")
    reader = world.host("reader", "s1")
    permit = world.world.permit("reader", "brakes", Operation.SUBSCRIBE, not_after_ms=int(world.now * 1000) + 60_000)
    reader.keys("brakes")
    reader.ask(reader.request(Operation.SUBSCRIBE, "brakes", permit=permit))
    world.run()
    assert rules_of(world) > 0
    if how == "undo":
        named = permit.instance, permit.identifier, permit.operation, permit.token, permit.tenant, permit.principal
        order = UndoOrder(*named, int(world.now * 1000), permit.authority).sign(world.world.authority_key)
        ask = FabricAsk(order.encode(), reader.agent.keys.public)
        sealed = ask.seal(path_of(None, permit.token), world.keys.card, reader.who, world.now, bytes(16))
        bring(world, reader.place, sealed.message)
        assert world.door.acts[-1] == ("UNDO", "")
    elif how == "revoked":
        world.rules.ended.add(permit.identifier)
    elif how == "right":
        world.rules.without_right.add(permit.principal)
    world.run(61.0 if how == "expired" else 0.6)
    assert rules_of(world) == 0
    assert permit.identifier not in world.dispatcher.standing.askers
    assert permit.identifier.hex() not in world.stored


def test_a_dispatcher_that_starts_again_asks_for_the_same(world: HostWorld, car: Host) -> None:
    car.advertise("brakes")
    reader = world.host("reader", "s1")
    reader.subscribe("brakes")
    before = {name: dict(switch.table) for name, switch in world.switches.items()}
    writes = [len(switch.writes) for switch in world.switches.values()]
    world.dispatcher = world.start_dispatcher()
    world.heard_by_dispatcher(Arrived("configurator", REPEAT))
    world.run()
    assert {name: dict(switch.table) for name, switch in world.switches.items()} == before
    assert [len(switch.writes) for switch in world.switches.values()] == writes
    world.rules.ended.add(next(iter(world.dispatcher.standing.askers)))
    world.now += 1
    world.heard_by_dispatcher(Woken())
    assert len(world.dispatcher.standing.askers) == 1


def test_an_answer_about_nothing_of_ours_is_passed_over(world: HostWorld) -> None:
    world.said.clear()
    world.heard_by_dispatcher(Arrived("configurator", wrap(FlowAnswer(bytes(16), 1))))
    assert len(world.said) == 1


# --- what the operator hears ---


def test_the_configurator_hears_no_name_no_interest_and_no_key(world: HostWorld, car: Host) -> None:
    """Canaries: everything between configurator and dispatcher, and all that the configurator holds."""
    interest = parse('speed > 4711 and street = "Acacia Avenue"', CONTENT, "interest")
    policy = parse("acme.role = canary", AttributeSpace.of("acme", string("role")), "policy")
    car.advertise("brakes", policy=policy)
    reader = world.host("reader", "s1")
    reader.subscribe("brakes", interest)
    heard = b"".join(world.said)
    known = repr(vars(world.configurator.book)).encode()
    permits = [one.permit.identifier for one in world.dispatcher.standing.askers.values()]
    secrets = [seed("car"), seed("reader"), seed("mesh key brakes"), world.keys.secret, world.keys.sealing.seed]
    names = [token("brakes"), principal("car"), principal("reader"), *permits, b"Acacia", b"speed", b"canary", *secrets]
    assert not [name for name in names if name in heard or name in known]
    assert len(permits) == 2


def test_the_dispatcher_holds_no_key_that_opens_what_is_published(world: HostWorld, car: Host) -> None:
    car.advertise("brakes")
    held = repr(world.dispatcher.__dict__) + repr(world.dispatcher.standing.__dict__) + repr(world.stored)
    epoch = int(world.now * 1000) // 86_400_000
    for secret in (
        seed("mesh key brakes"),
        world.world.topic_key("brakes").seed,
        car.agent._keys[token("brakes"), epoch & 255].secret,
    ):
        assert repr(secret)[2:-1] not in held
        assert secret.hex() not in held


# --- complaints ---


def subscribed(world: HostWorld, name: str, port: int = 100) -> tuple[Host, bytes]:
    host = world.host(name, "s1", port)
    return host, host.subscribe("brakes").permit


def complaints(world: HostWorld) -> list[bytes]:
    """What the configurator was told of."""
    told = [one for one in map(read_frame, world.said) if isinstance(one, FlowRequest)]
    return [one.identifier for one in told if one.kind is FlowKind.COMPLAIN]


def complaint(host: Host, permit: bytes, key: SigningKey | None = None, nonce: bytes = bytes(16)) -> bytes:
    ask, keys = FabricAsk(b"", host.agent.keys.public), host.agent.keys
    return ask.seal(COMPLAINT_PATH, host.world.keys.card, (permit, key or keys.signing), host.world.now, nonce).message


def test_a_complaint_counts_from_the_subscription_s_own_host_and_port(world: HostWorld, car: Host) -> None:
    car.advertise("brakes")
    (reader, permit), (eve, _) = subscribed(world, "reader"), subscribed(world, "eve", 101)
    [subscription] = world.dispatcher.standing.askers[permit].flows
    bring(world, eve.place, complaint(eve, permit))  # with her own key
    bring(world, eve.place, complaint(reader, permit))  # from her own port
    bring(world, reader.place, complaint(reader, permit, SigningKey.from_seed(seed("reader"))))  # the principal's key
    bring(world, reader.place, complaint(reader, principal("reader")))
    advertised = next(iter(world.dispatcher.standing.askers))
    bring(world, car.place, complaint(car, advertised))  # about no subscription
    assert complaints(world) == []
    bring(world, reader.place, complaint(reader, permit))
    assert complaints(world) == [subscription]
    assert world.dispatcher.statistics().complaints == 1


def test_without_the_key_of_complaints_anybody_at_the_port_complains(world: HostWorld, car: Host) -> None:
    (reader, permit), (eve, _) = subscribed(world, "reader"), subscribed(world, "eve", 101)
    with without("the key of complaints", key=eve.agent.keys.signing.public):
        bring(world, reader.place, complaint(eve, permit))
    assert len(complaints(world)) == 1


def test_complaints_are_heard_seldom_and_not_later(world: HostWorld, car: Host) -> None:
    reader, permit = subscribed(world, "reader")
    old = complaint(reader, permit)
    for number in range(5):
        bring(world, reader.place, complaint(reader, permit, nonce=bytes([number] * 16)))
    assert len(complaints(world)) == 1
    world.run(100.0)
    bring(world, reader.place, old)
    assert len(complaints(world)) == 1
    bring(world, reader.place, complaint(reader, permit))
    assert len(complaints(world)) == 2
    with without("the rate of complaints"):
        for number in range(5):
            bring(world, reader.place, complaint(reader, permit, nonce=bytes([number] * 16)))
    assert len(complaints(world)) == 7


def test_a_host_s_key_signs_complaints_and_nothing_else(world: HostWorld, car: Host) -> None:
    """A host that would undo or subscribe in the name of the permit that it carried."""
    reader, permit = subscribed(world, "reader")
    shown = world.dispatcher.standing.askers[permit].ask.shown
    for operation in (Operation.SUBSCRIBE, None):
        ask = FabricAsk(shown, reader.agent.keys.public)
        who = permit, reader.agent.keys.signing
        message = ask.seal(path_of(operation, token("brakes")), world.keys.card, who, world.now, bytes(16)).message
        bring(world, reader.place, message)
    assert world.dispatcher.statistics().dropped == {"unknown-principal": 2}
    assert permit in world.dispatcher.standing.askers
    assert all(reason == "" for _, reason in world.door.acts)  # nothing of it comes to the ledger
