"""`tally up`: node and authority, as processes of their own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from tallystick.cli import output
from tallystick.cli.common import PORT, folder_argument, machine, on_signal, read_trust, require_instance
from tallystick.errors import Misuse, Unavailable

if TYPE_CHECKING:
    from tallystick.node.instance import Folders
    from tallystick.node.settings import NodeSettings
    from tallystick.runtime.address import Address


class NodeOptions(TypedDict):
    """What the command line of a process with a node says instead of node.toml."""

    ledger: str | None
    carrier: str | None
    kafka_settings: str | None
    json_logs: bool
    supervised: bool


# What every process with a node takes, for `begin`.
node_options = output.options(
    click.option("--ledger", help="cometbft://host:port,… instead of what node.toml says."),
    click.option("--carrier", help="kafka://host:port,… instead of what node.toml says."),
    click.option(
        "--kafka-settings",
        type=click.Path(exists=True, dir_okay=False),
        help="A JSON file of librdkafka's settings: how this process is known to Kafka.",
    ),
    click.option("--json-logs", is_flag=True, help="Write logs as JSON lines."),
    click.option("--supervised", is_flag=True, hidden=True, help="End when standard input closes."),
)


def begin(folders: Folders, port: int | None, options: NodeOptions) -> NodeSettings:
    """Read node.toml, and set up logs by it. Returns its settings, with what the command line says instead."""
    from tallystick.node.settings import read_settings
    from tallystick.runtime.logs import configure_logs

    settings = read_settings(folders.node)
    kafka_settings = options["kafka_settings"]
    for_carrier = {"kafka_settings": kafka_settings} if kafka_settings else {}
    settings = replace(
        settings,
        port=settings.port if port is None else port,
        ledger=options["ledger"] or settings.ledger,
        carrier=options["carrier"] or settings.carrier,
        carrier_settings={**settings.carrier_settings, **for_carrier},
        json_logs=options["json_logs"] or settings.json_logs,
    )
    configure_logs(json=settings.json_logs, level="info" if settings.json_logs else "warning")
    if options["supervised"]:
        _end_with_parent()
    return settings


@click.command("up")
@folder_argument
@click.option("--node-only", is_flag=True, help="Run the node alone.")
@click.option("--authority-only", is_flag=True, help="Run the authority alone.")
@click.option("--port", type=PORT, default=None, help="The node's, instead of that in node.toml; 0: any.")
@click.option("--authority-port", type=PORT, default=None, help="The authority's; 0: any.")
@click.option(
    "--node-url",
    "node_urls",
    multiple=True,
    help="Where the authority finds the node, if not on this machine; again: other nodes, where it does not answer.",
)
@node_options
@output.json_option
def command(
    folder: Path,
    node_only: bool,
    authority_only: bool,
    port: int | None,
    authority_port: int | None,
    node_urls: tuple[str, ...],
    tell: output.Tell,
    **options: Unpack[NodeOptions],
) -> None:
    """Run the node and the authority of the instance in DIR, as two processes, until SIGINT or SIGTERM.

    Says on stdout where they listen when both are ready; logs go to stderr. One that dies is started again. The
    authority needs the passphrase: TALLY_PASSPHRASE, TALLY_PASSPHRASE_FILE, or DIR/passphrase.

    \b
    Examples:
      tally up fleet
      tally up fleet --node-only --json-logs
      tally up fleet --authority-only --node-url https://node.example:7411 --node-url https://second.example:7411
      tally up fleet --ledger cometbft://127.0.0.1:26657,127.0.0.1:26667
      tally up fleet --carrier kafka://127.0.0.1:9092 --kafka-settings operator.json
    """
    if node_only and authority_only:
        raise Misuse("--node-only and --authority-only exclude one another", hint="give neither to run both")
    folders = require_instance(folder)
    settings = begin(folders, port, options)
    if authority_port is not None:
        settings = replace(settings, authority_port=authority_port)
    if node_only:
        run_node(folders, settings, tell)
    elif authority_only:
        _run_authority(folders, settings, node_urls, tell)
    else:
        _run_both(folder, settings, tell)


def _run_both(folder: Path, settings: NodeSettings, tell: output.Tell) -> None:
    from tallystick.node.supervisor import ChildFailed, Supervisor

    options = ["--json-logs"] if settings.json_logs else []
    if settings.ledger:
        options += ["--ledger", settings.ledger]
    if settings.carrier != "log":
        options += ["--carrier", settings.carrier]
    if path := settings.carrier_settings.get("kafka_settings"):
        options += ["--kafka-settings", path]
    supervisor = Supervisor(folder, machine().clock, settings.port, settings.authority_port, options)
    on_signal(supervisor.stop)

    def ready(node: str, authority: str) -> None:
        tell({"node": node, "authority": authority}, f"node       {node}", f"authority  {authority}")

    try:
        supervisor.run(ready)
    except ChildFailed as failure:  # it has said why itself
        sys.exit(failure.code)


def run_node(folders: Folders, settings: NodeSettings, tell: output.Tell) -> None:
    """Say where the node of an instance listens, and serve until a signal."""
    from tallystick.node.instance import write_address
    from tallystick.node.node import Node

    node = Node(folders.node, machine().clock, settings)
    on_signal(node.server.stop)  # the server takes signals itself while it serves; this is for one that comes before
    engines = {"ledger": settings.ledger, "carrier": settings.carrier}
    if path := settings.carrier_settings.get("kafka_settings"):
        engines["kafka_settings"] = str(Path(path).resolve())
    write_address(folders.node, node.url, node.keys.certificate, engines)
    tell({"process": "node", "url": node.url}, f"node  {node.url}")
    node.run()


def _run_authority(folders: Folders, settings: NodeSettings, node_urls: tuple[str, ...], tell: output.Tell) -> None:
    from tallystick.node.authority import AuthorityProcess
    from tallystick.node.instance import find_passphrase, read_address, write_address
    from tallystick.node.settings import read_authority_settings
    from tallystick.runtime.address import Address, Listen
    from tallystick.trust.certificate import Certificate

    first, *rest = node_urls or (read_address(folders.node).url,)
    own = Certificate.decode((folders.node / "certificate").read_bytes())
    others = [address for url in rest if (address := _find_node(folders, url, settings.insecure))]
    tls_files = settings.tls_certificate, settings.tls_key
    listen = Listen(settings.host, settings.authority_port, tls_files, settings.insecure)
    process = AuthorityProcess(
        folders.authority,
        find_passphrase(folders.root),
        [Address(first, own.subject, own.verify_key), *others],
        *machine(),
        settings=read_authority_settings(folders.authority),
        listen=listen,
    )
    on_signal(process.stop)
    write_address(folders.authority, process.url, process.authority.certificate)
    tell({"process": "authority", "url": process.url}, f"authority  {process.url}")
    process.run()


def _find_node(folders: Folders, url: str, insecure: bool) -> Address | None:
    """Find another node of the instance, on the root's word. Returns None where nobody answers now."""
    from tallystick.identity.nodes import ask_node
    from tallystick.runtime.address import Address

    try:
        certificate = ask_node(url, read_trust(folders.trust), *machine(), insecure)
    except Unavailable as error:
        output.note(f"note: {url} is left out until the next start: {error}")
        return None
    return Address(url, certificate.subject, certificate.verify_key)


def _end_with_parent() -> None:
    """End this process when whoever started it is gone, and its standard input with it."""

    def wait() -> None:
        while os.read(0, 1024):  # not sys.stdin: its lock would be held when the interpreter ends
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
