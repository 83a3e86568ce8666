"""`tally overlay plan suggest`: the next plan from what failed, as the placement would have it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import KNOWN_FILE, with_session
from tallystick.cli.overlay_members import NextPlan, hand_over, plan_options
from tallystick.cli.overlay_plan import key_of, newest_plan
from tallystick.client.names import Names

if TYPE_CHECKING:
    from tallystick.client.session import Session


@click.command("suggest")
@click.argument("overlay")
@click.option("--relays", type=KNOWN_FILE, help="A file of relays that are there to be seated, beside the plan's.")
@click.option("--paths", type=KNOWN_FILE, help="A file of the paths that matter; by default all between leaves.")
@plan_options
@with_session
@output.json_option
def command(
    session: Session, /, overlay: str, relays: Path | None, paths: Path | None, tell: output.Tell, **options: Any
) -> None:
    """Write the next plan of OVERLAY as the failures on the ledger suggest it, and say what changes.

    A relay that more of one virtual node suspect than may lie is replaced, and so is one that was convicted; replicas
    go to the virtual nodes with most failures. Nothing is written where nothing is to change.

    \b
    Examples:
      tally overlay plan suggest city --relays spare.toml --to city-4.toml --home administrator
      tally overlay plan suggest city --relays spare.toml --paths paths.toml --to city-4.toml --submit
    """
    from tallystick.client.plan_suggestion import all_roads, read_offers, read_roads, suggest
    from tallystick.ledger.contracts.plans import plan_at

    names = Names(session)
    newest, row, height = newest_plan(session, overlay)
    now = plan_at(session.view.row, newest.overlay, height) or newest
    offers = read_offers(relays, names.principal, partial(key_of, session, where=str(relays))) if relays else []
    roads = read_roads(paths, newest) if paths else all_roads(newest)
    made = suggest(newest, now.version, session.view.row, offers, roads, names.principal_name)
    told = {"overlay": newest.overlay, "version": newest.version, "changes": made.lines, "file": None}
    if made.plan is newest:
        tell(told, *made.lines, f"plan {newest.version} stays as it is")
        return
    hand_over(session, names, NextPlan(overlay, made.plan, row.threshold, told, made.lines), tell, **options)
