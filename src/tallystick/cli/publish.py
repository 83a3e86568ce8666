"""`tally publish`: rows of a file, sealed and published.

However it ends, it says what became of the rows: how many are stored, how many wait in the spool, how many were not
taken, and with which line to go on. Where to go on is also written down in the identity's folder, for each topic and
file, with the hash of what was taken (`_Place`): `--resume` begins there if that part of the file is still the same.

A publish that is killed says nothing any more. So it gives each portion to the publisher with a mark: where the file
stood before it. The spool keeps the newest mark whose rows were sealed, and whoever takes the spool up next writes the
place down from it (`settle`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import home_option, left_in_spool, naming, open_session
from tallystick.errors import Misuse, TallystickError

if TYPE_CHECKING:
    from tallystick.cli.rows import FileMark, Portion, RowFile
    from tallystick.client.outbox import Delivery, OnDelivery, RowCounts
    from tallystick.client.publish import Publisher
    from tallystick.client.session import Session

ROWS_AHEAD = 16_384  # that may wait to be sealed: whoever interrupts waits for no more
INTERRUPTED_S = 5.0  # for what was taken to be sent, when somebody interrupts
TOLD_S = 2.0  # before what is waited for is said
SEALED_S = 30.0  # to seal what was read, at least: with a small --timeout it would not be taken
BAD_SHOWN = 10  # rows that do not fit, of a dry run


@click.command("publish")
@click.argument("topic")
@click.argument("file", default="-")
@click.option("--format", "format_", type=click.Choice(["jsonl", "csv", "arrow", "parquet"]), default=None)
@click.option(
    "--acks",
    type=click.Choice(["stored", "anchored"]),
    default=None,
    help="Wait for the node's word, or for the ledger's anchor; by default for all that the carrier can tell.",
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
@click.option(
    "--content", default="", help='On the fabric: what will be published, a formula over columns, "speed > 100".'
)
@click.option("--hide-policy", is_flag=True, help="Show the formula to the topic's subscribers alone.")
@output.default_option(
    "--timeout", "timeout_s", type=float, default=60.0, help="Seconds to wait for others, in all, beside reading FILE."
)
@output.default_option(
    "--header/--no-header", default=True, help="Whether the first line of a CSV file names its columns."
)
@click.option("--resume", is_flag=True, help="Go on where the last publish of this file to this topic ended.")
@click.option("--dry-run", is_flag=True, help="Hold the whole file to the topic's schema, and send nothing.")
@home_option
@output.progress_option
@output.json_option
def command(
    topic: str,
    file: str,
    format_: str | None,
    acks: str | None,
    batch_rows: int,
    lanes: int,
    key: str | None,
    policy: str | None,
    by_column: tuple[tuple[str, str], ...],
    hide_policy: bool,
    content: str,
    timeout_s: float,
    header: bool,
    resume: bool,
    dry_run: bool,
    home: Path | None,
    show_progress: bool,
    tell: output.Tell,
) -> None:
    """Publish the rows of FILE (JSON lines, CSV, Arrow or Parquet, by its suffix) or of stdin to TOPIC.

    What could not be sent stays in the spool of the identity, sealed, and goes out with the next publish or with
    tally spool flush. A row that does not fit ends the command; the rows before it are published, and --resume goes on
    with it once it is mended.

    \b
    Examples:
      tally publish brakes rows.jsonl --home car
      tally publish brakes rows.jsonl --dry-run --home car
      tally publish brakes rows.jsonl --resume --home car
      tally publish brakes plain.csv --no-header --home car
      zcat rows.csv.gz | tally publish brakes --format csv --home car
      tally publish drives rows.jsonl --column-policy lat role::police --column-policy fuel role::insurer --home car
    """
    from tallystick.cli.rows import FileMark, RowFile, find_format

    if policy is not None and by_column:
        raise Misuse("--policy and --column-policy exclude each other")
    if file != "-" and not Path(file).is_file():
        found = "a folder, not a file" if Path(file).is_dir() else "a pipe or a device" if Path(file).exists() else ""
        raise Misuse(f"{file}: {found or 'no such file'}", hint="- reads stdin")
    if file == "-" and resume:
        raise Misuse("--resume needs a file: stdin cannot be read again")
    format_ = find_format(file, format_)
    with _Untouched(file) as untouched, open_session(home, topic) as session, naming(topic):
        acks = acks or session.acks_most
        place = _Place(session.identity.home, topic, file)
        if not dry_run:
            settle(session, topic)
        start, skip = place.read(asked=not dry_run) if resume else (FileMark(), 0)
        if dry_run:
            from tallystick.trust.permit import Operation

            schema = session.grants.obtain(Operation.ADVERTISE, topic).schemas[-1].arrow
            source = RowFile(file, format_, schema, header=header)
            _check(source, source.behind(start, skip), topic, tell)
            return
        run = _Run(start, "" if file == "-" else session.entropy.bytes(8).hex())
        until = session.clock.monotonic() + timeout_s
        with session.within(timeout_s / 2):  # the rest is for rows: they can be sent with the keys at hand
            publisher = session.publisher(
                topic,
                on_delivery=run.on_delivery,
                acks=acks,
                batch_rows_max=batch_rows,
                lanes=lanes,
                key=key,
                policy=dict(by_column) or policy,
                hide_policy=hide_policy,
                content=content,
                linger_s=0.0,  # rows come in whole portions
                anchor_check_s=0.1,  # somebody waits at a prompt
            )
        timeout_s = max(0.0, until - session.clock.monotonic())
        for warning in publisher.warnings:
            output.note(f"note: {warning}")
        try:
            source = RowFile(file, format_, publisher.schema.arrow, header=header, at_once=batch_rows)
            run.start = start = source.behind(start, skip)
            portions = source.portions(start)
            total = source.count(start) if output.shows_progress(show_progress) else 0
        except BaseException:
            publisher.stop(0)
            raise
        place.write(source, start, running=run.name)
        untouched.is_over = True
        with output.progress(f"publishing {file}", total or 0, show=show_progress) as advance:
            error = run.carry_out(publisher, source, portions, timeout_s, advance)
        outcome = run.outcome(publisher)
        outcome.is_noted = place.write(source, outcome.mark)
        outcome.count_rest(source)
        told = {"topic": topic, "file": source.name, "acks": acks}
        _tell_end(
            told | outcome.document(source, acks, run.delivered), outcome, source, error, (session, publisher), tell
        )


class _Untouched:
    """Until rows are taken, whoever interrupts hears that none were."""

    def __init__(self, file: str) -> None:
        self._file, self.is_over = file, False

    def __enter__(self) -> _Untouched:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, KeyboardInterrupt) and not self.is_over:
            output.note(f"0 rows stored, 0 waiting in the spool: nothing of {self._file} was taken; publish it again")


def _tell_end(
    told: dict[str, Any],
    outcome: _Outcome,
    source: RowFile,
    error: BaseException | None,
    ties: tuple[Session, Publisher],
    tell: output.Tell,
) -> None:
    """Say how it ended, and raise what ended it early."""
    topic, acks, rows = told["topic"], told["acks"], output.plural(told["rows"], "row")
    if error is None and (left := outcome.left(acks)):
        error = left_in_spool(*ties, f"{rows} {acks}; {output.plural(left, 'row')}")
    if outcome.earlier.stored:
        output.note(f"{output.plural(outcome.earlier.stored, 'row')} of an earlier publish went out as well")
    if error is None:
        tell(told, f"{rows} in {output.plural(told['parcels'], 'parcel')} to {topic}, {acks}")
        return
    if tell.as_json:
        tell(told)
    output.note(outcome.sentence(source, acks))
    raise error


def _check(source: RowFile, start: FileMark, topic: str, tell: output.Tell) -> None:
    """Read the whole file and say which rows do not fit."""
    rows = bad = 0
    for portion in source.portions(start):
        if isinstance(portion, Misuse):
            bad += 1
            if bad <= BAD_SHOWN:
                output.note(f"{source.name}, {portion}")
        else:
            rows += portion.batch.num_rows
    told = {"topic": topic, "file": source.name, "rows": rows + bad, "bad": bad}
    if not bad:
        tell(told, f"{output.plural(rows, 'row')} of {source.name} fit {topic}; nothing was sent")
        return
    if tell.as_json:
        tell(told)
    what = f"{output.plural(bad, 'row')} of {rows + bad} in {source.name}"
    raise Misuse(f"{what} would not be taken by {topic}; nothing was sent", hint="mend the lines that are named above")


class _Run:
    """One publish of a file: what was handed to the publisher, portion by portion."""

    def __init__(self, start: FileMark, name: str = "") -> None:
        """Under the `name` the spool knows its marks; without one there are none."""
        self.start, self.name = start, name
        self.delivered: list[Delivery] = []
        self._failures: list[TallystickError] = []
        self._portions: list[tuple[int, FileMark]] = []  # rows, and how far the file is taken with them
        self._failed: set[int] = set()  # portions of which some parcel was refused
        self._is_read = False  # to its end

    def on_delivery(self, error: TallystickError | None, delivery: Delivery | None) -> None:
        if error is not None:
            self._failures.append(error)
        elif delivery is not None and delivery.rows:
            self.delivered.append(delivery)

    def carry_out(
        self,
        publisher: Publisher,
        source: RowFile,
        portions: Iterator[Portion | Misuse],
        timeout_s: float,
        advance: Callable[[int], None],
    ) -> BaseException | None:
        """Publish the file and stop the publisher. Returns what ended it early, if something did."""
        ended: BaseException | None = None
        try:
            self._feed(publisher, source, portions, advance)
            _seal(publisher, 0, max(timeout_s, SEALED_S))
        except (KeyboardInterrupt, TallystickError) as error:
            ended = error
        if isinstance(ended, KeyboardInterrupt):
            output.note("interrupted: sending what was taken; once more, and it stays in the spool")
            timeout_s = min(timeout_s, INTERRUPTED_S)
        try:
            publisher.close(timeout_s)
        except (KeyboardInterrupt, TallystickError) as error:
            ended = ended or error
            with suppress(TallystickError):
                publisher.stop(0)
        publisher.poll()
        return ended or next(iter(self._failures), None)

    def _feed(
        self,
        publisher: Publisher,
        source: RowFile,
        portions: Iterator[Portion | Misuse],
        advance: Callable[[int], None],
    ) -> None:
        ahead, before, place = 0, self.start, source.place(self.start)
        for portion in portions:
            if isinstance(portion, Misuse):
                raise portion
            rows = portion.batch.num_rows
            self._portions.append((rows, portion.end))
            try:
                publisher.send(portion.batch, self._counting(rows, advance), mark=self._mark(before, portion.end))
            except Misuse as error:
                raise Misuse(f"from {source.unit} {place} on: {error}", hint=error.hint) from None
            publisher.poll()
            if self._failures:
                raise self._failures[0]
            ahead, before, place = ahead + rows, portion.end, source.place(portion.end)
            if ahead >= ROWS_AHEAD:
                _seal(publisher, ROWS_AHEAD)
                ahead = 0
        self._is_read = True

    def _mark(self, before: FileMark, end: FileMark) -> str | None:
        """What the spool keeps with the rows between these places."""
        # What is not known here stands in the place file: the hash of a file that has no lines.
        places = [{name: value for name, value in asdict(one).items() if value} for one in (before, end)]
        return json.dumps({"run": self.name, "before": places[0], "end": places[1]}) if self.name else None

    def _counting(self, rows: int, advance: Callable[[int], None]) -> OnDelivery:
        """What hears of the fate of the portion that was handed over last."""
        number = len(self._portions) - 1

        def on_delivery(error: TallystickError | None, _delivery: Delivery | None) -> None:
            if error is not None:
                self._failed.add(number)
            else:
                advance(rows)

        return on_delivery

    def outcome(self, publisher: Publisher) -> _Outcome:
        """What became of the rows. Those that were not sealed are lost with this process: they were not taken."""
        told = publisher.statistics()
        produced, waiting = told.produced, told.produced.waiting - told.rows
        kept, before, mark = produced.stored + waiting, 0, self.start
        for number, (rows, end) in enumerate(self._portions):
            if before + rows > kept or (produced.not_taken and number in self._failed):
                break
            before, mark = before + rows, end
        is_whole = self._is_read and before == sum(rows for rows, _ in self._portions)
        return _Outcome(produced, told.earlier, waiting, mark, kept - before, 0 if is_whole else None, is_whole)


def _seal(publisher: Publisher, rows: int, timeout_s: float | None = None) -> None:
    """Wait until no more than so many rows are not sealed yet, and say what it waits for if that takes long."""
    waited_s, told = 0.0, ""
    while (now := publisher.statistics()).rows > rows and (timeout_s is None or waited_s < timeout_s):
        publisher.flush(0.05)
        waited_s += 0.05
        if waited_s > TOLD_S and now.last_error != told:
            told = now.last_error
            output.note(f"waiting: {told}")


@dataclass
class _Outcome:
    """The end of a publish in numbers."""

    produced: RowCounts
    earlier: RowCounts  # of what lay in the spool before
    waiting: int  # in the spool, of what was produced
    mark: FileMark  # where to go on
    again: int  # rows behind the mark that are stored or wait: they went in other lanes, or other parcels
    not_taken: int | None  # None: nobody knows, the file is stdin or cannot be read
    is_whole: bool  # the file was taken to its end
    is_noted: bool = True  # the mark is written down

    def count_rest(self, source: RowFile) -> None:
        """Count the rows that were not taken."""
        if not self.is_whole and (rest := source.count(self.mark)) is not None:
            self.not_taken = rest - self.again

    def left(self, acks: str) -> int:
        """Rows that lie in the spool because nobody confirmed them yet."""
        unproved = sum(one.stored - one.anchored for one in (self.produced, self.earlier)) if acks == "anchored" else 0
        return unproved + self.waiting + self.earlier.waiting

    def document(self, source: RowFile, acks: str, delivered: list[Delivery]) -> dict[str, Any]:
        parcels = [one for one in delivered if not one.earlier]
        places = [{"partition": p, "offset": o, "rows": one.rows} for one in parcels for _, p, o in one.offsets]
        return {
            "rows": self.produced.anchored if acks == "anchored" else self.produced.stored,
            "parcels": len(parcels),
            "offsets": places,
            "stored": self.produced.stored,
            "anchored": self.produced.anchored,
            "waiting": self.waiting,
            "not_taken": self.not_taken,
            "twice": self.again,
            "next": None if self.is_whole else {source.unit: source.place(self.mark)},
        }

    def sentence(self, source: RowFile, acks: str) -> str:
        stored, unproved = self.produced.stored, self.produced.stored - self.produced.anchored
        note = f" ({unproved} of them not anchored yet)" if acks == "anchored" and unproved else ""
        rest = f"the rest of {source.name}" if self.not_taken is None else str(self.not_taken)
        said = f"{output.plural(stored, 'row')} stored{note}, {self.waiting} waiting in the spool, {rest} not taken"
        if self.is_whole:
            return said
        said += f"; go on with {source.unit} {source.place(self.mark)} of {source.name}"
        if source.can_resume and self.is_noted:
            said += " (--resume)"
        if self.again:
            said += f"; {self.again} of the rows from there on are stored or waiting already, and would come twice"
        return said


class _Place:
    """Where to go on with a file, for each topic: a small file in the identity's folder."""

    def __init__(self, home: Path, topic: str, file: str) -> None:
        from tallystick.crypto.symmetric import named_hash

        self._home, self._topic, self._file = home, topic, file
        key = f"{topic}\x00{Path(file).absolute()}".encode()
        self._name = f"{named_hash('tallystick published file 1', key).hex()[:16]}.json"

    def read(self, *, asked: bool) -> tuple[FileMark, int]:
        """The mark of the last publish, and how many rows behind it were taken as well. Raises `Misuse` if there was no
        publish, or nobody knows how far it came; whether the spool was `asked`, the hint depends on."""
        from tallystick.cli.rows import FileMark

        path = self._home / "published" / self._name
        again = "leave --resume out to begin with its first row"
        if not path.exists():
            raise Misuse(f"{self._file} was not published to {self._topic} from here before", hint=again)
        try:
            kept = json.loads(path.read_bytes())
            mark, skip, running = FileMark(**kept["mark"]), int(kept.get("skip", 0)), bool(kept["running"])
        except (ValueError, KeyError, TypeError):
            raise Misuse(f"{path}: cannot be read", hint=again) from None
        if running:
            compare = "compare the file with what tally subscribe shows, and publish what is missing as another file"
            raise Misuse(
                f"the last publish of {self._file} to {self._topic} ended without writing down how far it came:"
                " it was killed, or the disk was full",
                hint=compare if asked else "if it does not run any more, --resume without --dry-run asks the spool",
            )
        if "skip" in kept:
            output.note(f"the last publish of {self._file} was killed; the spool knows how far it came")
        return mark, skip

    def write(self, source: RowFile, mark: FileMark, *, running: str = "") -> bool:
        """Write down how far the file was taken, durably, and which run goes on there; stdin cannot be gone on with.
        Returns whether that could be done."""
        if not source.can_resume:
            return False
        kept = {"topic": self._topic, "file": self._file, "running": running, "mark": asdict(source.vouched(mark))}
        return _write_place(self._home, self._name, kept)


