"""Theorem 2 of BPS with its two tenants on two gateways, of which one fails and the other takes over.

Theorem 2 (BPS, section 5.1): "By decentralized design and TopicOper based audit, BPS can tolerate broker failure
brought by DoS and other failures from traditional defense mechanisms realized in brokers under the threat model in
Section 2.3."

The paper's proof claims two things, and so do the tests:

    taken over   rights and identities are on the chain, so "the brokers attacked by DoSing can be taken over by the
                 others": both tenants are served on, by the same rights, and neither gets into the other's topics
    audited      "even if an attacker captures a BPS broker, all on-chain topic operations can be verified publicly by
                 edge cloud super administrators and other BPS brokers": what the failed gateway wrote down stands and
                 is proved whole, and whoever has its key can neither give a right nor unwrite anything, and what it
                 passes to Kafka is judged by the other

That each partition has replicas on other hosts, the third premise: test_brokers.py. On one node: test_tenants.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from actors import Hand, publish, read_rows, reason, row_of, rows
from broker import broker
from city import City
from gateways import Gateways, flood
from stack import READ, WRITE, wait_until

from tallystick.carriers.carrier import Fetch
from tallystick.carriers.kafka.client import KafkaClient, describe
from tallystick.carriers.kafka.passage import PASSAGE, sign_passages
from tallystick.carriers.storage import Place
from tallystick.client.reader import Finding
from tallystick.client.session import Session
from tallystick.client.ties import Author
from tallystick.demo.forgery import JUNK
from tallystick.errors import Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.access import RIGHTS
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.epochs import End
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.engine import Query
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.server import ServerLimits

pytestmark = [pytest.mark.kafka, pytest.mark.chain, pytest.mark.long]

HEART, AIR = "heart-rate", "pollution"  # of the hospital, of the home provider
BEFORE, ROWS, COMMITTED = 5, 10, 2


@dataclass
class TakenOver:
    gateways: Gateways
    city: City
    intruder: Session  # of the home provider
    rights: dict[bytes, Any]  # of all four, before
    ward: list[int]  # what the doctor's group read before and after
    home: list[int]
    findings: list[Finding]

    @property
    def now(self) -> dict[bytes, Any]:
        return rights(self.city)


def rights(city: City) -> dict[bytes, Any]:
    """Who may do what, as the gateway that is left has it from the chain, proved."""
    people = {HEART: (city.monitor, city.doctor), AIR: (city.sensor, city.resident)}
    keys = [RIGHTS(city.tokens[name], one.identity.principal) for name, both in people.items() for one in both]
    return {key: city.doctor.view.row(key) for key in keys}


@pytest.fixture(scope="module")
def taken_over(both_gateways: Gateways) -> TakenOver:
    """Both tenants are at work at one gateway; it is flooded until it takes nobody any more, and then it is killed."""
    first, stack = both_gateways.first, both_gateways.stack
    first.start()
    city = City(stack)
    intruder = city.member("home", "intruder", AIR, int(WRITE))
    lone = stack.principal("home", "lone-resident", (first.url,))
    publish(city.monitor, HEART, range(BEFORE))
    publish(city.sensor, AIR, range(BEFORE))
    assert reason(intruder.node.publish(city.tokens[HEART], [JUNK])[0]) == "plain"
    findings: list[Finding] = []
    with city.doctor.subscriber(HEART, group="ward", fetch_bytes_max=1, on_finding=findings.append) as ward:
        before = read_rows(ward, COMMITTED)
        ward.commit()
    found = rights(city)
    with flood(first.url, ServerLimits().connections_max, 1):
        with pytest.raises(Unavailable):  # who knows no other
            stack.again(lone).node._http.request("GET", "/v1/certificate", attempts_max=1)
        monitor, sensor = stack.again(city.monitor), stack.again(city.sensor)
        with monitor.publisher(HEART, batch_rows_max=1) as heart, sensor.publisher(AIR, batch_rows_max=1) as air:
            for number in range(BEFORE, ROWS):
                for publisher in (heart, air):
                    publisher.send(rows(number))
                if number == BEFORE + 1:
                    first.kill()
            assert (heart.flush(120), air.flush(120)) == (0, 0)
    with (
        city.doctor.subscriber(HEART, group="ward", on_finding=findings.append) as ward,
        city.resident.subscriber(AIR, on_finding=findings.append) as home,
    ):
        after = read_rows(ward, ROWS - COMMITTED)
        ward.commit()
        return TakenOver(both_gateways, city, intruder, found, before + after, read_rows(home, ROWS), findings)


# --- taken over ---


def test_theorem_2_both_tenants_are_served_on_and_every_row_comes_once(taken_over: TakenOver) -> None:
    assert (taken_over.ward, taken_over.home) == (
        list(range(ROWS)),
        list(range(ROWS)),
    )  # the group went on where it was
    assert taken_over.findings == []


def test_theorem_2_rights_are_those_of_before_and_tenants_stay_apart(taken_over: TakenOver) -> None:
    city, node = taken_over.city, taken_over.gateways.stack.node
    assert taken_over.now == taken_over.rights
    assert all(taken_over.rights.values())
    for stranger, name in ((city.sensor, HEART), (city.resident, HEART), (city.monitor, AIR), (city.doctor, AIR)):
        with pytest.raises(Refused) as refusal:
            stranger.node.fetch(Fetch(city.tokens[name], 0, bytes(16), 0, bytes_max=1))
        assert refusal.value.reason == "unknown-topic"
    for stranger, name in ((city.sensor, HEART), (city.monitor, AIR)):
        assert reason(stranger.node.publish(city.tokens[name], [JUNK])[0]) == "plain"
    nurse = city.member("hospital", "nurse", HEART, int(READ))  # owners rule on, too
    assert read_rows(nurse.subscriber(HEART), ROWS) == list(range(ROWS))
    assert node.identifier in {one.subject for one in nurse.identity.nodes}


# --- audited ---


def test_theorem_2_what_the_failed_gateway_wrote_down_stands_and_is_proved_whole(taken_over: TakenOver) -> None:
    gateways, city = taken_over.gateways, taken_over.city
    ledger, token = gateways.stack.node.ledger, city.tokens[HEART]
    items = ledger.audit(Query(kind=int(EntryKind.OPERATION), token=token))
    assert {item.author for item in items} >= {gateways.first.identifier, gateways.stack.node.identifier}
    attempt = [item for item in items if item.fields[1] == taken_over.intruder.identity.principal]
    assert [(item.author, item.fields[5]) for item in attempt] == [(gateways.first.identifier, "plain")]
    found, _ = city.owners["home"].history(token)  # by the other tenant, at the gateway that is left: none is missing
    assert {(item.height, item.index) for item in attempt} <= {(height, index) for height, index, _ in found}


def test_theorem_2_whoever_has_the_gateways_key_gives_no_right_and_unwrites_nothing(taken_over: TakenOver) -> None:
    gateways, city = taken_over.gateways, taken_over.city
    stack, token, home = gateways.stack, city.tokens[HEART], city.resident.identity.principal
    captured = SimpleNamespace(
        instance=stack.node.trust.instance, principal=gateways.first.identifier, signing_key=gateways.first.keys.key
    )
    attacker = Author(captured, city.resident.node, stack.clock)  # type: ignore[arg-type]
    size = row_of(city.doctor.view, ANCHORS(token, 0)).size
    for entry, expected in (
        (entries.grant(token, home, int(READ)), "not-owner"),
        (entries.lift(home), "not-operator"),
        (entries.end_epoch(token, 1, End.REVOCATION, 1), "not-authority"),
        (entries.anchor(token, 0, size - 1, bytes(32)), "anchor-shrinks"),
        (entries.notarise(token, 0, size + 1, bytes(32), before=size - 1), "anchor-moved"),
    ):
        with pytest.raises(Refused) as refusal:
            attacker.write(entry)
        assert refusal.value.reason == expected
    assert taken_over.now == taken_over.rights


def test_theorem_2_what_a_captured_gateway_passes_is_judged_by_the_other(taken_over: TakenOver) -> None:
    """It vouches for what it should have refused, in its own name."""
    gateways, city, place = taken_over.gateways, taken_over.city, Place(taken_over.city.tokens[HEART], 0)
    node, hand = gateways.stack.node, Hand(city.monitor, HEART)
    good = hand.seal(ROWS)
    forged = Parcel(good.header, bytes(64), good.body)
    (passage,) = sign_passages(gateways.first.identifier, node.ledger.height, [forged.hash], gateways.first.keys.key)
    kafka = KafkaClient(broker().operator())
    sent = kafka.produce(place, b"k", forged.encode(), [*describe(forged), (PASSAGE, passage.encode())])
    kafka.flush([sent])
    kafka.close()
    at = sent.offset
    assert at is not None
    wait_until(lambda: node.carrier.ends(*place)[0] > at)
    findings: list[Finding] = []
    with city.doctor.subscriber(HEART, on_finding=findings.append) as subscriber:
        publish(city.monitor, HEART, [ROWS + 1])
        assert read_rows(subscriber, ROWS + 1) == [*range(ROWS), ROWS + 1]
    assert [(one.reason, one.offset) for one in findings] == [("refused", at)]
    assert city.doctor.node.verdict(*place, at) == "bad-signature"
