"""`tally node`: further nodes of an instance."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import FOLDER, PORT, folder_argument, machine, now_ms, require_instance, show_statistics
from tallystick.errors import Misuse


@click.group("node")
def command() -> None:
    """Show a node's numbers, and add nodes: gateways that share an instance's ledger and its Kafka.

    \b
    Examples:
      tally node status fleet
      tally node add fleet gateway-2
    """


@command.command("status")
@folder_argument
@output.json_option
def status(folder: Path, tell: output.Tell) -> None:
    """Show what the running node of DIR counts: its ledger, its log, its guards and its notary.

    \b
    Examples:
      tally node status fleet
    """
    show_statistics(require_instance(folder).node, "node", tell)


@command.command("add")
@folder_argument
@click.argument("target", metavar="TARGET", type=FOLDER)
@click.option("--port", type=PORT, default=0, help="Its port; 0: any.")
@output.json_option
def add(folder: Path, target: Path, port: int, tell: output.Tell) -> None:
    """Make one more node of the instance in DIR, in TARGET; the root key certifies it.

    Its settings are those of the first node but for the port. The instance must be on a chain and on Kafka: an embedded
    ledger or log serves one node.

    \b
    Examples:
      tally node add fleet gateway-2
      tally up gateway-2 --node-only
    """
    from dataclasses import replace

    from tallystick.node.instance import create_node, find_passphrase
    from tallystick.node.settings import read_settings

    settings = read_settings(require_instance(folder).node)
    if not settings.ledger or settings.carrier == "log":
        raise Misuse(
            f"{folder}: its ledger or its log is embedded, and serves one node",
            hint="set ledger = cometbft://… and carrier = kafka://… in node.toml",
        )
    settings = replace(settings, port=port)
    certificate = create_node(folder, target, find_passphrase(folder), settings, now_ms(), machine().entropy)
    advice = f"next: tally up {target} --node-only"
    tell({"node": certificate.subject}, f"node {certificate.subject.hex()}", note=advice)
