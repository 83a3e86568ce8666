"""A whole instance beside a Spark session: topics to read, and ways to spoil them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from actors import anchored, row_of
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from stack import READ, WRITE, Stack, wait_until

from tallystick.carriers.accounts import Asked
from tallystick.carriers.carrier import Fetch, Fetched
from tallystick.client.session import Session
from tallystick.demo import disk
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.pipeline import configure, register
from tallystick.record.schema import Schema

SCHEMA = "vin string, seq int64 not null, speed float32"


def build(event_log: Path, master: str = "local[2]", more: Mapping[str, str] = {}) -> SparkSession:
    """A small session that writes its event log; `more` settings count before these."""
    event_log.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.master": master,
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.python.authenticate.socketTimeout": "60s",  # a worker may start slowly beside the rest of a suite
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",  # it is searched
        "spark.eventLog.dir": event_log.as_uri(),
        "spark.sql.warehouse.dir": (event_log / "warehouse").as_uri(),
        **more,
    }
    builder = configure(SparkSession.builder.appName("tests"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")  # failures are wanted here, and asserted
    register(spark)
    return spark


def rows(numbers: Sequence[int]) -> list[dict[str, Any]]:
    return [{"vin": f"V{number % 7}", "seq": number, "speed": number / 2} for number in numbers]


@dataclass
class Topic:
    name: str
    token: bytes
    lake: Lake

    def publish(self, values: Sequence[dict[str, Any]], *, by: Session | None = None, **settings: Any) -> None:
        """Publish rows and wait until the ledger vouches for them."""
        settings = {"acks": "anchored", "anchor_check_s": 0.02, **settings}
        with (by or self.lake.car).publisher(self.name, **settings) as publisher:
            publisher.send(list(values))
            assert publisher.flush(120) == 0

    def publish_parcels(self, numbers: Sequence[int], **settings: Any) -> None:
        """Publish a row a parcel, in one lane."""
        with self.lake.car.publisher(self.name, acks="anchored", anchor_check_s=0.02, **settings) as publisher:
            for number in numbers:
                publisher.send(rows([number]))
            assert publisher.flush(120) == 0

    def read(self, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.lake.spark.read.format("tally").options(**self.options(**options))
        return (reader.schema(schema) if schema else reader).load()

    def stream(self, **options: Any) -> DataFrame:
        return self.lake.spark.readStream.format("tally").options(**self.options(**options)).load()

    def options(self, **options: Any) -> dict[str, Any]:
        return {"home": str(self.lake.home), "topic": self.name, **options}

    def grow(self, text: str) -> None:
        """The second version of the topic's schema."""
        owner, identity = self.lake.owner, self.lake.owner.identity
        version, digest = owner.authority.propose_schema(self.token, Schema.parse(text, version=2).encode())
        owner.author.write(entries.schema(identity.instance, self.token, version, digest, identity.signing_key))
        wait_until(lambda: len(self.lake.car.authority.schemas(self.token)) == 2)

    def size(self, partition: int = 0) -> int:
        """How many parcels are anchored."""
        return anchored(self.lake.reader.view, self.token, partition)


class Lake:
    def __init__(self, stack: Stack, spark: SparkSession) -> None:
        self.stack, self.spark = stack, spark
        self.owner = stack.tenant("acme")
        self.car, self.reader = stack.principal("acme", "car"), stack.principal("acme", "reader")

    @property
    def home(self) -> Path:
        return self.reader.identity.home

    def topic(self, name: str, schema: str | Schema = SCHEMA, *, partitions: int = 1, flags: int = 0) -> Topic:
        token = self.stack.topic(self.owner, name, schema, partitions=partitions, flags=flags)
        self.stack.grant(self.owner, token, self.car, WRITE)
        self.stack.grant(self.owner, token, self.reader, READ)
        for session in (self.car, self.reader):  # the authority learns of rights from the ledger
            wait_until(partial(_is_known, session, token))
        return Topic(name, token, self)

    def member(self, name: str, topic: Topic, operations: int) -> Session:
        """One more principal, with a right on the topic."""
        session = self.stack.principal("acme", name)
        self.stack.grant(self.owner, topic.token, session, operations)
        wait_until(lambda: _is_known(session, topic.token))
        return session

    def revoke(self, session: Session) -> None:
        """Take an identity back, and wait until the ledger says so."""
        principal = session.identity.principal
        self.owner.authority.revoke(principal)
        wait_until(lambda: bool(row_of(self.reader.view, IDENTITIES(principal)).revoked))

    @contextmanager
    def lying(self, change: Callable[[Fetched, bool], Fetched]) -> Iterator[None]:
        """The node sends `change(fetched, headers only)` instead of what it has."""
        carrier = self.stack.node.carrier
        honest = carrier.fetch

        def fetch(asked: Asked, wanted: Fetch) -> Fetched:
            return change(honest(asked, wanted), wanted.headers)

        carrier.fetch = fetch
        try:
            yield
        finally:
            carrier.fetch = honest


def first_row(frame: DataFrame) -> Row:
    """Its first row, which must be there."""
    row = frame.first()
    assert row is not None
    return row


def pandas_of(frame: DataFrame) -> Any:
    """As a table of pandas, whose types mypy does not look at."""
    return frame.toPandas()


@contextmanager
def edited(lake: Lake, topic: Topic, change: Callable[[bytes], bytes]) -> Iterator[None]:
    """The node serves a segment that somebody edited."""
    segment = disk.newest_segment(lake.stack.folders.node, topic.token, 0)
    lake.stack.stop_node()
    whole = segment.read_bytes()
    segment.write_bytes(change(whole))
    lake.stack.start_node()
    try:
        yield
    finally:
        lake.stack.stop_node()
        segment.write_bytes(whole)
        lake.stack.start_node()


def _is_known(session: Session, token: bytes) -> bool:
    with suppress(Refused):
        return bool(session.authority.schemas(token))
    return False


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row["seq"] for row in frame.select("seq").collect())


def fails(frame: Any) -> str:
    """What Spark says of a read that must not succeed."""
    with pytest.raises(PySparkException) as caught:
        frame() if callable(frame) else frame.collect()
    return str(caught.value)
