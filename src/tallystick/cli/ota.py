"""`tally ota`: updates over the air. Here are those who found a fleet's updates, and the Image repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import common, ota_campaign, ota_serve, ota_vehicle, output
from tallystick.cli.common import with_session
from tallystick.cli.ota_common import find_image, open_view, parse_pairs, repository_of, with_fleet
from tallystick.client.names import Names
from tallystick.errors import Malformed, Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.fleet.ota.fleetfile import FleetFile

_FORMAT = "tallystick repository 1"


@click.group("ota")
def command() -> None:
    """Release images, spread them in campaigns that stop themselves, and see what every vehicle runs.

    Three hands share the work: the owner plans campaigns, the Image repository releases, the Director offers and
    reports. None of them can do the work of another.

    \b
    Examples:
      tally ota init --images images --director director -o ota.json --home owner
      tally ota release brakes-1.4.bin --target acme/brake-mk2/1.4 --home images
      tally ota campaign begin acme/brake-mk2/1.4 --home owner
      tally ota director --images images/ota/images/repository --home director
      tally ota status --home owner
    """


@command.command("keys")
@click.argument("what", type=click.Choice(["images", "director"]))
@common.output_option("The file to hand to the owner: principal and first root, nothing secret.")
@common.home_option
@output.json_option
def keys(what: str, file: Path, home: Path | None, tell: output.Tell) -> None:
    """Make the keys of a repository in --home, and write what the owner needs for tally ota init.

    Only where hands share no machine: tally ota init takes their folders as well.

    \b
    Examples:
      tally ota keys images -o images.json --home images
    """
    principal, root = _hand(what, home)
    told = {"format": _FORMAT, "principal": principal.hex(), "root": root.decode()}
    file.write_text(json.dumps(told) + "\n")
    tell({"principal": principal, "file": str(file)}, f"wrote {file}", note="next: hand it to the owner")


@command.command("init")
@click.option("--images", required=True, metavar="PLACE", help="Home of the Image repository, or what it wrote.")
@click.option("--director", required=True, metavar="PLACE", help="Home of the Director, or what it wrote.")
@click.option("--mirror", "mirrors", multiple=True, metavar="PRINCIPAL=URL", help="A server of images; again: others.")
@output.default_option("--prefix", default="ota", help="What the names of the topics begin with.")
@click.option("-o", "--output", "file", type=common.FILE, default=Path("ota.json"), help="The fleet's file.")
@with_session
@output.json_option
def init(
    session: Session,
    images: str,
    director: str,
    mirrors: tuple[str, ...],
    prefix: str,
    file: Path,
    tell: output.Tell,
) -> None:
    """Found a fleet's updates: seven topics, who may do what there, keys of both repositories, and the fleet's file.

    The identity in --home owns the topics and plans campaigns. Run it again to add mirrors: what is there stays.

    \b
    Examples:
      tally ota init --images images --director director --mirror north=http://127.0.0.1:7431 --home owner
    """
    from tallystick.fleet.ota.fleetfile import FleetFile

    hands = {what: _hand(what, Path(place)) for what, place in (("images", images), ("director", director))}
    topics = _make_topics(session, prefix)
    names = Names(session)
    servers = {names.principal(who).hex(): url for who, url in parse_pairs(mirrors, "--mirror", "PRINCIPAL=URL")}
    fleet = FleetFile(topics, hands["director"][0], hands["director"][1], hands["images"][1], servers)
    who = [(what, principal) for what, (principal, _) in hands.items()] + [("owner", session.identity.principal)]
    grant(session, fleet, who + [("mirror", bytes.fromhex(one)) for one in servers])
    fleet.write(file)
    told = {
        "file": str(file),
        "topics": {what: one.name for what, one in topics.items()},
        "active": _is_active(session),
    }
    tell(told, f"wrote {file}", *(f"topic {one.name}" for one in topics.values()))
    if not told["active"]:
        output.note('note: the contract "firmware" is not in force; the operator says: tally instance activate DIR')


@command.command("enrol")
@click.argument("files", type=common.KNOWN_FILE, nargs=-1, required=True)
@with_fleet
def enrol(session: Session, files: tuple[Path, ...], fleet: FleetFile, tell: output.Tell) -> None:
    """Take vehicles up, from the FILES that tally ota vehicle init made.

    The owner's act gives them their rights; the Director's lets it know their keys. Each keeps a copy.

    \b
    Examples:
      tally ota enrol car-17.json --home owner
      tally ota enrol car-17.json --home director
    """
    from tallystick.fleet.ota.fleetfile import VehicleFile
    from tallystick.ledger.contracts.identity import CERTIFICATES
    from tallystick.ledger.contracts.topics import TOPICS
    from tallystick.trust.certificate import Certificate

    found, folder = [VehicleFile.read(file) for file in files], fleet.vehicles(session.identity.home)
    for one in found:
        row = session.view.row(CERTIFICATES(one.vehicle))
        held = None if row is None else Certificate.decode(row)
        if held is None or (held.signing_key, held.sealing_key) != (one.key.raw, one.sealing_key):
            raise Misuse(f"vehicle {one.vehicle.hex()}: not a principal with these keys", hint="tally principal enrol")
    topic = session.view.row(TOPICS(fleet["offers"].token))
    if topic is not None and topic.owner == session.identity.principal:
        grant(session, fleet, [("vehicle", one.vehicle) for one in found])
    folder.mkdir(parents=True, exist_ok=True)
    for one in found:
        one.write(folder / f"{one.vehicle.hex()}.json")
    tell([one.vehicle for one in found], *(f"enrolled {one.vehicle.hex()}" for one in found))


@command.command("release")
@click.argument("file", type=common.KNOWN_FILE)
@click.option("--target", required=True, metavar="SUPPLIER/HARDWARE/VERSION")
@click.option("--needs", multiple=True, metavar="HARDWARE=TARGET", help="What must run beside it; may be repeated.")
@click.option("--surface", "surfaces", multiple=True, help="What it opens, such as tcp/22 or interface/wlan0.")
@click.option("--patch-from", "bases", multiple=True, metavar="TARGET", help="An older release to make a patch from.")
@with_fleet
def release(
    session: Session,
    file: Path,
    target: str,
    needs: tuple[str, ...],
    surfaces: tuple[str, ...],
    bases: tuple[str, ...],
    fleet: FleetFile,
    tell: output.Tell,
) -> None:
    """Release FILE: seal it as an object, sign its docket, write its record, and say so on the ledger, last of all.

    The home's folder "objects" then has what is to be served: tally object serve, or tally ota mirror. Of a tar file
    the hashes of the files inside go into the record.

    \b
    Examples:
      tally ota release brakes.bin --target acme/brake-mk2/1.4 --home images
      tally ota release brakes.bin --target acme/brake-mk2/1.4 --patch-from acme/brake-mk2/1.3 --home images
    """
    from tallystick.fleet.ota.releasing import ImageDesk

    desk = ImageDesk(session, fleet, repository_of(session))
    required = [(what, desk.find(one).image) for what, one in parse_pairs(needs, "--needs", "HARDWARE=TARGET")]
    record = desk.release(file, target, required, surfaces, bases)
    told = {"image": record.image, "target": target, "length": record.reference.length}
    tell(told, *output.fact_lines(told), note=f"next: tally ota campaign begin {target}")


@command.command("withdraw")
@click.argument("target", metavar="TARGET|IMAGE")
@with_fleet
def withdraw(session: Session, target: str, fleet: FleetFile, tell: output.Tell) -> None:
    """Withdraw a release, for good: no car installs it any more, and a campaign that spreads it stops.

    \b
    Examples:
      tally ota withdraw acme/brake-mk2/1.4 --home images
    """
    from tallystick.fleet.ota.releasing import ImageDesk
    from tallystick.ledger import entries

    with open_view(session, fleet) as view:
        image = find_image(view, target)
    session.author.write(entries.withdraw_image(fleet["releases"].token, image))
    if repository_of(session).exists("keys"):  # not the owner's
        ImageDesk(session, fleet, repository_of(session)).drop(image)
    tell({"withdrawn": image}, f"withdrew {image.hex()}")


@command.command("renew")
@with_fleet
def renew(session: Session, fleet: FleetFile, tell: output.Tell) -> None:
    """Sign the Image repository's metadata anew. Its timestamp is good for a week: let a timer run this every day.

    \b
    Examples:
      tally ota renew --home images
    """
    from tallystick.fleet.ota.releasing import ImageDesk

    renewed = ImageDesk(session, fleet, repository_of(session)).renew()
    tell({"targets": renewed}, f"{output.plural(renewed, 'target')} signed anew")


@command.command("rotate")
@click.argument("what", type=click.Choice(["images", "director"]))
@click.argument("roles", type=click.Choice(["root", "timestamp", "snapshot", "targets"]), nargs=-1)
@common.home_option
@output.json_option
def rotate(what: str, roles: tuple[str, ...], home: Path | None, tell: output.Tell) -> None:
    """Make the next root of a repository, with new keys for ROLES: after a theft, or once a year with none.

    Vehicles take the new root with their next offer, and then nothing that the replaced keys signed.

    \b
    Examples:
      tally ota rotate images timestamp snapshot --home images
      tally ota rotate director --home director
    """
    from tallystick.fleet.ota.repository import replace_keys
    from tallystick.identity.folder import Identity
    from tallystick.runtime.disk import RealDisk

    folder = Identity.load(home).home / "ota" / what
    if not folder.is_dir():
        raise Misuse(f"{folder}: no repository is here", hint="name the home of the identity that holds it")
    version = replace_keys(RealDisk(folder), roles, lambda: common.machine().entropy.bytes(32), common.now_ms())
    then = "tally ota renew" if what == "images" else "start tally ota director again"
    tell({"root": version, "replaced": list(roles)}, f"root {version}", note=f"next: {then}")


def grant(session: Session, fleet: FleetFile, who: list[tuple[str, bytes]]) -> None:
    """Let principals do what `RIGHTS` says of their kind, in one transaction."""
    from tallystick.authority.answers import REMEMBER, SHOW
    from tallystick.cli.entries import write
    from tallystick.fleet.ota.fleetfile import RIGHTS

    names = Names(session)
    wanted = [
        (names.topic_name(fleet[topic].token), principal, int(right))
        for kind, principal in who
        for topic, right in RIGHTS[kind].items()
    ]
    ask = session.authority.resolve_rights
    entries = [entry for one in wanted for entry in ask(*one, mode=REMEMBER).entries]
    if entries:
        write(session, names, *entries)
        common.wait_for_authority(session, lambda: not any(ask(*one, mode=SHOW).entries for one in wanted), "rights")


def _make_topics(session: Session, prefix: str) -> dict[str, Any]:
    from tallystick.fleet.ota.fleetfile import SCHEMAS, NamedTopic
    from tallystick.record.schema import Schema

    known = {name: token for token, name in Names(session).topics}
    found = {}
    for what, schema in SCHEMAS.items():
        name = f"{prefix}/{what}"
        token = known.get(name) or session.create_topic(name, Schema.parse(schema).encode())
        found[what] = NamedTopic(name, token)
    tokens = {one.token for one in found.values()}
    common.wait_for_authority(session, lambda: tokens <= dict(Names(session).topics).keys(), "topics")
    return found


def _hand(what: str, place: Path | None) -> tuple[bytes, bytes]:
    """Principal and first root of whoever holds a repository: from what it wrote, or made in its home."""
    from tallystick.fleet.ota.repository import found_repository
    from tallystick.identity.folder import Identity
    from tallystick.runtime.disk import RealDisk

    if place is not None and place.is_file():
        try:
            told = json.loads(place.read_text())
            if told["format"] == _FORMAT:
                return bytes.fromhex(told["principal"]), told["root"].encode()
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise Malformed(f"{place}: not what a repository's holder hands out", hint="tally ota keys writes it")
    identity, machine = Identity.load(place), common.machine()
    disk = RealDisk(identity.home / "ota" / what)
    return identity.principal, found_repository(disk, lambda: machine.entropy.bytes(32), common.now_ms())


def _is_active(session: Session) -> bool:
    from tallystick.ledger.contracts.firmware import CONTRACT
    from tallystick.ledger.contracts.settings import VERSIONS, version_at

    versions, head = session.view.row_at(VERSIONS())
    return version_at(versions, CONTRACT, head.height + 1) > 0


for _one in (
    *(ota_campaign.campaign, ota_campaign.status, ota_serve.director, ota_serve.mirror, ota_serve.stick),
    *(ota_vehicle.vehicle, ota_vehicle.diagnose),
):
    command.add_command(_one)
