"""`tally pipeline`: jobs over topics and tables, in Spark."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import FILE, FOLDER, home_option, machine, naming
from tallystick.pipeline.jobs.registry import JOBS, Job, Option

if TYPE_CHECKING:
    from tallystick.pipeline.jobs.run import JobRun


@click.group("pipeline")
def command() -> None:
    """Run the jobs that make tables, findings and reports of topics.

    \b
    Examples:
      tally pipeline list
      tally pipeline run ingest --home reader --topic telemetry --warehouse tables
    """


@command.command("list")
@output.json_option
def list_jobs(tell: output.Tell) -> None:
    """List the jobs.

    \b
    Examples:
      tally pipeline list
    """
    told = [output.fields(job, "name help streams") for job in JOBS.values()]
    tell(told, *output.table([[job.name, job.help] for job in JOBS.values()]))


@command.group("run")
def run() -> None:
    """Run a job: over what is there, or with --stream over what comes, until it is interrupted.

    \b
    Examples:
      tally pipeline run ingest --home reader --topic telemetry --warehouse tables
    """


@command.command("export")
@click.option(
    "--warehouse",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="The folder of the tables.",
)
@click.option("--out", type=FILE, required=True, help="The GeoJSON file to write.")
@click.option("--open", "with_open", is_flag=True, help="Those too that still go on.")
@output.json_option
def export(warehouse: Path, out: Path, with_open: bool, tell: output.Tell) -> None:
    """Write the trips of a warehouse as GeoJSON: lines, and points of harsh driving.

    \b
    Examples:
      tally pipeline export --warehouse tables --out trips.geojson
    """
    from tallystick.pipeline.jobs import geojson
    from tallystick.pipeline.jobs.warehouse import Warehouse

    counts = geojson.export(Warehouse(warehouse), out, with_open=with_open)
    told = {"file": str(out), **counts}
    tell(told, *output.fact_lines(told))


def _parse_settings(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, sign, _value in pairs:
        if not sign or not name.startswith("spark."):
            raise click.BadParameter(f'"{name}{sign}" is not of the form spark.name=value')
    return {name: value for name, _sign, value in pairs}


def _option(option: Option) -> Any:
    default = option.choices[0] if option.choices else option.default
    shown: dict[str, Any] = {"default": default, "show_default": default is not None, "help": option.help}
    flag = f"--{option.name.replace('_', '-')}"
    plain = click.Path(path_type=Path) if option.type is Path else option.type
    kind = click.Choice(option.choices) if option.choices else plain
    return click.option(flag, option.name, type=kind, **shown)


def _make_command(job: Job) -> click.Command:
    """The command of one job, with the options that it has."""

    def call(
        warehouse: Path,
        settings: dict[str, str],
        quiet: bool,
        tell: output.Tell,
        home: Path | None = None,
        topic: str | None = None,
        stream: bool = False,
        **options: Any,
    ) -> None:
        from tallystick.identity.folder import find_home
        from tallystick.pipeline.jobs.run import JobRun, check_engine
        from tallystick.pipeline.jobs.warehouse import Warehouse

        if job.needs_spark:
            check_engine()
        one = JobRun(
            warehouse=Warehouse(warehouse),
            clock=machine().clock,
            options=options,
            home=find_home(home) if job.needs_home else None,
            topic=topic,
            follow=stream,
            settings=settings,
            tell=(lambda _line: None) if quiet else output.note,
        )
        with _stopping(one), naming(topic) if topic else nullcontext():
            summary = {"job": job.name, **job.load()(one)}
        tell(summary, *output.fact_lines(summary))

    function: Any = output.json_option(call)
    for option in reversed(job.options):
        function = _option(option)(function)
    function = click.option("--quiet", is_flag=True, help="No progress on stderr.")(function)
    function = click.option(
        "--conf", "settings", multiple=True, callback=_parse_settings, help="A setting of Spark, such as spark.master=…"
    )(function)
    if job.streams:
        function = click.option(
            "--stream/--once", default=False, help="Go on with what comes, or end with what is there.  [default: once]"
        )(function)
    function = click.option(
        "--warehouse", type=FOLDER, required=True, help="The folder of the tables; made if it is not there."
    )(function)
    if job.needs_topic:
        function = click.option("--topic", required=True, help="The topic to read.")(function)
    if job.needs_home:
        function = home_option(function)
    text = f"{job.help[:1].upper()}{job.help[1:]}.\n\n\b\nExamples:\n  {job.example}"
    return click.command(job.name, help=text, short_help=job.help)(function)


@contextmanager
def _stopping(one: JobRun) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the run in order, after the batch at hand; the next one as ever."""

    def stop(number: int, _frame: object) -> None:
        one.stop.set()
        signal.signal(number, before[number])

    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before if one.follow else ():
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


for _job in JOBS.values():
    run.add_command(_make_command(_job))
