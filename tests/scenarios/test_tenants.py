"""Theorems 1 to 3 of BPS as scenarios, with the two tenants of its section 5.1; on Kafka: kafka/test_threats.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from actors import (
    SCHEMA,
    Hand,
    acts,
    admit,
    await_topic,
    fetch_query,
    publish,
    read_rows,
    reason,
    reputation,
    row_of,
    settle,
    stored,
    write_as_node,
)
from actors import rows as sample
from city import TOPICS, City
from stack import READ, WRITE, Stack, sqlite_ledger, wait_beyond, wait_until

from tallystick.carriers.carrier import Fetch
from tallystick.crypto.symmetric import derive
from tallystick.demo.forgery import JUNK, exchange
from tallystick.errors import Forged, Refused, Withheld
from tallystick.ledger import entries
from tallystick.ledger.contracts.access import RIGHTS
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.epochs import End
from tallystick.ledger.contracts.topics import bound_token
from tallystick.ledger.proofs import StateProof, verify_history
from tallystick.trust.permit import Operation
from tallystick.trust.receipt import Receipt
from tallystick.trust.right import Right


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("tenants")) as stack:
        yield stack


@pytest.fixture(scope="module")
def city(stack: Stack) -> City:
    """Five topics, each with three rows of its own tenant."""
    city = City(stack)
    for tenant, publisher in (("hospital", city.monitor), ("home", city.sensor)):
        for name in TOPICS[tenant]:
            publish(publisher, name, range(3))
    return city


def test_each_tenant_reads_its_own(city: City) -> None:
    for reader, names in ((city.doctor, TOPICS["hospital"]), (city.resident, TOPICS["home"])):
        for name in names:
            assert read_rows(reader.subscriber(name), 3) == [0, 1, 2]


def test_a_name_means_nothing_in_the_other_tenant(stack: Stack, city: City) -> None:
    token = stack.topic(city.owners["home"], "heart-rate", SCHEMA)  # a fitness tracker's
    assert token != city.tokens["heart-rate"]
    for name in TOPICS["hospital"]:
        with pytest.raises(Refused) as refusal:
            city.resident.authority.permit(Operation.SUBSCRIBE, name)
        assert refusal.value.reason == "unknown-topic"


def test_a_tenant_grants_and_changes_nothing_of_another(city: City) -> None:
    landlord, token = city.owners["home"], city.tokens["heart-rate"]
    resident = city.resident.identity.principal
    for entry in (
        entries.grant(token, resident, int(READ)),
        entries.withdraw(token, city.doctor.identity.principal, int(READ)),
        entries.close_topic(token),
    ):
        with pytest.raises(Refused) as refusal:
            landlord.author.write(entry)
        assert refusal.value.reason == "not-owner"
    for act in (
        lambda: landlord.authority.rotate(token),
        lambda: landlord.authority.revoke(city.doctor.identity.principal),
        lambda: landlord.authority.erase(token, city.monitor.identity.principal, []),
    ):
        with pytest.raises(Refused):
            act()


def guess(city: City, token: bytes, tenant: bytes, key: bytes) -> list[str]:
    """What a node that sees tokens and knows how they are made can try: every name in a dictionary."""
    dictionary = [name for names in TOPICS.values() for name in names] + ["oxygen", "insulin", "noise"]
    words = {name: derive(key, "tallystick topic word 1", tenant, name.encode()) for name in dictionary}
    authority = city.doctor.identity.authority.subject
    return [name for name, word in words.items() if bound_token(authority, word) == token]


def test_a_token_does_not_give_its_topics_name_away(city: City) -> None:
    """Derived under the authority's secret, a token is matched by whoever has that secret and nobody else."""
    token, tenant = city.tokens["heart-rate"], city.doctor.identity.tenant
    node = city.stack.node
    for seen in (
        bytes(32),
        tenant * 2,
        node.trust.instance,
        node.keys.key.public.raw,
        city.doctor.identity.keys.signing_seed,
    ):
        assert guess(city, token, tenant, seen) == []
    secret = city.stack.authority.authority.core.keys.master._token_key
    assert guess(city, token, tenant, secret) == ["heart-rate"]


# --- Theorem 1: operations are traced, misbehaviour is found ---


