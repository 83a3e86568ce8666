"""`tally verify`: a proof or a receipt, checked offline."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import KNOWN_FILE, read_trust


@click.command("verify")
@click.argument("file", type=KNOWN_FILE)
@click.option("--trust", "trust_file", type=KNOWN_FILE, required=True, help="The trust file of the instance.")
@output.json_option
def command(file: Path, trust_file: Path, tell: output.Tell) -> None:
    """Check the proof in FILE with a trust file and nothing else; say what it proves and what it does not.

    Needs no network, no identity and no key. The exit code is 3 if the proof does not hold.

    \b
    Examples:
      tally verify row.proof --trust trust.json
      tally verify row.proof --trust trust.json --json
    """
    from tallystick.parcel.prove import Proof, verify_proof
    from tallystick.record.schema import Schema
    from tallystick.record.show import readable

    trust, data = read_trust(trust_file), file.read_bytes()
    proven = verify_proof(data, trust)
    schema = Schema.decode(Proof.decode(data).schema)
    row = readable(schema.group_arrow(proven.group), proven.row)
    anchored = proven.anchored
    facts = {
        **output.fields(proven, "publisher token lane sequence leaf parcel"),
        "anchored": anchored and output.fields(anchored, "partition offset height time_ms cosigners"),
        "proved": proven.statements,
        "not_proved": proven.not_proven,
    }
    tell(
        {"holds": True, "instance": trust.instance, **facts, "row": row},
        f"the proof holds, under the trust file of instance {trust.instance.hex()} ({trust.name})",
        f"row: {json.dumps(row, ensure_ascii=False)}",
        *(f"proved: {statement}" for statement in proven.statements),
        *(f"not proved: {gap}" for gap in proven.not_proven),
    )
