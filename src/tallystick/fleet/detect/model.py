"""Profiles and models as signed files: bytes come in and are refused by name, or come out as what may be believed.

Threat: whoever can put a file into a car, or on its way there, lets the detector learn that an attack is usual. It
brings a file that nobody signed, another car's, last year's with the limits that it knows a way around, or one whose
format this code would misread. Invariant: a detector works with a file only if a key that it was told to believe signed
it, for this vehicle, in this version, and no later issue was held before. Watching a bus never changes a profile: one
that is to know more is calibrated again, and signed with a higher issue number.

Two files of one issue are refused too: whoever signs numbers each file once. The file that remembers issues must be out
of reach of those who bring the files; without it an older one is taken.

A file is a `SignedObject`: strict CBOR under one Ed25519 signature, so that equal training repeats to equal bytes, and
so small that it travels as any image of an update does (docs/formats/detect.md).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import cbor2

from tallystick import wire
from tallystick.crypto.signatures import SignedObject, SigningKey, VerifyKey
from tallystick.errors import Forged, Malformed, Misuse, Refused
from tallystick.runtime.disk import RealDisk, write_atomic

BYTES_MAX = 1_000_000
SOURCES_MAX = 1_000
ANY_VEHICLE = ""  # of a model, which serves every car
PROFILE, MODEL = "profile", "model"
_FORMAT = "tallystick issues 1"


@dataclass(frozen=True)
class DetectionFile(SignedObject):
    """Made by `sign_file` and, where it may be believed, by `open_file`."""

    what = "detection file"
    context = "tallystick detection file 1"
    bytes_max = BYTES_MAX
    kind: Annotated[str, wire.text(16)]
    issue: Annotated[int, wire.number(at_least=1)]
    vehicle: Annotated[str, wire.text(64)]
    signer: wire.Octets32
    seed: wire.Number
    sources: Annotated[
        tuple[tuple[str, bytes], ...], wire.several(wire.row(wire.text(), wire.octets(32)), SOURCES_MAX)
    ]  # the files that it was learnt from: name and SHA-256
    content: Annotated[bytes, wire.octets(at_most=BYTES_MAX)]  # of a profile its encoding, of a model `pack`'s

    @cached_property
    def hash(self) -> bytes:
        """What alerts name it by."""
        return sha256(self.encode()).digest()


def sign_file(
    kind: str,
    content: bytes,
    key: SigningKey,
    *,
    issue: int = 1,
    vehicle: str = ANY_VEHICLE,
    seed: int = 0,
    sources: Sequence[tuple[str, bytes]] = (),
) -> DetectionFile:
    """Raises `Misuse` for what is too large."""
    named = tuple(sources)
    signed = DetectionFile(kind, issue, vehicle, key.public.raw, seed, named, content).sign(key)
    if len(signed.encode()) > BYTES_MAX or len(named) > SOURCES_MAX:
        raise Misuse(f"{kind}: {len(signed.encode())} bytes from {len(named)} files, at most {BYTES_MAX} may be signed")
    return signed


def open_file(data: bytes, kind: str, vehicle: str, keys: Collection[VerifyKey]) -> DetectionFile:
    """The file of this kind for this vehicle, signed by one of these keys. Raises `Malformed`, `Forged`, `Refused`."""
    try:
        found = DetectionFile.decode(data)
    except Malformed as error:
        hint = "tally detect calibrate makes and signs a profile, tally detect train a model"
        raise Malformed(f"{kind}: {error}", reason=error.reason, hint=hint) from None
    _check_signed(found, keys)
    if found.kind != kind:
        raise Refused(f"{kind} expected, found a {found.kind}", reason="wrong-kind")
    _check_vehicle(found, vehicle)
    return found


def _check_signed(found: DetectionFile, keys: Collection[VerifyKey]) -> None:
    if not found.signature:
        raise Forged(f"{found.kind}: nobody signed it", reason="unsigned")
    if found.signer not in {key.raw for key in keys}:
        hint = "name its key with --signed-by, if you believe it"
        raise Forged(f"{found.kind}: signed by key {found.signer.hex()}, which is not believed", hint=hint)
    found.verify_by(VerifyKey(found.signer))


def _check_vehicle(found: DetectionFile, vehicle: str) -> None:
    if found.vehicle != (ANY_VEHICLE if found.kind == MODEL else vehicle):
        raise Refused(f'{found.kind}: of vehicle "{found.vehicle}", this is "{vehicle}"', reason="wrong-vehicle")


class IssueMemory:
    """The last issue of each kind that a vehicle held, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._held: dict[str, list[Any]] = {}
        if file.exists():
            try:
                told = json.loads(file.read_text(encoding="utf-8"))
                self._held = {name: [int(issue), str(known)] for name, (issue, known) in told[_FORMAT].items()}
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                hint = "restore it: without it an older profile would be taken"
                raise Malformed(f"{file}: not a memory of issues", hint=hint) from error

    def hold(self, found: DetectionFile) -> None:
        """Raise `Refused` if a later issue was held before, or another file of this one; else remember it."""
        name = f"{found.kind}/{found.vehicle}"
        issue, known = self._held.get(name, [0, ""])
        _check_issue(found, issue, known)
        if found.issue > issue:
            self._held[name] = [found.issue, found.hash.hex()]
            told = json.dumps({_FORMAT: self._held}, indent=1)
            write_atomic(RealDisk(self._file.parent), self._file.name, told.encode())


def _check_issue(found: DetectionFile, issue: int, known: str) -> None:
    if found.issue < issue:
        raise Refused(f"{found.kind}: issue {found.issue}, but {issue} was held before", reason="rolled-back")
    if found.issue == issue and found.hash.hex() != known:
        raise Refused(f"{found.kind}: another file of issue {issue} was held before", reason="rolled-back")


def pack(content: Mapping[str, Any]) -> bytes:
    """A model's content: what training gave."""
    return cbor2.dumps(content, canonical=True)


def unpack(content: bytes) -> dict[str, Any]:
    """What `pack` was given. Raises `Malformed`."""
    try:
        found = cbor2.loads(content, **wire.BOUNDED)
        is_same = isinstance(found, dict) and pack(found) == content
    except Exception as error:  # cbor2 raises a whole family
        raise Malformed("model: its content is not valid CBOR") from error
    if not is_same:
        raise Malformed("model: its content is not a map in its one encoding")
    return {str(name): value for name, value in found.items()}
