"""How a vehicle is, asked by a campaign without an image, and every `check_s` in any case. Source: 000, "OTA business".

Every ECU reads the image that it runs once more, and says how often it booted, how often it returned to the image
before, and which trouble codes it has. The vehicle adds its surfaces towards the outside: interfaces, open ports,
paired devices, and when it last looked for them. A surface that the release record of no running image declares is a
finding.

Threat: a primary that was taken over and calls its ECUs sound; an answer of last week, shown again. Invariant: an
answer counts under the key that the ECU was enrolled with, in the round of the campaign that it names; numbers rise.
What a unit says of itself is its word: an image that runs can lie about itself, as in `manifest`.

Surfaces are named as release records name them: `interface/can0`, `tcp/22`, `udp/5353`, `paired/<name>`. A record may
declare all of a kind: `paired/*`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from tallystick import wire
from tallystick.crypto.signatures import SignedObject, SigningKey
from tallystick.errors import Forged
from tallystick.fleet.ota.manifest import ECUS_MAX, EnrolledVehicle
from tallystick.fleet.ota.record import SURFACES_MAX
from tallystick.wire import Fields, Number, Octets16, Octets32

SCHEMA = "vehicle binary not null, number int64 not null, diagnosis binary not null"
CODES_MAX, CODE_LENGTH_MAX = 32, 16
NO_CAMPAIGN = bytes(16)
DIAGNOSED = "diagnosed"  # the outcome of a campaign's round in which every ECU answered

_Text = Annotated[str, lambda fields: fields.text(256)]


def _texts(at_most: int, length: int) -> Callable[[Fields], tuple[str, ...]]:
    return lambda fields: tuple(one.text(length) for one in fields.each(at_most))


@dataclass(frozen=True)
class EcuDiagnosis(SignedObject):
    what = "ECU diagnosis"
    context = "tallystick ecu diagnosis 1"
    bytes_max = 3 * 1024  # times ECUS_MAX it fits into the vehicle's: no ECU crowds out the others

    vehicle: Octets16
    ecu: _Text
    number: Number  # of its reports too: it rises through both
    campaign: Octets16  # that asks, or zeros
    image: Octets32  # that runs
    slot_ok: Annotated[int, wire.number(1)]  # 1: its slot was read again, and is what was installed
    boots: Number
    returns: Number
    codes: Annotated[tuple[str, ...], _texts(CODES_MAX, CODE_LENGTH_MAX)] = ()


def _read_answers(fields: Fields) -> tuple[bytes, ...]:
    return tuple(one.octets(at_most=EcuDiagnosis.bytes_max) for one in fields.each(ECUS_MAX))


class Surfaces(NamedTuple):
    """What a vehicle opens to the outside."""

    found: Collection[str] = ()
    scanned_ms: int = 0  # when it looked; 0: never


@dataclass(frozen=True)
class VehicleDiagnosis(SignedObject):
    what = "vehicle diagnosis"
    context = "tallystick vehicle diagnosis 1"
    bytes_max = 1024 * 1024

    vehicle: Octets16
    number: Number
    campaign: Octets16  # that asked, or zeros
    reports: Annotated[tuple[bytes, ...], _read_answers]
    surfaces: Annotated[tuple[str, ...], _texts(SURFACES_MAX, 256)] = ()
    scanned_ms: Number = 0

    def row(self) -> dict[str, Any]:
        """A row of the topic of diagnoses, whose schema is `SCHEMA`."""
        return {"vehicle": self.vehicle, "number": self.number, "diagnosis": self.encode()}


def read_diagnosis(data: bytes, vehicle: EnrolledVehicle) -> tuple[VehicleDiagnosis, dict[str, EcuDiagnosis]]:
    """A diagnosis, and the answers of its ECUs by their names. Raises `Malformed` and `Forged`. That its numbers rise
    is for whoever has the one before."""
    diagnosis = VehicleDiagnosis.decode(data)
    diagnosis.verify_by(vehicle.key)
    found: dict[str, EcuDiagnosis] = {}
    for one in map(EcuDiagnosis.decode, diagnosis.reports):
        _check_answer(one, diagnosis, vehicle)
        if one.ecu in found:
            raise Forged(f"diagnosis: {one.ecu} answers twice")
        found[one.ecu] = one
    return diagnosis, found


def _check_answer(answer: EcuDiagnosis, diagnosis: VehicleDiagnosis, vehicle: EnrolledVehicle) -> None:
    ecu = vehicle.ecus.get(answer.ecu)
    if ecu is None or (answer.vehicle, answer.campaign) != (diagnosis.vehicle, diagnosis.campaign):
        raise Forged(f"diagnosis: {answer.ecu} was not asked this")
    answer.verify_by(ecu.key)


def undeclared(surfaces: Iterable[str], declared: Collection[str]) -> list[str]:
    """The surfaces that nobody declared."""
    return sorted(one for one in surfaces if one not in declared and f"{one.partition('/')[0]}/*" not in declared)


def findings(
    diagnosis: VehicleDiagnosis, answers: Mapping[str, EcuDiagnosis], ecus: Collection[str], declared: Collection[str]
) -> list[str]:
    """What somebody should look at. `ecus` are all of the vehicle's; `declared` are the surfaces in the records of the
    images that run."""
    found = [f"{ecu} is silent" for ecu in sorted(ecus) if ecu not in answers]
    found += [f"{ecu}: its slot is damaged" for ecu, one in sorted(answers.items()) if not one.slot_ok]
    found += [f"{ecu}: trouble code {code}" for ecu, one in sorted(answers.items()) for code in one.codes]
    return found + [f"{one} is open, and no release declares it" for one in undeclared(diagnosis.surfaces, declared)]


class DiagnosisRounds:
    """The rounds of one vehicle: when its ECUs are asked, and what they answered. `stored` is what `ended` returned in
    an earlier life."""

    def __init__(self, vehicle: bytes, ecus: Collection[str], check_s: float, stored: bytes) -> None:
        self._vehicle, self._ecus, self._check_s = vehicle, ecus, check_s
        kept: tuple[bytes, int] = wire.decode(stored, "rounds") if stored else (NO_CAMPAIGN, 0)  # our own
        self._last, self._last_ms = kept
        self._asked: bytes | None = None  # the campaign of the round under way
        self._asked_at = 0.0
        self._answers: dict[str, bytes] = {}

    @property
    def is_open(self) -> bool:
        return self._asked is not None

    def ask(self, campaign: bytes, now: float) -> None:
        """Begin a round, unless this campaign had its own."""
        if campaign not in (self._last, self._asked):
            self._asked, self._asked_at, self._answers = campaign, now, {}

    def open(self, now: float) -> dict[str, bytes]:
        """The ECUs that have not answered yet, and in which campaign. Every `check_s` a round begins by itself."""
        if self._asked is None and now >= self._last_ms / 1000 + self._check_s:
            self._asked, self._asked_at, self._answers = NO_CAMPAIGN, now, {}
        return {} if self._asked is None else {ecu: self._asked for ecu in self._ecus if ecu not in self._answers}

    def take(self, ecu: str, message: bytes) -> None:
        """Its signature is for others. Raises `Malformed`."""
        answer = EcuDiagnosis.decode(message)
        if (answer.ecu, answer.campaign) == (ecu, self._asked):
            self._answers[ecu] = message

    def end(self, key: SigningKey, now: float, late_s: float, look: Callable[[], Surfaces]) -> VehicleDiagnosis | None:
        """The diagnosis, once all have answered, or it is too late for those who have not."""
        if self._asked is None or (self.open(now) and now < self._asked_at + late_s):
            return None
        told = self._vehicle, max(self._last_ms + 1, int(now * 1000)), self._asked
        surfaces = look()
        outside = tuple(one[:256] for one in sorted(surfaces.found)[:SURFACES_MAX])
        found = VehicleDiagnosis(*told, tuple(self._answers.values()), outside, surfaces.scanned_ms)
        self._last, self._last_ms = self._asked if self._asked != NO_CAMPAIGN else self._last, found.number
        self._asked = None
        return found.sign(key)

    def ended(self) -> bytes:
        """What must last: the campaign that was answered, and when."""
        return wire.encode([self._last, self._last_ms])
