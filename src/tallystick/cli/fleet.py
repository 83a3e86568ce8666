"""`tally fleet`: simulated vehicles and sensors, and real recordings, published or written to a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from tallystick.cli import output
from tallystick.cli.common import FILE, home_option, left_in_spool, machine, naming, now_ms, open_session
from tallystick.errors import Misuse, TallystickError, Unavailable

if TYPE_CHECKING:
    from tallystick.fleet.city import Sensors
    from tallystick.fleet.files import Take
    from tallystick.fleet.vehicles import Fleet

CLOSE_S = 60.0  # for the last parcels to be anchored
SIMULATED = ["telemetry", "can", "vitals", "home"]
SCHEMAS = [*SIMULATED, "positions", "drives", "alerts"]
ATTACKS = ["flood", "fuzzing", "replay", "targeted", "suspension", "constant", "ramp", "freeze", "flag"]
ATTACK_MINUTES_MAX = 120.0  # an attacked drive is held in memory


@click.group("fleet")
def command() -> None:
    """Simulate vehicles and city sensors, or replay recordings of real ones."""


def _parse_rate(_ctx: click.Context, _parameter: click.Parameter, value: str) -> float | None:
    """Returns how many times as fast as it happened, or None for as fast as can be."""
    if value == "max":
        return None
    try:
        factor = 1.0 if value == "realtime" else float(value)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise click.BadParameter(f'"{value}" is not max, realtime or a factor such as 10')
    return factor


class Destination(TypedDict):
    """Where rows go, how fast, and whether that is told."""

    rate: float | None
    topic: str | None
    out: str | None
    home: Path | None
    show_progress: bool


_destination_options = output.options(
    output.json_option,
    output.progress_option,
    home_option,
    click.option("--out", help="Write to this file (.parquet or .jsonl), or JSON lines to stdout with -."),
    click.option("--topic", help="Publish to this topic."),
    output.default_option(
        "--rate",
        callback=_parse_rate,
        default="max",
        help="As fast as can be (max), as it happened (realtime), or a factor such as 10.",
    ),
)


@command.command("simulate")
@output.default_option("--what", type=click.Choice([*SIMULATED, "bus"]), default="telemetry")
@output.default_option("--vehicles", type=click.IntRange(1), default=100, help="Or sensors, of the city's.")
@output.default_option("--minutes", type=float, default=10.0)
@output.default_option("--step", "step_s", type=float, default=1.0, help="Seconds between rows.")
@output.default_option("--seed", type=click.IntRange(0), default=0, help="The same seed gives the same bytes.")
@click.option("--start", help="Time of the first row, ISO 8601 [default: 2026-01-05T06:00Z, with realtime now].")
@click.option("--truth", type=FILE, help="Write what really happened here, as JSON.")
@output.default_option("--layout", type=click.IntRange(0, 2), default=0, help="Of the bus: which of three cars.")
@click.option("--attack", type=click.Choice(ATTACKS), help="On the bus, for ten seconds in the middle.")
@_destination_options
def simulate(
    what: str,
    vehicles: int,
    minutes: float,
    step_s: float,
    seed: int,
    start: str | None,
    truth: Path | None,
    layout: int,
    attack: str | None,
    tell: output.Tell,
    **to: Unpack[Destination],
) -> None:
    """Simulate vehicles (telemetry or CAN frames), the bus of one car, or sensors (vitals of a hospital, air of homes).

    \b
    Examples:
      tally fleet simulate --vehicles 500 --minutes 10 --out drive.parquet --truth truth.json
      tally fleet simulate --vehicles 20 --rate realtime --topic telemetry --home car
      tally fleet simulate --what bus --layout 1 --minutes 10 --seed 3 --out bus.parquet
    """
    from tallystick.fleet import can
    from tallystick.fleet.batches import START_MS
    from tallystick.fleet.city import Sensors
    from tallystick.fleet.vehicles import Fleet

    begin_ms = START_MS if to["rate"] is None else now_ms()
    start_ms = begin_ms if start is None else _parse_time(start)
    if what == "bus":
        told: dict[str, Any] = {"layout": layout}
        batches = _bus(layout, minutes, seed, start_ms * 1000, attack, told)
        summary = _run(batches, "simulating a bus", int(minutes * 60), to)
        if truth is not None:
            _write_truth(truth, told)
        _report({"what": what, "seed": seed, **summary, "layout": layout}, tell, to["out"])
        return
    if attack is not None:
        raise Misuse(f"--attack {attack}: only a bus is attacked", hint="--what bus")
    source: Fleet | Sensors
    if what in ("telemetry", "can"):
        source = Fleet(vehicles, minutes * 60, step_s=step_s, seed=seed, start_ms=start_ms)
    else:
        source = Sensors(what, vehicles, minutes * 60, step_s=step_s, seed=seed, start_ms=start_ms)
    batches = map(can.encode, source.batches()) if what == "can" else source.batches()
    summary = _run(batches, f"simulating {what}", int(minutes * 60), to)
    if truth is not None:
        _write_truth(truth, _truth(source))
    _report({"what": what, "seed": seed, **summary, **_facts(source)}, tell, to["out"])


def _bus(
    layout: int, minutes: float, seed: int, start_us: int, attack: str | None, told: dict[str, Any]
) -> Iterator[Any]:
    """The bus's rows; what the attack was comes into `told`."""
    from tallystick.fleet.bus import bus_chunks, simulate_bus
    from tallystick.fleet.detect import attacks
    from tallystick.fleet.vehicles import vin

    name = vin(seed, layout)
    if attack is None:
        yield from (frames.to_batch(name) for frames in bus_chunks(layout, minutes, seed, start_us))
        return
    if minutes > ATTACK_MINUTES_MAX:
        raise Misuse(f"--minutes {minutes:g}: at most {ATTACK_MINUTES_MAX:g} with an attack")
    frames = simulate_bus(layout, minutes, seed, start_us)
    planned = attacks.plan(attack, frames, start_us + int(minutes * 30e6), 10.0, seed)
    attacked, by_attacker = attacks.carry_out(planned, frames, seed)
    told |= {**asdict(planned), "version": attacks.VERSION, "attacker_rows": by_attacker.nonzero()[0].tolist()}
    yield attacked.to_batch(name)


