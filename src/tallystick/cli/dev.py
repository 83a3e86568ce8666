"""`tally dev`: engines on this machine, for trials and tests."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument
from tallystick.errors import Misuse


@click.group("dev")
def command() -> None:
    """Start and stop engines on this machine, on loopback.

    \b
    Examples:
      tally dev chain up fleet --validators 4
      tally dev chain down fleet
    """


@command.group("chain")
def chain() -> None:
    """A CometBFT chain whose validators all run here.

    \b
    Examples:
      tally dev chain up fleet
    """


@chain.command("up")
@folder_argument
@click.option(
    "--validators", type=click.IntRange(1, 7), default=1, show_default=True, help="How many; one may fail of 4."
)
@output.json_option
def up(folder: Path, validators: int, as_json: bool) -> None:
    """Start the chain of the instance in DIR; the first time, make chain and instance. Then: tally up DIR.

    \b
    Examples:
      tally dev chain up fleet --validators 4
    """
    from tallystick.cli.init import make_instance
    from tallystick.node.devchain import chain_url, create_validators, found_chain, start_chain, validator_folders
    from tallystick.node.instance import Folders
    from tallystick.node.settings import NodeSettings
    from tallystick.node.validator import find_cometbft
    from tallystick.runtime.clock import SystemClock
    from tallystick.runtime.entropy import SystemEntropy

    find_cometbft()
    clock, folders = SystemClock(), Folders(folder)
    if not validator_folders(folder):
        if folders.trust.exists():
            raise Misuse(f"{folder}: its instance has an embedded ledger", hint="choose another folder")
        cards = create_validators(folder, validators, SystemEntropy())
        keys = tuple(bytes.fromhex(card.note_key) for card in cards)
        trust, _ = make_instance(folder, None, NodeSettings(ledger=chain_url(folder)), validators=keys)
        found_chain(folder, trust, int(clock.now() * 1000))
    start_chain(folder, clock)
    url = chain_url(folder)
    if as_json:
        output.result_json({"ledger": url, "validators": len(validator_folders(folder))})
    else:
        output.result(f"ledger  {url}")
        output.note(f"next: tally up {folder}; tally dev chain down {folder} ends it")


@chain.command("down")
@folder_argument
@output.json_option
def down(folder: Path, as_json: bool) -> None:
    """End the validators of DIR; what they hold stays.

    \b
    Examples:
      tally dev chain down fleet
    """
    from tallystick.node.devchain import stop_chain, validator_folders
    from tallystick.runtime.clock import SystemClock

    if not validator_folders(folder):
        raise Misuse(f"{folder}: no chain is here", hint=f"tally dev chain up {folder}")
    ended = stop_chain(folder, SystemClock())
    if as_json:
        output.result_json({"ended": ended})
    else:
        output.result(f"{ended} validators ended")
