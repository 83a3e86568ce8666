"""The notary behind Kafka: what clients write to Kafka themselves is judged, marked and anchored."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from actors import SCHEMA, Hand, anchored, await_topic, read_rows, stored
from broker import anchorer_of, broker, node_settings
from stack import READ, WRITE, Stack, wait_until
from without import without

from tallystick.carriers.accounts import permit_name
from tallystick.carriers.carrier import Fetch, Void, is_void
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.consumers import Tail
from tallystick.carriers.kafka.failures import library
from tallystick.carriers.kafka.notary import Notary
from tallystick.carriers.kafka.passage import PASSAGE, sign_passages
from tallystick.carriers.kafka.storage import KafkaIndex
from tallystick.carriers.storage import Place
from tallystick.client.reader import Finding
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Unavailable, Withheld
from tallystick.ledger.contracts.anchors import ANCHORS, AnchorRow
from tallystick.ledger.engine import Query
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import RealDisk
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.promise import Anchor
from tallystick.trust.right import Right


class Direct:
    """An instance on Kafka, and hands that write to Kafka past every guard."""

    def __init__(self, stack: Stack, kafka: KafkaClient) -> None:
        self.stack, self.kafka = stack, kafka
        self.owner = stack.tenant("acme")
        self.car, self.reader = (stack.principal("acme", name) for name in ("car", "reader"))
        self._topics = 0

    def topic(self) -> tuple[str, bytes]:
        self._topics += 1
        name = f"topic-{self._topics}"
        token = self.stack.topic(self.owner, name, SCHEMA)
        self.stack.grant(self.owner, token, self.car, WRITE)
        self.stack.grant(self.owner, token, self.reader, READ)
        await_topic(self.stack, token)
        wait_until(lambda: token in self.kafka.topics())
        return name, token

    def write(self, token: bytes, *values: Parcel | bytes) -> list[int]:
        sent = [
            self.kafka.produce(Place(token, 0), b"k", v.encode() if isinstance(v, Parcel) else v, []) for v in values
        ]
        self.kafka.flush(sent)
        assert all(one.error is None for one in sent)
        return [one.offset for one in sent if one.offset is not None]

    def fetch(self, name: str, token: bytes, size: int, headers: bool = True) -> tuple[bytes, ...]:
        """What the index shows of the partition, once so many offsets are anchored."""
        grant = self.reader.authority.permit(Operation.SUBSCRIBE, name, 1)
        self.reader.node.subscribe(grant.permit)
        wait_until(lambda: anchored(self.reader.view, token) >= size)
        permit = Permit.decode(grant.permit).identifier
        fetched = self.reader.node.fetch(Fetch(token, 0, permit, 0, bytes_max=1 << 22, headers=headers))
        return tuple(map(bytes, fetched.parcels))

    def anchor(self, token: bytes) -> AnchorRow | None:
        return self.reader.view.row(ANCHORS(token, 0))


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Direct]:
    cluster = broker()
    kafka = KafkaClient(cluster.operator())
    with Stack(tmp_path_factory.mktemp("direct"), node=node_settings(cluster)) as stack:
        yield Direct(stack, kafka)
    kafka.close()


def reasons(found: tuple[bytes, ...]) -> list[str]:
    return [Void.decode(data).reason if is_void(data) else "" for data in found]


def test_each_record_is_judged_and_what_is_refused_is_marked(direct: Direct) -> None:
    name, token = direct.topic()
    hand = Hand(direct.car, name)
    good = [hand.seal(number) for number in range(3)]
    forged = Parcel(good[1].header, bytes(64), good[1].body)
    altered = Parcel(good[1].header, good[1].signature, bytes(len(good[1].body)))
    unknown = hand.resign(good[1], topics=(replace(good[1].header.topics[0], permit=b"p" * 16),))
    direct.write(token, good[0], b'{"speed": 12}', forged, altered, unknown, good[2], good[1], good[1], good[2])
    found = direct.fetch(name, token, 9)
    assert reasons(found) == ["", "plain", "bad-signature", "altered", "not-advertised", "ahead", "", "", ""]
    assert [Parcel.decode_front(found[i]).hash for i in (0, 6, 8)] == [parcel.hash for parcel in good]
    assert Void.decode(found[7]) == Void.repeated(good[1].hash)


def test_a_right_that_was_taken_away_ends_direct_writing(direct: Direct) -> None:
    name, token = direct.topic()
    hand = Hand(direct.car, name)
    direct.write(token, hand.seal(1))
    assert reasons(direct.fetch(name, token, 1)) == [""]
    direct.stack.withdraw(direct.owner, token, direct.car, WRITE)
    wait_until(lambda: not direct.stack.node.rules.allows(direct.car.identity.principal, token, Right.WRITE, "kafka"))
    direct.write(token, hand.seal(2))
    assert reasons(direct.fetch(name, token, 2))[1] in ("unknown-topic", "no-right", "not-advertised", "permit-ended")


def test_acts_and_refusals_of_direct_clients_are_on_the_ledger(direct: Direct) -> None:
    name, token = direct.topic()
    hand = Hand(direct.car, name)
    direct.write(token, hand.seal(1), b"plain junk", hand.seal(2))
    direct.fetch(name, token, 3)
    ledger = direct.stack.node.ledger
    wait_until(lambda: any(i.fields[6] == "kafka" for i in ledger.audit(Query(token=token))))
    acts = [item.fields for item in ledger.audit(Query(token=token)) if item.fields[6] == "kafka"]
    assert sum(fields[7] for fields in acts) == 2
    assert {fields[1] for fields in acts} == {direct.car.identity.principal}
    anchors = [Anchor.decode_entry(item.entry) for item in ledger.audit(Query(kind=43, most=10_000))]
    refused = [refusal for anchor in anchors if anchor.token == token for refusal in anchor.refused]
    assert [(refusal.first, refusal.end, refusal.reason) for refusal in refused] == [(1, 2, "plain")]


def test_who_signs_two_parcels_of_one_sequence_is_convicted(direct: Direct) -> None:
    name, token = direct.topic()
    liar = direct.stack.principal("acme", "liar")
    direct.stack.grant(direct.owner, token, liar, WRITE)
    hand = Hand(liar, name)
    other = hand.fork()
    direct.write(token, hand.seal(1))
    direct.fetch(name, token, 1)
    direct.write(token, hand.seal(2, lane=other))
    assert reasons(direct.fetch(name, token, 2)) == ["", "equivocation"]
    wait_until(lambda: direct.stack.node.rules.blacklisted(liar.identity.principal))


def test_what_a_gateway_passed_stands_though_the_right_is_gone_when_it_is_judged(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, token = direct.topic()
    hand = Hand(direct.car, name)
    node = direct.stack.node
    with monkeypatch.context() as patch:
        # It sleeps while the gateway promises.
        patch.setattr(anchorer_of(direct.stack).notary, "poll", lambda *_: False)
        promise = stored(hand.send(hand.seal(1))[0]).promises[0]
        direct.stack.withdraw(direct.owner, token, direct.car, WRITE)
        wait_until(lambda: not node.rules.allows(direct.car.identity.principal, token, Right.WRITE, "kafka"))
    found = direct.fetch(name, token, 1)
    assert reasons(found) == [""]
    assert Parcel.decode_front(found[0]).hash == promise.parcel


def passed(parcel: Parcel, node: bytes, key: SigningKey) -> tuple[bytes, list[tuple[str, bytes]]]:
    """A parcel with a passage that `key` signed in the name of `node`."""
    passage = sign_passages(node, 1, [parcel.hash], key)[0]
    return parcel.encode(), [(PASSAGE, passage.encode())]


def test_a_passage_that_a_client_signs_itself_opens_nothing(direct: Direct) -> None:
    name, token = direct.topic()
    hand, node = Hand(direct.car, name), direct.stack.node
    parcel = hand.seal(1)
    direct.stack.withdraw(direct.owner, token, direct.car, WRITE)
    wait_until(lambda: not node.rules.allows(direct.car.identity.principal, token, Right.WRITE, "kafka"))

    def write(subject: bytes) -> None:
        value, headers = passed(parcel, subject, direct.car.identity.signing_key)
        sent = direct.kafka.produce(Place(token, 0), b"k", value, headers)
        direct.kafka.flush([sent])

    write(direct.car.identity.principal)
    write(node.identifier)
    assert all(reasons(direct.fetch(name, token, 2)))
    with without("a gateway's key for a passage"):
        write(direct.car.identity.principal)
        assert reasons(direct.fetch(name, token, 3))[2] == ""


def test_bodies_come_from_kafka_and_marks_from_the_notary(direct: Direct) -> None:
    name, token = direct.topic()
    hand = Hand(direct.car, name)
    parcels = [hand.seal(number) for number in range(3)]
    direct.write(token, parcels[0], b"plain junk", *parcels[1:])
    found = direct.fetch(name, token, 4, headers=False)
    assert [data for data in found if not is_void(data)] == [parcel.encode() for parcel in parcels]
    assert reasons(found) == ["", "plain", "", ""]


def test_a_second_notary_computes_the_same_root_and_finds_other_records(direct: Direct, tmp_path: Path) -> None:
    name, token = direct.topic()
    hand = Hand(direct.car, name)
    direct.write(token, hand.seal(1), b"plain junk", hand.seal(2))
    direct.fetch(name, token, 3)
    top, anchors = anchorer_of(direct.stack)._ledger.follow(-1)
    mine = [anchor for anchor, _, _ in anchors if anchor.token == token]
    assert top > 0
    fresh = second_notary(direct, tmp_path)
    for anchor in mine:
        fresh.catch_up(anchor, 0)
    assert fresh._index.tree(Place(token, 0)).root() == mine[-1].root
    lying = replace(mine[0], root=b"r" * 32)
    with pytest.raises(Withheld, match="not those that were anchored"):
        second_notary(direct, tmp_path / "other").catch_up(lying, 0)


def second_notary(direct: Direct, folder: Path) -> Notary:
    """Another notary of the same Kafka, that has seen nothing yet."""
    carrier = direct.stack.node.carrier
    folder.mkdir(exist_ok=True)
    index = KafkaIndex(RealDisk(folder), carrier.limits.lanes_max)
    rules = direct.stack.node.rules
    asks = (lambda *_: False), (lambda *_: False)
    return Notary(direct.kafka, index, rules, carrier.live, carrier.deposits, carrier.limits, *asks)


class Shown(Tail):
    """What brokers show of partitions, whatever lies there."""

    def __init__(self, rounds: list[Any]) -> None:
        self._rounds = iter(rounds)

    def follow(self, _: Any) -> None:
        """They show what they want."""

    def poll(self, _: float) -> Any:
        return next(self._rounds)


def test_an_offset_that_kafka_shows_twice_has_one_leaf(direct: Direct, tmp_path: Path) -> None:
    name, token = direct.topic()
    hand, place = Hand(direct.car, name), Place(token, 0)
    direct.write(token, hand.seal(1), hand.seal(2), hand.seal(3))
    direct.fetch(name, token, 3)
    _, anchors = anchorer_of(direct.stack)._ledger.follow(-1)
    (anchor,) = [one for one, _, _ in anchors if one.token == token][-1:]
    notary = second_notary(direct, tmp_path)
    first, second, third = direct.kafka.read(place, 0, 3, 1 << 20)
    notary._tail.close()
    notary._tail = Shown([{place: [first, second, second]}, {place: [second, first, third]}])
    notary.poll([place], 0)
    notary.poll([place], 0)
    (judgement,) = notary.judge(direct.stack.node.carrier.block()[1])
    assert [one.offset for one in judgement.items] == [0, 1, 2]
    assert (judgement.anchor.size, judgement.anchor.root) == (anchor.size, anchor.root)


def fail(*_: object) -> None:
    raise Unavailable("the process is gone")


def test_after_a_crash_the_index_goes_on_behind_the_ledger(direct: Direct, monkeypatch: pytest.MonkeyPatch) -> None:
    name, token = direct.topic()
    hand = Hand(direct.car, name)
    notary = anchorer_of(direct.stack).notary
    with monkeypatch.context() as patch:
        patch.setattr(notary, "take", fail)  # the anchor is on the ledger, and nothing of it in the index
        direct.write(token, hand.seal(1), b"plain junk")
        wait_until(lambda: direct.anchor(token) is not None)
        direct.stack.stop_node()
    direct.stack.start_node()
    direct.write(token, hand.seal(2))
    assert reasons(direct.fetch(name, token, 3)) == ["", "plain", ""]
    assert direct.stack.node.carrier.storage.end(Place(token, 0)) >= 3


def test_subscribers_open_what_was_taken_and_hear_of_what_was_not(direct: Direct) -> None:
    name, token = direct.topic()
    hand = Hand(direct.car, name)
    parcels = [hand.seal(number) for number in range(3)]
    direct.write(token, parcels[0], b"plain junk", parcels[1], parcels[0], parcels[1], parcels[2])
    direct.fetch(name, token, 6)
    findings: list[Finding] = []
    with direct.reader.subscriber(name, on_finding=findings.append) as subscriber:
        assert read_rows(subscriber, 3) == [0, 1, 2]
    assert [(finding.reason, finding.offset) for finding in findings] == [("refused", 1)]


def test_what_gateways_share_counts_under_its_signature_alone(direct: Direct) -> None:
    name, _ = direct.topic()
    hand, carrier, anchorer = Hand(direct.car, name), direct.stack.node.carrier, anchorer_of(direct.stack)
    forged = replace(hand.permit, identifier=b"f" * 16).sign(direct.car.identity.signing_key)

    def seen() -> bool:
        anchorer._shared.put({permit_name(forged.identifier): forged.encode()})
        return bool(anchorer._shared.poll(anchorer._take_shared))

    def share() -> bool:
        """Whether the forged permit is live once the gateways have seen it."""
        with carrier.lock:
            wait_until(seen)  # again where the gateway's own thread was quicker, which waits for the lock
            carrier.storage.sync()
            return carrier.live.get(forged.identifier) is not None

    assert not share()
    with without("the signature on what gateways share"):
        assert share()


def test_what_kafka_does_not_take_keeps_no_other_parcel_of_its_group_from_its_promise(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    (taken, _), (broken, token) = direct.topic(), direct.topic()
    hands = [Hand(direct.car, name) for name in (taken, taken, broken)]
    node, answers, groups = direct.stack.node, list[Any](), list[int]()
    publish = node.carrier.publish

    def watched(requests: Any) -> Any:
        groups.append(len(requests))
        answers.append(publish(requests))
        return answers[-1]

    monkeypatch.setattr(node.carrier, "publish", watched)

    def attempt(number: int) -> list[str]:
        """What was refused of a group in which Kafka does not take the last, unless the gateway mends it before."""
        groups.clear()
        answers.clear()
        with ThreadPoolExecutor(3) as pool:
            with node.carrier.lock:
                first = pool.submit(hands[0].send, hands[0].seal(number))  # the worker takes it, and waits for the lock
                wait_until(lambda: groups == [1])
                group = [pool.submit(hand.send, hand.seal(number)) for hand in hands[1:]]
                wait_until(lambda: len(node.service._waiting) == 2)
                shrink(direct.kafka, token)
            for one in (first, *group):
                assert stored(one.result(60)[0])  # the last at a second attempt, when the setting has been put back
        assert len(answers[1]) == 2
        return [str(answer) for answer in answers[1] if isinstance(answer, Unavailable)]

    (refused,) = next(filter(None, map(attempt, range(5))))
    assert "too large" in refused.lower()


def shrink(kafka: KafkaClient, token: bytes) -> None:
    """Let a topic take no parcel, until the gateway notices and puts it back."""
    admin = library("confluent_kafka.admin")
    entry = admin.ConfigEntry("max.message.bytes", "10", incremental_operation=admin.AlterConfigOpType.SET)
    resource = admin.ConfigResource(admin.ResourceType.TOPIC, token.hex(), incremental_configs=[entry])
    for future in kafka.admin.incremental_alter_configs([resource]).values():
        future.result(30)
