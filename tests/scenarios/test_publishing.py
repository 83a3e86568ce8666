"""Publishing what one may not: phony advertisements, spam until the blacklist bites, forged and replayed parcels and
requests, floods, framing (EventGuard 4.3, 4.4, 4.7; BPS 4.4), on a whole instance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest
from actors import (
    SCHEMA,
    Hand,
    Topic,
    acts,
    await_topic,
    count_each_refusal,
    fetch_query,
    operate,
    publish,
    read_rows,
    reason,
    reputation,
    settle,
    stored,
    write_as_node,
)
from stack import READ, WRITE, Stack, log_store, wait_until
from without import without

from tallystick import wire
from tallystick.carriers.accounts import Quota
from tallystick.carriers.carrier import Stored, join_frames
from tallystick.client.session import Session
from tallystick.client.subscribe import Received
from tallystick.demo.forgery import JUNK, envelope_of, exchange, phony_order, phony_permit, send_bytes
from tallystick.errors import Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.contracts.state import NOBODY
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.parcel.header import TopicRef
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.sources import SystemClock
from tallystick.trust.envelope import check_time
from tallystick.trust.permit import Operation, Permit


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("publishing"), node={"commit_ms": 50}) as stack:
        count_each_refusal(stack)
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    return Topic(stack, "acme")


@pytest.fixture(scope="module")
def hand(topic: Topic) -> Hand:
    """A rightful publisher of the topic, with three parcels in the log."""
    hand = Hand(topic.car, "brakes")
    for number in range(3):
        stored(hand.send(hand.seal(number))[0])
    return hand


@pytest.fixture(scope="module")
def rival(stack: Stack) -> Topic:
    """Another tenant with a topic of its own."""
    return Topic(stack, "rival", "windows")


@pytest.fixture
def spy(rival: Topic, request: pytest.FixtureRequest) -> Session:
    """Somebody of the other tenant who may publish there, fresh for each scenario."""
    return rival.publisher(f"spy-{request.node.name[:60]}")


def end(stack: Stack, token: bytes) -> int:
    return stack.node.carrier.ends(token, 0)[1]


def spam(session: Session, token: bytes, data: bytes = JUNK) -> str:
    return reason(session.node.publish(token, [data])[0])


# --- phony advertisements and spam ---


def test_a_phony_advertisement_is_refused_and_held_against_its_signer(
    stack: Stack, topic: Topic, hand: Hand, spy: Session
) -> None:
    phony = phony_permit(spy, hand.permit)
    with pytest.raises(Refused) as refusal:
        spy.node.advertise(phony.encode())
    assert refusal.value.reason == "unknown-topic"
    parcel = hand.resign(hand.seal(9, lane=hand.fork()), key=spy.identity.signing_key)
    assert spam(spy, topic.token, parcel.encode()) == "not-yours"
    assert reputation(stack, spy.identity.principal) == (80, 0)
    # Naming a topic of one's own in the request, and another's in the permit, does not evade the blame.
    own = stack.node.ledger.scan(TOPICS)[0][0][0]
    other = own if own != topic.token else b"o" * 16
    answer = exchange(spy, "POST", f"/v1/topics/{other.hex()}/advertisements", body=phony.encode())
    assert wire.decode(answer.body)[0] == "wrong-topic"


def test_without_the_guard_spam_lies_in_the_log_and_readers_name_it(stack: Stack, topic: Topic) -> None:
    """The reader's own checks are the second wall: it goes on behind what it names."""
    victim = Topic(stack, "victim", "lights")
    rightful, spammer = Hand(victim.car, "lights"), topic.car
    stored(rightful.send(rightful.seal(1))[0])
    forged = rightful.resign(rightful.seal(666, lane=rightful.open_lane()), key=spammer.identity.signing_key)
    with without("the guard of publishing", permit=rightful.permit):
        assert isinstance(spammer.node.publish(victim.token, [forged.encode()])[0], Stored)
    stored(rightful.send(rightful.seal(2))[0])
    subscriber = victim.reader.subscriber("lights", on_bad="report")
    assert read_rows(subscriber, 2) == [1, 2]
    assert [finding.reason for finding in subscriber.findings] == ["bad-signature"]


