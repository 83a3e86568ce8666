"""Statistics as Prometheus reads them. Imported by whoever is asked for them first: many processes never are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4"


def render(parts: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Every number of every part, as `tally_<part>_<name>`."""
    registry = CollectorRegistry()
    for part, snapshot in parts.items():
        for name, value in snapshot.items():
            if isinstance(value, int | float):
                Gauge(f"tally_{part}_{name}", f"{part}: {name}", registry=registry).set(value)
    return generate_latest(registry)
