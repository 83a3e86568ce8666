"""The scene of updates over the air: up to twenty cars, three servers of images, and a thief who has every key.

First an image goes out that makes cars ill: its campaign reaches a few, and stops itself. Then a good one goes out,
from three servers of which one lies and one is killed between two phases. At last the thief speaks in the Director's
name: with an image of its own, with that image signed by every key of both repositories, and with the first one, which
was released, in a campaign that it begins in the owner's name.

Cars are those of `tally ota vehicle run`, the Director is that of `tally ota director`. Whether an image makes a car
ill is told to the car (`car.json`): there is no engine to stall.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import NamedTuple

from tallystick.client.session import Session
from tallystick.demo.scene import AttackSucceeded, NotObserved, Scene, Seen
from tallystick.demo.stage import Stage
from tallystick.fleet.ota.car import Car
from tallystick.fleet.ota.carfolder import CarFolder, file_image, make_car
from tallystick.fleet.ota.directing import Directing
from tallystick.fleet.ota.fleetfile import RIGHTS, SCHEMAS, FleetFile, NamedTopic
from tallystick.fleet.ota.judging import UpdateOffer
from tallystick.fleet.ota.manifest import Trial
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.fleet.ota.releasing import ImageDesk
from tallystick.fleet.ota.repository import FILES, Repository, found_repository, load_keys
from tallystick.fleet.ota.waiting import VehicleRules
from tallystick.ledger import entries
from tallystick.ledger.contracts.firmware import CAMPAIGNS, RELEASES, CampaignStatus
from tallystick.objects.layout import Docket, chunks_file
from tallystick.objects.sources import FolderSource, WebSource
from tallystick.record.schema import Schema
from tallystick.runtime.disk import RealDisk
from tallystick.trust.campaign import WHOLE, Phase, draw

TENANT, ECU, HARDWARE = "hospital", "gateway", "gateway-mk1"
CARS_MAX, FEW = 20, 4  # a smaller demo has fewer cars, but more than the few of a first phase
SERVERS = NORTH, SOUTH, LIAR = "north", "south", "liar"
IMAGE_BYTES = 512 * 1024
RULES = VehicleRules(tick_s=0.3)
TICK_MS, REPORT_S = 200, 0.5
PHASE_S = 60.0  # of patience, on a busy machine


class StolenImage(NamedTuple):
    """What the thief would have a car install, and the Image repository's files that it shows."""

    target: str
    docket: bytes
    files: dict[str, bytes]


def update_cars(stage: Stage) -> Seen:
    with ExitStack() as stack:
        fleet = _Fleet(stage, stack)
        sick = fleet.release("1.9")
        fleet.begin(sick)
        fleet.direct_until(lambda: fleet.status == CampaignStatus.FAILED, "the campaign of a bad image to stop")
        went_back = fleet.heal()
        if went_back > FEW:
            raise AttackSucceeded(f"{went_back} cars had the bad image, and the first phase is {FEW}")
        good = fleet.release("2.0")
        fleet.begin(good)
        fleet.direct_until(lambda: fleet.running(good) >= FEW, "the first cars to run the good image")
        fleet.kill(SOUTH)
        fleet.direct_until(lambda: fleet.running(good) == fleet.size, "all cars to run the good image")
        if fleet.named() != {LIAR}:
            raise NotObserved(f"servers that cars named: {', '.join(sorted(fleet.named())) or 'none'}")
        mine = fleet.forge("3.0")
        fleet.offer(0, mine)
        fleet.offer(1, fleet.sign(mine))
        fleet.begin(sick, fleet.size)
        fleet.offer(2, fleet.steal(sick))
        refused = [fleet.answer(*one) for one in enumerate(("no target", "is no release", "never again"))]
    return Seen(
        f"{went_back} of {fleet.size} cars had the bad image and went back; then all took the good one, with a server"
        f" dead and another named as a liar; to the thief they said: {', '.join(refused)}",
        f"campaigns of topic {fleet.file['campaigns'].name}, on the ledger",
    )