def test_junk_lowers_reputation_until_the_blacklist_bites(
    stack: Stack, topic: Topic, rival: Topic, spy: Session
) -> None:
    """BPS 4.4 with our numbers: from 100, ten a refusal, blacklisted below 20."""
    principal, before = spy.identity.principal, end(stack, topic.token)
    own = Hand(spy, "windows")
    stored(own.send(own.seal(1))[0])
    settle(stack)
    scores = []
    for _ in range(9):
        assert spam(spy, topic.token) == "plain"
        scores.append(reputation(stack, principal)[0])
    assert scores == [90, 80, 70, 60, 50, 40, 30, 20, 10]
    score, height = reputation(stack, principal)
    refusals = acts(stack, token=topic.token, principal=principal)
    assert [(act.reason, act.count, bool(act.evidence)) for act in refusals] == [("plain", 1, True)] * 9
    assert height == refusals[-1].height  # the ledger says at which height, and the ninth refusal lies there
    assert end(stack, topic.token) == before

    # From now on even what the principal has every right to is refused.
    assert reason(own.send(own.seal(2))[0]) == "blacklisted"
    with pytest.raises(Refused, match="blacklisted"):
        spy.node.advertise(own.permit.encode())
    with pytest.raises(Refused, match="blacklisted"):
        spy.authority.permit(Operation.ADVERTISE, "windows")
    assert reputation(stack, principal) == (score, height)  # what is refused now costs nothing more

    # Only the operator lifts it, and that is an entry too.
    with pytest.raises(Refused) as refusal:
        rival.owner.author.write(entries.lift(principal))
    assert refusal.value.reason == "not-operator"
    operate(stack, entries.lift(principal))
    assert reputation(stack, principal) == (100, 0)
    lane = own.open_lane()
    stored(own.send(own.seal(3, lane=lane))[0])


def test_a_plain_record_on_a_sealed_topic_is_refused_even_from_its_own_publisher(
    stack: Stack, topic: Topic, hand: Hand
) -> None:
    before = end(stack, topic.token)
    assert spam(topic.car, topic.token) == "plain"
    act = acts(stack, token=topic.token, principal=topic.car.identity.principal, refused=True)[-1]
    assert (act.reason, act.evidence) == ("plain", b"")  # written down; what only the node can judge has no effect
    assert reputation(stack, topic.car.identity.principal) == (100, 0)
    assert end(stack, topic.token) == before


# --- forged, foreign and replayed parcels ---


Alter = Callable[[Hand, Parcel], Parcel | bytes]


def _topic_ref(hand: Hand, **changes: Any) -> tuple[TopicRef, ...]:
    return (replace(hand.lane.topics[0], **changes),)


ALTERATIONS: dict[str, tuple[str, Alter]] = {
    "of another instance": ("wrong-instance", lambda h, p: h.resign(p, instance=b"i" * 32)),
    "of a schema the topic does not have": ("wrong-schema", lambda h, p: h.resign(p, schema_hash=b"s" * 32)),
    "of a schema version to come": ("wrong-schema", lambda h, p: h.resign(p, schema_version=2)),
    "of an epoch to come": ("epoch-over", lambda h, p: h.resign(p, topics=_topic_ref(h, epoch=5))),
    "of epoch zero": ("wrong-epoch", lambda h, p: h.resign(p, topics=_topic_ref(h, epoch=0))),
    "under a permit that nobody has": (
        "not-advertised",
        lambda h, p: h.resign(p, topics=_topic_ref(h, permit=b"p" * 16)),
    ),
    "under a lock that nobody sent": (
        "unknown-lock",
        lambda h, p: h.resign(p, groups=(replace(p.header.groups[0], locks=(b"l" * 32,)),)),
    ),
    "with another body": ("altered", lambda h, p: Parcel(p.header, p.signature, bytes(len(p.body)))),
    "with a changed header": ("bad-signature", lambda h, p: Parcel(replace(p.header, time_ms=1), p.signature, p.body)),
    "with another's signature": ("bad-signature", lambda h, p: Parcel(p.header, bytes(64), p.body)),
    "that does not follow": ("broken-chain", lambda h, p: h.resign(p, previous=b"v" * 32)),
    "that is too large": ("too-large", lambda h, p: p.encode() + bytes(1 << 20)),
    "of another format version": ("version", lambda h, p: b"TLY\x02" + p.encode()[4:]),
    "that is cut short": ("malformed", lambda h, p: p.encode()[:-1]),
    "with bytes behind it": ("malformed", lambda h, p: p.encode() + b"\x00"),
}


