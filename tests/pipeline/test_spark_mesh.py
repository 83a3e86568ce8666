"""Spark on what came over a mesh: it reads the log of its identity's own node, and every row says that nothing anchors
it."""

from __future__ import annotations

from pathlib import Path

from actors import rows
from lake import fails
from mesh_stack import mesh_of
from pyspark.sql import DataFrame, SparkSession
from stack import wait_until

from tallystick.carriers.storage import Place


def test_rows_of_a_mesh_are_stored_and_not_anchored_and_say_so(tmp_path: Path, spark: SparkSession) -> None:
    with mesh_of(tmp_path, forwarders=2) as town:
        car, reader = town.member("car"), town.member("reader")
        token = town.topic("brakes", car, reader)
        home = town.beside(reader, brakes=token).identity.home
        wait_until(lambda: town.is_whole(token, car, reader))
        with car.publisher("brakes") as publisher:
            publisher.send(rows(1, 2))
            assert publisher.flush(30) == 0
        wait_until(
            lambda: town.node_of(reader).carrier.storage.end(Place(token, 0)) == 2
        )  # the last one closes the lane

        def read(**options: str) -> DataFrame:
            return spark.read.format("tally").options(home=str(home), topic="brakes", **options).load()

        found = read(provenance="true").collect()
        assert sorted((row["seq"], row["_height"], row["_late"]) for row in found) == [(1, None, None), (2, None, None)]
        assert "the mesh anchors nothing" in fails(lambda: read(read="anchored").collect())
