"""Where fetched chunks go: opened, straight into the slot that does not run, or into memory for a patch.

A `SlotKeeper` is the `Keeper` of a fetch whose chunks lie plain in a slot. What lies there is hashed by the slot, so a
fetch that was cut off goes on where it was, and nothing is stored twice. Before it says what is missing it takes what a
patch makes and what the running image has.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.fleet.ota.delta import fill_from_base, fill_from_patch
from tallystick.fleet.ota.judging import Assignment
from tallystick.fleet.ota.slots import Slots, Staging
from tallystick.objects.layout import ObjectKey, Slip
from tallystick.objects.outcomes import chunk_key
from tallystick.objects.sealing import ChunkOpener


class SlotKeeper:
    def __init__(self, slots: Slots, assigned: Assignment, patched: bytes | None = None) -> None:
        self._slots, self._assigned, self._patched = slots, assigned, patched
        self._key = ObjectKey(assigned.record.reference.key)
        self._opener = ChunkOpener(self._key)
        self._slips: dict[str, tuple[int, Slip]] = {}
        self.staging: Staging | None = None

    def slips(self) -> bytes:
        return b""  # they are fetched again: a thousandth of the image

    def kept(self, slips: Sequence[Slip]) -> list[bool]:
        """Raises `Refused` for an image that the slots do not take: a rollback."""
        chunks = [(slip.plain_length, slip.plain_hash) for slip in slips]
        docket, counter = self._assigned.docket, self._assigned.counter
        self.close()
        self.staging = self._slots.stage(docket.root, counter, chunks, self._key.plain_hash)
        self._slips = {chunk_key(number): (number, slip) for number, slip in enumerate(slips)}
        if self._patched is not None:
            fill_from_patch(self.staging, slips, self._patched)
        fill_from_base(self.staging, self._slots, docket, slips, self._key)
        missing = set(self.staging.missing())
        return [number not in missing for number in range(len(slips))]

    def store(self, key: str, value: bytes) -> None:
        """Raises `CannotOpen` where the record has another key than the image."""
        if key in self._slips and self.staging is not None:
            number, slip = self._slips[key]
            self.staging.write(number, self._opener.open(number, slip, value))

    def finish(self) -> None:
        """Nothing: the boot record points to it when the whole bundle is there."""

    def close(self) -> None:
        if self.staging is not None:
            self.staging.close()
            self.staging = None


class MemoryKeeper:
    """Keeps a short object, opened: a patch."""

    def __init__(self, key: bytes) -> None:
        self._opener = ChunkOpener(ObjectKey(key))
        self._slips: dict[str, tuple[int, Slip]] = {}
        self._plain: dict[int, bytes] = {}

    @property
    def data(self) -> bytes:
        return b"".join(self._plain[number] for number in sorted(self._plain))

    def slips(self) -> bytes:
        return b""

    def kept(self, slips: Sequence[Slip]) -> list[bool]:
        self._slips = {chunk_key(number): (number, slip) for number, slip in enumerate(slips)}
        return [False] * len(slips)

    def store(self, key: str, value: bytes) -> None:
        if key in self._slips:
            number, slip = self._slips[key]
            self._plain[number] = self._opener.open(number, slip, value)

    def finish(self) -> None:
        pass
