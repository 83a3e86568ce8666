"""`tally fleet`: simulated vehicles and sensors, and real recordings, published or written to a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import home_option, naming, open_session, plural
from tallystick.errors import Misuse, TallystickError, Unavailable

if TYPE_CHECKING:
    from tallystick.fleet.files import Take

CLOSE_S = 60.0  # for the last parcels to be stored
SIMULATED = ["telemetry", "can", "vitals", "home"]
SCHEMAS = [*SIMULATED, "positions", "drives"]


@click.group("fleet")
def command() -> None:
    """Simulate vehicles and city sensors, or replay recordings of real ones."""


def _parse_rate(_ctx: click.Context, _parameter: click.Parameter, value: str) -> float | None:
    """How many times as fast as it happened; None is as fast as can be."""
    if value == "max":
        return None
    try:
        factor = 1.0 if value == "realtime" else float(value)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise click.BadParameter(f'"{value}" is not max, realtime or a factor such as 10')
    return factor


def _destination_options(function: output.Command) -> output.Command:
    for option in (
        click.option(
            "--rate",
            callback=_parse_rate,
            default="max",
            show_default=True,
            help="As fast as can be (max), as it happened (realtime), or a factor such as 10.",
        ),
        click.option("--topic", help="Publish to this topic."),
        click.option("--out", help="Write to this file (.parquet or .jsonl), or JSON lines to stdout with -."),
    ):
        function = option(function)
    return output.json_option(output.progress_option(home_option(function)))


@command.command("simulate")
@click.option("--what", type=click.Choice(SIMULATED), default="telemetry", show_default=True)
@click.option("--vehicles", type=click.IntRange(1), default=100, show_default=True, help="Or sensors, of the city's.")
@click.option("--minutes", type=float, default=10.0, show_default=True)
@click.option("--step", "step_s", type=float, default=1.0, show_default=True, help="Seconds between rows.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="The same seed gives the same bytes."
)
@click.option("--start", help="Time of the first row, ISO 8601 [default: 2026-01-05T06:00Z, with realtime now].")
@click.option(
    "--truth", type=click.Path(dir_okay=False, path_type=Path), help="Write what really happened here, as JSON."
)
@_destination_options
def simulate(
    what: str,
    vehicles: int,
    minutes: float,
    step_s: float,
    seed: int,
    start: str | None,
    truth: Path | None,
    rate: float | None,
    topic: str | None,
    out: str | None,
    home: Path | None,
    show_progress: bool,
    as_json: bool,
) -> None:
    """Simulate vehicles (telemetry or CAN frames) or city sensors (vitals of a hospital, air of homes).

    \b
    Examples:
      tally fleet simulate --vehicles 500 --minutes 10 --out drive.parquet --truth truth.json
      tally fleet simulate --vehicles 20 --rate realtime --topic telemetry --home car
    """
    from tallystick.fleet import can
    from tallystick.fleet.city import Sensors
    from tallystick.fleet.vehicles import START_MS, Fleet
    from tallystick.runtime.sources import SystemClock

    now_ms = int(SystemClock().now() * 1000) if rate is not None else START_MS
    start_ms = now_ms if start is None else _parse_time(start)
    source: Fleet | Sensors
    if what in ("telemetry", "can"):
        source = Fleet(vehicles, minutes * 60, step_s=step_s, seed=seed, start_ms=start_ms)
    else:
        source = Sensors(what, vehicles, minutes * 60, step_s=step_s, seed=seed, start_ms=start_ms)
    batches: Iterable[Any] = source.batches()
    if what == "can":
        batches = (can.encode(batch) for batch in batches)
    summary = _run(batches, rate, topic, out, home, f"simulating {what}", int(minutes * 60), show_progress)
    summary = {"what": what, "seed": seed, **summary, **_facts(source)}
    if truth is not None:
        _write_truth(truth, source)
    _report(summary, as_json, out)


@command.command("replay")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--duplicates", is_flag=True, help="Keep rows that repeat another one exactly.")
@_destination_options
def replay(
    path: Path,
    duplicates: bool,
    rate: float | None,
    topic: str | None,
    out: str | None,
    home: Path | None,
    show_progress: bool,
    as_json: bool,
) -> None:
    """Replay CapMetro positions or OBD-II drives: a CSV file, a folder of them, or a tar archive of them.

    \b
    Examples:
      tally fleet replay obdiidata.tar.xz --out drives.parquet
      tally fleet replay vehicle_positions/2015-06-07.csv --rate 60 --topic positions --home bus
    """
    from tallystick.fleet.replay import RecordingReplay

    source = RecordingReplay(path, keep_duplicates=duplicates)
    summary = _run(source.batches(), rate, topic, out, home, f"replaying {path.name}", 0, show_progress)
    left_out = {"files": source.files, "empty": source.empty, "duplicates": source.duplicates, "torn": source.torn}
    _report({**summary, **left_out}, as_json, out)


@command.command("schema")
@click.argument("name", type=click.Choice(SCHEMAS))
@output.json_option
def schema(name: str, as_json: bool) -> None:
    """Print the schema of a kind of rows, as tally topic takes it.

    \b
    Examples:
      tally topic create drives --schema "$(tally fleet schema drives)" --home owner
    """
    from tallystick.fleet import schemas

    text = str(schemas.schema(name))
    if as_json:
        output.result_json({"name": name, "schema": text})
    else:
        output.result(text)


def _run(
    batches: Iterable[Any],
    rate: float | None,
    topic: str | None,
    out: str | None,
    home: Path | None,
    label: str,
    seconds: int,
    show_progress: bool,
) -> dict[str, Any]:
    """Hand every batch on. Returns how many rows that were, and in how much time."""
    from tallystick.fleet.pace import paced
    from tallystick.runtime.sources import SystemClock

    clock = SystemClock()
    began_s, rows, shown_s, first_ms = clock.monotonic(), 0, 0, None
    with _destination(topic, out, home) as take, output.progress(label, seconds, show=show_progress) as advance:
        for batch in batches if rate is None else paced(batches, clock, rate):
            take(batch)
            rows += batch.num_rows
            last_ms = int(batch.column("ts")[batch.num_rows - 1].as_py().timestamp() * 1000)
            first_ms = last_ms if first_ms is None else first_ms
            advance((last_ms - first_ms) // 1000 - shown_s)
            shown_s = (last_ms - first_ms) // 1000
    return {"rows": rows, "seconds": round(clock.monotonic() - began_s, 3)}


@contextmanager
def _destination(topic: str | None, out: str | None, home: Path | None) -> Iterator[Take]:
    from tallystick.fleet import files

    if (topic is None) == (out is None):
        raise Misuse("say where the rows go: either --topic or --out", hint="--out - writes JSON lines to stdout")
    if out == "-":
        yield files.json_lines(sys.stdout.buffer)
        sys.stdout.buffer.flush()
    elif out is not None:
        with files.writing(Path(out)) as take:
            yield take
    else:
        assert topic is not None
        with _publishing(topic, home) as take:
            yield take


@contextmanager
def _publishing(topic: str, home: Path | None) -> Iterator[Take]:
    failures: list[TallystickError] = []

    def on_delivery(error: TallystickError | None, _delivery: object) -> None:
        if error is not None:
            failures.append(error)

    with open_session(home) as session, naming(topic):
        publisher = session.publisher(topic, on_delivery=on_delivery)

        def take(batch: Any) -> None:
            publisher.send(batch)
            publisher.poll()
            if failures:
                raise failures[0]

        try:
            yield take
        finally:
            publisher.close(CLOSE_S)
        waiting = publisher.flush(0)
        if failures:
            raise failures[0]
        if waiting:
            raise Unavailable(
                f"{plural(waiting, 'parcel')} still in the spool of {session.identity.home}",
                hint="they go out with the next publish, when the node can be reached",
            )


def _facts(source: Any) -> dict[str, Any]:
    """The sums of what really happened."""
    from tallystick.fleet.vehicles import Fleet

    if isinstance(source, Fleet):
        return {name: value for name, value in source.truth.summary().items() if name != "rows"}
    return {"sensors": len(source.names), "anomalies": len(source.anomalies)}


def _write_truth(path: Path, source: Any) -> None:
    from tallystick.fleet.vehicles import Fleet

    if isinstance(source, Fleet):
        whole = source.truth.plain()
    else:
        whole = {**_facts(source), "anomalies": [asdict(anomaly) for anomaly in source.anomalies]}
    try:
        path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"{path}: cannot be written: {error.strerror}") from error


def _report(summary: dict[str, Any], as_json: bool, out: str | None) -> None:
    """The summary goes to stdout, or where that holds the rows, to stderr."""
    text = (
        json.dumps(summary)
        if as_json
        else ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in summary.items())
    )
    (output.note if out == "-" else output.result)(text)


def _parse_time(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise Misuse(f'--start "{text}" is not a time such as 2026-01-05T06:00Z') from error
    if time.tzinfo is None:
        raise Misuse(f'--start "{text}" has no zone', hint=f"{text}Z is UTC")
    return int(time.timestamp() * 1000)
