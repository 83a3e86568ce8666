"""What is counted by a label, and what clients that invent names make of it."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tallystick.errors import Refused
from tallystick.runtime.counting import BOUNDS_S, OTHER, REASONS, Counts, Durations, Histogram, ranked
from tallystick.runtime.http1 import Answer, answer_error
from tallystick.runtime.metrics import render
from tallystick.runtime.router import Request, Router

INVENTED = 10_000


def series(*parts: dict[str, Any]) -> list[str]:
    text = render({f"part{number}": part for number, part in enumerate(parts)}).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


async def ask(router: Router, path: str) -> None:
    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: MutableMapping[str, Any]) -> None:
        assert message["type"].startswith("http.response")

    scope = {"type": "http", "method": "GET", "raw_path": path.encode(), "query_string": b"", "headers": []}
    await router({**scope, "client": ("192.0.2.1", 1)}, receive, send)


def test_invented_reasons_are_one_series() -> None:
    counts = Counts()
    for number in range(INVENTED):
        counts.add(f"reason-{number}")
    counts.add("no-right")
    assert counts.snapshot() == {OTHER: INVENTED, "no-right": 1}


def test_invented_paths_and_parameters_make_no_series() -> None:
    router = Router()

    async def refuse(request: Request) -> Answer:
        return answer_error(Refused("no", reason=request.parameters["token"]))

    router.add("GET", "/v1/topics/{token}", refuse)

    async def flood() -> None:
        for number in range(INVENTED // 2):
            await ask(router, f"/v1/topics/{number}")
            await ask(router, f"/made/up/{number}")

    asyncio.run(flood())
    told = router.statistics()
    assert told["refused"] == {OTHER: INVENTED // 2, "unauthenticated": INVENTED // 2}
    assert {name: sum(one.counts) for name, one in told["duration_s"].items()} == {
        "GET /v1/topics/{token}": INVENTED // 2,
        OTHER: INVENTED // 2,
    }
    assert len(series(told)) <= 2 + 2 * (len(BOUNDS_S) + 3)


def test_of_many_groups_the_largest_of_each_tenant_are_told() -> None:
    found = [(b"hostile", f"h{number}", 10**6 + number) for number in range(INVENTED)]
    found += [(b"acme", "a", 5), (b"acme", "b", 0), (b"zeta", "z", 7)]
    told = ranked(found, 100)
    assert len(told) == 101
    assert (told["a"], told["b"], told["z"]) == (5, 0, 7)
    assert sum(told.values()) == sum(value for _, _, value in found)
    assert told[f"h{INVENTED - 1}"] == 10**6 + INVENTED - 1
    assert len(series({"lag_parcels": told})) == 101


def test_nothing_to_rank_is_a_sum_of_nothing() -> None:
    assert ranked([], 10) == {OTHER: 0}


def test_durations_fall_into_buckets() -> None:
    durations = Durations({"a"})
    for seconds in (0.0, BOUNDS_S[0], 0.006, 1e9):
        durations.note(seconds, "a")
    durations.note(0.3, "invented")
    assert durations.snapshot()["a"] == Histogram((2, 1, *(0 for _ in BOUNDS_S[2:]), 1), 0.011 + 1e9)
    assert sum(durations.whole().counts) == 5
    assert Durations().whole() == Histogram((0,) * (len(BOUNDS_S) + 1), 0)


def test_a_failure_takes_time_as_well() -> None:
    durations, now = Durations(), iter((1.0, 3.0))
    try:
        with durations.timed(lambda: next(now)):
            raise Refused("no", reason="no-right")
    except Refused:
        pass
    assert durations.whole().total_s == 2.0


def test_counters_end_in_total_and_gauges_do_not() -> None:
    histogram = Histogram((1, *(0 for _ in BOUNDS_S)), 0.001)
    text = render({"carrier": {"accepted": 3, "refused": {"no-right": 2}, "lanes": 1, "store_s": histogram}}).decode()
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert {name: one.type for name, one in families.items()} == {
        "tally_carrier_accepted": "counter",
        "tally_carrier_refused": "counter",
        "tally_carrier_lanes": "gauge",
        "tally_carrier_store_s": "histogram",
    }
    assert 'tally_carrier_refused_total{reason="no-right"} 2.0' in text
    assert 'tally_carrier_store_s_bucket{le="+Inf"} 1.0' in text
    assert "_created" not in text


def test_reasons_that_are_told_apart_are_few() -> None:
    assert len(REASONS) <= 64
