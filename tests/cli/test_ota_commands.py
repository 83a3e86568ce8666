"""`tally ota` as people use it: a fleet is founded, an image released, a campaign begun; a Director, two mirrors and
two cars do the rest. An image that makes a car ill stops its campaign."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import pytest
from commands import TALLY, Fleet, done, refused, running
from ledger_world import seed
from stack import wait_until

from tallystick.cli.ota_campaign import _plan
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Misuse
from tallystick.fleet.ota.fleetfile import SCHEMAS, FleetFile, VehicleFile
from tallystick.fleet.ota.manifest import EnrolledEcu
from tallystick.identity.folder import Identity
from tallystick.node.processes import free_ports
from tallystick.trust.campaign import WHOLE, Phase, is_member

HARDWARE = "brake-mk2"
PHASE = "--phase", "share=100%,least=2,most=0,soak=0s"
ALONE = "--phase", "share=100%,least=1,most=1,soak=0s"
STANDS = {"parked": True, "consents": True, "charge_percent": 80}
WAIT_S = 120


def target(version: str) -> str:
    return f"acme/{HARDWARE}/{version}"


class OtaTown:
    def __init__(self, fleet: Fleet, folder: Path, opened: ExitStack) -> None:
        self.folder, self.owner, self.file, self._opened = folder, fleet.owner, folder / "ota.json", opened
        self.homes = {name: folder / name for name in ("images", "director", "north", "south", "car-1", "car-2")}
        for home in self.homes.values():
            invitation = done("principal", "invite", "--home", self.owner).out.strip()
            done("principal", "enrol", invitation, "--home", home)
        self.cars = [folder / "cars" / name for name in ("car-1", "car-2")]
        self.repository, self.objects = self.homes["images"] / "ota/images", self.homes["images"] / "objects"

    def words(self, who: str, *words: object) -> tuple[object, ...]:
        home = self.owner if who == "owner" else self.homes[who]
        return "ota", *words, *(() if words[0] == "init" else ("--fleet", self.file)), "--home", home

    def ota(self, who: str, *words: object) -> Any:
        return done(*self.words(who, *words), "--json").json

    def serve(self, who: str, *words: object) -> None:
        self._opened.enter_context(running(*self.words(who, *words)))

    def release(self, version: str, *words: object) -> str:
        """An image that has most in common with the one before."""
        path = self.folder / "image"
        path.write_bytes((path.read_bytes() if path.exists() else os.urandom(100_000)) + version.encode())
        return str(self.ota("images", "release", path, "--target", target(version), *words)["image"])

    def make_cars(self, image: str) -> None:
        for car in self.cars:
            first = (
                "--image",
                f"brakes={self.repository / 'records' / image}",
                "--from",
                self.homes["images"] / "objects",
            )
            self.ota(car.name, "vehicle", "init", car, "--ecu", f"brakes={HARDWARE}", *first)
            self.stand(car)
        for who in ("owner", "director"):
            self.ota(who, "enrol", *(car / "vehicle.json" for car in self.cars))

    def stand(self, car: Path, **told: object) -> None:
        (car / "car.json").write_text(json.dumps({**STANDS, **told}))

    def drive(self) -> None:
        for car in self.cars:
            words = ["ota", "vehicle", "run", str(car), "--home", str(self.homes[car.name])]
            process = self._opened.enter_context(Popen([*TALLY, *words], stdout=DEVNULL, stderr=DEVNULL))
            self._opened.callback(process.terminate)

    def campaigns(self) -> dict[str, str]:
        return {one["campaign"]: one["status"] for one in self.ota("owner", "status")["campaigns"]}

    def begin(self, version: str) -> str:
        return str(self.ota("owner", "campaign", "begin", target(version), *PHASE)["campaign"])


@pytest.fixture
def town(fleet: Fleet, tmp_path: Path) -> Iterator[OtaTown]:
    with ExitStack() as opened:
        yield OtaTown(fleet, tmp_path, opened)


@pytest.mark.long
def test_campaigns_by_commands(town: OtaTown) -> None:
    ports = dict(zip(("north", "south"), free_ports(2), strict=True))
    hands = "--images", town.homes["images"], "--director", town.homes["director"], "-o", town.file
    mirrors = [word for name, port in ports.items() for word in ("--mirror", f"{name}=http://127.0.0.1:{port}")]
    told = town.ota("owner", "init", *hands, *mirrors[:2])
    assert (len(told["topics"]), told["active"]) == (7, True)
    first = FleetFile.read(town.file)
    town.ota("owner", "init", *hands, *mirrors)  # another one is added
    ota = FleetFile.read(town.file)
    assert (ota.topics, ota.images_root, len(ota.servers)) == (first.topics, first.images_root, 2)
    assert [path.stat().st_mode & 0o077 for path in town.repository.glob("keys/*")] == [0] * 4

    town.make_cars(town.release("1.0", "--surface", "interface/can0"))
    new = town.release("1.4", "--patch-from", target("1.0"))
    begun = town.begin("1.4")
    assert {one["says"] for one in town.ota("owner", "status")["vehicles"]} == {"silent"}
    for name, port in ports.items():
        town.serve(name, "mirror", town.folder / f"{name}-objects", "--port", port, "--from", town.objects)
    town.serve("director", "director", "--images", town.repository / "repository")
    town.drive()
    wait_until(lambda: town.campaigns()[begun] == "done", WAIT_S)
    status = town.ota("owner", "status")
    assert {one["runs"] for one in status["vehicles"]} == {f"brakes {target('1.4')}"}
    assert [(one["succeeded"], one["failed"]) for one in status["campaigns"]] == [(2, 0)]
    folders = [town.folder / f"{name}-objects" for name in ports]
    wait_until(lambda: all(len(list(one.glob("*.chunks"))) == 3 for one in folders), WAIT_S)  # a patch among them
    wait_until(lambda: sorted(len(list(one.glob("*.seed"))) for one in folders) == [0, 3], WAIT_S)

    car = json.loads((town.cars[0] / "vehicle.json").read_text())["vehicle"]
    town.ota("director", "stick", car, "--into", town.folder / "stick")
    assert {path.suffix for path in (town.folder / "stick").iterdir()} >= {"", ".slips", ".chunks"}

    bad = town.release("1.5")
    town.stand(town.cars[0], ill=["brakes"])
    begun = town.begin("1.5")
    wait_until(lambda: town.campaigns()[begun] == "failed", WAIT_S)
    assert "failed" in {one["says"][:6] for one in town.ota("owner", "status")["vehicles"]}
    town.ota("images", "withdraw", target("1.5"))
    live = {one["image"]: not one["withdrawn"] for one in town.ota("owner", "status")["releases"]}
    assert (live[new], live[bad]) == (True, False)
    assert "withdrawn" in refused(3, *town.words("owner", "campaign", "resume", begun))[0]
    again = "release", town.file, "--target", target("2.0"), "--patch-from", target("0.1")
    assert "not released" in refused(2, *town.words("images", *again))[0]
    assert town.ota("images", "renew") == {"targets": 2}
    shown = town.ota("owner", "campaign", "show", begun[:8])
    assert (shown["status"], shown["reaches"], shown["failed"]) == ("failed", [2], 1)


@pytest.mark.long
def test_each_step_of_those_who_work_once_can_be_seen_by_the_next(town: OtaTown) -> None:
    """However seldom the topics are anchored: what nobody can see yet was not done."""
    for what, pace in {"releases": "3s", "offers": "3s", "manifests": "10s"}.items():
        done("topic", "create", f"slow/{what}", "--schema", SCHEMAS[what], "--pace", pace, "--home", town.owner)
    [port] = free_ports(1)
    north = Identity.load(town.homes["north"]).principal.hex()  # others here have its name
    mirror = "--mirror", f"{north}=http://127.0.0.1:{port}"
    hands = "--images", town.homes["images"], "--director", town.homes["director"], "-o", town.file
    town.ota("owner", "init", *hands, *mirror, "--prefix", "slow")
    town.make_cars(town.release("1.0"))
    town.release("1.4")
    begun = town.ota("owner", "campaign", "begin", target("1.4"), *ALONE)["campaign"]
    town.serve("north", "mirror", town.folder / "north-objects", "--port", port, "--from", town.objects)
    drive = "ota", "vehicle", "run", town.cars[0], "--once", "--home", town.homes["car-1"]
    direct = "director", "--images", town.repository / "repository", "--once"
    done(*drive)
    assert town.ota("director", *direct) == {"offers": 1, "reports": 0}
    done(*drive)
    assert town.ota("director", *direct) == {"offers": 0, "reports": 1}
    assert town.campaigns()[begun] == "done"


def test_hands_that_share_no_machine(fleet: Fleet, tmp_path: Path) -> None:
    """Each makes its keys at home; the owner sees public halves only. A vehicle whose keys are others is not taken."""
    for name in ("images", "director"):
        done("ota", "keys", name, "-o", tmp_path / name, "--home", fleet.car)
    file = tmp_path / "ota.json"
    init = "ota", "init", "--images", tmp_path / "images", "--prefix", tmp_path.name, "-o", file, "--home", fleet.owner
    assert "not what a repository" in refused(3, *init, "--director", fleet.trust)[0]
    told = done(*init, "--director", tmp_path / "director", "--json").json
    assert list(told["topics"]) == list(SCHEMAS)
    read, car = FleetFile.read(file), Identity.load(fleet.car)
    assert read.director == car.principal
    keys = [path.read_bytes() for path in fleet.car.glob("ota/*/keys/*")]
    handed = b"".join(one.read_bytes() for one in (file, tmp_path / "images", tmp_path / "director"))
    assert len(keys) == 8
    assert not any(one in handed or one.hex().encode() in handed for one in keys)

    rotate = "ota", "rotate", "director"
    assert done(*rotate, "root", "targets", "--home", fleet.car, "--json").json == {
        "root": 2,
        "replaced": ["root", "targets"],
    }
    assert len({one.read_bytes() for one in fleet.car.glob("ota/director/keys/*")} - set(keys)) == 2
    assert "no repository is here" in refused(2, *rotate, "--home", fleet.owner)[0]

    other = SigningKey.from_seed(bytes(32)).public
    ecus = {"brakes": EnrolledEcu(other, HARDWARE)}
    sealing = car.certificate.sealing_key
    for vehicle in (
        VehicleFile(car.principal, other, ecus, (), sealing),
        VehicleFile(car.principal, car.signing_key.public, ecus, (), sealing[:-1] + b"x"),  # a stick would tell it keys
        VehicleFile(bytes(16), car.signing_key.public, ecus, (), sealing),
    ):
        vehicle.write(tmp_path / "vehicle.json")
        enrol = "ota", "enrol", tmp_path / "vehicle.json", "--fleet", file, "--home", fleet.owner
        assert "not a principal with these keys" in refused(2, *enrol)[0]
    begin = "ota", "campaign", "begin", "--fleet", file, "--home", fleet.owner
    assert "say --diagnose" in refused(2, *begin)[0]
    assert "reaches nobody" in refused(2, *begin, "--diagnose")[0]
    assert "no such release" in refused(2, *begin, "a/b/c")[0]
    assert "campaigns begin so" in refused(2, "ota", "campaign", "stop", "00", *begin[3:])[0]
    assert "no such file" in refused(2, "ota", "status", "--fleet", tmp_path / "none", "--home", fleet.owner)[0]


def test_phases_as_they_are_typed() -> None:
    vehicles = [seed(f"vehicle {number}")[:16] for number in range(1000)]
    campaign = seed("campaign")[:16]
    planned = _plan(campaign, vehicles, ())
    assert [phase.share for phase, _ in planned] == [10_000, 100_000, 500_000, 1_000_000]
    assert planned[-1] == (Phase(WHOLE, 1101, 900, 50, 86_400_000), 1000)
    assert [phase.share for phase, _ in _plan(campaign, vehicles[:1], ())] == [
        next(share for share in (10_000, 100_000, 500_000, WHOLE) if is_member(campaign, vehicles[0], share))
    ]
    [(phase, reached)] = _plan(campaign, vehicles, ("share=0.5%,least=2,most=0,soak=90s",))
    assert (phase.share, phase.least_succeeded, phase.most_failed, phase.soak_ms) == (5_000, 2, 0, 90_000)
    assert reached == sum(is_member(campaign, one, 5_000) for one in vehicles)
    for text, told in {
        "least=2": "share, least, most and soak expected",
        "share=1%,soak=1": "share, least, most and soak expected",
        "share=1%,size=2": "share, least, most and soak expected",
        "share": "expected",
        "share=20": "share, least, most and soak expected",
        "share=x%": "no number",
        "share=101%": "no number",
        "share=1%,least=x": "no number",
        "share=-1%": "no number",
        "share=nan%": "no number",
        "share=0%": "reaches 0 of 1000",
    }.items():
        with pytest.raises(Misuse, match=told):
            _plan(campaign, vehicles, (text,))
