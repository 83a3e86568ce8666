"""Scenes of whoever has the node's disk: an edited log, edited rights, an older ledger put back, two histories.

All but the edited rights work on a copy, served by an impostor, so that the honest story goes on. What subscribers find
Spark must find too, by the same name.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from tallystick import wire
from tallystick.client.session import Session
from tallystick.demo import disk
from tallystick.demo.evidence import FoundEvidence, finding
from tallystick.demo.impostor import Impostor, copy_ledger
from tallystick.demo.scene import AttackSucceeded, NotObserved, Scene, Seen, expected, refusal
from tallystick.demo.stage import READ, TOPICS, Ended, Stage
from tallystick.demo.traffic import read_all
from tallystick.errors import Forged
from tallystick.ledger import entries
from tallystick.ledger.block import read_head
from tallystick.ledger.contracts.access import RIGHTS
from tallystick.ledger.fsck import fsck
from tallystick.trust.permit import Operation

TOPIC, READER = "telemetry", "analyst"
FORK_MAX = 2_000  # transactions by which a fork outgrows the true ledger


def spoil(stage: Stage, name: str, change: disk.Change, reason: str) -> Seen:
    """Edit the log of a copy of the node's disk, and show it to a reader."""
    impostor = Impostor(stage, name, stage.snapshot.ledger)
    disk.edit(_longest_segment(stage, impostor.node), change)
    return _shown_to_reader(stage, impostor, reason)


def put_back(stage: Stage) -> Seen:
    """The ledger of before a right was withdrawn, under today's log; shown to somebody who saw today's."""
    impostor = Impostor(stage, "put-back", stage.snapshot.older_ledger)
    return _shown_to_reader(stage, impostor, "rollback", "split-view")


def _shown_to_reader(stage: Stage, impostor: Impostor, *reasons: str) -> Seen:
    with impostor, impostor.welcome(stage.snapshot.home(READER)) as reader:
        found, spark = _found(stage, reader, *reasons)
    return Seen(f"{found.reason}: {found.message}{spark}", _keep(stage, impostor, found))


def _found(stage: Stage, reader: Session, *reasons: str) -> tuple[FoundEvidence, str]:
    """What a subscriber finds, and in words what a Spark query as the same person finds: the same, by name."""
    found = finding(reader, TOPIC, *reasons)
    if stage.spark is None:
        return found, ""
    answer = stage.spark.read(reader.identity.home, TOPIC)
    if "reason" not in answer:
        raise AttackSucceeded(f"Spark read {answer['rows']:,} rows and found nothing")
    return found, f"; Spark: {expected(answer['reason'], *reasons, of='Spark')}"


def _keep(stage: Stage, impostor: Impostor, found: FoundEvidence) -> str:
    """Where the evidence is, from the demo's folder on: the finding or the contradiction, else the copy itself."""
    if found.place is None:
        return stage.shown(impostor.folder)
    evidence = stage.folder / "evidence"
    evidence.mkdir(exist_ok=True)
    return stage.shown(Path(shutil.copy(found.place, evidence / impostor.name)))


def _longest_segment(stage: Stage, node: Path) -> Path:
    """Of the topic's partitions: lanes fall where their names say."""
    token, partitions = stage.tokens[TOPIC], range(TOPICS[TOPIC].partitions)
    written = [one for one in partitions if disk.partition_folder(node, token, one).exists()]
    segments = [disk.newest_segment(node, token, one) for one in written]
    return max(segments, key=lambda segment: segment.stat().st_size)


