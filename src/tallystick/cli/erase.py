"""`tally erase`: destroy the keys of what must be forgotten."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import home_option, naming, open_session
from tallystick.client.names import Names
from tallystick.errors import Misuse


@click.command("erase")
@click.argument("topic")
@click.argument("publisher")
@click.argument("periods", nargs=-1, type=click.IntRange(0))
@click.option("--all-periods", is_flag=True, help="Everything that the publisher ever sealed on the topic.")
@click.option("--yes", is_flag=True, help="Do it: nothing can bring the keys back.")
@home_option
@output.json_option
def command(
    topic: str,
    publisher: str,
    periods: tuple[int, ...],
    all_periods: bool,
    yes: bool,
    home: Path | None,
    tell: output.Tell,
) -> None:
    """Destroy the keys under which PUBLISHER sealed on the erasable TOPIC in PERIODS; by the topic's owner.

    The parcels stay, unreadable; roots and receipts still verify; readers report them as erased and go on. What was
    already opened, exported or backed up is outside: the command lists who held the keys and which backups do.

    \b
    Examples:
      tally erase trips car-17 3 --yes --home owner
      tally erase trips car-17 --all-periods --yes --home owner
    """
    if bool(periods) == all_periods:
        raise Misuse("either periods or --all-periods must be named")
    with open_session(home) as session, naming(topic):
        names = Names(session)
        token, identifier = names.topic(topic), names.principal(publisher)
        if not yes:
            raise Misuse(
                f'the keys of "{publisher}" on topic "{topic}" would be destroyed for good', hint="say --yes to do it"
            )
        erased = session.authority.erase(token, identifier, list(periods))
    periods = tuple(period for _, period in erased.periods)
    shown = ", ".join(map(str, periods))
    tell(
        {"periods": periods, "holders": erased.holders, "backups": erased.backups},
        f"destroyed the keys of {output.plural(len(periods), 'period')}: {shown}",
        *(f"held the key, and may have kept what it opened: {names.principal_name(one)}" for one in erased.holders),
        *(f"still holds the key: backup {backup.hex()}" for backup in erased.backups),
    )
