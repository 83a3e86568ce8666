"""A Spark session that knows topics, and the channel between its driver and its executors, as its settings make it.

spark = configure(SparkSession.builder).getOrCreate()
register(spark)
spark.read.format("tally").option("home", "fleet/reader").option("topic", "brakes").load()

Threat: whoever listens on the network of a cluster, or speaks into it. Over it goes what a driver lends its tasks
(`loan`), and every row that a task opened, to other executors and back to the driver; shuffled rows lie on the disks of
workers. Invariant: on a cluster neither source nor sink nor job begins unless every connection is authenticated by the
application's secret and encrypted with a tag, no party can talk it down to less, and what is written to local disks is
encrypted.

Spark's defaults fall short of that even with encryption on. Its cipher is AES-CTR, under which a bit flipped on the way
is a bit flipped in the plain text. And a handshake that fails falls back to SASL, which authenticates and then speaks
in the clear: whoever disturbs the handshake reads along. TLS (`spark.ssl.rpc.enabled`) has neither fault.

Taken from the context's own settings, which cannot change while it lives. Left out: what runs between an executor and
its Python workers on one machine, which only root sees; how the secret came there; a network that is protected by other
means, which a query may vouch for (`channel=trusted`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
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

_BESIDE_TLS = {"spark.authenticate": "true", "spark.io.encryption.enabled": "true"}
SECURE = {  # all that a query on a cluster asks for, without TLS
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.io.encryption.enabled": "true",
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
        hint = "pip install 'tallystick[spark]'"
        raise Misuse(f"spark {spark.version}: at least {_SPARK_MIN[0]}.{_SPARK_MIN[1]} expected", hint=hint)
    from tallystick.pipeline.source import TallyDataSource

    channel = Channel.of_session(spark)  # first: a session that does not show its settings has no data sources either
    spark.dataSource.register(TallyDataSource.over(channel))


@dataclass(frozen=True)
class Channel:
    master: str
    lacking: tuple[str, ...] = ()  # settings, as `name=value`

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Channel:
        """What the settings of a Spark context make of it."""
        wanted = _BESIDE_TLS if settings.get("spark.ssl.rpc.enabled", "").lower() == "true" else SECURE
        lacking = (
            f"{name}={value}" for name, value in wanted.items() if settings.get(name, "").lower() != value.lower()
        )
        return cls(settings.get("spark.master", ""), tuple(lacking))

    @classmethod
    def of_session(cls, spark: SparkSession) -> Channel:
        """That of a session. Raises `Misuse` where it does not show its settings."""
        from pyspark.errors import PySparkException

        try:
            return cls.of(dict(spark.sparkContext.getConf().getAll()))
        except PySparkException as error:
            raise Misuse(
                "a Spark Connect session does not show the settings of its cluster, by which a channel is judged",
                hint="run the driver itself on the cluster, without Connect (docs/guides/clusters.md)",
            ) from error

    @property
    def is_local(self) -> bool:
        """Whether tasks run in the driver's own process, so that nothing leaves the machine."""
        return re.fullmatch(r"local(\[[^]]*\])?", self.master) is not None

    def check(self) -> None:
        """Raise `Misuse` where keys and rows would go over a network that others can read or write."""
        if self.lacking and not self.is_local:
            raise Misuse(
                f"{self.master}: keys and opened rows would go to executors over a channel that is not encrypted and"
                f" authenticated: {', '.join(self.lacking)} expected",
                hint="set them in spark-defaults.conf, beside spark.authenticate.secret (docs/guides/clusters.md);"
                " .option('channel', 'trusted') where the network itself is protected",
            )
