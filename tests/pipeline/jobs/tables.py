"""What the tests of jobs share: frames of the fleet's rows, and the command line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from tallystick.cli import main


def pipeline(*arguments: object) -> int:
    """Run `tally pipeline` in this process."""
    return main.run(["pipeline", *(str(argument) for argument in arguments)])


def frame(spark: SparkSession, batches: Iterable[Any]) -> DataFrame:
    """Record batches as Spark reads them from a topic."""
    table = pa.Table.from_batches(list(batches))
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    return spark.createDataFrame(table.cast(pa.schema([f.with_type(wider.get(f.type, f.type)) for f in table.schema])))


def rows_of(table: Path) -> pd.DataFrame:
    """A table of batches, read without Spark."""
    return ds.dataset(table, partitioning="hive").to_table().to_pandas()
