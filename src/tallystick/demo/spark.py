"""Spark beside the demo: one session in a process of its own, asked line by line.

The process (`spark_child`) is started at the beginning, so that its JVM is up when it is needed. Requests and answers
are JSON lines. When its standard input closes it ends, and the JVM with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tallystick.errors import Unavailable

STOP_S = 20.0


class SparkProcess:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "spark.log"
        with self._log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tallystick.demo.spark_child", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,  # an interrupt from the terminal reaches us alone
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def read(self, home: Path, topic: str) -> dict[str, Any]:
        """Read a whole topic as the identity in `home`. Returns how many `rows` it has, or the `reason` to stop."""
        return self._ask({"do": "read", "home": str(home), "topic": topic})

    def run(self, job: str, warehouse: Path, home: Path, topic: str, options: Mapping[str, str]) -> dict[str, Any]:
        """Run a job of the pipeline as the identity in `home`. Returns its summary."""
        where = {"warehouse": str(warehouse), "home": str(home), "topic": topic}
        return self._ask({"do": "job", "name": job, **where, **options})

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            print(json.dumps(request), file=self._requests, flush=True)
            line = self._answers.readline()
        except OSError:
            line = ""
        if not line:
            raise Unavailable("the Spark process has ended", hint=f"look at {self._log}")
        answer: dict[str, Any] = json.loads(line)
        if "failure" in answer:
            raise Unavailable(f"Spark: {answer['failure']}", hint=f"look at {self._log}")
        return answer

    def close(self) -> None:
        """End the process and everything that it started."""
        with suppress(OSError):
            self._requests.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._answers.close()
