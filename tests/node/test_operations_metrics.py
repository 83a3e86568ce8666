"""What `/metrics` of a running node and authority tell, and what `operations/` asks Prometheus for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from actors import SCHEMA, publish, read_rows
from prometheus_client.parser import text_string_to_metric_families
from stack import READ, WRITE, Stack, wait_until

from tallystick.node.lags import Lags
from tallystick.runtime.counting import BOUNDS_S, OTHER, REASONS

OPERATIONS = Path(__file__).parents[2] / "operations"
NAME = re.compile(r"\btally_[a-z_]+\b")
RULE = re.compile(r"- alert: (\w+)\n +expr: (.+)")
REASON = re.compile(r'reason="([^"]+)"')
SERIES_MAX = 1_000  # of one node or authority, whatever clients do


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Three rows were published; two groups have read them, and one of these is done with them."""
    with Stack(tmp_path_factory.mktemp("metrics")) as stack:
        owner = stack.tenant("acme")
        token = stack.topic(owner, "brakes", SCHEMA)
        reader = stack.principal("acme", "reader")
        stack.grant(owner, token, reader, READ | WRITE)
        publish(reader, "brakes", [1, 2, 3])
        with reader.subscriber("brakes", group="one") as subscriber:
            read_rows(subscriber, 3)
            subscriber.commit()
        with reader.subscriber("brakes", group="two") as subscriber:
            read_rows(subscriber, 3)
        yield stack


def told(url: str) -> dict[str, list[Any]]:
    """The samples of each metric, by the names that a query may use."""
    with urlopen(f"{url}/metrics", timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found: dict[str, list[Any]] = {}
    for family in families:
        found.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, [])
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def asked() -> dict[str, str]:
    """The queries of alerts and dashboard, by what they are for."""
    rules = dict(RULE.findall((OPERATIONS / "alerts.yml").read_text()))
    assert len(rules) >= 10
    board = json.loads((OPERATIONS / "grafana.json").read_text())
    panels = {f"{panel['title']}, {one['refId']}": one["expr"] for panel in board["panels"] for one in panel["targets"]}
    variables = {one["name"]: one["query"] for one in board["templating"]["list"] if one["type"] == "query"}
    return {**rules, **panels, **variables}


def test_all_that_alerts_and_dashboard_ask_for_is_told(stack: Stack) -> None:
    known = told(stack.node.url) | told(stack.authority.url)
    missing = {what: [name for name in NAME.findall(query) if name not in known] for what, query in asked().items()}
    assert not {what: names for what, names in missing.items() if names}


def test_all_reasons_that_they_name_are_told_apart() -> None:
    assert {reason for query in asked().values() for reason in REASON.findall(query)} <= REASONS


def test_a_group_is_told_by_its_pseudonym_and_many_as_one(stack: Stack) -> None:
    lags = Lags(stack.node.ledger, stack.node.carrier.storage, shown_max=1)
    lags.look()
    lag, entries = lags.snapshot(), stack.node.statistics()["log"]["entries"]
    assert lag["known"] == 2
    [(shown, behind), rest] = lag["lag_parcels"].items()
    assert (len(shown), behind, rest) == (32, entries, (OTHER, 0))
    stack.node._lags.look()
    by_group = {one.labels["group"]: one.value for one in told(stack.node.url)["tally_groups_lag_parcels"]}
    assert (len(by_group), by_group[shown], sum(by_group.values())) == (3, entries, entries)


def test_invented_paths_and_hosts_make_no_series(stack: Stack) -> None:
    def series() -> int:
        return sum(map(len, told(stack.node.url).values())) + sum(map(len, told(stack.authority.url).values()))

    before = series()
    for url in (stack.node.url, stack.authority.url):
        for number in range(100):
            with pytest.raises(OSError, match="403"):
                urlopen(f"{url}/invented/{number}", timeout=60)
    assert before <= series() <= before + 2 * 20  # a reason, and a histogram of what no route answered


def test_all_labels_together_make_fewer_series_than_the_guide_says(stack: Stack) -> None:
    for router in (stack.node._router, stack.authority.service.app):
        timed = (len(router._names) + 3) * (len(BOUNDS_S) + 3)  # each route, `other`, and two histograms of the node
        by_reason, groups, plain = 4 * (len(REASONS) + 1), 100 + 1, 60
        assert timed + by_reason + groups + plain < SERIES_MAX


def test_refusals_of_strangers_are_counted_under_one_reason(stack: Stack) -> None:
    def refused() -> dict[str, float]:
        return {one.labels["reason"]: one.value for one in told(stack.node.url)["tally_requests_refused_total"]}

    before = refused().get("unauthenticated", 0)
    for path in ("/v1/nothing", "/v1/topics"):
        with pytest.raises(OSError, match="403"):
            urlopen(f"{stack.node.url}{path}", timeout=60)
    assert refused()["unauthenticated"] >= before + 2


def test_what_takes_time_is_told(stack: Stack) -> None:
    known = told(stack.node.url)
    for name in ("tally_ledger_commit_s_count", "tally_carrier_store_s_count"):
        assert known[name][0].value > 0
    wait_until(lambda: told(stack.node.url)["tally_ledger_head_age_s"][0].value < 30)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here: Debian's package prometheus has it")
def test_prometheus_takes_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", OPERATIONS / "alerts.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
