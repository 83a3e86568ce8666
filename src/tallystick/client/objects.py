"""`Session.objects`: bytes that are too large for a record go into an object, and its reference into the record.

reference = session.objects.put(Path("crash.mp4"))
publisher.produce({"vin": "WVW…", "clip": reference.row()})
…
with session.objects.open(ObjectReference.of_row(row["clip"]), "https://clips.example/fleet") as clip:
    clip.seek(-4096, io.SEEK_END)

What is put lies in the identity's folder, sealed, for `tally object serve` or any web server, and for whoever copies
the two files elsewhere. Who may read an object is who may read its reference: topic and policy locks decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tallystick.crypto.symmetric import KEY_BYTES, Buffer
from tallystick.errors import Misuse
from tallystick.identity.folder import Identity
from tallystick.objects.layout import Docket, ObjectReference
from tallystick.objects.reading import ObjectReader, OnFault
from tallystick.objects.sources import FolderSource, Source, WebSource
from tallystick.objects.store import ObjectStore, Wish
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import Clock, Entropy

_BLOCK_BYTES = 1 << 20

Place = str | Path | Source  # of an object: a URL, a folder, or whatever else can be read


class Objects:
    """The objects of one identity, in `folder`."""

    def __init__(self, identity: Identity, clock: Clock, entropy: Entropy, *, insecure: bool = False) -> None:
        self.folder = identity.home / "objects"
        self._identity, self._clock, self._entropy, self._insecure = identity, clock, entropy, insecure

    def put(self, source: bytes | Path | BinaryIO, wish: Wish = Wish(), *, into: Path | None = None) -> ObjectReference:
        """Seal bytes, a file or a seekable stream. Returns the reference, which is as secret as the bytes."""
        return self.put_with_docket(source, wish, into=into)[1]

    def put_with_docket(
        self, source: bytes | Path | BinaryIO, wish: Wish = Wish(), *, into: Path | None = None
    ) -> tuple[Docket, ObjectReference]:
        """As `put`, with the docket, which signed metadata may name."""
        store, identity = ObjectStore(RealDisk(into or self.folder)), self._identity
        entropy = self._entropy.bytes(KEY_BYTES)
        who = identity.identifier_secret, entropy, identity.tenant, self._clock.now()
        return store.put(lambda: _blocks(source), *who, wish)

    def open(self, reference: ObjectReference, *places: Place, on_fault: OnFault | None = None) -> ObjectReader:
        """The object's bytes as a file, from this identity's own folder and from these places, in turn."""
        sources = [
            self._source(place) for place in (self.folder, *places) if place != self.folder or self._has(reference)
        ]
        try:
            return ObjectReader(reference, sources, *([on_fault] if on_fault else []))
        except BaseException:
            for source in sources:
                source.close()
            raise

    def _has(self, reference: ObjectReference) -> bool:
        return (self.folder / f"{reference.name}.slips").exists()

    def _source(self, place: Place) -> Source:
        return source_of(place, self._clock, self._entropy, insecure=self._insecure)


def source_of(place: Place, clock: Clock, entropy: Entropy, *, insecure: bool = False) -> Source:
    """Where to read: a URL is a web server, any other text a folder."""
    if isinstance(place, str) and "://" in place:
        return WebSource(place, clock, entropy, insecure=insecure)
    if isinstance(place, str | Path):
        if not Path(place).is_dir():
            raise Misuse(f"{place}: no folder is here", hint="name a folder of objects, or a URL")
        return FolderSource(RealDisk(place), str(place))
    return place


def _blocks(source: bytes | Path | BinaryIO) -> Iterator[Buffer]:
    if isinstance(source, bytes):
        for at in range(0, len(source), _BLOCK_BYTES):
            yield memoryview(source)[at : at + _BLOCK_BYTES]
    elif isinstance(source, Path):
        with source.open("rb") as file:
            yield from _blocks(file)
    else:
        source.seek(0)
        while block := source.read(_BLOCK_BYTES):
            yield block
