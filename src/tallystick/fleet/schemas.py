"""The schemas of the fleet's topics, as one writes them when making a topic.

tally topic create telemetry --schema "$(tally fleet schema telemetry)"
"""

from __future__ import annotations

from tallystick.errors import Misuse
from tallystick.record.schema import Schema

TELEMETRY = """
ts timestamp[ms, UTC] not null,
vin string not null,
latitude float64 not null,
longitude float64 not null,
heading_deg float32 not null,
speed_kmh float32 not null,
acceleration_ms2 float32 not null,
odometer_km float64 not null,
ignition bool not null,
engine_rpm float32 not null,
gear int8 not null,
engine_load_pct float32 not null,
throttle_pct float32 not null,
coolant_c float32 not null,
fuel_rate_lh float32 not null,
fuel_level_pct float32 not null,
battery_v float32 not null
"""

CAN = """
ts timestamp[us, UTC] not null,
vin string not null,
bus uint8 not null,
can_id uint32 not null,
payload binary not null
"""

VITALS = """
ts timestamp[ms, UTC] not null,
patient string not null,
systolic_mmhg float32 not null,
diastolic_mmhg float32 not null,
heart_rate_bpm float32 not null
"""

HOME = """
ts timestamp[ms, UTC] not null,
home string not null,
temperature_c float32 not null,
humidity_pct float32 not null,
pm25_ugm3 float32 not null
"""

# What real files hold; whatever a file leaves out or marks as unknown is null.
POSITIONS = """
ts timestamp[ms, UTC] not null,
vehicle string not null,
speed_kmh float32,
route string,
trip string,
latitude float64,
longitude float64,
headsign string
"""

DRIVES = """
ts timestamp[ms, UTC] not null,
drive string not null,
engine_run_s float32 not null,
engine_rpm float32,
speed_kmh float32,
throttle_pct float32,
engine_load_pct float32,
coolant_c float32,
long_fuel_trim_pct float32,
short_fuel_trim_pct float32,
manifold_kpa float32,
fuel_level_pct float32,
throttle_b_pct float32,
pedal_d_pct float32,
pedal_e_pct float32,
commanded_throttle_pct float32,
fuel_air_ratio float32,
barometric_kpa float32,
relative_throttle_pct float32,
intake_air_c float32,
timing_advance_deg float32,
catalyst_1_c float32,
catalyst_2_c float32,
battery_v float32,
evaporative_purge_pct float32,
run_with_mil_min float32,
since_codes_cleared_min float32,
distance_with_mil_km float32,
warm_ups_since_cleared float32
"""

TEXTS = {
    "telemetry": TELEMETRY,
    "can": CAN,
    "vitals": VITALS,
    "home": HOME,
    "positions": POSITIONS,
    "drives": DRIVES,
}


def schema(name: str) -> Schema:
    """The schema of that name; raises `Misuse` for another."""
    if name not in TEXTS:
        raise Misuse(f'the fleet has no schema "{name}", expected one of {", ".join(TEXTS)}')
    return Schema.parse(" ".join(TEXTS[name].split()))
