"""`tally ledger`: what the ledger says, checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, output_option, read_trust, require_instance, with_session
from tallystick.client.names import Names
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session

_HEIGHTS_AT_ONCE = 64


@click.group("ledger")
def command() -> None:
    """Show the newest checkpoint, check the file, read histories, fetch receipts and checkpoints, export.

    \b
    Examples:
      tally ledger status --home reader
      tally ledger fsck fleet
    """


@command.command("status")
@with_session
@output.json_option
def status(session: Session, tell: output.Tell) -> None:
    """Fetch the newest checkpoint and hold it to the trust file and to the one accepted last.

    \b
    Examples:
      tally ledger status --home reader
    """
    before = session.memory.head
    head = session.view.refresh()
    facts = {
        "height": head.height,
        "transactions": head.size,
        "root": head.root.hex(),
        "state_root": head.state_root.hex(),
        "block_time": output.show_time(head.time_ms),
        "cosigners": list(head.cosigners),
        "validators": list(head.validators(session.memory.trust)),
        "vouched_by": head.vouched_by(session.memory.trust),
        "continues": "the first one seen here" if before is None else f"height {before.height}, proved",
        "contradictions_kept": len(session.memory.evidence()),
        "trouble": session.trouble() or None,
    }
    tell(facts, *output.fact_lines(facts))


@command.command("fsck")
@folder_argument
@output.json_option
def fsck(folder: Path, tell: output.Tell) -> None:
    """Replay the ledger of the instance or the validator in DIR from its genesis, and compare every hash; whoever
    writes it must be stopped.

    \b
    Examples:
      tally ledger fsck fleet
      tally ledger fsck v0
    """
    from tallystick.ledger.fsck import fsck as replay

    folders = require_instance(folder)
    is_validator = (folder / "validator.json").exists()
    path = (folder if is_validator else folders.node) / "ledger.sqlite"
    if not path.exists():
        maker = f"tally chain run {folder}" if is_validator else f"tally up {folder}"
        raise Misuse(f"{path}: no ledger is here yet", hint=f"{maker} makes one")
    report = replay(str(path), read_trust(folders.trust))
    found = f"{report.transactions} transactions, {report.entries} entries, {report.state_keys} values of state"
    tell(report, f"the ledger is whole up to height {report.height}: {found}")


@command.command("history")
@click.argument("topic")
@with_session
@output.json_option
def history(session: Session, topic: str, tell: output.Tell) -> None:
    """Print every operation on TOPIC, newest first, and prove that none is missing.

    \b
    Examples:
      tally ledger history brakes --home owner
    """
    from tallystick.client.words import decode, describe

    names = Names(session)
    found, head = session.history(names.topic(topic))
    for height, index, entry in found:
        fields = decode(entry)
        line = f"{height}/{index}  {output.show_time(fields['time_ms'])}  {describe(fields, names)}"
        tell({"height": height, "index": index, **fields}, line)
    output.note(f"note: these are all {len(found)} operations, proved at height {head.height}")


@command.command("receipt")
@click.argument("topic")
@output.default_option("--partition", type=click.IntRange(0), default=0)
@click.option("--offset", type=click.IntRange(0), required=True)
@output_option()
@with_session
@output.json_option
def receipt(session: Session, topic: str, partition: int, offset: int, file: Path, tell: output.Tell) -> None:
    """Fetch the receipt of the parcel at an offset of TOPIC: the proof that it is anchored.

    \b
    Examples:
      tally ledger receipt brakes --offset 0 -o parcel.receipt --home reader
      tally verify parcel.receipt --parcel HASH --trust trust.json
    """
    from tallystick.trust.receipt import Receipt

    data = session.node.receipt(Names(session).topic(topic), partition, offset)
    checkpoint = session.view.entry(Receipt.decode(data).anchor).checkpoint
    output.write_result(file, data)
    told = {"file": str(file), "height": checkpoint.height, "bytes": len(data)}
    line = f"receipt in {file}: anchored at or before height {checkpoint.height}"
    tell(told, line, note=f"note: {checkpoint.vouched_by(session.memory.trust)}")


@command.command("checkpoint")
@output_option()
@with_session
@output.json_option
def checkpoint(session: Session, file: Path, tell: output.Tell) -> None:
    """Fetch the newest checkpoint, hold it to what was accepted before, and write it for others to compare.

    \b
    Examples:
      tally ledger checkpoint -o fleet.checkpoint --home reader
      tally verify fleet.checkpoint --trust trust.json
    """
    head = session.view.refresh()
    output.write_result(file, head.note)
    told = {"file": str(file), "height": head.height, "bytes": len(head.note)}
    line = f"checkpoint of height {head.height} in {file}"
    tell(told, line, note=f"note: {head.vouched_by(session.memory.trust)}")


@command.command("export")
@output.default_option("--from", "first", type=click.IntRange(0), default=0, help="The first height.")
@click.option("--to", "end", type=click.IntRange(1), default=None, help="The height to stop before.")
@with_session
@output.progress_option
def export(session: Session, first: int, end: int | None, show_progress: bool) -> None:
    """Write every entry of the ledger as JSON lines to stdout, signatures checked against tree and checkpoint by fsck.

    \b
    Examples:
      tally ledger export --home owner > ledger.jsonl
    """
    from tallystick import wire
    from tallystick.client.words import decode
    from tallystick.ledger.block import Block, parse

    end = min(end or (1 << 62), session.view.refresh().height + 1)
    with output.progress("exporting blocks", max(0, end - first), show=show_progress) as advance:
        while first < end and (blocks := session.node.blocks(first, min(_HEIGHTS_AT_ONCE, end - first))):
            for encoded, transactions in blocks:
                block = Block.decode(encoded)
                place = {"height": block.height, "time_ms": block.time_ms}
                index = 0
                for transaction in map(parse, transactions):
                    author = wire.decode(transaction.head)[2]
                    for entry in transaction.entries:
                        output.result_json({**place, "index": index, "author": author, **decode(entry)})
                        index += 1
            first += len(blocks)
            advance(len(blocks))
