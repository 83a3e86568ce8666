"""A notary's numbers, as the node's `/metrics` show them."""

from __future__ import annotations

from pathlib import Path

from actors import SCHEMA, await_topic, publish
from broker import broker, node_settings, straight
from stack import WRITE, Stack, wait_until

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.storage import Place
from tallystick.runtime.metrics import HELP


def test_what_was_taken_and_refused_is_counted(tmp_path: Path) -> None:
    kafka = KafkaClient(broker().operator())
    with Stack(tmp_path, node=node_settings(broker())) as stack:
        owner = stack.tenant("acme")
        token = stack.topic(owner, "brakes", SCHEMA)
        await_topic(stack, token)
        car = stack.principal("acme", "car")
        stack.grant(owner, token, car, WRITE)
        publish(straight(stack, car, kafka), "brakes", [1, 2])
        kafka.flush([kafka.produce(Place(token, 0), b"k", b"junk", [])])
        wait_until(lambda: sum(stack.node.statistics()["anchorer"]["records_refused"].values()) == 1)
        counted = stack.node.statistics()["anchorer"]
        assert counted["records_taken"] >= 2
        assert counted.keys() <= HELP["anchorer"].keys()
        assert (counted["records_waiting"], counted["bytes_waiting"], counted["partitions_behind"]) == (0, 0, 0)
    kafka.close()
