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

# What detection tells of a bus. A time is that of a hit; seen, low and high are in the check's own unit: microseconds,
# frames, or a field as it is sent.
ALERTS = """
ts_first timestamp[us, UTC] not null,
ts_last timestamp[us, UTC] not null,
vin string not null,
can_id uint32 not null,
check string not null,
signal string not null,
seen float64,
low float64,
high float64,
strength float32 not null,
frames int64 not null,
first_frame int64 not null,
last_frame int64 not null,
profile string not null
"""

_OF_A_DRIVE = """
engine_rpm speed_kmh throttle_pct engine_load_pct coolant_c long_fuel_trim_pct short_fuel_trim_pct manifold_kpa
fuel_level_pct throttle_b_pct pedal_d_pct pedal_e_pct commanded_throttle_pct fuel_air_ratio barometric_kpa
relative_throttle_pct intake_air_c timing_advance_deg catalyst_1_c catalyst_2_c battery_v evaporative_purge_pct
run_with_mil_min since_codes_cleared_min distance_with_mil_km warm_ups_since_cleared
"""
DRIVES = "ts timestamp[ms, UTC] not null, drive string not null, engine_run_s float32 not null, " + ", ".join(
    f"{name} float32" for name in _OF_A_DRIVE.split()
)

TEXTS = {"telemetry": TELEMETRY, "can": CAN, "vitals": VITALS, "home": HOME}
TEXTS |= {"positions": POSITIONS, "drives": DRIVES, "alerts": ALERTS}


def schema(name: str) -> Schema:
    """The schema of that name. Raises `Misuse` for another."""
    if name not in TEXTS:
        raise Misuse(f'the fleet has no schema "{name}", expected one of {", ".join(TEXTS)}')
    return Schema.parse(" ".join(TEXTS[name].split()))
