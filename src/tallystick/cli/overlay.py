"""`tally overlay`: overlays of relays, from their founding to the plan they work by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output, overlay_members, overlay_plan, overlay_status, overlay_suggest, overlay_trial
from tallystick.cli.common import folder_argument, naming, open_operator, read_ms, require_instance, with_session
from tallystick.cli.instance import ask_back, identifier_of, yes_option
from tallystick.client.names import Names
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session


@click.group("overlay")
def command() -> None:
    """Found overlays, sign and submit their plans, and let topics travel over them; run one on this machine.

    \b
    Examples:
      tally overlay up trial
      tally overlay found fleet city 6f0c0d3b8a1e4f5d9c7b2a1908f7e6d5 --threshold 1
      tally overlay plan sign city.toml --home administrator
      tally overlay entrust brakes city edge --home owner
    """


for _one in (overlay_trial.up, overlay_status.status, overlay_trial.chaos, overlay_plan.command):
    command.add_command(_one)
for _one in (overlay_members.attach, overlay_members.detach, overlay_members.relay):
    command.add_command(_one)
overlay_plan.command.add_command(overlay_suggest.command)


@command.command("found")
@folder_argument
@click.argument("name")
@click.argument("administrators", nargs=-1, required=True)
@click.option("--threshold", type=click.IntRange(1), help="How many of them must sign; by default more than half.")
@yes_option
@output.json_option
def found(
    folder: Path, name: str, administrators: tuple[str, ...], threshold: int | None, yes: bool, tell: output.Tell
) -> None:
    """Found overlay NAME in the instance in DIR, with ADMINISTRATORS, named by their identifiers; by the operator.

    From then on the administrators decide: which nodes are relays, and who comes after them.

    \b
    Examples:
      tally overlay found fleet city 6f0c0d3b8a1e4f5d9c7b2a1908f7e6d5 --threshold 1
    """
    from tallystick.cli.common import read_trust
    from tallystick.ledger import entries
    from tallystick.trust.plan import overlay_id

    names = [identifier_of(one) for one in administrators]
    needed = threshold or len(names) // 2 + 1
    if needed > len(names):
        raise Misuse(f"--threshold {needed}: there are {len(names)} administrators")
    identifier = overlay_id(read_trust(require_instance(folder).trust).instance, name)
    ask_back(yes, f"overlay {name} ({identifier.hex()}): {needed} of {len(names)} administrators sign its plans")
    with open_operator(folder) as operator:
        operator.change_rules([entries.overlay(identifier, names, needed)])
    tell({"overlay": identifier, "threshold": needed}, f"overlay {name} ({identifier.hex()})")
    output.note("next: an administrator writes a plan, and all sign it: tally overlay plan sign FILE")


@command.command("entrust")
@click.argument("topic")
@click.argument("overlay", required=False)
@click.argument("node", required=False)
@output.default_option("--lease", default="10s", help="How long a relay orders a partition without a word.")
@click.option("--back", is_flag=True, help="Let the topic's own nodes carry it again.")
@with_session
@output.json_option
def entrust(
    session: Session, topic: str, overlay: str | None, node: str | None, lease: str, back: bool, tell: output.Tell
) -> None:
    """Let TOPIC travel over OVERLAY; publishers enter at its virtual node NODE. By the topic's owner.

    \b
    Examples:
      tally overlay entrust brakes city edge --home owner
      tally overlay entrust brakes --back --home owner
    """
    from tallystick.cli.entries import write
    from tallystick.client.plan_file import find_node
    from tallystick.ledger import entries

    names, lease_ms = Names(session), read_ms(lease)
    token = names.topic(topic)
    if lease_ms is None:
        raise Misuse(f'--lease "{lease}": a time such as 10s expected')
    with naming(topic):
        if back:
            write(session, names, entries.take_back(token))
            tell({"topic": token, "overlay": None}, f"{topic} is carried by its own nodes")
            return
        if overlay is None or node is None:
            raise Misuse("which overlay, and which virtual node?", hint="or --back, to take the topic from its overlay")
        identifier = overlay_plan.overlay_of(session, overlay)
        write(session, names, entries.entrust(token, identifier, find_node(identifier, node), lease_ms))
    tell({"topic": token, "overlay": identifier, "node": node}, f"{topic} travels over {overlay}, from {node} on")
