"""Impostors: second processes over copies of a node's disk, started by whoever has it.

An impostor has the node's own keys: nothing tells it from the node but what it shows. Its copy is taken while the node
runs, the ledger through SQLite, the log as files that did not move meanwhile. It is shown to people who come with the
memory that they had when the copy was taken.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tallystick.client.session import Session
from tallystick.demo.scene import NotObserved
from tallystick.demo.stage import Stage
from tallystick.identity.folder import Identity

_NODE_FILES = ("key", "ledger.key", "certificate", "authority.certificate", "node.toml", "trust.json")
_LEDGER = "ledger.sqlite"
ATTEMPTS_MAX = 100  # to copy files that do not move meanwhile


class Snapshot:
    """What a disk held at a time: the log, the ledger then and the ledger some while before, and people's memories."""

    def __init__(self, stage: Stage) -> None:
        """Copy the ledger as it is now; `finish` copies the rest when it has gone on."""
        self._stage, self._folder = stage, stage.folder / "copies" / "snapshot"
        self.older_ledger, self.ledger = self._folder / "older.sqlite", self._folder / "newer.sqlite"
        self.log = self._folder / "log"
        self._folder.mkdir(parents=True)
        copy_ledger(stage.folders.node / _LEDGER, self.older_ledger)

    def finish(self, *people: str) -> None:
        """Memories first and the log last: nobody remembers more than the ledger holds, or finds less in the log."""
        for name in people:
            self._stage.people[name].view.refresh()  # they have seen today's ledger
            shutil.copytree(self._stage.people[name].identity.home, self.home(name))
        copy_ledger(self._stage.folders.node / _LEDGER, self.ledger)
        copy_still(self._stage.folders.node / "log", self.log)

    def home(self, name: str) -> Path:
        return self._folder / "homes" / name


def copy_ledger(source: Path, to: Path) -> None:
    """A ledger's file as of one block, also while a node writes to it."""
    uri = f"{source.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as live, closing(sqlite3.connect(to)) as copy:
        live.backup(copy)


def copy_still(source: Path, to: Path) -> None:
    """A folder's files, copied again until none of them changed meanwhile."""
    for _ in range(ATTEMPTS_MAX):
        before = _state(source)
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(source, to)
        if _state(source) == before:
            return
    raise NotObserved(f"{source} does not come to rest")


def _state(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


class Impostor:
    """One copy, of a ledger and the snapshot's log, to be edited before it is started."""

    def __init__(self, stage: Stage, name: str, ledger: Path) -> None:
        self._stage, self.name = stage, name
        self.folder = stage.folder / "copies" / name
        self.node = self.folder / "node"
        self.ledger = self.node / _LEDGER
        self.node.mkdir(parents=True)
        shutil.copy(stage.folders.trust, self.folder)
        for file in _NODE_FILES:
            shutil.copy2(stage.folders.node / file, self.node)
        shutil.copy(ledger, self.ledger)
        shutil.copytree(stage.snapshot.log, self.node / "log")

    def __enter__(self) -> Impostor:
        self._child = self._stage.start(self.name, self.folder, "--node-only", "--port", "0")
        return self

    def __exit__(self, *_: object) -> None:
        self._stage.stop(self._child)

    def welcome(self, home: Path, *, forgetful: bool = False) -> Session:
        """Somebody who takes the impostor for the node; `forgetful`: with no memory of any ledger."""
        folder = self.folder / "homes" / (home.name + ("-newcomer" if forgetful else ""))
        shutil.copytree(home, folder)
        if forgetful:
            shutil.rmtree(folder / "ledger", ignore_errors=True)
        identity = replace(Identity.load(folder), node_urls=(self._child.url,))
        identity.save()
        return Session(identity, clock=self._stage.clock, entropy=self._stage.entropy)
