"""What the dial costs: content that subscribers got, over the bytes that all nodes of the mesh put on the wire for it.

A mesh of twelve nodes, one topic with three subscribers, four notifications a second of 600 bytes each, the beats of
the default: four cells a second on each link. What is sent is counted at the sockets, for everything: beats, control,
acknowledgements, covers. At a constant rate it does not depend on what is said, so the more is said, the better it
gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import harness
from mesh_nodes import PARCEL_BYTES, MeshTown, Shape

from tallystick.carriers.mesh.link_layer import Dial

EACH_S = 0.25  # from one notification to the next


@dataclass(frozen=True)
class Time:
    rounds: int = 3
    seconds: float = 10.0


QUICK = Time(1, 2.0)


async def measure(dial: Dial, span: Time) -> list[tuple[int, int]]:
    """Bytes sent and bytes delivered, in each round."""
    shape = Shape(dial=dial)
    town, found = MeshTown(shape), []
    async with town.running():
        for _ in range(span.rounds):
            sent, got, published = town.bytes_sent(), sum(town.delivered.values()), 0
            while published * EACH_S < span.seconds:
                town.publish(0)
                published += 1
                await asyncio.sleep(EACH_S)
            found.append((town.bytes_sent() - sent, (sum(town.delivered.values()) - got) * PARCEL_BYTES))
    return found


def rows(span: Time) -> Iterator[harness.Row]:
    for dial in Dial:
        sent, delivered = zip(*asyncio.run(measure(dial, span)), strict=True)
        yield asdict(harness.compare(f"bytes_{dial.name.lower()}", sent, delivered, "bytes sent"))
