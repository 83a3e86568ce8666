"""Brokers that we cannot work with: away, too old, or not those that they should be. Each is told with its remedy."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands import done
from stack import wait_until
from strange_broker import KAFKA_0_10, NO_KAFKA, strange_broker

from tallystick.carriers.kafka.administration import GROUPS_AT_ONCE, Spot
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.storage import Place
from tallystick.engines.kafka import Certificates
from tallystick.errors import Misuse, TallystickError, Unavailable

PLACE = Place(bytes(16), 0)


def told(act: Callable[[], object]) -> TallystickError:
    with pytest.raises(TallystickError) as error:
        act()
    return error.value


def test_an_unreachable_broker_is_named_with_the_remedy() -> None:
    client = KafkaClient({"bootstrap.servers": "127.0.0.1:1"})
    error = told(lambda: client.broker_count(timeout_s=1))
    assert isinstance(error, Unavailable)
    assert "start the brokers, or correct bootstrap.servers" in (error.hint or "")
    assert error.retry_after_s
    error = told(lambda: client.flush([client.produce(PLACE, b"k", b"v", [])], 0.5))
    assert "records were not stored in time" in str(error)
    assert "bring the missing brokers back" in (error.hint or "")


def test_whoever_hangs_up_is_asked_again_less_and_less_often() -> None:
    with strange_broker(NO_KAFKA) as server:
        client = KafkaClient({"bootstrap.servers": server.address})
        assert isinstance(told(lambda: client.broker_count(timeout_s=2)), Unavailable)
        assert 2 <= server.conversations <= 15  # the library left to itself asks 15 times a second


@pytest.mark.long
def test_tally_up_waits_for_brokers_that_are_away_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLY_PASSPHRASE", "of this test")
    done("init", tmp_path / "fleet", "--port", "0", "--authority-port", "0")
    with strange_broker(NO_KAFKA) as server:
        command = [sys.executable, "-m", "tallystick.cli", "up", str(tmp_path / "fleet")]
        command += ["--carrier", f"kafka://{server.address}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
            assert up.stderr is not None
            line, asked = up.stderr.readline(), server.conversations
            wait_until(lambda: server.conversations > asked + 8 or up.poll() is not None)  # it goes on looking
            up.send_signal(signal.SIGINT)
            out, err = up.communicate(timeout=120)
    assert "the node waits until a broker answers, and then goes on: start the brokers" in line
    assert (up.returncode, out, err) == (0, "", "")


def test_a_broker_too_old_is_told_with_the_version_that_is_needed() -> None:
    with strange_broker(KAFKA_0_10) as server:
        client = KafkaClient({"bootstrap.servers": server.address})
        assert client.broker_count() == 1
        for act in (
            lambda: client.make_shared_topic("tallystick-shared"),  # the first thing that a node asks for
            lambda: client.make_user("car", b"secret"),
            lambda: client.restore_settings(bytes(16)),
        ):
            error = told(act)
            assert isinstance(error, Misuse)
            assert "not supported by broker" in str(error)
            assert error.hint == "Kafka 4.0 or newer is needed"
        client.close()


def test_a_producer_that_a_broker_ended_for_good_is_replaced() -> None:
    with strange_broker(KAFKA_0_10) as server:
        client = KafkaClient({"bootstrap.servers": server.address})
        for _ in range(2):  # the second time too: a broker may have been upgraded, or a right given
            error = told(lambda: client.flush([client.produce(PLACE, b"k", b"v", [])]))
            assert isinstance(error, Misuse)
            assert "Idempotent producer not supported" in str(error)
            assert error.hint == "Kafka 4.0 or newer is needed"
        client.close()


# The same question, asked as an administrator asks.
AS_AN_ADMINISTRATOR = """
import resource, sys
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
admin = AdminClient({"bootstrap.servers": sys.argv[1]})
admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("g")])["g"].result(20)
"""


def test_a_broker_that_leaves_a_group_to_another_ends_nobody() -> None:
    with strange_broker(KAFKA_0_10) as server:
        client = KafkaClient({"bootstrap.servers": server.address})
        error = told(lambda: client.group_offsets([Spot(b"g" * 16, PLACE)], timeout_s=2))
        assert isinstance(error, Unavailable)
        assert "Not coordinator" in str(error)
        for number in range(GROUPS_AT_ONCE + 2):
            told(partial(client.group_offsets, [Spot(bytes([number] * 16), PLACE)], timeout_s=0.05))
        assert len(client._named) == GROUPS_AT_ONCE  # and their threads
        client.close()
        asked = subprocess.run([sys.executable, "-c", AS_AN_ADMINISTRATOR, server.address], check=False)
    assert asked.returncode == -signal.SIGSEGV, "the library is mended: an administrator may ask it for groups again"


def test_a_broker_that_is_slow_with_every_group_holds_nobody_up_for_each_of_them() -> None:
    """Whoever anchors waits for it meanwhile."""
    spots = [Spot(bytes([number] * 16), PLACE) for number in range(3)]
    with strange_broker(KAFKA_0_10) as server:
        client = KafkaClient({"bootstrap.servers": server.address})
        server.group_error, server.group_pause_s = 0, 1.0
        assert client.group_offsets(spots, timeout_s=60) == {}
        assert isinstance(told(lambda: client.group_offsets(spots, timeout_s=1.5)), Unavailable)
        client.close()


@pytest.mark.parametrize("whose", ["broker", "client"])
def test_a_certificate_that_is_not_believed_is_told_as_such_and_not_as_a_broker_that_is_down(
    whose: str, tmp_path: Path
) -> None:
    ours, theirs = Certificates(tmp_path / "ours"), Certificates(tmp_path / "theirs")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain((ours if whose == "client" else theirs).issue("broker"))
    settings = {"security.protocol": "ssl", "ssl.ca.location": str(ours.authority)}
    if whose == "client":
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(ours.authority)
    with strange_broker(KAFKA_0_10, tls) as server:
        client = KafkaClient({**settings, "bootstrap.servers": server.address})
        error = told(lambda: client.broker_count(timeout_s=2))
        assert isinstance(error, Misuse), error
        assert "certificate" in str(error)
        assert error.hint == "check ssl.ca.location and the client's certificate"
