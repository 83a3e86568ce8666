"""What Spark makes of columns behind policies: nulls, in whatever it computes, though the topic says not null."""

from __future__ import annotations

from typing import Any

import pytest
from attribute_actors import Attributes
from lake import Lake, fails
from policy_world import need_pymcl

from tallystick.record.schema import Schema

pytestmark = pytest.mark.spark

SCHEMA = Schema.parse("seq int64 not null, lat float64 not null", groups=(("seq",), ("lat",)))


def row(number: int) -> dict[str, Any]:
    return {"seq": number, "lat": 52.0 + number}


def test_closed_columns_are_null_to_every_expression(lake: Lake) -> None:
    need_pymcl()
    Attributes(lake.stack, lake.owner)
    topic = lake.topic("closed-drives", SCHEMA)
    topic.publish([row(1), row(2)], policy={"lat": "role::police"})
    topic.publish([row(3)])
    found = topic.read().selectExpr("seq", "lat", "lat + 1 AS next", "lat IS NULL AS closed").orderBy("seq").collect()
    assert [tuple(one) for one in found] == [(1, None, None, True), (2, None, None, True), (3, 55.0, 56.0, False)]
    assert topic.read().selectExpr("count(lat)", "count(*)", "sum(lat)").collect()[0] == (1, 3, 55.0)
    assert [one.seq for one in topic.read().where("lat > 0").collect()] == [3]
    assert "do not satisfy the policy" in fails(topic.read(closed="error"))
