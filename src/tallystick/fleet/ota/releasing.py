"""The Image repository at work: an image is sealed, named, signed and released.

The order is the point: first the object and the rows, then the signed metadata, and the ledger's entry last. What was
interrupted is no release, and nothing of it is installed anywhere; run again, it is another image, under another key.
The records stay here too, each in a file of its owner's alone: from them patches are made.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from tallystick.client.session import Session
from tallystick.errors import Misuse, Unavailable
from tallystick.fleet.ota.delta import PATCH_BYTES_MAX, PatchRecord, make_patch
from tallystick.fleet.ota.fleetfile import FleetFile
from tallystick.fleet.ota.metadata import check_name
from tallystick.fleet.ota.mirrors import docket_row
from tallystick.fleet.ota.record import FILES_MAX, ReleaseRecord
from tallystick.fleet.ota.repository import FILES, ROLES, Repository, add_key, load_keys
from tallystick.ledger import entries
from tallystick.objects.layout import Docket
from tallystick.runtime.disk import RealDisk, read_all, write_atomic

FLUSH_S = 60.0
_RECORDS = "records"


class ImageDesk:
    """`disk` has keys, metadata and records of the repository; objects lie in the session's own folder."""

    def __init__(self, session: Session, fleet: FleetFile, disk: RealDisk) -> None:
        self._session, self._fleet, self._disk = session, fleet, disk
        self._repository = Repository(disk, FILES, load_keys(disk))
        disk.mkdir(_RECORDS)
        kept = (ReleaseRecord.decode(read_all(disk, f"{_RECORDS}/{name}")) for name in disk.listdir(_RECORDS))
        self._records = {one.image: one for one in kept}

    def find(self, target: str) -> ReleaseRecord:
        """The record of an earlier release, by its target. Raises `Misuse`."""
        for one in self._records.values():
            if one.target == target:
                return one
        raise Misuse(f"{target}: not released from here", hint="name a target that tally ota release made in this home")

    def release(
        self,
        file: Path,
        target: str,
        needs: Sequence[tuple[str, bytes]] = (),
        surfaces: Sequence[str] = (),
        bases: Sequence[str] = (),
    ) -> ReleaseRecord:
        supplier, *_ = check_name(target, 3)
        dockets = self._dockets(supplier)
        if supplier in ROLES:
            raise Misuse(f"{target}: no supplier is called {supplier}")
        if target in dockets:
            raise Misuse(f"{target} was released already", hint="withdraw it, or name a new version")
        old = [self.find(one) for one in bases]
        docket, reference = self._session.objects.put_with_docket(file)
        hardware = sorted({one for one, _ in needs})
        required = tuple((one, tuple(sorted(image for other, image in needs if other == one))) for one in hardware)
        record = ReleaseRecord(reference, target, required, _hashes_inside(file), tuple(sorted(surfaces)))
        write_atomic(self._disk, f"{_RECORDS}/{record.image.hex()}", record.encode())
        patches = [found for one in old if (found := self._make_patch(one, record, file)) is not None]
        self._publish("mirrors", docket_row(docket), *(docket_row(Docket.decode(one.docket)) for one in patches))
        self._publish("patches", *({"base": one.base, "image": one.image, "patch": one.encode()} for one in patches))
        self._publish("releases", record.row())
        self._sign(supplier, {**dockets, target: docket.encode()})
        self._session.author.write(entries.release_image(self._fleet["releases"].token, record.image, record.contents))
        self._records[record.image] = record
        return record

    def drop(self, image: bytes) -> None:
        """Sign the metadata without it."""
        record = self._records[image]
        supplier = check_name(record.target, 3)[0]
        self._sign(supplier, {one: data for one, data in self._dockets(supplier).items() if one != record.target})

    def renew(self) -> int:
        """Sign everything anew. Returns how many targets there are."""
        suppliers = self._repository.keys.keys() - {"root", "timestamp", "snapshot"}
        for one in sorted(suppliers):
            self._sign(one, self._dockets(one))
        return len(self._dockets())

    def _sign(self, role: str, dockets: Mapping[str, bytes]) -> None:
        if role not in self._repository.keys:
            add_key(self._disk, role, self._session.entropy.bytes(32))
            self._repository.keys = load_keys(self._disk)
            self._repository.delegate(role, self._repository.keys[role].signers, 1)
        self._repository.publish(dockets, self._session.view.refresh().time_ms, role)

    def _dockets(self, supplier: str = "") -> dict[str, bytes]:
        files = {name.removeprefix("targets/"): data for name, data in self._repository.files().items() if "/" in name}
        return {name: data for name, data in files.items() if supplier in ("", name.split("/")[0])}

    def _make_patch(self, old: ReleaseRecord, new: ReleaseRecord, file: Path) -> PatchRecord | None:
        if max(old.reference.length, new.reference.length) > PATCH_BYTES_MAX:
            return None
        with self._session.objects.open(old.reference) as base:
            made = make_patch(base.read(), file.read_bytes())
        if made is None:
            return None
        docket, reference = self._session.objects.put_with_docket(made)
        return PatchRecord(old.image, new.image, docket.encode(), reference.key)

    def _publish(self, topic: str, *rows: Mapping[str, Any]) -> None:
        if rows:
            with self._session.publisher(self._fleet[topic].name, acks=self._session.acks_most) as publisher:
                for row in rows:
                    publisher.produce(dict(row))
                if publisher.flush(FLUSH_S):
                    raise Unavailable(f"{topic}: still in the spool, nothing was released", hint="is the node running?")


def _hashes_inside(file: Path) -> tuple[tuple[str, bytes], ...]:
    """Of the files in a tar file, by path."""
    if not tarfile.is_tarfile(file):
        return ()
    with tarfile.open(file) as opened:
        members = [one for one in opened if one.isfile()]
        if len(members) > FILES_MAX:
            raise Misuse(f"{file}: more than {FILES_MAX} files inside")
        inside = {one.name: data for one in members if (data := opened.extractfile(one)) is not None}
        return tuple((name, sha256(inside[name].read()).digest()) for name in sorted(inside))
