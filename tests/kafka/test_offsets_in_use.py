"""Copies of a group's offsets, written into Kafka while somebody reads there in the group's name."""

from __future__ import annotations

import pytest
from broker import broker
from stack import wait_until

from tallystick.carriers.kafka.administration import Spot
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.storage import Place
from tallystick.errors import Unavailable

SPOT = Spot(b"in use".ljust(16, b"."), Place(b"in use".ljust(16, b"-"), 0))


def test_offsets_of_a_group_in_use_are_refused_and_its_member_stays() -> None:
    operator = broker().operator()
    client = KafkaClient(operator)
    client.make_topic(SPOT.place.token, 1, 1)
    assert client.group_offsets([SPOT]) == {}
    client.set_group_offsets({SPOT: 3})
    from confluent_kafka import Consumer

    member = Consumer({**operator, "group.id": SPOT.group.hex(), "enable.auto.commit": "false"})
    member.subscribe([SPOT.place.token.hex()])
    wait_until(lambda: member.poll(0.1) is not None or bool(member.assignment()))
    with pytest.raises(Unavailable, match="cannot write the offsets"):
        client.set_group_offsets({SPOT: 9})
    assert client.group_offsets([SPOT]) == {SPOT: 3}
    assert member.assignment()
    member.close()
    client.set_group_offsets({SPOT: 7})
    assert client.group_offsets([SPOT]) == {SPOT: 7}
    client.close()
