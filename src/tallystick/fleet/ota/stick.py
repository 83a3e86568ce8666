"""A stick: the same files that come over the air, in a folder, for one vehicle that is offline.

    offer            as the Director made it for this vehicle
    records          release records and patches for it, sealed (HPKE) to the vehicle: they hold the keys of images
    <root>.slips, <root>.chunks   the two files of each object

Threat: whoever finds, or writes, the stick. Invariant: what it brings is judged as if it had come over the air, within
the expiry of its metadata; and it shows no key to anybody but the vehicle. A stick is trusted with nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tallystick import wire
from tallystick.crypto import hpke
from tallystick.errors import Malformed, Misuse
from tallystick.fleet.ota.delta import PatchRecord
from tallystick.fleet.ota.judging import OFFER_BYTES_MAX, UpdateOffer
from tallystick.fleet.ota.record import RECORD_BYTES_MAX, ReleaseRecord
from tallystick.objects.fetching import Fetching, FolderKeeper
from tallystick.objects.layout import Docket
from tallystick.objects.sources import Source
from tallystick.runtime.disk import RealDisk, write_atomic
from tallystick.runtime.sources import Clock

_OFFER, _RECORDS = "offer", "records"
_COUNT_MAX = 150  # records, and patches: one of each for an ECU
_SEALED_MAX = 64 << 20


class Stick(NamedTuple):
    """What a vehicle finds on one."""

    offer: bytes
    records: Sequence[ReleaseRecord]
    patches: Sequence[PatchRecord]


def write_stick(
    folder: Path,
    stick: Stick,
    vehicle: bytes,
    sealing_key: bytes,
    sources: Mapping[str, Source],
    clock: Clock,
    on_object: Callable[[Docket], None] = lambda docket: None,
) -> None:
    """Write a stick for the vehicle whose `VehicleFile` has this sealing key. Objects are fetched, and verified, from
    the sources. Raises `Unavailable`; what came stays, and another attempt goes on with it."""
    disk, offer = RealDisk(folder), UpdateOffer.decode(stick.offer)
    dockets = [data for name, data in offer.images.items() if name.startswith("targets/")]
    for docket in map(Docket.decode, [*dockets, *(one.docket for one in stick.patches)]):
        with closing(FolderKeeper(disk, docket)) as keeper:
            Fetching(docket, sources, keeper, clock).run()
        on_object(docket)
    inside = wire.encode([[one.encode() for one in stick.records], [one.encode() for one in stick.patches]])
    write_atomic(disk, _RECORDS, _seal(sealing_key, inside, vehicle))
    write_atomic(disk, _OFFER, stick.offer)


def read_stick(folder: Path, vehicle: bytes, key: hpke.PrivateKey) -> Stick:
    """Raises `Misuse` where there is none, `CannotOpen` for that of another vehicle, and `Malformed`."""
    offer = _read(folder / _OFFER, OFFER_BYTES_MAX)
    inside = hpke.open_(key, _read(folder / _RECORDS, _SEALED_MAX), _info(vehicle))
    fields = wire.Fields.parse(inside, "stick", 2)
    records = [one.octets(at_most=RECORD_BYTES_MAX) for one in fields.each(_COUNT_MAX)]
    patches = [one.octets(at_most=1024) for one in fields.each(_COUNT_MAX)]
    return Stick(offer, [*map(ReleaseRecord.decode, records)], [*map(PatchRecord.decode, patches)])


def _seal(sealing_key: bytes, inside: bytes, vehicle: bytes) -> bytes:
    return hpke.seal(hpke.PublicKey.decode(sealing_key), inside, _info(vehicle))


def _read(file: Path, most: int) -> bytes:
    if not file.is_file():
        raise Misuse(f"{file}: missing", hint="tally ota stick writes a stick")
    with file.open("rb") as opened:
        data = opened.read(most + 1)
    if len(data) > most:
        raise Malformed(f"{file}: more than {most} bytes")
    return data


def _info(vehicle: bytes) -> bytes:
    return wire.encode(["tallystick stick 1", vehicle])
