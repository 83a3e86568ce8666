"""`/metrics`, `/health/live` and `/health/ready` of a node: its statistics, rendered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tallystick.runtime.answers import Answer
from tallystick.runtime.router import Request, Router

if TYPE_CHECKING:
    from tallystick.node.node import Node

READY_AGE_S = 30.0  # an older newest block means that the ledger stands still


class _Snapshot(Collector):
    """Every number of every snapshot, as `tally_<part>_<field>`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        for part, snapshot in statistics(self._node).items():
            for name, value in snapshot.items():
                if isinstance(value, int | float):
                    yield GaugeMetricFamily(f"tally_{part}_{name}", f"{part}: {name}", value=value)


def statistics(node: Node) -> dict[str, dict[str, Any]]:
    return {
        "ledger": asdict(node.ledger.statistics()),
        "log": asdict(node.carrier.store_statistics()),
        "carrier": asdict(node.carrier.statistics()),
    }


def add_health(router: Router, node: Node) -> None:
    registry = CollectorRegistry()
    registry.register(_Snapshot(node))

    async def metrics(request: Request) -> Answer:
        return Answer(body=generate_latest(registry), content_type="text/plain; version=0.0.4")

    async def live(request: Request) -> Answer:
        return Answer(body=b"live\n", content_type="text/plain")

    async def ready(request: Request) -> Answer:
        snapshot = node.ledger.statistics()
        age_s = node.clock.now() - snapshot.time_ms / 1000
        if snapshot.published_height is None or age_s > READY_AGE_S:
            return Answer(503, b"the ledger makes no blocks, or its witnesses are away\n", "text/plain")
        return Answer(body=b"ready\n", content_type="text/plain")

    async def certificate(request: Request) -> Answer:
        """Who this is, on the root's word: for clients that know an address and a trust file."""
        return Answer(body=node.keys.certificate.encode())

    router.add("GET", "/v1/certificate", certificate)
    router.add("GET", "/metrics", metrics)
    router.add("GET", "/health/live", live)
    router.add("GET", "/health/ready", ready)
