"""A console beside the demo: a process of the owner's own, which is told each outcome by a file and believes the
ledger alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from tallystick.demo.jobs import report_of
from tallystick.demo.operator import TOPIC
from tallystick.demo.scene import Performed
from tallystick.demo.stage import TOPICS, Stage
from tallystick.errors import Unavailable
from tallystick.node.supervisor import Child, ChildFailed
from tallystick.runtime.sources import Clock


class ConsoleBeside:
    """Outlives the stage; whoever made it ends it."""

    def __init__(self, folder: Path, clock: Clock, say: Callable[[str], None]) -> None:
        self.scenes, self.url = folder / "scenes.jsonl", ""
        self._folder, self._clock, self._say = folder, clock, say
        self._child: Child | None = None

    def open(self, stage: Stage) -> None:
        """Start it for the owner of the topic, who may know the names of its own people."""
        home = stage.people[TOPICS[TOPIC].tenant].identity.home
        self.scenes.touch(mode=0o600)
        tables = report_of(self._folder).parent
        with_tables = [] if stage.spark is None else ["--warehouse", str(tables)]
        arguments = ["console", "--home", str(home), "--scenes", str(self.scenes), "--port", "0", *with_tables]
        log = self._folder / "logs" / "console.log"
        self._child = Child("console", [*arguments, "--json"], with_passphrase=False, log=log)
        try:
            self._child.start(self._clock)
        except ChildFailed as failure:
            raise Unavailable("the console ended before it served", hint=f"look at {log}") from failure
        self.url = self._child.url
        self._say(f"console {self.url}")
        self._say(f"that address is good once, for one browser, and lies in {home / 'console' / 'url'}")

    def add(self, performed: Performed) -> None:
        """Tell it an outcome: a line, whole or not there."""
        told = {"told_by": "tally demo", **asdict(performed), "time_ms": int(self._clock.now() * 1000)}
        with self.scenes.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")

    def wait(self, tell: Callable[[], None]) -> None:
        """Until it ends, or an interrupt; `tell` says that it goes on, to whom an interrupt may be the answer."""
        if self._child is not None and self._child.process is not None:
            with suppress(KeyboardInterrupt):
                tell()
                self._child.process.wait()

    def close(self) -> None:
        if self._child is not None:
            self._child.stop()
