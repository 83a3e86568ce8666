"""`tally topic`: topics and their schemas, by their owner."""

from __future__ import annotations

import re
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import home_option, open_session, read_ms, wait_for_authority, with_session
from tallystick.cli.topic_columns import labels, policy
from tallystick.client.names import Names
from tallystick.client.schemas import held_schema, newest_schema
from tallystick.client.spans import show_keeping, show_ms
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.ledger.contracts.topics import Terms
    from tallystick.record.schema import Schema


@click.group("topic")
def command() -> None:
    """Make topics, change schemas and what is kept, show, rotate and close them ("delete" is another word for it).

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
@click.option("--clear", is_flag=True, help="Allow content to be matched in the clear, where something does that.")
@output.default_option(
    "--keep", default="forever", help="Parcels are kept so long, or so many of a partition: 30d, 1000000."
)
@output.default_option("--pace", default="0ms", help="The least time between two anchors of a partition: 500ms.")
@home_option
@output.json_option
def create(
    name: str,
    schema: str,
    partitions: int,
    groups: tuple[str, ...],
    padded: bool,
    erasable: bool,
    clear: bool,
    keep: str,
    pace: str,
    home: Path | None,
    tell: output.Tell,
) -> None:
    """Make topic NAME; the identity in --home owns it.

    \b
    Examples:
      tally topic create brakes --schema "vin string, speed float32" --home owner
      tally topic create trips --schema "driver string, km float64" --erasable --partitions 8 --home owner
      tally topic create drives --schema "vin string, lat float64, lon float64" --group lat,lon --home owner
      tally topic create doors --schema "vin string, open bool" --keep 30d --pace 500ms --home owner
    """
    from tallystick.cli.entries import write
    from tallystick.ledger.contracts.topics import CLEAR, ERASABLE, PADDED
    from tallystick.record.schema import Schema

    parsed = _grouped(Schema.parse(schema), groups)
    with open_session(home) as session:
        flags = ERASABLE * erasable | PADDED * padded | CLEAR * clear
        shown = partial(write, session, Names(session))
        token = session.create_topic(name, parsed.encode(), partitions, flags, _terms(keep, pace), write=shown)
        wait_for_authority(session, lambda: token in dict(Names(session).topics), f'topic "{name}"')
    told = {"topic": name, "token": token, "partitions": partitions, "schema": str(parsed)}
    tell(told, f'topic "{name}" {token.hex()}')


def read_keeping(text: str) -> tuple[int, int]:
    """(ms, parcels) that a topic keeps, both 0 where it keeps everything."""
    if text == "forever":
        return 0, 0
    keep_ms = read_ms(text)
    if keep_ms:
        return keep_ms, 0
    if re.fullmatch(r"[1-9][0-9]{0,17}", text):
        return 0, int(text)
    raise Misuse(f'--keep "{text}" is neither a time nor a number', hint="for example 30d, 12h, 1000000 or forever")


def _terms(keep: str, pace: str) -> Terms:
    from tallystick.ledger.contracts.topics import ANCHOR_PACE_MS_MAX, Terms

    pace_ms = read_ms(pace)
    if pace_ms is None or pace_ms > ANCHOR_PACE_MS_MAX:
        raise Misuse(f'--pace "{pace}": a time of at most {show_ms(ANCHOR_PACE_MS_MAX)} expected', hint="as in 500ms")
    return Terms(*read_keeping(keep), pace_ms)


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
    from tallystick.cli.entries import write
    from tallystick.ledger import entries

    names = Names(session)
    token = names.topic(name)
    newest = newest_schema(session, token)
    if add is not None or widen is not None:
        newest = _next_version(newest, add, widen)
        encoded = newest.encode()
        version, digest = session.authority.propose_schema(token, encoded)
        identity = session.identity
        write(session, names, entries.schema(identity.instance, token, version, digest, identity.signing_key))
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
    from tallystick.ledger.contracts.anchors import ANCHORS, RETIRED
    from tallystick.ledger.contracts.operations import HISTORIES

    names = Names(session)
    token = names.topic(name)
    facts = _facts(session, names, token)
    facts["schema"] = str(newest_schema(session, token))
    anchors = [session.view.row(ANCHORS(token, number)) for number in range(facts["partitions"])]
    facts["anchored"] = [0 if anchor is None else anchor.size for anchor in anchors]  # parcels, by partition
    marks = [session.view.row(RETIRED(token, number)) for number in range(facts["partitions"])]
    facts["retired"] = [0 if mark is None else mark.below for mark in marks]
    facts["kept_before"] = _earlier(session, token)
    history = session.view.row(HISTORIES(token))
    facts["operations"] = 0 if history is None else history.operations
    tell(facts, *output.fact_lines(facts))


@command.command("config")
@click.argument("name")
@with_session
@output.json_option
def config(session: Session, name: str, tell: output.Tell) -> None:
    """Show what was chosen for topic NAME, as the ledger has it: partitions, replicas, keeping, pace, flags, nodes, and
    every version of its schema. What is in the topic, tally topic show says.

    tally topic retain changes what is kept, tally topic schema the columns, and the operator the nodes of a partition
    (tally instance assign); the rest stays as it was made.

    \b
    Examples:
      tally topic config brakes --home owner
      tally topic retain brakes --keep 30d --home owner
    """
    from tallystick.ledger.contracts.topics import HOSTS

    names = Names(session)
    token = names.topic(name)
    facts = _facts(session, names, token)
    keys = [HOSTS(token, number) for number in range(facts["partitions"])]
    hosts = [row for row, _ in session.view.rows_at(keys, session.node.states)]
    moved = {str(number): [node.hex() for node in nodes] for number, nodes in enumerate(hosts) if nodes is not None}
    schemas = [held_schema(session.view.row, token, one) for one in session.authority.schemas(token)]
    told = {**facts, "kept_before": _earlier(session, token)}
    lines = [f"nodes of partition {number}  {', '.join(nodes)}" for number, nodes in moved.items()]
    lines += [f"schema version {one.version}  {one}" for one in schemas]
    versions = [{"version": one.version, "schema": str(one), "hash": one.hash} for one in schemas]
    tell({**told, "nodes_of_partitions": moved, "schemas": versions}, *output.fact_lines(told), *lines)


def _earlier(session: Session, token: bytes) -> list[str]:
    """Longer promises, which what was anchored under them keeps."""
    from tallystick.ledger.contracts.retention import EARLIER

    earlier = session.view.row(EARLIER(token)) or []
    return [
        f"{show_keeping(*kept)} for what was anchored by {output.show_time(until_ms)}" for until_ms, kept in earlier
    ]


def _facts(session: Session, names: Names, token: bytes) -> dict[str, Any]:
    from tallystick.ledger.contracts.epochs import LAST_EPOCHS
    from tallystick.ledger.contracts.topics import CLEAR, ERASABLE, PADDED, TOPICS

    topic = session.view.row(TOPICS(token))
    if topic is None:
        raise Misuse(f"topic {token.hex()} is not on the ledger")
    words = ((ERASABLE, "erasable"), (PADDED, "padded"), (CLEAR, "clear"))
    flags = [word for bit, word in words if topic.flags & bit]
    return {
        "topic": names.topic_name(token),
        "token": token.hex(),
        "tenant": topic.tenant.hex(),
        "bound_by": topic.authority.hex() or None,
        "owner": names.principal_name(topic.owner),
        "nodes": [node.hex() for node in topic.nodes],
        "partitions": topic.partitions,
        "replicas": topic.replicas,
        "keep": show_keeping(topic.keep_ms, topic.keep_parcels),
        "pace": show_ms(topic.anchor_pace_ms),
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
    tell(found, *output.table(rows), none="no topics that you own or may describe; tally topic create makes one")


def _state(facts: dict[str, Any]) -> str:
    return "closed" if facts["closed_at_height"] else "open"


@command.command("close")
@click.argument("name")
@with_session
@output.json_option
def close(session: Session, name: str, tell: output.Tell) -> None:
    """Close topic NAME for good, by its owner or who has the right to delete it: nothing more is published to it.

    What was published stays readable, until its owner lets it go (tally topic release) or erases it (tally erase). So
    the word is close; delete does the same.

    \b
    Examples:
      tally topic close brakes --home owner
      tally topic delete brakes --home owner
    """
    from tallystick.cli.entries import write
    from tallystick.ledger import entries

    names = Names(session)
    token = names.topic(name)
    write(session, names, entries.close_topic(token))
    advice = f"what was published stays readable; tally topic release {name} PARTITION lets it go"
    tell({"closed": token}, f'closed topic "{name}" {token.hex()}', note=advice)


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


@command.command("retain")
@click.argument("name")
@click.option("--keep", required=True, help="So long, or so many of a partition: 30d, 12h, 1000000, forever.")
@with_session
@output.json_option
def retain(session: Session, name: str, keep: str, tell: output.Tell) -> None:
    """Say what is kept of topic NAME from now on. A shorter time counts for what is published after it; what is there
    keeps the longer promise, unless it is released.

    \b
    Examples:
      tally topic retain brakes --keep 30d --home owner
      tally topic retain brakes --keep forever --home owner
    """
    from tallystick.cli.entries import write
    from tallystick.ledger import entries
    from tallystick.ledger.contracts.retention import Retention

    names = Names(session)
    token, kept = names.topic(name), Retention(*read_keeping(keep))
    write(session, names, entries.retain(token, kept))
    earlier = _earlier(session, token)
    tell({"token": token, "keep": show_keeping(*kept), "kept_before": earlier}, f'topic "{name}" keeps {keep}')
    if earlier:
        output.note(f"what is there keeps its promise ({earlier[0]}), and what comes waits behind it")
        output.note(f"tally topic release {name} PARTITION lets it go")


@command.command("release")
@click.argument("name")
@click.argument("partition", type=click.IntRange(0))
@click.option("--below", type=click.IntRange(1), help="The first offset to keep; without it all that is anchored goes.")
@click.option("--yes", is_flag=True, help="Do not ask back.")
@with_session
@output.json_option
def release(session: Session, name: str, partition: int, below: int | None, yes: bool, tell: output.Tell) -> None:
    """Let the carriers of topic NAME give up what lies in PARTITION below an offset, whatever was promised.

    Rows that nobody has read are gone for good. Headers and proofs stay, and readers are told what they did not get.
    A node deletes whole segments: what lies in the newest one goes when all of it may.

    \b
    Examples:
      tally topic release brakes 0 --below 100000 --home owner
      tally topic release brakes 0 --yes --home owner
    """
    from tallystick.cli.entries import write
    from tallystick.ledger import entries
    from tallystick.ledger.contracts.anchors import ANCHORS, RETIRED

    names = Names(session)
    token = names.topic(name)
    anchor, mark = session.view.row(ANCHORS(token, partition)), session.view.row(RETIRED(token, partition))
    if anchor is None or not anchor.size:
        raise Misuse(f'partition {partition} of topic "{name}" holds nothing that is anchored')
    below = anchor.size if below is None else below
    first = 0 if mark is None else mark.below
    output.note(f'the parcels from offset {first} to {below} of partition {partition} of topic "{name}" may be deleted')
    if not yes:
        click.confirm("nothing brings them back; go on?", abort=True, err=True)
    write(session, names, entries.release(token, partition, below))
    tell({"token": token, "partition": partition, "below": below}, f"released below offset {below}")


for _command in (labels, policy):
    command.add_command(_command)
delete = copy(close)  # as users of Kafka type it
delete.name, delete.short_help = "delete", "Another word for close."
command.add_command(delete)
