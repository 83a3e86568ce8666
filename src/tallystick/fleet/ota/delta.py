"""Less than a whole image: patches against an image that a vehicle runs, and chunks that it has already.

Source: 000, "OTA business" (patches). For bases that the inventory knows somebody makes a patch (bsdiff4), which is an
object of its own, and writes its key beside the release records. For any other base, an image that was cut by content
shares chunks with the old one; those are found by cutting the old image as the new one was cut, and hashing.

Threat: a patch against another base, a patch that makes something else, a few bytes that become gigabytes. Invariant:
a patch decides nothing. What it makes counts chunk by chunk, where a chunk has the plain hash that the image's own slip
says, as if a server had sent it; what is missing then is fetched. So a bad patch costs the time to apply it. It is
applied only to the image it names, its three streams are inflated no further than the image is long, and base, patch
and image are held to `patch_bytes_max`.
"""

from __future__ import annotations

import bz2
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tallystick import wire
from tallystick.errors import Forged, Malformed, Misuse, Refused
from tallystick.fleet.ota.slots import Slots, Staging
from tallystick.objects.cutting import cut_chunks
from tallystick.objects.layout import DOCKET_BYTES_MAX, Docket, ObjectKey, Slip

PATCH_BYTES_MAX = 256 << 20  # of base, patch and image, each: what is held in memory to apply one
_MAGIC, _HEAD = b"BSDIFF40", 32
_READ_BYTES = 1 << 20


@dataclass(frozen=True, repr=False)
class PatchRecord:
    """A row of the topic of releases: an object that makes `image` from `base`."""

    base: wire.Octets32
    image: wire.Octets32
    docket: bytes
    key: bytes

    def encode(self) -> bytes:
        return wire.encode([1, self.base, self.image, self.docket, self.key])

    @classmethod
    def decode(cls, data: bytes) -> PatchRecord:
        """Raises `Malformed`."""
        fields = wire.Fields.parse(data, "patch record", 5)
        fields.version(1)
        base, image = fields.octets(32), fields.octets(32)
        return cls(base, image, fields.octets(at_most=DOCKET_BYTES_MAX), fields.octets(32))

    def check(self, base: bytes, image: bytes, patch_bytes_max: int) -> Docket:
        """The patch's docket. Raises `Refused` unless it makes this image from this base, within the bound."""
        if self.base != base or self.image != image:
            raise Refused(f"patch to {self.image.hex()}: against another base", reason="wrong-base")
        docket = Docket.decode(self.docket)
        if docket.plain_length > patch_bytes_max:
            raise Refused(f"patch of {docket.plain_length} bytes, at most {patch_bytes_max}", reason="patch-too-long")
        return docket


def make_patch(base: bytes, image: bytes, patch_bytes_max: int = PATCH_BYTES_MAX) -> bytes | None:
    """A patch, or None where there is to be none: one of them is too long, or the patch is no shorter than the image.
    It takes a minute for 60 MB."""
    if max(len(base), len(image)) > patch_bytes_max:
        return None
    made: bytes = _bsdiff4().diff(base, image)
    return made if len(made) < len(image) else None


def apply_patch(base: bytes, patch: bytes, length: int) -> bytes:
    """The image of `length` bytes that a patch makes. Raises `Malformed`, in bounded memory."""
    if len(patch) < _HEAD or patch[:8] != _MAGIC:
        raise Malformed("patch: not of bsdiff4")
    core = _bsdiff4().core
    try:
        control, diff, made = (core.decode_int64(patch[at : at + 8]) for at in (8, 16, 24))
        if made != length or control < 0 or diff < 0:
            raise Malformed(f"patch: makes {made} bytes, {length} are expected")
        ends = _HEAD, _HEAD + control, _HEAD + control + diff
        parts = patch[ends[0] : ends[1]], patch[ends[1] : ends[2]], patch[ends[2] :]
        streams = [_inflate(part, max(length, _READ_BYTES)) for part in parts]
        return bytes(core.patch(base, length, *streams))
    except (ValueError, TypeError, OSError, EOFError, MemoryError, OverflowError) as error:
        raise Malformed("patch: damaged") from error


def fill_from_patch(staging: Staging, slips: Sequence[Slip], image: bytes) -> None:
    """Write every chunk of a patched image that is what its slip says."""
    at = 0
    for number, slip in enumerate(slips):
        _try_write(staging, number, image[at : at + slip.plain_length])
        at += slip.plain_length


def fill_from_base(staging: Staging, slots: Slots, docket: Docket, slips: Sequence[Slip], key: ObjectKey) -> None:
    """Write every chunk that is missing and that the running image has, anywhere."""
    missing: dict[bytes, list[int]] = {}
    for number in staging.missing():
        missing.setdefault(slips[number].plain_hash, []).append(number)
    if not missing or slots.record() is None:
        return
    for chunk in cut_chunks(_blocks(slots), docket.cut, docket.target_bytes):
        for number in missing.pop(key.plain_hash(chunk), ()):
            _try_write(staging, number, bytes(chunk))


def _try_write(staging: Staging, number: int, chunk: bytes) -> None:
    try:
        staging.write(number, chunk)
    except Forged:
        return  # it is fetched


def _blocks(slots: Slots) -> Iterator[bytes]:
    at = 0
    while block := slots.read(at, _READ_BYTES):
        yield block
        at += len(block)


def _inflate(data: bytes, most: int) -> bytes:
    inflater = bz2.BZ2Decompressor()
    found = inflater.decompress(data, most + 1)
    if len(found) > most or not inflater.eof:
        raise Malformed(f"patch: a stream of more than {most} bytes, or of no end")
    return found


def _bsdiff4() -> Any:
    try:
        import bsdiff4
    except ImportError as error:
        raise Misuse("patches need the library bsdiff4", hint="pip install 'tallystick[ota]'") from error
    return bsdiff4
