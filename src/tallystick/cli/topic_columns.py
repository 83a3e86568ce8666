"""`tally topic policy` and `tally topic labels`: what an owner declares of a topic's columns.

A policy says what attributes open columns; labels say by which columns parcels are told apart before they are opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import home_option, naming, open_session, wait_for_authority
from tallystick.cli.policy import change_line, changed, principals, read_policy
from tallystick.client.names import Names
from tallystick.client.schemas import newest_schema
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.policy.topic_code import TopicCode
    from tallystick.record.schema import Schema


@click.command("policy")
@click.argument("topic")
@click.argument("formula", required=False)
@click.option("--columns", default=None, help="Only for these columns: whole column groups, with commas between them.")
@click.option("--none", "lift", is_flag=True, help="Lift the policy.")
@home_option
@output.json_option
def policy(
    topic: str, formula: str | None, columns: str | None, lift: bool, home: Path | None, tell: output.Tell
) -> None:
    """Show the policies of TOPIC, or set FORMULA as the policy of its columns.

    Whoever reads the topic opens these columns only with attributes that satisfy the formula. It counts for what is
    published from now on; publishers need not know it. Whom the change admits and shuts out is told; tally policy
    explain tells it beforehand.

    \b
    Examples:
      tally topic policy drives "role::police" --columns lat,lon --home owner
      tally topic policy drives --columns lat,lon --none --home owner
      tally topic policy drives --home owner
    """
    if formula is not None and lift:
        raise Misuse("either a formula or --none")
    with open_session(home) as session, naming(topic):
        names = Names(session)
        token = names.topic(topic)
        schema = newest_schema(session, token)
        if formula is not None or lift:
            for one in _change(session, names, token, _groups(schema, columns), formula):
                output.note(f"{', '.join(schema.groups[one['group']])}: {change_line(one)}")
        found = _policies(session, token, schema)
    rows = [[", ".join(one["columns"]), f"version {one['version']}", str(one["policy"])] for one in found]
    tell(found, *output.table(rows), note="" if found else "note: the topic has no policy")


def _change(session: Session, names: Names, token: bytes, groups: list[int], text: str | None) -> list[dict[str, Any]]:
    """Write the policy, or its lifting. Returns whom that admits and shuts out, for an owner that sees it."""
    from tallystick.authority.client import policy_entry
    from tallystick.cli.entries import write
    from tallystick.ledger.contracts.attributes import POLICIES

    formula = None if text is None else read_policy(session, text)
    standing = {one.group for one in session.authority.topic_policies(token)}
    wanted = [group for group in groups if formula is not None or group in standing]
    if not wanted:
        raise Misuse("these columns have no policy to lift")
    index = principals(session, names)
    changes = [] if index is None else changed(session, names, index, token, wanted, formula)
    entries = [policy_entry(session.authority, token, group, formula, session.entropy.bytes(32)) for group in wanted]
    write(session, names, *entries)
    expected = {(group, b"" if formula is None else formula.encode()) for group in wanted}

    def has_followed() -> bool:
        """Both the authority, and the checkpoints that are shown to us, which wait for their witnesses."""
        told = session.authority.topic_policies(token)
        rows = [session.view.row(POLICIES(token, one.group)) for one in told]
        is_shown = all(row is not None and row.version == one.version for row, one in zip(rows, told, strict=True))
        now = {one.group: one.formula for one in told}
        return is_shown and all(now.get(group, b"") == encoded for group, encoded in expected)

    wait_for_authority(session, has_followed, "the policy")
    return changes


def _groups(schema: Schema, columns: str | None) -> list[int]:
    """Returns the column groups that these columns make up, or all of them where none is named."""
    if columns is None:
        return list(range(len(schema.groups)))
    named = {column.strip() for column in columns.split(",")}
    unknown = named - set(schema.arrow.names)
    if unknown:
        raise Misuse(f'column "{sorted(unknown)[0]}" does not exist')
    touched = [number for number, group in enumerate(schema.groups) if named & set(group)]
    for number in touched:
        missing = set(schema.groups[number]) - named
        if missing:
            raise Misuse(
                f'column "{sorted(missing)[0]}" is in one group with them',
                hint="a policy is for whole column groups: tally topic create --group makes them",
            )
    return touched


def _policies(session: Session, token: bytes, schema: Schema) -> list[dict[str, Any]]:
    from tallystick.client.schemas import LOST, held_policy
    from tallystick.policy.show import show

    return [
        {
            "columns": list(schema.groups[one.group]),
            "group": one.group,
            "version": one.version,
            "policy": show(held_policy(session.view.row, token, one)) if one.formula else LOST,
        }
        for one in session.authority.topic_policies(token)
    ]


@click.command("labels")
@click.argument("topic")
@click.argument("columns", nargs=-1)
@click.option("--each", is_flag=True, help="A code for each column, instead of one over all of them.")
@click.option("--number", type=click.IntRange(1), default=None, help="Labels of a parcel; padded to it.  [default: 24]")
@click.option("--none", "lift", is_flag=True, help="No labels any more.")
@home_option
@output.json_option
def labels(
    topic: str,
    columns: tuple[str, ...],
    each: bool,
    number: int | None,
    lift: bool,
    home: Path | None,
    tell: output.Tell,
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

    if lift and columns:
        raise Misuse("either columns or --none")
    with open_session(home) as session, naming(topic):
        token = Names(session).topic(topic)
        schema = newest_schema(session, token)
        declared = b""
        if columns or lift:
            code = TopicCode.read(columns, schema.arrow, each=each, number=NUMBER if number is None else number)
            _warn(session, token, schema, code)
            declared = code.encode()
        found = session.authority.labels(token, declared)
    code = TopicCode.decode(found) if found else TopicCode(())
    told = {"version": code.version, "columns": code.show(), "each": code.each, "number": code.number}
    if code.dimensions:
        how = "each" if code.each else "joint"
        tell(told, f"version {code.version}: {' '.join(code.show())}, {how}, {code.number} labels a parcel")
    else:
        tell(told, note="note: parcels of the topic have no labels")


def _warn(session: Session, token: bytes, schema: Schema, code: TopicCode) -> None:
    """Of a column behind a policy labels tell something to those who may not open it."""
    closed = {name for one in session.authority.topic_policies(token) for name in schema.groups[one.group]}
    for name in sorted(closed & {one.attribute.name for one in code.dimensions}):
        output.note(
            f'note: column "{name}" has a policy, and every subscriber, whatever its attributes, can learn by labels'
            " which parcels hold values in a range"
        )
