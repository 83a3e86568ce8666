"""`tally ota campaign` and `tally ota status`: campaigns as their owner plans them, and how the fleet is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import common, output
from tallystick.cli.ota_common import find_campaign, find_image, open_view, parse_pairs, vehicles_option, with_fleet
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.fleet.ota.director import Director
    from tallystick.fleet.ota.fleetfile import FleetFile
    from tallystick.trust.campaign import Phase

PHASES = ("share=1%", "share=10%", "share=50%", "share=100%")
_DEFAULTS = {"least": "90%", "most": "5%", "soak": "1d"}


@click.group("campaign")
def campaign() -> None:
    """Spread images in phases, each of which must succeed before the next one opens; the ledger counts.

    \b
    Examples:
      tally ota campaign begin acme/brake-mk2/1.4 --home owner
      tally ota campaign stop 6f0c --home director
    """


@campaign.command("begin")
@click.argument("targets", metavar="[TARGET|IMAGE]...", nargs=-1)
@click.option("--diagnose", is_flag=True, help="Spread no image: ask vehicles for a diagnosis.")
@click.option("--phase", "phases", multiple=True, metavar="share=…,least=…,most=…,soak=…", help="May be repeated.")
@vehicles_option
@with_fleet
def begin(
    session: Session,
    targets: tuple[str, ...],
    diagnose: bool,
    phases: tuple[str, ...],
    vehicles: Path | None,
    fleet: FleetFile,
    tell: output.Tell,
) -> None:
    """Begin a campaign of these releases, as the owner. Its first phase is open at once.

    A phase reaches a share of all vehicles. The next one opens when at least so many succeeded, no more than so many
    failed, and the soak time has passed; with one failure more the campaign stops itself. Numbers are vehicles or a
    share of those whom the phase reaches today. By default the shares are 1, 10, 50 and 100 %, of which 90 % must
    succeed and 5 % may fail in a day; phases that would reach nobody new are left out.

    \b
    Examples:
      tally ota campaign begin acme/brake-mk2/1.4 acme/door-mk1/2.0 --home owner
      tally ota campaign begin acme/brake-mk2/1.4 --phase share=5%,least=20,most=1,soak=12h --phase share=100%
      tally ota campaign begin --diagnose --phase share=100%,soak=0s --home owner
    """
    from tallystick.ledger import entries

    if bool(targets) == diagnose:
        raise Misuse("name releases, or say --diagnose", hint="tally ota status lists releases")
    identifier = session.entropy.bytes(16)
    with open_view(session, fleet, vehicles) as view:
        images = [(fleet["releases"].token, find_image(view, one)) for one in targets]
        planned = _plan(identifier, list(view.director.vehicles), phases)
    session.author.write(entries.campaign(fleet["campaigns"].token, identifier, images, [one for one, _ in planned]))
    told = [{**phase._asdict(), "reaches": reached} for phase, reached in planned]
    lines = [_phase_line(number, *one) for number, one in enumerate(planned, 1)]
    tell({"campaign": identifier, "phases": told}, f"campaign {identifier.hex()}", *lines)


def _plan(campaign: bytes, vehicles: list[bytes], texts: tuple[str, ...]) -> list[tuple[Phase, int]]:
    """Phases, and how many vehicles each reaches today."""
    from tallystick.trust.campaign import Phase, count_members

    planned, before = [], 0
    for text in texts or PHASES:
        told = {**_DEFAULTS, **dict(parse_pairs(tuple(text.split(",")), "--phase", "share=…,least=…,most=…,soak=…"))}
        soak_ms = common.read_ms(told["soak"])
        if told.keys() != {"share", *_DEFAULTS} or soak_ms is None or not told["share"].endswith("%"):
            raise Misuse(f'--phase "{text}": share, least, most and soak expected', hint="share=5%,least=20,soak=12h")
        share = _number(told["share"], 1_000_000)
        [reached] = count_members(campaign, vehicles, [Phase(share, 0, 0, 0, 0)])
        if reached <= before:
            if not texts:
                continue
            raise Misuse(
                f'--phase "{text}": it reaches {reached} of {len(vehicles)} enrolled vehicles, and would never end',
                hint="choose a larger share, or try again: who is reached is drawn anew",
            )
        room = reached + reached // 10 + 1  # for vehicles that are enrolled later
        least, most = max(1, _number(told["least"], reached)), min(_number(told["most"], reached), room - 1)
        planned.append((Phase(share, room, least, most, soak_ms), reached))
        before = reached
    if not planned:
        raise Misuse("a campaign that reaches nobody", hint="tally ota enrol takes vehicles up")
    return planned


def _number(text: str, whole: int) -> int:
    """A count, or a share of the whole."""
    try:
        found = float(text.removesuffix("%")) * whole / 100 if text.endswith("%") else float(int(text))
    except ValueError:
        found = -1.0
    if not 0 <= found <= (whole if text.endswith("%") else 1 << 32):
        raise Misuse(f'--phase: "{text}" is no number', hint="such as 20, or 5%")
    return int(found)


def _phase_line(number: int, phase: Phase, reached: int) -> str:
    from tallystick.client.spans import show_ms

    counted = f"at least {phase.least_succeeded} succeed, at most {phase.most_failed} fail"
    reach = f"{phase.share / 10_000:g} %, {output.plural(reached, 'vehicle')} today"
    return f"phase {number}: {reach}; {counted}, soaks {show_ms(phase.soak_ms)}"


def _act(name: str, text: str) -> None:
    """Make the command `stop` or `resume`."""

    @campaign.command(name, help=f"{text}\n\n\b\nExamples:\n  tally ota campaign {name} 6f0c0d3b --home owner")
    @click.argument("identifier", metavar="CAMPAIGN")
    @with_fleet
    def act(session: Session, identifier: str, fleet: FleetFile, tell: output.Tell) -> None:
        from tallystick.ledger import entries

        with open_view(session, fleet) as view:
            found = find_campaign(view, identifier)
        write = entries.stop_campaign if name == "stop" else entries.resume_campaign
        session.author.write(write(fleet["campaigns"].token, found))
        tell({name: found}, f"{name}: campaign {found.hex()}")


_act("stop", "Stop CAMPAIGN, as the owner or the Director: no vehicle installs anything of it any more.")
_act("resume", "Let CAMPAIGN go on, as the owner, forgiving what failed so far. Its phase soaks anew.")


@campaign.command("show")
@click.argument("identifier", metavar="CAMPAIGN")
@vehicles_option
@with_fleet
def show(session: Session, identifier: str, vehicles: Path | None, fleet: FleetFile, tell: output.Tell) -> None:
    """Show CAMPAIGN as the ledger has it: its phases, how far it is, and the bases that have no patch.

    \b
    Examples:
      tally ota campaign show 6f0c0d3b --home owner
    """
    from tallystick.trust.campaign import Phase, count_members

    with open_view(session, fleet, vehicles) as view:
        view.read()
        found = find_campaign(view, identifier)
    known, row = view.director, view.director.campaigns[found]
    phases = [Phase(*one) for one in row.phases]
    reached = count_members(found, known.vehicles, phases)
    bases = {image: known.unpatched(image) for _, image in row.images if image in known.records}
    told = {**_campaign(known, found), "phases": [one._asdict() for one in phases], "reaches": reached}
    lines = [_phase_line(number, *one) for number, one in enumerate(zip(phases, reached, strict=True), 1)]
    missing = [
        f"no patch from {base.hex()} to {known.records[image].target}: {output.plural(number, 'ECU')}"
        for image, counted in bases.items()
        for base, number in sorted(counted.items())
    ]
    tell({**told, "unpatched": {one.hex(): sum(some.values()) for one, some in bases.items()}}, *lines, *missing)


@click.command("status")
@vehicles_option
@with_fleet
def status(session: Session, vehicles: Path | None, fleet: FleetFile, tell: output.Tell) -> None:
    """Say which releases are live, how far campaigns are, and what every enrolled vehicle runs, waits for or hides.

    \b
    Examples:
      tally ota status --home owner
      tally ota status --json --home owner
    """
    with open_view(session, fleet, vehicles) as view:
        view.read()
    known = view.director
    releases = [
        {"target": known.records[image].target, "image": image, "height": row.height, "withdrawn": row.withdrawn}
        for image, row in known.releases.items()
        if image in known.records
    ]
    campaigns = [_campaign(known, one) for one in known.campaigns]
    cars = [_vehicle(known, one) for one in sorted(known.vehicles)]
    states = [f"withdrawn at {one['withdrawn']}" if one["withdrawn"] else "live" for one in releases]
    lines = output.table([[str(one["target"]), state] for one, state in zip(releases, states, strict=True)])
    lines += output.table([[f"campaign {one['campaign'].hex()}", one["status"], one["told"]] for one in campaigns])
    lines += output.table([[f"vehicle {one['vehicle'].hex()}", one["says"], one["runs"]] for one in cars])
    none = "nothing was released yet, and no vehicle is enrolled: tally ota release, tally ota enrol"
    tell({"releases": releases, "campaigns": campaigns, "vehicles": cars}, *lines, none=none)


def _campaign(known: Director, campaign: bytes) -> dict[str, Any]:
    from tallystick.ledger.contracts.firmware import CampaignStatus

    row = known.campaigns[campaign]
    counts = {"succeeded": row.succeeded, "failed": row.failed, "reports": row.reports}
    told = f"phase {row.phase + 1} of {len(row.phases)}: {row.succeeded} succeeded, {row.failed} failed"
    targets = [known.records[image].target if image in known.records else image.hex() for _, image in row.images]
    about = {"campaign": campaign, "status": CampaignStatus(row.status).name.lower(), "phase": row.phase + 1}
    return {**about, "of": len(row.phases), "targets": targets, **counts, "told": told}


def _vehicle(known: Director, vehicle: bytes) -> dict[str, Any]:
    manifest, running = known.manifests.get(vehicle), known.inventory.running.get(vehicle, {})
    named = {one.image: one.target for one in known.records.values()}
    runs = {ecu: named.get(one.image, one.image.hex()[:16]) for ecu, one in sorted(running.items())}
    silent = sorted(known.vehicles[vehicle].ecus.keys() - running.keys())
    says = "silent" if manifest is None else manifest.waiting or manifest.outcome or "runs"
    told = [f"{ecu} {one}" for ecu, one in runs.items()] + [f"{ecu} silent" for ecu in silent]
    return {"vehicle": vehicle, "says": says, "runs": ", ".join(told), "ecus": runs, "silent": silent}
