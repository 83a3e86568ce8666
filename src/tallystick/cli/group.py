"""`tally group`: who shares a topic, and how far they have read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import Names, home_option, open_session, read_time, with_session
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.ledger.contracts.groups import GroupRow


_MOST = 10_000  # entries that a node answers at most


@click.group("group")
def command() -> None:
    """List and show groups, and reset their offsets. A group is made by the first subscriber that names it.

    \b
    Examples:
      tally group list --home reader
      tally group show dashboards --home reader
      tally group reset dashboards brakes --to earliest --home reader
    """


@command.command("list")
@with_session
@output.json_option
def list_(session: Session, tell: output.Tell) -> None:
    """List the groups of the tenant of --home: topics, members, and how many parcels each is behind.

    The ledger has hashes of their names: a group whose name this identity never used is shown by its identifier, which
    the other commands take as well. Which groups there are is the node's word, what is said of each is proved.

    \b
    Examples:
      tally group list --home reader
    """
    from tallystick import wire
    from tallystick.client.group import group_id, known_names
    from tallystick.ledger.contracts.groups import GROUPS
    from tallystick.ledger.contracts.kinds import EntryKind

    names, tenant = Names(session), session.identity.tenant
    known = {group_id(tenant, name): name for name in known_names(session.identity.home)}
    made = session.node.audit(kind=int(EntryKind.GROUP), most=_MOST)
    identifiers = list(dict.fromkeys(wire.decode(entry, "entry")[1] for *_, entry in made))
    found: list[dict[str, Any]] = []
    rows = session.view.rows_at([GROUPS(one) for one in identifiers], session.node.states)
    for identifier, (group, head) in zip(identifiers, rows, strict=True):
        if group is None or group.tenant != tenant:
            continue
        places = [place for token in group.tokens for place in _places(session, names, identifier, token)]
        found.append(
            {
                "group": known.get(identifier),
                "identifier": identifier,
                "topics": [names.topic_name(token) for token in group.tokens],
                "members": len(group.live_at(head.time_ms).members),
                "behind": sum(max(0, place["anchored"] - place["offset"]) for place in places),
            }
        )
    lines = [
        [
            one["group"] or one["identifier"].hex(),
            output.show_value(one["topics"]),
            output.plural(one["members"], "member"),
            f"{output.plural(one['behind'], 'parcel')} behind",
        ]
        for one in found
    ]
    tell(
        found,
        *output.table(lines),
        note="" if found else "note: no group yet; the first subscriber with --group makes it",
    )
    if len(made) == _MOST:
        output.note(f"note: the node tells of {_MOST} groups at most, of all tenants; there may be more")


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
@click.option("--to", "target", required=True, help="earliest, latest, an offset, or a time: -1h, 2026-11-15T08:00.")
@click.option("--partition", type=click.IntRange(0), default=None, help="One partition only.")
@home_option
@output.json_option
def reset(name: str, topic: str, target: str, partition: int | None, home: Path | None, tell: output.Tell) -> None:
    """Move the offsets of group NAME on TOPIC; by the group's owner or its tenant's.

    \b
    Examples:
      tally group reset dashboards brakes --to earliest --home reader
      tally group reset dashboards brakes --partition 2 --to 117 --home reader
      tally group reset dashboards brakes --to -1h --home reader
    """
    from tallystick.cli.entries import write
    from tallystick.ledger import entries

    place_of = _target(target)
    with open_session(home) as session:
        names = Names(session)
        token = names.topic(topic)
        identifier, group = _require(session, name)
        if token not in group.tokens:
            raise Misuse(f'group "{name}" does not read topic "{topic}"')
        moves = []
        for place in _places(session, names, identifier, token):
            new = place_of(session, token, place)
            if partition in (None, place["partition"]) and new != place["offset"]:
                moves.append((place["partition"], place["offset"], new))
        if moves:
            resets = [
                entries.reset_offset(identifier, token, number, fence=group.fence, old=old, new=new)
                for number, old, new in moves
            ]
            write(session, names, *resets)
    told = [{"partition": number, "old": old, "new": new} for number, old, new in moves]
    lines = [f"partition {number}: from offset {old} to {new}" for number, old, new in moves]
    tell(told, *lines, note="" if moves else "note: nothing changed, the offsets stand there already")


def _target(text: str) -> Callable[[Session, bytes, dict[str, Any]], int]:
    """The offset of a partition that `--to` means."""
    from tallystick.wire import is_number

    if text == "latest":
        return lambda _session, _token, place: int(place["anchored"])
    if text == "earliest" or is_number(text):
        return lambda _session, _token, _place: 0 if text == "earliest" else int(text)
    time = read_time(text)
    if time is None:
        hint = "write times as 2026-11-15T08:00, or -1h"
        raise Misuse(f'--to "{text}": expected earliest, latest, an offset or a time', hint=hint)

    def at_time(session: Session, token: bytes, place: dict[str, Any]) -> int:
        from tallystick.client.times import offsets_at_time, to_ms
        from tallystick.ledger.contracts.anchors import ANCHORS

        number = place["partition"]
        anchor = session.view.row(ANCHORS(token, number))
        return offsets_at_time(session.node, token, to_ms(time), {number: anchor})[number]

    return at_time


def _require(session: Session, name: str) -> tuple[bytes, GroupRow]:
    """The group's identifier, and the group as it stands at the newest block: members whose lease ran out are gone, and
    the fence has risen. It is named by its name, or by its identifier."""
    from tallystick.client.group import group_id, note_name
    from tallystick.ledger.contracts.groups import GROUPS
    from tallystick.wire import is_identifier

    identifier = group_id(session.identity.tenant, name)
    group, head = session.view.row_at(GROUPS(identifier))
    if group is not None:
        note_name(session.identity.home, name)
    elif is_identifier(name):
        identifier = bytes.fromhex(name)
        group, head = session.view.row_at(GROUPS(identifier))
    if group is None:
        raise Misuse(f'group "{name}" does not exist', hint="the first subscriber with --group makes it")
    return identifier, group.live_at(head.time_ms)


def _places(session: Session, names: Names, group: bytes, token: bytes) -> list[dict[str, Any]]:
    from tallystick.ledger.contracts.anchors import ANCHORS
    from tallystick.ledger.contracts.groups import OFFSETS
    from tallystick.ledger.contracts.topics import TOPICS

    view, ask = session.view, session.node.states
    topic = view.row(TOPICS(token))
    numbers = range(0 if topic is None else topic.partitions)
    moved = view.rows_at([OFFSETS(group, token, number) for number in numbers], ask)
    anchors = view.rows_at([ANCHORS(token, number) for number in numbers], ask)
    return [
        {
            "topic": names.topic_name(token),
            "partition": number,
            "offset": 0 if offset is None else offset.offset,
            "anchored": 0 if anchor is None else anchor.size,
        }
        for number, (offset, _), (anchor, _) in zip(numbers, moved, anchors, strict=True)
    ]
