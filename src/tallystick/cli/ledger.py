"""`tally ledger`: what the ledger says, checked."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import Names, folder_argument, home_option, open_session, require_instance, show_time, table
from tallystick.errors import Misuse

_HEIGHTS_AT_ONCE = 64


@click.group("ledger")
def command() -> None:
    """Show the newest checkpoint, check the file, read histories, fetch receipts, export.

    \b
    Examples:
      tally ledger status --home reader
      tally ledger fsck fleet
    """


@command.command("status")
@home_option
@output.json_option
def status(home: Path | None, as_json: bool) -> None:
    """Fetch the newest checkpoint and hold it to the trust file and to the one accepted last.

    \b
    Examples:
      tally ledger status --home reader
    """
    with open_session(home) as session:
        before = session.memory.head
        head = session.view.refresh()
        evidence = len(session.memory.evidence())
    facts = {
        "height": head.height,
        "transactions": head.size,
        "root": head.root.hex(),
        "state_root": head.state_root.hex(),
        "block_time": show_time(head.time_ms),
        "cosigners": list(head.cosigners),
        "vouched_by": head.vouched_by(),
        "continues": "the first one seen here" if before is None else f"height {before.height}, proved",
        "contradictions_kept": evidence,
    }
    if as_json:
        output.result_json(facts)
        return
    shown = {key: ", ".join(value) or "–" if isinstance(value, list) else str(value) for key, value in facts.items()}
    for line in table([[key.replace("_", " "), value] for key, value in shown.items()]):
        output.result(line)


@command.command("fsck")
@folder_argument
@output.json_option
def fsck(folder: Path, as_json: bool) -> None:
    """Replay the ledger of the instance or the validator in DIR from its genesis, and compare every hash; whoever
    writes it must be stopped.

    \b
    Examples:
      tally ledger fsck fleet
      tally ledger fsck v0
    """
    from tallystick.ledger.fsck import fsck as replay
    from tallystick.trust.trustfile import TrustFile

    folders = require_instance(folder)
    is_validator = (folder / "validator.json").exists()
    path = (folder if is_validator else folders.node) / "ledger.sqlite"
    if not path.exists():
        maker = f"tally chain run {folder}" if is_validator else f"tally up {folder}"
        raise Misuse(f"{path}: no ledger is here yet", hint=f"{maker} makes one")
    report = replay(str(path), TrustFile.parse(folders.trust.read_text()))
    if as_json:
        output.result_json(report)
        return
    output.result(
        f"the ledger is whole up to height {report.height}: {report.transactions} transactions, {report.entries}"
        f" entries, {report.state_keys} values of state"
    )


@command.command("history")
@click.argument("topic")
@home_option
@output.json_option
def history(topic: str, home: Path | None, as_json: bool) -> None:
    """Print every operation on TOPIC, newest first, and prove that none is missing.

    \b
    Examples:
      tally ledger history brakes --home owner
    """
    from tallystick.cli.entries import decode, describe

    with open_session(home) as session:
        names = Names(session)
        found, head = session.history(names.topic(topic))
    for height, index, entry in found:
        fields = decode(entry)
        if as_json:
            output.result_json({"height": height, "index": index, **fields})
        else:
            output.result(f"{height}/{index}  {show_time(fields['time_ms'])}  {describe(fields, names)}")
    output.note(f"note: these are all {len(found)} operations, proved at height {head.height}")


@command.command("receipt")
@click.argument("topic")
@click.option("--partition", type=click.IntRange(0), default=0, show_default=True)
@click.option("--offset", type=click.IntRange(0), required=True)
@click.option("-o", "--output", "file", type=click.Path(dir_okay=False, path_type=Path), required=True)
@home_option
@output.json_option
def receipt(topic: str, partition: int, offset: int, file: Path, home: Path | None, as_json: bool) -> None:
    """Fetch the receipt of the parcel at an offset of TOPIC: the proof that it is anchored.

    \b
    Examples:
      tally ledger receipt brakes --offset 0 -o parcel.receipt --home reader
    """
    from tallystick.trust.receipt import Receipt

    if file.exists():
        raise Misuse(f"{file} exists already", hint="name another file")
    with open_session(home) as session:
        token = Names(session).topic(topic)
        data = session.node.receipt(token, partition, offset)
        proven = Receipt.decode(data).anchor.verify(session.identity.trust)
    file.write_bytes(data)
    if as_json:
        output.result_json({"file": str(file), "height": proven.checkpoint.height, "bytes": len(data)})
    else:
        output.result(f"receipt in {file}: anchored at or before height {proven.checkpoint.height}")
        output.note(f"note: {proven.checkpoint.vouched_by()}")


@command.command("export")
@click.option("--from", "first", type=click.IntRange(0), default=0, show_default=True, help="The first height.")
@click.option("--to", "end", type=click.IntRange(1), default=None, help="The height to stop before.")
@home_option
@output.progress_option
def export(first: int, end: int | None, home: Path | None, show_progress: bool) -> None:
    """Write every entry of the ledger as JSON lines to stdout, signatures checked against tree and checkpoint by fsck.

    \b
    Examples:
      tally ledger export --home owner > ledger.jsonl
    """
    from tallystick import wire
    from tallystick.cli.entries import decode
    from tallystick.ledger.block import Block, parse

    with open_session(home) as session:
        end = min(end or (1 << 62), session.view.refresh().height + 1)
        with output.progress("exporting blocks", max(0, end - first), show=show_progress) as advance:
            while first < end:
                blocks = session.node.blocks(first, min(_HEIGHTS_AT_ONCE, end - first))
                if not blocks:
                    break
                for encoded, transactions in blocks:
                    block = Block.decode(encoded)
                    place = {"height": block.height, "time_ms": block.time_ms}
                    index = 0
                    for data in transactions:
                        transaction = parse(data)
                        author = wire.decode(transaction.head)[2]
                        for entry in transaction.entries:
                            output.result_json({**place, "index": index, "author": author, **decode(entry)})
                            index += 1
                first += len(blocks)
                advance(len(blocks))
