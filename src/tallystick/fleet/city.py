"""Sensors of a city: the two tenants of BPS 5.1.

A hospital measures the blood pressure and heart rate of its patients, a home provider temperature, humidity and
pollution in its homes. Each value is a person's or a home's own level, a rhythm of the day, noise that remembers
itself (an autoregressive process), and now and then an anomaly whose beginning, end and kind are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tallystick.errors import Misuse
from tallystick.fleet.batches import START_MS, Simulation
from tallystick.fleet.routes import Floats
from tallystick.fleet.schemas import schema

DAY_S = 86_400.0
BLOCK_CELLS = 16_384
SENSORS_MAX = 1_000_000
MEMORY = 0.97  # of the noise, from one measurement to the next
ANOMALY_EVERY_S = 6 * 3600.0  # per sensor, on average; one at a time
ANOMALY_S = (60.0, 900.0)


@dataclass(frozen=True)
class Anomaly:
    """One sensor's anomaly: the rows with `start_ms` ≤ ts < `end_ms` show it."""

    sensor: str
    kind: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class Quantity:
    """One measured value: its level and spread between sensors, its daily swing and hour of the peak, and its noise."""

    level: float
    spread: float
    swing: float
    peak_h: float
    noise: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Tenant:
    """What a tenant's sensors measure, in the order of the schema, and how an anomaly shifts each value."""

    prefix: str
    quantities: tuple[Quantity, ...]
    anomalies: dict[str, tuple[float, ...]]


TENANTS = {
    "vitals": Tenant(
        "patient",
        (
            Quantity(122.0, 9.0, 8.0, 15.0, 3.0, 50.0, 260.0),
            Quantity(78.0, 6.0, 5.0, 15.0, 2.0, 30.0, 160.0),
            Quantity(72.0, 8.0, 9.0, 16.0, 3.0, 25.0, 230.0),
        ),
        {"tachycardia": (5.0, 0.0, 65.0), "hypertension": (60.0, 32.0, 8.0), "hypotension": (-42.0, -26.0, 18.0)},
    ),
    "home": Tenant(
        "home",
        (
            Quantity(20.5, 1.2, 1.5, 17.0, 0.15, -10.0, 60.0),
            Quantity(45.0, 5.0, -4.0, 17.0, 0.8, 2.0, 100.0),
            Quantity(9.0, 3.0, 4.0, 19.0, 0.8, 0.0, 1000.0),
        ),
        {"heating-failure": (-9.0, 12.0, 0.0), "smoke": (4.0, -6.0, 180.0), "damp": (-1.0, 35.0, 0.0)},
    ),
}


class Sensors(Simulation):
    """The sensors of one tenant, and the anomalies that they show."""

    _another = "other Sensors"

    def __init__(
        self, kind: str, sensors: int, seconds: float, *, step_s: float = 1.0, seed: int = 0, start_ms: int = START_MS
    ) -> None:
        if kind not in TENANTS:
            raise Misuse(f'sensors of the kind "{kind}" are unknown, expected one of {", ".join(TENANTS)}')
        if not 1 <= sensors <= SENSORS_MAX:
            raise Misuse(f"sensors: 1 to {SENSORS_MAX} expected, found {sensors}")
        if step_s <= 0 or seconds <= 0 or seed < 0:
            raise Misuse("seconds and step_s must be more than 0, and the seed not negative")
        self._tenant, self._schema = TENANTS[kind], schema(kind).arrow
        super().__init__(seconds, step_s, start_ms)
        self._count = sensors
        traits, *self._noise = np.random.default_rng([seed, *kind.encode()]).spawn(1 + len(self._tenant.quantities))
        self.names = [f"{self._tenant.prefix}-{number:06d}" for number in range(sensors)]
        self._levels = [traits.normal(q.level, q.spread, sensors) for q in self._tenant.quantities]
        self._drift = [np.zeros(sensors) for _ in self._tenant.quantities]
        self.anomalies = self._draw_anomalies(traits)
        self._begin_ms = np.array([anomaly.start_ms for anomaly in self.anomalies], dtype=np.int64)
        self._end_ms = np.array([anomaly.end_ms for anomaly in self.anomalies], dtype=np.int64)

    def _draw_anomalies(self, generator: np.random.Generator) -> list[Anomaly]:
        """Drawn beforehand, by sensor and then by time."""
        kinds = list(self._tenant.anomalies)
        found = []
        for name in self.names:
            at_s = generator.exponential(ANOMALY_EVERY_S)
            while at_s < self._steps * self._step_s:
                end_s = at_s + generator.uniform(*ANOMALY_S)
                kind = kinds[int(generator.integers(len(kinds)))]
                found.append(Anomaly(name, kind, self._start_ms + int(at_s * 1000), self._start_ms + int(end_s * 1000)))
                at_s = end_s + generator.exponential(ANOMALY_EVERY_S)
        return found

    def _blocks(self) -> Iterator[pa.RecordBatch]:
        block = max(1, BLOCK_CELLS // self._count)
        names = pa.array(self.names, pa.string())
        for first in range(0, self._steps, block):
            steps = np.arange(first, min(first + block, self._steps))
            ts_ms = self._start_ms + np.rint(steps * (self._step_s * 1000)).astype(np.int64)
            shift = self._shift(ts_ms)
            values = [self._values(number, ts_ms) + shift[number] for number in range(len(shift))]
            arrays = [
                pa.array(np.repeat(ts_ms, self._count)).cast(pa.timestamp("ms", "UTC")),
                names.take(pa.array(np.tile(np.arange(self._count), len(steps)))),
                *(
                    pa.array(np.clip(value, q.lowest, q.highest).astype(np.float32).ravel())
                    for value, q in zip(values, self._tenant.quantities, strict=True)
                ),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _values(self, number: int, ts_ms: Any) -> Floats:
        quantity = self._tenant.quantities[number]
        hours = (ts_ms % int(DAY_S * 1000)) / 3_600_000.0
        rhythm = quantity.swing * np.cos((hours - quantity.peak_h) * (2 * np.pi / 24))
        fresh = self._noise[number].standard_normal((len(ts_ms), self._count)) * quantity.noise * np.sqrt(1 - MEMORY**2)
        out = np.empty_like(fresh)
        drift = self._drift[number]
        for row in range(len(fresh)):
            drift = MEMORY * drift + fresh[row]
            out[row] = drift
        self._drift[number] = drift
        values: Floats = self._levels[number] + rhythm[:, None] + out
        return values

    def _shift(self, ts_ms: Any) -> Floats:
        """What the anomalies add: an array of [quantity, step, sensor]."""
        shift = np.zeros((len(self._tenant.quantities), len(ts_ms), self._count))
        present = np.flatnonzero((self._begin_ms <= ts_ms[-1]) & (self._end_ms > ts_ms[0]))
        for anomaly in (self.anomalies[number] for number in present.tolist()):
            first, end = np.searchsorted(ts_ms, [anomaly.start_ms, anomaly.end_ms])
            sensor = int(anomaly.sensor.rpartition("-")[2])
            shift[:, first:end, sensor] = np.array(self._tenant.anomalies[anomaly.kind])[:, None]
        return shift
