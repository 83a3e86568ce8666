"""`tally ota vehicle` and `tally ota diagnose`: a vehicle with its ECUs, made and run on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import common, output
from tallystick.cli.ota_common import fleet_option, parse_pairs
from tallystick.errors import Misuse, Unavailable

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.fleet.ota.car import Car
    from tallystick.fleet.ota.carfolder import FactoryImage
    from tallystick.fleet.ota.fleetfile import FleetFile
    from tallystick.fleet.ota.vehicle import PrimaryStatistics

STICK_S = 600.0

insecure_option = click.option("--insecure", is_flag=True, help="Take images by plain http off loopback.")


@click.group("vehicle")
def vehicle() -> None:
    """Make a vehicle with its ECUs, and let it take updates. How the car stands is what car.json in DIR says.

    \b
    Examples:
      tally ota vehicle init car --ecu gateway=gw7 --ecu brakes=brake-mk2 --partial brakes \\
          --image gateway=gw.bin --image brakes=brakes.bin --home car-17
      tally ota vehicle run car --home car-17
      tally ota vehicle status car
    """


@vehicle.command("init")
@common.folder_argument
@click.option("--ecu", "ecus", multiple=True, required=True, metavar="NAME=HARDWARE", help="Once for each ECU.")
@click.option("--partial", multiple=True, metavar="NAME", help="An ECU that verifies in part; may be repeated.")
@click.option("--image", "images", multiple=True, metavar="NAME=FILE", help="Its first image, or a release record.")
@click.option("--from", "places", multiple=True, metavar="PLACE", help="Where the objects of records are.")
@fleet_option
@common.home_option
@output.json_option
def init(
    folder: Path,
    ecus: tuple[str, ...],
    partial: tuple[str, ...],
    images: tuple[str, ...],
    places: tuple[str, ...],
    fleet: FleetFile,
    home: Path | None,
    tell: output.Tell,
) -> None:
    """Make a vehicle in DIR, as its factory does: a key and a first image for each ECU. Its principal is --home's.

    The file vehicle.json in DIR is for tally ota enrol. Of a release record, as the Image
    repository keeps them, the image is read at --from; then patches lead from it.

    \b
    Examples:
      tally ota vehicle init car --ecu gateway=gw7 --image gateway=gw.bin --home car-17
    """
    from tallystick.fleet.ota.carfolder import make_car
    from tallystick.identity.folder import Identity

    hardware = dict(parse_pairs(ecus, "--ecu", "NAME=HARDWARE"))
    files = dict(parse_pairs(images, "--image", "NAME=FILE"))
    if files.keys() != hardware.keys() or not hardware.keys() >= set(partial):
        raise Misuse("every --ecu needs one --image, and --partial names an --ecu")
    first = {name: (kind, _first_image(Path(files[name]), places)) for name, kind in hardware.items()}
    made = make_car(folder, fleet, Identity.load(home), first, partial, common.machine().entropy)
    told = {"vehicle": made.vehicle.vehicle, "file": str(folder / "vehicle.json"), "state": str(folder / "car.json")}
    tell(told, *output.fact_lines(told), note=f"next: tally ota enrol {told['file']}, by the owner and by the Director")


@vehicle.command("run")
@common.folder_argument
@click.option("--once", is_flag=True, help="Do what there is to do now, and end.")
@click.option("--for", "seconds", type=click.FloatRange(0), help="End after so many seconds.")
@insecure_option
@common.home_option
@output.json_option
def run(folder: Path, once: bool, seconds: float | None, insecure: bool, home: Path | None, tell: output.Tell) -> None:
    """Run the vehicle in DIR until SIGINT or SIGTERM: read offers, fetch, install, report. Kill it whenever you like.

    \b
    Examples:
      tally ota vehicle run car --home car-17
      tally ota vehicle run car --for 60 --home car-17
    """
    with common.open_session(home) as session, _car(folder, home, session, tell, insecure=insecure) as car:
        _run(car, once=once, seconds=seconds)


@vehicle.command("stick")
@common.folder_argument
@click.option("--from", "stick", type=common.FOLDER, required=True, help="The stick: a folder.")
@common.home_option
@output.json_option
def stick(folder: Path, stick: Path, home: Path | None, tell: output.Tell) -> None:
    """Take an update from a stick, without any network, within the expiry of its metadata.

    What became of it is told when the vehicle runs next.

    \b
    Examples:
      tally ota vehicle stick car --from /media/stick --home car-17
    """
    from tallystick.fleet.ota.stick import read_stick
    from tallystick.identity.folder import Identity

    identity = Identity.load(home)
    with _car(folder, home, None, tell, stick=stick) as car:
        car.plug_in(read_stick(stick, identity.principal, identity.sealing_key))
        _run(car, once=True, seconds=STICK_S)
        if not car.is_quiet:
            raise Unavailable(f"not all of it came within {STICK_S:g} s", hint="what came is kept: try again")


@vehicle.command("status")
@common.folder_argument
@output.json_option
def status(folder: Path, tell: output.Tell) -> None:
    """Show what each ECU of the vehicle in DIR runs, what the primary does, and why it waits.

    \b
    Examples:
      tally ota vehicle status car
    """
    from tallystick.fleet.ota.carfolder import CarFolder
    from tallystick.fleet.ota.slots import Slots

    found, ecus = CarFolder(folder), []
    for name, hardware in found.hardware.items():
        record = Slots(found.disk(name)).record()
        if record is not None:
            trial = f"on trial, {record.tries} tries left" if record.on_trial else "confirmed"
            told: dict[str, Any] = {"ecu": name, "hardware": hardware, "image": record.image.root, "state": trial}
            ecus.append({**told, "counter": record.counter, "boots": record.boots, "returns": record.returns})
    kept = folder / "status.json"
    primary = json.loads(kept.read_text()) if kept.exists() else {}
    told = {key: value for key, value in primary.items() if key != "is_quiet"}
    rows = [[one["ecu"], one["hardware"], one["image"].hex()[:16], one["state"]] for one in ecus]
    lines = [f"{key}  {value}" for key, value in told.items() if value and set(str(value)) != {"0"}]
    tell({"ecus": ecus, **told}, *output.table(rows), *lines)


@click.command("diagnose")
@common.folder_argument
@common.home_option
@output.json_option
def diagnose(folder: Path, home: Path | None, tell: output.Tell) -> int:
    """Look at the vehicle in DIR as a diagnosis does: slots, trouble codes, surfaces. It must not be running.

    Nobody is told; tally ota campaign begin --diagnose asks vehicles from afar. The exit code is 3 if anything was
    found.

    \b
    Examples:
      tally ota diagnose car --home car-17
    """
    with _car(folder, home, None, tell) as car:
        found = car.look()
    tell({"findings": found}, *found, none="nothing was found")
    return 3 if found else 0


def _first_image(file: Path, places: tuple[str, ...]) -> FactoryImage:
    from tallystick.client.objects import source_of
    from tallystick.errors import Malformed
    from tallystick.fleet.ota.carfolder import FactoryImage, file_image
    from tallystick.fleet.ota.record import RECORD_BYTES_MAX, ReleaseRecord
    from tallystick.objects.reading import ObjectReader

    if not file.is_file():
        raise Misuse(f"{file}: no such file")
    try:
        with file.open("rb") as opened:
            reference = ReleaseRecord.decode(opened.read(RECORD_BYTES_MAX + 1)).reference
    except Malformed:
        return file_image(file)
    sources = [source_of(place, *common.machine()) for place in places]
    return FactoryImage(reference.root, lambda: ObjectReader(reference, sources).chunks())


@contextmanager
def _car(
    folder: Path,
    home: Path | None,
    session: Session | None,
    tell: output.Tell,
    *,
    stick: Path | None = None,
    insecure: bool = False,
) -> Iterator[Car]:
    from tallystick.client.objects import source_of
    from tallystick.fleet.ota.car import Car
    from tallystick.fleet.ota.carfolder import CarFolder
    from tallystick.identity.folder import Identity
    from tallystick.runtime.logs import configure_logs

    def on_change(told: PrimaryStatistics) -> None:
        words = [word for word in (told.phase, told.waiting, told.outcome) if word]
        if words:
            tell(told._asdict(), ": ".join(words))

    configure_logs(json=False, level="warning")
    found, machine = CarFolder(folder), common.machine()
    places: dict[str, Any] = {**found.fleet.servers} if stick is None else {"stick": stick}
    with ExitStack() as opened:
        sources = {name: source_of(place, *machine, insecure=insecure) for name, place in places.items()}
        for source in sources.values():
            opened.callback(source.close)
        car = Car(found, Identity.load(home), sources, machine.clock, session, on_change=on_change)
        opened.callback(car.close)
        yield car


def _run(car: Car, *, once: bool, seconds: float | None) -> None:
    clock, ended = common.machine().clock, list[bool]()
    common.on_signal(lambda: ended.append(True))
    until = None if seconds is None else clock.monotonic() + seconds
    car.run(lambda: bool(ended) or (once and car.is_quiet) or (until is not None and clock.monotonic() >= until))