@command.command("replay")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--duplicates", is_flag=True, help="Keep rows that repeat another one exactly.")
@click.option("--vin", help="Of the vehicle whose frames a CAN capture holds [default: the capture's name].")
@_destination_options
def replay(path: Path, duplicates: bool, vin: str | None, tell: output.Tell, **to: Unpack[Destination]) -> None:
    """Replay CapMetro positions, OBD-II drives, or captures of a CAN bus (candump logs, CSV of ROAD and V40): a file,
    a folder of them, or a tar archive of them.

    \b
    Examples:
      tally fleet replay obdiidata.tar.xz --out drives.parquet
      tally fleet replay vehicle_positions/2015-06-07.csv --rate 60 --topic positions --home bus
      tally fleet replay candump.log --vin VIN0001 --out frames.parquet
    """
    from tallystick.fleet.replay import RecordingReplay

    source = RecordingReplay(path, keep_duplicates=duplicates, vin=vin)
    summary = _run(source.batches(), f"replaying {path.name}", 0, to)
    _report({**summary, **output.fields(source, "files empty duplicates torn unordered")}, tell, to["out"])


@command.command("schema")
@click.argument("name", type=click.Choice(SCHEMAS))
@output.json_option
def schema(name: str, tell: output.Tell) -> None:
    """Print the schema of a kind of rows, as tally topic takes it.

    \b
    Examples:
      tally topic create drives --schema "$(tally fleet schema drives)" --home owner
    """
    from tallystick.fleet import schemas

    text = str(schemas.schema(name))
    tell({"name": name, "schema": text}, text)


