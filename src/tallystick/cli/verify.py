"""`tally verify`: a proof or a receipt, checked offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tallystick.cli import output

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("verify")
@click.argument("file", type=_FILE)
@click.option("--trust", "trust_file", type=_FILE, required=True, help="The trust file of the instance.")
@output.json_option
def command(file: Path, trust_file: Path, as_json: bool) -> None:
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
    from tallystick.trust.trustfile import TrustFile

    trust = TrustFile.parse(trust_file.read_text(errors="replace"))
    data = file.read_bytes()
    proven = verify_proof(data, trust)
    schema = Schema.decode(Proof.decode(data).schema)
    row = readable(schema.group_arrow(proven.group), proven.row)
    if as_json:
        output.result_json({"holds": True, "instance": trust.instance, **_facts(proven), "row": row})
        return
    output.result(f"the proof holds, under the trust file of instance {trust.instance.hex()} ({trust.name})")
    output.result(f"row: {json.dumps(row, ensure_ascii=False)}")
    for statement in proven.statements:
        output.result(f"proved: {statement}")
    for gap in proven.not_proven:
        output.result(f"not proved: {gap}")


def _facts(proven: Any) -> dict[str, Any]:
    anchored = proven.anchored
    return {
        "publisher": proven.publisher,
        "token": proven.token,
        "lane": proven.lane,
        "sequence": proven.sequence,
        "leaf": proven.leaf,
        "parcel": proven.parcel,
        "anchored": None
        if anchored is None
        else {
            "partition": anchored.partition,
            "offset": anchored.offset,
            "height": anchored.height,
            "time_ms": anchored.time_ms,
            "cosigners": list(anchored.cosigners),
        },
        "proved": list(proven.statements),
        "not_proved": list(proven.not_proven),
    }
