"""`tally group`: who shares a topic, and how far they have read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import Names, home_option, open_session, with_session
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.ledger.contracts.groups import GroupRow


@click.group("group")
def command() -> None:
    """Show groups and reset their offsets. A group is made by the first subscriber that names it.

    \b
    Examples:
      tally group show dashboards --home reader
      tally group reset dashboards brakes --to earliest --home reader
    """


@command.command("show")
@click.argument("name")
@with_session
@output.json_option
def show(session: Session, name: str, tell: output.Tell) -> None:
    """Show members, offsets and how far each partition is behind.

    \b
    Examples:
      tally group show dashboards --home reader
    """
    names = Names(session)
    identifier, group = _require(session, name)
    members = [
        {"principal": names.principal_name(principal), "member": member.hex(), "lease_until": output.show_time(end)}
        for principal, member, end in group.members
    ]
    places = [place for token in group.tokens for place in _places(session, names, identifier, token)]
    found = {"group": name, "identifier": identifier, "fence": group.fence, "members": members, "partitions": places}
    lines = [f"member {one['member']} of {one['principal']}, lease until {one['lease_until']}" for one in members]
    for place in places:
        where = f"{place['topic']} partition {place['partition']}"
        lines.append(f"{where}: offset {place['offset']}, {place['anchored'] - place['offset']} parcels behind")
    tell(found, f"group {name} ({identifier.hex()}), fence {group.fence}", *lines)


@command.command("reset")
@click.argument("name")
@click.argument("topic")
@click.option("--to", "target", required=True, help="earliest, latest, or an offset.")
@click.option("--partition", type=click.IntRange(0), default=None, help="One partition only.")
@home_option
@output.json_option
def reset(name: str, topic: str, target: str, partition: int | None, home: Path | None, tell: output.Tell) -> None:
    """Move the offsets of group NAME on TOPIC; by the group's owner or its tenant's.

    \b
    Examples:
      tally group reset dashboards brakes --to earliest --home reader
      tally group reset dashboards brakes --partition 2 --to 117 --home reader
    """
    from tallystick.ledger import entries

    if target not in ("earliest", "latest") and not target.isdigit():
        raise Misuse(f'--to "{target}": expected earliest, latest or an offset')
    with open_session(home) as session:
        names = Names(session)
        token = names.topic(topic)
        identifier, group = _require(session, name)
        if token not in group.tokens:
            raise Misuse(f'group "{name}" does not read topic "{topic}"')
        moves = []
        for place in _places(session, names, identifier, token):
            new = {"earliest": 0, "latest": place["anchored"]}.get(target)
            new = int(target) if new is None else new
            if partition in (None, place["partition"]) and new != place["offset"]:
                moves.append((place["partition"], place["offset"], new))
        if moves:
            resets = [
                entries.reset_offset(identifier, token, number, fence=group.fence, old=old, new=new)
                for number, old, new in moves
            ]
            session.author.write(*resets)
    told = [{"partition": number, "old": old, "new": new} for number, old, new in moves]
    lines = [f"partition {number}: from offset {old} to {new}" for number, old, new in moves]
    tell(told, *lines, note="" if moves else "note: nothing changed, the offsets stand there already")


def _require(session: Session, name: str) -> tuple[bytes, GroupRow]:
    """The group's identifier, and the group as it stands at the newest block: members whose lease ran out are gone, and
    the fence has risen."""
    from tallystick.client.group import group_id
    from tallystick.ledger.contracts.groups import GROUPS

    identifier = group_id(session.identity.tenant, name)
    group, head = session.view.row_at(GROUPS(identifier))
    if group is None:
        raise Misuse(f'group "{name}" does not exist', hint="the first subscriber with --group makes it")
    return identifier, group.live_at(head.time_ms)


def _places(session: Session, names: Names, group: bytes, token: bytes) -> list[dict[str, Any]]:
    from tallystick.ledger.contracts.anchors import ANCHORS
    from tallystick.ledger.contracts.groups import OFFSETS
    from tallystick.ledger.contracts.topics import TOPICS

    found = []
    topic = session.view.row(TOPICS(token))
    for number in range(0 if topic is None else topic.partitions):
        moved = session.view.row(OFFSETS(group, token, number))
        anchor = session.view.row(ANCHORS(token, number))
        found.append(
            {
                "topic": names.topic_name(token),
                "partition": number,
                "offset": 0 if moved is None else moved.offset,
                "anchored": 0 if anchor is None else anchor.size,
            }
        )
    return found
