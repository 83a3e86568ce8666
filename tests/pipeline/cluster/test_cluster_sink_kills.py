"""A stream from topic to topic on a cluster whose driver and workers are killed at random points: every row once.

A worker goes with its executor and the lanes on its disk, and comes back without them; a driver is started again on the
same checkpoint. A seed decides whom and when. One seed by default; TALLY_KILL_SEEDS=20 tries that many.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from drivers import ClusterDriver, kill_each
from lake import Lake, rows, seqs
from test_cluster_channel import homes
from test_spark_sink import delivered, stream

from tallystick.engines.spark import SparkCluster

pytestmark = pytest.mark.long

SEEDS = range(int(os.environ.get("TALLY_KILL_SEEDS", "1")))
KILLS, PARCELS = 2, 24  # one of each; a parcel of one row is a micro-batch


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_is_killed_each_row_is_written_once(
    lake: Lake, cluster: SparkCluster, tmp_path: Path, seed: int
) -> None:
    source, onto = lake.topic(f"cluster-from-{seed}"), lake.topic(f"cluster-onto-{seed}", partitions=2)
    source.publish_parcels(range(PARCELS))
    homes(lake, tmp_path)
    checkpoint = tmp_path / "checkpoint"
    options = source.options(home="reader", maxParcelsPerTrigger=1)
    sink = {"home": "writer", "topic": onto.name}
    driver = ClusterDriver(cluster, tmp_path, "stream", options, checkpoint=str(checkpoint), onto=sink)
    chance = random.Random(seed)
    killed = ["driver", "worker", *(chance.choice(("driver", "worker")) for _ in range(KILLS - 2))]
    chance.shuffle(killed)
    kill_each(killed, driver, cluster, chance, lambda: _batches(checkpoint))
    done = _batches(checkpoint)
    assert done < PARCELS, "the stream was done before it was killed"
    print(f"seed {seed}: {killed}, {done} of {PARCELS} batches when it was left")
    # The driver's lists lie beside the checkpoint, its lanes with them: whoever goes on is the same identity.
    stream(onto, source.stream(maxParcelsPerTrigger="10"), checkpoint)
    assert delivered(onto) == rows(range(PARCELS))
    assert seqs(onto.read()) == list(range(PARCELS))


def _batches(checkpoint: Path) -> int:
    """How many batches are begun."""
    return len(list(checkpoint.glob("offsets/[0-9]*")))
