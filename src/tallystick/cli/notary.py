"""`tally notary`: the guards' work behind clients that go to Kafka themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Unpack

import click

from tallystick.cli import output
from tallystick.cli.common import PORT, folder_argument, require_instance
from tallystick.cli.up import NodeOptions, begin, node_options, run_node


@click.command("notary")
@folder_argument
@click.option("--port", type=PORT, default=None, help="Instead of that in node.toml; 0: any.")
@node_options
@output.json_option
def command(folder: Path, port: int | None, tell: output.Tell, **options: Unpack[NodeOptions]) -> None:
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
    folders = require_instance(folder)
    run_node(folders, replace(begin(folders, port, options), gateway=False), tell)