@pytest.mark.parametrize(("expected", "alter"), ALTERATIONS.values(), ids=ALTERATIONS)
def test_a_parcel(stack: Stack, topic: Topic, hand: Hand, expected: str, alter: Alter) -> None:
    """… of the kind named is refused by its own reason, leaves nothing, and does not stop the lane."""
    before = end(stack, topic.token)
    outcome = hand.send(alter(hand, hand.seal(7, lane=hand.fork())))[0]
    assert reason(outcome) == expected
    assert end(stack, topic.token) == before
    head = stack.node.carrier.heads.lanes.head(topic.car.identity.principal, hand.lane.lane)
    assert head is not None
    assert hand.lane.sequence == head.sequence + 1


def test_a_mixed_request_is_taken_in_part(topic: Topic, hand: Hand) -> None:
    """BPS Algorithm 1 judges message by message."""
    outcomes = hand.send(hand.seal(3), JUNK, hand.seal(4))
    assert [type(outcome).__name__ for outcome in outcomes] == ["Stored", "NotStored", "Stored"]


def test_a_replayed_parcel_changes_nothing_whoever_sends_it(stack: Stack, topic: Topic, hand: Hand) -> None:
    first, second = hand.seal(5), hand.seal(6)
    offsets = [stored(outcome).promises[0].offset for outcome in hand.send(first, second)]
    before = end(stack, topic.token)
    for parcel, offset in ((second, offsets[1]), (first, offsets[0])):  # the head again, and one before it
        again = stored(hand.send(parcel)[0])
        assert (again.again, again.promises[0].offset) == (True, offset)
    other = topic.publisher("other-car")
    assert reason(other.node.publish(topic.token, [first.encode()])[0]) == "not-yours"
    assert end(stack, topic.token) == before


def test_a_stolen_lane_identifier_hinders_nobody(topic: Topic, hand: Hand) -> None:
    """Lanes are keyed by publisher and lane: a thief that names its lane after another's has one of its own."""
    thief = Hand(topic.publisher("lane-thief"), "brakes")
    stolen = thief.open_lane(hand.lane.lane)
    stored(thief.send(thief.seal(600, lane=stolen))[0])
    stored(hand.send(hand.seal(8))[0])
    # Nor does a stolen permit identifier: the permit names its principal.
    borrowed = thief.resign(thief.seal(601), topics=hand.lane.topics)
    assert reason(thief.send(borrowed)[0]) == "not-yours"


@pytest.mark.parametrize("bound", [True, False], ids=["bound to the permit", "as if it were not"])
def test_a_copied_body(bound: bool, stack: Stack, topic: Topic) -> None:
    """A publisher that cannot read a topic copies another's sealed body, locks and lane name into a parcel of its own:
    guards and signatures have nothing against it, but the lane key hangs on the permit."""
    name = f"copies-{bound}"
    token = stack.topic(topic.owner, name, SCHEMA)
    await_topic(stack, token)
    for session, operations in ((topic.car, WRITE), (topic.reader, READ)):
        stack.grant(topic.owner, token, session, operations)
    copyist = topic.member(f"copyist-{bound}")
    stack.grant(topic.owner, token, copyist, WRITE)
    with nullcontext() if bound else without("the permits in a lane key"):
        author, thief = Hand(topic.car, name), Hand(copyist, name)
        sealed = author.seal(1)
        stored(author.send(sealed)[0])
        stored(thief.send(thief.resign(sealed, topics=thief.lane.topics))[0])
        subscriber = topic.reader.subscriber(name, on_bad="report")
        received: list[Received] = []
        wait_until(lambda: received.extend(subscriber.poll(100)) or len(received) + len(subscriber.findings) == 2)
    authors = [one.publisher for one in received]
    if bound:
        assert authors == [topic.car.identity.principal]
        assert [(one.reason, one.publisher) for one in subscriber.findings] == [
            ("cannot-open", copyist.identity.principal)
        ]
    else:
        assert authors == [topic.car.identity.principal, copyist.identity.principal]
        assert received[0].to_pylist() == received[1].to_pylist()


