"""`tally group`: who shares a topic, and how far they have read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import home_option, open_session, read_time, with_session
from tallystick.client.names import Names
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.ledger.contracts.groups import GroupRow


_MOST = 10_000  # entries that a node answers at most


@click.group("group")
def command() -> None:
    """List and show groups, and reset their offsets. A group is made by the first subscriber that names it.

    Groups on a mesh are kept at the identity's own node there: what is said of them is that node's word.

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
    the other commands take as well. Which groups there are is the node's word, what is said of each is proved. Of those
    at a node of a mesh, the ones whose names this identity used are listed.

    \b
    Examples:
      tally group list --home reader
    """
    from tallystick import wire
    from tallystick.client.group import group_id, known_names
    from tallystick.ledger.contracts.kinds import EntryKind

    names, tenant = Names(session), session.identity.tenant
    known = {group_id(tenant, name): name for name in known_names(session.identity.home)}
    made = session.node.audit(kind=int(EntryKind.GROUP), most=_MOST)
    on_ledger = list(dict.fromkeys(wire.decode(entry, "entry")[1] for *_, entry in made))
    found: list[dict[str, Any]] = []
    for kept in session.everywhere():
        for identifier, group in _groups(kept, on_ledger if kept.anchors else list(known)):
            if group.tenant != tenant:
                continue
            places = [place for token in group.tokens for place in _places(kept, names, identifier, token)]
            behind = [max(0, place["anchored"] - place["offset"]) for place in places if place["anchored"] is not None]
            found.append(
                {
                    "group": known.get(identifier),
                    "identifier": identifier,
                    "topics": [names.topic_name(token) for token in group.tokens],
                    "members": len(group.members),
                    "behind": sum(behind) if kept.anchors else None,
                }
            )
    lines = [
        [
            one["group"] or one["identifier"].hex(),
            output.show_value(one["topics"]),
            output.plural(one["members"], "member"),
            "at the mesh's node" if one["behind"] is None else f"{output.plural(one['behind'], 'parcel')} behind",
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
    kept, identifier, group = _require(session, name)
    members = [
        {"principal": names.principal_name(principal), "member": member.hex(), "lease_until": output.show_time(end)}
        for principal, member, end in group.members
    ]
    places = [place for token in group.tokens for place in _places(kept, names, identifier, token)]
    found = {"group": name, "identifier": identifier, "fence": group.fence, "members": members, "partitions": places}
    lines = [f"member {one['member']} of {one['principal']}, lease until {one['lease_until']}" for one in members]
    for place in places:
        where = f"{place['topic']} partition {place['partition']}"
        known = place["anchored"]
        behind = "" if known is None else f", {known - place['offset']} parcels behind"
        lines.append(f"{where}: offset {place['offset']}{behind}")
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
    from tallystick.client.group import NodeBook
    from tallystick.ledger import entries
    from tallystick.wire import is_number

    place_of = _target(target)
    with open_session(home) as session:
        names = Names(session)
        token = names.topic(topic)
        kept, identifier, group = _require(session, name)
        if token not in group.tokens:
            raise Misuse(f'group "{name}" does not read topic "{topic}"')
        moves = []
        if not kept.anchors and target != "earliest" and not is_number(target):
            raise Misuse(f"--to {target}: nothing on a mesh is anchored", hint="earliest, or an offset")
        for place in _places(kept, names, identifier, token):
            new = place_of(kept, token, place)
            if partition in (None, place["partition"]) and new != place["offset"]:
                moves.append((place["partition"], place["offset"], new))
        if moves:
            resets = [
                entries.reset_offset(identifier, token, number, fence=group.fence, old=old, new=new)
                for number, old, new in moves
            ]
            if kept.anchors:
                write(session, names, *resets)
            else:
                NodeBook(kept.node).write(*resets)
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


def _groups(session: Session, identifiers: list[bytes]) -> list[tuple[bytes, GroupRow]]:
    """Those that there are, as they stand now: members whose lease ran out are gone, and the fence has risen."""
    from tallystick.client.group import NodeBook
    from tallystick.ledger.contracts.groups import GROUPS

    keys = [GROUPS(one) for one in identifiers]
    if session.anchors:
        proved = session.view.rows_at(keys, session.node.states)
        live = [None if row is None else row.live_at(head.time_ms) for row, head in proved]
    else:
        now_ms = int(session.clock.now() * 1000)
        live = [None if row is None else row.live_at(now_ms) for row in NodeBook(session.node).rows(keys)]
    return [(identifier, row) for identifier, row in zip(identifiers, live, strict=True) if row is not None]


def _require(session: Session, name: str) -> tuple[Session, bytes, GroupRow]:
    """Over which session a group is kept, its identifier, and the group. It is named by its name, or by its
    identifier."""
    from tallystick.client.group import group_id, note_name
    from tallystick.wire import is_identifier

    named = group_id(session.identity.tenant, name)
    for kept in session.everywhere():
        for identifier, group in _groups(kept, [named, *([bytes.fromhex(name)] if is_identifier(name) else [])]):
            if identifier == named:
                note_name(session.identity.home, name)
            return kept, identifier, group
    raise Misuse(f'group "{name}" does not exist', hint="the first subscriber with --group makes it")


def _places(session: Session, names: Names, group: bytes, token: bytes) -> list[dict[str, Any]]:
    """Where the group stands in each partition; how far the log is anchored, where it ever is."""
    from tallystick.client.group import NodeBook
    from tallystick.ledger.contracts.anchors import ANCHORS
    from tallystick.ledger.contracts.groups import OFFSETS
    from tallystick.ledger.contracts.topics import TOPICS

    view, ask = session.view, session.node.states
    topic = view.row(TOPICS(token))
    numbers = range(0 if topic is None else topic.partitions)
    keys, sizes = [OFFSETS(group, token, number) for number in numbers], list[int | None]()
    if session.anchors:
        moved = [row for row, _ in view.rows_at(keys, ask)]
        anchors = view.rows_at([ANCHORS(token, number) for number in numbers], ask)
        sizes = [0 if anchor is None else anchor.size for anchor, _ in anchors]
    else:
        moved, sizes = NodeBook(session.node).rows(keys), [None] * len(keys)
    return [
        {
            "topic": names.topic_name(token),
            "partition": number,
            "offset": 0 if offset is None else offset.offset,
            "anchored": size,
        }
        for number, offset, size in zip(numbers, moved, sizes, strict=True)
    ]
