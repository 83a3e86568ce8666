"""The attacks that an audit must find, carried out on a running instance: by strangers and tenants as in the scenarios,
by a publisher of two stories, and by the node itself, with its own key and a guard taken out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from actors import (
    SCHEMA,
    Hand,
    Topic,
    anchored,
    await_topic,
    fetch_query,
    publish,
    row_of,
    settle,
    stored,
    write_as_node,
)
from stack import READ, WRITE, Stack, wait_until
from without import without

from tallystick.carriers.accounts import Asked
from tallystick.carriers.carrier import Fetch, Fetched
from tallystick.client.group import group_id
from tallystick.crypto.merkle import leaf_hash
from tallystick.demo.forgery import exchange, send_bytes
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts.groups import GROUPS, OFFSETS
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.seal import Gap
from tallystick.trust.campaign import WHOLE, Phase
from tallystick.trust.promise import Promise

JUNK = b'{"vin": "plain"}'
FLOOD = 40


class Crime:
    """An instance with an honest topic and people, and the rest of the town."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.topic = Topic(stack, "acme")
        self.rival = stack.tenant("rival")
        self.spy, self.thief = stack.principal("rival", "spy"), stack.principal("rival", "thief")
        self.node = stack.node.identifier
        self.tokens = {"brakes": self.topic.token}

    def another(self, name: str) -> bytes:
        """One more topic for the same people."""
        topic = self.topic
        token = self.stack.topic(topic.owner, name, SCHEMA)
        self.stack.grant(topic.owner, token, topic.car, WRITE)
        self.stack.grant(topic.owner, token, topic.reader, READ)
        await_topic(self.stack, token)
        self.tokens[name] = token
        return token

    def write(self, *entry: bytes) -> None:
        """The node writes what it likes."""
        write_as_node(self.stack.node, *entry)

    def honest(self) -> None:
        """Publish, read as a group and commit; stop and go on, close. An update is released and spread, too."""
        for numbers in (range(4), range(4, 6)):
            publish(self.topic.car, "brakes", numbers)
        with self.topic.reader.subscriber("brakes", group="readers") as subscriber:
            seen = 0
            while seen < 6:
                seen += sum(one.batch.rows for one in subscriber.poll(100))
            subscriber.commit()
        self._update()
        settle(self.stack)

    def _update(self) -> None:
        """Every entry of a fleet's updates, by the hands that may write it."""
        owner, car, token = self.topic.owner.author, self.topic.car.author, self.topic.token
        image, campaign = bytes(32), bytes(16)
        car.write(entries.release_image(token, image, bytes(32)))
        owner.write(entries.campaign(token, campaign, [(token, image)], [Phase(WHOLE, 2, 1, 1, 0)]))
        car.write(entries.stop_campaign(token, campaign))
        owner.write(entries.resume_campaign(token, campaign))
        car.write(entries.report_campaign(token, campaign, 1, 0, succeeded=1, failed=0, manifests=bytes(32)))
        car.write(entries.withdraw_image(token, image))


# --- strangers and tenants ---


def try_without_right(crime: Crime) -> None:
    """The paper's example: a principal of one tenant at the topics of another."""
    for token in (crime.topic.token, crime.another("first"), crime.another("second")):
        crime.spy.node.publish(token, [JUNK])
        with suppress(Refused):
            crime.spy.node.fetch(Fetch(token, 0, bytes(16), 0, bytes_max=1))


def replay(crime: Crime) -> None:
    path, now = f"/v1/topics/{crime.topic.token.hex()}/advertisements", crime.stack.clock.now()
    for _ in range(12):
        exchange(crime.topic.car, "POST", path, body=b"x", nonce=b"again-----------", now=now)


def flood(crime: Crime) -> None:
    address = crime.spy.identity.node_urls[0].removeprefix("http://")
    request = (
        f"POST /v1/topics/{crime.topic.token.hex()}/parcels HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\n\r\n"
    )
    for _ in range(FLOOD):
        send_bytes(address, request.encode())


def equivocate(crime: Crime) -> None:
    liar = crime.topic.publisher("liar")
    hand = Hand(liar, "brakes")
    other = hand.fork()
    stored(hand.send(hand.seal(100))[0])
    stored(hand.send(close(hand))[0])
    hand.send(hand.seal(101, lane=other))


