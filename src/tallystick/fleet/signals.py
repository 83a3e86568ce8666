"""The signals of vehicles by their names in the COVESA Vehicle Signal Specification (VSS 4), and by OBD-II service 1.

VSS fixes a path, a type and a unit; our columns carry the same unit in their name, so that a value needs no change but
of its type. The time of a row is no signal.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Signal:
    """One signal: where VSS has it, in what unit and type, and the column of the fleet's rows that holds it."""

    column: str
    path: str
    unit: str
    datatype: str
    pid: int | None = None  # OBD-II service 1


SIGNALS = (
    Signal("vin", "Vehicle.VehicleIdentification.VIN", "", "string"),
    Signal("latitude", "Vehicle.CurrentLocation.Latitude", "degrees", "double"),
    Signal("longitude", "Vehicle.CurrentLocation.Longitude", "degrees", "double"),
    Signal("heading_deg", "Vehicle.CurrentLocation.Heading", "degrees", "double"),
    Signal("speed_kmh", "Vehicle.Speed", "km/h", "float", pid=0x0D),
    Signal("acceleration_ms2", "Vehicle.Acceleration.Longitudinal", "m/s^2", "float"),
    Signal("odometer_km", "Vehicle.TraveledDistance", "km", "float", pid=0xA6),
    Signal("ignition", "Vehicle.Powertrain.CombustionEngine.IsRunning", "", "boolean"),
    Signal("engine_rpm", "Vehicle.Powertrain.CombustionEngine.Speed", "rpm", "uint16", pid=0x0C),
    Signal("gear", "Vehicle.Powertrain.Transmission.CurrentGear", "", "int8", pid=0xA4),
    Signal("engine_load_pct", "Vehicle.OBD.EngineLoad", "percent", "float", pid=0x04),
    Signal("throttle_pct", "Vehicle.OBD.ThrottlePosition", "percent", "float", pid=0x11),
    Signal("coolant_c", "Vehicle.Powertrain.CombustionEngine.ECT", "celsius", "float", pid=0x05),
    Signal("fuel_rate_lh", "Vehicle.OBD.FuelRate", "l/h", "float", pid=0x5E),
    Signal("fuel_level_pct", "Vehicle.Powertrain.FuelSystem.RelativeLevel", "percent", "uint8", pid=0x2F),
    Signal("battery_v", "Vehicle.LowVoltageBattery.CurrentVoltage", "V", "float", pid=0x42),
)

# What recorded OBD-II drives have beyond that.
DRIVE_SIGNALS = (
    Signal("engine_run_s", "Vehicle.OBD.RunTime", "s", "float", pid=0x1F),
    Signal("long_fuel_trim_pct", "Vehicle.OBD.LongTermFuelTrim1", "percent", "float", pid=0x07),
    Signal("short_fuel_trim_pct", "Vehicle.OBD.ShortTermFuelTrim1", "percent", "float", pid=0x06),
    Signal("manifold_kpa", "Vehicle.OBD.MAP", "kPa", "float", pid=0x0B),
    Signal("throttle_b_pct", "Vehicle.OBD.ThrottlePositionB", "percent", "float", pid=0x47),
    Signal("pedal_d_pct", "Vehicle.OBD.AcceleratorPositionD", "percent", "float", pid=0x49),
    Signal("pedal_e_pct", "Vehicle.OBD.AcceleratorPositionE", "percent", "float", pid=0x4A),
    Signal("commanded_throttle_pct", "Vehicle.OBD.ThrottleActuator", "percent", "float", pid=0x4C),
    Signal("fuel_air_ratio", "Vehicle.OBD.CommandedEquivalenceRatio", "ratio", "float", pid=0x44),
    Signal("barometric_kpa", "Vehicle.OBD.BarometricPressure", "kPa", "float", pid=0x33),
    Signal("relative_throttle_pct", "Vehicle.OBD.RelativeThrottlePosition", "percent", "float", pid=0x45),
    Signal("intake_air_c", "Vehicle.OBD.IntakeTemp", "celsius", "float", pid=0x0F),
    Signal("timing_advance_deg", "Vehicle.OBD.TimingAdvance", "degrees", "float", pid=0x0E),
    Signal("catalyst_1_c", "Vehicle.OBD.Catalyst.Bank1.Temperature1", "celsius", "float", pid=0x3C),
    Signal("catalyst_2_c", "Vehicle.OBD.Catalyst.Bank1.Temperature2", "celsius", "float", pid=0x3E),
    Signal("evaporative_purge_pct", "Vehicle.OBD.CommandedEVAP", "percent", "float", pid=0x2E),
    Signal("run_with_mil_min", "Vehicle.OBD.RunTimeMIL", "min", "float", pid=0x4D),
    Signal("since_codes_cleared_min", "Vehicle.OBD.TimeSinceDTCCleared", "min", "float", pid=0x4E),
    Signal("distance_with_mil_km", "Vehicle.OBD.DistanceWithMIL", "km", "float", pid=0x21),
    Signal("warm_ups_since_cleared", "Vehicle.OBD.WarmupsSinceDTCClear", "", "uint8", pid=0x30),
)

BY_COLUMN = {signal.column: signal for signal in (*SIGNALS, *DRIVE_SIGNALS)}
BY_PATH = {signal.path: signal for signal in (*SIGNALS, *DRIVE_SIGNALS)}
