"""The guides that need an engine, walked as they stand."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from chain_world import require_cometbft
from walks import ENGINE, begin_walk

from tallystick.errors import TallystickError


def is_walked(engine: str) -> bool:
    """Where it is not, the test shows all that was said."""
    with begin_walk(ENGINE[engine]) as process:
        try:
            told, _ = process.communicate(timeout=1800)
        finally:
            process.terminate()
    print(told)
    ours = [file for file in re.findall('^ *File "(.*?)"', told, re.MULTILINE) if "/src/tallystick/" in file]
    return process.returncode == 0 and not ours  # PySpark's workers show traces of their own when rows are not wanted


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
    assert is_walked(engine)
