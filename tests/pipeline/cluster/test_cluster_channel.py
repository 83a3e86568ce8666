"""A real cluster: what goes to executors is heard by nobody on the line, found on no disk and in no list of processes,
and a worker that dies costs nothing; reading, writing, and the jobs.

The attack that this stops succeeds where the channel is open: somebody on the line between driver and executors has the
topic's key and the seeds that sign, the writer's too, and reads the rows.
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
from test_spark_sink import delivered_seqs

from tallystick.engines.spark import SparkCluster
from tallystick.identity.folder import read_keys
from tallystick.parcel.prove import verify_proof
from tallystick.trust.permit import Operation

pytestmark = pytest.mark.long  # five JVMs at once

ROWS = 12_000  # more than a megabyte of them, so that both workers get a share
OPEN = {"spark.shuffle.compress": "false", "spark.broadcast.compress": "false"}


def sensitive(topic: Topic, count: int = ROWS) -> dict[str, bytes]:
    """Publish rows; what nobody but driver and executors may see of it."""
    chance = random.Random(topic.name)
    vins = [chance.randbytes(64).hex() for _ in range(count)]
    vins[0] = "".join(chance.sample(string.ascii_uppercase + string.punctuation, 40))  # compression leaves it whole
    topic.publish([{"vin": vin, "seq": number, "speed": 0.5} for number, vin in enumerate(vins)], batch_rows_max=2_000)
    grant = topic.lake.reader.authority.permit(Operation.SUBSCRIBE, topic.name, 1)
    homes = {"signing seed": topic.lake.home, "writer's seed": topic.lake.car.identity.home}
    seeds = {name: read_keys(home).signing_seed for name, home in homes.items()}
    return {"topic key": grant.private_keys[0][1], **seeds, "a row": vins[0].encode()}


def homes(lake: Lake, folder: Path) -> None:
    """The only copies of reader and writer that a driver has, which runs in this folder."""
    shutil.copytree(lake.home, folder / "reader")
    shutil.copytree(lake.car.identity.home, folder / "writer")


def through(cluster: SparkCluster, topic: Topic, onto: Topic, folder: Path, **options: Any) -> ClusterDriver:
    """A driver that reads a topic and writes it onto another."""
    homes(topic.lake, folder)
    sink = {"home": "writer", "topic": onto.name, **options}
    return ClusterDriver(cluster, folder, "through", topic.options(home="reader", **options), onto=sink, shuffled=4)


def spark_secret(cluster: SparkCluster) -> bytes:
    """What authenticates executors, from the one file that holds it."""
    path = cluster.conf / "spark-defaults.conf"
    assert path.stat().st_mode & 0o077 == 0
    return next(line.split()[1] for line in path.read_bytes().splitlines() if b"authenticate.secret" in line)


def on_workers(cluster: SparkCluster) -> list[int]:
    return [pid for one in cluster.workers for pid in descendants(one.pid or 0)]


def test_nobody_hears_a_key_and_a_lost_worker_costs_nothing(lake: Lake, cluster: SparkCluster, tmp_path: Path) -> None:
    topic, onto = lake.topic("clustered"), lake.topic("clustered-onto", partitions=2)
    secrets = sensitive(topic)
    driver = through(cluster, topic, onto, tmp_path)
    with tapped(driver) as taps:
        driver.wait("started", 2)  # a task on each worker has opened rows and waits, and so does what seals them
        openers = [pid for pid in on_workers(cluster) if b"tallystick.pipeline.daemon" in read(pid, "cmdline")]
        holders = set.union(*(found(secrets, memory_of(pid)) for pid in openers))
        assert holders >= {"topic key", "writer's seed"}, "the search finds them where they are"
        processes = [driver.pid, *descendants(driver.pid), *on_workers(cluster)]
        words, shown = (b"".join(read(pid, name) for pid in processes) for name in ("cmdline", "environ"))
        assert list(cluster.folder.rglob("shuffle_*.data")), "rows lie on the workers' disks"
        disks = files_under(cluster.folder)
        cluster.workers[0].kill()
        (tmp_path / "go").touch()
        result = driver.wait("rows")[0]
        assert json.loads(result.read_text()) == list(range(ROWS))
        words += driver.wait("shown")[0].read_bytes()
        disks += files_under(cluster.folder)
        heard = b"".join(tap.heard for tap in taps)
    assert len(heard) > 100_000, "the executors came by"
    assert found(secrets, heard) == set()
    assert b"spark.network.crypto.cipher" in words
    assert found(secrets, words + shown) == set()
    assert spark_secret(cluster) not in words + heard
    assert b"TLY" in disks, "lanes lie on the workers' disks"
    assert found(secrets, disks) == set()
    assert found(secrets, files_under(tmp_path / "events")) == set()
    assert delivered_seqs(onto) == list(range(ROWS))
    cluster.start()  # whoever comes next finds two


def test_jobs_run_with_what_the_driver_lends(lake: Lake, cluster: SparkCluster, tmp_path: Path) -> None:
    topic = lake.topic("clustered-jobs", partitions=2)
    secrets = sensitive(topic, 50)
    homes(lake, tmp_path)
    driver = ClusterDriver(cluster, tmp_path, "jobs", topic.options(home="reader"))
    with tapped(driver) as taps:
        ingested, proved, audited = json.loads(driver.wait("rows")[0].read_text())
        shown = driver.wait("shown")[0].read_bytes()
        heard = b"".join(tap.heard for tap in taps)
    assert (ingested["rows"], proved["proved"], proved["failed"], audited["parcels"] > 0) == (50, 50, 0, True)
    proofs = [verify_proof(one.read_bytes(), lake.stack.node.trust) for one in (tmp_path / "proofs").glob("*.proof")]
    assert sorted(one.row["seq"] for one in proofs) == list(range(50))
    assert len(heard) > 100_000, "the executors came by"
    keys = {name: secret for name, secret in secrets.items() if name != "a row"}  # the tables hold rows
    assert found(secrets, heard + shown + files_under(tmp_path / "events")) == set()
    assert found(keys, files_under(cluster.folder) + files_under(tmp_path / "tables")) == set()


def test_on_an_open_channel_the_keys_are_anybodys(lake: Lake, tmp_path: Path) -> None:
    topic, onto = lake.topic("overheard"), lake.topic("overheard-onto")
    secrets = sensitive(topic)
    with SparkCluster.create(tmp_path / "cluster", workers=1, settings=OPEN) as cluster:
        homes(lake, tmp_path / "refused")
        sink = {"home": "writer", "topic": onto.name}
        refused = ClusterDriver(cluster, tmp_path / "refused", "refused", topic.options(home="reader"), onto=sink)
        with tapped(refused) as taps:
            errors = json.loads(refused.wait("error")[0].read_text())
            assert len(errors) == 4  # reading, writing, writing a stream, a job
            for error in errors:
                assert "over a channel that is not encrypted and authenticated: spark.authenticate=true" in error
            assert found(secrets, b"".join(tap.heard for tap in taps)) == set()
        vouched = through(cluster, topic, onto, tmp_path / "vouched", channel="trusted")
        with tapped(vouched) as taps:
            vouched.wait("started")
            disks = files_under(cluster.folder)
            (tmp_path / "vouched" / "go").touch()
            vouched.wait("rows")
            heard = found(secrets, b"".join(tap.heard for tap in taps))
            assert heard >= {"topic key", "signing seed", "writer's seed"}
        assert found(secrets, disks) <= {"a row"}, "keys lie on no disk even so"
