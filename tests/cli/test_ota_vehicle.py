"""A vehicle as people run it: made by a command, updated from real servers under a real Director, killed on the way."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import TALLY, Fleet, done, refused, running, tally
from stack import wait_until
from test_fetching import plain_server

from tallystick.client.objects import source_of
from tallystick.client.session import Session
from tallystick.fleet.ota.diagnosis import read_diagnosis
from tallystick.fleet.ota.fleetfile import FleetFile, VehicleFile
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.fleet.ota.stick import Stick, write_stick
from tallystick.runtime.sources import SystemClock, SystemEntropy

HARDWARE = {"gateway": "gw7", "brakes": "brake-mk2"}
PHASE = ("--phase", "share=100%,least=1,most=0,soak=0s")
WAIT_S = 120


class CarTown:
    """A fleet of one car: two ECUs, of which one verifies in part."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.folder, self.owner, self.file, self.car = folder, fleet.owner, folder / "ota.json", folder / "car"
        self.homes = {name: folder / name for name in ("images", "director", "car-17")}
        for home in self.homes.values():
            invitation = done("principal", "invite", "--home", self.owner).out.strip()
            done("principal", "enrol", invitation, "--home", home)
        hands = "--images", self.homes["images"], "--director", self.homes["director"]
        done("ota", "init", *hands, "--prefix", folder.name, "-o", self.file, "--home", self.owner)
        self.objects = self.homes["images"] / "objects"

    def ota(self, who: str, *words: object) -> Any:
        home = self.owner if who == "owner" else self.homes[who]
        return done("ota", *words, "--fleet", self.file, "--home", home, "--json").json

    def serve(self, *urls: str) -> None:
        fleet = FleetFile.read(self.file)
        for number, url in enumerate(urls):
            fleet = fleet.with_server(f"server-{number}", url)
        fleet.write(self.file)

    def make(self) -> None:
        words: list[object] = []
        for ecu, hardware in HARDWARE.items():
            words += ["--ecu", f"{ecu}={hardware}", "--image", f"{ecu}={self.image(f'{ecu}-0', 50_000)}"]
        self.ota("car-17", "vehicle", "init", self.car, *words, "--partial", "brakes")
        for who in ("owner", "director"):
            self.ota(who, "enrol", self.car / "vehicle.json")

    def image(self, name: str, length: int) -> Path:
        path = self.folder / name
        path.write_bytes(os.urandom(length))
        return path

    def release(self, version: str, length: int) -> dict[str, bytes]:
        """Both images; their roots by ECU."""
        released = {}
        for ecu, hardware in HARDWARE.items():
            words = self.image(f"{ecu}-{version}", length), "--target", f"acme/{hardware}/{version}"
            released[ecu] = bytes.fromhex(self.ota("images", "release", *words)["image"])
        return released

    def begin(self, version: str) -> bytes:
        targets = [f"acme/{hardware}/{version}" for hardware in HARDWARE.values()]
        return bytes.fromhex(self.ota("owner", "campaign", "begin", *targets, *PHASE)["campaign"])

    def direct(self) -> dict[str, int]:
        place = "--images", self.homes["images"] / "ota/images/repository"
        return dict(self.ota("director", "director", *place, "--once"))

    def stand(self, **told: object) -> None:
        state = {"parked": True, "consents": True, "charge_percent": 80}
        (self.car / "car.json").write_text(json.dumps({**state, **told}))

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        words = [*TALLY, "ota", "vehicle", "run", str(self.car), "--home", str(self.homes["car-17"])]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()

    def status(self) -> dict[str, Any]:
        return dict(done("ota", "vehicle", "status", self.car, "--json").json)

    def runs(self) -> dict[str, bytes]:
        return {one["ecu"]: bytes.fromhex(one["image"]) for one in self.status()["ecus"]}

    def wait(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        wait_until(lambda: condition(self.status()), WAIT_S)

    def rows(self, what: str) -> list[dict[str, Any]]:
        name, home = FleetFile.read(self.file)[what].name, self.owner if what != "offers" else self.homes["car-17"]
        with Session.open(home) as session, session.subscriber(name) as subscriber:
            return [row for one in subscriber.poll(0) for row in one.to_pylist()]


@pytest.mark.long
def test_an_update_from_offer_to_confirmed_over_two_kills(fleet: Fleet, tmp_path: Path) -> None:
    town = CarTown(fleet, tmp_path)
    town.objects.mkdir()
    with (
        running("object", "serve", town.objects, "--port", 0) as (_, served),
        plain_server(town.objects, 400_000) as (_, slow),
    ):
        town.serve(slow)
        town.make()
        old = town.runs()
        new = town.release("1.0", 1_500_000)
        campaign = town.begin("1.0")
        slot = town.car / "ecus" / "gateway" / "slot-1"
        with town.running() as process:
            wait_until(lambda: town.direct()["offers"] == 1, WAIT_S)  # it has told what it runs
            town.wait(lambda told: told.get("phase") == "prepare")
            wait_until(lambda: slot.exists() and slot.stat().st_size > 200_000, WAIT_S)
            process.kill()
        begun = slot.stat().st_size
        assert town.runs() == old
        town.serve(slow, served["url"])
        FleetFile.read(town.file).write(town.car / "ota.json")
        with town.running() as process:
            town.wait(lambda told: told.get("waiting") == "waits for consent")
            process.kill()
        assert (slot.stat().st_size >= begun, town.runs()) == (True, old)
        town.stand()
        with town.running():
            town.wait(lambda told: told.get("outcome") == "installed")
            wait_until(lambda: town.direct()["reports"] == 1, WAIT_S)
        assert town.runs() == new
        assert {one["state"] for one in town.status()["ecus"]} == {"confirmed"}
        told = town.ota("owner", "status")
        assert [(one["campaign"], one["status"], one["succeeded"]) for one in told["campaigns"]] == [
            (campaign.hex(), "done", 1)
        ]
        for ecu, root in new.items():
            assert (town.car / "ecus" / ecu / "slot-1").read_bytes() == (tmp_path / f"{ecu}-1.0").read_bytes(), root

        # A campaign without an image, answered by one that runs once; and the same look without asking anybody.
        town.stand(codes={"brakes": ["P0171"]}, surfaces=["tcp/22"])
        asked = town.ota("owner", "campaign", "begin", "--diagnose", *PHASE)["campaign"]
        assert town.direct()["offers"] == 1
        done("ota", "vehicle", "run", town.car, "--once", "--home", town.homes["car-17"])
        vehicle = VehicleFile.read(town.car / "vehicle.json")
        diagnoses = [read_diagnosis(row["diagnosis"], vehicle.enrolled) for row in town.rows("diagnoses")]
        [(diagnosis, answers)] = [one for one in diagnoses if one[0].campaign.hex() == asked]
        assert diagnosis.surfaces == ("tcp/22",)
        assert {ecu: (one.image, one.slot_ok) for ecu, one in answers.items()} == {ecu: (new[ecu], 1) for ecu in new}
        assert answers["brakes"].codes == ("P0171",)
        look = "ota", "diagnose", town.car, "--home", town.homes["car-17"]
        said = tally(*look, "--json")
        wanted = ["brakes: trouble code P0171", "tcp/22 is open, and no release declares it"]
        assert (said.code, said.json["findings"]) == (3, wanted)


@pytest.mark.long
def test_a_kill_while_images_go_in_leaves_all_of_them_or_none(fleet: Fleet, tmp_path: Path) -> None:
    town = CarTown(fleet, tmp_path)
    town.objects.mkdir()
    with running("object", "serve", town.objects, "--port", 0) as (_, served):
        town.serve(served["url"])
        town.make()
        town.stand()
        run = "ota", "vehicle", "run", town.car, "--once", "--home", town.homes["car-17"]
        done(*run)
        old, new = town.runs(), town.release("1.0", 500_000)
        town.begin("1.0")
        assert town.direct()["offers"] == 1
        with town.running() as process:
            wait_until(lambda: b"install" in (town.car / "status.json").read_bytes(), WAIT_S)  # or installed already
            process.kill()
        done(*run)
        assert town.runs() in (old, new)
        assert {one["state"] for one in town.status()["ecus"]} == {"confirmed"}
        assert town.status()["outcome"].split(":")[0] == ("installed" if town.runs() == new else "failed")
        assert town.direct()["reports"] == 1


@pytest.mark.long
def test_an_update_from_a_stick(fleet: Fleet, tmp_path: Path) -> None:
    town, stick = CarTown(fleet, tmp_path), tmp_path / "stick"
    town.make()
    town.stand()
    run = "ota", "vehicle", "run", town.car, "--once", "--home", town.homes["car-17"]
    done(*run)  # it tells what it runs
    new = town.release("2.0", 100_000)
    town.begin("2.0")
    assert town.direct()["offers"] == 1
    [offer] = [row["offer"] for row in town.rows("offers")]
    records = [ReleaseRecord.of_row(row) for row in town.rows("releases")]
    vehicle = VehicleFile.read(town.car / "vehicle.json")
    machine = SystemClock(), SystemEntropy()
    sources = {"images": source_of(town.objects, *machine)}
    write_stick(stick, Stick(offer, records, []), vehicle.vehicle, vehicle.sealing_key, sources, machine[0])
    secret = b"".join(one.reference.key for one in records)
    found = b"".join(path.read_bytes() for path in stick.iterdir())
    assert not any(secret[at : at + 16] in found for at in range(0, len(secret), 16))  # a canary: no key lies there
    take = "ota", "vehicle", "stick", town.car, "--from", stick, "--home"
    other = refused(3, *take, town.homes["images"])
    assert "open" in other[0]
    done(*take, town.homes["car-17"])
    assert town.runs() == new
    done(*run)
    assert town.direct()["reports"] == 1
    (stick / "offer").write_bytes(b"x" * (9 << 20))
    assert "more than" in refused(3, *take, town.homes["car-17"])[0]
    (stick / "offer").unlink()
    assert "missing" in refused(2, *take, town.homes["car-17"])[0]
