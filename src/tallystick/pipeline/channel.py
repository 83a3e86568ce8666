"""The channel between a driver and its executors, as the session's settings make it.

Threat: whoever listens on the network of a cluster, or speaks into it. Over it goes what a driver lends its tasks
(`loan`, `writing_loan`), and every row that a task opened, to other executors and back to the driver; shuffled rows
lie on the disks of workers. Invariant: on a cluster neither source nor sink nor job begins unless every connection is
authenticated by the application's secret and encrypted with a tag, no party can talk it down to less, and what is
written to local disks is encrypted.

Spark's defaults fall short of that even with encryption on. Its cipher is AES-CTR, under which a bit flipped on the way
is a bit flipped in the plain text. And a handshake that fails falls back to SASL, which authenticates and then speaks
in the clear: whoever disturbs the handshake reads along. TLS (`spark.ssl.rpc.enabled`) has neither fault.

Taken from the context's own settings, which cannot change while it lives. Left out: what runs between an executor and
its Python workers on one machine, which only root sees; how the secret came there; a network that is protected by other
means, which a query may vouch for (`channel=trusted`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ON = "true"
_AUTHENTICATED = {"spark.authenticate": _ON}
_ENCRYPTED = {
    "spark.network.crypto.enabled": _ON,
    "spark.network.crypto.saslFallback": "false",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
}
_AT_REST = {"spark.io.encryption.enabled": _ON}
_TLS = "spark.ssl.rpc.enabled"

SECURE = {**_AUTHENTICATED, **_ENCRYPTED, **_AT_REST}  # all that a query on a cluster asks for, without TLS


@dataclass(frozen=True)
class Channel:
    master: str
    lacking: tuple[str, ...] = ()  # settings, as `name=value`

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Channel:
        """What the settings of a Spark context make of it."""
        wanted = {**_AUTHENTICATED, **_AT_REST} if settings.get(_TLS, "").lower() == _ON else SECURE
        lacking = (
            f"{name}={value}" for name, value in wanted.items() if settings.get(name, "").lower() != value.lower()
        )
        return cls(settings.get("spark.master", ""), tuple(lacking))

    @classmethod
    def of_session(cls, spark: SparkSession) -> Channel:
        """That of a session; `Misuse` where it does not show its settings."""
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


def settle_keys(channel: Channel | None, keys: str, *, is_trusted: bool) -> str:
    """Whence tasks have their keys, "driver" or "home", where the query leaves it to the master ("auto"). Raises
    `Misuse` unless the channel is fit for them, or the query vouches for it."""
    if channel is None:
        raise Misuse("the source knows nothing of its session", hint="tallystick.pipeline.register(spark)")
    if not is_trusted:
        channel.check()
    if keys != "auto":
        return keys
    return "home" if channel.is_local else "driver"
