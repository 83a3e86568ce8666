"""`tally pipeline run audit --stream`: operations of the ledger to findings while they come, across stops, crashes and
a node that is away."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import audit_attacks as attacks
import pyarrow.parquet as pq
import pytest
from actors import settle
from audit_attacks import Crime
from pyspark.sql import SparkSession
from stack import Stack, wait_beyond

from tallystick.cli import main
from tallystick.pipeline.jobs.audit_findings import TABLE
from tallystick.pipeline.jobs.warehouse import WarehouseTable

pytestmark = pytest.mark.long

PATIENCE_S = 900.0  # a round takes seconds, and minutes where others are at work


@pytest.fixture(scope="module")
def crime(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Crime]:
    with Stack(tmp_path_factory.mktemp("following")) as stack:
        yield Crime(stack)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stream") / "tables"


def command(crime: Crime, warehouse: Path) -> list[str]:
    """Long windows and patience: what is found here is what is done here."""
    home, folder = str(crime.topic.owner.identity.home), str(warehouse)
    bounds = ["--window-s", str(10**9), "--silence-s", "3600", "--settle-s", "3600", "--flood-min", str(attacks.FLOOD)]
    return ["pipeline", "run", "audit", "--home", home, "--warehouse", folder, "--stream", "--every-s", "0.1", *bounds]


def follow(crime: Crime, warehouse: Path, act: Callable[[], None]) -> int:
    """Run the command; meanwhile another thread acts, and then ends it as an operator would."""
    failures: list[BaseException] = []

    def play() -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    actor = threading.Thread(target=play, daemon=True)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # where the command ended by itself, the signal is nobody's
    try:
        actor.start()
        status = main.run(command(crime, warehouse))
        actor.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    if failures:
        raise failures[0]
    return status


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the stream did not come so far"
        time.sleep(0.1)


def newest(warehouse: Path) -> set[str]:
    table = WarehouseTable(warehouse / TABLE)
    if not table.batches():
        return set()
    place = table.place(table.batches()[-1])
    return {row["rule"] for part in place.glob("*.parquet") for row in pq.read_table(part).to_pylist()}


def entries(warehouse: Path) -> list[tuple[int, int]]:
    parts = (warehouse / "ledger").glob("batch=*/*.parquet")
    columns = ["height", "index"]
    return [(row["height"], row["index"]) for part in parts for row in pq.read_table(part, columns=columns).to_pylist()]


def has_batches(warehouse: Path) -> bool:
    return bool(WarehouseTable(warehouse / TABLE).batches())


@pytest.fixture(scope="module")
def first_status(crime: Crime, warehouse: Path) -> int:
    """Of a first stream, which began with nothing, saw an attack and was ended."""

    def act() -> None:
        wait_until(lambda: has_batches(warehouse))
        assert newest(warehouse) == set()
        attacks.try_without_right(crime)
        wait_until(lambda: "unauthorised" in newest(warehouse))

    return follow(crime, warehouse, act)


def test_findings_come_while_it_runs_and_it_ends_in_order(first_status: int, warehouse: Path) -> None:
    assert first_status == 0
    assert newest(warehouse) == {"unauthorised", "probing"}


@pytest.mark.usefixtures("first_status")
def test_a_restart_goes_on_and_says_nothing_twice(crime: Crime, warehouse: Path) -> None:
    batches, known = WarehouseTable(warehouse / TABLE).batches(), len(entries(warehouse))

    def act() -> None:
        wait_until(lambda: len(entries(warehouse)) > known)  # rounds that find nothing new
        assert WarehouseTable(warehouse / TABLE).batches() == batches
        attacks.replay(crime)
        wait_until(lambda: "replay" in newest(warehouse))

    crime.another("later")  # entries for the first round
    assert follow(crime, warehouse, act) == 0
    found = entries(warehouse)
    assert len(found) == len(set(found)) > known
    assert newest(warehouse) == {"unauthorised", "probing", "replay"}


def test_a_crash_between_ledger_and_findings_loses_nothing(
    crime: Crime, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = WarehouseTable.write

    def write(table: WarehouseTable, *args: Any, **options: Any) -> Any:
        if table.name == TABLE:
            raise OSError("the power went")
        return honest(table, *args, **options)

    attacks.flood(crime)
    settle(crime.stack)
    with monkeypatch.context() as crashing:
        crashing.setattr(WarehouseTable, "write", write)
        assert main.run(command(crime, warehouse)) == 4  # told as what the world did, like a full disk
    assert "flood" not in newest(warehouse)
    assert follow(crime, warehouse, lambda: wait_until(lambda: "flood" in newest(warehouse))) == 0
    found = entries(warehouse)
    assert len(found) == len(set(found))


def test_a_node_that_is_away_ends_no_stream(crime: Crime, warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []

    def is_told(text: str) -> bool:
        told.append(capsys.readouterr().err)
        return text in "".join(told)

    def act() -> None:
        wait_until(lambda: is_told(" findings\n"))  # a stream that never had a round ends: it may ask the wrong node
        crime.stack.stop_node()
        wait_until(lambda: is_told("note: no round: "))
        crime.stack.start_node()
        known = len(entries(warehouse))
        crime.another("after")
        wait_until(lambda: len(entries(warehouse)) > known)

    assert follow(crime, warehouse, act) == 0


@pytest.mark.usefixtures("first_status")
def test_a_stream_that_found_nothing_new_leaves_the_callers_session_active(
    crime: Crime, warehouse: Path, spark: SparkSession
) -> None:
    """Spark looks for the source of a stream in the session that is active, whosever the frame is."""

    def act() -> None:
        for name in ("quiet", "quieter"):  # when the second is read, the first was judged
            known = len(entries(warehouse))
            crime.another(name)
            wait_beyond(lambda: len(entries(warehouse)), known)

    assert follow(crime, warehouse, act) == 0
    active = SparkSession.getActiveSession()
    assert active is not None
    assert active._jsparkSession.equals(spark._jsparkSession)
