"""`tally inspect`: what a stranger can see of a file, without any key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tallystick.cli import output
from tallystick.errors import Malformed, Misuse


@click.command("inspect")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@output.json_option
def command(file: Path, tell: output.Tell) -> None:
    """Say what FILE is and show what it tells a stranger: a parcel, lock, permit, promise, certificate, receipt,
    proof, finding, checkpoint, invitation or trust file; an overlay's joint promise or joint anchor. Of a folder, every
    file in it, oldest first. Nothing is verified and nothing opened.

    \b
    Examples:
      tally inspect trust.json
      tally inspect row.proof
      tally inspect reader/evidence
    """
    files = [file]
    if file.is_dir():
        files = sorted((one for one in file.iterdir() if one.is_file()), key=lambda one: one.stat().st_mtime_ns)
        if not files:
            raise Misuse(f"{file}: no file is in this folder")
    for one in files:
        try:
            _show(one, tell)
        except Malformed as error:  # of a folder, the others are shown all the same
            if one == file:
                raise
            output.note(str(error))


def _show(file: Path, tell: output.Tell) -> None:
    from tallystick.client.inspect import look

    data = file.read_bytes()
    try:
        kind, facts = look(data)
    except Malformed as error:
        raise Malformed(f"{file}: {error}", hint=error.hint) from error
    tell({"kind": kind, **facts}, f"{file}: {kind}, {len(data)} bytes", *_lines(facts, "  "))


def _lines(facts: dict[str, Any], indent: str) -> Iterator[str]:
    for name, value in facts.items():
        label = name.replace("_", " ")
        if isinstance(value, dict):
            yield f"{indent}{label}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, item in enumerate(value):
                yield f"{indent}{label} {number}:"
                yield from _lines(item, indent + "  ")
        elif name.endswith("_ms") and value:
            yield f"{indent}{label[:-3]}: {output.show_time(value)} ({value} ms)"
        else:
            yield f"{indent}{label}: {output.show_value(value)}"
