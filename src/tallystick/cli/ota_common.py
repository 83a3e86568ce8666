"""What the commands of `tally ota` share: the fleet's file, and what is known of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import common, output
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.fleet.ota.directing import FleetView
    from tallystick.fleet.ota.fleetfile import FleetFile
    from tallystick.objects.sources import Source
    from tallystick.runtime.disk import RealDisk


def read_fleet(_context: click.Context, _parameter: click.Parameter, file: Path) -> FleetFile:
    from tallystick.fleet.ota.fleetfile import FleetFile

    return FleetFile.read(file)


fleet_option = click.option(  # gives a command the argument `fleet`
    "--fleet",
    type=common.FILE,
    default=Path("ota.json"),
    envvar="TALLY_OTA",
    callback=read_fleet,
    show_default=True,
    help="The fleet's file, made by tally ota init (TALLY_OTA).",
)


def with_fleet(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--fleet`, `--home` and `--json`: its arguments are the session first, `fleet` and `tell`."""
    return fleet_option(common.with_session(output.json_option(command)))


vehicles_option = click.option(
    "--vehicles", type=common.FOLDER, help="The folder of enrolled vehicles, if not the identity's own."
)


def repository_of(session: Session) -> RealDisk:
    """Where the Image repository lies, if it is this identity's."""
    from tallystick.runtime.disk import RealDisk

    return RealDisk(session.identity.home / "ota" / "images")


@contextmanager
def open_view(session: Session, fleet: FleetFile, vehicles: Path | None = None) -> Iterator[FleetView]:
    """What is known of the fleet; its plans are read."""
    from tallystick.fleet.ota.directing import FleetView

    view = FleetView(session, fleet, vehicles or fleet.vehicles(session.identity.home))
    try:
        view.read_plans()
        yield view
    finally:
        view.close()


@contextmanager
def open_sources(fleet: FleetFile, places: tuple[str, ...], but: str = "") -> Iterator[dict[str, Source]]:
    """The fleet's servers and these places, by name."""
    from tallystick.client.objects import source_of

    known = {**fleet.servers, **{one: one for one in places}}
    sources = {name: source_of(place, *common.machine()) for name, place in known.items() if name != but}
    try:
        yield sources
    finally:
        for source in sources.values():
            source.close()


def find_image(view: FleetView, text: str) -> bytes:
    """The image that a target's name or a root means: of several of one name the one that was released last."""
    known = view.director
    found = [one for one in known.records.values() if text in (one.target, one.image.hex())]
    found = [one for one in found if one.image in known.releases]
    if not found:
        raise Misuse(f"{text}: no such release", hint="tally ota status lists them")
    return max(found, key=lambda one: known.releases[one.image].height).image


def find_campaign(view: FleetView, text: str) -> bytes:
    """The campaign whose identifier begins so."""
    found = [one for one in view.director.campaigns if one.hex().startswith(text)]
    if len(found) != 1:
        raise Misuse(f"{text}: {len(found) or 'no'} campaigns begin so", hint="tally ota status lists them")
    return found[0]


def parse_pairs(texts: tuple[str, ...], option: str, form: str) -> list[tuple[str, str]]:
    pairs = [tuple(one.split("=", 1)) for one in texts]
    for text, pair in zip(texts, pairs, strict=True):
        if len(pair) != 2 or not all(pair):
            raise Misuse(f'{option} "{text}": {form} expected')
    return [(one[0], one[1]) for one in pairs]
