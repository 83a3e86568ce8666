"""Scenes of an operator against its own ledger: edited rights, an older copy put back, two histories."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tallystick import wire
from tallystick.client.session import Session
from tallystick.demo.broker import READER, TOPIC, ask_spark, keep, require_snapshot, shown
from tallystick.demo.evidence import finding
from tallystick.demo.impostor import Impostor, copy_ledger
from tallystick.demo.scene import AttackSucceeded, NotObserved, Scene, Seen, refusal
from tallystick.demo.stage import READ, Ended, Stage
from tallystick.errors import Forged
from tallystick.ledger import entries
from tallystick.ledger.block import read_head
from tallystick.ledger.contracts.access import RIGHTS
from tallystick.ledger.fsck import fsck
from tallystick.trust.permit import Operation

FORK_MAX = 2_000  # transactions by which a fork outgrows the true ledger


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
    impostor = Impostor(stage, "edited", edited, require_snapshot(stage).log)
    _must_not_start(impostor)
    return Seen(
        f"no proof of it verifies, the authority answers {permit}, no node starts on it, and fsck names the very row",
        shown(stage, impostor.ledger),
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


def put_back(stage: Stage) -> Seen:
    """The ledger of before a right was withdrawn, under today's log; shown to somebody who saw today's."""
    snapshot = require_snapshot(stage)
    impostor = Impostor(stage, "put-back", snapshot.older_ledger, snapshot.log)
    with impostor, impostor.welcome(snapshot.home(READER)) as reader:
        found = finding(reader, TOPIC, "rollback", "split-view")
        spark = ask_spark(stage, reader.identity.home, "rollback", "split-view")
    return Seen(f"{found.reason}: {found.message}{spark}", keep(stage, impostor, found))


def fork(stage: Stage) -> Seen:
    """The older copy goes on in a history of its own, past the true one; a newcomer is shown it, and nothing else.

    The newcomer remembers no ledger. What gives the fork away are the checkpoints in the headers of the parcels.
    """
    snapshot = require_snapshot(stage)
    impostor = Impostor(stage, "forked", snapshot.older_ledger, snapshot.log)
    with impostor:
        with impostor.welcome(snapshot.home("homes")) as accomplice:
            _outgrow(stage, accomplice)
        with impostor.welcome(snapshot.home(READER), forgetful=True) as newcomer:
            found = finding(newcomer, TOPIC, "split-view")
            spark = ask_spark(stage, newcomer.identity.home, "split-view")
    rows = _read_clean(stage.people[READER])
    return Seen(
        f"the newcomer: {found.message}{spark}; the other subscriber read {rows:,} rows in peace",
        keep(stage, impostor, found),
    )


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


def _read_clean(session: Session) -> int:
    """Rows that the subscriber on the true ledger reads without a finding."""
    with session.subscriber(TOPIC) as subscriber:
        rows = 0
        while received := subscriber.poll(0):
            rows += sum(one.batch.rows for one in received)
    if not rows:
        raise NotObserved("the other subscriber read nothing")
    return rows


SCENES = [
    Scene("an administrator edits the rights", "no proof, no keys; fsck names the row", edit_rights),
    Scene("a ledger put back to an older copy", '"rollback" to whoever saw the newer one', put_back),
    Scene("a forked ledger for one of two", '"split-view" even to a newcomer', fork),
]