def _run(batches: Iterable[Any], label: str, seconds: int, to: Destination) -> dict[str, Any]:
    """Hand every batch on. Returns how many rows that were, and in how much time."""
    from tallystick.fleet.batches import paced

    clock, rate = machine().clock, to["rate"]
    began_s, rows, shown_s, first_ms = clock.monotonic(), 0, 0, None
    with destination(to) as take, output.progress(label, seconds, show=to["show_progress"]) as advance:
        for batch in batches if rate is None else paced(batches, clock, rate):
            take(batch)
            rows += batch.num_rows
            last_ms = int(batch.column("ts")[batch.num_rows - 1].as_py().timestamp() * 1000)
            first_ms = last_ms if first_ms is None else first_ms
            advance((last_ms - first_ms) // 1000 - shown_s)
            shown_s = (last_ms - first_ms) // 1000
    return {"rows": rows, "seconds": round(clock.monotonic() - began_s, 3)}


@contextmanager
def destination(to: Destination) -> Iterator[Take]:
    from tallystick.fleet import files

    match to["topic"], to["out"]:
        case None, "-":
            yield files.json_lines(sys.stdout.buffer)
            sys.stdout.buffer.flush()
        case None, str(out):
            with files.writing(Path(out)) as take:
                yield take
        case str(topic), None:
            with _publishing(topic, to["home"]) as take:
                yield take
        case _:
            raise Misuse("say where the rows go: either --topic or --out", hint="--out - writes JSON lines to stdout")


@contextmanager
def _publishing(topic: str, home: Path | None) -> Iterator[Take]:
    failures: list[TallystickError] = []

    def on_delivery(error: TallystickError | None, _delivery: object) -> None:
        if error is not None:
            failures.append(error)

    with open_session(home, topic) as session, naming(topic):
        publisher = session.publisher(topic, on_delivery=on_delivery, acks=session.acks_most)  # and the spool is empty

        def take(batch: Any) -> None:
            publisher.send(batch)
            publisher.poll()
            if failures:
                raise failures[0]

        try:
            yield take
        finally:
            publisher.close(CLOSE_S)
        publisher.poll()
        if failures:
            raise failures[0]
        told = publisher.statistics()
        if waiting := sum(one.stored - one.anchored + one.waiting for one in (told.produced, told.earlier)):
            raise left_in_spool(session, publisher, output.plural(waiting, "row"))
        output.note(f"{output.plural(told.produced.anchored, 'row')} anchored")


def _facts(source: Fleet | Sensors) -> dict[str, Any]:
    """The sums of what really happened."""
    from tallystick.fleet.vehicles import Fleet

    if isinstance(source, Fleet):
        return {name: value for name, value in source.truth.summary().items() if name != "rows"}
    return {"sensors": len(source.names), "anomalies": len(source.anomalies)}


def _truth(source: Fleet | Sensors) -> dict[str, Any]:
    from tallystick.fleet.vehicles import Fleet

    if isinstance(source, Fleet):
        return source.truth.plain()
    return {**_facts(source), "anomalies": [asdict(anomaly) for anomaly in source.anomalies]}


def _write_truth(path: Path, whole: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"{path}: cannot be written: {error.strerror}") from error


def _report(summary: dict[str, Any], tell: output.Tell, out: str | None) -> None:
    """The summary goes to stdout, or where that holds the rows, to stderr."""
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in summary.items())
    (output.note if out == "-" else output.result)(json.dumps(summary) if tell.as_json else facts)


def _parse_time(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise Misuse(f'--start "{text}" is not a time such as 2026-01-05T06:00Z') from error
    if time.tzinfo is None:
        raise Misuse(f'--start "{text}" has no zone', hint=f"{text}Z is UTC")
    return int(time.timestamp() * 1000)
