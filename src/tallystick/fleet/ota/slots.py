"""Two slots of an ECU, one that runs and one that is written, and the boot record that says which is which.

Threat: power that fails at any moment; storage that loses or alters what was written; an image that starts and does not
live; an old image with a known hole, brought again under good signatures (rollback, Uptane 2.1).

Invariant: the slot that runs is never written. The boot record points to the other one only when the whole image lies
there, synced, and every chunk was read back and its plain hash compared; it changes by `write_atomic`, so whenever the
power fails, one whole record is found, and the old image boots or the new one. A new image is on trial: each boot costs
one of its tries, before it runs. Its health check confirms it, or else the old one, which lies untouched in its slot,
returns. The counter of an image is the height of its release on the ledger. When an image is confirmed, the record's
counter becomes the image's, and never falls: what has a lower one, or is another image with the same one, is refused.

Chunks land at their place in the slot as they are opened: there is no second copy. Where an update stopped it goes on
with what does not lie there yet, by hashing what does; no list of that is kept.

    boot             wire [1, counter, slot, image, image on trial's predecessor or null, tries left, boots, returns],
                     and its name-hash
    slot-0, slot-1   the bytes of an image

Left out: a boot loader that checks signatures by itself, storage that lies about syncing, and somebody who writes the
flash. What is read back may come from the system's memory; every boot reads the slot again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Self

from blake3 import blake3

from tallystick import wire
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed, Misuse, Refused, Unavailable, blamed
from tallystick.runtime.disk import Disk, read_all, write_atomic
from tallystick.wire import Fields

TRIES = 3  # boots of a new image before its health check must have confirmed it
_RECORD, _SLOTS = "boot", ("slot-0", "slot-1")
_RECORD_BYTES_MAX = 512
_HASH_BYTES = 32
_READ_BYTES = 1 << 20
_LENGTH_MAX = 1 << 40

Chunks = Sequence[tuple[int, bytes]]  # length and hash of each plain chunk, in order
PlainHash = Callable[[bytes], bytes]  # as the slips of the image have it


@dataclass(frozen=True)
class SlotImage:
    """An image that lies whole in a slot."""

    root: bytes  # of its object: what it was released as
    counter: int  # the height of its release
    length: int
    digest: bytes  # BLAKE3 over all of it, as it was read back: boots compare it, and need no key for that

    def listed(self) -> list[bytes | int]:
        return [self.root, self.counter, self.length, self.digest]

    @classmethod
    def read(cls, fields: Fields) -> SlotImage:
        return cls(fields.octets(32), fields.number(), fields.number(_LENGTH_MAX), fields.octets(32))


@dataclass(frozen=True)
class BootRecord:
    counter: int  # nothing below it is installed
    slot: int
    image: SlotImage  # in that slot
    before: SlotImage | None = None  # in the other, while the image is on trial
    tries: int = 0  # that are left to an image on trial
    boots: int = 0
    returns: int = 0  # of images on trial that did not live

    @property
    def on_trial(self) -> bool:
        return self.before is not None

    def returned(self) -> BootRecord:
        """The image before, in its slot."""
        if self.before is None:
            raise Misuse("boot record: nothing is on trial, and nothing to return to")
        back = replace(self, slot=1 - self.slot, image=self.before, before=None)
        return replace(back, tries=0, returns=self.returns + 1)

    def confirmed(self) -> BootRecord:
        return replace(self, counter=max(self.counter, self.image.counter), before=None, tries=0)

    def encode(self) -> bytes:
        before = None if self.before is None else self.before.listed()
        what = [1, self.counter, self.slot, self.image.listed(), before, self.tries, self.boots, self.returns]
        body = wire.encode(what)
        return body + _record_hash(body)

    @classmethod
    def decode(cls, data: bytes) -> BootRecord:
        """Raises `Forged` if any byte is not as it was written."""
        body, found = data[:-_HASH_BYTES], data[-_HASH_BYTES:]
        if len(data) > _RECORD_BYTES_MAX or _record_hash(body) != found:
            raise Forged("boot record: damaged", reason="damaged")
        fields = Fields.parse(body, "boot record", 8)
        fields.version(1)
        counter, slot, image = fields.number(), fields.number(1), SlotImage.read(fields.array(4))
        before = fields.optional(4)
        kept = None if before is None else SlotImage.read(before)
        return cls(counter, slot, image, kept, fields.number(), fields.number(), fields.number())


class Slots:
    """The slots of one ECU, in the root folder of its disk. One process uses them."""

    def __init__(self, disk: Disk, tries: int = TRIES) -> None:
        self._disk, self._tries = disk, tries

    def record(self) -> BootRecord | None:
        """The boot record, or None before the first image. Raises `Forged` where it is damaged."""
        with blamed(_RECORD):
            return BootRecord.decode(read_all(self._disk, _RECORD)) if self._disk.exists(_RECORD) else None

    def boot(self) -> BootRecord:
        """What the boot loader does: choose an image, and return the record by which it runs.

        Raises `Unavailable` if nothing was ever installed, and `Forged` if the only image there is was damaged.
        """
        record = _spend_try(self._require())
        record = self._write(replace(record, boots=record.boots + 1))  # first: an image may hang, and never end
        try:
            self._check_image(record)
        except Forged:
            if not record.on_trial:
                raise
            record = self._write(record.returned())
            self._check_image(record)
        return record

    def confirm(self) -> BootRecord:
        """The image on trial passed its health check: it stays, and nothing older is installed from now on."""
        record = self._require()
        return self._write(record.confirmed()) if record.on_trial else record

    def give_up(self) -> BootRecord:
        """The image on trial failed its health check: the one before boots next."""
        record = self._require()
        return self._write(record.returned()) if record.on_trial else record

    def check(self) -> None:
        """Read the slot that runs once more. Raises `Forged` where it is not what was installed."""
        self._check_image(self._require())

    def read(self, offset: int, n: int) -> bytes:
        """Bytes of the image that runs: the base of a patch, or chunks that the next image has too."""
        record = self._require()
        with blamed(_SLOTS[record.slot]):
            file = self._disk.open(_SLOTS[record.slot])
            found = file.pread(offset, max(0, min(n, record.image.length - offset)))
            file.close()
            return found

    def stage(self, root: bytes, counter: int, chunks: Chunks, plain_hash: PlainHash) -> Staging:
        """Begin, or go on, to write an image into the slot that does not run.

        Raises `Refused` for an image that would be a rollback, and while another is on trial.
        """
        record = self.record()
        if record is not None:
            if record.on_trial:
                raise Refused("slots: an image is on trial, and the other slot is its way back", reason="on-trial")
            _check_counter(record, root, counter)
        slot = 0 if record is None else 1 - record.slot
        return Staging(self._disk, slot, chunks, plain_hash, partial(self._point, root, counter, slot))

    def _point(self, root: bytes, counter: int, slot: int, length: int, digest: bytes) -> BootRecord:
        image, old = SlotImage(root, counter, length, digest), self.record()
        if old is None:
            return self._write(BootRecord(counter, slot, image))
        if old.on_trial or old.slot == slot:
            raise Misuse("slots: the image was finished already")
        _check_counter(old, root, counter)
        return self._write(replace(old, slot=slot, image=image, before=old.image, tries=self._tries))

    def _check_image(self, record: BootRecord) -> None:
        """Raise `Forged` unless the slot holds the record's image, byte by byte."""
        name, hasher = _SLOTS[record.slot], blake3()
        with blamed(name):
            length = self._disk.size(name) if self._disk.exists(name) else -1
            if length == record.image.length:
                file = self._disk.open(name)
                for offset in range(0, length, _READ_BYTES):
                    hasher.update(file.pread(offset, min(_READ_BYTES, length - offset)))
                file.close()
        if length != record.image.length or hasher.digest() != record.image.digest:
            raise Forged(f"{name}: not the image that was installed", reason="damaged")

    def _require(self) -> BootRecord:
        record = self.record()
        if record is None:
            raise Unavailable("slots: no image was ever installed", hint="the factory installs the first")
        return record

    def _write(self, record: BootRecord) -> BootRecord:
        with blamed(_RECORD):
            write_atomic(self._disk, _RECORD, record.encode())
        return record


