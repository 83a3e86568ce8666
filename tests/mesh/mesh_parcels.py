"""Parcels of any lane and sequence, for what does not open them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from makers import World, entropy, rows, seed

from tallystick.carriers.carrier import Pushed
from tallystick.parcel.parcel import Parcel


@cache
def _samples() -> tuple[Parcel, Parcel]:
    """The first of a lane, and one that follows."""
    lane = World().lane("car")
    return tuple(lane.seal(rows(n, 1), now_ms=1_700_000_000_000, entropy=entropy(n)) for n in range(2))  # type: ignore[return-value]


def pushed(lane: str, sequence: int) -> Pushed:
    parcel = _samples()[min(sequence, 1)]
    header = replace(parcel.header, lane=seed(lane)[:16], sequence=sequence)
    return Pushed(replace(parcel, header=header).encode())


def sequences(taken: Sequence[Pushed]) -> list[int]:
    return [Parcel.decode_front(one.parcel).header.sequence for one in taken]
