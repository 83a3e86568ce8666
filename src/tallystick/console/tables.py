"""What pages of a warehouse's tables share: the tables, filters by the address, and values that anybody may have
written. Whether what tables say is true nobody knows here: it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick import wire
from tallystick.client.spans import read_time
from tallystick.console.layout import command, nothing
from tallystick.console.marks import cut, soft, told
from tallystick.console.visit import Visit
from tallystick.errors import Misuse
from tallystick.page.html import Html, tag
from tallystick.pipeline.jobs.rows import OPEN, TIME, TableRows

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def columns(**names: str) -> pa.Schema:
    """The columns of these names by what Arrow calls their types; `time` is a time as jobs write it."""
    kinds = {kind: TIME if kind == "time" else pa.type_for_alias(kind) for kind in names}
    return pa.schema([(name, kinds[kind]) for kind, several in names.items() for name in several.split()])


def rows_of(visit: Visit) -> TableRows:
    """The warehouse that was given. Raises `Misuse` unless it is this instance's."""
    assert visit.viewer.warehouse is not None
    return TableRows(visit.viewer.warehouse, visit.viewer.identity.instance)


def has(visit: Visit, name: str) -> bool:
    """Whether a warehouse was given that has this table."""
    folder = visit.viewer.warehouse
    return folder is not None and (folder / name / "batch=0").is_dir()


def missing(visit: Visit, job: str) -> Html:
    """Where there is no such table, what makes one."""
    if visit.viewer.warehouse is None:
        return nothing("No warehouse was given.", command("tally console --warehouse FOLDER"))
    rows_of(visit)
    folder = quote(str(visit.viewer.warehouse))
    return nothing(f"The job {job} was not run here yet.", command(f"tally pipeline run {job} --warehouse {folder}"))


def within(visit: Visit, rows: pa.Table, time: str, exactly: Mapping[str, Html]) -> tuple[Html, pa.Table]:
    """The filters of a list, and the rows that fit the address, newest first: columns that are `exactly` what it says,
    each with the field that asks for it, and the time."""
    ends = [visit.field(name, name, placeholder="-1h or 2026-11-18") for name in ("from", "to")]
    for name in exactly:
        if wanted := visit.query.get(name):
            rows = rows.filter(pc.equal(rows[name], wanted))
    for name, fits in (("from", pc.greater_equal), ("to", pc.less)):
        if text := visit.query.get(name):
            rows = rows.filter(fits(rows[time], _moment(visit, name, text)))
    form = visit.filters(*exactly.values(), *ends)
    return form, rows.sort_by([(one, "descending") for one in (time, "batch", "row")])


def during(first: int, last: int) -> pc.Expression:
    """Of rows whose time `ts` is none before the first and none behind the last, in microseconds."""
    time, ends = pc.field("ts").cast(TIME), [pa.scalar(one, TIME) for one in (first, last)]
    return (time >= ends[0]) & (time <= ends[1])


def or_why(show: Callable[..., Html], *given: object) -> Html:
    """A part of a page, or what is wrong with its table: the rest is shown all the same."""
    try:
        return show(*given)
    except Misuse as error:
        return nothing(f"{error}.", tag("p", error.hint))


def _moment(visit: Visit, name: str, text: str) -> int:
    found = read_time(text, visit.viewer.now_ms)
    if found is None:
        raise Misuse(f"{name}: a time expected, found {text[:40]!r}", hint="such as -1h, or 2026-11-18 06:00 in UTC")
    return (found - _EPOCH) // timedelta(microseconds=1)


def at(us: int | None) -> str:
    return "unknown" if us is None else wire.show_time(us // 1000)


def moment(us: int) -> datetime:
    """Raises `Misuse` for a time in no calendar."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        raise Misuse(f"{us} us after 1970 is a time in no calendar", hint="was it written in nanoseconds?") from None


def number(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{value:,.6g} {unit}".rstrip()


def place_link(visit: Visit, row: dict[str, Any], time: str, still: str) -> list[Html | None]:
    """A row's own page, behind that of its list; `still` says what it is while it may change."""
    is_open = row["batch"] < 0
    where = f"{visit.path}/{OPEN if is_open else row['batch']}/{row['row']}"
    return [visit.link(at(row[time]), where), soft(f" {still}") if is_open else None]


def record_link(visit: Visit, token: bytes | None, partition: int | None, offset: int | None, leaf: int | None) -> Html:
    """The record that a row says it is from: there it is checked."""
    if token is None or partition is None or offset is None:
        return soft("not known")
    text = f"partition {partition}, offset {offset}, row {leaf or 0}"
    return visit.link(text, f"topics/{token.hex()}/records/{partition}/{offset}/{leaf or 0}")


def publisher(visit: Visit, text: str | None) -> object:
    """Who published a row, as the table says."""
    return visit.principal(bytes.fromhex(text)) if text and wire.is_identifier(text) else cut(text)


def lead(*text: object) -> Html:
    """What a page of tables says first."""
    mark = told("told by the warehouse's tables", by="the warehouse's tables")
    return tag("p", text, " ", mark, "; a record's own page checks what it came from.", class_="lead")
