"""The files that a fleet's updates are told from: read as they were written, and anything else is an
error that helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ledger_world import seed

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Malformed, Misuse
from tallystick.fleet.ota.fleetfile import SCHEMAS, FleetFile, NamedTopic, VehicleFile
from tallystick.fleet.ota.manifest import EnrolledEcu

KEY = SigningKey.from_seed(seed("a key")).public
FLEET = FleetFile(
    {what: NamedTopic(f"ota/{what}", seed(what)[:16]) for what in SCHEMAS},
    *(seed("director")[:16], b'{"signed": 1}', b'{"signed": 2}', {"north": "http://127.0.0.1:1"}),
)
ECUS = {"brakes": EnrolledEcu(KEY, "brake-mk2"), "door": EnrolledEcu(KEY, "door-mk1")}
VEHICLE = VehicleFile(seed("vehicle")[:16], KEY, ECUS, ("door",), b"sealing")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    FLEET.write(tmp_path / "ota.json")
    VEHICLE.write(tmp_path / "car.json")
    assert FleetFile.read(tmp_path / "ota.json") == FLEET
    assert VehicleFile.read(tmp_path / "car.json") == VEHICLE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["car.json", "ota.json"]
    more = FLEET.with_server("south", "http://127.0.0.1:2")
    assert (len(more.servers), len(FLEET.servers), more["offers"]) == (2, 1, FLEET["offers"])


CHANGES: dict[str, Any] = {
    "fleet: no topics": ("topics", {}),
    "fleet: a token that is too short": ("director", "00"),
    "fleet: servers that are a list": ("servers", [1]),
    "fleet: another format": ("format", "tallystick vehicle 1"),
    "vehicle: no ECU": ("ecus", {}),
    "vehicle: too many ECUs": ("ecus", {f"e{n}": {"hardware": "h", "key": KEY.raw.hex()} for n in range(151)}),
    "vehicle: a path": ("ecus", {"../door": {"hardware": "door-mk1", "key": KEY.raw.hex()}}),
    "vehicle: hardware that is a path": ("ecus", {"door": {"hardware": "a/b", "key": KEY.raw.hex()}}),
    "vehicle: a key of small order": ("key", "00" * 32),
    "vehicle: an unknown one verifies in part": ("partial", ["radio"]),
    "vehicle: not hexadecimal": ("vehicle", "zz" * 16),
    "vehicle: null": ("ecus", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_it_cannot_be_is_malformed(tmp_path: Path, change: str) -> None:
    file, (name, value) = tmp_path / "file", CHANGES[change]
    kind: Any = FLEET if change.startswith("fleet") else VEHICLE
    kind.write(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    with pytest.raises(Malformed) as refusal:
        type(kind).read(file)
    assert refusal.value.hint


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"format": 1}', "\ud800".encode("utf-16", "surrogatepass")])
def test_what_is_no_such_file_is_said_to_be_none(tmp_path: Path, text: str | bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(Malformed):
        FleetFile.read(file)
    with pytest.raises(Misuse, match="no such file"):
        VehicleFile.read(tmp_path / "none")
