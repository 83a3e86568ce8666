"""Run commands of `tally` inside this process, or as processes that serve, and read what they said."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack import Stack

from tallystick.cli import main

TALLY = [sys.executable, "-m", "tallystick.cli"]
PATIENCE_S = 180  # only what hangs takes so long, however busy the machine


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def tally(*arguments: object, stdin: bytes = b"") -> Said:
    """One command line; its exit code and both streams."""
    before = sys.stdin, sys.stdout, sys.stderr
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(stdin), "utf-8"), out, err
    try:
        code = main.run([str(argument) for argument in arguments])
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    return Said(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())


def done(*arguments: object, stdin: bytes = b"") -> Said:
    """As `tally`, for a command that must succeed."""
    said = tally(*arguments, stdin=stdin)
    assert said.code == 0, f"{arguments}: {said}"
    return said


def refused(code: int, *arguments: object, stdin: bytes = b"") -> list[str]:
    """The lines on stderr of a command that must end with `code` and say nothing on stdout, without those that show
    what it was about to sign."""
    said = tally(*arguments, stdin=stdin)
    assert (said.code, said.out) == (code, ""), f"{arguments}: {said}"
    assert "Traceback" not in said.err
    return [line for line in said.err.splitlines() if not line.startswith("signing ")]


@contextmanager
def running(*arguments: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """A command that serves: the process, and what it said when it was ready."""
    process = subprocess.Popen(
        [*TALLY, *map(str, arguments), "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


class Fleet:
    """An instance whose commands can be run: `folder`, and the homes of its people."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack, self.folder = stack, folder
        self.owner, self.car, self.reader = (folder / "people" / name for name in ("owner", "car", "reader"))

    @property
    def trust(self) -> Path:
        return self.folder / "trust.json"

    def topic(self, name: str, schema: str = "vin string, seq int64", *options: object) -> str:
        """A topic that the car may write and the reader read; its name. It is there already where a test is run once
        more: all commands share one instance."""
        made = tally("topic", "create", name, "--schema", schema, *options, "--home", self.owner)
        assert made.code == 0 or "exists already" in made.err, made
        done("right", "grant", name, "car", "write", "--home", self.owner)
        done("right", "grant", name, "reader", "read", "--home", self.owner)
        return name
