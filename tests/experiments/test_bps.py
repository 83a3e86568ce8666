"""BPS's figures, shrunken: what they follow from, not how long it took."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.bps import fig07, fig08, fig09, fig10, fig11, fig12, transfer
from tallystick.errors import Refused


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_batch_is_one_block_whatever_its_size(tmp_path: Path) -> None:
    assert fig07.main(["--small", "--out", str(tmp_path)]) == 0
    rows = table(tmp_path / "fig07.csv")
    assert [int(row["batch"]) for row in rows] == [1, 2, 8, 32, 128, 512, 1024, 4096]
    assert all(int(row["blocks"]) * int(row["batch"]) == int(row["operations"]) for row in rows)


def test_the_band_of_fig07_can_be_missed() -> None:
    linear = [fig07.Row(size, 0, 2 * size, 2, 1.0, 10.0 * min(size, 512)) for size in fig07.SIZES]
    assert fig07.misses(linear) == []
    assert fig07.misses([replace(row, per_second=10.0) for row in linear])
    assert fig07.misses([replace(row, blocks=3) for row in linear])


@pytest.mark.parametrize("figure", [one.FIGURE for one in (fig09, fig10, fig11, fig12)], ids=lambda one: one.name)
def test_the_bands_of_the_figures_on_kafka_can_be_missed(figure: transfer.Figure) -> None:
    fast = [
        transfer.Row(arm, figure.operation, count, 0, count / rate, rate)
        for count in transfer.PAPER
        for arm, rate in (("kafka", 1e5), ("tallystick", 2e5))
    ]
    slow = [replace(row, arm={"kafka": "tallystick", "tallystick": "kafka"}[row.arm]) for row in fast]
    assert figure.misses(fast) == []
    assert len(figure.misses(slow)) == len(transfer.PAPER)
    small = [replace(row, messages=row.messages // 100) for row in slow]
    assert figure.misses(small) == []  # below the paper's scale no band is meant


def test_every_arm_at_the_gateway_checks_each_parcel(tmp_path: Path) -> None:
    scale = transfer.Scale((512, 1_000), parcel=256)
    rows = list(fig08.measure_gateway(scale))
    assert [(row.arm, row.messages, row.requests) for row in rows] == [
        (arm, messages, requests)
        for messages, requests in ((512, 2), (1_000, 4))
        for arm in ("warm", "cold", "without")
    ]
    assert fig08.report(rows, tmp_path) == 0
    assert len(table(tmp_path / "fig08.csv")) == len(rows)


def test_with_the_check_a_stranger_is_refused_and_without_it_is_not(tmp_path: Path) -> None:
    gateway = fig08.Gateway(str(tmp_path))
    token = gateway.pairs[0][1]
    gateway.pairs = [(bytes(16), token)]
    for arm in ("warm", "cold"):
        with pytest.raises(Refused, match="certificate was revoked or is over"):
            gateway.ask(gateway.rules[arm], 1)
    gateway.ask(gateway.rules["without"], 1)


def test_the_band_of_fig08_can_be_missed() -> None:
    cost = {"warm": 1e-9, "cold": 9e-9, "on": 2e-6, "off": 2e-6}
    good = [
        fig08.Row("gateway" if arm in ("warm", "cold") else "kafka", arm, count, 0, 1, count * each)
        for count in transfer.PAPER
        for arm, each in cost.items()
    ]
    assert fig08.misses(good) == []
    grown = [replace(row, seconds=2 * row.seconds) if row.messages == transfer.PAPER[-1] else row for row in good]
    assert len(fig08.misses(grown)) == 1
    slow = [replace(row, seconds=900 * row.seconds) if row.arm == "warm" else row for row in good]
    assert len(fig08.misses(slow)) == len(transfer.PAPER) + 1
    assert fig08.misses([replace(row, messages=row.messages // 100) for row in slow]) == []
