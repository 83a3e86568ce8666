"""`tally topic`: topics and their schemas, by their owner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import Names, home_option, open_session, plural, show_time, table, wait_for_authority
from tallystick.cli.topic_labels import command as labels
from tallystick.cli.topic_policy import command as policy
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session


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
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True, help="Never changes afterwards.")
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
    as_json: bool,
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
    if as_json:
        output.result_json({"topic": name, "token": draft.token, "partitions": partitions, "schema": str(parsed)})
    else:
        output.result(f'topic "{name}" {draft.token.hex()}')


def _grouped(schema: Any, groups: tuple[str, ...]) -> Any:
    """The schema with these column groups, and one of whatever they leave."""
    from tallystick.record.schema import Schema

    named = [tuple(column.strip() for column in group.split(",")) for group in groups]
    rest = tuple(column for column in schema.arrow.names if not any(column in group for group in named))
    return Schema(schema.arrow, schema.version, (*((rest,) if rest else ()), *named)) if named else schema


@command.command("schema")
@click.argument("name")
@click.option("--add", default=None, help='New columns: "trailer bool". They must be nullable.')
@click.option("--widen", default=None, help='Columns with a wider type: "speed float64".')
@home_option
@output.json_option
def schema(name: str, add: str | None, widen: str | None, home: Path | None, as_json: bool) -> None:
    """Show the schema of topic NAME, or make its next version.

    \b
    Examples:
      tally topic schema brakes
      tally topic schema brakes --add "trailer bool" --home owner
    """
    from tallystick.ledger import entries
    from tallystick.record.schema import Schema

    with open_session(home) as session:
        token = Names(session).topic(name)
        newest = Schema.decode(session.authority.schemas(token)[-1])
        if add is not None or widen is not None:
            newest = _next_version(newest, add, widen)
            version, digest = session.authority.propose_schema(token, newest.encode())
            identity = session.identity
            session.author.write(entries.schema(identity.instance, token, version, digest, identity.signing_key))
            wait_for_authority(
                session, lambda: session.authority.schemas(token)[-1] == newest.encode(), f"schema version {version}"
            )
    if as_json:
        output.result_json({"topic": name, "version": newest.version, "schema": str(newest), "hash": newest.hash})
    else:
        output.result(f"version {newest.version}: {newest}")


def _next_version(old: Any, add: str | None, widen: str | None) -> Any:
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
@home_option
@output.json_option
def show(name: str, home: Path | None, as_json: bool) -> None:
    """Show topic NAME as the ledger has it, every value proved.

    \b
    Examples:
      tally topic show brakes --home owner
    """
    from tallystick.ledger.contracts.operations import HISTORIES
    from tallystick.record.schema import Schema

    with open_session(home) as session:
        names = Names(session)
        token = names.topic(name)
        facts = _facts(session, names, token)
        facts["schema"] = str(Schema.decode(session.authority.schemas(token)[-1]))
        facts["anchored"] = _anchored(session, token, facts["partitions"])
        history = session.view.row(HISTORIES(token))
        facts["operations"] = 0 if history is None else history.operations
    if as_json:
        output.result_json(facts)
        return
    for line in table([[key.replace("_", " "), _shown(value)] for key, value in facts.items()]):
        output.result(line)


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


def _anchored(session: Session, token: bytes, partitions: int) -> list[int]:
    """Parcels below the newest anchor, by partition."""
    from tallystick.ledger.contracts.anchors import ANCHORS

    anchors = [session.view.row(ANCHORS(token, number)) for number in range(partitions)]
    return [0 if anchor is None else anchor.size for anchor in anchors]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)


@command.command("list")
@home_option
@output.json_option
def list_(home: Path | None, as_json: bool) -> None:
    """List the topics that the identity in --home owns or may describe.

    \b
    Examples:
      tally topic list --home owner
    """
    with open_session(home) as session:
        names = Names(session)
        found = [_facts(session, names, token) for token, _ in names.topics]
    if as_json:
        output.result_json(found)
        return
    rows = [[one["token"], plural(one["partitions"], "partition"), _state(one), one["topic"]] for one in found]
    for line in table(rows):
        output.result(line)


def _state(facts: dict[str, Any]) -> str:
    return "closed" if facts["closed_at_height"] else "open"


@command.command("close")
@click.argument("name")
@home_option
@output.json_option
def close(name: str, home: Path | None, as_json: bool) -> None:
    """Close topic NAME for good: nothing more is published to it; what was published stays readable.

    \b
    Examples:
      tally topic close brakes --home owner
    """
    from tallystick.ledger import entries

    with open_session(home) as session:
        token = Names(session).topic(name)
        session.author.write(entries.close_topic(token))
    if as_json:
        output.result_json({"closed": token})
    else:
        output.result(f'closed topic "{name}" {token.hex()}')


@command.command("rotate")
@click.argument("name")
@home_option
@output.json_option
def rotate(name: str, home: Path | None, as_json: bool) -> None:
    """Let the next epoch of topic NAME begin: whoever lost the right to read cannot open what comes then.

    \b
    Examples:
      tally topic rotate brakes --home owner
    """
    with open_session(home) as session:
        token = Names(session).topic(name)
        rotation = session.authority.rotate(token)
    if as_json:
        output.result_json({"token": token, "epoch": rotation.epoch, "begins_ms": rotation.begins_ms})
    else:
        output.result(f"epoch {rotation.epoch} begins {show_time(rotation.begins_ms)}")


command.add_command(labels)
command.add_command(policy)