# --- replayed and misdated requests ---


def request_to(session: Session, token: bytes, body: bytes, **options: Any) -> Any:
    return exchange(session, "POST", f"/v1/topics/{token.hex()}/parcels", body=body, **options)


def test_a_replayed_request_is_refused_also_after_a_restart(stack: Stack, topic: Topic, hand: Hand) -> None:
    body = join_frames([hand.seal(10).encode()])
    nonce, now = b"once-------------"[:16], stack.clock.now()
    assert request_to(topic.car, topic.token, body, nonce=nonce, now=now).status == 200
    replay = request_to(topic.car, topic.token, body, nonce=nonce, now=now)
    assert wire.decode(replay.body)[0] == "duplicate"
    settle(stack)
    stack.stop_node()
    stack.start_node()
    replay = request_to(topic.car, topic.token, body, nonce=nonce, now=now)
    assert wire.decode(replay.body)[0] == "duplicate"
    # Another principal may use the same nonce: identifiers are scoped by their signer.
    other = topic.publisher("same-nonce")
    assert request_to(other, topic.token, body, nonce=nonce, now=now).status == 200
    # And nothing of the original helps against another node.
    assert request_to(topic.car, topic.token, body, node=b"n" * 16).status == 403


def test_without_the_window_a_replay_is_heard_but_the_lane_stops_it(stack: Stack, topic: Topic, hand: Hand) -> None:
    body, nonce, now = join_frames([hand.seal(11).encode()]), b"twice-----------", stack.clock.now()
    with without("the window of envelopes"):
        first, second = (request_to(topic.car, topic.token, body, nonce=nonce, now=now) for _ in range(2))
    assert [wire.decode(answer.body)[0][0] for answer in (first, second)] == [0, 1]  # stored, then stored before


@pytest.mark.parametrize(("off_s", "expected"), [(-3600, "stale"), (3600, "future")])
def test_a_misdated_request_is_answered_with_the_nodes_signed_time(
    stack: Stack, topic: Topic, off_s: int, expected: str
) -> None:
    nonce = topic.car.entropy.bytes(16)
    answer = request_to(topic.car, topic.token, b"", now=stack.clock.now() + off_s, nonce=nonce)
    found, _, _, extra = wire.decode(answer.body)
    assert (answer.status, found) == (401, expected)
    node = topic.car.identity.nodes[0]
    assert abs(check_time(extra, node.verify_key, node.subject, nonce) - stack.clock.now()) < 60
    with pytest.raises(Refused):  # the time is for that request alone
        check_time(extra, node.verify_key, node.subject, b"another request!")


def test_a_client_with_a_wrong_clock_follows_the_node(topic: Topic) -> None:
    class SlowClock(SystemClock):
        def now(self) -> float:
            return super().now() - 3600

    with Session(topic.car.identity, clock=SlowClock()) as session:
        assert session.node.permit(Hand(topic.car, "brakes").permit.identifier)


# --- floods ---

FLOOD = 120


def _phony(spy: Session, hand: Hand) -> Permit:
    return phony_permit(spy, hand.permit)


FIVE: dict[str, Callable[[Session, Hand], tuple[str, bytes]]] = {
    "subscribe": lambda s, h: (
        f"/v1/topics/{h.token.hex()}/subscriptions",
        phony_permit(s, h.permit, operation=Operation.SUBSCRIBE).encode(),
    ),
    "advertise": lambda s, h: (f"/v1/topics/{h.token.hex()}/advertisements", _phony(s, h).encode()),
    "publish": lambda s, h: (f"/v1/topics/{h.token.hex()}/parcels", join_frames([JUNK] * 3)),
    "unsubscribe": lambda s, h: (
        "/v1/undo",
        phony_order(h.permit, s.identity.signing_key, operation=Operation.SUBSCRIBE).encode(),
    ),
    "unadvertise": lambda s, h: (
        "/v1/undo",
        phony_order(h.permit, s.identity.signing_key, operation=Operation.ADVERTISE).encode(),
    ),
}


