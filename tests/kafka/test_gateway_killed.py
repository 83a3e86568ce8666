"""A gateway is flooded and killed with `kill -9` under load: what it took is not lost, and nothing that it would have
refused is taken by the next.

The story is told once, by `killed`: while the gateway lived, a request to it was overheard, a liar was caught, and a
publisher and a reader found their rights in order. Each test tries something at the gateway that is left.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from actors import Hand, read_rows, reason, rows, stored
from broker import broker
from gateways import Gateways, flood, moved_hand, signed_publish
from stack import READ, WRITE, wait_until

from tallystick.carriers.carrier import Fetch, join_frames
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.passage import Passage
from tallystick.carriers.storage import Place
from tallystick.client.publish import Delivery
from tallystick.client.reader import Finding
from tallystick.client.session import Session
from tallystick.demo.forgery import send_bytes
from tallystick.errors import Refused, TallystickError, Unavailable
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.http1 import UNAUTHENTICATED, check_answer
from tallystick.trust.permit import Operation, Permit

pytestmark = [pytest.mark.kafka, pytest.mark.chain, pytest.mark.long]

ROWS, STORED_BEFORE = 150, 20
SILENT, JUNK = 600, 4  # connections that say nothing, and threads that send junk: the gateway still serves


@dataclass
class Overheard:
    """A request to the gateway that was killed, byte for byte, and what it brought there."""

    request: bytes
    hand: Hand
    parcel: Parcel
    offset: int


@dataclass
class Reader:
    """A live subscription, and whose it is."""

    session: Session
    token: bytes
    permit: bytes

    def fetch(self) -> int:
        """How many parcels come."""
        wanted = Fetch(self.token, 0, self.permit, 0, bytes_max=1 << 20, wait_ms=10_000)
        return len(self.session.node.fetch(wanted).parcels)


@dataclass
class Load:
    """What became of the rows that were under way."""

    token: bytes
    received: list[int]
    findings: list[Finding]
    junk: int  # requests of the flood that were answered


@dataclass
class Killed:
    gateways: Gateways
    overheard: Overheard
    liar: Session
    hand: Hand
    reader: Reader
    load: Load

    @property
    def next_address(self) -> str:
        return urlsplit(self.gateways.urls[1]).netloc


@pytest.fixture(scope="module")
def killed(both_gateways: Gateways) -> Killed:
    both_gateways.first.start()
    overheard, liar = overhear(both_gateways), catch_liar(both_gateways)
    hand, reader = at_work(both_gateways)
    return Killed(both_gateways, overheard, liar, hand, reader, kill_under_load(both_gateways))


def overhear(gateways: Gateways) -> Overheard:
    car, reader = gateways.principal("overheard"), gateways.principal("overheard-reader")
    gateways.topic("overheard", car, reader)
    hand = Hand(car, "overheard")
    parcel = hand.seal(1)
    request = signed_publish(car, hand.token, join_frames([parcel.encode()]))
    check_answer(send_bytes(gateways.first.address, request))
    assert refused(gateways.first.address, request) == "duplicate"
    known = stored(hand.send(parcel)[0])
    assert known.again
    return Overheard(request, hand, parcel, known.promises[0].offset)


def catch_liar(gateways: Gateways) -> Session:
    """Somebody who signs two parcels of one sequence."""
    liar, reader = gateways.principal("lying"), gateways.principal("lying-reader")
    gateways.topic("lying", liar, reader)
    hand = Hand(liar, "lying")
    other = hand.fork()
    stored(hand.send(hand.seal(1))[0])
    lie, told = hand.seal(2, lane=other), list[str]()

    def is_told() -> bool:
        with suppress(Unavailable):  # until the notary has the first, nobody can say that this is another
            told.append(reason(hand.send(lie)[0]))
        return bool(told)

    wait_until(is_told)
    assert told == ["equivocation"]
    return liar


def at_work(gateways: Gateways) -> tuple[Hand, Reader]:
    car, reader = gateways.principal("working"), gateways.principal("working-reader")
    token = gateways.topic("working", car, reader)
    hand = Hand(car, "working")
    stored(hand.send(hand.seal(1))[0])
    grant = reader.authority.permit(Operation.SUBSCRIBE, "working", 1)
    reader.node.subscribe(grant.permit)
    reading = Reader(reader, token, Permit.decode(grant.permit).identifier)
    assert reading.fetch() == 1
    return hand, reading


def kill_under_load(gateways: Gateways) -> Load:
    car, reader = gateways.principal("chased"), gateways.principal("chasing")
    token = gateways.topic("chase", car, reader)
    findings: list[Finding] = []
    acknowledged: list[int] = []

    def hear(number: int, error: TallystickError | None) -> None:
        assert error is None
        acknowledged.append(number)

    with (
        reader.subscriber("chase", on_finding=findings.append) as subscriber,
        flood(gateways.first.url, SILENT, JUNK) as attacker,
    ):
        with car.publisher("chase", batch_rows_max=1, retry_s=0.1) as publisher:

            def send(number: int) -> None:
                def on_delivery(error: TallystickError | None, _: Delivery | None) -> None:
                    hear(number, error)

                publisher.send(rows(number), on_delivery)

            def enough() -> bool:
                publisher.poll(0)
                return len(acknowledged) >= STORED_BEFORE

            for number in range(ROWS // 2):
                send(number)
            wait_until(enough)
            for number in range(ROWS // 2, ROWS):
                send(number)
                if number == ROWS // 2 + 10:
                    gateways.first.kill()
            assert publisher.flush(120) == 0
        assert sorted(acknowledged) == list(range(ROWS))
        junk, _ = attacker.communicate(timeout=60)
        return Load(token, read_rows(subscriber, ROWS), findings, int(junk))


def refused(address: str, request: bytes) -> str:
    """Why these bytes are refused there."""
    with pytest.raises(Refused) as refusal:
        check_answer(send_bytes(address, request))
    return refusal.value.reason


def test_nothing_that_was_stored_is_lost_and_every_row_comes_once(killed: Killed) -> None:
    assert (sorted(killed.load.received), killed.load.findings) == (list(range(ROWS)), [])


def test_both_gateways_had_their_part_of_the_load_and_the_flood_was_answered(killed: Killed) -> None:
    kafka, gateways, token = KafkaClient(broker().operator()), killed.gateways, killed.load.token
    end = gateways.stack.node.carrier.ends(token, 0)[0]
    records = kafka.read(Place(token, 0), 0, end, 1 << 24)
    kafka.close()
    took = Counter(Passage.decode(record.passage or b"").node for record in records)
    assert set(took) == {gateways.first.identifier, gateways.stack.node.identifier}
    assert took[gateways.first.identifier] >= STORED_BEFORE
    assert killed.load.junk > 0


def test_an_envelope_for_the_dead_gateway_is_refused_by_the_next(killed: Killed) -> None:
    overheard, dead = killed.overheard.request, killed.gateways.first
    assert refused(killed.next_address, overheard) == UNAUTHENTICATED  # as it came
    hosts = overheard.replace(dead.address.encode(), killed.next_address.encode())
    named = hosts.replace(dead.identifier.hex().encode(), killed.gateways.stack.node.identifier.hex().encode())
    assert len({overheard, hosts, named}) == 3
    for forged in (hosts, named):  # addressed anew, under the old signature
        assert refused(killed.next_address, forged) == UNAUTHENTICATED


def test_an_envelope_for_the_next_gateway_counts_there_once(killed: Killed) -> None:
    hand = moved_hand(killed.gateways, killed.hand)
    request = signed_publish(hand.session, hand.token, join_frames([hand.seal(2).encode()]))
    check_answer(send_bytes(killed.next_address, request))
    assert refused(killed.next_address, request) == "duplicate"


def test_a_parcel_that_the_dead_gateway_stored_is_known_to_the_next_with_its_place(killed: Killed) -> None:
    overheard, node = killed.overheard, killed.gateways.stack.node
    wait_until(lambda: node.carrier.ends(overheard.hand.token, 0)[0] > overheard.offset)  # its index has it
    outcome = stored(moved_hand(killed.gateways, overheard.hand).send(overheard.parcel)[0])
    assert outcome.again
    assert [(one.offset, one.parcel) for one in outcome.promises] == [(overheard.offset, overheard.parcel.hash)]


def test_who_was_blacklisted_at_the_dead_gateway_is_refused_by_the_next(killed: Killed) -> None:
    wait_until(lambda: killed.gateways.stack.node.rules.blacklisted(killed.liar.identity.principal))
    with pytest.raises(Refused, match="blacklisted"):
        Hand(killed.gateways.moved(killed.liar), "lying")


def test_a_right_that_is_withdrawn_counts_at_the_next(killed: Killed) -> None:
    gateways, reader = killed.gateways, killed.reader
    hand = moved_hand(gateways, killed.hand)
    moved = Reader(gateways.moved(reader.session), reader.token, reader.permit)
    stored(hand.send(hand.seal(2))[0])
    assert moved.fetch() >= 1
    gateways.stack.withdraw(gateways.owner, hand.token, hand.session, WRITE)
    gateways.stack.withdraw(gateways.owner, hand.token, reader.session, READ)
    assert reason(hand.send(hand.seal(3))[0]) == "unknown-topic"  # without DESCRIBE the topic does not exist
    with pytest.raises(Refused) as refusal:
        moved.fetch()
    assert refusal.value.reason == "unknown-topic"


def test_when_it_is_back_the_killed_gateway_still_knows_what_it_was_sent(killed: Killed) -> None:
    killed.gateways.first.start()
    told = refused(killed.gateways.first.address, killed.overheard.request)
    assert told in ("duplicate", "stale")  # after a minute it is too old to be looked up
