"""What a permit with labels is sent: parcels that share a label whole, the others without their bodies.

Every parcel of the range is there, so that chain, anchor and range proof hold as without labels; what is saved is
bodies, which are read from the disk only where they are wanted. The node learns which labels are equal, and nothing
else; the subscriber holds it to the same rule (parcel/labels.py), so a body cannot be kept back under its cover.
"""

from __future__ import annotations

from itertools import groupby

from tallystick.carriers.carrier import is_void
from tallystick.carriers.storage import Entry, Place, Storage
from tallystick.parcel.labels import Wanted
from tallystick.parcel.parcel import Parcel


def select(storage: Storage, place: Place, wanted: Wanted, offset: int, end: int, bytes_max: int) -> list[Entry]:
    """Consecutive entries from `offset` on and below `end`: about `bytes_max` of them, and at least one if there is
    any."""
    found: list[Entry] = []
    left = bytes_max
    fronts = storage.read(place, offset, bytes_max, headers_only=True, below=end)
    for is_whole, group in groupby(fronts, lambda entry: _is_wanted(entry, wanted)):
        run = list(group)
        entries = storage.read(place, run[0].offset, max(left, 1), below=run[-1].offset + 1) if is_whole else run
        found += entries
        left -= sum(len(entry.header) + len(entry.body or b"") for entry in entries)
        if left <= 0 or len(entries) < len(run):
            break
    return found


def _is_wanted(entry: Entry, wanted: Wanted) -> bool:
    return is_void(entry.header) or wanted.asks_for(Parcel.decode_front(entry.header).header)
