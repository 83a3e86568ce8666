"""Half of sealing, done ahead: columns are laid out and compressed while the parcel before them is sealed.

That half needs neither the lane's keys nor its sequence, so another thread can do it, on another core. A small batch is
packed where it is sealed: handing it over would take longer.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tallystick.parcel.seal import Packed, pack
from tallystick.record.batch import Batch

AHEAD = 3  # batches: one that is sealed, one that is packed, one that waits for that
HANDED_OVER_BYTES_MIN = 128 << 10


class Packer:
    """Packs in a thread of its own, or without `background` where the outcome is asked for."""

    def __init__(self, codec: str, *, background: bool) -> None:
        self._codec = codec
        self._pool = ThreadPoolExecutor(1, "publisher packs") if background else None

    def pack(self, batch: Batch, size_bytes: int) -> Callable[[], Packed]:
        """How to come by the packed batch."""
        if self._pool is None or size_bytes < HANDED_OVER_BYTES_MIN:
            return lambda: pack(batch, self._codec)
        return self._pool.submit(pack, batch, self._codec).result

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
