"""The vehicles' telemetry: motion and engine, seen through sensors, as record batches in order of time; and its truth,
what really happened, against which a computation over the rows is checked.

    fleet = Fleet(vehicles=500, seconds=600, seed=7)
    for batch in fleet.batches():
        publisher.send(batch)
    fleet.truth.trips

The same arguments give the same bytes, and `chunk_rows` only decides where they are cut: the state moves by steps, and
each source of chance is a generator of its own that is drawn from in the order of steps. Motion goes step by step;
everything that follows from it is computed for a block of steps at once, which is what makes it fast. Memory is
bounded by a block, whatever the length of the simulation.

A vehicle reports at every step while its engine runs, once when it stops, and then once a minute while it is parked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tallystick.errors import Misuse
from tallystick.fleet import engine
from tallystick.fleet.batches import CHUNK_ROWS, START_MS, Simulation
from tallystick.fleet.motion import Motion, Track
from tallystick.fleet.routes import Bools, Floats, to_degrees
from tallystick.fleet.schemas import schema

BLOCK_CELLS = 16_384  # vehicles × steps computed at once: a block's arrays stay in the processor's cache
BLOCK_STEPS_MAX = 600  # a tank is looked at once a block
VEHICLES_MAX = 1_000_000  # some 700 bytes each for a block of one step
STEP_S_MIN, STEP_S_MAX = 0.05, 1.0  # with longer steps a vehicle would pass lights unseen
PARKED_EVERY_S = 60.0

GPS_SIGMA_M = 2.5
GPS_SIGMAS_MAX = 4.0  # a receiver throws away worse fixes
REFUEL_BELOW = 0.15  # of the tank, when the engine is off


@dataclass(frozen=True)
class Trip:
    """From the first row with the ignition on to the first with it off. `end_ms` is None while it still goes on.

    Idle time and fuel count the rows with the ignition on, each for one step; distance lies between the first row and
    the last.
    """

    vin: str
    start_ms: int
    end_ms: int | None
    distance_km: float
    idle_s: float
    fuel_l: float


@dataclass(frozen=True)
class HarshEvent:
    """A change of speed by at least 3.5 m/s², between the rows of `start_ms` and `end_ms`; its strength is signed."""

    vin: str
    start_ms: int
    end_ms: int
    acceleration_ms2: float

    @property
    def is_braking(self) -> bool:
        return self.acceleration_ms2 < 0


@dataclass
class Truth:
    """Trips by their start, harsh events by their start, and the sums over all vehicles."""

    vehicles: int
    trips: list[Trip] = field(default_factory=list)
    harsh: list[HarshEvent] = field(default_factory=list)
    rows: int = 0

    def plain(self) -> dict[str, Any]:
        """As a JSON document: sums, then every trip and every event."""
        return {
            **self.summary(),
            "trips": [asdict(trip) for trip in self.trips],
            "harsh": [asdict(event) for event in self.harsh],
        }

    def summary(self) -> dict[str, Any]:
        return {
            "vehicles": self.vehicles,
            "rows": self.rows,
            "trip_count": len(self.trips),
            "distance_km": round(sum(trip.distance_km for trip in self.trips), 6),
            "idle_s": round(sum(trip.idle_s for trip in self.trips), 6),
            "fuel_l": round(sum(trip.fuel_l for trip in self.trips), 6),
            "harsh_braking": sum(event.is_braking for event in self.harsh),
            "harsh_acceleration": sum(not event.is_braking for event in self.harsh),
        }


class Fleet(Simulation):
    """A seeded simulation of vehicles. `truth` is complete once `batches` is exhausted."""

    _another = "another Fleet"

    def __init__(
        self, vehicles: int, seconds: float, *, step_s: float = 1.0, seed: int = 0, start_ms: int = START_MS
    ) -> None:
        if not 1 <= vehicles <= VEHICLES_MAX:
            raise Misuse(f"vehicles: 1 to {VEHICLES_MAX} expected, found {vehicles}")
        if not STEP_S_MIN <= step_s <= STEP_S_MAX:
            raise Misuse(f"step_s: {STEP_S_MIN} to {STEP_S_MAX} seconds expected, found {step_s}")
        if seconds <= 0:
            raise Misuse(f"seconds: more than 0 expected, found {seconds}")
        if seed < 0:
            raise Misuse(f"seed: 0 or more expected, found {seed}")
        super().__init__(seconds, step_s, start_ms)
        self._vehicles = vehicles
        self._schema = schema("telemetry").arrow
        traits, motion, *noise = np.random.default_rng(seed).spawn(6)
        self._motion = Motion(vehicles, step_s, motion)
        self._bodies = engine.Bodies.draw(vehicles, traits)
        self._noise = noise  # one generator each: north, east, revolutions, voltage
        self.vins = [vin(seed, number) for number in range(vehicles)]
        self._vin_column = pa.array(self.vins, pa.string())
        self._ambient_c = traits.uniform(2.0, 12.0, vehicles)
        self._coolant_c = self._ambient_c.copy()
        self._odometer_km = traits.uniform(500.0, 180_000.0, vehicles)
        self._fuel_l = self._bodies.tank_l * traits.uniform(0.2, 1.0, vehicles)
        self._was_running: Bools = np.zeros(vehicles, dtype=np.bool_)
        self._idle_s, self._burnt_l = np.zeros(vehicles), np.zeros(vehicles)
        self._open: dict[int, tuple[int, Floats]] = {}  # vehicle: start of its trip; distance, idle time, fuel there
        self.truth = Truth(vehicles)

    def _blocks(self) -> Iterator[pa.RecordBatch]:
        block = min(max(1, BLOCK_CELLS // self._vehicles), BLOCK_STEPS_MAX)
        for first in range(0, self._steps, block):
            batch = self._block(first, min(block, self._steps - first))
            self.truth.rows += batch.num_rows
            yield batch
        self._finish()

    def _block(self, first: int, steps: int) -> pa.RecordBatch:
        track = self._motion.advance(steps)
        work = engine.work(self._bodies, track.speed_ms, track.acceleration_ms2, track.running)
        coolant_c = engine.coolant(self._coolant_c, work.fuel_l_s, self._ambient_c, self._step_s)
        idle_s = self._add_up(self._idle_s, track.running & (track.speed_ms == 0.0))
        burnt_l = self._add_up(self._burnt_l, work.fuel_l_s)
        self._write_truth(first, track, idle_s, burnt_l)
        level = self._fuel_level(burnt_l[:-1], track.running)
        reports = self._reports(first, track.running)
        self._coolant_c, self._was_running = coolant_c[-1], track.running[-1]
        self._idle_s, self._burnt_l = idle_s[-1], burnt_l[-1]
        return self._batch(first, track, work, coolant_c, level, reports)

    def _add_up(self, before: Floats, change: Any) -> Floats:
        """Running sums: row k is the sum before step k, and one row more is the sum after the last."""
        sums = np.empty((len(change) + 1, self._vehicles))
        sums[0] = before
        np.cumsum(change, axis=0, out=sums[1:], dtype=np.float64)
        sums[1:] *= self._step_s
        sums[1:] += before
        return sums

    def _fuel_level(self, burnt_l: Floats, running: Bools) -> Floats:
        """The share of the tank that is left. Filled up when nearly empty and parked, at the start of a block."""
        tank = self._bodies.tank_l
        refuel = ~running[0] & (self._fuel_l - burnt_l[0] < REFUEL_BELOW * tank)
        self._fuel_l = np.where(refuel, burnt_l[0] + tank, self._fuel_l)
        return np.maximum(self._fuel_l - burnt_l, 0.0) / tank

    def _reports(self, first: int, running: Bools) -> Bools:
        every = max(1, round(PARKED_EVERY_S / self._step_s))
        steps, who = np.arange(first, first + len(running))[:, None], np.arange(self._vehicles)[None, :]
        reports: Bools = running | self._before(running) | ((steps + who) % every == 0)
        return reports

    def _before(self, running: Bools) -> Bools:
        """The same one step earlier."""
        return np.vstack([self._was_running, running[:-1]])

    def _batch(
        self, first: int, track: Track, work: engine.Work, coolant_c: Floats, level: Floats, reports: Bools
    ) -> pa.RecordBatch:
        """What the sensors say, in the order of the schema."""
        north, east, revolutions, voltage = self._noise
        shape, running = track.speed_ms.shape, track.running
        latitude, longitude = to_degrees(
            track.east_m + _gps_error(east, shape), track.north_m + _gps_error(north, shape)
        )
        rpm = work.rpm + 8.0 * running * revolutions.standard_normal(shape, dtype=np.float32)
        volts = np.where(running, 14.1 - 0.4 * work.load, 12.5) + 0.03 * voltage.standard_normal(shape, np.float32)
        step, who = np.nonzero(reports)
        columns: list[Any] = [
            _ts(self._start_ms, first + step, self._step_s),
            self._vin_column.take(pa.array(who)),
            latitude[reports],
            longitude[reports],
            track.heading_deg[reports],
            3.6 * track.speed_ms[reports],
            track.acceleration_ms2[reports],
            (self._odometer_km + track.distance_m / 1000.0)[reports],
            running[reports],
            rpm[reports],
            work.gear[reports],
            100.0 * work.load[reports],
            np.minimum(12.0 + 80.0 * work.load, 100.0)[reports] * running[reports],
            coolant_c[reports],
            3600.0 * work.fuel_l_s[reports],
            100.0 * level[reports],
            volts[reports],
        ]
        arrays = [
            column if isinstance(column, pa.Array) else _array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    # --- what really happened ---

    def _write_truth(self, first: int, track: Track, idle_s: Floats, burnt_l: Floats) -> None:
        changes = np.argwhere(track.running != self._before(track.running))
        for row, vehicle in changes.tolist():
            here = np.array([track.distance_m[row, vehicle], idle_s[row, vehicle], burnt_l[row, vehicle]])
            if track.running[row, vehicle]:
                self._open[vehicle] = (self._ms(first + row), here)
            else:
                self._close_trip(vehicle, self._ms(first + row), here)
        for row, vehicle in np.argwhere(track.harsh_steps).tolist():
            begin = first + row - 1
            end = begin + int(track.harsh_steps[row, vehicle])
            strength = float(track.harsh_ms2[row, vehicle])
            self.truth.harsh.append(HarshEvent(self.vins[vehicle], self._ms(begin), self._ms(end), strength))
        self._distance_m = track.distance_m[-1]

    def _close_trip(self, vehicle: int, end_ms: int | None, here: Floats) -> None:
        start_ms, there = self._open.pop(vehicle)
        distance_m, idle_s, fuel_l = (here - there).tolist()
        self.truth.trips.append(Trip(self.vins[vehicle], start_ms, end_ms, distance_m / 1000.0, idle_s, fuel_l))

    def _finish(self) -> None:
        """Trips that still go on are counted up to the last row, and that row too for idle time and fuel."""
        sums = np.column_stack([self._distance_m, self._idle_s, self._burnt_l])
        for vehicle in sorted(self._open):
            self._close_trip(vehicle, None, sums[vehicle])
        self.truth.trips.sort(key=lambda trip: (trip.start_ms, trip.vin))

    def _ms(self, step: int) -> int:
        return self._start_ms + round(step * self._step_s * 1000)


def simulate(
    vehicles: int, seconds: float, step_s: float = 1.0, seed: int = 0, *, chunk_rows: int = CHUNK_ROWS
) -> Iterator[pa.RecordBatch]:
    """The telemetry of `Fleet`, for those who do not need its truth."""
    return Fleet(vehicles, seconds, step_s=step_s, seed=seed).batches(chunk_rows)


def vin(seed: int, number: int) -> str:
    """Seventeen characters, as vehicles have: ours begin with TLY, which no maker uses."""
    return f"TLY{seed % 10**6:06d}{number:08d}"


def _gps_error(generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
    sigmas = generator.standard_normal(shape, dtype=np.float32)
    return GPS_SIGMA_M * np.clip(sigmas, -GPS_SIGMAS_MAX, GPS_SIGMAS_MAX)


def _ts(start_ms: int, steps: Any, step_s: float) -> pa.Array:
    milliseconds = start_ms + np.rint(steps * (step_s * 1000.0)).astype(np.int64)
    return pa.array(milliseconds, pa.int64()).cast(pa.timestamp("ms", "UTC"))


def _array(values: Any, type_: pa.DataType) -> pa.Array:
    if pa.types.is_float32(type_):
        values = values.astype(np.float32)
    return pa.array(values, type_)
