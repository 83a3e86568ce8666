"""An arm of a Spark suite, from outside: a Spark session in a process of its own (`spark_arm`), asked line by line.

An arm that fails says so by its name, with the end of what it wrote, and takes nobody with it: its suite goes on with
the cases that do without it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_S = RUN_S = 600.0  # a JVM, or one query, on a machine that is far from quiet
_TOLD_BYTES = 600


class ArmFailed(RuntimeError):
    """What an arm said when it failed, or that it said nothing."""


@dataclass(frozen=True)
class Ran:
    """One run of a query: what it found, its time by the clock, and processor seconds of the arm by kind of process."""

    answer: list[Any]
    seconds: float
    spent: dict[str, float] = field(default_factory=dict)


class Arm:
    """A Spark session in a process of its own, with these jars."""

    def __init__(self, stack: ExitStack, jars: Sequence[Path] = (), name: str = "arm") -> None:
        here = Path(__file__).parent
        path = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
        self._name, self._said = name, stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(here / "spark_arm.py"), *map(str, jars)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        stack.callback(self._end)
        self.peaks: dict[str, int] = {}
        self._answer(START_S)

    def run(self, source: str, query: str, options: Mapping[str, str]) -> list[Any]:
        return self.time(source, query, options).answer

    def time(self, source: str, query: str, options: Mapping[str, str]) -> Ran:
        started = time.perf_counter()
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"source": source, "query": query, "options": dict(options)}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says why
        answer = self._answer(RUN_S)
        seconds = time.perf_counter() - started
        if "failed" in answer:
            raise ArmFailed(f"{self._name}: {query} of {source}: {answer['failed']}")
        self.peaks = answer["peaks"]
        return Ran(answer["answer"], seconds, answer["spent"])

    def _answer(self, patience_s: float) -> Any:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], patience_s)[0]:
            raise ArmFailed(f"{self._name}: no answer in {patience_s:g} s; it said: {self._told()}")
        line = self._process.stdout.readline()
        if not line:
            raise ArmFailed(f"{self._name}: it ended; it said: {self._told()}")
        return json.loads(line)

    def _told(self) -> str:
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - _TOLD_BYTES))
        return self._said.read().decode(errors="replace").strip()

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
