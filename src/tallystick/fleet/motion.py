"""How the vehicles move, one step at a time.

A vehicle is parked, idles, drives its route, idles again, and parks. While it drives, its next speed is the greatest
that respects these bounds: what its driver's foot allows, the limit of the line, and for each point ahead where it must
be slow (a turn, a red light, the end of the route) the speed from which it can still slow down in comfort.

For such a point at distance d with speed u, comfortable braking b and step h, the next speed w must satisfy
w² ≤ u² + 2b(d − (v + w)h/2). Whoever satisfies v² ≤ u² + 2bd now can satisfy it next by braking with b at most: for
w = v − bh the two inequalities are the same. So no braking is ever harder than b, and everything harder is a harsh
event that was drawn on purpose and written down. Distance is the trapezium of speeds, (v + w)h/2, so that it can be
integrated from the rows.

Lights turn red without warning. A vehicle that could not stop in comfort passes, as at amber.

The loop is compiled: it draws from the generator in the order of steps and, within one, of vehicles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tallystick.fleet.routes import BLOCK_M, EAST, LEG, LEGS, LINES, Bools, City, Floats, city, is_red, plan
from tallystick.kernels.jit import compiled

PARKED, WARMING, DRIVING, WAITING = range(4)  # the phases of a trip, in their order

TURN_MS = 5.0  # speed through a turn
STOP_GAP_M = 5.0  # where one stops before a crossing
NEAR_M = 5.0  # standing so near the end of the route is arriving
CREEP_MS = 0.1  # whoever may go no faster stands

HARSH_MS2 = 3.5  # from here on a change of speed is an event
COMFORTABLE_MS2 = 2.6  # what other driving never exceeds
HARSH_BRAKE_MS = 10.0  # harsh braking happens from at least this speed
HARSH_EVERY_S = 240.0  # of driving, on average
HARSH_APART_S = 20.0  # at least

CAR = np.dtype(
    [
        ("acceleration", np.float64),  # of the driver, m/s²
        ("braking", np.float64),
        ("pace", np.float64),  # the share of the limit that is driven
        ("phase", np.int64),
        ("until_s", np.float64),  # when the phase ends; driving ends by arriving
        ("east_line", np.int64),  # the crossing where it is parked, or will be
        ("north_line", np.int64),
        ("leg", np.int64),
        ("along_m", np.float64),  # since the leg's start
        ("east_m", np.float64),
        ("north_m", np.float64),
        ("heading_deg", np.float64),
        ("speed_ms", np.float64),
        ("distance_m", np.float64),
        ("harsh_in_s", np.float64),  # of driving, until the next event
        ("harsh_steps", np.int64),  # left of the present one
        ("harsh_ms2", np.float64),
        ("limit_ms", np.float64),  # of the road that was driven on in this step; 0 where none was
        ("harsh_begins", np.int64),  # steps of the event that begins in this step; 0 where none does
    ]
)


class Track(NamedTuple):
    """Some steps of all vehicles: arrays of [step, vehicle]."""

    east_m: Floats
    north_m: Floats
    heading_deg: Floats
    speed_ms: Floats
    acceleration_ms2: Floats  # since the step before
    distance_m: Floats  # since the simulation began
    limit_ms: Floats  # of the road that was driven on since the step before; 0 where none was
    running: Bools  # the engine
    harsh_ms2: Floats  # strength of the harsh event that this step begins, else 0
    harsh_steps: npt.NDArray[np.int64]  # for how many steps


class Motion:
    """The present state of all vehicles; `advance` moves it on."""

    def __init__(self, vehicles: int, step_s: float, generator: np.random.Generator) -> None:
        self._step, self._step_s, self._generator = 0, step_s, generator
        self._city = city()
        self._legs = np.zeros((vehicles, LEGS), dtype=LEG)
        self._cars = cars = np.zeros(vehicles, dtype=CAR)
        cars["acceleration"] = generator.uniform(1.0, 2.2, vehicles)
        cars["braking"] = generator.uniform(1.8, COMFORTABLE_MS2, vehicles)
        cars["pace"] = generator.uniform(0.88, 1.0, vehicles)
        cars["phase"] = PARKED
        cars["until_s"] = generator.exponential(40.0, vehicles)  # most set off within the first minutes
        cars["east_line"], cars["north_line"] = generator.integers(0, LINES, (2, vehicles))
        cars["east_m"], cars["north_m"] = cars["north_line"] * BLOCK_M, cars["east_line"] * BLOCK_M
        cars["heading_deg"] = generator.integers(0, 4, vehicles) * 90.0
        cars["harsh_in_s"] = generator.exponential(HARSH_EVERY_S, vehicles)

    def advance(self, steps: int) -> Track:
        """The next `steps` rows of every vehicle."""
        shape = (steps, len(self._cars))
        types = {"running": np.bool_, "harsh_steps": np.int64}
        track = Track(**{name: np.zeros(shape, types.get(name, np.float64)) for name in Track._fields})
        _advance(self._cars, self._legs, self._city, self._generator, self._step, self._step_s, track)
        self._step += steps
        return track


@compiled(nogil=True, error_model="numpy")
def _advance(
    cars: Any, legs: Any, city: City, generator: np.random.Generator, first: int, step_s: float, track: Track
) -> None:
    for row in range(track.speed_ms.shape[0]):
        now_s = (first + row) * step_s
        for i in range(len(cars)):
            car = cars[i]
            before = car.speed_ms
            car.limit_ms, car.harsh_begins = 0.0, 0
            if first + row > 0 and car.phase == DRIVING:
                _drive(car, legs[i], city, generator, now_s, step_s)
            _change_phase(car, legs[i], generator, now_s)
            track.east_m[row, i] = car.east_m
            track.north_m[row, i] = car.north_m
            track.heading_deg[row, i] = car.heading_deg
            track.speed_ms[row, i] = car.speed_ms
            track.acceleration_ms2[row, i] = (car.speed_ms - before) / step_s
            track.distance_m[row, i] = car.distance_m
            track.limit_ms[row, i] = car.limit_ms
            track.running[row, i] = car.phase != PARKED
            if car.harsh_begins:
                track.harsh_ms2[row, i] = car.harsh_ms2
                track.harsh_steps[row, i] = car.harsh_begins


# --- driving ---


@compiled(nogil=True, error_model="numpy")
def _drive(car: Any, legs: Any, city: City, generator: np.random.Generator, now_s: float, step_s: float) -> None:
    """One step of a vehicle that drives."""
    leg = legs[car.leg]
    last = _is_last(legs, car.leg)
    car.limit_ms = city.limit_ms[leg.line]
    to_end = leg.length_m - car.along_m
    bound = min(car.limit_ms * car.pace, _slow_bound(car, to_end, 0.0 if last else TURN_MS, step_s))
    if not (last and to_end < BLOCK_M):  # the route ends before the last crossing
        bound = min(bound, _light_bound(car, leg, city, now_s, step_s))

    car.harsh_in_s -= step_s
    if car.harsh_in_s <= 0.0:
        _begin_harsh(car, generator, bound, step_s)

    before = car.speed_ms
    car.speed_ms = _next_speed(car, bound, step_s)
    moved = (before + car.speed_ms) * step_s / 2
    car.along_m += moved
    car.distance_m += moved
    if not last and car.along_m >= leg.length_m:  # a turn; what is left of the step goes along the next leg
        car.along_m -= leg.length_m
        car.leg += 1
    _place(car, legs[car.leg])


@compiled(nogil=True, error_model="numpy")
def _next_speed(car: Any, bound: float, step_s: float) -> float:
    if car.harsh_steps > 0:
        car.harsh_steps -= 1
        if car.harsh_ms2 < 0.0:
            return float(max(car.speed_ms + car.harsh_ms2 * step_s, 0.0))
        wanted = car.speed_ms + car.harsh_ms2 * step_s
    else:
        wanted = car.speed_ms + car.acceleration * step_s
    wanted = 0.0 if bound < CREEP_MS else min(wanted, bound)
    return float(max(wanted, car.speed_ms - car.braking * step_s, 0.0))


@compiled(nogil=True, error_model="numpy")
def _slow_bound(car: Any, ahead_m: float, slow_ms: float, step_s: float) -> float:
    """The greatest next speed from which `slow_ms` can be reached within `ahead_m`."""
    reach = car.braking * step_s
    square = slow_ms * slow_ms + 2.0 * car.braking * ahead_m - reach * car.speed_ms
    root = np.sqrt(max(reach * reach + 4.0 * square, 0.0))
    return float(max((root - reach) / 2, slow_ms))


@compiled(nogil=True, error_model="numpy")
def _light_bound(car: Any, leg: Any, city: City, now_s: float, step_s: float) -> float:
    """The bound of the light at the next crossing: none if it is green, or if it is too late to stop."""
    blocks = int(car.along_m / BLOCK_M) + 1
    crossed = int(leg.start_m / BLOCK_M + leg.direction * blocks)
    if not is_red(city, leg.axis, leg.line, crossed, now_s):
        return np.inf
    to_stop = max(blocks * BLOCK_M - car.along_m - STOP_GAP_M, 0.0)
    reach = car.braking * step_s
    if car.speed_ms * car.speed_ms > 2.0 * car.braking * to_stop + reach * reach:
        return np.inf
    return _slow_bound(car, to_stop, 0.0, step_s)


@compiled(nogil=True, error_model="numpy")
def _begin_harsh(car: Any, generator: np.random.Generator, bound: float, step_s: float) -> None:
    """An event falls due by the clock of driving and happens at the first moment that suits it."""
    if car.speed_ms >= HARSH_BRAKE_MS:
        car.harsh_ms2 = -generator.uniform(4.5, 7.0)
    elif car.speed_ms > 2.0 and bound > car.speed_ms + 4.6 * step_s:
        car.harsh_ms2 = generator.uniform(3.8, 4.5)
    else:
        return
    car.harsh_steps = car.harsh_begins = max(1, int(generator.uniform(0.9, 1.6) / step_s))
    car.harsh_in_s = HARSH_APART_S + generator.exponential(HARSH_EVERY_S)


@compiled(nogil=True, error_model="numpy")
def _is_last(legs: Any, leg: int) -> bool:
    return bool(leg == LEGS - 1 or legs[leg + 1].length_m == 0.0)


@compiled(nogil=True, error_model="numpy")
def _place(car: Any, leg: Any) -> None:
    along, across = leg.start_m + leg.direction * car.along_m, leg.line * BLOCK_M
    if leg.axis == EAST:
        car.east_m, car.north_m = along, across
        car.heading_deg = 180.0 - 90.0 * leg.direction
    else:
        car.east_m, car.north_m = across, along
        car.heading_deg = 90.0 - 90.0 * leg.direction


# --- the phases of a trip ---


@compiled(nogil=True, error_model="numpy")
def _change_phase(car: Any, legs: Any, generator: np.random.Generator, now_s: float) -> None:
    if car.phase == DRIVING:
        if car.speed_ms == 0.0 and _is_last(legs, car.leg) and legs[car.leg].length_m - car.along_m < NEAR_M:
            car.phase = WAITING
            long_wait = generator.random() < 0.15
            car.until_s = now_s + (180.0 if long_wait else 15.0) * generator.uniform(0.3, 1.7)
    elif now_s < car.until_s:
        pass
    elif car.phase == PARKED:
        car.phase = WARMING
        car.until_s = now_s + generator.uniform(4.0, 25.0)
    elif car.phase == WARMING:
        car.phase = DRIVING
        car.east_line, car.north_line = plan(generator, legs, car.east_line, car.north_line)
        car.leg = 1 if legs[0].length_m == 0.0 else 0
        car.along_m, car.harsh_steps = 0.0, 0
        _place(car, legs[car.leg])
    else:
        car.phase = PARKED
        car.until_s = now_s + generator.uniform(60.0, 600.0)
