"""Spark for trials and tests: a standalone cluster of a master and some workers, on loopback, in one folder.

It is what the cluster guide asks for, in small: one secret, drawn here, that only a file and the environment of
executors hold; every connection authenticated and encrypted (pipeline/session.py says how and why); local blocks
encrypted. A driver joins with `SPARK_CONF_DIR=<folder>/conf`, where master, secret and settings stand in
`spark-defaults.conf`, which its owner alone may read.

The programs are those that PySpark brings.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from importlib.util import find_spec
from pathlib import Path

from tallystick.errors import Misuse, Unavailable
from tallystick.node import processes
from tallystick.node.processes import Daemon
from tallystick.pipeline.session import SECURE
from tallystick.runtime.sources import Clock, SystemClock, SystemEntropy

START_S = 600.0  # three JVMs at once, on a machine that may have other work
HEAP_MB = 256  # of master and workers themselves; what executors take is theirs to share
CORES, MEMORY_MB = 1, 1024  # what a worker lends to executors
_FILE, _SETTINGS = "spark.json", "spark-defaults.conf"
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"

_SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # they start in half the time, and have little to do

EXECUTORS = {  # one on each worker, and room beside it for Python
    "spark.executor.cores": str(CORES),
    "spark.executor.memory": f"{MEMORY_MB // 2}m",
    "spark.driver.host": "127.0.0.1",
}


class SparkDaemon(Daemon):
    """The master, or a worker. It outlives the process that starts it; `kill` is kill -9."""

    def __init__(self, folder: Path, command: list[str], environment: dict[str, str], clock: Clock) -> None:
        """The last word of the command is its own alone."""
        super().__init__(folder, command[-1], clock)
        self._command, self._environment = command, environment

    @property
    def executors(self) -> list[int]:
        """The processes that a worker has started for drivers."""
        children = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [int(child) for one in children for child in one.read_text().split()]

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        processes.spawn(self.folder, self._command, processes.LOG, {**os.environ, **self._environment})

    def kill(self) -> None:
        """End it and its executors, as if the machine had gone."""
        for pid in self.executors:
            os.kill(pid, signal.SIGKILL)
        super().kill()


class SparkCluster:
    """A master and its workers, in one folder.

    with SparkCluster.create(folder, workers=2) as cluster:
        os.environ["SPARK_CONF_DIR"] = str(cluster.conf)
    """

    def __init__(self, folder: Path, ports: list[int], clock: Clock) -> None:
        self.folder, self._clock = folder.resolve(), clock
        self.url, self._page = f"spark://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}/json/"
        self.master = self._daemon("master", _MASTER, ["--port", str(ports[0]), "--webui-port", str(ports[1])])
        size = ["--cores", str(CORES), "--memory", f"{MEMORY_MB}m"]
        self.workers = [
            self._daemon(f"worker-{number}", _WORKER, [self.url, "--webui-port", str(port), *size])
            for number, port in enumerate(ports[2:], 1)
        ]

    def _daemon(self, name: str, main: str, options: list[str]) -> SparkDaemon:
        home, folder = _spark_home(), self.folder / name
        place = ["--work-dir", str(folder)] if main == _WORKER else ["--properties-file", str(self.conf / _SETTINGS)]
        command = [str(home / "bin" / "spark-class"), main, *options, "--host", "127.0.0.1", *place]
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self.conf),
            "SPARK_LOCAL_IP": "127.0.0.1",  # for its page too
            "SPARK_DAEMON_MEMORY": f"{HEAP_MB}m",
            "SPARK_DAEMON_JAVA_OPTS": _SMALL_JVM,
            "SPARK_LOCAL_DIRS": str(folder / "local"),
        }
        return SparkDaemon(folder, command, environment, self._clock)

    @classmethod
    def create(
        cls, folder: Path, workers: int = 2, settings: dict[str, str] | None = None, *, port: int = 0
    ) -> SparkCluster:
        """A new cluster; `settings` are Spark's, for daemons and drivers alike, and those above otherwise. The master
        listens at `port`, and the pages of master and workers follow; 0: any."""
        if (folder / _FILE).exists():
            raise Misuse(f"{folder}: a Spark cluster is here already")
        ports = processes.ports_from(port, 2 + workers)
        cluster = cls(folder, ports, SystemClock())
        cluster.conf.mkdir(parents=True, exist_ok=True)
        secret = {"spark.authenticate.secret": SystemEntropy().bytes(32).hex()}
        given = {"spark.master": cluster.url, **EXECUTORS, **({**SECURE, **secret} if settings is None else settings)}
        with open(os.open(cluster.conf / _SETTINGS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.writelines(f"{name} {value}\n" for name, value in given.items())
        (cluster.folder / _FILE).write_text(json.dumps({"ports": ports}) + "\n")
        return cluster

    @classmethod
    def open(cls, folder: Path) -> SparkCluster:
        """The cluster in `folder`, running or not."""
        ports = processes.read_ports(folder / _FILE, "Spark cluster", f"tally dev spark up {folder}")
        return cls(folder, ports, SystemClock())

    @property
    def conf(self) -> Path:
        """What a driver names as SPARK_CONF_DIR."""
        return self.folder / "conf"

    def start(self) -> SparkCluster:
        """Start what does not run, and wait until the master counts every worker."""
        daemons = (self.master, *self.workers)
        for one in daemons:
            if one.pid is None:
                one.start()
        deadline = self._clock.monotonic() + START_S
        while self.alive() < len(self.workers):
            for one in daemons:
                if one.pid is None:
                    raise Unavailable(f"{one.folder.name} ended:\n{one.output()}")
            if self._clock.monotonic() > deadline:
                raise Unavailable(f"Spark is not ready after {START_S:.0f} s:\n{self.master.output()}")
            self._clock.pause(0.1)
        return self

    def alive(self) -> int:
        """How many workers the master counts."""
        try:
            with urllib.request.urlopen(self._page, timeout=2) as answer:  # noqa: S310, our own page
                return sum(worker["state"] == "ALIVE" for worker in json.load(answer)["workers"])
        except (OSError, ValueError):
            return 0

    def stop(self) -> int:
        """End what runs. Returns how many did run."""
        return sum(one.stop() for one in (*self.workers, self.master))

    def __enter__(self) -> SparkCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _spark_home() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise Misuse("PySpark is not installed", hint="pip install 'tallystick[spark]'")
    return Path(found.origin).parent
