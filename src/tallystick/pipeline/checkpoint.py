"""The checkpoint folder of a streaming query, looked at before Spark goes on from it.

Spark keeps in it the offsets of each batch before the batch begins (`offsets/N`), a note when the batch is done
(`commits/N`), and the query's identity (`metadata`). A power cut leaves files empty or torn, a careless hand takes some
away. Spark stops at most of that, in words of its own that name no remedy ("assertion failed"); one thing it does not
notice: where both logs are gone and the rest is there, the query begins again from its first row.

Where the reader is told the folder (option `checkpointLocation`), it is checked here first, and the error says how far
the query had come. Only what Spark will read is looked at: the two newest batches. Versions are Spark's to judge.

Left out: folders that are not of this machine's file system; a folder that is whole and older than the tables.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tallystick.errors import Misuse
from tallystick.wire import is_number

VERSION = "v1"  # of Spark's logs, as far as we know them
_NEWEST = 2  # batches that Spark reads when it goes on
_NOTHING = "-"  # stands for a source without an offset
_TORN = "a power cut or a full disk leaves such files"


def local_folder(location: str) -> Path | None:
    """Return the folder of this machine that Spark means, or None where it is elsewhere (`s3a://…`)."""
    place = urlsplit(location)
    if place.scheme not in ("", "file"):
        return None
    return Path(unquote(place.path) if place.scheme else location)


def check(location: str | None) -> None:
    """Raise `Misuse` where a query could not go on from this checkpoint, or would begin from its first row again."""
    folder = None if location is None else local_folder(location)
    if folder is None or not folder.exists():
        return
    if not folder.is_dir():
        raise Misuse(f"checkpoint {folder}: not a folder", hint="choose another checkpointLocation")
    offsets, commits = _numbers(folder / "offsets"), _numbers(folder / "commits")
    try:
        if offsets or commits:
            _check_metadata(folder / "metadata")
        elif (folder / "metadata").exists() and not (folder / "offsets").exists():
            raise Misuse("offsets is missing: the query would begin from its first row again")
        if commits and (not offsets or offsets[-1] < commits[-1]):
            raise Misuse(f"offsets/{commits[-1]} is missing, though batch {commits[-1]} is committed")
        for number in offsets[-_NEWEST:]:
            _read_offsets(folder / "offsets" / str(number))
        for number in commits[-1:]:
            _read_commit(folder / "commits" / str(number))
    except Misuse as error:
        raise Misuse(f"checkpoint {folder}: {error}", hint=_remedy(folder, offsets, commits)) from error


def _numbers(log: Path) -> list[int]:
    """The batches of one of Spark's logs."""
    return sorted(int(path.name) for path in log.glob("*") if is_number(path.name)) if log.is_dir() else []


def _check_metadata(path: Path) -> None:
    if not path.exists():
        raise Misuse("its metadata is missing: another identity would make it another query")
    if not isinstance(_object(_text(path), path).get("id"), str):
        raise Misuse("metadata has no id")


def _read_offsets(path: Path) -> list[dict[str, Any]]:
    """The offsets of the query's sources at the end of a batch."""
    version, *lines = _text(path).splitlines()
    if version != VERSION:
        return []
    if len(lines) < 2:
        raise _torn(path)
    _metadata, *sources = [_object(line, path) for line in lines if line != _NOTHING]
    return sources


def _read_commit(path: Path) -> None:
    version, *lines = _text(path).splitlines()
    if version == VERSION:
        _object("".join(lines), path)


def _name(path: Path) -> str:
    return path.name if path.name == "metadata" else f"{path.parent.name}/{path.name}"


def _text(path: Path) -> str:
    name = _name(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Misuse(f"{name} cannot be read: {error}") from error
    if not text.strip("\0 \n"):
        raise Misuse(f"{name} is empty: {_TORN}")
    if path.name != "metadata" and not re.match(r"v\d+$", text.splitlines()[0]):
        raise _torn(path)
    return text


def _torn(path: Path) -> Misuse:
    return Misuse(f"{_name(path)} is torn: {_TORN}")


def _object(text: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _torn(path)
    return found


def _remedy(folder: Path, offsets: list[int], commits: list[int]) -> str:
    """A copy, or a new checkpoint that begins where the last batch ended that is known to be done."""
    start = ""
    for number in sorted(set(offsets) & set(commits), reverse=True):
        try:
            sources = _read_offsets(folder / "offsets" / str(number))
        except Misuse:
            continue
        if len(sources) == 1:
            ended = json.dumps({name: value for name, value in sources[0].items() if name != "topic"})
            start = f" with startingOffsets={ended}, where batch {number} ended"
        break
    return (
        f"restore it from a copy; or choose a new checkpointLocation{start}, and new tables, since its batches count"
        " from 0 again"
    )
