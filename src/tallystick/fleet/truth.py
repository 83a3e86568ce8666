"""What really happened in a simulation: the answer against which a computation over the rows is checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


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
            "distance_km": _sum(trip.distance_km for trip in self.trips),
            "idle_s": _sum(trip.idle_s for trip in self.trips),
            "fuel_l": _sum(trip.fuel_l for trip in self.trips),
            "harsh_braking": sum(event.is_braking for event in self.harsh),
            "harsh_acceleration": sum(not event.is_braking for event in self.harsh),
        }


def _sum(values: Iterable[float]) -> float:
    return round(sum(values), 6)