class _Fleet:
    """Owner, Image repository, Director, servers and cars, each with what it would have."""

    def __init__(self, stage: Stage, stack: ExitStack) -> None:
        self._stage, self._stack, self._owner = stage, stack, stage.people[TENANT]
        self.size = max(FEW + 1, min(stage.vehicles, CARS_MAX))
        self._folder = stage.folder / "updates"
        self.file = self._found()
        for name in SERVERS:
            (self._folder / name).mkdir()
        served = {one: ["object", "serve", str(self._folder / one), "--port", "0"] for one in SERVERS}
        self._servers = dict(zip(SERVERS, stage.spawn(served), strict=True))
        self._desk = ImageDesk(stage.people["images"], self.file, self._disk("images"))
        self._cars = [stage.people[f"vehicle-{number}"] for number in range(self.size)]
        folders = [self._make_car(one) for one in self._cars]
        images = FolderSource(RealDisk(self._folder / "images" / FILES), "images")
        self._directing = Directing(
            *(stage.people["director"], self.file, self._folder / "enrolled", self._folder / "director", images),
            report_s=REPORT_S,
        )
        stack.callback(self._directing.close)
        over, pool = Event(), stack.enter_context(ThreadPoolExecutor(self.size))
        self._driven = list(pool.map(self._drive, self._cars, folders))
        stack.callback(lambda: list(pool.map(Car.close, self._driven)))
        runs = [pool.submit(car.run, over.is_set) for car in self._driven]
        stack.callback(lambda: [run.result() for run in runs])
        stack.callback(over.set)  # the last comes first
        self._campaign = b""

    # --- how it is founded ---

    def _found(self) -> FleetFile:
        """Topics, rights and keys, as `tally ota init` and `tally ota enrol` make them."""
        stage, names = self._stage, {what: f"updates/{what}" for what in SCHEMAS}
        stage.make_topics(TENANT, {names[what]: Schema.parse(schema) for what, schema in SCHEMAS.items()})
        topics = {what: NamedTopic(name, stage.tokens[name]) for what, name in names.items()}
        people = ["images", "director", *(f"vehicle-{number}" for number in range(self.size))]
        with ThreadPoolExecutor() as pool:
            enrolled = list(pool.map(lambda name: stage.enrol(TENANT, name).identity.principal, people))
        rights = [
            (topics[what], principal, right)
            for name, principal in zip(people, enrolled, strict=True)
            for what, right in RIGHTS[name.split("-")[0]].items()
        ]
        self._owner.author.write(*(entries.grant(topic.token, who, int(right)) for topic, who, right in rights))
        director, images = (
            found_repository(self._disk(one), lambda: stage.entropy.bytes(32), self._now_ms())
            for one in ("director", "images")
        )
        return FleetFile(topics, stage.people["director"].identity.principal, director, images)

    def _make_car(self, session: Session) -> CarFolder:
        name = session.identity.name
        ecus = {ECU: (HARDWARE, file_image(self._bytes("factory")))}
        car = make_car(self._folder / name, self.file, session.identity, ecus, (), self._stage.entropy)
        _tell(car.path, is_ill=True)
        enrolled = self._folder / "enrolled"
        enrolled.mkdir(exist_ok=True)
        car.vehicle.write(enrolled / f"{name}.json")
        return car

    def _drive(self, session: Session, folder: CarFolder) -> Car:
        stage = self._stage
        sources = {one: WebSource(child.url, stage.clock, stage.entropy) for one, child in self._servers.items()}
        for source in sources.values():
            self._stack.callback(source.close)
        return Car(folder, session.identity, sources, stage.clock, session, RULES)

    # --- honest people ---

    def release(self, version: str) -> ReleaseRecord:
        """Release an image, and have every server serve it."""
        record = self._desk.release(self._bytes(version), _target(version))
        objects = self._stage.people["images"].identity.home / "objects"
        for name in SERVERS:
            shutil.copytree(objects, self._folder / name, dirs_exist_ok=True)
        lie = self._folder / LIAR / chunks_file(record.image)
        lie.write_bytes(bytes(byte ^ 1 for byte in lie.read_bytes()))
        return record

    def begin(self, record: ReleaseRecord, first: int = FEW) -> None:
        """Begin a campaign, whose first phase is so many cars, which all must succeed."""
        self._campaign = self._stage.entropy.bytes(16)
        places = [*sorted(draw(self._campaign, one.identity.principal) for one in self._cars), WHOLE - 1]
        phases = [Phase(places[many - 1] + 1, many, many, many - 1, 0) for many in (first, self.size + 1)]
        images = [(self.file["releases"].token, record.image)]
        self._owner.author.write(entries.campaign(self.file["campaigns"].token, self._campaign, images, phases))

    def direct_until(self, condition: Callable[[], bool], what: str) -> None:
        """Let the Director work."""

        def worked() -> bool:
            self._directing.tick(TICK_MS)
            return condition()

        self._stage.wait_until(worked, what, PHASE_S)

    @property
    def status(self) -> int:
        row = self._directing.director.campaigns.get(self._campaign)
        return -1 if row is None else row.status

    def heal(self) -> int:
        """From now on images make nobody ill. Returns how many cars went back from the one that did."""
        for car in self._cars:
            _tell(self._folder / car.identity.name, is_ill=False)
        return sum(one[ECU].returns > 0 for one in self._directing.director.inventory.running.values())

    def running(self, record: ReleaseRecord) -> int:
        """How many cars run an image and keep it, by what each last said."""
        found = self._directing.director.inventory.running.values()
        return sum((one[ECU].image, one[ECU].trial) == (record.image, Trial.NONE) for one in found)

    def named(self) -> set[str]:
        """The servers that cars caught."""
        return {server for car in self._driven for server in car.named}

    def kill(self, name: str) -> None:
        process = self._servers[name].process
        assert process is not None
        process.kill()

    # --- the thief, who has the folders of all of them ---

    def steal(self, record: ReleaseRecord) -> StolenImage:
        """A release, with what the Image repository says of it."""
        files = self._image_repository().files()
        return StolenImage(record.target, files[f"targets/{record.target}"], files)

    def forge(self, version: str) -> StolenImage:
        """An image of its own, beside what the Image repository says."""
        docket, _ = self._stage.people["images"].objects.put_with_docket(self._bytes(version))
        found, target = docket.encode(), _target(version)
        return StolenImage(target, found, {**self._image_repository().files(), f"targets/{target}": found})

    def sign(self, image: StolenImage) -> StolenImage:
        """The same, signed by every key of the Image repository."""
        repository = self._image_repository()
        repository.publish({image.target: image.docket}, self._now_ms(), "acme")
        return image._replace(files=repository.files())

    def offer(self, number: int, image: StolenImage) -> None:
        """Offer an image to a car, by the Director's keys."""
        car, disk, root = self._principal(number), self._disk("director"), Docket.decode(image.docket).root
        repository = Repository(disk, f"offers/{car.hex()}", load_keys(disk))
        repository.publish({f"{car.hex()}/{ECU}/{image.target}": image.docket}, self._now_ms(), parts=5)
        signed = {name: data for name, data in repository.files().items() if "/" not in name}
        keys = [CAMPAIGNS(self.file["campaigns"].token, self._campaign), RELEASES(self.file["releases"].token, root)]
        states = self._owner.node.states_together(keys)
        self._directing.send(car, UpdateOffer.gather(signed, image.files, states, campaign=self._campaign))

    def answer(self, number: int, expected: str) -> str:
        """In which words the car refused what it was offered."""
        manifests, car = self._directing.director.manifests, self._principal(number)

        def was_told() -> bool:
            self._directing.read(TICK_MS)
            return manifests[car].outcome not in ("", "installed")

        self._stage.wait_until(was_told, "a car to say what it made of the thief's offer")
        outcome = manifests[car].outcome
        if not outcome.startswith("refused"):
            raise AttackSucceeded(f"a car took what a thief offered: {outcome}")
        if expected not in outcome:
            raise NotObserved(f"a car refused for another reason: {outcome}")
        return f'"{expected}"'

    # --- small things ---

    def _principal(self, number: int) -> bytes:
        return self._cars[number].identity.principal

    def _image_repository(self) -> Repository:
        """A copy of it, keys and all."""
        folder = self._folder / "stolen"
        shutil.copytree(self._folder / "images", folder, dirs_exist_ok=True)
        return Repository(RealDisk(folder), FILES, load_keys(RealDisk(folder)))

    def _bytes(self, version: str) -> Path:
        file = self._folder / f"{version}.bin"
        if not file.exists():
            file.write_bytes(self._stage.entropy.bytes(IMAGE_BYTES))
        return file

    def _disk(self, name: str) -> RealDisk:
        return RealDisk(self._folder / name)

    def _now_ms(self) -> int:
        return int(self._stage.clock.now() * 1000)


def _target(version: str) -> str:
    return f"acme/{HARDWARE}/{version}"


def _tell(car: Path, *, is_ill: bool) -> None:
    """How a car stands, and whether its next image will do."""
    told = {"parked": True, "consents": True, "charge_percent": 80, "ill": [ECU] if is_ill else []}
    (car / "car.json").write_text(json.dumps(told))


SCENES = [
    Scene(
        "bad and stolen updates of cars",
        "the bad image stops in its first phase; nothing old, unreleased or stolen is installed",
        update_cars,
    )
]
