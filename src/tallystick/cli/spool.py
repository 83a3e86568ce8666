"""`tally spool`: what an identity sealed and nobody confirmed yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import home_option, open_session
from tallystick.client.names import Names
from tallystick.errors import Misuse, TallystickError, Unavailable

if TYPE_CHECKING:
    from tallystick.client.outbox import RowCounts
    from tallystick.client.session import Session

topic_argument = click.argument("topic", required=False)


@click.group("spool")
def command() -> None:
    """Show, send and drop what waits in the spool of an identity.

    A parcel lies there, sealed, until its anchor was checked. Some of it may be stored already: then sending it again
    changes nothing.

    \b
    Examples:
      tally spool list --home car
      tally spool flush --home car
      tally spool drop brakes --yes --home car
    """


@dataclass(frozen=True)
class _Lane:
    """A lane with parcels that count."""

    folder: str
    topics: tuple[str, ...]  # by name, or by token where the name is not known
    lane: bytes
    parcels: int
    rows: int
    size_bytes: int
    oldest_ms: int  # 0: a padded topic's parcels do not say

    @property
    def topic(self) -> str:
        return ", ".join(self.topics)


def _lanes(session: Session, topic: str | None) -> list[_Lane]:
    """What lies in the spools, of one topic or of all."""
    from tallystick.client.lane_keys import OwnLane
    from tallystick.client.spool import look
    from tallystick.runtime.disk import RealDisk

    identity, found = session.identity, []
    for folder, names in session.spools().items():
        for seen in look(RealDisk(identity.home / "spool" / folder)):
            newest = seen.parcels[-1].header if seen.parcels else None
            own = OwnLane.decode(identity, seen.record, newest)
            counted = [one for one in seen.parcels if own.end is None or one.header.sequence < own.end]
            if not counted:
                continue
            topics = tuple(names or [one.token.hex() for one in own.lane.topics])
            rows = sum(own.rows_of(one, identity) for one in counted)
            oldest = min(one.header.time_ms for one in counted)
            found.append(_Lane(folder, topics, seen.lane, len(counted), rows, seen.size_bytes, oldest))
    return [one for one in found if topic is None or topic in one.topics]


def _rows(lanes: list[_Lane]) -> str:
    return output.plural(sum(one.rows for one in lanes), "row")


@command.command("list")
@topic_argument
@home_option
@output.json_option
def list_(topic: str | None, home: Path | None, tell: output.Tell) -> None:
    """List the lanes that wait in the spool, of TOPIC or of all topics. Nobody is asked: it works where nobody can be
    reached.

    \b
    Examples:
      tally spool list --home car
    """
    with open_session(home) as session:
        lanes = _lanes(session, topic)
    told = [{"topics": one.topics, **output.fields(one, "lane parcels rows size_bytes oldest_ms")} for one in lanes]
    lines = [["topic", "lane", "parcels", "rows", "bytes", "oldest"]]
    for one in lanes:
        oldest = output.show_time(one.oldest_ms) if one.oldest_ms else "–"
        numbers = (one.parcels, one.rows, one.size_bytes)
        lines.append([one.topic, one.lane.hex()[:8], *map(str, numbers), oldest])
    tell(told, *(output.table(lines) if lanes else ["nothing waits in the spool"]))


@command.command("flush")
@topic_argument
@output.default_option("--timeout", "timeout_s", type=float, default=60.0, help="Seconds to wait, in all.")
@home_option
@output.json_option
def flush(topic: str | None, timeout_s: float, home: Path | None, tell: output.Tell) -> None:
    """Send what waits in the spool, of TOPIC or of all topics, and wait until it is anchored.

    \b
    Examples:
      tally spool flush --home car
    """
    counts: list[RowCounts] = []
    settled: dict[str, int] = {}  # rows by what their carrier can tell of them
    trouble: TallystickError | None = None
    with open_session(home) as session:
        until = session.clock.monotonic() + timeout_s
        for one in {one.folder: one for one in _lanes(session, topic)}.values():
            _settle(session, one)
            names = _named(session, one)
            ties = session.over(names)
            with ties.within(max(0.0, until - session.clock.monotonic()) / 2):  # the rest is for sending
                publisher = ties.publisher(names, acks=ties.acks_most, anchor_check_s=0.1)
            try:
                publisher.close(max(0.0, until - session.clock.monotonic()))
            except TallystickError as error:
                trouble = trouble or error
                publisher.stop(0)
            counts.append(publisher.statistics().earlier)
            told_rows = getattr(counts[-1], ties.acks_most)
            settled[ties.acks_most] = settled.get(ties.acks_most, 0) + told_rows
    told = {name: sum(getattr(one, name) for one in counts) for name in ("stored", "anchored", "waiting", "not_taken")}
    unproved, waiting, refused = told["stored"] - sum(settled.values()), told["waiting"], told["not_taken"]
    said = ", ".join(f"{output.plural(rows, 'row')} {acks}" for acks, rows in sorted(settled.items()))
    if trouble is None and not (unproved or waiting or refused):
        tell(told, said if counts else "nothing waits in the spool")
        return
    if tell.as_json:
        tell(told)
    output.note(f"{said}, {unproved} stored and not anchored yet, {waiting} waiting in the spool, {refused} refused")
    raise trouble or Unavailable("the spool is not empty yet", hint="what waits stays there: try again later")


def _settle(session: Session, lane: _Lane) -> None:
    from tallystick.cli.publish import settle

    for topic in lane.topics:
        settle(session, topic)


def _named(session: Session, lane: _Lane) -> list[str]:
    """Its topics by name: an older release did not write them down, and the authority knows."""
    from tallystick.wire import is_identifier

    if not any(map(is_identifier, lane.topics)):
        return list(lane.topics)
    names = Names(session)
    return [names.topic_name(bytes.fromhex(token)) for token in lane.topics]


@command.command("drop")
@topic_argument
@click.option("--yes", is_flag=True, help="Do it: what was not sent is lost.")
@home_option
@output.json_option
def drop(topic: str | None, yes: bool, home: Path | None, tell: output.Tell) -> None:
    """Delete what waits in the spool, of TOPIC or of all topics. No publisher of this identity may be running.

    \b
    Examples:
      tally spool drop brakes --yes --home car
    """
    from tallystick.client.spool import Spool
    from tallystick.runtime.disk import RealDisk

    with open_session(home) as session:
        lanes = _lanes(session, topic)
        if topic is not None and not lanes:
            raise Misuse(f'nothing of topic "{topic}" lies in the spool', hint="tally spool list shows what does")
        if lanes and not yes:
            what = f"{_rows(lanes)} of {', '.join(sorted({one.topic for one in lanes}))}"
            raise Misuse(f"{what} would be deleted, and may be stored nowhere else", hint="say --yes to do it")
        for folder, one in sorted({one.folder: one for one in lanes}.items()):
            _settle(session, one)
            spool = Spool(RealDisk(session.identity.home / "spool" / folder))
            for lane in spool.lanes():
                spool.drop_lane(lane)
            spool.close()
    told = {"rows": sum(one.rows for one in lanes), "parcels": sum(one.parcels for one in lanes)}
    tell(told, f"{_rows(lanes)} dropped" if lanes else "nothing waits in the spool")
