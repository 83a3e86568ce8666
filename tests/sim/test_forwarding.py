from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused
from tallystick.guards.route import ForwardedMessage, MessageKind, RoutingGuard, sign_message
from tallystick.guards.rules import GuardLimits
from tallystick.runtime.effects import Arrived, Deliver, Send, Woken
from tallystick.runtime.network import Link, Network
from tallystick.sim.forwarding import ForwardingNode, Passed, enrolled

AUTHORITY, ALICE, MALLORY = b"authority.......", b"alice...........", b"mallory........."
KEYS = {name: SigningKey.from_seed(sha256(name).digest()) for name in (AUTHORITY, ALICE, MALLORY)}
LIMITS = GuardLimits(delay_max_s=60, skew_max_s=5, window_share_max=8)
NOW = 1_000.0


def message(
    number: int = 0,
    kind: MessageKind = MessageKind.PUBLISH,
    principal: bytes = ALICE,
    key: bytes | None = None,
    now: float = NOW,
) -> bytes:
    signer = principal if kind is MessageKind.PUBLISH else AUTHORITY
    identifier = number.to_bytes(16, "big")
    return sign_message(kind, signer, principal, identifier, int(now * 1000), b"content", KEYS[key or signer])


def guard(blacklist: frozenset[bytes] = frozenset(), limits: GuardLimits = LIMITS) -> RoutingGuard:
    publishers = {name: KEYS[name].public for name in (ALICE, MALLORY)}
    return RoutingGuard(enrolled({AUTHORITY: KEYS[AUTHORITY].public}, publishers), blacklist, limits)


def node(with_guard: bool = True, hops_max: int = 3) -> ForwardingNode:
    return ForwardingNode(["a", "b", "c"], guard() if with_guard else None, hops_max)


def reason(judge: RoutingGuard, data: bytes, now: float = NOW) -> str:
    with pytest.raises(Refused) as caught:
        judge.accept(data, now)
    return caught.value.reason


@pytest.mark.parametrize("kind", MessageKind)
def test_a_message_is_delivered_and_sent_on_to_all_but_its_sender_once(kind: MessageKind) -> None:
    role, data = node(), message(kind=kind)
    effects = role.receive(Arrived("a", Passed(data)), NOW)
    assert effects == [Deliver(data), Send("b", Passed(data, 1)), Send("c", Passed(data, 1))]
    assert role.receive(Arrived("b", Passed(data)), NOW + 1) == []
    assert role.receive(Woken(), NOW + 2) == []
    told = role.statistics()
    assert (told.received, told.accepted, told.forwarded, told.refused) == (2, 1, 2, {"duplicate": 1})


def test_without_the_guard_every_copy_goes_on_until_its_hops_are_spent() -> None:
    role = node(with_guard=False)
    for data in (message(), message(), b"junk"):
        assert len(role.receive(Arrived("a", Passed(data)), NOW)) == 3
    assert role.receive(Arrived("a", Passed(b"junk", 3)), NOW) == [Deliver(b"junk")]
    assert role.receive(Arrived("a", Passed(b"junk", -9)), NOW)[1] == Send("b", Passed(b"junk", 1))


@pytest.mark.parametrize("kind", MessageKind)
def test_each_kind_needs_the_signature_of_its_own_signer(kind: MessageKind) -> None:
    assert reason(guard(), message(kind=kind, key=MALLORY)) == "bad-signature"
    guard().accept(message(kind=kind), NOW)


def test_an_enrolled_publisher_cannot_sign_a_subscription_nor_the_authority_a_publication() -> None:
    as_authority = sign_message(MessageKind.SUBSCRIBE, MALLORY, MALLORY, bytes(16), 1_000_000, b"", KEYS[MALLORY])
    as_publisher = sign_message(MessageKind.PUBLISH, AUTHORITY, AUTHORITY, bytes(16), 1_000_000, b"", KEYS[AUTHORITY])
    for_another = sign_message(MessageKind.PUBLISH, MALLORY, ALICE, bytes(16), 1_000_000, b"", KEYS[MALLORY])
    assert reason(guard(), as_authority) == "unknown-principal"
    assert reason(guard(), as_publisher) == "unknown-principal"
    assert reason(guard(), for_another) == "malformed"


def test_no_byte_of_a_message_can_be_altered() -> None:
    data, judge = message(), guard()
    for position in range(len(data)):
        altered = bytearray(data)
        altered[position] ^= 1
        reason(judge, bytes(altered))
    assert len(judge) == 0
    judge.accept(data, NOW)


def test_what_is_too_old_to_be_remembered_is_too_old_to_be_taken() -> None:
    """Step 3 of 4.7: for as long as the signed time is fresh the window remembers, whatever the clocks."""
    judge, early = guard(), message(now=NOW + 5)
    judge.accept(early, NOW)
    for later in range(76):
        assert reason(judge, early, NOW + later) == ("stale" if later > 70 else "duplicate")
    assert reason(guard(), message(now=NOW + 6)) == "future"
    forgetful = guard(limits=replace(LIMITS, delay_max_s=1e6))
    forgetful.accept(message(), NOW + 71)  # without freshness a node that has forgotten takes it again


def test_nobody_burns_anothers_identifier() -> None:
    judge = guard()
    judge.accept(message(7, principal=MALLORY), NOW)
    judge.accept(message(7), NOW)


@pytest.mark.parametrize("kind", [MessageKind.PUBLISH, MessageKind.SUBSCRIBE])
def test_a_flood_of_good_messages_fills_its_principals_share_alone(kind: MessageKind) -> None:
    judge = guard()
    for number in range(8):
        judge.accept(message(number, kind, MALLORY), NOW)
    assert reason(judge, message(8, kind, MALLORY)) == "too-many-requests"
    judge.accept(message(9, kind), NOW)  # the same authority, another principal
    assert len(judge) == 9


def test_the_blacklist_ends_what_the_routing_guard_lets_pass() -> None:
    guard().accept(message(principal=MALLORY), NOW)
    assert reason(guard(frozenset({MALLORY})), message(principal=MALLORY)) == "blacklisted"


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        ForwardedMessage.decode(data)


@pytest.mark.parametrize("with_guard", [True, False])
def test_honest_messages_reach_every_node_in_the_midst_of_junk(with_guard: bool, seed: int) -> None:
    """A ring of six: with the guard each node takes the one good message once and the junk ends where it enters,
    without it the junk goes as far as the message."""
    network = Network(seed, Link(duplicate=0.3, reorder=0.3))
    names = [f"n{index}" for index in range(6)]

    def add(index: int) -> None:
        neighbours = [names[index - 1], names[(index + 1) % 6]]

        def make(stored: Mapping[str, bytes]) -> ForwardingNode:
            return ForwardingNode(neighbours, guard() if with_guard else None, hops_max=6)

        network.add(names[index], make)

    for index in range(6):
        add(index)
    good = message(now=0)
    network.send("n1", "n0", Passed(good))
    for number in range(20):
        network.send("n1", "n0", Passed(message(number, key=MALLORY, now=0)))
    network.run(until=10.0)
    taken = {name: [data for _, at, data in network.delivered if at == name] for name in names}
    assert all(good in taken[name] for name in names)
    if with_guard:
        assert all(taken[name] == [good] for name in names)
    else:
        assert all(len(taken[name]) > 20 for name in names)
