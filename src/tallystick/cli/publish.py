"""`tally publish`: rows of a file, sealed and published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import home_option, naming, open_session
from tallystick.errors import Misuse, TallystickError, Unavailable

if TYPE_CHECKING:
    from tallystick.client.publish import Delivery


@click.command("publish")
@click.argument("topic")
@click.argument("file", default="-")
@click.option("--format", "format_", type=click.Choice(["jsonl", "csv", "arrow", "parquet"]), default=None)
@output.default_option(
    "--acks",
    type=click.Choice(["stored", "anchored"]),
    default="anchored",
    help="Wait for the node's promise, or for the ledger's anchor.",
)
@output.default_option("--batch-rows", type=click.IntRange(1), default=4096, help="Rows in a parcel, at most.")
@output.default_option("--lanes", type=click.IntRange(1, 64), default=1, help="Lanes to spread rows over.")
@click.option("--key", default=None, help="The column by which rows are dealt to lanes.")
@click.option("--policy", default=None, help='Who may open the rows: a formula over attributes, "role::police".')
@click.option(
    "--column-policy",
    "by_column",
    nargs=2,
    multiple=True,
    metavar="COLUMN FORMULA",
    help="Who may open a column, and with it the columns of its group; may be given several times.",
)
@click.option("--hide-policy", is_flag=True, help="Show the formula to the topic's subscribers alone.")
@output.default_option("--timeout", "timeout_s", type=float, default=60.0, help="Seconds to wait in the end.")
@home_option
@output.progress_option
@output.json_option
def command(
    topic: str,
    file: str,
    format_: str | None,
    acks: str,
    batch_rows: int,
    lanes: int,
    key: str | None,
    policy: str | None,
    by_column: tuple[tuple[str, str], ...],
    hide_policy: bool,
    timeout_s: float,
    home: Path | None,
    show_progress: bool,
    tell: output.Tell,
) -> None:
    """Publish the rows of FILE (JSON lines, CSV, Arrow or Parquet, by its suffix) or of stdin to TOPIC.

    What could not be sent stays in the spool of the identity, sealed, and goes out with the next publish.

    \b
    Examples:
      tally publish brakes rows.jsonl --home car
      zcat rows.csv.gz | tally publish brakes --format csv --home car
      tally publish drives rows.jsonl --column-policy lat role::police --column-policy fuel role::insurer --home car
    """
    from tallystick.cli.rows import find_format, read_rows

    if policy is not None and by_column:
        raise Misuse("--policy and --column-policy exclude each other")
    if file != "-" and not Path(file).is_file():
        raise Misuse(f"{file}: no such file", hint="- reads stdin")
    format_ = find_format(file, format_)
    delivered: list[Delivery] = []
    failures: list[TallystickError] = []

    def on_delivery(error: TallystickError | None, delivery: Delivery | None) -> None:
        if error is not None:
            failures.append(error)
        elif delivery is not None and delivery.rows:
            delivered.append(delivery)

    with open_session(home) as session, naming(topic):
        publisher = session.publisher(
            topic,
            on_delivery=on_delivery,
            acks=acks,
            batch_rows_max=batch_rows,
            lanes=lanes,
            key=key,
            policy=dict(by_column) or policy,
            hide_policy=hide_policy,
            linger_s=0.0,  # rows come in whole portions
            anchor_check_s=0.1,  # somebody waits at a prompt
        )
        total = Path(file).stat().st_size if file != "-" else 0
        try:
            with output.progress(f"publishing {file}", total, show=show_progress) as advance:
                for portion in read_rows(file, format_, publisher.schema.arrow, advance):
                    publisher.send(portion)
                    publisher.poll()
        finally:
            publisher.close(timeout_s)
        waiting = publisher.flush(0)
    if failures:
        raise failures[0]
    rows = sum(one.rows for one in delivered)
    if waiting:
        raise Unavailable(
            f"{output.plural(rows, 'row')} {acks}; "
            f"{output.plural(waiting, 'parcel')} still in the spool of {session.identity.home}",
            hint="publish again, even an empty file, when the node can be reached: they go out then",
        )
    offsets = [{"partition": p, "offset": o, "rows": one.rows} for one in delivered for _, p, o in one.offsets]
    told = {"topic": topic, "rows": rows, "parcels": len(delivered), "acks": acks, "offsets": offsets}
    tell(told, f"{output.plural(rows, 'row')} in {output.plural(len(delivered), 'parcel')} to {topic}, {acks}")
