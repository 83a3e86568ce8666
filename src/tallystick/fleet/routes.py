"""A made-up city: a square grid of roads with lights, and routes through it.

A *line* is one road from edge to edge. Lines of axis 0 run east (their number counts northwards), lines of axis 1 run
north (their number counts eastwards), so that a crossing is a pair of numbers and a route is a few straight legs. Two
lines of each axis are motorways, every fifth is an arterial, the rest are streets. A line has one speed limit; no
motorway has lights. The city lies on the Dogger Bank, where nobody lives: its tracks cannot be mistaken for anybody's.

A route has at most three legs, each perpendicular to the one before: to a fast line, along it, and to the destination.
Left out: one-way streets, curves, other traffic.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tallystick.kernels.jit import compiled

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

LINES = 41  # of each axis
BLOCK_M = 200.0
ORIGIN_LATITUDE, ORIGIN_LONGITUDE = 54.90, 2.60  # of crossing (0, 0), the south-west corner
METRES_PER_DEGREE = 111_320.0
EAST, NORTH = 0, 1

MOTORWAY_KMH, ARTERIAL_KMH, STREET_KMH = 100.0, 60.0, 40.0
ALL_RED_S = 3.0
MOTORWAY_TRIP_BLOCKS = 12  # trips at least so long are worth a detour to the motorway
_CITY_SEED = 1909  # the lights' timing belongs to the city, not to a simulation

# A leg runs along `line` of `axis` from `start_m`, in `direction` (1 or -1), for `length_m`, which may be 0.
LEG = np.dtype(
    [
        ("axis", np.int64),
        ("line", np.int64),
        ("start_m", np.float64),
        ("direction", np.float64),
        ("length_m", np.float64),
    ]
)
LEGS = 3


class City(NamedTuple):
    """Speed limits by line, equal for both axes, and lights by crossing (east-running line, north-running line)."""

    limit_ms: Floats
    cycle_s: Floats  # 0 where there are no lights
    offset_s: Floats


@cache
def city() -> City:
    """The one city."""
    numbers = np.arange(LINES)
    motorway, arterial = numbers % 20 == 10, numbers % 5 == 0
    limit_kmh = np.where(motorway, MOTORWAY_KMH, np.where(arterial, ARTERIAL_KMH, STREET_KMH))
    signalled = (arterial[:, None] | arterial[None, :]) & ~motorway[:, None] & ~motorway[None, :]
    generator = np.random.default_rng(_CITY_SEED)
    cycle_s = generator.choice([50.0, 60.0, 80.0], size=(LINES, LINES))
    offset_s = generator.random((LINES, LINES)) * cycle_s
    return City(limit_kmh / 3.6, np.where(signalled, cycle_s, 0.0), offset_s)


@compiled(nogil=True, error_model="numpy")
def is_red(city: City, axis: int, line: int, crossed: int, at_s: float) -> bool:
    """Whether traffic along `line` must stop where it meets the line `crossed`. Each axis has half of a cycle."""
    east_line, north_line = (line, crossed) if axis == EAST else (crossed, line)
    cycle_s = city.cycle_s[east_line, north_line]
    if cycle_s == 0.0:
        return False
    phase_s = at_s + city.offset_s[east_line, north_line]
    if axis == NORTH:
        phase_s += cycle_s / 2
    phase_s -= cycle_s * int(phase_s / cycle_s)
    return bool(phase_s >= cycle_s / 2 - ALL_RED_S)


@compiled(nogil=True, error_model="numpy")
def plan(generator: np.random.Generator, legs: Any, east_line: int, north_line: int) -> tuple[int, int]:
    """Write to `legs` a route from a crossing to another, and return that: (east-running, north-running line).

    Half of the routes begin along a north-running line, half along an east-running one, so that both axes carry fast
    traffic; `across` is the axis of the middle leg.
    """
    turned = generator.random() < 0.5
    across = NORTH if turned else EAST
    near, side = (north_line, east_line) if turned else (east_line, north_line)
    far = int(generator.integers(0, LINES))
    other_side = (side + int(generator.integers(2, LINES - 2))) % LINES
    fast = _fast_line(near, abs(other_side - side))
    _put(legs[0], 1 - across, side, near, fast)
    _put(legs[1], across, fast, side, other_side)
    _put(legs[2], 1 - across, other_side, fast, far)
    return (other_side, far) if turned else (far, other_side)


@compiled(nogil=True, error_model="numpy")
def _fast_line(near: int, blocks: int) -> int:
    """The nearest motorway for a long way, else the nearest arterial."""
    if blocks >= MOTORWAY_TRIP_BLOCKS:
        return 10 if near < LINES // 2 else 30
    return (near + 2) // 5 * 5


@compiled(nogil=True, error_model="numpy")
def _put(leg: Any, axis: int, line: int, first: int, last: int) -> None:
    leg.axis = axis
    leg.line = line
    leg.start_m = first * BLOCK_M
    leg.direction = 1.0 if last > first else -1.0
    leg.length_m = abs(last - first) * BLOCK_M


def to_degrees(east_m: Any, north_m: Any) -> tuple[Any, Any]:
    """Latitude and longitude of a point by its metres from the origin, as if the city were flat."""
    latitude = ORIGIN_LATITUDE + north_m / METRES_PER_DEGREE
    longitude = ORIGIN_LONGITUDE + east_m / (METRES_PER_DEGREE * np.cos(np.radians(ORIGIN_LATITUDE)))
    return latitude, longitude
