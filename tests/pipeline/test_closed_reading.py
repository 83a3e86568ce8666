"""Columns behind policies as a query reads them: what the identity's attributes open, nulls or an error for the rest,
and never a wrong value.

No Spark: driver and task in this process, against a real node; what Spark makes of nulls is in test_spark_closed.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from actors import settle
from attribute_actors import Attributes
from policy_world import need_pymcl
from pyspark.sql.types import DoubleType, FloatType, LongType, StructField, StructType
from stack import READ, WRITE, Stack

from tallystick.client.session import Session
from tallystick.errors import Misuse
from tallystick.pipeline.options import Options
from tallystick.pipeline.source import BatchReader, TallyDataSource
from tallystick.record.schema import Schema

SCHEMA = Schema.parse(
    "seq int64 not null, speed float32, lat float64 not null, lon float64, fuel float32",
    groups=(("seq", "speed"), ("lat", "lon"), ("fuel",)),
)
POSITION = 1


def row(number: int) -> dict[str, Any]:
    return {"seq": number, "speed": 50.0, "lat": 52.0 + number, "lon": 13.0, "fuel": 7.5}


class Drives:
    """A topic whose positions are the police's, by the owner's policy, and whose fuel the insurer's, by the car's."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.attributes = Attributes(stack, stack.tenant("acme"))
        self.car = stack.principal("acme", "car")
        self.readers = {role: stack.principal("acme", role) for role in ("police", "insurer", "nobody")}
        for role in ("police", "insurer"):
            self.attributes.give(self.readers[role], role=role)
        token = self.topic("drives")
        self.attributes.set_policy(token, POSITION, "role::police")
        self.publish("drives", 0, 1, 2, policy={"fuel": "role::insurer"}, hide_policy=True)
        self.publish("drives", 3, policy="role::police")

    def topic(self, name: str) -> bytes:
        token = self.stack.topic(self.attributes.owner, name, SCHEMA)
        self.stack.grant(self.attributes.owner, token, self.car, WRITE)
        for session in self.readers.values():
            self.stack.grant(self.attributes.owner, token, session, READ)
        settle(self.stack)
        return token

    def publish(self, topic: str, *numbers: int, **settings: Any) -> None:
        with self.car.publisher(topic, acks="anchored", anchor_check_s=0.02, **settings) as publisher:
            publisher.send([row(number) for number in numbers])
            assert publisher.flush(120) == 0


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drives]:
    need_pymcl()
    with Stack(tmp_path_factory.mktemp("drives")) as stack:
        yield Drives(stack)


def read(session: Session, schema: StructType | None = None, **options: str) -> list[dict[str, Any]]:
    """What a query gets, as driver and tasks make it."""
    given = {"home": str(session.identity.home), "topic": "drives", "keys": "home", **options}
    reader = BatchReader(Options.parse(given), schema or TallyDataSource(given).schema())
    found = [one for share in reader.partitions() for batch in reader.read(share) for one in batch.to_pylist()]
    return sorted(found, key=lambda one: one.get("seq") or 0)


OPENS = {"police": ("lat", "lon"), "insurer": ("fuel",), "nobody": ()}


@pytest.mark.parametrize("keys", ["home", "driver"])  # tasks ask themselves, or the driver lends: attribute key and all
@pytest.mark.parametrize("role", list(OPENS))
def test_columns_that_open_have_their_values_and_the_others_are_null(drives: Drives, role: str, keys: str) -> None:
    visible = {"seq", "speed", *OPENS[role]}
    expected = [{name: value if name in visible else None for name, value in row(n).items()} for n in range(3)]
    # Of the last parcel nothing opens but for the police: no row, and no null that could be taken for one.
    assert read(drives.readers[role], keys=keys) == expected + [row(3)] * (role == "police")


def test_a_closed_column_alone_is_as_many_nulls_as_there_are_rows(drives: Drives) -> None:
    fuel = StructType([StructField("fuel", FloatType())])
    assert read(drives.readers["nobody"], fuel) == [{"fuel": None}] * 3
    assert read(drives.readers["insurer"], fuel) == [{"fuel": 7.5}] * 3


def test_a_column_that_may_be_closed_may_be_null(drives: Drives) -> None:
    given = {"home": str(drives.readers["nobody"].identity.home), "topic": "drives"}
    assert [field.nullable for field in TallyDataSource(given).schema()] == [True] * 5
    strict = TallyDataSource({**given, "closed": "error"}).schema()
    assert [field.nullable for field in strict] == [False, True, False, True, True]
    with pytest.raises(Exception, match="wants a value in every row"):
        read(drives.readers["nobody"], StructType([StructField("lat", DoubleType(), nullable=False)]))


def test_closed_columns_fail_a_query_that_wants_them_to(drives: Drives) -> None:
    with pytest.raises(Exception, match="do not satisfy the policy"):
        read(drives.readers["insurer"], closed="error")
    with pytest.raises(Exception, match="do not satisfy the policy"):
        read(drives.readers["police"], closed="error")  # fuel is the insurer's
    seen = StructType([StructField("seq", LongType()), StructField("lat", DoubleType())])
    found = read(drives.readers["police"], seen, closed="error")  # what it does not read may be closed
    assert found == [{"seq": number, "lat": 52.0 + number} for number in range(4)]
    with pytest.raises(Misuse, match="option closed"):
        Options.parse({"home": "h", "topic": "t", "closed": "maybe"})


def test_an_interest_in_a_closed_column_matches_nothing(drives: Drives) -> None:
    """Whoever may not see the fuel learns nothing about it by asking for rows that have little of it."""
    assert len(read(drives.readers["insurer"], interest="fuel < 10.0")) == 3
    assert read(drives.readers["nobody"], interest="fuel < 10.0") == []
    assert read(drives.readers["nobody"], interest="fuel >= 10.0") == []


def test_without_policies_everybody_reads_everything(drives: Drives) -> None:
    """The counterpart, by the same identity and the same ways."""
    drives.topic("open")
    drives.publish("open", 1)
    for keys in ("home", "driver"):
        assert read(drives.readers["nobody"], topic="open", keys=keys) == [row(1)]


def test_an_attribute_that_is_withdrawn_closes_what_is_sealed_afterwards(drives: Drives) -> None:
    """In a loan too: the driver lends the key that it has by then."""
    drives.topic("withdrawn")
    insurer = drives.readers["insurer"]
    drives.publish("withdrawn", 1, policy={"fuel": "role::insurer"})
    assert read(insurer, topic="withdrawn", keys="driver") == [row(1)]
    drives.attributes.take(insurer, "role")
    drives.publish("withdrawn", 2, policy={"fuel": "role::insurer"})
    found = read(insurer, topic="withdrawn", keys="driver")
    assert found[1] == row(2) | {"fuel": None}
    drives.attributes.give(insurer, role="insurer")
