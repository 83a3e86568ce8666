"""The signals of telemetry by their names in the COVESA Vehicle Signal Specification (VSS 4), and by OBD-II service 1.

VSS fixes a path, a type and a unit; our columns carry the same unit in their name, so that a value needs no change but
of its type. The time of a row is no signal.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Signal:
    """One signal: where VSS has it, in what unit and type, and the column of telemetry that holds it."""

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

BY_COLUMN = {signal.column: signal for signal in SIGNALS}
BY_PATH = {signal.path: signal for signal in SIGNALS}
