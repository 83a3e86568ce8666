"""`tally pipeline run audit --stream`: operations of the ledger to findings while they come, until it is stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import audit_attacks as attacks
import pyarrow.parquet as pq
import pytest
from audit_attacks import Crime
from pyspark.sql import SparkSession
from stack import Stack

from tallystick.cli import main
from tallystick.pipeline.jobs.audit_findings import TABLE
from tallystick.pipeline.jobs.warehouse import Table

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
    table = Table(warehouse / TABLE)
    if not table.batches():
        return set()
    place = table.place(table.batches()[-1])
    return {row["rule"] for part in place.glob("*.parquet") for row in pq.read_table(part).to_pylist()}


def has_batches(warehouse: Path) -> bool:
    return bool(Table(warehouse / TABLE).batches())


def test_findings_come_while_it_runs_and_it_ends_in_order(crime: Crime, warehouse: Path) -> None:
    def act() -> None:
        wait_until(lambda: has_batches(warehouse))
        assert newest(warehouse) == set()
        attacks.try_without_right(crime)
        wait_until(lambda: "unauthorised" in newest(warehouse))

    assert follow(crime, warehouse, act) == 0
    assert newest(warehouse) == {"unauthorised", "probing"}