def edit_rights(stage: Stage) -> Seen:
    """An administrator writes a right into the running node's database; the friend it is meant for asks for keys."""
    friend, token = stage.enrol("hospital", "friend"), stage.tokens["vitals"]
    key, database = RIGHTS(token, friend.identity.principal), stage.folders.node / "ledger.sqlite"
    edited = stage.folder / "copies" / "edited.sqlite"
    _execute(database, "INSERT INTO state VALUES (?, ?)", key, wire.encode([1, [[1, int(READ), "*"]]]))
    try:
        refusal(lambda: friend.view.row(key), "forged", of="the edited right")
        permit = refusal(
            lambda: friend.authority.permit(Operation.SUBSCRIBE, token), "forged", "unknown-topic", of="a permit"
        )
        copy_ledger(database, edited)
    finally:
        _execute(database, "DELETE FROM state WHERE key = ?", key)
    _must_be_named(stage, edited, key)
    impostor = Impostor(stage, "edited", edited)
    _must_not_start(impostor)
    return Seen(
        f"no proof of it verifies, the authority answers {permit}, no node starts on it, and fsck names the very row",
        stage.shown(impostor.ledger),
    )


def _execute(database: Path, statement: str, *values: bytes) -> None:
    with closing(sqlite3.connect(database, timeout=10)) as connection, connection:
        connection.execute(statement, values)


def _must_be_named(stage: Stage, ledger: Path, key: bytes) -> None:
    """A replay of the ledger finds the row that no entry gives."""
    try:
        fsck(str(ledger), stage.trust)
    except Forged as error:
        if key.hex()[:64] not in str(error):
            raise NotObserved(f"fsck names something else: {error}") from error
        return
    raise AttackSucceeded("fsck finds nothing in the edited database")


def _must_not_start(impostor: Impostor) -> None:
    try:
        with impostor:
            pass
    except Ended:
        return
    raise AttackSucceeded("a node serves the edited database")


def fork(stage: Stage) -> Seen:
    """The older copy goes on in a history of its own, past the true one; a newcomer is shown it, and nothing else.

    The newcomer remembers no ledger. What gives the fork away are the checkpoints in the headers of the parcels.
    """
    impostor = Impostor(stage, "forked", stage.snapshot.older_ledger)
    with impostor:
        with impostor.welcome(stage.snapshot.home("homes")) as accomplice:
            _outgrow(stage, accomplice)
        with impostor.welcome(stage.snapshot.home(READER), forgetful=True) as newcomer:
            found, spark = _found(stage, newcomer, "split-view")
    with stage.people[READER].subscriber(TOPIC) as subscriber:  # on the true ledger, and it stops at any finding
        rows = read_all(subscriber)
    if not rows:
        raise NotObserved("the other subscriber read nothing")
    told = f"the newcomer: {found.message}{spark}; the other subscriber read {rows:,} rows in peace"
    return Seen(told, _keep(stage, impostor, found))


def _outgrow(stage: Stage, accomplice: Session) -> None:
    """Write to the fork until it is longer than the ledger that the publishers saw."""
    true = stage.people[READER].view.refresh().size
    for number in range(FORK_MAX):
        if read_head(accomplice.node.checkpoint(), stage.trust).size > true:
            return
        accomplice.author.write(
            entries.grant(stage.tokens["air"], accomplice.identity.principal, int(READ), host=f"host-{number}")
        )
    raise NotObserved(f"the fork is still shorter than the ledger after {FORK_MAX} transactions")


def _edit(attack: str, name: str, change: disk.Change, reason: str) -> Scene:
    act = partial(spoil, name=name, change=change, reason=reason)
    return Scene(attack, f'"{reason}" to subscribers and to Spark', act)


SCENES = [
    _edit("a broker alters a parcel on disk", "altered", disk.altered(1), "altered"),
    _edit("a broker drops a parcel on disk", "dropped", disk.dropped(1), "missing"),
    _edit("a broker reorders parcels on disk", "reordered", disk.swapped(1), "altered"),
    _edit("a broker cuts the tail on disk", "cut", disk.cut(2), "missing"),
    Scene("an administrator edits the rights", "no proof, no keys; fsck names the row", edit_rights),
    Scene("a ledger put back to an older copy", '"rollback" to whoever saw the newer one', put_back),
    Scene("a forked ledger for one of two", '"split-view" even to a newcomer', fork),
]
