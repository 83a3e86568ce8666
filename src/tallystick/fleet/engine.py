"""What the engine does for a given motion: gear, revolutions, power, fuel and heat, from physics and arrays.

Power at the wheels is what inertia, rolling and air resistance ask for. The engine adds its own friction, which grows
with its revolutions, and turns fuel into work along a Willans line: fuel is proportional to work plus friction. In
overrun it still burns a little, so that a running engine always does. Left out: slopes, wind, automatic gearboxes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tallystick.fleet.routes import Bools, Floats

GRAVITY_MS2 = 9.81
AIR_KG_M3 = 1.2
ROLLING = 0.011
DRIVETRAIN = 0.92  # of the engine's work arrives at the wheels
INDICATED = 0.38  # of the fuel's heat becomes work
FUEL_J_PER_L = 32.4e6  # petrol
AUXILIARY_W = 600.0
OVERRUN = 0.3  # of the idling rate, while the wheels drive the engine

IDLE_RPM = 800.0
GEAR_FROM_MS = np.array([0.5, 5.0, 9.5, 14.0, 19.0])  # the least speed of gears 1 to 5
RPM_PER_MS = np.array([0.0, 420.0, 235.0, 160.0, 122.0, 98.0])  # by gear; 0 is neutral

THERMOSTAT_C = 90.0
HEAT_TO_COOLANT = 0.30  # of the fuel's heat
COOLANT_J_PER_K = 60_000.0
COOLING_W_PER_K = 8.0  # before the thermostat opens


@dataclass(frozen=True)
class Bodies:
    """What does not change about the vehicles: arrays by vehicle."""

    mass_kg: Floats
    drag_m2: Floats  # drag coefficient times frontal area
    power_w: Floats
    tank_l: Floats
    friction_w: Floats  # at idle

    @classmethod
    def draw(cls, vehicles: int, generator: np.random.Generator) -> Bodies:
        """Four cars to one van."""
        van = generator.random(vehicles) < 0.2
        return cls(
            mass_kg=np.where(van, 2_600.0, 1_450.0) * generator.uniform(0.85, 1.15, vehicles),
            drag_m2=np.where(van, 1.4, 0.66) * generator.uniform(0.92, 1.08, vehicles),
            power_w=np.where(van, 110_000.0, 85_000.0) * generator.uniform(0.85, 1.2, vehicles),
            tank_l=np.where(van, 70.0, 50.0),
            friction_w=np.where(van, 2_400.0, 1_800.0) * generator.uniform(0.9, 1.1, vehicles),
        )


@dataclass(frozen=True)
class Work:
    """What the engine did: arrays of [step, vehicle]."""

    gear: np.ndarray[tuple[int, ...], np.dtype[np.int8]]
    rpm: Floats
    load: Floats  # 0 to 1
    fuel_l_s: Floats


def work(bodies: Bodies, speed_ms: Floats, acceleration_ms2: Floats, running: Bools) -> Work:
    """The engine's work for a motion."""
    gear = np.searchsorted(GEAR_FROM_MS, speed_ms, side="right").astype(np.int8)
    rpm = np.where(running, np.maximum(IDLE_RPM, RPM_PER_MS[gear] * speed_ms), 0.0)
    force = bodies.mass_kg * (acceleration_ms2 + GRAVITY_MS2 * ROLLING * (speed_ms > 0.0))
    force += (0.5 * AIR_KG_M3) * bodies.drag_m2 * speed_ms * speed_ms
    wheels_w = force * speed_ms
    driving_w = np.minimum(np.maximum(wheels_w, 0.0) / DRIVETRAIN, bodies.power_w)
    own_w = bodies.friction_w * (rpm / IDLE_RPM) + AUXILIARY_W
    idle_w = bodies.friction_w + AUXILIARY_W
    burning_w = np.where(wheels_w < 0.0, OVERRUN * idle_w, driving_w + own_w)
    fuel_l_s = np.where(running, burning_w / (INDICATED * FUEL_J_PER_L), 0.0)
    return Work(gear, rpm, np.where(running, np.minimum(burning_w / bodies.power_w, 1.0), 0.0), fuel_l_s)


def coolant(start_c: Floats, fuel_l_s: Floats, ambient_c: Floats, step_s: float) -> Floats:
    """The coolant's temperature after each step, from `start_c` before the first; the thermostat holds the rest."""
    warmth = fuel_l_s * (FUEL_J_PER_L * HEAT_TO_COOLANT * step_s / COOLANT_J_PER_K)
    keep = 1.0 - COOLING_W_PER_K * step_s / COOLANT_J_PER_K
    out = np.empty_like(fuel_l_s)
    present = start_c
    for row in range(len(out)):
        present = np.minimum(ambient_c + (present - ambient_c) * keep + warmth[row], THERMOSTAT_C)
        out[row] = present
    return out
