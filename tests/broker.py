"""One Kafka for all tests of a run: started when the first asks for it, stopped at the end."""

from __future__ import annotations

import atexit
import tempfile
from pathlib import Path

import pytest

from engines.cache import Missing
from engines.kafka import Cluster

_started: list[Cluster] = []


def node_settings(cluster: Cluster) -> dict[str, str]:
    """What makes a node a gateway and notary of this cluster."""
    operator, client = cluster.write_settings()
    return {"carrier": cluster.url, "kafka_settings": str(operator), "kafka_client_settings": str(client)}


def broker() -> Cluster:
    """The run's one-broker cluster; the test is skipped where Kafka cannot be had."""
    if not _started:
        pytest.importorskip("confluent_kafka")
        folder = tempfile.TemporaryDirectory(prefix="tally-kafka-")
        try:
            cluster = Cluster(Path(folder.name)).start()
        except Missing as error:
            pytest.skip(f"no Kafka here: {error}")
        atexit.register(folder.cleanup)
        atexit.register(cluster.stop)
        _started.append(cluster)
    return _started[0]
