"""One Spark session and one instance for all tests of the pipeline: starting either takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from lake import Lake, build
from pyspark.sql import SparkSession
from stack import Stack


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(event_log: Path) -> Iterator[SparkSession]:
    searched = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.local.dir": str(event_log / "local")}
    session = build(event_log, more=searched)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Lake]:
    with Stack(tmp_path_factory.mktemp("lake")) as stack:
        yield Lake(stack, spark)
