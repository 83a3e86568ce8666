"""`tally demo`: the whole story on the embedded default, attacks included."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import FOLDER, machine
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.demo.show import ToldScene


@click.command("demo")
@output.default_option("--vehicles", type=click.IntRange(2), default=500)
@output.default_option("--sensors", type=click.IntRange(1), default=200, help="Of each of the two tenants.")
@output.default_option("--minutes", type=click.FloatRange(1), default=10.0, help="Simulated.")
@output.default_option("--seed", type=click.IntRange(0), default=0, help="Of the simulation.")
@click.option(
    "--attack", "attacks", multiple=True, help="Act out this one alone, by its name in the table; repeatable."
)
@click.option("--skip-spark", is_flag=True, help="Leave Spark out: no jobs, no report, subscribers' findings alone.")
@click.option(
    "--folder", type=FOLDER, help="Where everything goes, new or empty [default: a new folder in build/demo]."
)
@click.option("--console", "with_console", is_flag=True, help="Keep a console beside it, until Ctrl-C.")
@output.json_option
def command(
    vehicles: int,
    sensors: int,
    minutes: float,
    seed: int,
    attacks: tuple[str, ...],
    skip_spark: bool,
    folder: Path | None,
    with_console: bool,
    tell: output.Tell,
) -> int:
    """Run the whole story: an instance, two tenants, a fleet, a group of subscribers, every attack, the Spark jobs.

    Node and authority run as processes of their own on free ports of loopback and are ended at the end; the folder
    stays, with logs, evidence, tables and the report. Ends with code 1 if an attack succeeds, or if it cannot be seen
    that it was stopped.

    \b
    Examples:
      tally demo
      tally demo --vehicles 20 --minutes 1 --skip-spark --json
      tally demo --skip-spark --attack "fake unsubscribe"
      tally demo --skip-spark --console
    """
    from tallystick.demo.console import ConsoleBeside
    from tallystick.demo.show import Show
    from tallystick.demo.traffic import Size

    folder = _folder(folder)
    clock = machine().clock
    began = clock.monotonic()

    def say(text: str) -> None:
        output.note(f"{clock.monotonic() - began:6.1f} s  {text}")

    with_spark = not skip_spark and has_spark()
    say(f"everything goes to {folder}")
    console = ConsoleBeside(folder, clock, say) if with_console else None
    with ending_in_order(), nullcontext() if console is None else closing(console):
        size = Size(vehicles, sensors, minutes, seed)
        told = Show(folder, size, with_spark=with_spark, say=say, attacks=attacks, console=console).run()
        tell(_document(told), *_lines(told))
        bad = sum(scene.verdict != "stopped" for scene in told.scenes)
        if bad:
            output.failure(f"{bad} of {len(told.scenes)} attacks were not seen to be stopped", f"look at {folder}")
        if console is not None:
            console.wait(lambda: output.note("the console goes on, without a node, until Ctrl-C"))
    return output.EXIT_FAULT if bad else 0


@contextmanager
def ending_in_order() -> Iterator[None]:
    """SIGTERM ends the demo as an interrupt does: its processes first."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _folder(named: Path | None) -> Path:
    """A new or empty folder, by its whole path."""
    folder = named or Path("build") / "demo" / datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S")
    if folder.exists() and any(folder.iterdir()):
        raise Misuse(f"{folder}: not empty", hint="name a new folder with --folder")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder.resolve()


def has_spark() -> bool:
    from tallystick.pipeline.jobs.run import check_engine

    try:
        check_engine()
    except Misuse as error:
        output.note(f"warning: Spark is left out: {error}; {error.hint}")
        return False
    return True


def _lines(told: ToldScene) -> Iterator[str]:
    from tallystick.demo.table import lines

    yield from lines(told.scenes)
    for name, pace in told.paces.items():
        yield f"{name}: {pace}"
    if told.report is not None:
        yield f"report: {told.report}"
    yield f"folder: {told.folder}"
    yield f"again: {told.again}"


def _document(told: ToldScene) -> dict[str, Any]:
    return {
        "good": told.is_good,
        "seconds": round(told.seconds, 1),
        "scenes": [asdict(scene) for scene in told.scenes],
        "rows_per_s": {name: round(pace.per_second) for name, pace in told.paces.items()},
        "report": None if told.report is None else str(told.report),
        "folder": str(told.folder),
        "again": told.again,
    }
