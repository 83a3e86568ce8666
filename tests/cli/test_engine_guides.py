"""The guides that need an engine, walked as they stand."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from chain_world import require_cometbft
from walks import ENGINE, all_said, begin_walk

from tallystick.errors import TallystickError

TRACE = re.compile(r"Traceback \(most recent call last\):\n((?:[ ]+.*\n|\n)+)(.*)")
UNWANTED = ("BrokenPipeError", "ConnectionResetError", "EOFError")  # what a worker meets when Spark has rows enough


def fault(trace: re.Match[str]) -> bool:
    """Whether a trace is a fault of ours: it passes through our code, and is not PySpark hearing that Spark hung up."""
    files = re.findall(r'^ *File "(.*?)"', trace[1], re.MULTILINE)
    hung_up = trace[2].startswith(UNWANTED) and "pyspark" in "".join(files[-1:])
    return any("/src/tallystick/" in file for file in files) and not hung_up


def walk_pages(engine: str) -> str:
    """The faults of ours that were told on the way, or nothing."""
    with begin_walk(ENGINE[engine]) as process:
        try:
            told = all_said(process)
        finally:
            process.terminate()
    return "\n".join(trace[0] for trace in TRACE.finditer(told) if fault(trace))


def require_spark() -> None:
    pytest.importorskip("pyspark")
    from tallystick.pipeline.jobs.run import check_engine

    check_engine()


def require_kafka() -> None:
    pytest.importorskip("confluent_kafka")
    from tallystick.engines.kafka import find_jars

    find_jars()


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "require"),
    [
        pytest.param("spark", require_spark, marks=pytest.mark.spark, id="spark"),
        pytest.param("kafka", require_kafka, marks=pytest.mark.kafka, id="kafka"),
        pytest.param("chain", require_cometbft, marks=pytest.mark.chain, id="chain"),
    ],
)
def test_the_guides_of_an_engine_are_walked(engine: str, require: Callable[[], object]) -> None:
    try:
        require()
    except TallystickError as error:
        pytest.skip(f"no {engine} here: {error}")
    assert walk_pages(engine) == ""
