"""`tally dev kafka status`, the line of `tally status` about Kafka, and reading by time what a notary anchored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from actors import SCHEMA, publish, read_rows
from broker import broker, node_settings
from commands import done, refused, tally
from stack import READ, WRITE, Stack

from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.node.instance import write_address


@pytest.mark.kafka
def test_the_brokers_that_run_are_listed_and_the_node_s_kafka_is_asked(tmp_path: Path) -> None:
    cluster = broker()
    listed = done("dev", "kafka", "status", cluster.folder, "--json").json
    assert [(one["process"], f"kafka://{one['address']}") for one in listed] == [(cluster.brokers[0].pid, cluster.url)]
    assert "its ports were chosen" in refused(2, "dev", "kafka", "up", cluster.folder, "--port", 9092)[0]
    assert refused(2, "dev", "kafka", "status", tmp_path)[1] == f"hint: tally dev kafka up {tmp_path}"
    with Stack(tmp_path, node=node_settings(cluster)) as stack:
        write_address(stack.folders.node, stack.node.url, stack.node.keys.certificate)
        write_address(stack.folders.authority, stack.authority.url, stack.authority.authority.certificate)
        assert done("status", tmp_path).out.splitlines()[-1].endswith(": 1 broker")
        nowhere = {"carrier": "kafka://127.0.0.1:9", "kafka_settings": str(_no_settings(tmp_path))}
        write_address(stack.folders.node, stack.node.url, stack.node.keys.certificate, nowhere)
        said = tally("status", tmp_path)
        assert (said.code, said.out.splitlines()[-1].split()[:2]) == (4, ["away", "kafka"])


@pytest.mark.kafka
def test_a_time_leads_to_what_a_notary_anchored_then(tmp_path: Path) -> None:
    with Stack(tmp_path, node=node_settings(broker())) as stack:
        owner, car, reader = stack.tenant("acme"), stack.principal("acme", "car"), stack.principal("acme", "reader")
        token = stack.topic(owner, "brakes", SCHEMA)
        stack.grant(owner, token, car, WRITE)
        stack.grant(owner, token, reader, READ)
        publish(car, "brakes", [0, 1])
        anchor = reader.view.row(ANCHORS(token, 0))
        assert anchor is not None
        publish(car, "brakes", [2, 3])
        after = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=anchor.time_ms + 1)
        with reader.subscriber("brakes", start=after) as subscriber:
            assert read_rows(subscriber, 2) == [2, 3]


def _no_settings(folder: Path) -> Path:
    path = folder / "operator.json"
    path.write_text("{}")
    return path