@pytest.mark.parametrize("kind", FIVE)
def test_a_flood_of_signed(kind: str, stack: Stack, topic: Topic, hand: Hand, spy: Session) -> None:
    """… messages makes a bounded number of entries, all accounted for, and hinders nobody else."""
    path, body = FIVE[kind](spy, hand)
    before = stack.node.ledger.height
    for _ in range(FLOOD):
        with suppress(Refused):
            spy._node_http.request("POST", path, body=body)
    stored(hand.send(hand.seal(20))[0])
    found = acts(stack, principal=spy.identity.principal, refused=True, first_height=before)
    parcels = 3 if kind == "publish" else 1
    assert sum(act.count for act in found) == FLOOD * parcels
    by_height: dict[int, int] = {}
    for act in found:
        by_height[act.height] = by_height.get(act.height, 0) + 1
    assert max(by_height.values()) <= 16 + 2  # a commit: evidence for one principal, and an aggregate a reason
    assert sum(1 for act in found if act.evidence) <= 2 * 16  # the blacklist bites, and then there is none
    blamed = kind not in ("unsubscribe", "unadvertise")  # the contract can judge a right, not an order
    assert bool(reputation(stack, spy.identity.principal)[1]) == blamed


def test_a_flood_of_unsigned_messages_makes_one_entry_a_reason_and_window(
    stack: Stack, topic: Topic, hand: Hand, spy: Session
) -> None:
    before, address = stack.node.ledger.height, topic.car.identity.node_urls[0].removeprefix("http://")
    request = f"POST /v1/topics/{topic.token.hex()}/parcels HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\n\r\n"
    for _ in range(FLOOD):
        assert send_bytes(address, request.encode()).status == 403
    wait_until(lambda: sum(act.count for act in _junk(stack, before)) == FLOOD)
    heights = [act.height for act in _junk(stack, before)]
    assert len(heights) == len(set(heights))  # one a commit, however many came


def _junk(stack: Stack, first: int) -> list[Any]:
    return [act for act in acts(stack, refused=True, first_height=first) if act.operator == NOBODY]


# --- framing ---


def accuse(stack: Stack, victim: bytes, token: bytes, request: bytes, evidence: bytes) -> None:
    """The node writes that the victim asked for what it may not."""
    entry = entries.operation(
        victim, OperatorRole.PUBLISHER, token, 2, time_ms=1, request=request, reason="no-right", evidence=evidence
    )
    write_as_node(stack.node, entry)


def test_a_node_cannot_frame_a_principal(stack: Stack, topic: Topic, rival: Topic, spy: Session) -> None:
    victim, foreign = rival.car, envelope_of(spy, topic.token)
    rightful, principal = envelope_of(victim, rival.token), victim.identity.principal
    elsewhere = replace(envelope_of(victim, topic.token), node=b"n" * 16)
    for token, envelope, evidence in [
        (topic.token, foreign, b""),  # a bare claim
        (topic.token, foreign, foreign.evidence()),  # somebody else's request
        (topic.token, rightful, rightful.evidence()),  # a request for another topic
        (rival.token, rightful, rightful.evidence()),  # one that it had every right to make
        (topic.token, elsewhere, elsewhere.evidence()),  # one that was altered to fit
    ]:
        accuse(stack, principal, token, envelope.base_hash, evidence)
        assert reputation(stack, principal) == (100, 0)
    # A real misdeed counts once, however often it is told.
    real = envelope_of(victim, topic.token)
    for _ in range(3):
        accuse(stack, principal, topic.token, real.base_hash, real.evidence())
        assert reputation(stack, principal)[0] == 90
    # A right that was taken after the request proves nothing against whoever made it.
    late = envelope_of(victim, rival.token)
    stack.withdraw(rival.owner, rival.token, victim, WRITE)
    accuse(stack, principal, rival.token, late.base_hash, late.evidence())
    assert reputation(stack, principal)[0] == 90
    # And a stranger may not write operations at all.
    with pytest.raises(Refused) as refusal:
        spy.author.write(
            entries.operation(
                principal, OperatorRole.PUBLISHER, topic.token, 2, time_ms=1, request=bytes(32), reason="x"
            )
        )
    assert refusal.value.reason in ("not-host", "not-node")


