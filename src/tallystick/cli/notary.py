"""`tally notary`: the guards' work behind clients that go to Kafka themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, require_instance


@click.command("notary")
@folder_argument
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="Instead of that in node.toml; 0: any.")
@click.option("--ledger", default=None, help="cometbft://host:port,… instead of what node.toml says.")
@click.option("--carrier", default=None, help="kafka://host:port,… instead of what node.toml says.")
@click.option(
    "--kafka-settings",
    type=click.Path(exists=True, dir_okay=False),
    default=None,
    help="A JSON file of librdkafka's settings: how this notary is known to Kafka.",
)
@click.option("--json-logs", is_flag=True, help="Write logs as JSON lines.")
@click.option("--supervised", is_flag=True, hidden=True, help="End when standard input closes.")
@output.json_option
def command(
    folder: Path,
    port: int | None,
    ledger: str | None,
    carrier: str | None,
    kafka_settings: str | None,
    json_logs: bool,
    supervised: bool,
    as_json: bool,
) -> None:
    """Run the notary of the instance in DIR, and no gateway, until SIGINT or SIGTERM.

    It reads every sealed topic in Kafka, judges each record as the guards would, and writes operations and anchors to
    the ledger. Headers, proofs, permits and locks it serves over HTTP; parcels come and go by Kafka alone. Several
    notaries (tally node add makes their folders) share the partitions, and take over from one that is gone.

    \b
    Examples:
      tally notary fleet --carrier kafka://127.0.0.1:9092 --kafka-settings operator.json
      tally node add fleet notary-2
      tally notary notary-2
    """
    from tallystick.cli.up import end_with_parent, run_node
    from tallystick.node.settings import read_settings
    from tallystick.runtime.logs import configure_logs

    folders = require_instance(folder)
    settings = read_settings(folders.node)
    settings = replace(
        settings,
        ledger=ledger or settings.ledger,
        carrier=carrier or settings.carrier,
        kafka_settings=kafka_settings or settings.kafka_settings,
        gateway=False,
    )
    json_logs = json_logs or settings.json_logs
    configure_logs(json=json_logs, level="info" if json_logs else "warning")
    if supervised:
        end_with_parent()
    run_node(folders, settings, settings.port if port is None else port, json_logs, as_json)