def move_offsets(crime: Crime) -> None:
    """The group's owner goes back, and then past what nobody read."""
    reader = crime.topic.reader
    group = group_id(reader.identity.tenant, "readers")
    key = OFFSETS(group, crime.topic.token, 0)
    stands = row_of(reader.view, key).offset
    fence = row_of(reader.view, GROUPS(group)).fence
    for old, new in ((stands, 1), (1, 3)):
        reader.author.write(entries.reset_offset(group, crime.topic.token, 0, fence=fence, old=old, new=new))
    crime.topic.owner.author.write(entries.release(crime.topic.token, 0, 5))
    crime.write(entries.retire(crime.topic.token, 0, 5, bytes(32)))  # the group stands at 3


def fall_silent(crime: Crime) -> None:
    """A publisher that drops rows and says so, and then nothing more."""
    hand = Hand(crime.topic.publisher("mute"), "brakes")
    gap = Gap(7, now_ms(crime), now_ms(crime), "full")
    entropy = hand.session.entropy.bytes(32)
    stored(hand.send(hand.seal(200), hand.lane.seal_gap(gap, now_ms=now_ms(crime), entropy=entropy))[0])


# --- the node ---


def serve_without_right(crime: Crime) -> None:
    """The subscribe guard is taken out."""
    with without("the guard of fetches"):
        path, query = f"/v1/topics/{crime.topic.token.hex()}/parcels", fetch_query(bytes(16))
        assert exchange(crime.thief, "GET", path, query).status == 200


def accuse_falsely(crime: Crime) -> None:
    """A refusal of who has the right, and an accusation with somebody's made-up evidence."""
    car, token, time = crime.topic.car.identity.principal, crime.topic.token, now_ms(crime)
    claim: dict[str, Any] = {"time_ms": time, "request": bytes(32), "reason": "no-right"}
    crime.write(entries.operation(car, OperatorRole.PUBLISHER, token, 2, **claim))
    crime.write(entries.operation(car, OperatorRole.PUBLISHER, token, 2, **claim, evidence=b"made up"))


def break_promise(crime: Crime) -> None:
    """Its signed word for one parcel, its anchor for another."""
    token, node = crime.another("promised"), crime.stack.node
    hand = Hand(crime.topic.car, "promised")
    kept = hand.seal(1)
    stored(hand.send(kept)[0])
    stored(hand.send(close(hand))[0])
    wait_until(lambda: anchored(hand.session.view, token) == 2)
    height, time = node.core.block()
    word = Promise(node.trust.instance, node.identifier, token, 0, 0, b"p" * 32, height, time).sign(node.keys.key)
    path = hand.session.node.inclusion(token, 0, 2, [0])[0]
    hand.session.author.write(entries.broken_promise(word, leaf_hash(kept.hash), path))


def keep_false_books(crime: Crime) -> None:
    """Operations and anchors that do not tell one story."""
    car = crime.topic.car.identity.principal

    def took(token: bytes, first: int, end: int, time: int) -> bytes:
        count, request = end - first, bytes(32)
        place: dict[str, Any] = {"partition": 0, "first": first, "end": end, "count": count}
        return entries.operation(car, OperatorRole.PUBLISHER, token, 2, time_ms=time, request=request, **place)

    lost, slipped, late = crime.another("lost"), crime.another("slipped"), crime.another("late")
    crime.write(took(lost, 0, 5, now_ms(crime)))
    crime.write(entries.anchor(slipped, 0, 5, bytes(32)))
    crime.write(took(late, 0, 2, now_ms(crime) - 300_000), entries.anchor(late, 0, 2, bytes(32)))


@contextmanager
def forged_log(crime: Crime) -> Iterator[None]:
    """The node shows another header of somebody's parcel than it anchored."""
    hand, carrier = Hand(crime.topic.publisher("victim"), "brakes"), crime.stack.node.carrier
    offset = stored(hand.send(hand.seal(300))[0]).promises[0].offset
    settle(crime.stack)
    honest = carrier.fetch

    def fetch(asked: Asked, wanted: Fetch) -> Fetched:
        fetched = honest(asked, wanted)
        at = offset - fetched.first
        if not 0 <= at < len(fetched.parcels):
            return fetched
        changed = bytearray(fetched.parcels[at])
        changed[200] ^= 1
        return replace(fetched, parcels=(*fetched.parcels[:at], bytes(changed), *fetched.parcels[at + 1 :]))

    carrier.fetch = fetch
    try:
        yield
    finally:
        carrier.fetch = honest


def close(hand: Hand) -> Parcel:
    """The lane's last parcel."""
    clock, entropy = hand.session.clock, hand.session.entropy
    return hand.lane.seal_close(now_ms=int(clock.now() * 1000), entropy=entropy.bytes(32))


def now_ms(crime: Crime) -> int:
    return int(crime.stack.clock.now() * 1000)
