"""`tally tenant`: tenants are made by the operator of an instance."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, invitation, open_operator, url_options


@click.group("tenant")
def command() -> None:
    """Add and list tenants; by the operator, on the authority's machine.

    \b
    Examples:
      tally tenant create acme fleet > owner.invite
      tally tenant list fleet
    """


@command.command("create")
@click.argument("name")
@folder_argument
@url_options
@output.json_option
def create(name: str, folder: Path, authority_url: str | None, node_urls: tuple[str, ...], tell: output.Tell) -> None:
    """Make tenant NAME in the instance of DIR; print the invitation of its owner.

    \b
    Examples:
      tally tenant create acme fleet > owner.invite
      tally principal enrol owner.invite --home owner
    """
    with open_operator(folder) as operator:
        code = operator.create_tenant(name)
    text = invitation(folder, code, authority_url, node_urls).encode()
    advice = f'note: whoever enrols with this invitation owns tenant "{name}"; it works once, for a week'
    tell({"tenant": name, "invitation": text}, text, note=advice)


@command.command("list")
@folder_argument
@output.json_option
def list_(folder: Path, tell: output.Tell) -> None:
    """List the tenants of the instance in DIR.

    \b
    Examples:
      tally tenant list fleet
    """
    with open_operator(folder) as operator:
        names = operator.tenants()
    tell(names, *names, none=f"no tenants; tally tenant create NAME {folder} makes one")
