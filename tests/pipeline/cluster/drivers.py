"""Drivers in processes of their own, on a cluster: started, watched, killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stack import python_path, wait_until
from tap import DRIVER, TAPPED, Tap

from tallystick.engines.spark import SparkCluster
from tallystick.node.processes import free_ports

HERE = Path(__file__).parent
WAIT_S = 1_200  # the machine may have other work
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # JVMs that live for seconds
SETTINGS = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
}


class ClusterDriver:
    """`cluster_child.py` at work; `folder` is where it runs and tells."""

    def __init__(self, cluster: SparkCluster, folder: Path, work: str, options: Mapping[str, Any], **more: Any) -> None:
        """`work` is one of its functions, which gets `options` and `more`."""
        self.folder, self._cluster, self._work, self._more = folder, cluster, work, more
        self._options = {name: str(value) for name, value in options.items()}
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, settings: Mapping[str, str] = {}) -> None:
        given = {
            "folder": str(self.folder),
            "master": self._cluster.url,
            "settings": {**SETTINGS, **settings},
            "work": self._work,
            "options": self._options,
            "more": self._more,
        }
        path = python_path(HERE, HERE.parent, HERE.parent.parent)
        conf = {"SPARK_CONF_DIR": str(self._cluster.conf), "SPARK_LOCAL_IP": DRIVER, "PYTHONPATH": path}
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "cluster_child.py"), json.dumps(given)],
                env={**os.environ, **conf},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_dead(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def wait(self, name: str, count: int = 1) -> list[Path]:
        """The files of this name, when there are so many."""
        wait_until(lambda: len(self._files(name)) >= count or self.is_dead, WAIT_S)
        assert len(self._files(name)) >= count, (self.folder / "log").read_text()[-4000:]
        return self._files(name)

    def _files(self, name: str) -> list[Path]:
        return [path for path in self.folder.glob(f"{name}*") if path.suffix != ".new"]

    def kill(self) -> None:
        """Kill the driver and its JVM."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)


@contextmanager
def tapped(driver: ClusterDriver) -> Iterator[list[Tap]]:
    """The driver started, with somebody on the line between it and its executors."""
    ports = free_ports(2)
    taps = [Tap(port) for port in ports]
    names = ("spark.driver.port", "spark.driver.blockManager.port")
    line = {"spark.driver.host": TAPPED, "spark.driver.bindAddress": DRIVER}
    try:
        driver.start({**line, **{name: str(port) for name, port in zip(names, ports, strict=True)}})
        yield taps
    finally:
        driver.kill()
        for tap in taps:
            tap.close()


def kill_each(
    killed: Sequence[str],
    driver: ClusterDriver,
    cluster: SparkCluster,
    chance: random.Random,
    batches: Callable[[], int],
) -> None:
    """Kill the driver or a worker, one after the other, anywhere in one of the next batches; `batches` tells how many
    there are. A worker comes back at once, a driver before the next is killed."""
    try:
        for whom in killed:
            if driver.is_dead:
                driver.start()
            begun = batches() + chance.randint(1, 3)

            def has_begun(begun: int = begun) -> bool:
                return batches() >= begun or driver.is_dead

            wait_until(has_begun, WAIT_S)
            assert not driver.is_dead, (driver.folder / "log").read_text()[-4000:]
            time.sleep(chance.random())  # anywhere in a batch
            if whom == "driver":
                driver.kill()
            else:
                chance.choice(cluster.workers).kill()
                cluster.start()
    finally:
        driver.kill()
