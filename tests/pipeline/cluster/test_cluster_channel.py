"""A real cluster: what goes to executors is heard by nobody on the line, found on no disk and in no list of processes,
and a worker that dies costs nothing.

The attack that this stops succeeds where the channel is open: somebody on the line between driver and executors has the
topic's key, and reads the rows too.
"""

from __future__ import annotations

import json
import random
import shutil
import string
from pathlib import Path
from typing import Any

import pytest
from drivers import ClusterDriver, tapped
from lake import Lake, Topic
from searches import descendants, files_under, found, memory_of, read

from tallystick.client.identity import read_keys
from tallystick.node.devspark import Cluster
from tallystick.trust.permit import Operation

pytestmark = pytest.mark.soak  # five JVMs at once

ROWS = 12_000  # more than a megabyte of them, so that both workers get a share
OPEN = {"spark.shuffle.compress": "false"}


def sensitive(topic: Topic) -> dict[str, bytes]:
    """Publish rows; what nobody but driver and executors may see of it."""
    chance = random.Random(topic.name)
    vins = [chance.randbytes(64).hex() for _ in range(ROWS)]
    vins[0] = "".join(chance.sample(string.ascii_uppercase + string.punctuation, 40))  # compression leaves it whole
    topic.publish([{"vin": vin, "seq": number, "speed": 0.5} for number, vin in enumerate(vins)], batch_rows_max=2_000)
    grant = topic.lake.reader.authority.permit(Operation.SUBSCRIBE, topic.name, 1)
    seed = read_keys(topic.lake.home).signing_seed
    return {"topic key": grant.private_keys[0][1], "signing seed": seed, "a row": vins[0].encode()}


def reading(cluster: Cluster, topic: Topic, folder: Path, **options: Any) -> ClusterDriver:
    """A driver with the identity's only copy."""
    shutil.copytree(topic.lake.home, folder / "home")
    return ClusterDriver(cluster, folder, topic.options(home=folder / "home", **options), shuffled=4)


def spark_secret(cluster: Cluster) -> bytes:
    """What authenticates executors, from the one file that holds it."""
    path = cluster.conf / "spark-defaults.conf"
    assert path.stat().st_mode & 0o077 == 0
    return next(line.split()[1] for line in path.read_bytes().splitlines() if b"authenticate.secret" in line)


def on_workers(cluster: Cluster) -> list[int]:
    return [pid for one in cluster.workers for pid in descendants(one.pid or 0)]


def test_nobody_hears_a_key_and_a_lost_worker_costs_nothing(lake: Lake, cluster: Cluster, tmp_path: Path) -> None:
    topic = lake.topic("clustered")
    secrets = sensitive(topic)
    driver = reading(cluster, topic, tmp_path)
    with tapped(driver) as taps:
        driver.wait("started", 2)  # a task on each worker has opened rows and waits
        openers = [pid for pid in on_workers(cluster) if b"tallystick.pipeline.daemon" in read(pid, "cmdline")]
        holders = set.union(*(found(secrets, memory_of(pid)) for pid in openers))
        assert "topic key" in holders, "the search finds it where it is"
        processes = [driver.pid, *descendants(driver.pid), *on_workers(cluster)]
        words, shown = (b"".join(read(pid, name) for pid in processes) for name in ("cmdline", "environ"))
        assert list(cluster.folder.rglob("shuffle_*.data")), "rows lie on the workers' disks"
        disks = files_under(cluster.folder)
        (tmp_path / "home").rename(tmp_path / "away")  # what is read again is read with what was lent
        cluster.workers[0].kill()
        (tmp_path / "go").touch()
        result = driver.wait("rows")[0]
        assert json.loads(result.read_text()) == list(range(ROWS))
        words += driver.wait("shown")[0].read_bytes()
        heard = b"".join(tap.heard for tap in taps)
    assert len(heard) > 100_000, "the executors came by"
    assert found(secrets, heard) == set()
    assert b"spark.network.crypto.cipher" in words
    assert found(secrets, words + shown) == set()
    assert spark_secret(cluster) not in words + heard
    assert found(secrets, disks + files_under(cluster.folder)) == set()
    assert found(secrets, files_under(tmp_path / "events")) == set()
    cluster.start()  # whoever comes next finds two


def test_on_an_open_channel_the_key_is_anybodys(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("overheard")
    secrets = sensitive(topic)
    with Cluster.create(tmp_path / "cluster", workers=1, settings=OPEN) as cluster:
        refused = reading(cluster, topic, tmp_path / "refused")
        with tapped(refused) as taps:
            error = refused.wait("error")[0].read_text()
            assert "over a channel that is not encrypted and authenticated: spark.authenticate=true" in error
            assert found(secrets, b"".join(tap.heard for tap in taps)) == set()
        vouched = reading(cluster, topic, tmp_path / "vouched", channel="trusted")
        with tapped(vouched) as taps:
            vouched.wait("started")
            disks = files_under(cluster.folder)
            (tmp_path / "vouched" / "go").touch()
            vouched.wait("rows")
            assert found(secrets, b"".join(tap.heard for tap in taps)) >= {"topic key", "signing seed"}
        assert found(secrets, disks) <= {"a row"}, "keys lie on no disk even so"
