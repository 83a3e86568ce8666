"""Spark on what comes over a fabric: its host's log, of which an interest leaves out what nobody here wants."""

from __future__ import annotations

from pathlib import Path

from actors import SCHEMA
from fabric_town import fabric_of
from stack import wait_until

from tallystick.carriers.storage import Place
from tallystick.pipeline.options import Options
from tallystick.pipeline.source import BatchReader, TallyDataSource
from tallystick.policy.topic_code import TopicCode
from tallystick.record.schema import Schema


def test_an_interest_goes_to_the_fabric_and_nothing_else_comes(tmp_path: Path) -> None:
    with fabric_of(tmp_path) as town:
        car, reader = town.member("car"), town.member("reader", "s1")
        token = town.topic("brakes", car, reader)
        code = TopicCode.read(["speed:3:0..160"], Schema.parse(SCHEMA).arrow, number=5)
        town.owner.authority.labels(token, code.encode())
        home = town.beside(reader, brakes=token).identity.home
        options = {"home": str(home), "topic": "brakes", "interest": "speed > 100"}
        schema = TallyDataSource(options).schema()  # from now on the host's flows are those of the interest
        with car.publisher("brakes") as publisher:
            for number in range(6):
                publisher.send([{"vin": "V", "seq": number, "speed": 150.0 * (number % 2)}])
                assert publisher.flush(30) == 0
        log = town.node_of(reader).carrier.storage
        wait_until(lambda: log.end(Place(token, 0)) >= 3)
        reads = BatchReader(Options.parse(options), schema)
        found = [batch for share in reads.partitions() for batch in reads.read(share)]
        assert sorted(seq for batch in found for seq in batch["seq"].to_pylist()) == [1, 3, 5]
        assert log.end(Place(token, 0)) < 6
