"""One Kafka for all tests of a run: started when the first asks for it, stopped at the end."""

from __future__ import annotations

import atexit
import tempfile
from pathlib import Path

import pytest

from tallystick.errors import Unavailable
from tallystick.node.devkafka import Cluster

_started: list[Cluster] = []


def node_settings(cluster: Cluster) -> dict[str, str]:
    """What makes a node a gateway and notary of this cluster."""
    return {
        "carrier": cluster.url,
        "kafka_settings": str(cluster.operator_file),
        "kafka_client_settings": str(cluster.client_file),
    }


def broker() -> Cluster:
    """The run's one-broker cluster; the test is skipped where Kafka cannot be had."""
    if not _started:
        pytest.importorskip("confluent_kafka")
        folder = tempfile.TemporaryDirectory(prefix="tally-kafka-")
        try:
            cluster = Cluster.create(Path(folder.name)).start()
        except Unavailable as error:
            pytest.skip(f"no Kafka here: {error}")
        atexit.register(folder.cleanup)
        atexit.register(cluster.stop)
        _started.append(cluster)
    return _started[0]