def test_without_the_contracts_judgement_a_bare_claim_ruins_a_name(stack: Stack, topic: Topic) -> None:
    victim = topic.publisher("slandered").identity.principal
    with without("the contract's judgement of claims"):
        for _ in range(9):
            accuse(stack, victim, topic.token, bytes(32), b"made up")
    assert reputation(stack, victim)[1] > 0


def test_replaying_anothers_refused_request_ruins_nobody(stack: Stack, topic: Topic, spy: Session) -> None:
    """Whoever overhears a refused request sends it again and again."""
    nonce, now, body = spy.entropy.bytes(16), stack.clock.now(), join_frames([JUNK])
    for _ in range(12):
        request_to(spy, topic.token, body, nonce=nonce, now=now)
    assert reputation(stack, spy.identity.principal) == (90, 0)
    # Reads do not pass the window; the contract counts a request once all the same.
    for _ in range(12):
        exchange(spy, "GET", f"/v1/topics/{topic.token.hex()}/parcels", fetch_query(bytes(16)), nonce=nonce, now=now)
    assert reputation(stack, spy.identity.principal) == (80, 0)


# --- at the end ---


def test_after_all_this_the_topic_reads_clean(stack: Stack, topic: Topic) -> None:
    """None of the attacks above left anything that a reader would stumble over."""
    subscriber = topic.reader.subscriber("brakes")
    settle(stack)
    count = len(read_rows(subscriber, end(stack, topic.token)))
    assert count == end(stack, topic.token)
    assert subscriber.findings == []


# --- quotas ---


@pytest.fixture
def limited(stack: Stack, topic: Topic, rival: Topic) -> Iterator[None]:
    """One tenant with little of a rate, the other with little of a disk."""
    quotas = stack.node.carrier._quotas._by_tenant
    quotas[topic.owner.identity.tenant] = Quota(bytes_per_s=400, burst_s=5)
    quotas[rival.owner.identity.tenant] = Quota(bytes_stored_max=1)
    yield
    quotas.clear()


@pytest.mark.usefixtures("limited")
def test_a_tenant_over_its_rate_is_told_when_to_come_back_and_others_go_on(stack: Stack, topic: Topic) -> None:
    modest, hand = Topic(stack, "modest", "steps"), Hand(topic.publisher("greedy"), "brakes")
    parcels = [hand.seal(number, *range(40)) for number in range(20)]
    for parcel in parcels:
        body = join_frames([parcel.encode()])
        answer = request_to(hand.session, topic.token, body)
        if answer.status != 200:
            break
    found, _, _, wait_ms = wire.decode(answer.body)
    assert (answer.status, found) == (429, "busy")
    assert int(answer.headers["retry-after"]) * 1000 >= wait_ms > 0
    with pytest.raises(Unavailable) as later:
        hand.session._node_http.request("POST", f"/v1/topics/{topic.token.hex()}/parcels", body=body, attempts_max=1)
    assert later.value.retry_after_s
    publish(modest.car, "steps", range(3))  # the neighbour, its anchors and the ledger go on
    assert read_rows(modest.reader.subscriber("steps"), 3) == [0, 1, 2]


@pytest.mark.usefixtures("limited")
def test_a_tenant_over_its_store_is_refused_and_the_ledger_goes_on(stack: Stack, rival: Topic) -> None:
    hoarder = rival.publisher("hoarder")
    with pytest.raises(Refused) as refusal:
        Hand(hoarder, "windows")
    assert refusal.value.reason == "quota"  # not even a lock fits
    stack.grant(rival.owner, rival.token, rival.reader, WRITE)  # what is on the ledger is nobody's quota
    assert log_store(stack).limits.reserve_bytes > 0
