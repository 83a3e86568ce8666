"""How the commands speak: results on stdout, everything else on stderr, one exit code per kind of blame.

    0 done    1 a fault of ours    2 Misuse    3 Refused    4 Unavailable    130 interrupted
    141 nobody reads the output any more (… | head), as for a process that SIGPIPE ends

Lines for people are lower-case and end without a full stop. What others wrote may move a terminal's cursor or turn its
text around, so it is escaped wherever it is printed (`shown`). A command with `--json` writes one JSON document
(or one per line, where it streams) on stdout and is otherwise the same: a script reads code and document.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unicodedata import category

import click

from tallystick.errors import Misuse, Refused, TallystickError, Unavailable

EXIT_FAULT = 1
EXIT_CODES: dict[type[TallystickError], int] = {Misuse: 2, Refused: 3, Unavailable: 4}
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141
_OBEYED = (
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
)  # of Unicode: control, format, surrogates, ends of lines

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class Tell:
    """How a command gives its result: one JSON document for machines, or lines for people."""

    as_json: bool

    def __call__(self, document: Any, *lines: str, note: str = "", none: str = "") -> None:
        """Write the document, or the lines and, beside the result, the note that only people need. `none` is told
        where a list has no lines: that there is nothing, and what would make something."""
        if self.as_json:
            result_json(document)
            return
        for line in lines:
            result(line)
        if note or (none and not lines):
            _say(note or none)


json_option = click.option(  # gives a command the argument `tell`
    "--json",
    "tell",
    is_flag=True,
    callback=lambda _context, _parameter, as_json: Tell(as_json),
    help="Write JSON on stdout, for machines.",
)
progress_option = click.option(
    "--progress", "show_progress", is_flag=True, help="Show progress on stderr even where it is not a terminal."
)


def default_option(*names: str, **settings: Any) -> Decorator:
    """An option of a command whose default the help shows."""
    return click.option(*names, show_default=True, **settings)


def options(*decorators: Decorator) -> Decorator:
    """Arguments and options that several commands have, in the order in which the help shows them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(decorators):
            command = one(command)
        return command

    return decorate


def shown(text: str) -> str:
    """The text without anything that a terminal obeys: control, format and direction characters and line ends are
    written as in JSON. So a document stays the same document."""
    if text.isprintable():
        return text
    return "".join(json.dumps(one)[1:-1] if category(one) in _OBEYED else one for one in text)


def result(text: str) -> None:
    """One line of result, for people."""
    click.echo(shown(text))


def result_json(value: Any) -> None:
    """One JSON document on one line; bytes are written as hex, dataclasses as objects."""
    result(json.dumps(value, default=_plain, ensure_ascii=False))


def note(text: str) -> None:
    """A line beside the result: what is going on, what was assumed."""
    _say(text)


def write_result(file: Path, data: bytes) -> None:
    """Write a result to a file. Where that fails, the error names the file, and no new one is left behind."""
    was_there = file.exists()
    try:
        file.write_bytes(data)
    except OSError as error:
        if not was_there:
            file.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(file)) from error


def failure(message: str, hint: str | None = None) -> None:
    """The `error:` line and, where there is advice, the `hint:` line."""
    _say(f"error: {message}")
    if hint:
        _say(f"hint: {hint}")


def _say(text: str) -> None:
    click.echo(shown(text), err=True)


def let_go() -> None:
    """A stream that takes nothing more (a closed pipe, a full disk) keeps what it was given, and the interpreter would
    complain of it at its end: what is left goes nowhere."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def exit_code(error: TallystickError) -> int:
    """The process's exit code: whose fault it was, also where a peer had to tell."""
    if isinstance(error, Refused) and error.reason == "misuse":
        return EXIT_CODES[Misuse]
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), EXIT_FAULT)


def shows_progress(show: bool) -> bool:
    """Whether `progress` would draw anything."""
    return show or sys.stderr.isatty()


@contextmanager
def progress(label: str, total: int, *, show: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield `advance(n)`; draws on stderr when that is a terminal or `show` is set, else does nothing.

    with progress("verifying parcels", len(parcels), show=show_progress) as advance:
        for parcel in parcels:
            ...
            advance(1)
    """
    if sys.stderr.isatty():
        with click.progressbar(length=total, label=label, file=sys.stderr) as bar:
            yield bar.update
    elif show:
        yield _lines(label, total)
    else:
        yield lambda _count: None


def _lines(label: str, total: int) -> Callable[[int], None]:
    """Progress for logs: a line at every tenth, none in between."""
    done = shown = 0

    def advance(count: int) -> None:
        nonlocal done, shown
        done += count
        tenth = 10 * done // max(total, 1)
        if tenth > shown:
            shown = tenth
            note(f"{label}: {done} of {total}")

    return advance


def plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def show_time(time_ms: int) -> str:
    """A time for people, in UTC."""
    from tallystick import wire  # a list of commands has no times to show

    return wire.show_time(time_ms)


def table(rows: list[list[str]]) -> list[str]:
    """Columns under one another; the last one is not padded."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def show_value(value: Any) -> str:
    """A value for people: a dash where there is none."""
    if isinstance(value, bytes):
        return value.hex() or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(show_value, value)) or "–"
    return "–" if value is None else str(value)


def fields(thing: object, names: str) -> dict[str, Any]:
    """These attributes of a thing, by their names."""
    return {name: getattr(thing, name) for name in names.split()}


def fact_lines(facts: Mapping[str, Any]) -> list[str]:
    """A line for each fact, its name before its value."""
    return table([[name.replace("_", " "), show_value(value)] for name, value in facts.items()])


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form")
