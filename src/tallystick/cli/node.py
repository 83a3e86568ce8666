"""`tally node`: further nodes of an instance."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, require_instance, show_statistics
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
def status(folder: Path, as_json: bool) -> None:
    """Show what the running node of DIR counts: its ledger, its log, its guards and its notary.

    \b
    Examples:
      tally node status fleet
    """
    show_statistics(require_instance(folder).node, "node", as_json)


@command.command("add")
@folder_argument
@click.argument("target", metavar="TARGET", type=click.Path(file_okay=False, path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Its port; 0: any.")
@output.json_option
def add(folder: Path, target: Path, port: int, as_json: bool) -> None:
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
    from tallystick.runtime.sources import SystemClock, SystemEntropy

    settings = read_settings(require_instance(folder).node)
    if not settings.ledger or settings.carrier == "log":
        raise Misuse(
            f"{folder}: its ledger or its log is embedded, and serves one node",
            hint="set ledger = cometbft://… and carrier = kafka://… in node.toml",
        )
    now_ms = int(SystemClock().now() * 1000)
    certificate = create_node(
        folder, target, find_passphrase(folder), replace(settings, port=port), now_ms, SystemEntropy()
    )
    if as_json:
        output.result_json({"node": certificate.subject})
        return
    output.result(f"node {certificate.subject.hex()}")
    output.note(f"next: tally up {target} --node-only")
