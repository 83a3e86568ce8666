"""`tally subscribe`: what was published, verified and opened."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tallystick.cli import output
from tallystick.cli.common import home_option, naming, open_session, read_time
from tallystick.errors import Misuse, Refused, Unavailable, Withheld

if TYPE_CHECKING:
    from tallystick.cli.rows import Writer
    from tallystick.client.reader import Finding
    from tallystick.client.subscribe import Received, Subscriber
    from tallystick.runtime.sources import Clock

T = TypeVar("T")

TOLD_S = 1.0  # what passes sooner is not worth a line
OPEN_ACTS = ("gap", "erased", "silent", "suspect")  # of a publisher or an authority: told, but nobody tampered


@click.command("subscribe")
@click.argument("topic")
@click.option("--group", default=None, help="Share the topic with others of this group, and remember how far it read.")
@click.option(
    "--from",
    "start",
    help="earliest (unless you say otherwise), latest, an offset, or a time: -1h, 2026-11-15T08:00 in UTC. It begins"
    " with what was anchored then.",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Only this one; may be given several times.",
)
@click.option("--interest", default="", help='Only rows that satisfy a formula: "speed > 120 && road::motorway".')
@click.option("-n", "--max-rows", type=click.IntRange(1), default=None, help="Stop after so many rows.")
@output.default_option("--follow/--no-follow", default=False, help="Wait for more, or stop at the end.")
@output.default_option(
    "--timeout", "timeout_s", type=float, default=60.0, help="Seconds to wait for nodes that are away or behind."
)
@output.default_option("--format", "format_", type=click.Choice(["jsonl", "csv", "arrow"]), default="jsonl")
@click.option("--origin", is_flag=True, help="With JSON lines: add where each row lies, for tally prove and verify.")
@output.default_option(
    "--on-bad",
    type=click.Choice(["fail", "report", "strict"]),
    default="fail",
    help="Stop at the first finding, or report it and go on; strict stops for what was retired or erased as well.",
)
@output.default_option(
    "--closed",
    type=click.Choice(["omit", "error"]),
    default="omit",
    help="Leave out columns that your attributes do not open, or stop at them.",
)
@home_option
@output.json_option
def command(
    topic: str,
    group: str | None,
    start: str | None,
    partitions: tuple[int, ...],
    interest: str,
    max_rows: int | None,
    follow: bool,
    timeout_s: float,
    format_: str,
    origin: bool,
    on_bad: str,
    closed: str,
    home: Path | None,
    tell: output.Tell,
) -> None:
    """Write the rows of TOPIC to stdout, each verified down to the ledger before it is shown.

    What was altered, withheld, repeated or forged is a finding: a line on stderr, and evidence in the identity's
    folder. The exit code is 3 if somebody tampered, and 4 if no node answered for as long as --timeout allows, or all
    were behind the ledger. Columns under policies that your attributes do not satisfy are left out (null in CSV and
    Arrow), and named on stderr.

    \b
    Examples:
      tally subscribe brakes --home reader
      tally subscribe brakes --group dashboards --follow --home reader
      tally subscribe brakes --from latest --follow --format csv --home reader
      tally subscribe brakes --from -1h --partition 0 -n 10 --home reader
      tally subscribe drives --closed error --home insurer
      tally subscribe brakes --interest "speed > 120 && vin in (WVW1, WVW2)" --home reader
    """
    from tallystick.cli.rows import Writer
    from tallystick.client.subscribe import FoundError

    if origin and format_ != "jsonl":
        raise Misuse("--origin goes with --format jsonl")
    if group is not None and start is not None:
        hint = f"tally group reset {group} {topic} --to {start} moves it"
        raise Misuse("--from goes without --group: a group goes on where it stands", hint=hint)
    place = _start(start or "earliest")
    found = 0
    with open_session(home, topic) as session, naming(topic):
        evidence = f"the evidence is in {session.identity.home / 'evidence'}"

        def on_finding(finding: Finding) -> None:
            nonlocal found
            found += finding.reason not in OPEN_ACTS
            output.note(f"finding: {finding.reason}: {finding.message}")
            finding.keep(session.identity.home)

        writer = Writer(format_)
        subscriber = session.subscriber(
            topic,
            group=group,
            on_finding=on_finding,
            start=place,
            partitions=partitions,
            interest=interest,
            on_bad=on_bad,
            closed=closed,
        )
        for warning in subscriber.warnings:
            output.note(f"note: {warning}")
        try:
            patiently = partial(_patiently, session.clock, timeout_s)
            _read(subscriber, writer, max_rows, follow, origin, patiently, commit=group is not None)
        except FoundError as stop:
            raise Refused(
                f"stopped at a finding: {stop.reason}", reason=stop.reason, hint=f"{evidence}; --on-bad report goes on"
            ) from stop
        except Withheld as withheld:
            output.note(f"finding: {withheld.reason}: {withheld}")
            raise
        finally:
            writer.close()
            subscriber.close()
            if subscriber.closed_parcels:
                passed = output.plural(subscriber.closed_parcels, "parcel")
                output.note(f"{passed} passed over: no column of them opens with this identity's attributes")
            if unwanted := subscriber.statistics().unwanted:
                output.note(f"{output.plural(unwanted, 'parcel')} came in vain: nothing in them is of interest")
    if found:
        raise Refused(output.plural(found, "finding"), reason="findings", hint=evidence)


def _patiently(clock: Clock, timeout_s: float, ask: Callable[[], T]) -> T:
    """The answer, as soon as there is one: nodes that are away for a moment, or behind, are no trouble yet."""
    began, is_told = clock.monotonic(), False
    while True:
        try:
            return ask()
        except Unavailable as error:
            waited_s = clock.monotonic() - began
            if waited_s >= timeout_s:
                raise
            if waited_s >= TOLD_S and not is_told:
                is_told = True
                output.note(f"waiting: {error}")
            clock.pause(min(1.0 if error.retry_after_s is None else error.retry_after_s, timeout_s - waited_s))


def _read(
    subscriber: Subscriber,
    writer: Writer,
    max_rows: int | None,
    follow: bool,
    origin: bool,
    patiently: Callable[[Callable[[], Any]], Any],
    *,
    commit: bool,
) -> None:
    import pyarrow as pa

    left, told = max_rows, set[str]()
    schema = subscriber.schema.arrow
    if len(subscriber.schema.groups) > 1:  # some may be closed
        schema = pa.schema([field.with_nullable(True) for field in schema])
    while True:
        before = subscriber.positions()
        received: list[Received] = patiently(lambda: subscriber.poll(None if follow else 0))
        for one in received:
            data = one.batch.data if left is None else one.batch.data.slice(0, left)
            writer.write(data, schema, _origin(one) if origin else None, one.places)
            if not told.issuperset(one.closed):
                told.update(one.closed)
                output.note(f"closed to this identity's attributes: {', '.join(one.closed)}")
            if left is not None:
                left -= data.num_rows
                if left <= 0:
                    return  # nothing is committed: the rest of the parcel was not shown
        if commit:
            patiently(subscriber.commit)
        if not follow and not received and subscriber.positions() == before:
            return


def _start(text: str) -> str | int | datetime:
    from tallystick.wire import is_number

    if text in ("earliest", "latest"):
        return text
    if is_number(text):
        return int(text)
    time = read_time(text)
    if time is None:
        hint = "write times as 2026-11-15T08:00, or -1h"
        raise Misuse(f'--from "{text}": expected earliest, latest, an offset or a time', hint=hint)
    return time


def _origin(one: Received) -> dict[str, object]:
    place = {"_partition": one.partition, "_offset": one.offset}
    return {**place, "_publisher": one.publisher.hex(), "_parcel": one.parcel.hex()}
