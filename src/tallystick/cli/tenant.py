"""`tally tenant`: tenants are made by the operator of an instance."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, invitation, open_operator, url_options


@click.group("tenant")
def command() -> None:
    """Add tenants; by the operator, on the authority's machine.

    \b
    Examples:
      tally tenant create acme fleet > owner.invite
    """


@command.command("create")
@click.argument("name")
@folder_argument
@url_options
@output.json_option
def create(name: str, folder: Path, authority_url: str | None, node_urls: tuple[str, ...], as_json: bool) -> None:
    """Make tenant NAME in the instance of DIR; print the invitation of its owner.

    \b
    Examples:
      tally tenant create acme fleet > owner.invite
      tally principal enrol owner.invite --home owner
    """
    with open_operator(folder) as operator:
        code = operator.create_tenant(name)
    text = invitation(folder, code, authority_url, node_urls).encode()
    if as_json:
        output.result_json({"tenant": name, "invitation": text})
        return
    output.result(text)
    output.note(f'note: whoever enrols with this invitation owns tenant "{name}"; it works once, for a week')