def _write_place(home: Path, name: str, kept: dict[str, Any]) -> bool:
    from tallystick.runtime.disk import RealDisk, write_atomic

    try:
        write_atomic(RealDisk(home / "published"), name, json.dumps(kept).encode())
    except OSError as error:
        output.note(f"where to go on could not be written down: {error.strerror}")
        return False
    return True


def settle(session: Session, topic: str) -> None:
    """Write down how far the publishes to `topic` came that were killed, if the spool knows it. Whoever takes the spool
    up does so first: later nobody could tell."""
    from contextlib import closing

    from tallystick.client.spool import Spool

    running: dict[str, dict[str, Any]] = {}
    for path in sorted((session.identity.home / "published").glob("*.json")):
        with suppress(ValueError, KeyError, TypeError):
            kept = json.loads(path.read_bytes())
            if kept["topic"] == topic and kept["running"] and isinstance(kept["running"], str):
                running[path.name] = kept
    if not running:
        return
    with closing(Spool(session.spool_disk([topic]))) as spool:
        marked = spool.marked
    said = {} if marked is None else json.loads(marked.text)
    for name, kept in running.items():
        is_marked = said.get("run") == kept["running"]  # else it was killed before its first row was sealed
        if marked is None or not is_marked:
            _write_place(session.identity.home, name, {**kept, "running": "", "skip": 0})
        elif marked.rows >= 0:
            mark, skip = said["before"], marked.rows
            if mark.get("rows", 0) + skip == said["end"]["rows"]:
                mark, skip = said["end"], 0
            mark = {**kept["mark"], **mark}
            _write_place(session.identity.home, name, {**kept, "running": "", "mark": mark, "skip": skip})
