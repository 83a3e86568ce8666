"""`tally topic policy`: what a topic asks of whoever opens its columns, set by its owner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import Names, home_option, naming, open_session, table, wait_for_authority
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.policy.formula import Formula
    from tallystick.record.schema import Schema


@click.command("policy")
@click.argument("topic")
@click.argument("formula", required=False)
@click.option("--columns", default=None, help="Only for these columns: whole column groups, with commas between them.")
@click.option("--none", "lift", is_flag=True, help="Lift the policy.")
@home_option
@output.json_option
def command(topic: str, formula: str | None, columns: str | None, lift: bool, home: Path | None, as_json: bool) -> None:
    """Show the policies of TOPIC, or set FORMULA as the policy of its columns.

    Whoever reads the topic opens these columns only with attributes that satisfy the formula. It counts for what is
    published from now on; publishers need not know it.

    \b
    Examples:
      tally topic policy drives "role::police" --columns lat,lon --home owner
      tally topic policy drives --columns lat,lon --none --home owner
      tally topic policy drives --home owner
    """
    from tallystick.record.schema import Schema

    if formula is not None and lift:
        raise Misuse("either a formula or --none")
    with open_session(home) as session, naming(topic):
        token = Names(session).topic(topic)
        schema = Schema.decode(session.authority.schemas(token)[-1])
        if formula is not None or lift:
            _change(session, token, _groups(schema, columns), formula)
        found = _policies(session, token, schema)
    if as_json:
        output.result_json(found)
        return
    for line in table([[", ".join(one["columns"]), f"version {one['version']}", str(one["policy"])] for one in found]):
        output.result(line)
    if not found:
        output.note("note: the topic has no policy")


def _change(session: Session, token: bytes, groups: list[int], text: str | None) -> None:
    from tallystick.authority.client import policy_entry

    formula = None if text is None else _parse(session, text)
    standing = {group for group, _, _ in session.authority.topic_policies(token)}
    wanted = [group for group in groups if formula is not None or group in standing]
    if not wanted:
        raise Misuse("these columns have no policy to lift")
    entries = [policy_entry(session.authority, token, group, formula, session.entropy.bytes(32)) for group in wanted]
    session.author.write(*entries)
    expected = {(group, b"" if formula is None else formula.encode()) for group in wanted}

    def has_followed() -> bool:
        now = {group: encoded for group, _, encoded in session.authority.topic_policies(token)}
        return all(now.get(group, b"") == encoded for group, encoded in expected)

    wait_for_authority(session, has_followed, "the policy")


def _parse(session: Session, text: str) -> Formula:
    from tallystick.policy.check import check_policy
    from tallystick.policy.parse import parse
    from tallystick.policy.space import AttributeSpace

    formula = parse(text, AttributeSpace.decode(session.authority.attribute_space()), "policy")
    check_policy(formula)
    return formula


def _groups(schema: Schema, columns: str | None) -> list[int]:
    """The column groups that these columns make up; all of them where none is named."""
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
    from tallystick.policy.formula import Formula
    from tallystick.policy.show import show

    return [
        {
            "columns": list(schema.groups[group]),
            "group": group,
            "version": version,
            "policy": show(Formula.decode(encoded)) if encoded else "lost by the authority: set it again",
        }
        for group, version, encoded in session.authority.topic_policies(token)
    ]
