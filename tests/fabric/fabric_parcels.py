"""Parcels as the fabric carries them, for tests that do not route."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
from makers import World, entropy, rows, seed

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.fabric.fragments import FabricKey, FlowPlace, FragmentHead, SealedParcel, seal_parcel
from tallystick.carriers.fabric.reassembly import Reassemblies
from tallystick.record.batch import Batch

KEY = FabricKey.of_mesh(seed("mesh key"), 20_000)
PAYLOAD_BYTES = 1_480  # behind the route header in an MTU of 1,500
PLACE = FlowPlace(b"a flow of sixtee")


def parcel(number: int = 0, count: int = 1) -> Pushed:
    """The same each time."""
    return _parcel(number, count)


@cache
def _parcel(number: int, count: int) -> Pushed:
    """The first of a lane: some fifty bytes a row that do not compress, so that 2,000 rows have several blocks."""
    world = World()
    lane = world.lane(f"car {number}")
    batch = rows(number, count)
    names = pa.array([seed(f"{number} {row}").hex() + seed(f"{row} {number}").hex() for row in range(count)])
    columns = pa.RecordBatch.from_arrays([names, *batch.data.columns[1:]], schema=batch.data.schema)
    sealed = lane.seal(Batch.of(batch.schema, columns), now_ms=1_700_000_000_000, entropy=entropy(number))
    return Pushed(sealed.encode(), tuple(world.permits.values()), tuple(world.locks.values()))


def sealed(number: int = 0, count: int = 1, place: FlowPlace = PLACE, group: int = 8) -> SealedParcel:
    return seal_parcel(parcel(number, count), KEY, place, seed(f"entropy {number}"), PAYLOAD_BYTES, group)


def take(into: Reassemblies, head: FragmentHead, piece: bytes, now: float) -> Pushed | None:
    """A fragment that the carrier key opened; the parcel, if that made it whole."""
    one = into.find(head, len(piece), now)
    return None if one is None else into.put(one, head, piece, now)