def test_another_tenant_checks_the_ledger_and_learns_no_name(city: City) -> None:
    """The ledger is for all to read: without that, nobody but the operator could say that it is right."""
    publish(city.monitor, "heart-rate", [70])
    settle(city.stack)
    token, stranger = city.tokens["heart-rate"], city.resident
    found, head = stranger.history(token)  # complete by proof
    assert found
    assert head.height > 0
    blocks = stranger.node.blocks(0, head.height + 1)
    shown = b"".join(block + b"".join(transactions) for block, transactions in blocks)
    shown += b"".join(entry for *_, entry in found)
    shown += repr(stranger.node.audit(token=token, most=1000)).encode()
    assert city.monitor.identity.principal in shown
    assert b"127.0.0.1" in shown  # the host too: docs/threat-model.md says so
    for name in (*TOPICS, *city.tokens, "monitor", "doctor", "speed"):
        assert name.encode() not in shown
    assert not {principal for principal, _ in stranger.authority.names().principals} & {
        city.monitor.identity.principal,
        city.doctor.identity.principal,
    }


def test_a_ledger_that_goes_on_while_a_history_is_asked_for_did_not_go_back(city: City) -> None:
    """Another thread of the session hears of the next block before the answer is judged."""
    token, session = city.tokens["heart-rate"], city.resident
    honest = session.node.state

    def slow(key: bytes) -> StateProof:
        proof, before = honest(key), session.view.refresh().height
        publish(city.monitor, "heart-rate", [71])
        wait_beyond(lambda: session.view.refresh().height, before)
        return proof

    session.node.state = slow
    try:
        found, head = session.history(token)
    finally:
        session.node.state = honest
    assert found
    assert head.height < session.view.height
    assert session.memory.evidence() == []


def test_theorem_1_every_attempt_stands_in_the_topics_own_history(stack: Stack, city: City) -> None:
    """The paper's example: somebody of the home provider publishes junk to the hospital's topics. Each attempt is found
    from the topic alone, and the history proves itself whole."""
    intruder = city.member("home", "intruder", "temperature", int(WRITE))
    token = city.tokens["blood-pressure"]
    for _ in range(3):
        assert reason(intruder.node.publish(token, [JUNK])[0]) == "plain"
    with pytest.raises(Refused):
        intruder.node.fetch(Fetch(token, 0, bytes(16), 0, bytes_max=1))
    found = acts(stack, token=token, principal=intruder.identity.principal)
    told = [(act.operation, act.reason) for act in found for _ in range(act.count)]
    assert told == [(2, "plain")] * 3 + [(1, "unknown-topic")]
    assert reputation(stack, intruder.identity.principal) == (90, 0)  # one fall a topic and minute

    auditor = city.owners["hospital"]
    history = [(height, index, entry) for height, index, entry in reversed(auditor.node.history(token))]
    proof = auditor.node.state(b"history/" + token)
    proof.verify(stack.node.trust)
    verify_history(token, history, proof)
    for cut in (history[:-1], history[1:], [*history[:1], *history[2:]]):
        with pytest.raises(Withheld):
            verify_history(token, cut, proof)


def test_theorem_1_a_history_is_read_without_traversing_the_chain(stack: Stack, city: City) -> None:
    ledger = sqlite_ledger(stack)
    read: list[str] = []
    quiet = stack.topic(city.owners["home"], "quiet", SCHEMA)
    await_topic(stack, quiet)
    sleeper = city.stack.principal("home", "sleeper")
    stack.grant(city.owners["home"], quiet, sleeper, WRITE)
    publish(sleeper, "quiet", [1])
    hand = Hand(city.sensor, "humidity")
    for number in range(20):
        stored(hand.send(hand.seal(number))[0])
    settle(stack)

    def note(_: object, statement: str, __: object) -> bool:
        read.append(statement)
        return True  # the statement may run

    assert ledger.history(quiet)
    searched = ledger._idle[-1].db  # what is searched has a connection of its own
    searched.set_exec_trace(note)
    history = ledger.history(quiet)
    searched.set_exec_trace(None)
    blocks = [one for one in read if one.startswith("SELECT data, note FROM blocks")]
    assert 0 < len(blocks) <= len(history) < ledger.statistics().transactions / 2


# --- Theorem 2: a failing or captured broker ---


