"""Bodies that a log lacks: nobody at this edge wanted them when they passed, and somebody does now.

An entry without its body is whole for chain, tree and proof, and for readers whose labels do not ask for it. A reader
who asks for it waits until it is caught up with (`catching_up.py`), and reads it from a file of its own beside the log:
what a log holds never changes. Retention removes both.

Threat: a relay that is not asked keeps a body back by calling it unwanted. So a relay decides by its own tables what
it may do without, and by what a reader asks of it what it needs; who is asked and has not got it is passed over.
"""

from __future__ import annotations

from tallystick.carriers.storage import Entry, Place
from tallystick.errors import Unavailable
from tallystick.parcel.parcel import Parcel, is_front
from tallystick.runtime.disk import Disk, read_all, write_atomic

_FOLDER = "bodies"


def lacks_body(entry: Entry) -> bool:
    """Whether only the front was stored."""
    return entry.body_bytes == 0 and is_front(Parcel.decode_front(entry.header))


class LateBodies:
    """Files on a disk, by partition and offset."""

    def __init__(self, disk: Disk, reserve_bytes: int) -> None:
        self._disk, self._reserve_bytes = disk, reserve_bytes

    def get(self, place: Place, offset: int) -> bytes | None:
        try:
            return read_all(self._disk, f"{_folder(place)}/{offset}")
        except FileNotFoundError:
            return None

    def has(self, place: Place, offset: int) -> bool:
        return self._disk.exists(f"{_folder(place)}/{offset}")

    def put(self, place: Place, offset: int, body: bytes) -> None:
        """Raises `Unavailable` where the disk is full."""
        try:
            if self._disk.free_bytes() < len(body) + self._reserve_bytes:
                raise Unavailable("disk full: no room for a body that came late", retry_after_s=5.0)
            self._disk.mkdir(_folder(place))
            write_atomic(self._disk, f"{_folder(place)}/{offset}", body)
        except OSError as error:
            raise Unavailable(f"disk failing: {error.strerror}", retry_after_s=5.0) from error

    def retire(self, place: Place, below: int) -> None:
        folder = _folder(place)
        for name in self._disk.listdir(folder) if self._disk.exists(folder) else ():
            if int(name.removesuffix(".new")) < below:
                self._disk.remove(f"{folder}/{name}")


def _folder(place: Place) -> str:
    return f"{_FOLDER}/{place.token.hex()}/{place.partition}"
