"""The hospital and the homes: daily rhythms, anomalies that the rows show where the truth says, seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tallystick.errors import Misuse
from tallystick.fleet.city import TENANTS, Sensors
from tallystick.fleet.schemas import schema
from tallystick.record.batch import Batch

DAY_S = 86_400


def day(kind: str, sensors: int = 20) -> tuple[pd.DataFrame, Sensors]:
    source = Sensors(kind, sensors, DAY_S, step_s=60, seed=3)
    return pa.Table.from_batches(list(source.batches())).to_pandas(), source


@pytest.mark.parametrize("kind", TENANTS)
def test_rows_are_of_the_schema_and_complete(kind: str) -> None:
    source = Sensors(kind, 7, 600, step_s=5, seed=1)
    batches = [Batch.of(schema(kind), batch).data for batch in source.batches(chunk_rows=100)]
    frame = pa.Table.from_batches(batches).to_pandas()
    assert len(frame) == 7 * 120
    assert frame.ts.is_monotonic_increasing
    assert set(frame.iloc[:, 1]) == set(source.names)


def test_values_have_a_daily_rhythm() -> None:
    vitals, _ = day("vitals")
    by_hour = vitals.groupby(vitals.ts.dt.hour).heart_rate_bpm.median()
    assert by_hour.loc[16] > by_hour.loc[4] + 10
    home, _ = day("home")
    by_hour = home.groupby(home.ts.dt.hour).temperature_c.median()
    assert by_hour.loc[17] > by_hour.loc[5] + 2
    assert home.humidity_pct.between(0, 100).all()


@pytest.mark.parametrize(
    ("kind", "anomaly", "column", "least"),
    [
        ("vitals", "tachycardia", "heart_rate_bpm", 40),
        ("vitals", "hypertension", "systolic_mmhg", 40),
        ("home", "smoke", "pm25_ugm3", 100),
        ("home", "heating-failure", "temperature_c", -5),
    ],
)
def test_anomalies_show_where_the_truth_says(kind: str, anomaly: str, column: str, least: float) -> None:
    frame, source = day(kind)
    found = 0
    for truth in source.anomalies:
        if truth.kind != anomaly:
            continue
        own = frame[frame.iloc[:, 1] == truth.sensor]
        ms = own.ts.astype("int64") if own.ts.dt.unit == "ms" else own.ts.astype("int64") // 10**6
        inside = own[(ms >= truth.start_ms) & (ms < truth.end_ms)][column]
        around = own[(ms >= truth.start_ms - 3_600_000) & (ms < truth.start_ms)][column]
        if inside.empty or around.empty:
            continue
        found += 1
        shift = inside.median() - around.median()
        assert shift > least if least > 0 else shift < least
    assert found >= 3


def test_seeds_chunks_and_tenants() -> None:
    def rows(kind: str, seed: int, chunk_rows: int) -> pa.Table:
        return pa.Table.from_batches(list(Sensors(kind, 9, 900, step_s=3, seed=seed).batches(chunk_rows)))

    assert rows("vitals", 1, 10**6).equals(rows("vitals", 1, 37))
    assert not rows("vitals", 1, 1000).equals(rows("vitals", 2, 1000))
    vitals, home = (np.array(Sensors(kind, 9, 3, seed=1).anomalies) for kind in TENANTS)
    assert vitals.tolist() == home.tolist() == []


@pytest.mark.parametrize(("kind", "sensors", "seconds"), [("pulse", 1, 1), ("home", 0, 1), ("home", 1, 0)])
def test_wrong_arguments_are_refused(kind: str, sensors: int, seconds: int) -> None:
    with pytest.raises(Misuse):
        Sensors(kind, sensors, seconds)
