"""`tally audit`: who did what, on the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import read_time, with_session
from tallystick.client.names import Names
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session


@click.command("audit")
@click.option("--principal", default=None, help="As author or operator; a name or an identifier.")
@click.option("--topic", default=None, help="Operations on this topic.")
@click.option("--kind", default=None, help="One kind of entry: operation, grant, anchor, …")
@click.option("--refused", is_flag=True, help="Only what was refused.")
@click.option("--from", "first", default=None, help="From this height, or time (2026-11-15T08:00 in UTC, -1h) on.")
@click.option("--to", "end", default=None, help="Before this height or time.")
@output.default_option("--most", type=click.IntRange(1, 10_000), default=100, help="Entries at most.")
@with_session
@output.json_option
def command(
    session: Session,
    principal: str | None,
    topic: str | None,
    kind: str | None,
    refused: bool,
    first: str | None,
    end: str | None,
    most: int,
    tell: output.Tell,
) -> None:
    """Search the entries of the ledger; names are resolved as far as the identity may know them.

    The answer is the node's, and not complete by proof: tally ledger history proves one topic's.

    \b
    Examples:
      tally audit --topic brakes --home owner
      tally audit --principal car --refused --from -1h --home owner
      tally audit --kind grant --from 2026-11-15T08:00 --json --home owner
    """
    from tallystick.client.words import decode, describe

    names = Names(session)
    query = {
        "most": most,
        "principal": None if principal is None else names.principal(principal),
        "token": None if topic is None else names.topic(topic),
        "kind": None if kind is None else _kind(kind),
        "refused": 1 if refused else None,
        "first": None if first is None else _height(session, first),
        "end": None if end is None else _height(session, end),
    }
    found = session.node.audit(**{name: value for name, value in query.items() if value is not None})
    for height, index, time_ms, author, _, entry in found:
        fields = decode(entry)
        line = f"{height}/{index}  {output.show_time(time_ms)}  {describe(fields, names)}"
        told = {"height": height, "index": index, "time_ms": time_ms, "author": author, **fields}
        tell({**told, "time": output.show_time(told["time_ms"])}, line)
    if not found and not tell.as_json:
        output.note("no entries fit; with fewer options more do")
    if len(found) == most:
        output.note(f"note: there may be more than {most}; --most shows more")


def _kind(text: str) -> int:
    from tallystick.ledger.contracts.kinds import EntryKind

    name = text.upper().replace("-", "_")
    if name not in EntryKind.__members__:
        known = ", ".join(kind.lower() for kind in EntryKind.__members__)
        raise Misuse(f'kind "{text}" is unknown', hint=f"known are {known}")
    return int(EntryKind[name])


def _height(session: Session, text: str) -> int:
    """A height as it stands, or the first height at or after a time."""
    from tallystick.client.times import height_at, to_ms
    from tallystick.wire import is_number

    if is_number(text):
        return int(text)
    time = read_time(text)
    if time is None:
        raise Misuse(f'"{text}": neither a height nor a time', hint="write times as 2026-11-15T08:00, or -1h")
    return height_at(session.node, to_ms(time), session.view.refresh().height + 1)
