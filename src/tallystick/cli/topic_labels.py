"""`tally topic labels`: by which columns parcels of a topic are labelled, declared by its owner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import Names, home_option, naming, open_session
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.policy.topic_code import TopicCode
    from tallystick.record.schema import Schema


@click.command("labels")
@click.argument("topic")
@click.argument("columns", nargs=-1)
@click.option("--each", is_flag=True, help="A code for each column, instead of one over all of them.")
@click.option("--number", type=click.IntRange(1), default=None, help="Labels of a parcel; padded to it.  [default: 24]")
@click.option("--none", "lift", is_flag=True, help="No labels any more.")
@home_option
@output.json_option
def command(
    topic: str,
    columns: tuple[str, ...],
    each: bool,
    number: int | None,
    lift: bool,
    home: Path | None,
    as_json: bool,
) -> None:
    """Show by which columns parcels of TOPIC are labelled, or declare it: COLUMNS are column:bits or
    column:bits:low..high.

    Publishers then seal rows of neighbouring subspaces together, and subscribers with an interest are not sent the
    bodies of parcels that cannot match. The node learns which parcels are of the same subspace, not of which.

    \b
    Examples:
      tally topic labels brakes speed:4:0..250 road:2 --home owner
      tally topic labels brakes speed:4:0..250 gear:3:0..7 --each --home owner
      tally topic labels brakes --none --home owner
    """
    from tallystick.policy.topic_code import NUMBER, TopicCode
    from tallystick.record.schema import Schema

    if lift and columns:
        raise Misuse("either columns or --none")
    with open_session(home) as session, naming(topic):
        token = Names(session).topic(topic)
        schema = Schema.decode(session.authority.schemas(token)[-1])
        declared = b""
        if columns or lift:
            code = TopicCode.read(columns, schema.arrow, each=each, number=NUMBER if number is None else number)
            _warn(session, token, schema, code)
            declared = code.encode()
        found = session.authority.labels(token, declared)
    code = TopicCode.decode(found) if found else TopicCode(())
    if as_json:
        output.result_json({"version": code.version, "columns": code.show(), "each": code.each, "number": code.number})
    elif code.dimensions:
        how = "each" if code.each else "joint"
        output.result(f"version {code.version}: {' '.join(code.show())}, {how}, {code.number} labels a parcel")
    else:
        output.note("note: parcels of the topic have no labels")


def _warn(session: Session, token: bytes, schema: Schema, code: TopicCode) -> None:
    """Of a column behind a policy labels tell something to those who may not open it."""
    closed = {name for group, _, _ in session.authority.topic_policies(token) for name in schema.groups[group]}
    for name in sorted(closed & {one.attribute.name for one in code.dimensions}):
        output.note(
            f'note: column "{name}" has a policy, and every subscriber, whatever its attributes, can learn by labels'
            " which parcels hold values in a range"
        )
