"""`tally ota director`, `tally ota mirror` and `tally ota stick`: what brings updates to vehicles."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import common, output
from tallystick.cli.ota_common import open_sources, open_view, vehicles_option, with_fleet
from tallystick.errors import Misuse, Refused, TallystickError, Unavailable, Withheld

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.fleet.ota.fleetfile import FleetFile
    from tallystick.fleet.ota.mirrors import ImageMirror

_WAIT_MS = 2_000  # for a manifest
_RENEW_S = 5.0  # a third of a mirror's lease


@click.command("director")
@click.option("--images", required=True, metavar="PLACE", help="Folder or URL of the Image repository's files.")
@click.option("--once", is_flag=True, help="Do what there is to do now, and end.")
@vehicles_option
@with_fleet
def director(
    session: Session, images: str, once: bool, vehicles: Path | None, fleet: FleetFile, tell: output.Tell
) -> None:
    """Read what vehicles say, offer them what campaigns bring, and report to the ledger, until SIGINT or SIGTERM.

    It keeps nothing but its keys and what it signed: started again, it reads the manifests anew.

    \b
    Examples:
      tally ota director --images images/ota/images/repository --home director
      tally ota director --images https://images.example/metadata --once --home director
    """
    from tallystick.client.objects import source_of
    from tallystick.fleet.ota.directing import Directing
    from tallystick.runtime.logs import configure_logs

    configure_logs(json=False, level="warning")
    ending, folder = threading.Event(), session.identity.home / "ota" / "director"
    place, enrolled = source_of(images, *common.machine()), vehicles or fleet.vehicles(session.identity.home)
    directing = Directing(session, fleet, enrolled, folder, place)
    try:
        if once:
            offers, reports = directing.tick()
            tell({"offers": offers, "reports": reports}, _counted(offers, reports))
            return
        common.on_signal(ending.set)
        tell({"director": session.identity.principal}, f"director {session.identity.principal.hex()}")
        while not ending.is_set():
            try:
                offers, reports = directing.tick(_WAIT_MS)
                if offers or reports:
                    output.note(_counted(offers, reports))
            except (Unavailable, Withheld) as error:
                output.note(f"{error}; trying again")
                ending.wait(_RENEW_S)
    finally:
        directing.close()


def _counted(offers: int, reports: int) -> str:
    return f"{output.plural(offers, 'offer')}, {output.plural(reports, 'report')}"


@click.command("mirror")
@common.folder_argument
@click.option("--from", "places", multiple=True, metavar="PLACE", help="Where else to fetch; folders or URLs.")
@output.default_option("--host", default="127.0.0.1")
@output.default_option("--port", type=common.PORT, default=7431, help="0: any.")
@click.option("--tls-certificate", default="", help="PEM file; off loopback it is needed.")
@click.option("--tls-key", default="", help="PEM file.")
@with_fleet
def mirror(
    session: Session,
    folder: Path,
    places: tuple[str, ...],
    host: str,
    port: int,
    tls_certificate: str,
    tls_key: str,
    fleet: FleetFile,
    tell: output.Tell,
) -> None:
    """Fetch every object of the fleet into DIR and serve it, until SIGINT or SIGTERM.

    What is not here comes from the other mirrors in the fleet's file and from --from. One mirror at a time is the
    seeder, by a lease on the ledger. No key of an object is here.

    \b
    Examples:
      tally ota mirror north --port 7431 --from images/objects --home north
    """
    from tallystick.client.group import Member
    from tallystick.fleet.ota.mirrors import MIRRORS, ImageMirror
    from tallystick.objects.web import object_server
    from tallystick.runtime.address import server_tls
    from tallystick.runtime.disk import RealDisk
    from tallystick.runtime.logs import configure_logs
    from tallystick.runtime.server import Server

    configure_logs(json=False, level="warning")
    disk, me, ending = RealDisk(folder), session.identity.principal.hex(), threading.Event()
    tls = server_tls(tls_certificate, tls_key) if tls_certificate else None
    server = Server(object_server(disk), host, port, tls=tls)
    with open_sources(fleet, places, but=me) as sources:
        member = Member(session, MIRRORS, fleet["mirrors"].token, 1, _RENEW_S)
        mine = ImageMirror(member, disk, session.identity.tenant, sources, common.machine().clock)
        thread = threading.Thread(target=_keep, args=(session, fleet, mine, ending), name="mirror")
        thread.start()
        tell({"url": server.url}, f"objects  {server.url}")
        common.on_signal(lambda: None)  # the server takes them while it serves
        try:
            server.run()
        finally:
            ending.set()
            thread.join()


def _keep(session: Session, fleet: FleetFile, mirror: ImageMirror, ending: threading.Event) -> None:
    """Take every docket of the topic, and renew the lease in between."""
    from tallystick.fleet.ota.mirrors import read_dockets

    subscriber = session.subscriber(fleet["mirrors"].name, on_bad="report")
    waiting = []
    while not ending.is_set():
        try:
            received = subscriber.poll(0)
            waiting += [one for part in received for one in read_dockets(part.to_pylist())]
            for docket in list(waiting):
                mirror.take(docket, lambda named: output.note(f"{named.server}: {named.what}"))
                waiting.remove(docket)
            mirror.renew()
        except (Refused, Unavailable) as error:
            output.note(f"{error}; trying again")
        ending.wait(_RENEW_S)
    subscriber.close()
    try:
        mirror.leave()
    except TallystickError as error:
        output.note(f"{error}; the lease ends by itself")


@click.command("stick")
@click.argument("vehicle")
@click.option("--into", type=common.FOLDER, required=True, help="The stick: a folder.")
@click.option("--from", "places", multiple=True, metavar="PLACE", help="Where else to fetch; folders or URLs.")
@vehicles_option
@with_fleet
def stick(
    session: Session,
    vehicle: str,
    into: Path,
    places: tuple[str, ...],
    vehicles: Path | None,
    fleet: FleetFile,
    tell: output.Tell,
) -> None:
    """Write a stick for a VEHICLE that is offline, as the Director: its newest offer, and what it installs by it.

    \b
    Examples:
      tally ota stick 6f0c0d3b8a1e4f5d9c7b2a1908f7e6d5 --into stick --home director
    """
    from tallystick.fleet.ota.delta import PatchRecord
    from tallystick.fleet.ota.fleetfile import VehicleFile
    from tallystick.fleet.ota.judging import UpdateOffer
    from tallystick.fleet.ota.stick import Stick, write_stick
    from tallystick.objects.layout import Docket

    told = VehicleFile.read((vehicles or fleet.vehicles(session.identity.home)) / f"{vehicle}.json")
    with open_view(session, fleet, vehicles) as view:
        view.read()
        offers = [row["offer"] for row in view.rows("offers") if row["vehicle"] == told.vehicle]
    if not offers:
        raise Misuse(f"vehicle {vehicle}: it was offered nothing", hint="a campaign must reach it first")
    offer, known = UpdateOffer.decode(offers[-1]), view.director
    named = [Docket.decode(data).root for name, data in offer.images.items() if name.startswith("targets/")]
    running = {one.image for one in known.inventory.running.get(told.vehicle, {}).values()}
    patches = [known.patches[base, image] for base in running for image in named if (base, image) in known.patches]
    brought = Stick(offers[-1], [known.records[one] for one in named], [PatchRecord.decode(one) for one in patches])
    with open_sources(fleet, places) as sources:
        write_stick(into, brought, told.vehicle, told.sealing_key, sources, common.machine().clock)
    tell({"into": str(into), "images": named}, f"wrote {into}", note="next, in the car: tally ota vehicle stick")