class Staging:
    """An image on its way into a slot; a context manager, which lets go of the slot's file.

    >>> with slots.stage(docket.root, release.height, chunks, key.plain_hash) as staging:  # doctest: +SKIP
    ...     for number in staging.missing():
    ...         staging.write(number, fetch(number))
    ...     staging.finish()
    """

    def __init__(
        self,
        disk: Disk,
        slot: int,
        chunks: Chunks,
        plain_hash: PlainHash,
        point: Callable[[int, bytes], BootRecord],
    ) -> None:
        self._disk, self._name, self._chunks, self._hash, self._point = disk, _SLOTS[slot], chunks, plain_hash, point
        self._offsets = [0, *accumulate(length for length, _ in chunks)]
        if self._offsets[-1] > _LENGTH_MAX or any(length < 0 for length, _ in chunks):
            raise Malformed(f"{self._name}: an image of {self._offsets[-1]} bytes")
        with blamed(self._name):
            self._file = disk.open(self._name, create=True)

    def missing(self) -> list[int]:
        """The numbers of the chunks that do not lie in the slot yet."""
        with blamed(self._name):
            return [number for number in range(len(self._chunks)) if not self._lies_there(number)]

    def write(self, number: int, data: bytes) -> None:
        """Put a chunk in its place. Raises `Forged` if it is another, and `Unavailable` where there is no room."""
        length, expected = self._chunks[number]
        if len(data) != length or self._hash(data) != expected:
            raise Forged(f"chunk {number}: not the plain chunk that its slip names")
        with blamed(self._name):
            self._file.pwrite(self._offsets[number], data)

    def finish(self) -> BootRecord:
        """Read the slot back, and let the boot record point to it; what boots next is this image, on trial.

        Raises `Forged`, naming the first chunk that does not lie there as it should; nothing is changed then.
        """
        with blamed(self._name):
            self._file.truncate(self._offsets[-1])
            self._sync()
            digest = self._read_back()
        return self._point(self._offsets[-1], digest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def _sync(self) -> None:
        self._file.sync()
        self._disk.sync_dir("")  # the slot's name may be new

    def _read_back(self) -> bytes:
        hasher = blake3()
        for number in range(len(self._chunks)):
            data = self._pread(number)
            self._compare(number, data)
            hasher.update(data)
        return bytes(hasher.digest())

    def _compare(self, number: int, data: bytes) -> None:
        if self._hash(data) != self._chunks[number][1]:
            raise Forged(f"{self._name}: chunk {number} is not what was written", reason="damaged")

    def _lies_there(self, number: int) -> bool:
        return self._hash(self._pread(number)) == self._chunks[number][1]

    def _pread(self, number: int) -> bytes:
        return self._file.pread(self._offsets[number], self._chunks[number][0])


def _spend_try(record: BootRecord) -> BootRecord:
    """An image on trial has one try less, or had its last."""
    if not record.on_trial:
        return record
    return replace(record, tries=record.tries - 1) if record.tries else record.returned()


def _check_counter(record: BootRecord, root: bytes, counter: int) -> None:
    """Raise `Refused` for an image that was released before the one that was confirmed, or together with it."""
    if counter < record.counter or (counter == record.counter and root != record.image.root):
        raise Refused(
            f"image {root.hex()}: released at height {counter}, and this unit goes below {record.counter} never again",
            reason="rollback",
        )


def _record_hash(body: bytes) -> bytes:
    return named_hash("tallystick boot record 1", body)