def test_theorem_2_a_broker_that_is_down_loses_and_changes_nothing(stack: Stack, city: City) -> None:
    publisher = city.sensor.publisher("pollution", linger_s=0.0, retry_s=0.05)
    publisher.send(sample(3))
    assert publisher.flush(30) == 0
    rights = city.resident.view.row(RIGHTS(city.tokens["pollution"], city.resident.identity.principal))
    stack.stop_node()
    publisher.send(sample(4))  # into the spool
    assert publisher.flush(0.2) > 0
    stack.start_node()
    assert publisher.flush(30) == 0
    publisher.close()
    assert read_rows(city.resident.subscriber("pollution"), 5) == [0, 1, 2, 3, 4]
    key = RIGHTS(city.tokens["pollution"], city.resident.identity.principal)
    assert city.resident.view.row(key) == rights


def test_theorem_2_a_captured_broker_cannot_give_rights_or_unwrite_operations(stack: Stack, city: City) -> None:
    token, node = city.tokens["heart-rate"], stack.node
    for entry in (
        entries.grant(token, city.resident.identity.principal, int(READ)),
        entries.lift(city.resident.identity.principal),
        entries.end_epoch(token, 1, End.REVOCATION, 1),
    ):
        with pytest.raises(Refused):
            write_as_node(node, entry)
    row = row_of(city.doctor.view, ANCHORS(token, 0))
    with pytest.raises(Refused) as refusal:
        write_as_node(node, entries.anchor(token, 0, row.size - 1, bytes(32)))
    assert refusal.value.reason == "anchor-shrinks"
    # Nor read what it carries: see test_canaries.py.


# --- Theorem 3: authorisation and integrity ---


@pytest.mark.parametrize(
    ("granted", "subscribe", "advertise"),
    [
        (0, "unknown-topic", "unknown-topic"),
        (Right.READ, "unknown-topic", "unknown-topic"),
        (Right.WRITE, "unknown-topic", "unknown-topic"),
        (Right.DESCRIBE, "no-right", "no-right"),
        (READ, "", "no-right"),
        (WRITE, "no-right", ""),
        (Right.DELETE | Right.DESCRIBE, "no-right", "no-right"),
        (READ | WRITE, "", ""),
    ],
    ids=lambda value: str(int(value)) if isinstance(value, int) else None,
)
def test_theorem_3_rights_are_separate(city: City, granted: int, subscribe: str, advertise: str) -> None:
    member = city.member("hospital", f"nurse-{int(granted)}", "heart-rate", int(granted))
    for operation, expected in ((Operation.SUBSCRIBE, subscribe), (Operation.ADVERTISE, advertise)):
        if expected:
            with pytest.raises(Refused) as refusal:
                member.authority.permit(operation, "heart-rate")
            assert refusal.value.reason == expected
        else:
            admit(member, member.authority.permit(operation, "heart-rate").permit)
    fetched = exchange(member, "GET", f"/v1/topics/{city.tokens['heart-rate'].hex()}/parcels", fetch_query(bytes(16)))
    assert fetched.status == 403


def test_theorem_3_a_deny_beats_an_allow_and_a_host_is_held(city: City) -> None:
    token, owner = city.tokens["heart-rate"], city.owners["hospital"]
    denied = city.member("hospital", "denied", "heart-rate", int(READ))
    owner.author.write(entries.grant(token, denied.identity.principal, int(Right.READ), allow=False))
    with pytest.raises(Refused):
        denied.subscriber("heart-rate")
    elsewhere = city.member("hospital", "elsewhere", "heart-rate", int(READ), host="10.1.2.3")
    with pytest.raises(Refused):  # a permit may be had, but not used from here
        elsewhere.subscriber("heart-rate").poll(0)
    here = city.member("hospital", "here", "heart-rate", int(READ), host="127.0.0.1")
    assert read_rows(here.subscriber("heart-rate"), 3)[:3] == [0, 1, 2]


def test_theorem_3_every_message_is_verified_against_the_chain(stack: Stack, city: City) -> None:
    """A hash per message on the chain became one anchor per partition and commit: the receipt leads from one to the
    other, offline, with the trust file alone."""
    token = city.tokens["heart-rate"]
    received = []
    subscriber = city.doctor.subscriber("heart-rate")
    wait_until(lambda: received.extend(subscriber.poll(50)) or len(received) >= 3)
    for one in received:
        receipt = Receipt.decode(city.doctor.node.receipt(token, 0, one.offset))
        verified = receipt.verify(one.parcel, token, stack.node.trust)
        assert (verified.partition, verified.offset, verified.node) == (0, one.offset, stack.node.identifier)
        with pytest.raises(Forged):
            receipt.verify(b"x" * 32, token, stack.node.trust)
        with pytest.raises(Forged):
            receipt.verify(one.parcel, city.tokens["temperature"], stack.node.trust)
