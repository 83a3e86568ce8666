"""`tally up`: node and authority, as processes of their own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, require_instance
from tallystick.cli.output import Command
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.node.instance import Folders
    from tallystick.node.settings import NodeSettings
    from tallystick.runtime.address import Address

_PORT = click.IntRange(0, 65535)


def node_options(command: Command) -> Command:
    """Give a command what every process with a node takes: `begin` reads it."""
    for option in (
        click.option("--supervised", is_flag=True, hidden=True, help="End when standard input closes."),
        click.option("--json-logs", is_flag=True, help="Write logs as JSON lines."),
        click.option(
            "--kafka-settings",
            type=click.Path(exists=True, dir_okay=False),
            default=None,
            help="A JSON file of librdkafka's settings: how this process is known to Kafka.",
        ),
        click.option("--carrier", default=None, help="kafka://host:port,… instead of what node.toml says."),
        click.option("--ledger", default=None, help="cometbft://host:port,… instead of what node.toml says."),
    ):
        command = option(command)
    return command


def begin(
    folders: Folders,
    ledger: str | None,
    carrier: str | None,
    kafka_settings: str | None,
    json_logs: bool,
    supervised: bool,
) -> NodeSettings:
    """The settings of node.toml with what the command line says instead; logs are set up by them."""
    from tallystick.node.settings import read_settings
    from tallystick.runtime.logs import configure_logs

    settings = read_settings(folders.node)
    for_carrier = {"kafka_settings": kafka_settings} if kafka_settings else {}
    settings = replace(
        settings,
        ledger=ledger or settings.ledger,
        carrier=carrier or settings.carrier,
        carrier_settings={**settings.carrier_settings, **for_carrier},
        json_logs=json_logs or settings.json_logs,
    )
    configure_logs(json=settings.json_logs, level="info" if settings.json_logs else "warning")
    if supervised:
        _end_with_parent()
    return settings


@click.command("up")
@folder_argument
@click.option("--node-only", is_flag=True, help="Run the node alone.")
@click.option("--authority-only", is_flag=True, help="Run the authority alone.")
@click.option("--port", type=_PORT, default=None, help="The node's, instead of that in node.toml; 0: any.")
@click.option("--authority-port", type=_PORT, default=None, help="The authority's; 0: any.")
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
    ledger: str | None,
    carrier: str | None,
    kafka_settings: str | None,
    json_logs: bool,
    supervised: bool,
    as_json: bool,
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
    settings = begin(folders, ledger, carrier, kafka_settings, json_logs, supervised)
    port = settings.port if port is None else port
    authority_port = settings.authority_port if authority_port is None else authority_port
    if node_only:
        run_node(folders, settings, port, as_json)
    elif authority_only:
        _run_authority(folders, settings, authority_port, node_urls, as_json)
    else:
        _run_both(folder, settings, port, authority_port, as_json)


def _run_both(folder: Path, settings: NodeSettings, port: int, authority_port: int, as_json: bool) -> None:
    from tallystick.node.supervisor import ChildFailed, Supervisor
    from tallystick.runtime.sources import SystemClock

    options = ["--json-logs"] if settings.json_logs else []
    if settings.ledger:
        options += ["--ledger", settings.ledger]
    if settings.carrier != "log":
        options += ["--carrier", settings.carrier]
    if path := settings.carrier_settings.get("kafka_settings"):
        options += ["--kafka-settings", path]
    supervisor = Supervisor(folder, SystemClock(), port=port, authority_port=authority_port, options=options)
    _on_signal(supervisor.stop)

    def ready(node: str, authority: str) -> None:
        if as_json:
            output.result_json({"node": node, "authority": authority})
        else:
            output.result(f"node       {node}")
            output.result(f"authority  {authority}")
        sys.stdout.flush()

    try:
        supervisor.run(ready)
    except ChildFailed as failure:  # it has said why itself
        sys.exit(failure.code)


def run_node(folders: Folders, settings: NodeSettings, port: int, as_json: bool) -> None:
    """Serve the node of an instance until a signal; it says where it listens."""
    from tallystick.node.addresses import write_address
    from tallystick.node.node import Node
    from tallystick.runtime.sources import SystemClock

    node = Node(folders.node, SystemClock(), replace(settings, port=port))
    _on_signal(node.server.stop)  # the server takes signals itself while it serves; this is for one that comes before
    write_address(folders.node, node.url, node.keys.certificate)
    _listening("node", node.url, as_json)
    node.run()


def _run_authority(
    folders: Folders, settings: NodeSettings, port: int, node_urls: tuple[str, ...], as_json: bool
) -> None:
    from tallystick.node.addresses import read_address, write_address
    from tallystick.node.authority import AuthorityProcess
    from tallystick.node.instance import find_passphrase
    from tallystick.node.settings import read_authority_settings
    from tallystick.runtime.address import Address, Listen
    from tallystick.runtime.sources import SystemClock, SystemEntropy
    from tallystick.trust.certificate import Certificate

    first, *rest = node_urls or (read_address(folders.node).url,)
    own = Certificate.decode((folders.node / "certificate").read_bytes())
    others = [address for url in rest if (address := _find_node(folders, url, settings.insecure))]
    process = AuthorityProcess(
        folders.authority,
        find_passphrase(folders.root),
        [Address(first, own.subject, own.verify_key), *others],
        SystemClock(),
        SystemEntropy(),
        settings=read_authority_settings(folders.authority),
        listen=Listen(settings.host, port, (settings.tls_certificate, settings.tls_key), settings.insecure),
    )
    _on_signal(process.stop)
    write_address(folders.authority, process.url, process.authority.certificate)
    _listening("authority", process.url, as_json)
    process.run()


def _find_node(folders: Folders, url: str, insecure: bool) -> Address | None:
    """Another node of the instance, on the root's word; None where nobody answers now."""
    from tallystick.errors import Unavailable
    from tallystick.identity.nodes import ask_node
    from tallystick.runtime.address import Address
    from tallystick.runtime.sources import SystemClock, SystemEntropy
    from tallystick.trust.trustfile import TrustFile

    try:
        trust = TrustFile.parse(folders.trust.read_text())
        certificate = ask_node(url, trust, SystemClock(), SystemEntropy(), insecure)
    except Unavailable as error:
        output.note(f"note: {url} is left out until the next start: {error}")
        return None
    return Address(url, certificate.subject, certificate.verify_key)


def _listening(name: str, url: str, as_json: bool) -> None:
    if as_json:
        output.result_json({"process": name, "url": url})
    else:
        output.result(f"{name}  {url}")
    sys.stdout.flush()


def _on_signal(act: Callable[[], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: act())


def _end_with_parent() -> None:
    """End this process when whoever started it is gone, and its standard input with it."""

    def wait() -> None:
        while os.read(0, 1024):  # not sys.stdin: its lock would be held when the interpreter ends
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
