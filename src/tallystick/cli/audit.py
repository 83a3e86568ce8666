"""`tally audit`: who did what, on the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import Names, home_option, open_session, show_time
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session


@click.command("audit")
@click.option("--principal", default=None, help="As author or operator; a name or an identifier.")
@click.option("--topic", default=None, help="Operations on this topic.")
@click.option("--kind", default=None, help="One kind of entry: operation, grant, anchor, …")
@click.option("--refused", is_flag=True, help="Only what was refused.")
@click.option("--from", "first", default=None, help="From this height, or time (2026-11-15T08:00) in UTC, on.")
@click.option("--to", "end", default=None, help="Before this height or time.")
@click.option("--most", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Entries at most.")
@home_option
@output.json_option
def command(
    principal: str | None,
    topic: str | None,
    kind: str | None,
    refused: bool,
    first: str | None,
    end: str | None,
    most: int,
    home: Path | None,
    as_json: bool,
) -> None:
    """Search the entries of the ledger; names are resolved as far as the identity may know them.

    The answer is the node's, and not complete by proof: tally ledger history proves one topic's.

    \b
    Examples:
      tally audit --topic brakes --home owner
      tally audit --principal car --refused --home owner
      tally audit --kind grant --from 2026-11-15T08:00 --json --home owner
    """
    from tallystick.cli.entries import decode, describe

    with open_session(home) as session:
        names = Names(session)
        query: dict[str, bytes | int] = {"most": most}
        if principal is not None:
            query["principal"] = names.principal(principal)
        if topic is not None:
            query["token"] = names.topic(topic)
        if kind is not None:
            query["kind"] = _kind(kind)
        if refused:
            query["refused"] = 1
        if first is not None:
            query["first"] = _height(session, first)
        if end is not None:
            query["end"] = _height(session, end)
        found = session.node.audit(**query)
    for height, index, time_ms, author, _, entry in found:
        fields = decode(entry)
        if as_json:
            output.result_json({"height": height, "index": index, "time_ms": time_ms, "author": author, **fields})
        else:
            output.result(f"{height}/{index}  {show_time(time_ms)}  {describe(fields, names)}")
    if len(found) == most:
        output.note(f"note: there may be more than {most}; --most shows more")


def _kind(text: str) -> int:
    from tallystick.ledger.contracts.kinds import EntryKind

    name = text.upper().replace("-", "_")
    if name not in EntryKind.__members__:
        raise Misuse(
            f'kind "{text}" is unknown', hint=f"known are {', '.join(kind.lower() for kind in EntryKind.__members__)}"
        )
    return int(EntryKind[name])


def _height(session: Session, text: str) -> int:
    """A height as it stands, or the first height at or after a time."""
    if text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Misuse(f'"{text}": neither a height nor a time', hint="write times as 2026-11-15T08:00") from None
    wanted_ms = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    low, high = 0, session.view.refresh().height + 1
    while low < high:
        middle = (low + high) // 2
        if _block_time_ms(session, middle) < wanted_ms:
            low = middle + 1
        else:
            high = middle
    return low


def _block_time_ms(session: Session, height: int) -> int:
    from tallystick.ledger.block import Block

    return Block.decode(session.node.blocks(height, 1)[0][0]).time_ms
