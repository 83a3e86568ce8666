"""`tally overlay attach`, `detach` and `relay`: one relay comes or goes, by the next version of the plan.

The next plan is the newest one with that change. What comes out is an ordinary plan file, which administrators look at,
sign and submit as any other (`overlay_plan.py`); where one of them is enough, all at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tallystick.cli import output
from tallystick.cli.common import (
    FILE,
    KNOWN_FILE,
    folder_argument,
    not_written_yet,
    require_instance,
    with_session,
)
from tallystick.cli.overlay_plan import first_option, key_of, newest_plan, overlay_of, sign_file, submit_file
from tallystick.client.names import Names
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.ledger.contracts.plans import OverlayRow
    from tallystick.trust.plan import Plan

# What becomes of a plan that a command made: the arguments of `hand_over`.
plan_options = output.options(
    click.option("--to", type=FILE, required=True, callback=not_written_yet, help="The plan file to write."),
    click.option("--names", "named", type=KNOWN_FILE, help="A plan file that has the virtual nodes' names."),
    click.option("--sign", is_flag=True, help="Sign it at once, as an administrator."),
    click.option("--submit", is_flag=True, help="Sign and submit it, where one signature is enough."),
    first_option,
)


@click.command("attach")
@click.argument("overlay")
@click.argument("node")
@click.argument("relay")
@click.option("--address", required=True, help="Where other relays reach it, as host:port.")
@click.option("--link-key", required=True, help="The key of its links, as tally overlay relay tells it.")
@click.option("--operator", default="", help="Who runs it.")
@click.option("--host", default="", help="The machine, or what else it shares a fate with.")
@plan_options
@with_session
@output.json_option
def attach(
    session: Session,
    /,
    overlay: str,
    node: str,
    relay: str,
    address: str,
    link_key: str,
    operator: str,
    host: str,
    tell: output.Tell,
    **options: Any,
) -> None:
    """Write the next plan of OVERLAY, with one more RELAY in its virtual node NODE.

    RELAY is an enrolled node. It asks its neighbours for routes as soon as the plan is on the ledger, and takes part
    from the height on that the plan names.

    \b
    Examples:
      tally overlay relay gateway-2
      tally overlay attach city hub 6f0c… --address relay-4.example:7443 --link-key 5a… --to city-2.toml
    """
    from tallystick.carriers.overlay.membership import attached
    from tallystick.client.plan_file import find_node, read_link_key
    from tallystick.trust.plan import Relay

    names, link = Names(session), read_link_key(link_key)
    if link is None:
        raise Misuse(f'--link-key "{link_key}": 64 hexadecimal digits expected', hint="tally overlay relay tells it")
    principal, place = names.principal(relay), find_node(overlay_of(session, overlay), node)
    newest, row, _ = newest_plan(session, overlay)
    seat = Relay(principal, key_of(session, principal, relay), link, address, operator, host)
    plan = attached(newest, place, seat)
    made = _changed(overlay, plan, row, place, f"{names.principal_name(principal)} comes to")
    hand_over(session, names, made, tell, **options)


@click.command("detach")
@click.argument("overlay")
@click.argument("relay")
@plan_options
@with_session
@output.json_option
def detach(session: Session, /, overlay: str, relay: str, tell: output.Tell, **options: Any) -> None:
    """Write the next plan of OVERLAY, without RELAY.

    From the height on that the plan names, the relay takes its leave: it stays until its neighbours have acknowledged
    and its queues are empty. A virtual node keeps three relays: attach first.

    \b
    Examples:
      tally overlay detach city 6f0c0d3b8a1e4f5d9c7b2a1908f7e6d5 --to city-3.toml --home administrator
    """
    from tallystick.carriers.overlay.membership import detached

    names = Names(session)
    principal, (newest, row, _) = names.principal(relay), newest_plan(session, overlay)
    plan, place = detached(newest, principal), newest.place(principal)
    assert place is not None
    made = _changed(overlay, plan, row, place[0].identifier, f"{names.principal_name(principal)} leaves")
    hand_over(session, names, made, tell, **options)


@click.command("relay")
@folder_argument
@output.json_option
def relay(folder: Path, tell: output.Tell) -> None:
    """Show what a plan says of the node in DIR: its identifier, its key and the key of its links.

    \b
    Examples:
      tally overlay relay gateway-2
    """
    from tallystick.cli.common import read_trust
    from tallystick.crypto.signatures import SigningKey
    from tallystick.node.instance import open_node_keys

    folders = require_instance(folder)
    keys = open_node_keys(folders.node, read_trust(folders.trust))
    link = SigningKey.from_seed(keys.key.derive("tallystick link key 1")).public.raw
    told = {"principal": keys.certificate.subject, "key": keys.key.public.raw, "link_key": link}
    tell(told, *output.fact_lines(told))


class NextPlan(NamedTuple):
    """A plan that a command made: the overlay as it was named, how many must sign, and what there is to tell."""

    overlay: str
    plan: Plan
    threshold: int
    told: dict[str, Any]
    lines: list[str]


def hand_over(
    session: Session,
    names: Names,
    made: NextPlan,
    tell: output.Tell,
    *,
    to: Path,
    named: Path | None,
    sign: bool,
    submit: bool,
    first: int | None,
) -> None:
    """Write the plan file and, where that is asked for, sign and submit it."""
    from tallystick.client.plan_file import PlanFile, write_plan

    plan, told, lines = made.plan, made.told, [f"{to}: plan {made.plan.version}", *made.lines]
    if submit and made.threshold > 1:
        hint = "write the file, and let one sign after the other"
        raise Misuse(f"--submit: {made.threshold} administrators must sign", hint=hint)
    write_plan(to, made.overlay, plan, PlanFile.read(named).names(plan.overlay) if named else {})
    told |= {"file": str(to), "overlay": plan.overlay, "version": plan.version}
    steps = [sign_file(session, names, to, first)] if sign or submit else []
    steps += [submit_file(session, names, to)] if submit else []
    for more, line in steps:
        told |= more
        lines.append(line)
    todo = "submit" if told.get("missing") == 0 else "sign"
    tell(told, *lines, note="" if submit else f"next: tally overlay plan {todo} {to}")


def _changed(overlay: str, plan: Plan, row: OverlayRow, node: bytes, what: str) -> NextPlan:
    here = plan.node(node)
    told = {"node": node, "needed": here.need, "relays": len(here.relays)}
    line = f"{what} virtual node {node.hex()}: {here.need} of {len(here.relays)} are needed"
    return NextPlan(overlay, plan, row.threshold, told, [line])
