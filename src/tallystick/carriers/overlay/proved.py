"""What one relay sends another of what the ledger anchored: how it is put together, and when it counts.

Threat: whoever is asked alters, exchanges, shortens or invents. Invariant: nobody is believed. A run of parcels counts
by its range proof against the root that the ledger anchored. The tree holds hashes of headers; so a body is held to its
header's root, and may be missing only where the ledger lets bodies be given up; a signature is held to the permit by
which the publish guard took the parcel, and that one, which comes along, to the authority that signed it; marks, which
nothing holds, are left behind. A lock counts by its hash.

    question    wire [1, token 16, partition, first offset, anchored size, bytes had of the first parcel]
                wire [1, [name 32 of a blob, …]]
    answer      [parcels, or a piece of one, or blobs], [hash of the range proof, …], [permit, …]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from tallystick import wire
from tallystick.carriers.accounts import permit_name
from tallystick.carriers.overlay.frames import FRAME_BYTES_MAX
from tallystick.carriers.storage import Place
from tallystick.crypto.merkle import PATH_MAX, leaf_hash, verify_range
from tallystick.errors import Refused
from tallystick.parcel.locks import lock_hash
from tallystick.parcel.parcel import Parcel, front_bytes
from tallystick.parcel.verify import check_signature
from tallystick.trust.permit import Permit
from tallystick.trust.promise import PARTITIONS_MAX
from tallystick.wire import Fields

ANSWER_BYTES = 1 << 20  # of parcels and permits, or of blobs, unless one alone has more
PIECE_BYTES = 2 << 20  # a parcel that is longer comes in pieces of so many bytes, and other frames between them
PARTS_MAX = 8_192  # in an answer; the shortest front has some 200 bytes
NAMES_MAX = 64  # in a question


class ParcelShelf(Protocol):
    """What is stored here, and what the ledger says of it. May raise `Unavailable`."""

    def read(self, place: Place, first: int, below: int, bytes_max: int) -> list[bytes]: ...  # fronts where retired

    def end(self, place: Place) -> int: ...  # 0 where there is none

    def range_proof(self, place: Place, first: int, end: int, size: int) -> list[bytes] | None: ...

    def root_at(self, place: Place, size: int) -> bytes | None: ...  # with what is promised and not anchored

    def blob(self, name: bytes) -> bytes | None: ...

    def sources(self, token: bytes) -> Sequence[bytes]: ...  # relays to ask, best first

    def retired(self, place: Place) -> int: ...  # below which the ledger lets bodies be given up

    def check_permit(self, permit: Permit) -> None: ...  # raises `Refused` unless an authority signed it, now or once


class CatchUpAnswer(NamedTuple):
    parts: list[bytes]  # parcels, or a piece of one, or blobs
    proof: list[bytes]
    permits: list[bytes]


NOTHING = CatchUpAnswer([], [], [])


class Run(NamedTuple):
    """Parcels of a partition from `first` on, up to what is anchored."""

    place: Place
    first: int
    size: int
    root: bytes


class Proved(NamedTuple):
    """Parcels as they were anchored, from offset `first` on; fronts where bodies were given up."""

    place: Place
    first: int
    parcels: tuple[bytes, ...]


class FoundBlob(NamedTuple):
    name: bytes
    data: bytes


# --- giving ---


def answer(question: bytes, shelf: ParcelShelf) -> CatchUpAnswer:
    """What there is of it. Raises `Malformed`."""
    value = wire.decode(question, "question")
    is_named = isinstance(value, list) and len(value) == 2
    fields = Fields(value, "question", 2 if is_named else 6)
    fields.version(1)
    return _blobs(fields, shelf) if is_named else _parcels(fields, shelf)


def _blobs(fields: Fields, shelf: ParcelShelf) -> CatchUpAnswer:
    found, left = list[bytes](), ANSWER_BYTES
    for name in [one.octets(32) for one in fields.each(NAMES_MAX, 1)]:
        data = shelf.blob(name) if left > 0 else None
        if data is not None:
            left -= len(data)
            found.append(data)
    return CatchUpAnswer(found, [], [])


def _parcels(fields: Fields, shelf: ParcelShelf) -> CatchUpAnswer:
    """As many as fit, with the permits to verify them by; or a piece of one."""
    place = Place(fields.octets(16), fields.number(PARTITIONS_MAX - 1))
    first, size, at = fields.number(), fields.number(), fields.number()
    parts, permits, left = list[bytes](), dict[bytes, bytes](), ANSWER_BYTES
    is_here = first < size <= shelf.end(place)
    for data in shelf.read(place, first, size, ANSWER_BYTES)[:PARTS_MAX] if is_here else []:
        name = permit_name(guarding_permit(Parcel.decode_front(data)))
        permit = None if name in permits else shelf.blob(name)
        left -= len(data) + len(permit or b"")
        if parts and left < 0:
            break
        parts.append(data)
        if permit is not None:
            permits[name] = permit
    if parts and (at or len(parts[0]) > PIECE_BYTES):
        parts = [parts[0][at : at + PIECE_BYTES]]
    proof = shelf.range_proof(place, first, first + len(parts), size) if parts else None
    return NOTHING if proof is None else CatchUpAnswer(parts, proof, list(permits.values()))


def guarding_permit(parcel: Parcel) -> bytes:
    """The permit by whose key the publish guard takes a parcel."""
    return parcel.header.topics[-1].permit


# --- taking ---


def read_answer(fields: Fields) -> CatchUpAnswer:
    """Raises `Refused`."""
    parts = [one.octets(at_most=FRAME_BYTES_MAX) for one in fields.each(PARTS_MAX)]
    if not parts or not all(parts):
        raise Refused("catching up: it is not there", reason="not-found")
    proof = [one.octets(32) for one in fields.each(2 * PATH_MAX)]
    return CatchUpAnswer(parts, proof, [one.octets() for one in fields.each(PARTS_MAX)])


def prove(run: Run, answer: CatchUpAnswer, shelf: ParcelShelf) -> list[FoundBlob | Proved]:
    """The parcels, behind permits that were not here; nothing if it is the beginning of one of which more pieces are to
    come. Raises `Refused`."""
    parts, fronts = answer.parts, [Parcel.decode_front(part) for part in answer.parts]
    verify_range([leaf_hash(front.hash) for front in fronts], run.first, run.size, answer.proof, run.root)
    length = front_bytes(parts[0]) + fronts[0].header.body_bytes
    if len(parts) == 1 and len(parts[0]) < length and len(parts[0]) % PIECE_BYTES == 0:
        return []
    sent = {Permit.decode(data).identifier: data for data in answer.permits}
    found, keys, parcels = list[FoundBlob | Proved](), dict[bytes, Permit](), list[bytes]()
    retired = shelf.retired(run.place)
    for offset, (part, parcel) in enumerate(zip(parts, fronts, strict=True), run.first):
        if offset >= retired or len(part) > front_bytes(part):
            parcel = Parcel.decode(part)
            parcel.check_body()
        identifier = guarding_permit(parcel)
        if identifier not in keys:
            name = permit_name(identifier)
            stored = shelf.blob(name)
            keys[identifier] = permit = Permit.decode(sent.get(identifier, b"") if stored is None else stored)
            if stored is None:
                shelf.check_permit(permit)
                found.append(FoundBlob(name, sent[identifier]))
        check_signature(parcel, keys[identifier].verify_key)
        parcels.append(replace(parcel, marks=b"").encode())
    return [*found, Proved(run.place, run.first, tuple(parcels))]


def check_blobs(parts: Sequence[bytes], names: Collection[bytes], shelf: ParcelShelf) -> list[FoundBlob]:
    """Locks and permits, each one of `names`. Raises `Refused`."""
    found: dict[bytes, bytes] = {}
    for data in parts:
        name = lock_hash(data)
        if name not in names:
            permit = Permit.decode(data)
            name = permit_name(permit.identifier)
            if name not in names or name in found:
                raise Refused("catching up: a blob that was not asked for", reason="unasked")
            shelf.check_permit(permit)
        found[name] = data
    return [FoundBlob(*one) for one in found.items()]
