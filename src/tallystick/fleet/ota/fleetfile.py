"""What those who take part in a fleet's updates are told: two files of JSON, neither of them secret.

`FleetFile` (`ota.json`) is the same for everybody: the topics, who the Director is, the first roots of both
repositories, the servers of images. `VehicleFile` enrols one vehicle: its key, and hardware and key of each of its
ECUs. Whoever made the vehicle writes it, and the Director takes it.

Threat: who alters `ota.json` on its way chooses whom a vehicle trusts, as with the trust file of the instance: it goes
into a vehicle where the vehicle is made. Afterwards new roots come as TUF says, signed under the old ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Malformed, Misuse
from tallystick.fleet.ota import diagnosis, manifest, mirrors, record
from tallystick.fleet.ota.manifest import ECUS_MAX, EnrolledEcu, EnrolledVehicle
from tallystick.fleet.ota.metadata import check_name
from tallystick.trust.right import Right

SCHEMAS = {
    "releases": record.SCHEMA,
    "patches": "base binary not null, image binary not null, patch binary not null",
    "campaigns": "campaign binary not null",  # for its rights: nobody writes rows there
    "offers": "vehicle binary not null, offer binary not null",
    "manifests": manifest.SCHEMA,
    "diagnoses": diagnosis.SCHEMA,
    "mirrors": mirrors.SCHEMA,
}

READ, WRITE = Right.READ | Right.DESCRIBE, Right.WRITE | Right.DESCRIBE
# Who may do what on which topic; vehicles and mirrors are many.
RIGHTS: dict[str, dict[str, Right]] = {
    "images": {"releases": READ | WRITE, "patches": READ | WRITE, "mirrors": WRITE},
    "director": {
        "campaigns": WRITE,
        "offers": READ | WRITE,
        **dict.fromkeys(("releases", "patches", "manifests", "diagnoses"), READ),
    },
    "owner": dict.fromkeys(("releases", "patches", "manifests", "diagnoses"), READ),
    "mirror": {"mirrors": READ},
    "vehicle": {
        **dict.fromkeys(("releases", "patches", "offers"), READ),
        **dict.fromkeys(("manifests", "diagnoses"), WRITE),
    },
}

_FLEET, _VEHICLE = "tallystick fleet updates 1", "tallystick vehicle 1"
_BYTES_MAX = 4 << 20

T = TypeVar("T")


class NamedTopic(NamedTuple):
    """A topic by the name that its tenant knows and the token that everybody does."""

    name: str
    token: bytes


@dataclass(frozen=True)
class FleetFile:
    """What everybody is told. `servers` have the URL of each mirror by the hex of its principal."""

    topics: Mapping[str, NamedTopic]  # one for each of `SCHEMAS`
    director: bytes  # principal
    director_root: bytes
    images_root: bytes
    servers: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, topic: str) -> NamedTopic:
        return self.topics[topic]

    def vehicles(self, home: Path) -> Path:
        """The folder in which the identity of this home keeps the vehicles that it enrolled in this fleet."""
        return home / "ota" / "vehicles" / self["campaigns"].token.hex()

    def with_server(self, name: str, url: str) -> FleetFile:
        return replace(self, servers={**self.servers, name: url})

    def write(self, file: Path) -> None:
        told = {"director": self.director.hex(), "servers": dict(self.servers)}
        roots = {"director_root": self.director_root.decode(), "images_root": self.images_root.decode()}
        topics = {what: {"name": one.name, "token": one.token.hex()} for what, one in self.topics.items()}
        _write(file, {"format": _FLEET, "topics": topics, **told, **roots})

    @classmethod
    def read(cls, file: Path) -> FleetFile:
        """Raises `Misuse` where there is none, and `Malformed`."""
        return _read(file, _FLEET, cls._parse, "tally ota init makes one, and everybody of the fleet is handed a copy")

    @classmethod
    def _parse(cls, told: Any) -> FleetFile:
        topics = {what: told["topics"][what] for what in SCHEMAS}
        named = {what: NamedTopic(str(one["name"]), _octets(one["token"], 16)) for what, one in topics.items()}
        roots = str(told["director_root"]).encode(), str(told["images_root"]).encode()
        return cls(named, _octets(told["director"], 16), *roots, {**told["servers"]})


@dataclass(frozen=True)
class VehicleFile:
    """One vehicle, as the Director is to know it. ECUs in `partial` verify in part."""

    vehicle: bytes  # its principal
    key: VerifyKey  # that the principal signs with
    ecus: Mapping[str, EnrolledEcu]
    partial: tuple[str, ...] = ()
    sealing_key: bytes = b""  # of its principal: what a stick brings is sealed to it

    @property
    def enrolled(self) -> EnrolledVehicle:
        return EnrolledVehicle(self.key, self.ecus)

    def write(self, file: Path) -> None:
        ecus = {name: {"hardware": one.hardware, "key": one.key.raw.hex()} for name, one in self.ecus.items()}
        told = {"vehicle": self.vehicle.hex(), "key": self.key.raw.hex(), "ecus": ecus, "partial": list(self.partial)}
        _write(file, {"format": _VEHICLE, **told, "sealing_key": self.sealing_key.hex()})

    @classmethod
    def read(cls, file: Path) -> VehicleFile:
        """Raises `Misuse` where there is none, and `Malformed`."""
        return _read(file, _VEHICLE, cls._parse, "tally ota vehicle init makes one")

    @classmethod
    def _parse(cls, told: Any) -> VehicleFile:
        ecus = {name: _read_ecu(name, one) for name, one in told["ecus"].items()}
        partial = tuple(map(str, told["partial"]))
        if not 0 < len(ecus) <= ECUS_MAX or not ecus.keys() >= set(partial):
            raise ValueError(f"1 to {ECUS_MAX} ECUs expected, those that verify in part among them")
        sealing_key = bytes.fromhex(told["sealing_key"])
        return cls(_octets(told["vehicle"], 16), VerifyKey(_octets(told["key"], 32)), ecus, partial, sealing_key)


def _read_ecu(name: str, told: Mapping[str, str]) -> EnrolledEcu:
    for one in (name, told["hardware"]):
        check_name(one, 1)
    return EnrolledEcu(VerifyKey(_octets(told["key"], 32)), told["hardware"])


def _octets(text: str, length: int) -> bytes:
    found = bytes.fromhex(text)
    if len(found) != length:
        raise ValueError(f"{length} bytes in hexadecimal digits expected, found {text[:100]}")
    return found


def _write(file: Path, told: Mapping[str, Any]) -> None:
    temporary = file.with_name(f".{file.name}.new")
    temporary.write_text(json.dumps(told, indent=1) + "\n")
    temporary.replace(file)


def _read(file: Path, form: str, parse: Callable[[Any], T], hint: str) -> T:
    if not file.is_file():
        raise Misuse(f"{file}: no such file", hint=hint)
    try:
        with file.open("rb") as opened:
            told = json.loads(opened.read(_BYTES_MAX))
        if told["format"] != form:
            raise ValueError(f"the format {form} expected")
        return parse(told)
    except (ValueError, KeyError, TypeError, AttributeError, Malformed) as error:
        raise Malformed(f"{file}: {error!r}", hint=hint) from error
