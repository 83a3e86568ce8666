"""Scenes of a broker that edits its own disk: found by name, by a subscriber and by Spark.

Each works on a copy, served by an impostor, so that the honest story goes on.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from tallystick.demo import disk
from tallystick.demo.evidence import FoundEvidence, finding
from tallystick.demo.impostor import Impostor, Snapshot
from tallystick.demo.scene import AttackSucceeded, NotObserved, Scene, Seen, expected
from tallystick.demo.stage import TOPICS, Stage

TOPIC, READER = "telemetry", "analyst"


def spoil(stage: Stage, name: str, change: disk.Change, reason: str) -> Seen:
    """A copy of the node's disk, edited and served: what its readers say."""
    snapshot = require_snapshot(stage)
    impostor = Impostor(stage, name, snapshot.ledger, snapshot.log)
    disk.edit(_longest_segment(stage, impostor.node), change)
    with impostor, impostor.welcome(snapshot.home(READER)) as reader:
        found = finding(reader, TOPIC, reason)
        spark = ask_spark(stage, reader.identity.home, reason)
    return Seen(f"{found.reason}: {found.message}{spark}", keep(stage, impostor, found))


def require_snapshot(stage: Stage) -> Snapshot:
    if stage.snapshot is None:
        raise NotObserved("no copy of the node's disk was taken")
    return stage.snapshot


def ask_spark(stage: Stage, home: Path, *reasons: str) -> str:
    """What a Spark query as the same person finds: it must be the same, by name."""
    if stage.spark is None:
        return ""
    answer = stage.spark.read(home, TOPIC)
    if answer.reason is None:
        raise AttackSucceeded(f"Spark read {answer.rows:,} rows and found nothing")
    return f"; Spark: {expected(answer.reason, *reasons, of='Spark')}"


def keep(stage: Stage, impostor: Impostor, found: FoundEvidence) -> str:
    """Where the evidence is, from the demo's folder on: the finding or the contradiction, else the copy itself."""
    if found.place is None:
        return shown(stage, impostor.folder)
    evidence = stage.folder / "evidence"
    evidence.mkdir(exist_ok=True)
    return shown(stage, Path(shutil.copy(found.place, evidence / impostor.name)))


def shown(stage: Stage, path: Path) -> str:
    return str(path.relative_to(stage.folder))


def _longest_segment(stage: Stage, node: Path) -> Path:
    """Of the topic's partitions: lanes fall where their names say."""
    token, segments = stage.tokens[TOPIC], []
    for partition in range(TOPICS[TOPIC].partitions):
        if (node / "log" / "topics" / token.hex() / str(partition)).exists():
            segments.append(disk.newest_segment(node, token, partition))
    return max(segments, key=lambda segment: segment.stat().st_size)


def _scene(attack: str, name: str, change: disk.Change, reason: str) -> Scene:
    return Scene(
        attack, f'"{reason}" to subscribers and to Spark', partial(spoil, name=name, change=change, reason=reason)
    )


SCENES = [
    _scene("a broker alters a parcel on disk", "altered", disk.altered(1), "altered"),
    _scene("a broker drops a parcel on disk", "dropped", disk.dropped(1), "missing"),
    _scene("a broker reorders parcels on disk", "reordered", disk.swapped(1), "altered"),
    _scene("a broker cuts the tail on disk", "cut", disk.cut(2), "missing"),
]
