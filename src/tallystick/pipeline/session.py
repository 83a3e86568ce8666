"""A Spark session that knows topics.

spark = configure(SparkSession.builder).getOrCreate()
register(spark)
spark.read.format("tally").option("home", "fleet/reader").option("topic", "brakes").load()
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tallystick.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARK_MIN = (4, 2)  # before, a stream's reader is told neither where it stands nor how much to read

DEFAULTS = {
    # Imports and compiled code are loaded once, before workers are forked: half a second less for each.
    "spark.python.daemon.module": "tallystick.pipeline.daemon",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # with statistics, and a zone that other tools see
}


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """The builder with what the data source wants; what is set afterwards counts.

    Python workers run this very Python, unless `PYSPARK_PYTHON` names another: Spark looks there alone.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in DEFAULTS.items():
        builder = builder.config(name, value)
    return builder


def register(spark: SparkSession) -> None:
    """Make the format `tally` known to the session."""
    version = tuple(int(part) for part in spark.version.split(".")[:2])
    if version < _SPARK_MIN:
        raise Misuse(
            f"spark {spark.version}: at least {_SPARK_MIN[0]}.{_SPARK_MIN[1]} expected",
            hint="pip install 'tallystick[spark]'",
        )
    from tallystick.pipeline.channel import Channel
    from tallystick.pipeline.source import TallyDataSource

    channel = Channel.of_session(spark)
    spark.dataSource.register(TallyDataSource.over(channel))
