"""The release record: what a vehicle must know of an image beyond its docket, as a row of a sealed topic.

It carries the key of the image, so whoever may open the row may open the image: topic lock and policy locks decide
that, and the servers of images never see it. Beside the key stand the target's name with the hardware it is made for,
what other hardware must run beside it, the hashes of the files inside, and the surfaces it opens to the outside.

Threat: a record that says other hardware, other needs or another key for a released image. Invariant: the root over all
of its parts stands on the ledger with the release, so a record counts only beside the release that it was made for. It
is a tree, RFC 6962 in shape, one leaf a part: a file's hash can be shown without the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.errors import Forged, Malformed
from tallystick.fleet.ota.metadata import check_name
from tallystick.objects.layout import LENGTH_MAX, REFERENCE_TYPE, ObjectReference

SCHEMA = f"image {REFERENCE_TYPE} not null, target string not null, hardware string not null, record binary not null"
RECORD_BYTES_MAX = 1 << 20
NEEDS_MAX, FILES_MAX, SURFACES_MAX = 32, 10_000, 256
_NAME_MAX, _PATH_MAX = 64, 256


@dataclass(frozen=True, repr=False)
class ReleaseRecord:
    reference: ObjectReference
    target: str  # <supplier>/<hardware>/<version>
    needs: tuple[tuple[str, tuple[bytes, ...]], ...] = ()  # hardware, and the images of which it must run one
    files: tuple[tuple[str, bytes], ...] = ()  # path inside, and hash
    surfaces: tuple[str, ...] = ()  # interfaces and ports that it opens: any other is a finding

    @property
    def image(self) -> bytes:
        return self.reference.root

    @property
    def hardware(self) -> str:
        return check_name(self.target, 3)[1]

    @property
    def contents(self) -> bytes:
        """The root that stands on the ledger."""
        image = [self.image, self.reference.length, self.target]
        parts = [image, [self.reference.key], self.needs, self.surfaces, *self.files]
        return merkle.root([merkle.leaf_hash(wire.encode(part)) for part in parts])

    def check(self, image: bytes, length: int, contents: bytes) -> None:
        """Raise `Forged` unless it is the record of this image under its release."""
        if (self.image, self.reference.length) != (image, length) or self.contents != contents:
            raise Forged(f"release record of {self.target}: not the one that was released", reason="wrong-record")

    def encode(self) -> bytes:
        reference = [self.image, self.reference.key, self.reference.length]
        return wire.encode([1, reference, self.target, self.needs, self.files, self.surfaces])

    @classmethod
    def decode(cls, data: bytes) -> ReleaseRecord:
        """Raises `Malformed`."""
        if len(data) > RECORD_BYTES_MAX:
            raise Malformed(f"release record: {len(data)} bytes, at most {RECORD_BYTES_MAX} are allowed")
        fields = wire.Fields.parse(data, "release record", 6)
        fields.version(1)
        parts = fields.array(3)
        reference = ObjectReference(parts.octets(32), parts.octets(32), parts.number(LENGTH_MAX))
        target = fields.text(3 * _NAME_MAX + 2)
        check_name(target, 3)
        needs = [one.array(2) for one in fields.each(NEEDS_MAX)]
        read = tuple((one.text(_NAME_MAX), tuple(two.octets(32) for two in one.each(NEEDS_MAX, 1))) for one in needs)
        files = [one.array(2) for one in fields.each(FILES_MAX)]
        inside = tuple((one.text(_PATH_MAX), one.octets(32)) for one in files)
        return cls(reference, target, read, inside, tuple(one.text(_PATH_MAX) for one in fields.each(SURFACES_MAX)))

    def row(self) -> dict[str, Any]:
        """The row of the topic of releases, whose schema is `SCHEMA`."""
        told = {"target": self.target, "hardware": self.hardware, "record": self.encode()}
        return {"image": self.reference.row(), **told}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> ReleaseRecord:
        """Raises `Malformed`, also where the row's columns say something else than the record."""
        record = cls.decode(bytes(row["record"]))
        if record.row() != {**row, "image": ObjectReference.of_row(row["image"]).row(), "record": record.encode()}:
            raise Malformed(f"release record of {record.target}: its columns say something else")
        return record
