"""`tally topic`: topics and their schemas, by their owner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import Names, home_option, open_session, wait_for_authority, with_session
from tallystick.cli.topic_columns import labels, policy
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.record.schema import Schema


@click.group("topic")
def command() -> None:
    """Make topics, change schemas, show, rotate and close them.

    \b
    Examples:
      tally topic create brakes --schema "vin string, speed float32" --home owner
    """


@command.command("create")
@click.argument("name")
@click.option("--schema", required=True, help='Columns and types: "vin string, ts timestamp[ms, UTC] not null".')
@output.default_option("--partitions", type=click.IntRange(1), default=1, help="Never changes afterwards.")
@click.option(
    "--group", "groups", multiple=True, help="Columns with keys of their own: lat,lon. The rest is one group."
)
@click.option("--padded", is_flag=True, help="Hide sizes, counts and times of parcels.")
@click.option("--erasable", is_flag=True, help="Use keys that tally erase can destroy, by publisher and month.")
@home_option
@output.json_option
def create(
    name: str,
    schema: str,
    partitions: int,
    groups: tuple[str, ...],
    padded: bool,
    erasable: bool,
    home: Path | None,
    tell: output.Tell,
) -> None:
    """Make topic NAME; the identity in --home owns it.

    \b
    Examples:
      tally topic create brakes --schema "vin string, speed float32" --home owner
      tally topic create trips --schema "driver string, km float64" --erasable --partitions 8 --home owner
      tally topic create drives --schema "vin string, lat float64, lon float64" --group lat,lon --home owner
    """
    from tallystick.authority.client import topic_entries
    from tallystick.ledger.contracts.topics import ERASABLE, PADDED
    from tallystick.record.schema import Schema

    parsed = _grouped(Schema.parse(schema), groups)
    with open_session(home) as session:
        flags = ERASABLE * erasable | PADDED * padded
        draft = session.authority.create_topic(name, parsed.encode(), partitions, flags)
        session.author.write(*topic_entries(draft, session.holder))
        wait_for_authority(session, lambda: draft.token in dict(Names(session).topics), f'topic "{name}"')
    told = {"topic": name, "token": draft.token, "partitions": partitions, "schema": str(parsed)}
    tell(told, f'topic "{name}" {draft.token.hex()}')


def _grouped(schema: Schema, groups: tuple[str, ...]) -> Schema:
    """The schema with these column groups, and one of whatever they leave."""
    from tallystick.record.schema import Schema

    named = [tuple(column.strip() for column in group.split(",")) for group in groups]
    rest = tuple(column for column in schema.arrow.names if not any(column in group for group in named))
    return Schema(schema.arrow, schema.version, (*((rest,) if rest else ()), *named)) if named else schema


@command.command("schema")
@click.argument("name")
@click.option("--add", default=None, help='New columns: "trailer bool". They must be nullable.')
@click.option("--widen", default=None, help='Columns with a wider type: "speed float64".')
@with_session
@output.json_option
def schema(session: Session, name: str, add: str | None, widen: str | None, tell: output.Tell) -> None:
    """Show the schema of topic NAME, or make its next version.

    \b
    Examples:
      tally topic schema brakes
      tally topic schema brakes --add "trailer bool" --home owner
    """
    from tallystick.ledger import entries
    from tallystick.record.schema import Schema

    token = Names(session).topic(name)
    newest = Schema.decode(session.authority.schemas(token)[-1])
    if add is not None or widen is not None:
        newest = _next_version(newest, add, widen)
        encoded = newest.encode()
        version, digest = session.authority.propose_schema(token, encoded)
        identity = session.identity
        session.author.write(entries.schema(identity.instance, token, version, digest, identity.signing_key))
        wait_for_authority(
            session, lambda: session.authority.schemas(token)[-1] == encoded, f"schema version {version}"
        )
    told = {"topic": name, "version": newest.version, "schema": str(newest), "hash": newest.hash}
    tell(told, f"version {newest.version}: {newest}")


def _next_version(old: Schema, add: str | None, widen: str | None) -> Schema:
    import pyarrow as pa

    from tallystick.record.schema import Schema, check_successor

    wider = {field.name: field for field in Schema.parse(widen).arrow} if widen else {}
    unknown = set(wider) - set(old.arrow.names)
    if unknown:
        raise Misuse(f'column "{sorted(unknown)[0]}" does not exist', hint="--add makes new columns")
    fields = [field.with_type(wider[field.name].type) if field.name in wider else field for field in old.arrow]
    added = list(Schema.parse(add).arrow) if add else []
    groups = (tuple(old.groups[0]) + tuple(field.name for field in added), *old.groups[1:])
    new = Schema(pa.schema([*fields, *added]), old.version + 1, groups)
    check_successor(old, new)
    return new


@command.command("show")
@click.argument("name")
@with_session
@output.json_option
def show(session: Session, name: str, tell: output.Tell) -> None:
    """Show topic NAME as the ledger has it, every value proved.

    \b
    Examples:
      tally topic show brakes --home owner
    """
    from tallystick.ledger.contracts.anchors import ANCHORS
    from tallystick.ledger.contracts.operations import HISTORIES
    from tallystick.record.schema import Schema

    names = Names(session)
    token = names.topic(name)
    facts = _facts(session, names, token)
    facts["schema"] = str(Schema.decode(session.authority.schemas(token)[-1]))
    anchors = [session.view.row(ANCHORS(token, number)) for number in range(facts["partitions"])]
    facts["anchored"] = [0 if anchor is None else anchor.size for anchor in anchors]  # parcels, by partition
    history = session.view.row(HISTORIES(token))
    facts["operations"] = 0 if history is None else history.operations
    tell(facts, *output.fact_lines(facts))


def _facts(session: Session, names: Names, token: bytes) -> dict[str, Any]:
    from tallystick.ledger.contracts.epochs import LAST_EPOCHS
    from tallystick.ledger.contracts.topics import ERASABLE, PADDED, TOPICS

    topic = session.view.row(TOPICS(token))
    if topic is None:
        raise Misuse(f"topic {token.hex()} is not on the ledger")
    flags = [word for bit, word in ((ERASABLE, "erasable"), (PADDED, "padded")) if topic.flags & bit]
    return {
        "topic": names.topic_name(token),
        "token": token.hex(),
        "owner": names.principal_name(topic.owner),
        "partitions": topic.partitions,
        "flags": flags,
        "schema_version": topic.version,
        "made_at_height": topic.created,
        "closed_at_height": topic.closed or None,
        "epoch": session.view.row(LAST_EPOCHS(token)) or 0,
    }


@command.command("list")
@with_session
@output.json_option
def list_(session: Session, tell: output.Tell) -> None:
    """List the topics that the identity in --home owns or may describe.

    \b
    Examples:
      tally topic list --home owner
    """
    names = Names(session)
    found = [_facts(session, names, token) for token, _ in names.topics]
    rows = [[one["token"], output.plural(one["partitions"], "partition"), _state(one), one["topic"]] for one in found]
    tell(found, *output.table(rows))


def _state(facts: dict[str, Any]) -> str:
    return "closed" if facts["closed_at_height"] else "open"


@command.command("close")
@click.argument("name")
@with_session
@output.json_option
def close(session: Session, name: str, tell: output.Tell) -> None:
    """Close topic NAME for good: nothing more is published to it; what was published stays readable.

    \b
    Examples:
      tally topic close brakes --home owner
    """
    from tallystick.ledger import entries

    token = Names(session).topic(name)
    session.author.write(entries.close_topic(token))
    tell({"closed": token}, f'closed topic "{name}" {token.hex()}')


@command.command("rotate")
@click.argument("name")
@with_session
@output.json_option
def rotate(session: Session, name: str, tell: output.Tell) -> None:
    """Let the next epoch of topic NAME begin: whoever lost the right to read cannot open what comes then.

    \b
    Examples:
      tally topic rotate brakes --home owner
    """
    token = Names(session).topic(name)
    rotation = session.authority.rotate(token)
    told = {"token": token, "epoch": rotation.epoch, "begins_ms": rotation.begins_ms}
    tell(told, f"epoch {rotation.epoch} begins {output.show_time(rotation.begins_ms)}")


for _command in (labels, policy):
    command.add_command(_command)
