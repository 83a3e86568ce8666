"""`/metrics`, `/health/live` and `/health/ready` of a node: its statistics, rendered."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tallystick.runtime.http1 import Answer
from tallystick.runtime.router import Request, Router

if TYPE_CHECKING:
    from tallystick.node.node import Node

READY_AGE_S = 30.0  # an older newest block means that the ledger stands still


def statistics(node: Node) -> dict[str, dict[str, Any]]:
    return {
        "ledger": asdict(node.ledger.statistics()),
        "log": asdict(node.carrier.storage.statistics()),
        "carrier": asdict(node.carrier.statistics()),
        "anchorer": dict(node.core.anchorer.statistics()),
    }


def add_health(router: Router, node: Node) -> None:
    async def metrics(request: Request) -> Answer:
        from tallystick.runtime.metrics import CONTENT_TYPE, render

        return Answer(body=render(statistics(node)), content_type=CONTENT_TYPE)

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
