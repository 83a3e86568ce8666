"""A Kafka that is away, or does not know us: errors that say what to do, and rows that wait until it is back."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from actors import SCHEMA, await_topic, read_rows, rows
from broker import anchorer_of, broker, node_settings, straight
from commands import done
from stack import READ, WRITE, Stack, wait_until

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.shared import SharedTail
from tallystick.carriers.storage import Place
from tallystick.client.reader import Finding
from tallystick.client.session import Session
from tallystick.errors import Misuse, Unavailable

PATIENCE_S = 90.0  # until a broker that was killed is up again, on a busy machine


def stranger(password: str = "wrong") -> KafkaClient:
    """Somebody whom Kafka does not know."""
    cluster = broker()
    return KafkaClient(
        {
            "bootstrap.servers": cluster.url.removeprefix("kafka://"),
            "ssl.ca.location": cluster.operator()["ssl.ca.location"],
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "stranger",
            "sasl.password": password,
        }
    )


@pytest.mark.long
def test_wrong_credentials_are_told_as_such_and_not_as_a_broker_that_is_down() -> None:
    client = stranger()
    place = Place(bytes(16), 0)
    for act in (
        lambda: client.broker_count(timeout_s=3),
        lambda: client.read(place, 0, 1, 1, timeout_s=3),
        lambda: client.flush([client.produce(place, b"k", b"v", [])], 3),
    ):
        with pytest.raises(Misuse) as error:
            act()
        assert "authentication" in str(error.value).lower()
        assert error.value.hint is not None
        assert "password" in error.value.hint
        assert "wrong" not in str(error.value)
    client.close()


def publishes(session: Session, row: int) -> bool:
    """Whether the row was stored; not where the node cannot take a permit now."""
    try:
        with session.publisher("brakes", retry_s=0.1) as publisher:
            publisher.send(rows(row))
            return publisher.flush(PATIENCE_S) == 0
    except Unavailable:
        return False


@pytest.mark.long
def test_rows_wait_in_the_spool_while_the_brokers_are_away(tmp_path: Path) -> None:
    cluster = broker()
    kafka = KafkaClient(cluster.operator())
    with Stack(tmp_path, node=node_settings(cluster)) as stack:
        owner = stack.tenant("acme")
        token = stack.topic(owner, "brakes", SCHEMA)
        await_topic(stack, token)
        people = [stack.principal("acme", name) for name in ("behind", "itself", "reader")]
        for person, operations in zip(people, (WRITE, WRITE, READ), strict=True):
            stack.grant(owner, token, person, operations)
        behind, reader, itself = people[0], people[2], straight(stack, people[1], kafka)
        with behind.publisher("brakes", retry_s=0.1) as one, itself.publisher("brakes", retry_s=0.1) as other:
            for first, publisher in enumerate((one, other)):
                publisher.send(rows(first))
                assert publisher.flush(PATIENCE_S) == 0
            cluster.brokers[0].kill()
            for first, publisher in enumerate((one, other), 2):
                publisher.send(rows(first))
            assert one.flush(1) > 0
            assert other.flush(1) > 0
            cluster.start()
            assert one.flush(PATIENCE_S) == 0
            assert other.flush(PATIENCE_S) == 0
        # As if it had just gone again: a permit that is shown meanwhile is refused, and keeps nobody from going on.
        anchorer_of(stack)._sealed.away = Unavailable("kafka is away")
        latecomer = stack.principal("acme", "latecomer")
        stack.grant(owner, token, latecomer, WRITE)
        wait_until(lambda: publishes(latecomer, 4), PATIENCE_S)
        findings: list[Finding] = []
        with reader.subscriber("brakes", on_finding=findings.append) as subscriber:
            received: list[int] = []
            wait_until(lambda: received.extend(read_rows(subscriber, 1)) or len(received) >= 5, PATIENCE_S)
        assert (sorted(received), findings) == ([0, 1, 2, 3, 4], [])
    kafka.close()


@pytest.mark.long
def test_a_node_that_starts_before_its_brokers_serves_when_they_are_there(tmp_path: Path) -> None:
    cluster = broker()
    done("init", tmp_path / "fleet", "--port", "0")
    command = [sys.executable, "-m", "tallystick.cli", "up", str(tmp_path / "fleet"), "--node-only", "--json"]
    command += ["--carrier", cluster.carrier, "--kafka-settings", str(cluster.operator_file)]
    cluster.brokers[0].kill()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        assert up.stderr is not None
        try:
            assert "waits until a broker answers" in up.stderr.readline()
            cluster.start()
            assert json.loads(up.stdout.readline())["process"] == "node"
        finally:
            cluster.start()
            up.terminate()
        assert up.wait(PATIENCE_S) == 0


def test_a_shared_topic_that_has_no_leader_yet_is_waited_for() -> None:
    """For a moment after a node made it; here for longer, since somebody else makes it."""
    client, name = KafkaClient(broker().operator()), f"shared-{secrets.token_hex(4)}"
    late = threading.Timer(1.0, lambda: client.make_shared_topic(name))
    late.start()
    tail = SharedTail(client, name)
    assert tail.end() == 0
    late.join()
    tail.close()
    client.close()
