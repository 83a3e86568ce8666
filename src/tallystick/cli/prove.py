"""`tally prove`: one record's proof, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import naming, output_option, with_session

if TYPE_CHECKING:
    from tallystick.client.reader import Finding
    from tallystick.client.session import Session


@click.command("prove")
@click.argument("topic")
@output.default_option("--partition", type=click.IntRange(0), default=0)
@click.option("--offset", type=click.IntRange(0), required=True, help="Of the parcel, as subscribe --origin shows it.")
@click.option("--row", type=click.IntRange(0), required=True, help="Of the record in its parcel, from 0.")
@output.default_option("--group", type=click.IntRange(0), default=0, help="The column group to show.")
@output_option("The file to write; it is never written over.")
@with_session
@output.json_option
def command(
    session: Session, topic: str, partition: int, offset: int, row: int, group: int, file: Path, tell: output.Tell
) -> None:
    """Write the proof of one record of TOPIC: anybody with the trust file can check it offline.

    The proof shows this row, and the schema; neither the other rows of its parcel nor any key. It does not show whether
    the publisher's key was revoked before: if so, that is said on stderr.

    \b
    Examples:
      tally subscribe brakes --origin --home reader | head -1
      tally prove brakes --offset 0 --row 41 -o row.proof --home reader
      tally verify row.proof --trust trust.json
    """
    from tallystick.parcel.prove import verify_proof

    def on_finding(finding: Finding) -> None:
        output.note(f"finding: {finding.reason}: {finding.message}")

    with naming(topic):
        data = session.prove(topic, partition, offset, row, group, on_finding=on_finding).encode()
        proven = verify_proof(data, session.memory.trust)  # what we hand out we have checked
    output.write_result(file, data)
    told = {"file": str(file), "bytes": len(data), "parcel": proven.parcel, "row": proven.leaf}
    tell(told, f"proof of row {row} of offset {offset}, partition {partition}, in {file}: {len(data)} bytes")
