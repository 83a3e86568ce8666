"""`tally node`: further nodes of an instance."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import (
    FILE,
    FOLDER,
    PORT,
    folder_argument,
    machine,
    now_ms,
    require_instance,
    show_statistics,
)
from tallystick.errors import Misuse


@click.group("node")
def command() -> None:
    """Show a node's numbers, and add nodes: gateways that share an instance's ledger and its Kafka, and relays.

    \b
    Examples:
      tally node status fleet
      tally node add fleet gateway-2
      tally node add fleet relay-1 --carrier overlay://city
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
@click.option("--host", help="Where it listens, if not where the first node does.")
@click.option("--carrier", help="kafka://…, overlay://, mesh:// or fabric://NAME, if not the first node's.")
@click.option(
    "--serves", metavar="PRINCIPAL", help="On a mesh or fabric: the principal whose own it is, by its identifier."
)
@click.option("--contacts", type=FILE, help="On a mesh: a file with entries of nodes that are in it.")
@click.option("--interface", help="On a fabric: packet:NAME, or datagrams:HERE>THERE for an emulation.")
@output.json_option
def add(
    folder: Path,
    target: Path,
    port: int,
    host: str | None,
    carrier: str | None,
    serves: str | None,
    contacts: Path | None,
    interface: str | None,
    tell: output.Tell,
) -> None:
    """Make one more node of the instance in DIR, in TARGET; the root key certifies it.

    Its settings are those of the first node but for what is said here. The instance must be on a chain, and the node on
    Kafka, a relay of an overlay, on a mesh or on a fabric: an embedded ledger or log serves one node.

    \b
    Examples:
      tally node add fleet gateway-2
      tally node add fleet relay-1 --carrier overlay://city --host 10.0.0.1 --port 7411
      tally node add fleet car-node --carrier mesh://city --serves 6f0c0d3b8a1e4f5d9c7b2a1908f7e6d5
      tally node add fleet car-host --carrier fabric://city --interface packet:eth1 \
        --serves 6f0c0d3b8a1e4f5d9c7b2a1908f7e6d5
      tally up gateway-2 --node-only
    """
    from dataclasses import replace

    from tallystick.node.instance import create_node, find_passphrase
    from tallystick.node.settings import read_settings

    settings = read_settings(require_instance(folder).node)
    if carrier and carrier != settings.carrier:
        settings = replace(settings, carrier=carrier, carrier_settings={})
    if not settings.ledger or settings.carrier == "log":
        raise Misuse(
            f"{folder}: its ledger or its log is embedded, and serves one node",
            hint="set ledger = cometbft://… in node.toml, and name --carrier kafka://…, overlay://… or mesh://…",
        )
    settings = replace(settings, port=port, host=host or settings.host)
    if settings.carrier.startswith("mesh://"):
        settings = replace(settings, carrier_settings=_on_mesh(settings.host, serves, contacts))
    elif settings.carrier.startswith("fabric://"):
        settings = replace(settings, carrier_settings=_on_fabric(serves, interface))
    elif serves or contacts or interface:
        hint = "--carrier mesh://NAME or fabric://NAME"
        raise Misuse("--serves, --contacts and --interface are for nodes on a mesh or a fabric", hint=hint)
    certificate = create_node(folder, target, find_passphrase(folder), settings, now_ms(), machine().entropy)
    advice = f"next: tally up {target} --node-only"
    tell({"node": certificate.subject}, f"node {certificate.subject.hex()}", note=advice)


def _on_fabric(serves: str | None, interface: str | None) -> dict[str, str]:
    from tallystick.wire import is_identifier

    if serves is None or not is_identifier(serves) or interface is None:
        hint = "--serves and its identifier, --interface packet:NAME"
        raise Misuse("a host of a fabric serves one principal at one interface", hint=hint)
    return {"fabric_principal": serves, "fabric_interface": interface}


def _on_mesh(host: str, serves: str | None, contacts: Path | None) -> dict[str, str]:
    from tallystick.node.processes import free_ports
    from tallystick.wire import is_identifier

    if serves is None or not is_identifier(serves):
        raise Misuse("a node on a mesh serves one principal", hint="--serves and its identifier: tally principal list")
    known = {} if contacts is None else {"mesh_contacts": contacts.read_text().strip()}
    return {"mesh_principal": serves, "mesh_listen": f"{host}:{free_ports(1)[0]}", **known}
