"""What counts as a trip, and how late a row may come: apart from the job, so that its options are listed without it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from tallystick.errors import Misuse


def _setting(default: float, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class TripSettings:
    gap_s: float = _setting(300.0, "A silence longer than this ends a trip.")
    late_s: float = _setting(120.0, "How far a row may lie behind the newest one of its vehicle.")
    harsh_ms2: float = _setting(3.5, "The change of speed from which braking and acceleration are harsh.")
    idle_kmh: float = _setting(0.0, "At most so fast, a vehicle whose engine runs idles.")
    line_m: float = _setting(10.0, "How far the line of a trip may be from its points.")
    trip_h_max: float = _setting(24.0, "A longer trip is cut; it bounds what is kept of an open one.")

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) >= 0:
                raise Misuse(f"{one.name}: 0 or more expected, found {getattr(self, one.name)}")
